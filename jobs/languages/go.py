"""Go: functions, methods, types, groups of constants and variables, imports; and the module line of a go.mod."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tree_sitter import Node

from cluster.model.nodes import Json
from jobs.languages.tree import (
    MAX_QUALIFIED,
    MAX_SIGNATURE,
    Definition,
    Parsed,
    SourceText,
    comment_text,
    first_error_line,
    first_paragraph,
    parse,
    shorten,
)

_MODULE = re.compile(r"^[ \t]*module[ \t]+(\"[^\"\n]+\"|`[^`\n]+`|[^\s/]\S*)", re.MULTILINE)
_KINDS = {"interface_type": "Interface"}


def read(source: SourceText) -> Parsed:
    """The symbols and the facts of a Go file."""
    root = parse("go", source.data).root_node
    return _Reader(source, root).read()


def read_module(source: SourceText) -> Parsed:
    """The facts of a go.mod: the module's import path."""
    match = _MODULE.search(source.cut(0, len(source.data)))
    return Parsed(definitions=(), facts={"module": match[1].strip('"`') if match else None})


class _Reader:
    def __init__(self, source: SourceText, root: Node) -> None:
        self._source = source
        self._root = root
        self._definitions: list[Definition] = []
        self._imports: list[Json] = []
        self._package = ""
        self._summary = ""

    def read(self) -> Parsed:
        # Symbols of Go are declared at the top or, where the tree is broken, right below an error node.
        stack = [self._root]
        while stack:
            node = stack.pop()
            if node.type in ("source_file", "ERROR"):
                stack.extend(reversed(node.named_children))
            else:
                self._declaration(node)
        self._join_methods()
        return Parsed(
            definitions=self._definitions,
            facts={"package": self._package, "imports": self._imports},
            summary=self._summary,
            error_line=first_error_line(self._root),
        )

    def _declaration(self, node: Node) -> None:
        match node.type:
            case "comment":
                self._source.note_comment(node)
            case "package_clause":
                self._package = self._source.text(node).removeprefix("package").strip()
                self._summary = first_paragraph(comment_text(self._source.comments_above(node.start_byte)[1]))
            case "import_declaration":
                self._import(node)
            case "function_declaration" | "method_declaration":
                self._function(node)
            case "type_declaration":
                self._types(node)
            case "const_declaration" | "var_declaration":
                self._values(node)

    def _import(self, node: Node) -> None:
        for spec in _specs(node, "import_spec"):
            path = spec.child_by_field_name("path")
            if path is not None:
                self._imports.append([self._source.text(path).strip('"`'), spec.start_point[0] + 1])

    def _function(self, node: Node) -> None:
        name = node.child_by_field_name("name")
        if name is None:
            return
        receiver = self._receiver(node.child_by_field_name("receiver"))
        body = node.child_by_field_name("body")
        signature = self._source.signature(node.start_byte, body.start_byte if body is not None else node.end_byte)
        text = self._source.text(name)[:MAX_QUALIFIED]
        self._define(
            text, f"{receiver}.{text}" if receiver else text, "Method" if receiver else "Function", node, node, signature
        )

    def _receiver(self, parameters: Node | None) -> str:
        """The receiver's type without pointer and type parameters; "" for a function."""
        stack = [] if parameters is None else [parameters]
        while stack:
            node = stack.pop()
            if node.type == "type_identifier":
                return self._source.text(node)
            stack.extend(reversed(node.named_children))
        return ""

    def _types(self, node: Node) -> None:
        specs = _specs(node, "type_spec", "type_alias")
        for position, spec in enumerate(specs):
            name, type_ = spec.child_by_field_name("name"), spec.child_by_field_name("type")
            if name is None:
                continue
            # The first type of a group takes the group's head, the last one its closing bracket.
            first = node if position == 0 else spec
            last = node if position == len(specs) - 1 else spec
            kind = _KINDS.get(type_.type if type_ is not None else "", "Type")
            body = next((child for child in (type_.children if type_ is not None else ()) if child.type == "{"), None)
            if type_ is not None and type_.type == "struct_type":
                body = type_.named_children[-1] if type_.named_children else None
            signature = "type " + self._source.signature(
                spec.start_byte, body.start_byte if body is not None else spec.end_byte
            )
            self._define(self._source.text(name), self._source.text(name), kind, first, last, signature)

    def _values(self, node: Node) -> None:
        """One symbol for a declaration, named by its first name: what stands in one group belongs together."""
        specs = _specs(node, "const_spec", "var_spec")
        names = [self._source.text(name) for spec in specs for name in spec.children_by_field_name("name") if name.is_named]
        if not names:
            return
        grouped = len(specs) > 1
        keyword = node.type.removesuffix("_declaration")
        signature = f"{keyword} ({', '.join(names)})" if grouped else self._source.text(specs[0])
        signature = shorten(signature if grouped else f"{keyword} {signature}", MAX_SIGNATURE)
        constants = any(child.type == "iota" for spec in specs for child in _values_of(spec))
        self._define(names[0], names[0], "Enum" if grouped and constants else "Variable", node, node, signature)

    def _define(self, name: str, qualified: str, kind: str, first: Node, last: Node, signature: str) -> None:
        for child in first.named_children:
            if child.type == "comment":
                self._source.note_comment(child)
        above, comments = self._source.comments_above(first.start_byte)
        start, end = self._source.widen(above, last.end_byte)
        self._definitions.append(
            Definition(
                name=name,
                qualified=qualified,
                kind=kind,
                start=start,
                end=end,
                line=first.start_point[0] + 1,
                signature=signature,
                summary=first_paragraph(comment_text(comments)),
                properties={"exported": name[:1].isupper()},
            )
        )

    def _join_methods(self) -> None:
        """Makes methods members of their type where it is declared in the same file."""
        types = {
            definition.qualified: index
            for index, definition in enumerate(self._definitions)
            if definition.kind in ("Type", "Interface")
        }
        for definition in self._definitions:
            if definition.kind == "Method":
                definition.parent = types.get(definition.qualified.partition(".")[0])


def _specs(node: Node, *types: str) -> Sequence[Node]:
    """The specifications of a declaration, alone or in brackets."""
    found: list[Node] = []
    for child in node.named_children:
        if child.type in types:
            found.append(child)
        elif child.type.endswith("_list"):
            found.extend(inner for inner in child.named_children if inner.type in types)
    return found


def _values_of(spec: Node) -> Sequence[Node]:
    stack = [spec]
    found: list[Node] = []
    while stack:
        node = stack.pop()
        found.append(node)
        stack.extend(node.named_children)
    return found
