"""Source files to symbols and links, by readable names."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from cluster.model.nodes import Node
from jobs.code import extract_code, language_of
from jobs.link import link
from jobs.model import Extracted, FileContext

ACCOUNT, PROJECT = "acme", "shop"
FIXTURES = Path(__file__).parent.parent / "fixtures" / "code"


def extract(path: str, source: str, max_chars: int = 1200, commit: str | None = None) -> Extracted:
    """What is extracted from a file of this name."""
    context = FileContext(ACCOUNT, PROJECT, "repo", path, commit, now=0, max_chars=max_chars)
    return extract_code(source, language_of(path) or "", context)


def symbols(extracted: Extracted) -> dict[str, Node]:
    """The symbols by qualified name; of several with one name, the last."""
    return {node.text["symbol"]: node for node in extracted.nodes if "Symbol" in node.labels}


def rows(extracted: Extracted) -> list[Node]:
    """The nodes that hold source text, in order."""
    return [node for node in extracted.nodes if "content" in node.text]


def assert_whole(extracted: Extracted, source: str, max_chars: int = 1200) -> None:
    """Every line in exactly one row: the contents, in order, are the source but for white space between them."""
    position = 0
    for node in rows(extracted):
        content = node.text["content"]
        start = source.find(content, position)
        assert start >= 0, f"out of order or not of the source: {content!r}"
        assert not source[position:start].strip(), f"lost: {source[position:start]!r}"
        assert node.source is not None
        assert node.source.start_line == source.count("\n", 0, start) + 1
        assert len(content) <= max_chars
        position = start + len(content)
    assert not source[position:].strip(), f"lost: {source[position:]!r}"


def folder(name: str) -> dict[str, str]:
    """The files of a fixture, by path inside it."""
    root = FIXTURES / name
    return {path.relative_to(root).as_posix(): path.read_text("utf-8") for path in sorted(root.rglob("*")) if path.is_file()}


class Linked:
    """Files, extracted and linked. Symbols are named `path::qualified name`, documents by their path."""

    def __init__(self, files: Mapping[str, str]) -> None:
        self.extracted = {path: extract(path, source) for path, source in files.items() if language_of(path)}
        # The facts go through JSON, as they do when they are kept between two runs.
        facts = {path: json.loads(json.dumps(found.facts)) for path, found in self.extracted.items()}
        facts |= {path: {} for path in files if path not in facts}
        names = {
            node.id: f"{path}::{node.text['symbol']}" if "symbol" in node.text else path
            for path, found in self.extracted.items()
            for node in found.nodes
        }
        self.edges = link(ACCOUNT, PROJECT, facts)
        self.named = [
            (names[edge.from_id], edge.type, names.get(edge.to_id, edge.to_id), edge.properties) for edge in self.edges
        ]

    def pairs(self, type_: str) -> set[tuple[str, str]]:
        """(from, to) of every edge of a type."""
        return {(from_, to) for from_, kind, to, _ in self.named if kind == type_}

    def calls(self, *, certain: bool = False) -> set[tuple[str, str]]:
        """(caller, callee), only those with confidence 1 if `certain`."""
        return {
            (from_, to)
            for from_, kind, to, properties in self.named
            if kind == "CALLS" and (not certain or properties["confidence"] == 1)
        }

    def callers(self, target: str) -> set[str]:
        """Who calls `target`."""
        return {from_ for from_, to in self.calls() if to == target}


def local(pairs: Iterable[tuple[str, str]]) -> set[tuple[str, str]]:
    """Pairs without the paths, for tests of one file."""
    return {(from_.partition("::")[2], to.partition("::")[2]) for from_, to in pairs}
