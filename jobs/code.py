"""Source code to symbols, chunks and the facts that linking needs.

Every line stands in the content of exactly one row. A symbol's content begins where it does (with its decorators, and in Go,
JavaScript and TypeScript with its doc comment) and ends where the first symbol nested in it begins, or at the chunk limit.
What is left, inside a symbol or between symbols, becomes chunks of that symbol or of the document. Only white space is in no
row. A leftover too small to be worth a row (a closing bracket, `return wrapper`) goes with the row before it if that has room:
very short rows would crowd out real answers in a ranking that rewards shortness.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from cluster.errors import UsageError
from cluster.model.nodes import Edge, Json, Node
from jobs.chunk import split_text
from jobs.languages import go, javascript, python
from jobs.languages.tree import Definition, Parsed, SourceText
from jobs.model import (
    CHUNK,
    DEFINES,
    DOCUMENT,
    HAS_CHUNK,
    SYMBOL,
    Extracted,
    FileContext,
    document_id,
    make_edge,
    make_node,
    node_id,
)
from jobs.plain import document_node

_LANGUAGES = {
    ".py": "python",
    ".pyi": "python",
    ".pyw": "python",
    ".js": "javascript",
    ".jsx": "javascript",
    ".mjs": "javascript",
    ".cjs": "javascript",
    ".ts": "typescript",
    ".mts": "typescript",
    ".cts": "typescript",
    ".tsx": "tsx",
    ".go": "go",
}
_READERS: dict[str, Callable[[SourceText], Parsed]] = {
    "python": python.read,
    "javascript": lambda source: javascript.read(source, "javascript"),
    "typescript": lambda source: javascript.read(source, "typescript"),
    "tsx": lambda source: javascript.read(source, "tsx"),
    "go": go.read,
    "gomod": go.read_module,
}
_WORD = re.compile(r"\w")
#: A leftover of one line up to this long, in code points, is no row of its own.
_SCRAP_CHARS = 40


def language_of(path: str) -> str | None:
    """The language that `extract_code` reads a file of this name as; None for a file that it does not read."""
    name = PurePosixPath(path)
    if name.name == "go.mod":
        return "gomod"
    return _LANGUAGES.get(name.suffix.lower())


def extract_code(source: str, language: str, context: FileContext) -> Extracted:
    """The document, symbols and chunks of one file, in the order of its lines, and their containment edges.

    A syntax error is a warning, "parse error, line N": what the parser made sense of is kept, the rest is in chunks. Raises
    UsageError for a language that `language_of` does not name.
    """
    reader = _READERS.get(language)
    if reader is None:
        raise UsageError(f"no reader for the language {language!r}", field="language")
    text = SourceText(source)
    parsed = reader(text)
    _settle(parsed.definitions, len(text.data))
    return _Assembly(text, language, context, parsed).extracted()


def _settle(definitions: Sequence[Definition], size: int) -> None:
    """Makes each range lie inside those around it and behind those before it, whatever a broken tree said."""
    stack: list[Definition] = []
    floor = 0
    for definition in definitions:
        while stack and stack[-1].end <= definition.start:
            floor = max(floor, stack.pop().end)
        definition.start = max(definition.start, floor)
        definition.end = max(definition.start, min(definition.end, stack[-1].end if stack else size))
        floor = definition.start
        stack.append(definition)


@dataclass(slots=True)
class _Piece:
    """A byte range that becomes the content of one row: the symbol's own (`head`) or a chunk's."""

    owner: int | None
    start: int
    end: int
    head: bool


def _regions(definitions: Sequence[Definition], size: int) -> Iterator[_Piece]:
    """The file, cut at every start and end of a symbol: ranges that join to the whole, each of its innermost symbol."""
    stack: list[int] = []
    position = 0
    headless: set[int] = set()

    def until(end: int, owner: int | None) -> Iterator[_Piece]:
        nonlocal position
        if end > position:
            yield _Piece(owner, position, end, owner in headless)
            if owner is not None:
                headless.discard(owner)
            position = end

    for index, definition in enumerate(definitions):
        while stack and definitions[stack[-1]].end <= definition.start:
            closed = stack.pop()
            yield from until(definitions[closed].end, closed)
        yield from until(definition.start, stack[-1] if stack else None)
        stack.append(index)
        headless.add(index)
    while stack:
        closed = stack.pop()
        yield from until(definitions[closed].end, closed)
    yield from until(size, None)


def _is_scrap(text: str, piece: _Piece) -> bool:
    bare = text.strip()
    return not piece.head and (not _WORD.search(bare) or (len(bare) <= _SCRAP_CHARS and "\n" not in bare))


class _Assembly:
    """Nodes and edges of one file, from what the language found in it."""

    def __init__(self, source: SourceText, language: str, context: FileContext, parsed: Parsed) -> None:
        self._source = source
        self._language = language
        self._context = context
        self._parsed = parsed
        self._document = document_id(context)
        ordinals: dict[str, int] = defaultdict(int)
        self._keys: list[tuple[str, str]] = []
        for definition in parsed.definitions:
            self._keys.append((definition.qualified, str(ordinals[definition.qualified])))
            ordinals[definition.qualified] += 1
        self._ids = [node_id(context, SYMBOL, *key) for key in self._keys]

    def extracted(self) -> Extracted:
        nodes: list[Node] = [self._document_node()]
        edges: list[Edge] = []
        chunks: dict[int | None, int] = defaultdict(int)
        heads: set[int] = set()
        for piece in self._pieces():
            if piece.head and piece.owner is not None:
                nodes.append(self._symbol_node(piece.owner, self._source.cut(piece.start, piece.end)))
                heads.add(piece.owner)
                edges.append(self._defines(piece.owner))
            else:
                node = self._chunk_node(piece, chunks[piece.owner])
                chunks[piece.owner] += 1
                nodes.append(node)
                edges.append(make_edge(self._context, self._owner_id(piece.owner), HAS_CHUNK, node.id))
        for index in range(len(self._ids)):
            if index not in heads:
                nodes.append(self._symbol_node(index, ""))
                edges.append(self._defines(index))
        line = self._parsed.error_line
        return Extracted(
            nodes=tuple(nodes),
            edges=tuple(edges),
            facts=self._facts(),
            warnings=() if line is None else (f"parse error, line {line}",),
        )

    def _pieces(self) -> list[_Piece]:
        """The rows' ranges, in order; neither longer than the limit nor blank."""
        limit = self._context.max_chars
        pieces: list[_Piece] = []
        for region in _regions(self._parsed.definitions, len(self._source.data)):
            text = self._source.cut(region.start, region.end)
            if not text.strip() or (_is_scrap(text, region) and pieces and self._joined(pieces[-1], region, limit)):
                continue
            offset = region.start
            for number, span in enumerate(split_text(text, limit)):
                part = text[span.start : span.end]
                size = len(part.encode("utf-8", "surrogatepass"))
                if part.strip():
                    pieces.append(self._trimmed(_Piece(region.owner, offset, offset + size, region.head and number == 0), part))
                offset += size
        return pieces

    def _joined(self, last: _Piece, region: _Piece, limit: int) -> bool:
        """Lengthens the row before over `region` if that fits."""
        end = region.start + len(self._source.cut(region.start, region.end).rstrip().encode("utf-8", "surrogatepass"))
        if len(self._source.cut(last.start, end)) > limit:
            return False
        last.end = end
        return True

    @staticmethod
    def _trimmed(piece: _Piece, text: str) -> _Piece:
        """Without the empty lines in front and the white space behind."""
        blank = re.match(r"([^\S\n]*\n)*", text)
        assert blank is not None
        piece.start += len(blank[0].encode("utf-8", "surrogatepass"))
        piece.end -= len(text[len(text.rstrip()) :].encode("utf-8", "surrogatepass"))
        return piece

    # --- nodes and edges ----------------------------------------------------------------------------------------------------

    def _document_node(self) -> Node:
        properties: dict[str, Json] = {"language": self._language}
        if self._parsed.error_line is not None:
            properties["parse_error_line"] = self._parsed.error_line
        title, summary = PurePosixPath(self._context.path).name, self._parsed.summary
        return document_node(self._context, title=title, summary=summary, labels=(DOCUMENT, "File"), properties=properties)

    def _symbol_node(self, index: int, content: str) -> Node:
        definition = self._parsed.definitions[index]
        text = {
            "symbol": definition.qualified,
            "title": definition.signature,
            "path": self._context.path,
            "summary": definition.summary,
            "content": content,
        }
        properties: dict[str, Json] = {
            "language": self._language,
            "kind": definition.kind,
            "line": definition.line,
            **definition.properties,
        }
        lines = (self._source.line(definition.start), self._last_line(definition.start, definition.end))
        return make_node(self._context, self._ids[index], (SYMBOL, definition.kind), text, properties, lines)

    def _chunk_node(self, piece: _Piece, ordinal: int) -> Node:
        owner = self._keys[piece.owner] if piece.owner is not None else ()
        title = owner[0] if owner else PurePosixPath(self._context.path).name
        text = {"title": title, "path": self._context.path, "content": self._source.cut(piece.start, piece.end)}
        lines = (self._source.line(piece.start), self._last_line(piece.start, piece.end))
        id_ = node_id(self._context, CHUNK, *owner, str(ordinal))
        return make_node(self._context, id_, (CHUNK, "Code"), text, {"language": self._language}, lines)

    def _last_line(self, start: int, end: int) -> int:
        """The line of the last byte of a range that is not white space."""
        return self._source.line(start + max(len(self._source.data[start:end].rstrip()) - 1, 0))

    def _owner_id(self, owner: int | None) -> str:
        return self._document if owner is None else self._ids[owner]

    def _defines(self, index: int) -> Edge:
        return make_edge(self._context, self._owner_id(self._parsed.definitions[index].parent), DEFINES, self._ids[index])

    def _facts(self) -> dict[str, Json]:
        definitions: list[Json] = [
            [self._ids[index], definition.name, definition.kind, definition.parent, definition.stub]
            for index, definition in enumerate(self._parsed.definitions)
        ]
        return {"language": self._language, "document": self._document, "definitions": definitions, **self._parsed.facts}
