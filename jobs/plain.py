"""Text without a known structure: one Document, and chunks cut at blank lines."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping

from cluster.model.nodes import Edge, Json, Node
from jobs.chunk import LineIndex, split_text
from jobs.model import CHUNK, DOCUMENT, HAS_CHUNK, Extracted, FileContext, document_id, make_edge, make_node, node_id

_PROSE = frozenset({"", "txt", "text", "rst", "adoc", "asciidoc", "org", "tex", "md", "markdown", "mdx"})
_SENTENCE = re.compile(r".+?(?:[.!?…](?=\s|$)|[。！？]|$)", re.DOTALL)
_SUMMARY_CHARS = 300


def extract_plain(text: str, context: FileContext) -> Extracted:
    """Document and Chunks of `text`. The chunks' contents, joined, are `text`, but for chunks of white space alone."""
    root = document_id(context)
    name = posixpath.basename(context.path)
    suffix = name.rpartition(".")[2].lower() if "." in name[1:] else ""
    summary = lead_sentence(text) if suffix in _PROSE else ""
    index = LineIndex(text)
    chunks: list[Node] = []
    edges: list[Edge] = []
    for span in split_text(text, context.max_chars):
        content = text[span.start : span.end]
        if not content.strip():
            continue
        id_ = node_id(context, CHUNK, str(len(chunks)))
        properties: dict[str, Json] = {"ordinal": len(chunks)}
        row = {"title": name, "path": context.path, "content": content}
        chunks.append(make_node(context, id_, (CHUNK,), row, properties, index.lines_of(text, span)))
        edges.append(make_edge(context, root, HAS_CHUNK, id_))
    document = document_node(context, title=name, summary=summary)
    return Extracted(nodes=(document, *chunks), edges=tuple(edges))


def document_node(
    context: FileContext,
    *,
    title: str,
    summary: str = "",
    labels: tuple[str, ...] = (DOCUMENT,),
    properties: Mapping[str, Json] | None = None,
) -> Node:
    """The node of the file itself."""
    text = {"title": title, "path": context.path, "summary": summary}
    return make_node(context, document_id(context), labels, text, properties or {}, None)


def lead_sentence(text: str) -> str:
    """The first sentence of the first paragraph of `text`, on one line, cut to 300 code points; "" if there is none."""
    paragraph = text.lstrip().split("\n\n", 1)[0]
    match = _SENTENCE.match(" ".join(paragraph[: 4 * _SUMMARY_CHARS].split()))
    sentence = match[0] if match else ""
    if len(sentence) <= _SUMMARY_CHARS:
        return sentence
    end = split_text(sentence, _SUMMARY_CHARS - 1)[0].end
    return sentence[:end].rstrip() + "…"
