"""Edges between files: imports, calls and references, from the facts of all files of a project.

The result is complete and depends on the facts alone, so that a run after a change links everything again and compares.
"""

from __future__ import annotations

import posixpath
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from cluster.model.ids import derived_id
from cluster.model.nodes import Edge
from jobs.languages.python_link import Link, PythonLinker
from jobs.model import DOCUMENT, IMPORTS

_SCRIPTS = frozenset({"javascript", "typescript", "tsx"})
_SCRIPT_SUFFIXES = (".ts", ".tsx", ".d.ts", ".mts", ".cts", ".js", ".jsx", ".mjs", ".cjs", ".json")
#: What a specifier with the suffix of compiled code may be written in.
_SOURCE_OF = {".js": (".ts", ".tsx", ".d.ts"), ".jsx": (".tsx",), ".mjs": (".mts",), ".cjs": (".cts",)}

Facts = Mapping[str, Any]


def link(account: str, project: str, facts: Mapping[str, Facts]) -> tuple[Edge, ...]:
    """IMPORTS between documents, CALLS and REFERENCES from symbols or documents to symbols: each pair once, sorted.

    `facts`: path -> facts, of every file of the project; a file without facts can still be imported. Each edge has the
    properties `line` (of its first occurrence, from 1) and `confidence` (0 to 1; 1 = by the language's rules alone).
    """
    python = {path: file for path, file in facts.items() if file.get("language") == "python"}
    merged: dict[tuple[str, str, str], Link] = {}
    for found in (*PythonLinker(python).links(), *_scripts(account, project, facts), *_go(facts)):
        key = (found.from_id, found.type, found.to_id)
        known = merged.get(key)
        if known is None or (found.confidence, -found.line) > (known.confidence, -known.line):
            merged[key] = found
    return tuple(
        Edge(
            from_id=found.from_id,
            type=found.type,
            to_id=found.to_id,
            account=account,
            project=project,
            properties={"line": found.line, "confidence": found.confidence},
        )
        for _, found in sorted(merged.items())
    )


def _scripts(account: str, project: str, facts: Mapping[str, Facts]) -> Iterator[Link]:
    """Relative imports of JavaScript and TypeScript."""
    for path, file in facts.items():
        if file.get("language") not in _SCRIPTS:
            continue
        for specifier, line in file["imports"]:
            target = _script(path, specifier, facts)
            if target is not None and target != path:
                yield Link(file["document"], IMPORTS, derived_id(account, project, DOCUMENT, target), line, 1.0)


def _script(importer: str, specifier: str, known: Mapping[str, Facts]) -> str | None:
    """The file that a relative specifier means, by the rules of bundlers and of TypeScript."""
    wanted = posixpath.normpath(posixpath.join(posixpath.dirname(importer), specifier.partition("?")[0]))
    if wanted == ".." or wanted.startswith("../"):
        return None
    stem, suffix = posixpath.splitext(wanted)
    candidates = [wanted] if not specifier.endswith("/") else []
    candidates += [stem + source for source in _SOURCE_OF.get(suffix, ())]
    candidates += [wanted + ending for ending in _SCRIPT_SUFFIXES]
    candidates += [posixpath.normpath(f"{wanted}/index{ending}") for ending in _SCRIPT_SUFFIXES]
    return next((candidate for candidate in candidates if candidate in known), None)


def _go(facts: Mapping[str, Facts]) -> Iterator[Link]:
    """Imports of Go packages of the project, to every file of the package that is no test."""
    modules = {
        posixpath.dirname(path): str(file["module"])
        for path, file in facts.items()
        if file.get("language") == "gomod" and file.get("module")
    }
    packages: dict[str, list[str]] = defaultdict(list)
    for path in sorted(facts):
        if facts[path].get("language") == "go" and not path.endswith("_test.go"):
            packages[posixpath.dirname(path)].append(path)
    for path, file in facts.items():
        if file.get("language") != "go":
            continue
        for import_path, line in file["imports"]:
            folder = _go_folder(import_path, modules)
            for target in packages.get(folder, ()) if folder is not None else ():
                if posixpath.dirname(target) != posixpath.dirname(path):
                    yield Link(file["document"], IMPORTS, facts[target]["document"], line, 1.0)


def _go_folder(import_path: str, modules: Mapping[str, str]) -> str | None:
    """The folder of a package: below the go.mod whose module path is the longest prefix of the import path."""
    owners = [
        (len(module), folder, module)
        for folder, module in modules.items()
        if import_path == module or import_path.startswith(f"{module}/")
    ]
    if not owners:
        return None
    _, folder, module = max(owners)
    below = import_path[len(module) :].strip("/")
    return posixpath.join(folder, below) if below else folder
