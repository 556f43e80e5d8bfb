"""Writing rows with Lucene: what a build and a delta share."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from cluster.index import jvm
from cluster.index.analysis import Analysis
from cluster.index.lucene_query import TEXT, frequency_analyzer, guard_terms
from cluster.model.nodes import Node

logger = logging.getLogger(__name__)

#: Of the heap, for documents not yet written. More rows than fit make several segments, which are merged in order.
_BUFFER_MB = 64.0
#: Combinations of guard columns whose Lucene document is kept for reuse while rows are added.
_DOCUMENTS = 1000


def similarity(k1: float, b: float) -> Any:
    """Lucene's BM25, with the lengths that `add_rows` returns: terms that share a position count."""
    return jvm.java().BM25Similarity(k1, b, False)


def open_writer(folder: Any, reading: Analysis) -> Any:
    """An IndexWriter that starts an empty index in `folder` and keeps documents in the order in which they are added."""
    java = jvm.java()
    analyzer, bm25 = frequency_analyzer(), similarity(reading.k1, reading.b)
    # This policy merges neighbours only, and this scheduler at once: rows stay in order however many segments were flushed.
    policy, scheduler = java.LogDocMergePolicy(), java.SerialMergeScheduler()
    config = java.IndexWriterConfig(analyzer)
    config.setSimilarity(bm25)
    config.setMergePolicy(policy)
    config.setMergeScheduler(scheduler)
    config.setRAMBufferSizeMB(_BUFFER_MB)
    config.setUseCompoundFile(False)  # or the last merge would rewrite even a single segment
    config.setOpenMode(java.OpenMode.CREATE)
    return java.IndexWriter(folder, config)


def add_rows(writer: Any, nodes: Iterable[Node], reading: Analysis) -> list[int]:
    """Adds one document a node, in order, and returns the length of each in terms."""
    java = jvm.java()
    kind = java.FieldType()
    kind.setIndexOptions(java.IndexOptions.DOCS_AND_FREQS)
    kind.freeze()
    text = java.Field(TEXT, "", kind)
    documents: dict[tuple[tuple[str, str], ...], Any] = {}
    lengths: list[int] = []
    dropped = 0
    for node in nodes:
        row = reading.row_text(node)
        dropped += row.dropped
        guards = guard_terms(node)
        document = documents.get(guards)
        if document is None:
            if len(documents) >= _DOCUMENTS:
                documents.clear()
            document = documents[guards] = _document(text, guards)
        text.setStringValue(row.text)
        writer.addDocument(document)
        lengths.append(row.length)
    if dropped:
        logger.info("words too long for a term were left out", extra={"action": "words_dropped", "words": dropped})
    return lengths


def _document(text: Any, guards: Iterable[tuple[str, str]]) -> Any:
    """A document that holds `text` and the guard terms: reused for every row that has the same ones."""
    java = jvm.java()
    document = java.Document()
    document.add(text)
    for name, value in guards:
        guard = java.StringField(name, value, java.FieldStore.NO)
        document.add(guard)
    return document
