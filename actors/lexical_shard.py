"""A lexical shard: the Lucene side of the partitions placed on it. A plain class; `actors.remote` makes an actor of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from actors.merge import merge_hits
from actors.partitions import Closable, PartitionHolder, bounds_of, partition_failure
from cluster.index.analysis import countable_terms
from cluster.model.guard import All, Guard
from cluster.model.query import LegAnswer, LexicalQuery, PartitionFailure, Pins, Statistics, TermStatistics

log = logging.getLogger(__name__)

EVERYTHING = All(())


class LexicalPartition(Protocol):
    """What a lexical shard needs of a partition."""

    def statistics(self, terms: Sequence[str], guard: Guard) -> TermStatistics: ...
    def search(
        self, terms: Sequence[str], guard: Guard, statistics: TermStatistics, k: int
    ) -> tuple[list[str], npt.NDArray[np.float64], int]: ...
    @property
    def over_bound(self) -> bool: ...
    @property
    def left_out(self) -> bool: ...
    def close(self) -> None: ...


#: (distinct terms, statistics) -> the terms to search for, and those left out because there are too many.
ChooseTerms = Callable[[Sequence[str], TermStatistics], tuple[Sequence[str], Sequence[str]]]


class LexicalShard:
    """Answers lexical questions over the partitions that it holds, with the statistics of all addressed ones."""

    def __init__(
        self,
        partitions: PartitionHolder[Any],
        analyse: Callable[[str], Mapping[str, int]],
        choose_terms: ChooseTerms,
        resources: Sequence[Closable] = (),
    ) -> None:
        """`analyse` gives the distinct terms of a text in order, and how often each counts, 1 or more."""
        self._partitions = partitions
        self._analyse = analyse
        self._choose_terms = choose_terms
        self._resources = tuple(resources)

    def prepare(self, pins: Pins) -> tuple[PartitionFailure, ...]:
        """Opens the pinned generations ahead of the first question; returns what of them could not be opened.

        Asks each of them once: what a first question loads (classes, pages of files) is then no caller's wait.
        """
        self._search(LexicalQuery(text="warm up", guard=EVERYTHING, pins=pins, k=1))
        return tuple(self._partitions.prepare(pins))

    def catch_up(self, revision: int) -> tuple[PartitionFailure, ...]:
        """See `PartitionHolder.catch_up`."""
        return tuple(self._partitions.catch_up(revision))

    def statistics(self, queries: Sequence[LexicalQuery]) -> list[TermStatistics]:
        """This shard's part of each query's statistics; the caller adds the parts up and sends the sum with the search.

        A query that cannot be worked on gets zeros, and the others their own: its failure is told by `search`.
        """
        return [self._statistics_or_zeros(query) for query in queries]

    def search(self, queries: Sequence[LexicalQuery]) -> list[LegAnswer]:
        """One answer a query. A partition that fails is named in its answer, and the others' hits stand.

        For a query that cannot be worked on, that is every project that it asks; its batch goes on.
        """
        return [self._search_or_failures(query) for query in queries]

    def close(self) -> None:
        """Closes every partition, and what they were read from."""
        self._partitions.close()
        for resource in self._resources:
            resource.close()

    def _statistics_or_zeros(self, query: LexicalQuery) -> TermStatistics:
        try:
            return self._own_statistics(query, countable_terms(self._analyse(query.text))[0])[0]
        except Exception as error:
            log.error("query failed", exc_info=error, extra={"action": "query_failed"})  # noqa: TRY400
            return TermStatistics(documents=0, tokens=0, document_frequency={})

    def _search_or_failures(self, query: LexicalQuery) -> LegAnswer:
        try:
            return self._search(query)
        except Exception as error:
            failures = tuple(partition_failure(f"{project}/*", query.pins, error) for project in query.pins)
            return LegAnswer(ids=(), scores=np.zeros(0), asked=len(failures), failures=failures)

    def _own_statistics(
        self, query: LexicalQuery, terms: Sequence[str]
    ) -> tuple[TermStatistics, list[tuple[str, LexicalPartition]], list[PartitionFailure]]:
        """The sum over the partitions that could be asked, those partitions, and the failures of the rest."""
        held, failures = self._partitions.held(query.pins)
        guard = query.guard if query.statistics_mode is Statistics.VISIBLE else EVERYTHING
        total = TermStatistics(documents=0, tokens=0, document_frequency=dict.fromkeys(terms, 0))
        usable = []
        for name, partition in held:
            try:
                total += partition.statistics(terms, guard)
                usable.append((name, partition))
            except Exception as error:
                failures.append(partition_failure(name, query.pins, error))
        return total, usable, failures

    def _search(self, query: LexicalQuery) -> LegAnswer:
        weights = self._analyse(query.text)
        terms, uncounted = countable_terms(weights)
        own, partitions, failures = self._own_statistics(query, terms)
        statistics = query.statistics or own
        chosen, cut = self._choose_terms(terms, statistics)
        weighted = [term for term in chosen for _ in range(weights[term])]
        parts: list[list[tuple[str, float]]] = []
        matched = 0
        for name, partition in partitions:
            try:
                ids, scores, count = partition.search(weighted, query.guard, statistics, query.k)
                parts.append(list(zip(ids, scores.tolist(), strict=True)))
                matched += count
            except Exception as error:
                failures.append(partition_failure(name, query.pins, error))
        hits = merge_hits(parts, query.k)
        return LegAnswer(
            ids=tuple(node_id for node_id, _ in hits),
            scores=np.array([score for _, score in hits], dtype=np.float64),
            matched=matched,
            asked=len(parts) + len(failures),
            answered=len(parts),
            failures=tuple(failures),
            **bounds_of(partitions),
            moved=query.own_statistics is not None and query.own_statistics != own,
            explain={
                "terms": {term: statistics.document_frequency.get(term, 0) for term in chosen},
                "terms_cut": uncounted + len(cut),
                "documents": statistics.documents,
                "tokens": statistics.tokens,
                "statistics": query.statistics_mode.value,
            },
        )
