"""Search over the rows of one open Lucene reader, of which some may be dead: what the index of a bucket and its delta share.

A row's number is its Lucene document number. A row dies when its node was updated or deleted; Lucene is not told, so that no
file changes, and everything here counts and finds living rows alone.

Scores are those of one index over all addressed partitions, restricted to the living rows that the caller may read. Lucene
computes `idf * tf / (tf + k1 * (1 - b + b * dl / avgdl))` with this reader's own statistics, the dead included, so each term
gets the boost `idf_global / idf_local` and, with r = avgdl_local / avgdl_global,

    k1' = k1 * (1 - b) + k1 * b * r        b' = k1 * b * r / k1'

Lucene keeps lengths above 40 in one byte, rounded; as that happens alike in every partition it does not disturb the equality.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cluster.errors import CorruptIndexError
from cluster.guards import to_mask
from cluster.index import jvm
from cluster.index.analysis import Analysis
from cluster.index.lexical_writer import similarity
from cluster.index.lucene_query import guard_query, hits, idf, scored_query
from cluster.index.term_counts import TermCounts, row_bits
from cluster.model.guard import Guard
from cluster.model.query import TermStatistics

#: Guards that are remembered, and frequencies of terms: under all guards together, and without one. About 100 bytes each.
_SELECTIONS = 128
_FREQUENCIES = 50_000
_SIMILARITIES = 64
#: Deaths from which on what a guard selects is worked out anew instead of being corrected row by row.
_MANY_DEATHS = 256
#: What Lucene may keep of guards' rows in all indexes of this process: sets of rows and their bytes, and how much more than the
#: question's terms a guard may match before it is not worth being kept.
_KEPT_FILTERS = 1000
_KEPT_FILTER_BYTES = 24 * 1024 * 1024
_KEPT_FILTER_FACTOR = 10.0
#: Hits asked for at first beyond twice as many as are wanted, where some may be hidden.
_HIDDEN_SLACK = 32
#: Threshold that makes a collector count every match.
_EXACTLY = 2**31 - 1

#: What `search` returns: rows int64 and scores float64, both of shape (hits,), and how many rows match at all.
Found = tuple[npt.NDArray[np.int64], npt.NDArray[np.float64], int]
Mask = npt.NDArray[np.bool_]


@cache
def _set_up_searchers() -> None:
    """What holds for all searchers of this process; a searcher takes the cache over when it is made."""
    java = jvm.java()
    # Guards and questions have their own bounds; Lucene's would count a guard with many projects as an attack.
    java.IndexSearcher.setMaxClauseCount(1 << 20)
    # By default Lucene keeps no filter of a segment below 10,000 rows: many small partitions would pay for a guard each time.
    nothing = java.Predicate.isEqual(None)
    always = nothing.negate()
    java.IndexSearcher.setDefaultQueryCache(java.LRUQueryCache(_KEPT_FILTERS, _KEPT_FILTER_BYTES, always, _KEPT_FILTER_FACTOR))


@dataclass(slots=True)
class _Selection:
    """What one guard selects of the living rows."""

    #: Rows with at least one term, and the terms of all rows.
    documents: int
    tokens: int
    #: The filter query, which knows nothing of deaths; None when every row that can match is selected, or `mask` serves.
    allowed: Any | None
    #: The same as an array; None where the filter query serves.
    mask: Mask | None
    #: A bit for each row, set for those that are selected; None when all rows are, and none is dead.
    bits: Any | None
    #: How many deaths the above takes into account.
    deaths: int
    #: term -> selected rows that contain it.
    frequency: dict[str, int] = field(default_factory=dict)


class LexicalSearcher:
    """The rows of an open reader. It belongs to one thread (see `cluster.index.jvm`)."""

    def __init__(
        self, reader: Any, rows: pa.Table, reading: Analysis, dead: Iterable[int] = (), *, few_rows: bool = False
    ) -> None:
        """`rows` has the guard columns and "tokens" (int32), in row order; `reading` is what the rows were written with.

        `few_rows`: a guard is no part of Lucene's query, which would be made ready for each segment anew; as many more hits are
        asked for as hidden rows match, and those are dropped. Faster as long as these are a few thousand at most.
        """
        java = jvm.java()
        _set_up_searchers()
        self._reader = reader
        self._searcher = java.IndexSearcher(reader)
        self._few_rows = few_rows
        self._rows = rows
        self._tokens: npt.NDArray[np.int32] = np.asarray(rows["tokens"].to_numpy(), np.int32)
        self._reading = reading
        self._counts = TermCounts(reader, len(self._tokens))
        self._similarities: OrderedDict[tuple[float, float], Any] = OrderedDict()
        #: As Lucene counts, the dead included.
        self._written_documents = int((self._tokens > 0).sum())
        self._written_tokens = int(self._tokens.sum(dtype=np.int64))
        self._written_frequency: dict[str, int] = {}
        self._alive: Mask = np.ones(len(self._tokens), np.bool_)
        self._dead_bits: Any = None
        #: Rows in the order in which they died.
        self._deaths: list[int] = []
        self.bury(dead)
        self._selections: OrderedDict[Guard, _Selection] = OrderedDict()
        self._all = self._selection_of(None)

    @property
    def rows(self) -> int:
        """Rows of the index, with or without words, dead or alive."""
        return len(self._tokens)

    def mask(self, guard: Guard) -> Mask:
        """The rows that `guard` allows, dead or alive: bool, shape (rows,)."""
        return np.asarray(to_mask(guard, self._rows).to_numpy(zero_copy_only=False), np.bool_)

    @property
    def reader(self) -> Any:
        """Lucene's reader of the rows."""
        return self._reader

    @property
    def tokens(self) -> npt.NDArray[np.int32]:
        """The length of each row in terms, shape (rows,)."""
        return self._tokens

    @property
    def reading(self) -> Analysis:
        """What the rows were written with."""
        return self._reading

    @property
    def deaths(self) -> Sequence[int]:
        """The dead rows, in the order in which they died."""
        return self._deaths

    def bury(self, rows: Iterable[int]) -> None:
        """Marks rows as dead: nothing finds or counts them from now on. Those that are dead already stay so."""
        fresh = [row for row in dict.fromkeys(rows) if self._alive[row]]
        self._alive[fresh] = False
        self._deaths += fresh
        self._dead_bits = None

    def statistics(self, terms: Sequence[str], guard: Guard) -> TermStatistics:
        """BM25's statistics over exactly the living rows that `guard` selects, for `terms`."""
        try:
            selection = self._select(guard)
            # In order, for which the terms of an index are read fastest.
            frequency = {term: self._frequency(selection, term) for term in sorted(set(terms))}
            self._forget(selection)
        except jvm.java().Error as error:
            raise CorruptIndexError(f"the lexical index cannot be read: {error}") from error
        return TermStatistics(documents=selection.documents, tokens=selection.tokens, document_frequency=frequency)

    def search(self, terms: Sequence[str], guard: Guard, statistics: TermStatistics, k: int) -> Found:
        """The best `k` living rows that `guard` selects and that contain any of `terms`, scored with the given statistics.

        `statistics` are the sum over all addressed partitions, this one among them. Order: score descending, row ascending. The
        count of matching rows is exact. `terms` are at most a few hundred (see `choose_terms`); one that is named twice counts
        twice.
        """
        try:
            selection = self._select(guard)
            boosts = self._boosts(terms, statistics)
            if not boosts or not selection.documents or k < 1:
                return np.empty(0, np.int64), np.empty(0, np.float64), 0
            if selection.mask is None and not self._deaths:
                return self._ranked(boosts, selection, statistics, k)
            return self._ranked_visible(boosts, selection, statistics, k)
        except jvm.java().Error as error:
            raise CorruptIndexError(f"the lexical index cannot be read: {error}") from error

    # --- what a guard selects ---

    def _select(self, guard: Guard) -> _Selection:
        if len(self._deaths) - self._all.deaths > _MANY_DEATHS:
            self._all = self._selection_of(None)
        self._take_out_dead(self._all)
        known = self._selections.get(guard)
        if known is not None and len(self._deaths) - known.deaths <= _MANY_DEATHS:
            self._selections.move_to_end(guard)
            self._take_out_dead(known)
            return known
        selection = self._selection_of(guard)
        return self._remember(guard, self._all if selection.documents == self._all.documents else selection)

    def _selection_of(self, guard: Guard | None) -> _Selection:
        """Worked out from the rows. None stands for the guard that allows all."""
        mask = self._alive if guard is None else self._alive & self.mask(guard)
        visible: npt.NDArray[np.int32] = self._tokens[mask]
        documents = int((visible > 0).sum())
        return _Selection(
            documents=documents,
            tokens=int(visible.sum(dtype=np.int64)),
            allowed=None if guard is None or self._few_rows else guard_query(guard),
            mask=None if guard is None or not self._few_rows else mask,
            bits=None if guard is None and not self._deaths else row_bits(mask),
            deaths=len(self._deaths),
        )

    def _take_out_dead(self, selection: _Selection) -> None:
        """Corrects `selection` by the rows that died since it was made."""
        news = self._deaths[selection.deaths :]
        if not news:
            return
        if selection.bits is None:
            selection.bits = row_bits(np.ones(self.rows, np.bool_))
        selected = [row for row in news if selection.bits.get(row)]
        for row in selected:
            selection.bits.clear(row, row + 1)
        lost = self._tokens[selected]
        selection.documents -= int((lost > 0).sum())
        selection.tokens -= int(lost.sum(dtype=np.int64))
        selection.deaths = len(self._deaths)
        if selected:
            selection.frequency.clear()

    def _remember(self, guard: Guard, selection: _Selection) -> _Selection:
        self._selections[guard] = selection
        self._selections.move_to_end(guard)
        if len(self._selections) > _SELECTIONS:
            self._selections.popitem(last=False)
        return selection

    def _forget(self, used: _Selection) -> None:
        """Keeps the number of frequencies in bounds: guards that were not asked for lately go first, `used` last."""
        for frequency in (self._all.frequency, self._written_frequency):
            if len(frequency) > _FREQUENCIES:
                frequency.clear()
        kept = sum(len(known.frequency) for known in self._selections.values() if known is not self._all)
        for guard, known in list(self._selections.items()):
            if kept <= _FREQUENCIES:
                return
            if known is not self._all and known is not used:
                kept -= len(self._selections.pop(guard).frequency)
        if kept > _FREQUENCIES:
            used.frequency.clear()

    # --- statistics ---

    def _frequency(self, selection: _Selection, term: str) -> int:
        if term not in selection.frequency:
            selection.frequency[term] = self._count(selection, term)
        return selection.frequency[term]

    def _count(self, selection: _Selection, term: str) -> int:
        if not selection.documents:
            return 0
        if selection.bits is None:
            return self._written(term)
        return self._counts.count_within(term, selection.bits)

    def _written(self, term: str) -> int:
        if term not in self._written_frequency:
            self._written_frequency[term] = self._counts.count(term)
        return self._written_frequency[term]

    def _boosts(self, terms: Sequence[str], statistics: TermStatistics) -> dict[str, float]:
        boosts: dict[str, float] = {}
        if not statistics.tokens:
            return boosts
        for term in terms:
            here = self._written(term)
            everywhere = statistics.document_frequency.get(term, 0)
            if here and everywhere:
                weight = idf(statistics.documents, everywhere) / idf(self._written_documents, here)
                boosts[term] = boosts.get(term, 0.0) + weight
        return boosts

    # --- ranking ---

    def _ranked(self, boosts: dict[str, float], selection: _Selection, statistics: TermStatistics, k: int) -> Found:
        self._score_with(statistics)
        query = scored_query(boosts, selection.allowed)
        collector = jvm.java().collector(min(k, self.rows), _EXACTLY)
        self._searcher.search(query, collector)
        matched = int(collector.getTotalHits())
        top_docs = collector.topDocs()
        rows, scores = hits(top_docs)
        return rows, scores, matched

    def _ranked_visible(self, boosts: dict[str, float], selection: _Selection, statistics: TermStatistics, k: int) -> Found:
        """As `_ranked`, for more, of which the rows that are dead or hidden by `mask` are dropped.

        At most as many more as Lucene finds such rows; at first for a part of them, since seldom all are among the best.
        """
        matched = self._counts.gather(sorted(boosts), selection.bits)
        if not matched:
            return np.empty(0, np.int64), np.empty(0, np.float64), 0
        if selection.mask is not None:
            others = self._counts.gathered - matched
        else:
            if self._dead_bits is None:
                self._dead_bits = row_bits(~self._alive)
            others = self._counts.gathered_within(self._dead_bits)
        for more in (min(others, k + _HIDDEN_SLACK), others):
            rows, scores, _ = self._ranked(boosts, selection, statistics, k + more)
            visible = self._alive[rows] if selection.mask is None else self._alive[rows] & selection.mask[rows]
            rows, scores = rows[visible][:k], scores[visible][:k]
            if len(rows) == min(k, matched):
                break
        return rows, scores, matched

    def _score_with(self, statistics: TermStatistics) -> None:
        ratio = (self._written_tokens / self._written_documents) / (statistics.tokens / statistics.documents)
        weight = self._reading.k1 * self._reading.b * ratio
        k1 = self._reading.k1 * (1 - self._reading.b) + weight
        key = k1, weight / k1
        bm25 = self._similarities.get(key)
        if bm25 is None:
            bm25 = self._similarities[key] = similarity(*key)
            if len(self._similarities) > _SIMILARITIES:
                self._similarities.popitem(last=False)
        self._searcher.setSimilarity(bm25)
