"""Python's rule of what a name means: which binding a use of it reaches, as far as one file can tell.

What is found out here becomes facts, which linking reads together with those of the other files:

    names    module-level name -> what it is bound to, in the order of the source
    uses     [owner, "call" | "ref", line, base, dotted path, confidence if below 1]; owner None = module-level code;
             base None = the path begins with a name of the module; else the binding, in a function, of its left end
    bases    index of a class -> [base, dotted path] of each base class, None for one without a name

Uses of the standard library and of builtins are left out.

A binding is a list: ["symbol", index]; ["module", level, name] for a module itself; ["from", level, module, name];
["alias", dotted name]; ["self", class index, whether it is the class itself]; ["super", class index]; ["other"] for anything
that is not followed, such as a parameter; ["member"] as a base: an attribute of an unknown value.
"""

from __future__ import annotations

import builtins
import io
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from cluster.model.nodes import Json

MODULE, CLASS, FUNCTION, BLOCK = "module", "class", "function", "block"
CALL, REFERENCE = "call", "ref"
SUPER = "super()"
OTHER: list[Json] = ["other"]
#: What is still likely about a name that is bound more than once in its scope.
REBOUND_CONFIDENCE = 0.8
#: Bindings that are kept of one name: the first ones and the last. Generated code has thousands of functions called `_`.
MAX_BINDINGS = 16

#: Attributes of what the language itself makes; a call of one on an unknown value says nothing.
_COMMON_ATTRIBUTES = frozenset(
    name
    for kind in (str, bytes, bytearray, list, dict, set, frozenset, tuple, int, float, complex, range, slice, BaseException)
    for name in dir(kind)
) | frozenset(name for kind in (io.TextIOWrapper, io.BytesIO) for name in dir(kind))
_BUILTINS = frozenset(dir(builtins))


@dataclass(slots=True, eq=False)
class Scope:
    """A module, class or function body, or a comprehension or lambda (BLOCK)."""

    kind: str
    parent: Scope | None = None
    #: The symbol that this scope is the body of.
    symbol: int | None = None
    names: dict[str, list[list[Json]]] = field(default_factory=dict)
    #: Names that `global` or `nonlocal` sends elsewhere.
    outer: dict[str, str] = field(default_factory=dict)

    def bind(self, name: str, binding: list[Json]) -> None:
        """Notes that `name` is bound here, or where `global` sends it."""
        target = self
        if self.outer.get(name) == "nonlocal":
            return
        if self.outer.get(name) == "global":
            while target.parent is not None:
                target = target.parent
        known = target.names.setdefault(name, [])
        if binding in known:
            return
        if len(known) < MAX_BINDINGS:
            known.append(binding)
        else:
            known[-1] = binding

    def closest(self) -> Scope:
        """The scope that an assignment expression binds in: a comprehension is looked through."""
        scope = self
        while scope.kind == BLOCK and scope.parent is not None:
            scope = scope.parent
        return scope

    def find(self, name: str) -> Scope | None:
        """The scope whose binding a use of `name` here reaches; a class body is not seen from the functions inside it."""
        scope: Scope | None = self
        own = True
        while scope is not None:
            if name in scope.names and (own or scope.kind != CLASS):
                return scope
            own = own and scope.kind == BLOCK
            scope = scope.parent
        return None

    def enclosing_class(self) -> int | None:
        """The class whose method this is in."""
        scope: Scope | None = self
        while scope is not None:
            if scope.kind == CLASS:
                return scope.symbol
            scope = scope.parent
        return None


class Use(NamedTuple):
    """A name, or an attribute of one, that is read: not resolved yet, for a function may use what is bound after it."""

    scope: Scope
    owner: int | None
    kind: str
    line: int
    #: The dotted name; ("", attribute) for an attribute of something that has no name.
    path: tuple[str, ...]


class Resolver:
    """Turns uses into facts, when every binding of the file is known."""

    def __init__(self, stubs: frozenset[int], qualified: list[str], members: Mapping[int, Scope], has_stars: bool) -> None:
        self._stubs = stubs
        self._qualified = qualified
        self._members = members
        self._has_stars = has_stars

    def uses(self, found: Iterable[Use]) -> list[Json]:
        """The facts of `found`, each once, at its first line."""
        kept: dict[str, Json] = {}
        for use in found:
            resolved = self.resolve(use)
            if resolved is not None:
                base, path, confidence = resolved
                key = repr((use.owner, use.kind, base, path))
                unsure: list[Json] = [] if confidence == 1.0 else [confidence]
                kept.setdefault(key, [use.owner, use.kind, use.line, base, ".".join(path), *unsure])
        return list(kept.values())

    def base(self, use: Use | None) -> Json:
        """The fact of a base class, [base, path, confidence]; None for one that is not known."""
        resolved = None if use is None else self.resolve(use)
        return None if resolved is None else [resolved[0], ".".join(resolved[1])]

    def resolve(self, use: Use) -> tuple[list[Json] | None, list[str], float] | None:
        """(base, path, confidence) of a use; None for one that cannot lead to a symbol of the project."""
        first, rest = use.path[0], list(use.path[1:])
        if first == "":
            return self._member(use)
        if first == SUPER:
            class_ = use.scope.enclosing_class()
            return None if class_ is None or len(rest) != 1 else (["super", class_], rest, 1.0)
        scope = use.scope.find(first)
        if scope is None:
            open_end = self._has_stars and first not in _BUILTINS
            return (None, list(use.path), 1.0) if open_end else None
        if scope.kind == MODULE:
            reachable = [binding for binding in scope.names[first] if binding != OTHER]
            if not reachable:
                return self._member(use)
            return None if all(_is_standard(binding) for binding in reachable) else (None, list(use.path), 1.0)
        binding, confidence = self.single(scope.names[first])
        if binding == OTHER:
            return self._member(use)
        if _is_standard(binding):
            return None
        if binding[0] == "self" and not self._through_self(use, binding):
            return self._member(use) if len(rest) > 1 else None
        return binding, rest, confidence

    def single(self, bindings: list[list[Json]]) -> tuple[list[Json], float]:
        """The one thing that a name is bound to, and how sure that is; OTHER when it is not one thing."""
        real = [binding for binding in bindings if binding != OTHER]
        symbols = [binding for binding in real if binding[0] == "symbol"]
        names = {self._qualified[_index(binding)] for binding in symbols}
        if len(real) > 1 and (len(symbols) < len(real) or len(names) > 1):
            return OTHER, 1.0
        if not real:
            return OTHER, 1.0
        bodies = [binding for binding in real if binding[0] != "symbol" or _index(binding) not in self._stubs]
        once = len(bodies) <= 1 and len(real) == len(bindings)
        return (bodies or real)[-1], 1.0 if once else REBOUND_CONFIDENCE

    def _through_self(self, use: Use, binding: list[Json]) -> bool:
        """`self.name()` and `cls.name()` lead to a member, `cls()` to the class; `self` alone and `self.a.b` lead nowhere.

        `self.name` without a call is most often data: it counts only where the class itself defines a symbol of that name.
        """
        if len(use.path) == 1:
            return use.kind == CALL and binding[2] is True
        if len(use.path) > 2:
            return False
        found = self._members[_index(binding)].names.get(use.path[1], [])
        return use.kind == CALL or any(item[0] == "symbol" for item in found)

    @staticmethod
    def _member(use: Use) -> tuple[list[Json] | None, list[str], float] | None:
        name = use.path[-1]
        if use.kind != CALL or len(use.path) < 2 or name in _COMMON_ATTRIBUTES or name.startswith("__"):
            return None
        return ["member"], [name], 1.0


def _is_standard(binding: list[Json]) -> bool:
    """Whether a binding is an import from the standard library."""
    kind, level, *rest = binding if len(binding) > 2 else ["", None, ""]
    return kind in ("module", "from") and level == 0 and str(rest[0]).partition(".")[0] in sys.stdlib_module_names


def _index(binding: list[Json]) -> int:
    index = binding[1]
    assert isinstance(index, int)
    return index
