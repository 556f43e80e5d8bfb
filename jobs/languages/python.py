"""Python: symbols, bindings and uses of one file, in one walk.

Symbols are classes, functions and methods wherever they are nested, and at module level what reads as a constant: a name in
capitals, an annotated name, a type alias. Other assignments stay module-level code.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from tree_sitter import Node

from cluster.model.nodes import Json
from jobs.languages.python_scopes import BLOCK, CALL, CLASS, FUNCTION, MODULE, OTHER, REFERENCE, SUPER, Resolver, Scope, Use
from jobs.languages.tree import (
    MAX_QUALIFIED,
    Definition,
    Parsed,
    SourceText,
    comment_text,
    first_error_line,
    first_paragraph,
    parse,
    qualify,
)

_CONSTANT = re.compile(r"_{0,2}[A-Z][A-Z0-9_]+")
_STRING = re.compile(r"[a-zA-Z]{0,3}(\"\"\"|'''|\"|')(.*)\1", re.DOTALL)
#: Decorators of declarations that stand beside the one that callers mean.
_STUB_DECORATOR = re.compile(r"(\w+\.)*overload|\w+\.(setter|deleter)")


def read(source: SourceText) -> Parsed:
    """The symbols and the facts of a Python file."""
    root = parse("python", source.data).root_node
    return _Reader(source, root).read()


class _Reader:
    def __init__(self, source: SourceText, root: Node) -> None:
        self._source = source
        self._root = root
        self._module = Scope(MODULE)
        self._definitions: list[Definition] = []
        self._uses: list[Use] = []
        self._bases: dict[int, list[Use | None]] = {}
        self._members: dict[int, Scope] = {}
        self._imports: list[Json] = []
        self._stars: list[Json] = []
        self._exports: list[Json] | None = None
        self._stack: list[tuple[Node, Scope, int | None]] = []
        self._handlers: dict[str, Callable[[Node, Scope, int | None], None]] = {
            "assignment": self._assignment,
            "as_pattern": self._as_pattern,
            "attribute": self._name,
            "augmented_assignment": self._augmented,
            "call": self._call,
            "class_definition": self._class,
            "class_pattern": self._class_pattern,
            "comment": self._comment,
            "decorated_definition": self._decorated,
            "dictionary_comprehension": self._block,
            "dotted_name": self._pattern_name,
            "for_in_clause": self._for,
            "for_statement": self._for,
            "function_definition": self._function,
            "generator_expression": self._block,
            "global_statement": self._outer,
            "identifier": self._name,
            "import_from_statement": self._import_from,
            "import_statement": self._import,
            "future_import_statement": self._skip,
            "keyword_argument": self._keyword,
            "keyword_pattern": self._keyword_pattern,
            "lambda": self._lambda,
            "list_comprehension": self._block,
            "named_expression": self._named,
            "nonlocal_statement": self._outer,
            "set_comprehension": self._block,
            "splat_pattern": self._splat_pattern,
            "string": self._string,
            "type_alias_statement": self._type_alias,
        }

    def read(self) -> Parsed:
        self._push([self._root], self._module, None)
        while self._stack:
            node, scope, owner = self._stack.pop()
            handler = self._handlers.get(node.type)
            if handler is not None:
                handler(node, scope, owner)
            else:
                self._push(node.named_children, scope, owner)
        return Parsed(
            definitions=self._definitions,
            facts=self._facts(),
            summary=first_paragraph(self._docstring(self._root)),
            error_line=first_error_line(self._root),
        )

    def _facts(self) -> dict[str, Json]:
        stubs = frozenset(index for index, definition in enumerate(self._definitions) if definition.stub)
        resolver = Resolver(stubs, [definition.qualified for definition in self._definitions], self._members, bool(self._stars))
        return {
            "names": dict(self._module.names),
            "stars": self._stars,
            "exports": self._exports,
            "imports": self._imports,
            "bases": {str(index): [resolver.base(use) for use in uses] for index, uses in self._bases.items()},
            "uses": resolver.uses(self._uses),
        }

    # --- walking ------------------------------------------------------------------------------------------------------------

    def _push(self, nodes: Sequence[Node | None], scope: Scope, owner: int | None) -> None:
        self._stack.extend((node, scope, owner) for node in reversed(nodes) if node is not None)

    def _skip(self, _node: Node, _scope: Scope, _owner: int | None) -> None:
        """Nothing in it is of interest."""

    def _comment(self, node: Node, _scope: Scope, _owner: int | None) -> None:
        self._source.note_comment(node)

    def _string(self, node: Node, scope: Scope, owner: int | None) -> None:
        self._push([child for child in node.named_children if child.type == "interpolation"], scope, owner)

    def _block(self, node: Node, scope: Scope, owner: int | None) -> None:
        self._push(node.named_children, Scope(BLOCK, scope), owner)

    # --- definitions --------------------------------------------------------------------------------------------------------

    def _decorated(self, node: Node, scope: Scope, owner: int | None) -> None:
        definition = node.child_by_field_name("definition")
        decorators = [child for child in node.named_children if child.type == "decorator"]
        for child in node.named_children:
            if child.type == "comment":
                self._source.note_comment(child)
        if definition is None:
            self._push(node.named_children, scope, owner)
        elif definition.type == "class_definition":
            self._class(definition, scope, owner, node, decorators)
        else:
            self._function(definition, scope, owner, node, decorators)

    def _function(
        self, node: Node, scope: Scope, owner: int | None, outer: Node | None = None, decorators: Sequence[Node] = ()
    ) -> None:
        index = self._define(node, "Method" if scope.kind == CLASS else "Function", scope, owner, outer, decorators)
        if index is None:
            return
        inner = Scope(FUNCTION, scope, index)
        body, parameters = node.child_by_field_name("body"), node.child_by_field_name("parameters")
        self._push([body], inner, index)
        self._push([node.child_by_field_name("return_type")], scope, index)
        self._parameters(parameters, inner, scope, index)
        static = any(self._source.text(decorator).split() == ["@staticmethod"] for decorator in decorators)
        if scope.kind == CLASS and parameters is not None and not static:
            self._first_parameter(parameters, inner, scope.symbol)

    def _class(
        self, node: Node, scope: Scope, owner: int | None, outer: Node | None = None, decorators: Sequence[Node] = ()
    ) -> None:
        index = self._define(node, "Class", scope, owner, outer, decorators)
        if index is None:
            return
        inner = self._members[index] = Scope(CLASS, scope, index)
        bases = node.child_by_field_name("superclasses")
        self._push([node.child_by_field_name("body")], inner, index)
        self._push([bases], scope, index)
        self._bases[index] = []
        for base in bases.named_children if bases is not None else ():
            if base.type in ("keyword_argument", "comment"):
                continue
            path = self._dotted(base.child_by_field_name("value") if base.type == "subscript" else base)
            use = Use(scope, index, REFERENCE, self._line(base), path) if path else None
            self._bases[index].append(use)

    def _define(
        self, node: Node, kind: str, scope: Scope, owner: int | None, outer: Node | None, decorators: Sequence[Node]
    ) -> int | None:
        name_node, body = node.child_by_field_name("name"), node.child_by_field_name("body")
        name = self._source.text(name_node) if name_node is not None else ""
        qualified = qualify(self._definitions, owner, name)
        if not name or qualified is None:
            self._push(node.named_children, scope, owner)
            return None
        index = len(self._definitions)
        start, end = self._source.widen((outer or node).start_byte, node.end_byte)
        names = self._decorators(decorators, scope, index)
        signature = self._source.signature(node.start_byte, body.start_byte if body is not None else node.end_byte)
        above = self._source.comments_above((outer or node).start_byte)[1]
        self._definitions.append(
            Definition(
                name=name,
                qualified=qualified,
                kind=kind,
                start=start,
                end=end,
                line=self._line(node),
                signature=signature.removesuffix(":").rstrip(),
                summary=first_paragraph((body is not None and self._docstring(body)) or comment_text(above)),
                parent=owner,
                properties={"decorators": list[Json](names)} if names else {},
                stub=any(_STUB_DECORATOR.fullmatch(decorator) for decorator in names),
            )
        )
        scope.bind(name, ["symbol", index])
        return index

    def _decorators(self, decorators: Sequence[Node], scope: Scope, index: int) -> list[str]:
        """The names of the decorators, each used by what it decorates; their arguments are pushed."""
        names: list[str] = []
        for decorator in decorators:
            target = decorator.named_child(0) if decorator.named_child_count else None
            if target is not None and target.type == "call":
                self._push([target.child_by_field_name("arguments")], scope, index)
                target = target.child_by_field_name("function")
            if target is None:
                continue
            names.append(self._source.signature(target.start_byte, target.end_byte))
            path = self._dotted(target)
            if path:
                self._uses.append(Use(scope, index, REFERENCE, self._line(target), path))
            else:
                self._push([target], scope, index)
        return names

    def _docstring(self, block: Node) -> str:
        for child in block.named_children:
            if child.type == "comment":
                continue
            text = child.named_child(0) if child.type == "expression_statement" and child.named_child_count else child
            if text is not None and text.type == "string" and (match := _STRING.fullmatch(self._source.text(text))):
                return match[2]
            return ""
        return ""

    def _parameters(self, parameters: Node | None, inner: Scope, outer: Scope, owner: int | None) -> None:
        for parameter in parameters.named_children if parameters is not None else ():
            if parameter.type in ("typed_parameter", "identifier", "list_splat_pattern", "dictionary_splat_pattern"):
                name = parameter.named_child(0) if parameter.type == "typed_parameter" else parameter
            else:
                name = parameter.child_by_field_name("name") or parameter
            self._push([parameter.child_by_field_name("type"), parameter.child_by_field_name("value")], outer, owner)
            self._bind(name, inner)

    def _first_parameter(self, parameters: Node, inner: Scope, class_: int | None) -> None:
        first = parameters.named_child(0) if parameters.named_child_count else None
        if first is not None and first.type == "typed_parameter":
            first = first.named_child(0)
        if first is not None and first.type == "identifier":
            name = self._source.text(first)
            inner.names[name] = [["self", class_, name in ("cls", "klass")]]

    def _type_alias(self, node: Node, scope: Scope, owner: int | None) -> None:
        left = node.child_by_field_name("left")
        name = next((child for child in _walk(left) if child.type == "identifier"), None)
        if name is not None:
            self._constant(node, name, "Type", scope, owner)
        self._push([node.child_by_field_name("right")], scope, owner)

    def _constant(self, node: Node, name_node: Node, kind: str, scope: Scope, owner: int | None) -> None:
        """Makes a module-level assignment a symbol, or only binds its name elsewhere."""
        name = self._source.text(name_node)
        inside = bool(self._definitions) and self._definitions[-1].end >= node.end_byte
        if scope.kind != MODULE or owner is not None or inside or len(name) > MAX_QUALIFIED:
            scope.bind(name, OTHER)
            return
        first, comments = self._source.comments_above(node.start_byte)
        start, end = self._source.widen(first, node.end_byte)
        self._definitions.append(
            Definition(
                name=name,
                qualified=name,
                kind=kind,
                start=start,
                end=end,
                line=self._line(node),
                signature=self._source.signature(node.start_byte, node.end_byte),
                summary=first_paragraph(comment_text(comments)),
            )
        )
        scope.bind(name, ["symbol", len(self._definitions) - 1])

    # --- bindings -----------------------------------------------------------------------------------------------------------

    def _bind(self, node: Node | None, scope: Scope) -> None:
        """Binds every name that an assignment target holds."""
        for target in _walk(node, into=_TARGETS):
            if target.type == "identifier":
                scope.bind(self._source.text(target), OTHER)

    def _assignment(self, node: Node, scope: Scope, owner: int | None) -> None:
        left, right, type_ = (node.child_by_field_name(name) for name in ("left", "right", "type"))
        self._push([type_, right], scope, owner)
        if left is None or left.type != "identifier":
            self._bind(left, scope)
            self._push(
                [child for child in _walk(left, into=_TARGETS) if child.type in ("attribute", "subscript")], scope, owner
            )
            return
        name = self._source.text(left)
        path = self._dotted(right)
        if scope.kind == MODULE and name == "__all__":
            self._exports = [*(self._exports or []), *self._strings(right)]
        if (type_ is not None and right is not None) or _CONSTANT.fullmatch(name):
            alias = type_ is not None and self._source.text(type_).rpartition(".")[2] == "TypeAlias"
            self._constant(node, left, "Type" if alias else "Variable", scope, owner)
        elif scope.kind == MODULE and len(path) > 0 and path[0] not in ("", name, SUPER):
            scope.bind(name, ["alias", ".".join(path)])
        else:
            scope.bind(name, OTHER)

    def _augmented(self, node: Node, scope: Scope, owner: int | None) -> None:
        left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
        self._push([right], scope, owner)
        if left is not None and left.type == "identifier":
            if scope.kind == MODULE and self._source.text(left) == "__all__":
                self._exports = [*(self._exports or []), *self._strings(right)]
            scope.bind(self._source.text(left), OTHER)
        else:
            self._push([left], scope, owner)

    def _strings(self, node: Node | None) -> Iterable[str]:
        for child in _walk(node):
            if child.type == "string" and (match := _STRING.fullmatch(self._source.text(child))):
                yield match[2]

    def _for(self, node: Node, scope: Scope, owner: int | None) -> None:
        left = node.child_by_field_name("left")
        self._bind(left, scope)
        self._push([child for child in node.named_children if child != left], scope, owner)

    def _named(self, node: Node, scope: Scope, owner: int | None) -> None:
        self._bind(node.child_by_field_name("name"), scope.closest())
        self._push([node.child_by_field_name("value")], scope, owner)

    def _as_pattern(self, node: Node, scope: Scope, owner: int | None) -> None:
        first, *rest = node.named_children
        for child in rest:
            for target in _walk(child):
                if target.type == "identifier":
                    scope.bind(self._source.text(target), OTHER)
        self._push([first], scope, owner)

    def _class_pattern(self, node: Node, scope: Scope, owner: int | None) -> None:
        name, *rest = node.named_children
        self._uses.append(Use(scope, owner, REFERENCE, self._line(name), tuple(self._source.text(name).split("."))))
        self._push(rest, scope, owner)

    def _keyword_pattern(self, node: Node, scope: Scope, owner: int | None) -> None:
        self._push(node.named_children[1:], scope, owner)

    def _splat_pattern(self, node: Node, scope: Scope, _owner: int | None) -> None:
        for child in node.named_children:
            scope.bind(self._source.text(child), OTHER)

    def _pattern_name(self, node: Node, scope: Scope, owner: int | None) -> None:
        """A name in a case pattern: alone it captures, dotted it is read."""
        path = tuple(self._source.text(node).split("."))
        if len(path) == 1:
            scope.bind(path[0], OTHER)
        else:
            self._uses.append(Use(scope, owner, REFERENCE, self._line(node), path))

    def _lambda(self, node: Node, scope: Scope, owner: int | None) -> None:
        inner = Scope(BLOCK, scope)
        self._parameters(node.child_by_field_name("parameters"), inner, scope, owner)
        self._push([node.child_by_field_name("body")], inner, owner)

    def _outer(self, node: Node, scope: Scope, _owner: int | None) -> None:
        kind = node.type.removesuffix("_statement")
        for child in node.named_children:
            scope.outer[self._source.text(child)] = kind

    # --- imports ------------------------------------------------------------------------------------------------------------

    def _import(self, node: Node, scope: Scope, _owner: int | None) -> None:
        for child in node.children_by_field_name("name"):
            name, alias = self._imported(child)
            self._imports.append([0, name, None, self._line(node)])
            bound = alias or name.partition(".")[0]
            scope.bind(bound, ["module", 0, name if alias else bound])

    def _import_from(self, node: Node, scope: Scope, _owner: int | None) -> None:
        module = node.child_by_field_name("module_name")
        text = "".join(self._source.text(module).split()) if module is not None else ""
        name = text.lstrip(".")
        level = len(text) - len(name)
        names: list[Json] = []
        for child in node.children_by_field_name("name"):
            imported, alias = self._imported(child)
            names.append(imported)
            scope.bind(alias or imported, ["from", level, name, imported])
        if any(child.type == "wildcard_import" for child in node.named_children):
            names.append("*")
            self._stars.append([level, name])
        self._imports.append([level, name, names, self._line(node)])

    def _imported(self, node: Node) -> tuple[str, str | None]:
        name = node.child_by_field_name("name") or node
        alias = node.child_by_field_name("alias")
        return "".join(self._source.text(name).split()), self._source.text(alias) if alias is not None else None

    # --- uses ---------------------------------------------------------------------------------------------------------------

    def _dotted(self, node: Node | None) -> tuple[str, ...]:
        """The names of `a.b.c`; ("", "c") when the left end is no name; () for anything else."""
        names: list[str] = []
        while node is not None and node.type == "attribute":
            attribute = node.child_by_field_name("attribute")
            names.append(self._source.text(attribute) if attribute is not None else "")
            node = node.child_by_field_name("object")
        if node is not None and node.type == "identifier":
            # Where a name is missing, the parser puts one without a letter: it names nothing, and is no reason to look again.
            left = self._source.text(node)
            return (left, *reversed(names)) if left else ()
        if not names:
            return ()
        if node is not None and node.type == "call" and self._source.text(node) == SUPER:
            return (SUPER, *reversed(names))
        return ("", names[0])

    def _name(self, node: Node, scope: Scope, owner: int | None) -> None:
        self._use(node, REFERENCE, scope, owner)

    def _call(self, node: Node, scope: Scope, owner: int | None) -> None:
        function, arguments = node.child_by_field_name("function"), node.child_by_field_name("arguments")
        self._push([arguments], scope, owner)
        if function is not None and function.type in ("identifier", "attribute"):
            self._use(function, CALL, scope, owner)
        else:
            self._push([function], scope, owner)

    def _use(self, node: Node, kind: str, scope: Scope, owner: int | None) -> None:
        path = self._dotted(node)
        if path and "" not in path[1:]:
            self._uses.append(Use(scope, owner, kind, self._line(node), path))
        if path and path[0] == "":
            inner: Node | None = node
            while inner is not None and inner.type == "attribute":
                inner = inner.child_by_field_name("object")
            if inner is not node:
                self._push([inner], scope, owner)

    def _keyword(self, node: Node, scope: Scope, owner: int | None) -> None:
        self._push([node.child_by_field_name("value")], scope, owner)

    @staticmethod
    def _line(node: Node) -> int:
        return node.start_point[0] + 1


#: What an assignment target may be made of, around the names that it binds.
_TARGETS = frozenset(
    {
        "dictionary_splat_pattern",
        "expression_list",
        "list",
        "list_pattern",
        "list_splat_pattern",
        "parenthesized_expression",
        "pattern_list",
        "tuple",
        "tuple_pattern",
    }
)


def _walk(node: Node | None, into: frozenset[str] | None = None) -> Iterable[Node]:
    """`node` and what is below it, in source order; only below nodes of the types `into`, if given."""
    stack = [] if node is None else [node]
    while stack:
        current = stack.pop()
        yield current
        if into is None or current.type in into:
            stack.extend(reversed(current.named_children))
