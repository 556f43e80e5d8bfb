"""What the languages share: parsing into a tree-sitter tree, and the plain values that a language hands back.

Every walk over a tree is a loop with its own stack: real files nest thousands of levels deep. tree-sitter counts bytes, so
all offsets here are bytes of the encoded source; the text of a range is cut from the bytes and decoded, never from the `str`.
"""

from __future__ import annotations

import inspect
import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from tree_sitter import Language, Node, Parser, Tree

from cluster.model.nodes import Json

#: Longest signature that is kept as a title, in code points.
MAX_SIGNATURE = 300
#: Longest summary that is kept, in code points.
MAX_SUMMARY = 600
#: Longest indentation that is recognised as such, in bytes.
MAX_INDENT = 500
#: Longest qualified name; what is nested deeper stays code of the symbol around it. Else hostile nesting costs its square.
MAX_QUALIFIED = 500
#: What may follow a definition on its last line and still belong to it.
_REST_OF_LINE = re.compile(rb"[ \t]*[;,]?[ \t]*((#|//)[^\n]*)?\r?(\n|\Z)")


@dataclass(slots=True, kw_only=True)
class Definition:
    """A symbol as it stands in the source. Two definitions of a file are nested or disjoint."""

    #: Own name, and the name with those of the enclosing symbols, joined by ".".
    name: str
    qualified: str
    kind: str
    #: Bytes, end exclusive, with decorators and the doc comment where the language has them in front.
    start: int
    end: int
    #: Line of the declaration itself, from 1.
    line: int
    signature: str
    summary: str = ""
    #: Index of the symbol that this one is a member of; None at the top.
    parent: int | None = None
    properties: dict[str, Json] = field(default_factory=dict)
    #: A declaration without a body, which another one of the same name supplies.
    stub: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsed:
    """One file, read."""

    #: By start, the outer one first.
    definitions: Sequence[Definition]
    #: For linking: JSON; a symbol is named by its index in `definitions`.
    facts: Mapping[str, Json]
    #: First paragraph of the file's own documentation.
    summary: str = ""
    #: Line of the first syntax error, from 1; None for a sound file.
    error_line: int | None = None


class SourceText:
    """The encoded source with its lines."""

    def __init__(self, source: str) -> None:
        self.data = source.encode("utf-8", "surrogatepass")
        self._starts = [0, *(match.end() for match in re.finditer(rb"\n", self.data))]
        #: Last line of a comment, from 0 -> its first line, from 0, and its bytes.
        self._comments: dict[int, tuple[int, int, int]] = {}

    def cut(self, start: int, end: int) -> str:
        """The text of a byte range."""
        return self.data[start:end].decode("utf-8", "surrogatepass")

    def text(self, node: Node) -> str:
        """The text of a node."""
        return self.cut(node.start_byte, node.end_byte)

    def line(self, offset: int) -> int:
        """The line, from 1, that holds the byte at `offset`."""
        return bisect_right(self._starts, offset)

    def widen(self, start: int, end: int) -> tuple[int, int]:
        """The range grown over its indentation and the rest of its last line, where nothing else stands there."""
        if self._is_first(start):
            start = self._starts[self.line(start) - 1]
        if rest := _REST_OF_LINE.match(self.data, end):
            end = rest.end()
        return start, end

    def _is_first(self, offset: int) -> bool:
        """Whether nothing but white space stands before the byte at `offset` on its line."""
        line_start = self._starts[self.line(offset) - 1]
        # A look at the whole line for each symbol of a line of megabytes would take the square of its length.
        return offset - line_start <= MAX_INDENT and not self.data[line_start:offset].strip(b" \t\x0c\xef\xbb\xbf")

    def signature(self, start: int, end: int) -> str:
        """The text of a byte range on one line, cut to MAX_SIGNATURE."""
        # Only so much is looked at: a signature that is cut anyway may be the head of a table of megabytes.
        return shorten(self.data[start : min(end, start + 8 * MAX_SIGNATURE)].decode("utf-8", "ignore"), MAX_SIGNATURE)

    def note_comment(self, node: Node) -> None:
        """Remembers a comment that has its lines to itself. A walk in source order notes each before what it stands above."""
        first, last = node.start_point[0], node.end_point[0]
        if self._is_first(node.start_byte):
            self._comments[last] = (first, node.start_byte, node.end_byte)

    def comments_above(self, offset: int) -> tuple[int, list[str]]:
        """The comments that end directly above the line of `offset`, with no empty line between: their start and their texts.

        The start is `offset` where there is none, or where something else stands before `offset` on its line.
        """
        found: list[str] = []
        if not self._is_first(offset):
            return offset, found
        line = self.line(offset) - 1
        while (comment := self._comments.get(line - 1)) is not None:
            line, offset, end = comment
            found.append(self.cut(offset, end))
        return offset, found[::-1]


@lru_cache
def grammar(name: str) -> Language:
    """The grammar of "python", "javascript", "typescript", "tsx" or "go"."""
    if name == "python":
        import tree_sitter_python

        return Language(tree_sitter_python.language())
    if name == "javascript":
        import tree_sitter_javascript

        return Language(tree_sitter_javascript.language())
    if name == "go":
        import tree_sitter_go

        return Language(tree_sitter_go.language())
    import tree_sitter_typescript

    return Language(tree_sitter_typescript.language_tsx() if name == "tsx" else tree_sitter_typescript.language_typescript())


def parse(name: str, data: bytes) -> Tree:
    """The tree of `data`, which tree-sitter always makes; errors are nodes in it."""
    return Parser(grammar(name)).parse(data)


def first_error_line(root: Node) -> int | None:
    """The line, from 1, of the first thing that the parser had to skip or to invent; None when there is none."""
    stack = [root] if root.has_error else []
    while stack:
        node = stack.pop()
        if node.is_error or node.is_missing:
            return node.start_point[0] + 1
        stack.extend(child for child in reversed(node.children) if child.has_error or child.is_missing)
    return None


def shorten(text: str, limit: int) -> str:
    """`text` on one line, cut to `limit` code points."""
    joined = " ".join(text.split())
    return joined if len(joined) <= limit else joined[: limit - 1].rstrip() + "…"


def first_paragraph(text: str) -> str:
    """The first paragraph of a documentation text, on one line, cut to MAX_SUMMARY."""
    return shorten(re.split(r"\n\s*\n", inspect.cleandoc(text), maxsplit=1)[0], MAX_SUMMARY)


def qualify(definitions: Sequence[Definition], owner: int | None, name: str) -> str | None:
    """The name of a member of `definitions[owner]`; None where it is longer than MAX_QUALIFIED."""
    qualified = name if owner is None else f"{definitions[owner].qualified}.{name}"
    return qualified if len(qualified) <= MAX_QUALIFIED else None


def comment_text(comments: Sequence[str]) -> str:
    """What comments say, without the signs that make them comments: `#`, `//`, `/* */` and leading `*`."""
    lines: list[str] = []
    for comment in comments:
        body = comment
        if body.startswith("/*"):
            body = body.removeprefix("/*").removesuffix("*/")
        lines.extend(re.sub(r"^\s*(//[/!]?|#[:!]?|\*+)\s?", "", line).rstrip() for line in body.splitlines())
    return "\n".join(lines).strip("\n")
