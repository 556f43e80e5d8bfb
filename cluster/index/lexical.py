"""The lexical index of one bucket: built once, then opened and searched with a guard and with global statistics.

A row's number is its Lucene document number: one segment, no deletes. So a hit is a row, and everything else about it is read
from the bucket's rows, not from Lucene.

Scores are those of one index over all addressed partitions, restricted to the rows that the caller may read. Lucene computes
`idf * tf / (tf + k1 * (1 - b + b * dl / avgdl))` with this index's own statistics, so each term gets the boost
`idf_global / idf_local` and, with r = avgdl_local / avgdl_global,

    k1' = k1 * (1 - b) + k1 * b * r        b' = k1 * b * r / k1'

Lucene keeps lengths above 40 in one byte, rounded; as that happens alike in every partition it does not disturb the equality.

An index belongs to one thread (see `cluster.index.jvm`).
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cluster.errors import CorruptIndexError, IntegrityError
from cluster.guards import to_mask
from cluster.index import jvm
from cluster.index.analysis import Analysis, analysis
from cluster.index.lucene_query import (
    TEXT,
    frequencies_text,
    frequency_analyzer,
    guard_query,
    guard_terms,
    hits,
    idf,
    scored_query,
)
from cluster.index.term_counts import TermCounts, row_bits
from cluster.model.guard import Guard
from cluster.model.nodes import Node
from cluster.model.query import TermStatistics

logger = logging.getLogger(__name__)

#: Of the heap, for documents not yet written. More rows than fit make several segments, which are merged in order.
_BUILD_BUFFER_MB = 64.0
#: Combinations of guard columns whose Lucene document is kept for reuse during a build.
_DOCUMENTS = 1000
#: Guards that are remembered, and frequencies of terms: under all guards together, and without one. About 100 bytes each.
_SELECTIONS = 128
_FREQUENCIES = 50_000
_SIMILARITIES = 64
#: Threshold that makes a collector count every match.
_EXACTLY = 2**31 - 1

#: What `search` returns: rows int64 and scores float64, both of shape (hits,), and how many rows match at all.
Found = tuple[npt.NDArray[np.int64], npt.NDArray[np.float64], int]


def build_lexical(directory: Path, nodes: Iterable[Node], reading: Analysis | None = None) -> npt.NDArray[np.int32]:
    """Writes the index of `nodes`, one row each in their order, into `directory` and returns each row's length in terms.

    `reading` is how text is read, by default `analysis()`; `LexicalIndex` must be given the same. Whatever index was there is
    replaced. Everything is on disk (fsync) on return. The result has shape (rows,); a row without
    words has 0 and is never found. Raises IntegrityError if Lucene cannot write it, UnavailableError without a JVM.
    """
    java = jvm.java()
    reading = reading or analysis()
    directory.mkdir(parents=True, exist_ok=True)
    lengths: list[int] = []
    try:
        folder = _folder(directory)
        try:
            writer = _writer(folder, reading)
            try:
                lengths = _add_rows(writer, nodes, reading)
                writer.forceMerge(1)
                writer.commit()
            except BaseException:
                writer.rollback()
                raise
            writer.close()
        finally:
            folder.close()
    except java.Error as error:
        raise IntegrityError(f"the lexical index in {directory.name} could not be written: {error}") from error
    tokens = np.array(lengths, np.int32)
    _, reader = _opened(directory, tokens)
    _close(reader)
    return tokens


def _folder(directory: Path) -> Any:
    java = jvm.java()
    path = java.File(str(directory.absolute())).toPath()
    # One builder by design (a staging folder of its own), so no lock file is left in the artifact.
    return java.FSDirectory.open(path, java.NoLockFactory.INSTANCE)


def _writer(folder: Any, reading: Analysis) -> Any:
    java = jvm.java()
    analyzer, similarity = frequency_analyzer(), _similarity(reading.k1, reading.b)
    # This policy merges neighbours only, and this scheduler at once: rows stay in order however many segments were flushed.
    policy, scheduler = java.LogDocMergePolicy(), java.SerialMergeScheduler()
    config = java.IndexWriterConfig(analyzer)
    config.setSimilarity(similarity)
    config.setMergePolicy(policy)
    config.setMergeScheduler(scheduler)
    config.setRAMBufferSizeMB(_BUILD_BUFFER_MB)
    config.setUseCompoundFile(False)  # or the last merge would rewrite even a single segment
    config.setOpenMode(java.OpenMode.CREATE)
    return java.IndexWriter(folder, config)


def _similarity(k1: float, b: float) -> Any:
    return jvm.java().BM25Similarity(k1, b, False)


def _add_rows(writer: Any, nodes: Iterable[Node], reading: Analysis) -> list[int]:
    java = jvm.java()
    kind = java.FieldType()
    kind.setIndexOptions(java.IndexOptions.DOCS_AND_FREQS)
    kind.freeze()
    text = java.Field(TEXT, "", kind)
    documents: dict[tuple[tuple[str, str], ...], Any] = {}
    lengths: list[int] = []
    dropped = 0
    for node in nodes:
        terms = reading.row_terms(node)
        dropped += reading.dropped(node)
        guards = guard_terms(node)
        document = documents.get(guards)
        if document is None:
            if len(documents) >= _DOCUMENTS:
                documents.clear()
            document = documents[guards] = _document(text, guards)
        text.setStringValue(frequencies_text(terms))
        writer.addDocument(document)
        lengths.append(sum(terms.values()))
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


def _opened(directory: Path, tokens: npt.NDArray[np.int32]) -> tuple[Any, Any]:
    """(folder, reader), checked against the rows' lengths."""
    java = jvm.java()
    if not directory.is_dir():
        raise CorruptIndexError(f"there is no lexical index {directory.name}")
    try:
        folder = _folder(directory)
        reader = java.DirectoryReader.open(folder)
        found = (
            reader.maxDoc(),
            reader.numDocs(),
            reader.leaves().size(),
            reader.getDocCount(TEXT),
            reader.getSumTotalTermFreq(TEXT),
        )
    except java.Error as error:
        raise CorruptIndexError(f"the lexical index {directory.name} cannot be opened: {error}") from error
    rows = len(tokens)
    expected = (rows, rows, min(rows, 1), int((tokens > 0).sum()), int(tokens.sum(dtype=np.int64)))
    if found != expected:
        reader.close()
        folder.close()
        what = "rows, live rows, segments, rows with words, terms"
        raise CorruptIndexError(f"the lexical index {directory.name} holds {found} ({what}), its rows say {expected}")
    return folder, reader


@dataclass(slots=True)
class _Selection:
    """What one guard selects of an index."""

    #: Rows with at least one term, and the terms of all rows.
    documents: int
    tokens: int
    #: The filter query; None when every row that can match is selected.
    allowed: Any | None
    #: A bit for each row, set for those that are selected; None as above.
    bits: Any | None = None
    #: term -> selected rows that contain it.
    frequency: dict[str, int] = field(default_factory=dict)


class LexicalIndex:
    """One bucket's index, open for search."""

    def __init__(self, directory: Path, rows: pa.Table, reading: Analysis | None = None) -> None:
        """Opens what `build_lexical` wrote with `reading`. `rows` has the guard columns and "tokens" (int32), in row order.

        Raises CorruptIndexError when the files are not readable or do not belong to `rows`.
        """
        tokens = np.asarray(rows["tokens"].to_numpy(), np.int32)
        self._folder, self._reader = _opened(directory, tokens)
        java = jvm.java()
        # Guards and questions have their own bounds; Lucene's would count a guard with many projects as an attack.
        java.IndexSearcher.setMaxClauseCount(1 << 20)
        self._searcher = java.IndexSearcher(self._reader)
        self._counts = TermCounts(self._reader, len(tokens))
        self._rows = rows
        self._tokens = tokens
        self._reading = reading or analysis()
        self._selections: OrderedDict[Guard, _Selection] = OrderedDict()
        self._similarities: OrderedDict[tuple[float, float], Any] = OrderedDict()
        self._all = _Selection(int((tokens > 0).sum()), int(tokens.sum(dtype=np.int64)), None)

    @property
    def rows(self) -> int:
        """Rows of the index, with or without words."""
        return len(self._tokens)

    def statistics(self, terms: Sequence[str], guard: Guard) -> TermStatistics:
        """BM25's statistics over exactly the rows that `guard` selects, for `terms`."""
        selection = self._select(guard)
        try:
            # In order, for which the terms of an index are read fastest.
            frequency = {term: self._frequency(selection, term) for term in sorted(set(terms))}
            self._forget(selection)
        except jvm.java().Error as error:
            raise CorruptIndexError(f"the lexical index cannot be read: {error}") from error
        return TermStatistics(documents=selection.documents, tokens=selection.tokens, document_frequency=frequency)

    def search(self, terms: Sequence[str], guard: Guard, statistics: TermStatistics, k: int) -> Found:
        """The best `k` rows that `guard` selects and that contain any of `terms`, scored with the given statistics.

        `statistics` are the sum over all addressed partitions, this one among them. Order: score descending, row ascending. The
        count of matching rows is exact. `terms` are at most a few hundred (see `choose_terms`); one that is named twice counts
        twice.
        """
        selection = self._select(guard)
        try:
            boosts = self._boosts(terms, statistics)
            if not boosts or not selection.documents or k < 1:
                return np.empty(0, np.int64), np.empty(0, np.float64), 0
            return self._ranked(boosts, selection, statistics, k)
        except jvm.java().Error as error:
            raise CorruptIndexError(f"the lexical index cannot be read: {error}") from error

    def close(self) -> None:
        """Unmaps the files. The index is not usable afterwards."""
        self._selections.clear()
        _close(self._reader)
        _close(self._folder)

    def _select(self, guard: Guard) -> _Selection:
        known = self._selections.get(guard)
        if known is not None:
            self._selections.move_to_end(guard)
            return known
        mask: npt.NDArray[np.bool_] = to_mask(guard, self._rows).to_numpy(zero_copy_only=False)
        visible: npt.NDArray[np.int32] = self._tokens[mask]
        documents = int((visible > 0).sum())
        if documents == self._all.documents:
            return self._remember(guard, self._all)
        selection = _Selection(documents, int(visible.sum(dtype=np.int64)), None)
        if documents:
            selection.allowed, selection.bits = guard_query(guard), row_bits(mask)
        return self._remember(guard, selection)

    def _remember(self, guard: Guard, selection: _Selection) -> _Selection:
        self._selections[guard] = selection
        if len(self._selections) > _SELECTIONS:
            self._selections.popitem(last=False)
        return selection

    def _forget(self, used: _Selection) -> None:
        """Keeps the number of frequencies in bounds: guards that were not asked for lately go first, `used` last."""
        if len(self._all.frequency) > _FREQUENCIES:
            self._all.frequency.clear()
        kept = sum(len(known.frequency) for known in self._selections.values() if known is not self._all)
        for guard, known in list(self._selections.items()):
            if kept <= _FREQUENCIES:
                return
            if known is not self._all and known is not used:
                kept -= len(self._selections.pop(guard).frequency)
        if kept > _FREQUENCIES:
            used.frequency.clear()

    def _frequency(self, selection: _Selection, term: str) -> int:
        if term not in selection.frequency:
            selection.frequency[term] = self._count(selection, term)
        return selection.frequency[term]

    def _count(self, selection: _Selection, term: str) -> int:
        if selection is self._all:
            return self._counts.count(term)
        if not selection.documents:
            return 0
        return self._counts.count_within(term, selection.bits)

    def _boosts(self, terms: Sequence[str], statistics: TermStatistics) -> dict[str, float]:
        boosts: dict[str, float] = {}
        if not statistics.tokens:
            return boosts
        for term in terms:
            here = self._frequency(self._all, term)
            everywhere = statistics.document_frequency.get(term, 0)
            if here and everywhere:
                weight = idf(statistics.documents, everywhere) / idf(self._all.documents, here)
                boosts[term] = boosts.get(term, 0.0) + weight
        return boosts

    def _ranked(self, boosts: dict[str, float], selection: _Selection, statistics: TermStatistics, k: int) -> Found:
        self._score_with(statistics)
        query = scored_query(boosts, selection.allowed)
        collector = jvm.java().collector(min(k, self.rows), _EXACTLY)
        self._searcher.search(query, collector)
        matched = int(collector.getTotalHits())
        top_docs = collector.topDocs()
        rows, scores = hits(top_docs)
        return rows, scores, matched

    def _score_with(self, statistics: TermStatistics) -> None:
        ratio = (self._all.tokens / self._all.documents) / (statistics.tokens / statistics.documents)
        weight = self._reading.k1 * self._reading.b * ratio
        k1 = self._reading.k1 * (1 - self._reading.b) + weight
        key = k1, weight / k1
        similarity = self._similarities.get(key)
        if similarity is None:
            similarity = self._similarities[key] = _similarity(*key)
            if len(self._similarities) > _SIMILARITIES:
                self._similarities.popitem(last=False)
        self._searcher.setSimilarity(similarity)


def _close(resource: Any) -> None:
    java = jvm.java()
    try:
        resource.close()
    except java.Error as error:
        logger.warning("an index file could not be closed", extra={"action": "index_close_failed", "error": str(error)})
