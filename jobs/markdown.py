"""Markdown: Document, Sections nested as their headings are, and Chunks that respect what they cut.

Headings come from the parser's tokens alone, so a "#" in a fence, a "---" below front matter or a "#" in a list is none.
A heading line's text lives in its Section's title; every other line of the file, except front matter and blank lines around
a chunk, lives in the content of one Chunk. Rows of a table that is cut carry its header again.
"""

from __future__ import annotations

import posixpath
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from markdown_it import MarkdownIt
from markdown_it.token import Token
from mdit_py_plugins.front_matter import front_matter_plugin

from cluster.model.nodes import Edge, Json, Node
from jobs.chunk import LineIndex, Span, split_text
from jobs.front_matter import FrontMatter, parse_front_matter
from jobs.model import (
    CHUNK,
    HAS_CHUNK,
    HAS_SECTION,
    SECTION,
    Extracted,
    FileContext,
    document_id,
    make_edge,
    make_node,
    node_id,
)
from jobs.plain import document_node, extract_plain, lead_sentence

#: Container levels that the parser enters; deeper ones are read as the text that they are.
_MAX_NESTING = 40
#: A longer heading is shortened in titles, and its line goes into the content as well.
_MAX_HEADING = 200
_BREADCRUMB = " > "
_PARAGRAPH_END = re.compile(r"\n(?:[^\S\n]*\n)+")
_WHOLE_BLOCKS = frozenset({"table_open", "fence", "code_block"})


class _Block(NamedTuple):
    """A table or a code block: lines [start, end), from 0."""

    start: int
    end: int
    is_table: bool


@dataclass(frozen=True, slots=True)
class _Piece:
    """A stretch of text that ought to stay in one chunk."""

    span: Span
    table: _Block | None = None


@dataclass(frozen=True, slots=True)
class _Cut:
    """The place of one chunk, and the table header that is repeated before it."""

    span: Span
    header: Span | None = None


@dataclass(slots=True)
class _Section:
    """A heading and its own text, up to the next heading. Lines from 0."""

    level: int
    titles: tuple[str, ...]
    id: str
    parent_id: str
    heading_line: int
    body: tuple[int, int]
    key: tuple[str, ...]
    summary: str = ""


@dataclass(slots=True)
class _Source:
    """The parsed file."""

    text: str
    tokens: list[Token]
    front: FrontMatter
    starts: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.starts = [0, *(match.end() for match in re.finditer("\n", self.text)), len(self.text)]

    def span(self, start: int, end: int) -> Span:
        """The place of the lines [start, end)."""
        last = len(self.starts) - 1
        return Span(self.starts[min(start, last)], self.starts[min(end, last)])


def extract_markdown(text: str, context: FileContext) -> Extracted:
    """Everything of one Markdown file. A text that the parser cannot read becomes plain text, with a warning."""
    try:
        source = _parse(text)
        return _Builder(source, context).build()
    except (RecursionError, IndexError, ValueError) as error:
        plain = extract_plain(text, context)
        warning = f"read as plain text: the Markdown parser gave up ({type(error).__name__})"
        return Extracted(nodes=plain.nodes, edges=plain.edges, facts=plain.facts, warnings=(*plain.warnings, warning))


def _parse(text: str) -> _Source:
    tokens = _parser(True).parse(text)
    if tokens and tokens[0].type == "front_matter":
        front = parse_front_matter(tokens[0].content)
        if front is not None:
            return _Source(text, tokens, front)
        tokens = _parser(False).parse(text)  # prose between two rules
    return _Source(text, tokens, FrontMatter())


@lru_cache(maxsize=2)
def _parser(front_matter: bool) -> MarkdownIt:
    parser = MarkdownIt("commonmark", {"maxNesting": _MAX_NESTING}).enable("table")
    if front_matter:
        parser.use(front_matter_plugin)
    parser.core.ruler.enableOnly(["normalize", "block"])  # inline markup is read for headings and summaries alone
    return parser


@lru_cache(maxsize=1)
def _inline_parser() -> MarkdownIt:
    return MarkdownIt("commonmark")


def inline_text(markup: str) -> str:
    """Inline Markdown without its markup, on one line."""
    parts: list[str] = []
    for token in _inline_parser().parseInline(markup):
        for child in token.children or ():
            if child.type in ("text", "code_inline", "image", "text_special"):
                parts.append(child.content)
            elif child.type in ("softbreak", "hardbreak"):
                parts.append(" ")
    return " ".join("".join(parts).split())


class _Builder:
    def __init__(self, source: _Source, context: FileContext) -> None:
        self._source = source
        self._context = context
        self._root = document_id(context)
        self._index = LineIndex(source.text)
        self._name = posixpath.basename(context.path)
        self._blocks = [*_whole_blocks(source.tokens)]
        self._block_lines = [block.start for block in self._blocks]
        paragraphs = [*_paragraphs(source.tokens)]
        self._paragraph_lines = [line for line, _ in paragraphs]
        self._paragraph_markup = [markup for _, markup in paragraphs]
        self._nodes: list[Node] = []
        self._edges: list[Edge] = []
        self._warnings: list[str] = list(source.front.warnings)

    def build(self) -> Extracted:
        source = self._source
        lines = len(source.starts) - 1
        first = source.front.end_line(source.tokens)
        headings = [*_headings(source.tokens)]
        title = source.front.title or next((text for level, text, _ in headings if level == 1 and text), "") or self._name
        if headings:
            self._chunks(self._root, (), title, (first, headings[0][2][0]))
        for section in self._sections(headings, lines) if headings else self._only_section(title, first, lines):
            self._section(section)
        properties: dict[str, Json] = {"language": "markdown"}
        if source.front.tags:
            properties["tags"] = list(source.front.tags)
        summary = source.front.summary or self._lead(0, lines)
        document = document_node(self._context, title=title, summary=summary, properties=properties)
        return Extracted(nodes=(document, *self._nodes), edges=tuple(self._edges), warnings=tuple(self._warnings))

    def _only_section(self, title: str, first: int, lines: int) -> list[_Section]:
        """A file without headings is one section named after it; a file without text has none."""
        span = self._source.span(first, lines)
        if not self._source.text[span.start : span.end].strip():
            return []
        id_ = node_id(self._context, SECTION, "0")
        return [_Section(1, (title,), id_, self._root, first, (first, lines), ("0",), self._lead(first, lines))]

    def _sections(self, headings: list[tuple[int, str, tuple[int, int]]], lines: int) -> Iterator[_Section]:
        above: list[_Section] = []
        seen: dict[tuple[str, ...], int] = {}
        ends = [start for _, _, (start, _) in headings[1:]] + [lines]
        for (level, text, (start, body_start)), end in zip(headings, ends, strict=True):
            while above and above[-1].level >= level:
                above.pop()
            parents = above[-1].titles if above else ()
            titles = (*parents, _shorten(text)) if text else parents
            number = seen[titles] = seen.get(titles, -1) + 1
            key = (*titles, str(number))
            section = _Section(
                level=level,
                titles=titles,
                id=node_id(self._context, SECTION, *key),
                parent_id=above[-1].id if above else self._root,
                heading_line=start,
                # The whole of a heading that does not fit a title stays findable as content.
                body=(start if len(text) > _MAX_HEADING else body_start, end),
                key=key,
                summary=self._lead(body_start, end),
            )
            above.append(section)
            yield section

    def _section(self, section: _Section) -> None:
        title = _BREADCRUMB.join(section.titles) or self._name
        span = self._source.span(section.heading_line, section.body[1])
        row = {"title": title, "path": self._context.path, "summary": section.summary}
        properties: dict[str, Json] = {"level": section.level, "ordinal": len(self._nodes)}
        lines = self._index.lines_of(self._source.text, span)
        self._nodes.append(make_node(self._context, section.id, (SECTION,), row, properties, lines))
        self._edges.append(make_edge(self._context, section.parent_id, HAS_SECTION, section.id))
        self._chunks(section.id, section.key, title, section.body)

    def _chunks(self, parent_id: str, key: tuple[str, ...], title: str, lines: tuple[int, int]) -> None:
        text = self._source.text
        number = 0
        for cut in self._cuts([*self._pieces(*lines)]):
            span = _without_blank_edges(text, cut.span)
            content = text[span.start : span.end]
            if not content:
                continue
            properties: dict[str, Json] = {"ordinal": len(self._nodes)}
            if cut.header is not None:
                header = text[cut.header.start : cut.header.end]
                content = header + content
                # Not of these lines: the first `prefix_chars` characters repeat the table's header, for the reader.
                properties["prefix_chars"] = len(header)
                properties["header_lines"] = list(self._index.lines_of(text, cut.header))
            row = {"title": title, "path": self._context.path, "content": content}
            id_ = node_id(self._context, CHUNK, *key, str(number))
            self._nodes.append(make_node(self._context, id_, (CHUNK,), row, properties, self._index.lines_of(text, span)))
            self._edges.append(make_edge(self._context, parent_id, HAS_CHUNK, id_))
            number += 1

    def _pieces(self, first: int, end: int) -> Iterator[_Piece]:
        """The lines [first, end) as paragraphs, tables and code blocks."""
        line = first
        for at in range(bisect_left(self._block_lines, first), bisect_left(self._block_lines, end)):
            block = self._blocks[at]
            yield from self._prose(self._source.span(line, block.start))
            yield _Piece(self._source.span(block.start, block.end), block if block.is_table else None)
            line = block.end
        yield from self._prose(self._source.span(line, end))

    def _prose(self, span: Span) -> Iterator[_Piece]:
        start = span.start
        for match in _PARAGRAPH_END.finditer(self._source.text, span.start, span.end):
            yield _Piece(Span(start, match.end()))
            start = match.end()
        if start < span.end:
            yield _Piece(Span(start, span.end))

    def _cuts(self, pieces: list[_Piece]) -> Iterator[_Cut]:
        """Fills chunks with whole pieces, in order; a piece is cut only if it alone does not fit."""
        limit = self._context.max_chars
        open_: Span | None = None
        for piece in pieces:
            start, end = piece.span
            if open_ is not None and end - open_.start <= limit:
                open_ = Span(open_.start, end)
                continue
            if open_ is not None:
                yield _Cut(open_)
            open_ = None
            if end - start <= limit:
                open_ = piece.span
            elif piece.table is not None:
                yield from self._table(piece.table)
            else:
                *full, rest = split_text(self._source.text[start:end], limit)
                yield from (_Cut(Span(start + part.start, start + part.end)) for part in full)
                open_ = Span(start + rest.start, start + rest.end)
        if open_ is not None:
            yield _Cut(open_)

    def _table(self, table: _Block) -> Iterator[_Cut]:
        """Groups of whole rows; the first has the header itself, the others its copy."""
        limit = self._context.max_chars
        header = self._source.span(table.start, table.start + 2)
        copy: Span | None = header
        if header.end - header.start > limit // 2:
            copy = None
            self._warnings.append(f"the table in line {table.start + 1} has a header too long to repeat")
        room = limit - (header.end - header.start if copy else 0)
        groups = _rows(self._source, table.start + 2, table.end, room)
        if copy is None:
            yield from self._split(header, None)
        elif (first := next(groups, None)) is not None:
            head, *rest = self._split(first, copy)
            yield _Cut(Span(header.start, head.span.end))
            yield from rest
        for group in groups:
            yield from self._split(group, copy)

    def _split(self, span: Span, header: Span | None) -> Iterator[_Cut]:
        """One group of rows; a single row that is too long for a chunk is cut, since the limit is a limit."""
        room = self._context.max_chars - (header.end - header.start if header else 0)
        for part in split_text(self._source.text[span.start : span.end], room):
            yield _Cut(Span(span.start + part.start, span.start + part.end), header)

    def _lead(self, first: int, end: int) -> str:
        """The first sentence of the first paragraph that starts in the lines [first, end)."""
        at = bisect_left(self._paragraph_lines, first)
        if at == len(self._paragraph_lines) or self._paragraph_lines[at] >= end:
            return ""
        return lead_sentence(inline_text(self._paragraph_markup[at][:2000]))


def _headings(tokens: list[Token]) -> Iterator[tuple[int, str, tuple[int, int]]]:
    """(level 1 to 6, text, lines [start, end)) of each heading that is in no list or quote."""
    for token, inline in pairwise(tokens):
        if token.type == "heading_open" and token.level == 0 and token.map:
            yield int(token.tag[1:]), inline_text(inline.content), (token.map[0], token.map[1])


def _paragraphs(tokens: list[Token]) -> Iterator[tuple[int, str]]:
    """(first line, markup) of each paragraph that is in no list or quote."""
    for token, inline in pairwise(tokens):
        if token.type == "paragraph_open" and token.level == 0 and token.map:
            yield token.map[0], inline.content


def _whole_blocks(tokens: Iterable[Token]) -> Iterator[_Block]:
    end = 0
    for token in tokens:
        if token.type in _WHOLE_BLOCKS and token.map and token.map[0] >= end:
            end = token.map[1]
            yield _Block(token.map[0], end, token.type == "table_open")


def _rows(source: _Source, first: int, end: int, room: int) -> Iterator[Span]:
    """Spans of as many whole rows as fit `room`, at least one each."""
    start = first
    for line in range(first, end):
        if line > start and source.starts[line + 1] - source.starts[start] > room:
            yield source.span(start, line)
            start = line
    if start < end:
        yield source.span(start, end)


def _without_blank_edges(text: str, span: Span) -> Span:
    """`span` without blank lines at its start and white space at its end; empty if there is nothing else."""
    content = text[span.start : span.end]
    kept = content.rstrip()
    lead = len(kept) - len(kept.lstrip())
    first = kept.rfind("\n", 0, lead) + 1  # indentation of the first line with text stays
    return Span(span.start + first, span.start + len(kept))


def _shorten(heading: str) -> str:
    if len(heading) <= _MAX_HEADING:
        return heading
    return heading[: split_text(heading, _MAX_HEADING - 1)[0].end].rstrip() + "…"
