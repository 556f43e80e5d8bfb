"""JavaScript, TypeScript and TSX: functions, classes, methods, interfaces, types, enums, namespaces, and imports.

A constant that holds a function is that function. Other constants are symbols at module level, if they are exported, named in
capitals, or hold a call that is given a function (`memo(() => ...)`). Inside functions, a function without a declaration of its
own is a symbol from SMALLEST_NESTED lines on: one-line handlers would cut their function to shreds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from tree_sitter import Node

from cluster.model.nodes import Json
from jobs.languages.tree import (
    Definition,
    Parsed,
    SourceText,
    comment_text,
    first_error_line,
    first_paragraph,
    parse,
    qualify,
)

SMALLEST_NESTED = 4
_CONSTANT = re.compile(r"_{0,2}[A-Z][A-Z0-9_]+")
_FUNCTIONS = frozenset({"arrow_function", "function_expression", "function", "generator_function"})
_DECLARATIONS = {
    "function_declaration": "Function",
    "generator_function_declaration": "Function",
    "function_signature": "Function",
    "class_declaration": "Class",
    "abstract_class_declaration": "Class",
    "interface_declaration": "Interface",
    "type_alias_declaration": "Type",
    "enum_declaration": "Enum",
    "internal_module": "Namespace",
    "module": "Namespace",
}
#: Kinds without code in them; inside a function they are part of its text.
_SHAPES = frozenset({"Interface", "Type", "Enum"})
_METHODS = frozenset({"method_definition", "abstract_method_signature", "method_signature"})
_FIELDS = frozenset({"public_field_definition", "field_definition"})
_EXPORTS_OBJECT = re.compile(r"(?:module\.)?exports\.([\w$]+)")
_PROTOTYPE = re.compile(r"([\w$]+)\.prototype\.([\w$]+)")


def read(source: SourceText, grammar: str) -> Parsed:
    """The symbols and the facts of a file, by the grammar "javascript", "typescript" or "tsx"."""
    root = parse(grammar, source.data).root_node
    return _Reader(source, root).read()


class _Frame:
    """Where the walk is: the enclosing symbol, whether that is a function's body, and what wraps the next declaration."""

    __slots__ = ("exported", "in_class", "in_function", "outer", "owner")

    def __init__(
        self,
        owner: int | None = None,
        *,
        in_function: bool = False,
        in_class: bool = False,
        outer: Node | None = None,
        exported: bool = False,
    ) -> None:
        self.owner = owner
        self.in_function = in_function
        self.in_class = in_class
        #: The export statement or declaration around the node, whose range the symbol takes.
        self.outer = outer
        self.exported = exported

    def plain(self) -> _Frame:
        """The same place, inside an expression or statement that is no declaration."""
        return _Frame(self.owner, in_function=self.in_function)


class _Reader:
    def __init__(self, source: SourceText, root: Node) -> None:
        self._source = source
        self._root = root
        self._definitions: list[Definition] = []
        self._imports: list[Json] = []
        self._stack: list[tuple[Node, _Frame]] = []
        self._handlers: dict[str, Callable[[Node, _Frame], None]] = {
            **dict.fromkeys(_DECLARATIONS, self._declaration),
            **dict.fromkeys(_METHODS, self._method),
            **dict.fromkeys(_FIELDS, self._field),
            **dict.fromkeys(_FUNCTIONS, self._anonymous),
            "ambient_declaration": self._wrapper,
            "assignment_expression": self._assignment,
            "call_expression": self._call,
            "class": self._anonymous_class,
            "comment": self._comment,
            "export_statement": self._export,
            "import_statement": self._import,
            "lexical_declaration": self._constants,
            "variable_declaration": self._constants,
            "variable_declarator": self._constant,
        }

    def read(self) -> Parsed:
        self._push([self._root], _Frame())
        while self._stack:
            node, frame = self._stack.pop()
            handler = self._handlers.get(node.type)
            if handler is not None:
                handler(node, frame)
            else:
                self._push(node.named_children, frame)
        return Parsed(
            definitions=self._definitions,
            facts={"imports": self._imports},
            summary=self._file_summary(),
            error_line=first_error_line(self._root),
        )

    def _push(self, nodes: Sequence[Node | None], frame: _Frame) -> None:
        self._stack.extend((node, frame) for node in reversed(nodes) if node is not None)

    def _comment(self, node: Node, _frame: _Frame) -> None:
        self._source.note_comment(node)

    # --- declarations -------------------------------------------------------------------------------------------------------

    def _declaration(self, node: Node, frame: _Frame) -> None:
        name, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        text = self._source.text(name).strip("\"'`") if name is not None else ""
        if not text:
            self._push(node.named_children, frame.plain())
            return
        kind = _DECLARATIONS[node.type]
        if frame.in_function and kind in _SHAPES:
            return
        outer = frame.outer or node
        self._define(text, kind, node, outer, body, frame, stub=node.type == "function_signature")

    def _define(
        self, name: str, kind: str, node: Node, outer: Node, body: Node | None, frame: _Frame, *, stub: bool = False
    ) -> None:
        owner = frame.owner
        qualified = qualify(self._definitions, owner, name)
        if qualified is None:
            self._push(node.named_children, frame.plain())
            return
        index = len(self._definitions)
        decorators, first = self._decorators(node, outer)
        above, comments = self._source.comments_above(first)
        start, end = self._source.widen(above, outer.end_byte)
        properties: dict[str, Json] = {"exported": True} if frame.exported else {}
        if decorators:
            properties["decorators"] = list[Json](decorators)
        self._definitions.append(
            Definition(
                name=name,
                qualified=qualified,
                kind=kind,
                start=start,
                end=end,
                line=node.start_point[0] + 1,
                signature=self._signature(node, outer, body),
                summary=first_paragraph(comment_text(comments)),
                parent=owner,
                properties=properties,
                stub=stub,
            )
        )
        if kind in _SHAPES:
            return
        inner = _Frame(index, in_function=kind in ("Function", "Method"), in_class=kind == "Class")
        self._push([child for child in node.named_children if child.type != "decorator"], inner)

    def _signature(self, node: Node, outer: Node, body: Node | None) -> str:
        begin = node.start_byte if node.type in _METHODS | _FIELDS else outer.start_byte
        end = body.start_byte if body is not None and body.start_byte > begin else outer.end_byte
        decorators = [child.end_byte for child in (*outer.children, *node.children) if child.type == "decorator"]
        begin = max([begin, *(at for at in decorators if at <= end)])
        return self._source.signature(begin, end).removesuffix("=>").rstrip(" ;")

    def _decorators(self, node: Node, outer: Node) -> tuple[list[str], int]:
        """Names of the decorators inside or before a declaration, and where the first of all begins."""
        found = [child for child in (*outer.named_children, *node.named_children) if child.type == "decorator"]
        first = outer.start_byte
        # In a class body the decorators are the method's elder siblings.
        before = node.prev_named_sibling if node.type in _METHODS else None
        while before is not None and before.type == "decorator":
            found.insert(0, before)
            first = before.start_byte
            before = before.prev_named_sibling
        names = [re.split(r"[(\s]", self._source.text(decorator).removeprefix("@"), maxsplit=1)[0] for decorator in found]
        return list(dict.fromkeys(names)), first

    def _method(self, node: Node, frame: _Frame) -> None:
        name = node.child_by_field_name("name")
        if name is None or not frame.in_class:
            self._push(node.named_children, frame.plain())
            return
        text = self._source.text(name).strip("\"'`")
        stub = node.type != "method_definition"
        self._define(text, "Method", node, node, node.child_by_field_name("body"), frame, stub=stub)

    def _field(self, node: Node, frame: _Frame) -> None:
        name = node.child_by_field_name("name") or node.child_by_field_name("property")
        value = node.child_by_field_name("value")
        if name is None or value is None or value.type not in _FUNCTIONS or not frame.in_class:
            self._push(node.named_children, frame.plain())
            return
        self._define(self._source.text(name), "Method", node, node, value.child_by_field_name("body"), frame)

    def _anonymous(self, node: Node, frame: _Frame) -> None:
        """A function that is a value: a symbol where it is a default export, else only a body to look into."""
        if frame.outer is not None and frame.exported and not frame.in_function:
            self._define("default", "Function", node, frame.outer, node.child_by_field_name("body"), frame)
            return
        self._push(node.named_children, _Frame(frame.owner, in_function=True))

    def _anonymous_class(self, node: Node, frame: _Frame) -> None:
        if frame.outer is None or not frame.exported:
            self._push(node.named_children, frame.plain())
            return
        name = node.child_by_field_name("name")
        text = self._source.text(name) if name is not None else "default"
        self._define(text, "Class", node, frame.outer, node.child_by_field_name("body"), frame)

    def _constants(self, node: Node, frame: _Frame) -> None:
        declarators = [child for child in node.named_children if child.type == "variable_declarator"]
        for child in node.named_children:
            if child.type == "comment":
                self._source.note_comment(child)
        for declarator in reversed(declarators):  # the stack turns them round
            whole = (frame.outer or node) if len(declarators) == 1 else declarator
            inner = _Frame(frame.owner, in_function=frame.in_function, outer=whole, exported=frame.exported)
            self._stack.append((declarator, inner))

    def _constant(self, node: Node, frame: _Frame) -> None:
        name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
        outer = frame.outer or node
        if name is None or name.type != "identifier" or value is None:
            self._push(node.named_children, frame.plain())
            return
        text = self._source.text(name)
        lines = node.end_point[0] - node.start_point[0] + 1
        if value.type in _FUNCTIONS:
            if frame.in_function and lines < SMALLEST_NESTED:
                self._push([value], frame.plain())
                return
            self._define(text, "Function", value, outer, value.child_by_field_name("body"), frame)
        elif value.type == "class":
            self._define(text, "Class", value, outer, value.child_by_field_name("body"), frame)
        elif not frame.in_function and self._is_notable(text, value, frame):
            self._define(text, "Variable", value, outer, None, frame)
        else:
            self._push([value], frame.plain())

    def _is_notable(self, name: str, value: Node, frame: _Frame) -> bool:
        if frame.exported or _CONSTANT.fullmatch(name):
            return True
        arguments = value.child_by_field_name("arguments") if value.type == "call_expression" else None
        return arguments is not None and any(child.type in _FUNCTIONS for child in arguments.named_children)

    def _assignment(self, node: Node, frame: _Frame) -> None:
        """`exports.name = function ...` and `Name.prototype.method = function ...` at module level are definitions."""
        left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
        target = self._source.text(left) if left is not None and left.type == "member_expression" else ""
        exported, method = _EXPORTS_OBJECT.fullmatch(target), _PROTOTYPE.fullmatch(target)
        if right is None or frame.in_function or right.type not in _FUNCTIONS or not (exported or method):
            self._push([left, right], frame.plain())
            return
        body = right.child_by_field_name("body")
        inner = _Frame(frame.owner, exported=exported is not None)
        if exported is not None:
            self._define(exported[1], "Function", right, node, body, inner)
        elif method is not None:
            self._define(f"{method[1]}.{method[2]}", "Method", right, node, body, inner)

    # --- exports and imports ------------------------------------------------------------------------------------------------

    def _export(self, node: Node, frame: _Frame) -> None:
        source = node.child_by_field_name("source")
        if source is not None:
            self._imported(source)
            return
        self._wrapper(node, frame)

    def _wrapper(self, node: Node, frame: _Frame) -> None:
        """An export or a `declare` around a declaration, or a value that is exported as it is."""
        exported = frame.exported or node.type == "export_statement"
        inner = _Frame(frame.owner, in_function=frame.in_function, outer=frame.outer or node, exported=exported)
        for child in node.named_children:
            if child.type == "comment":
                self._source.note_comment(child)
        target = node.child_by_field_name("declaration") or node.child_by_field_name("value")
        wrapped = (
            set(_DECLARATIONS) | _FUNCTIONS | {"class", "lexical_declaration", "variable_declaration", "ambient_declaration"}
        )
        children = [target] if target is not None else node.named_children
        for child in reversed(children):
            self._stack.append((child, inner if child.type in wrapped else frame.plain()))

    def _import(self, node: Node, _frame: _Frame) -> None:
        source = node.child_by_field_name("source")
        for child in node.named_children:
            source = source or child.child_by_field_name("source")
        if source is not None:
            self._imported(source)

    def _call(self, node: Node, frame: _Frame) -> None:
        """`require("...")` and `import("...")` are imports wherever they stand."""
        function, arguments = node.child_by_field_name("function"), node.child_by_field_name("arguments")
        if function is not None and arguments is not None and self._source.text(function) in ("require", "import"):
            first = arguments.named_child(0) if arguments.named_child_count else None
            if first is not None and first.type == "string":
                self._imported(first)
        self._push(node.named_children, frame.plain())

    def _imported(self, source: Node) -> None:
        specifier = self._source.text(source).strip("\"'`")
        if specifier.startswith("."):
            self._imports.append([specifier, source.start_point[0] + 1])

    def _file_summary(self) -> str:
        """The file's own comment: the first thing in it, with an empty line or an import below."""
        first = self._root.named_child(0) if self._root.named_child_count else None
        if first is not None and first.type == "hash_bang_line":
            first = first.next_named_sibling
        if first is None or first.type != "comment" or not self._source.text(first).startswith("/*"):
            return ""
        after = first.next_named_sibling
        own = after is None or after.start_point[0] > first.end_point[0] + 1 or after.type == "import_statement"
        return first_paragraph(comment_text([self._source.text(first)])) if own else ""
