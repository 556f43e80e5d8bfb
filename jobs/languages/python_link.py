"""Python across files: which file an import means, and which symbol a use reaches.

An edge is made only for what the language's own rules lead to: modules of the project, names that a module binds (through
re-exports, star imports and cycles of both), members of a class and of its known bases. A step that is likely and not sure
lowers the edge's confidence below 1; two possible answers are no answer.
"""

from __future__ import annotations

import posixpath
import sys
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from jobs.languages.python_scopes import REBOUND_CONFIDENCE
from jobs.model import CALLS, IMPORTS, REFERENCES

#: For a package found below a folder that Python need not have on its path, if it is the only one of its name.
STRAY_ROOT_CONFIDENCE = 0.7
#: For a member that is not the class's own, when some of its bases are outside the project and may have it as well.
OPEN_BASES_CONFIDENCE = 0.8
#: For a call on a value of unknown type, if one method of the project has that name and its file is imported.
MEMBER_GUESS_CONFIDENCE = 0.5
#: Folders that projects put on the path themselves.
_SOURCE_FOLDERS = frozenset({"src", "lib", "python"})
_EDGE_TYPES = {"call": CALLS, "ref": REFERENCES}

#: Longest chain of re-exports, or of bases found through bases, that is followed.
MAX_STEPS = 50

Facts = Mapping[str, Any]


class Module(NamedTuple):
    """A module of the project."""

    #: Its file; None for a folder without `__init__`.
    path: str | None
    #: Where its submodules are; None if it has none.
    folder: str | None


class Symbol(NamedTuple):
    """A definition, by its index in the facts of a file."""

    path: str
    number: int


class Found(NamedTuple):
    """What a name leads to, and how sure that is, 0 to 1."""

    target: Module | Symbol
    confidence: float


class Link(NamedTuple):
    """An edge between two nodes."""

    from_id: str
    type: str
    to_id: str
    line: int
    confidence: float


class PythonLinker:
    """Links the Python files of one project. `facts`: by path, of its Python files alone."""

    def __init__(self, facts: Mapping[str, Facts]) -> None:
        self._facts = facts
        self._folders = {folder for path in facts for folder in _parents(path)}
        self._roots: dict[str, str] = {}
        #: First part of a module's name -> the source folders, and the roots of packages, that have something of that name.
        self._sources: dict[str, set[str]] = defaultdict(set)
        self._packages: dict[str, set[str]] = defaultdict(set)
        self._names: dict[tuple[str, str], Found | None] = {}
        self._absolute: dict[tuple[str, str], Found | None] = {}
        self._members: dict[tuple[str, int], dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        self._methods: dict[str, list[Symbol]] = defaultdict(list)
        self._known_bases: dict[Symbol, list[Symbol | None]] = {}
        self._depth = 0
        for path, file in facts.items():
            for folder in _parents(path):
                if posixpath.basename(folder) in _SOURCE_FOLDERS:
                    self._sources[_first(path, folder)].add(folder)
            root = self._root_of(path)
            if posixpath.dirname(path) != root:
                self._packages[_first(path, root)].add(root)
            for index, (_, name, kind, parent, stub) in enumerate(file["definitions"]):
                if parent is not None:
                    self._members[path, parent][name].append(index)
                if kind == "Method" and not stub:
                    self._methods[name].append(Symbol(path, index))

    def links(self) -> Iterator[Link]:
        """Every edge of the project's Python files; one pair of nodes may come up more than once."""
        for path in sorted(self._facts):
            imported = {path}
            for found, line in self._imports(path, imported):
                target = found.target
                if isinstance(target, Module) and target.path is not None and target.path != path:
                    imported.add(target.path)
                    yield Link(self._document(path), IMPORTS, self._document(target.path), line, found.confidence)
            yield from self._uses(path, imported)

    def _document(self, path: str) -> str:
        return str(self._facts[path]["document"])

    # --- modules ------------------------------------------------------------------------------------------------------------

    def _root_of(self, path: str) -> str:
        """The folder that has to be on Python's path for this file: the first one upwards that is no package."""
        start = folder = posixpath.dirname(path)
        if start not in self._roots:
            while folder and self._is_package(folder):
                folder = posixpath.dirname(folder)
            self._roots[start] = folder
        return self._roots[start]

    def _is_package(self, folder: str) -> bool:
        return f"{folder}/__init__.py" in self._facts or f"{folder}/__init__.pyi" in self._facts

    def _at(self, folder: str, dotted: str) -> Module | None:
        """The module called `dotted` below `folder`; `dotted` "" is the package `folder` itself."""
        base = posixpath.join(folder, *dotted.split(".")) if dotted else folder
        inside = base if base in self._folders or not base else None
        for suffix in (".py", ".pyi"):
            package = posixpath.join(base, f"__init__{suffix}")
            if package in self._facts:
                return Module(package, inside)
            if base and base + suffix in self._facts:
                return Module(base + suffix, None)
        return Module(None, inside) if inside is not None else None

    def _module(self, importer: str, level: int, dotted: str) -> Found | None:
        """The module that `importer` means by `level` dots and a name."""
        if level == 0:
            key = (self._root_of(importer), dotted)
            if key not in self._absolute:
                self._absolute[key] = self._find_absolute(*key)
            return self._absolute[key]
        folder = posixpath.dirname(importer)
        for _ in range(level - 1):
            if not folder:
                return None
            folder = posixpath.dirname(folder)
        module = self._at(folder, dotted)
        return Found(module, 1.0) if module is not None else None

    def _find_absolute(self, root: str, dotted: str) -> Found | None:
        """The module on the path that a file below `root` most likely runs with: `root`, the repository, a source folder."""
        first = dotted.partition(".")[0]
        if first in sys.stdlib_module_names:
            return None
        near = [self._at(root, dotted), self._at("", dotted), self._only(self._sources.get(first, ()), dotted)]
        files = [module for module in near if module is not None and module.path is not None]
        folders = [module for module in near if module is not None]
        if files or folders:  # Python, too, takes a folder without `__init__` only if no root has a file
            return Found((files or folders)[0], 1.0)
        module = self._only(self._packages.get(first, ()), dotted)
        return Found(module, STRAY_ROOT_CONFIDENCE) if module is not None else None

    def _only(self, roots: Collection[str], dotted: str) -> Module | None:
        """The module of that name below the roots, if there is one and not several."""
        modules = [module for root in roots if (module := self._at(root, dotted)) is not None]
        return modules[0] if len(modules) == 1 else None

    # --- imports ------------------------------------------------------------------------------------------------------------

    def _imports(self, path: str, defining: set[str]) -> Iterator[tuple[Found, int]]:
        """The modules that a file imports: a submodule that is imported by name, else the module that the names come from.

        `defining` gets the files that define the imported names, however often those are re-exported on the way.
        """
        for level, dotted, names, line in self._facts[path]["imports"]:
            found = self._module(path, level, dotted)
            if found is None or not isinstance(found.target, Module):
                continue
            if names is None:
                yield found, line
            for name in names or ():
                inner = self._lookup(found.target, name, frozenset())
                if inner is not None and inner.target.path is not None:
                    defining.add(inner.target.path)
                child = self._submodule(found.target, name)
                chosen = child if child is not None and inner is not None and inner.target == child else found.target
                yield Found(chosen, found.confidence), line

    def _submodule(self, module: Module, name: str) -> Module | None:
        return None if module.folder is None or name == "*" else self._at(module.folder, name)

    # --- names --------------------------------------------------------------------------------------------------------------

    def _lookup(self, module: Module, name: str, visited: frozenset[tuple[str, str]]) -> Found | None:
        """What `name` is in `module`: what it binds, what its star imports bring, or a submodule."""
        path = module.path
        if path is None:
            child = self._submodule(module, name)
            return Found(child, 1.0) if child is not None else None
        key = (path, name)
        if key in visited or len(visited) > MAX_STEPS:
            return None
        if not visited and key in self._names:
            return self._names[key]
        inner = visited | {key}
        bindings = self._facts[path]["names"].get(name)
        found = self._bound(path, bindings, inner) if bindings else self._starred(path, name, inner)
        if found is None and (child := self._submodule(module, name)) is not None and child.path != path:
            found = Found(child, 1.0)
        if not visited:
            self._names[key] = found
        return found

    def _bound(self, path: str, bindings: Sequence[Sequence[Any]], visited: frozenset[tuple[str, str]]) -> Found | None:
        """The one thing that `bindings` of one name agree on."""
        found = [self._follow_binding(path, binding, visited) for binding in bindings]
        known = [item for item in found if item is not None]
        symbols = [item.target for item in known if isinstance(item.target, Symbol)]
        definitions = self._facts[path]["definitions"]
        # Of several definitions of one name the last with a body counts; it is certain if the others are mere declarations.
        bodies = [symbol for symbol in symbols if symbol.path != path or not definitions[symbol.number][4]]
        if len(symbols) == len(known) and {symbol.path for symbol in symbols} == {path} and len(symbols) > 1:
            target: Module | Symbol = (bodies or symbols)[-1]
            sure = len(bodies) <= 1 and len(known) == len(bindings)
            return Found(target, 1.0 if sure else REBOUND_CONFIDENCE)
        if len({item.target for item in known}) != 1:
            return None
        best = max(item.confidence for item in known)
        return Found(known[0].target, best if len(known) == len(bindings) else min(best, REBOUND_CONFIDENCE))

    def _follow_binding(self, path: str, binding: Sequence[Any], visited: frozenset[tuple[str, str]]) -> Found | None:
        match binding:
            case ["symbol", index]:
                return Found(Symbol(path, index), 1.0)
            case ["module", level, dotted]:
                return self._module(path, level, dotted)
            case ["from", level, dotted, name]:
                found = self._module(path, level, dotted)
                return None if found is None else self._step(found, name, visited)
            case ["alias", dotted]:
                first, *rest = dotted.split(".")
                found = self._lookup(self._own_module(path), first, visited)
                return self._steps(found, rest, visited)
            case _:
                return None

    def _starred(self, path: str, name: str, visited: frozenset[tuple[str, str]]) -> Found | None:
        """What the last star import that brings `name` brings."""
        for level, dotted in reversed(self._facts[path]["stars"]):
            found = self._module(path, level, dotted)
            if found is None or not isinstance(found.target, Module) or found.target.path is None:
                continue
            exports = self._facts[found.target.path]["exports"]
            if name not in exports if exports is not None else name.startswith("_"):
                continue
            inner = self._step(found, name, visited)
            if inner is not None:
                return inner
        return None

    def _own_module(self, path: str) -> Module:
        return Module(path, posixpath.dirname(path) if posixpath.basename(path).startswith("__init__.") else None)

    # --- attributes ---------------------------------------------------------------------------------------------------------

    def _steps(self, found: Found | None, names: Sequence[str], visited: frozenset[tuple[str, str]]) -> Found | None:
        for name in names:
            if found is None:
                return None
            found = self._step(found, name, visited)
        return found

    def _step(self, found: Found, name: str, visited: frozenset[tuple[str, str]]) -> Found | None:
        """The attribute `name` of what was found."""
        target = found.target
        inner = self._lookup(target, name, visited) if isinstance(target, Module) else self._member(target, name)
        return None if inner is None else Found(inner.target, min(found.confidence, inner.confidence))

    def _member(self, class_: Symbol, name: str, *, inherited: bool = False) -> Found | None:
        """The member `name` of a class or of the first of its bases, depth first, that has it; `inherited`: of the bases."""
        if self._kind(class_) != "Class":
            return None
        stack, seen, open_ended = [class_], {class_}, False
        while stack:
            current = stack.pop()
            indices = self._members.get((current.path, current.number), {}).get(name, [])
            if indices and not (inherited and current == class_):
                definitions = self._facts[current.path]["definitions"]
                bodies = [index for index in indices if not definitions[index][4]]
                confidence = 1.0 if len(bodies) <= 1 else REBOUND_CONFIDENCE
                if open_ended:
                    confidence = min(confidence, OPEN_BASES_CONFIDENCE)
                return Found(Symbol(current.path, (bodies or indices)[-1]), confidence)
            bases = self._bases(current)
            open_ended = open_ended or any(base is None for base in bases)
            known = [base for base in bases if base is not None and base not in seen]
            seen.update(known)
            stack.extend(reversed(known))
        return None

    def _bases(self, class_: Symbol) -> list[Symbol | None]:
        """The bases of a class; None for each that is not of the project."""
        if class_ in self._known_bases:
            return self._known_bases[class_]
        if self._depth > MAX_STEPS:
            return []
        self._known_bases[class_] = []  # what a class whose base is an attribute of itself sees
        self._depth += 1
        found: list[Symbol | None] = []
        for base in self._facts[class_.path]["bases"].get(str(class_.number), ()):
            names = base[1].split(".") if base is not None and base[1] else []
            resolved = None if base is None else self._resolve(class_.path, base[0], names)
            target = resolved.target if resolved is not None else None
            found.append(target if isinstance(target, Symbol) else None)
        self._depth -= 1
        self._known_bases[class_] = found
        return found

    # --- uses ---------------------------------------------------------------------------------------------------------------

    def _uses(self, path: str, imported: set[str]) -> Iterator[Link]:
        file = self._facts[path]
        for owner, kind, line, base, dotted, *unsure in file["uses"]:
            names = dotted.split(".") if dotted else []
            if base == ["member"]:
                found = self._guess(names[-1], imported)
            else:
                found = self._resolve(path, base, names)
                if found is None and kind == "call" and self._is_attribute_of_variable(path, base, names):
                    found = self._guess(names[-1], imported)
            if found is None or not isinstance(found.target, Symbol):
                continue
            from_id = file["document"] if owner is None else file["definitions"][owner][0]
            to_id = self._facts[found.target.path]["definitions"][found.target.number][0]
            if from_id != to_id or kind == "call":
                yield Link(from_id, _EDGE_TYPES[kind], to_id, line, min(found.confidence, *unsure, 1.0))

    def _resolve(self, path: str, base: Sequence[Any] | None, names: Sequence[str]) -> Found | None:
        nothing: frozenset[tuple[str, str]] = frozenset()
        if base is None:
            return self._steps(self._lookup(self._own_module(path), names[0], nothing), names[1:], nothing)
        if base[0] == "super":
            return self._member(Symbol(path, base[1]), names[0], inherited=True)
        if base[0] == "self":
            class_ = Found(Symbol(path, base[1]), 1.0)
            return self._steps(class_, names, nothing)
        return self._steps(self._follow_binding(path, base, nothing), names, nothing)

    def _is_attribute_of_variable(self, path: str, base: Sequence[Any] | None, names: Sequence[str]) -> bool:
        """Whether all but the last name lead to a variable of the project, so that only its type is unknown."""
        if len(names) < (2 if base is None else 1) or (base is not None and base[0] in ("self", "super")):
            return False
        found = self._resolve(path, base, names[:-1])
        return found is not None and isinstance(found.target, Symbol) and self._kind(found.target) == "Variable"

    def _kind(self, symbol: Symbol) -> str:
        return str(self._facts[symbol.path]["definitions"][symbol.number][2])

    def _guess(self, name: str, imported: set[str]) -> Found | None:
        """The only method of the project that has this name, if its class's file is this one or imported by it."""
        candidates = self._methods.get(name, [])
        if len(candidates) != 1 or candidates[0].path not in imported:
            return None
        return Found(candidates[0], MEMBER_GUESS_CONFIDENCE)


def _first(path: str, folder: str) -> str:
    """The first part of the name that `path` has as a module below `folder`."""
    return path[len(folder) :].lstrip("/").partition("/")[0].partition(".")[0]


def _parents(path: str) -> Iterator[str]:
    folder = posixpath.dirname(path)
    while folder:
        yield folder
        folder = posixpath.dirname(folder)
