"""A lexical shard: the Lucene side of the partitions placed on it. A plain class; `actors.remote` makes an actor of it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from actors.merge import merge_hits
from actors.partitions import Closable, PartitionHolder, bounds_of, is_late, late_answer, partition_failure
from cluster.index.analysis import countable_terms
from cluster.model.guard import All, Guard
from cluster.model.query import LegAnswer, LexicalQuery, PartitionFailure, Pins, Statistics, TermStatistics

log = logging.getLogger(__name__)

EVERYTHING = All(())


class Searchable(Protocol):
    """Rows that can be asked: a partition's, or those of several together."""

    def statistics(self, terms: Sequence[str], guard: Guard) -> TermStatistics: ...
    def search(
        self, terms: Sequence[str], guard: Guard, statistics: TermStatistics, k: int
    ) -> tuple[list[str], npt.NDArray[np.float64], int]: ...


class LexicalPartition(Searchable, Protocol):
    """What a lexical shard needs of a partition."""

    @property
    def over_bound(self) -> bool: ...
    @property
    def left_out(self) -> bool: ...
    def close(self) -> None: ...


#: Two partitions or more -> what answers for all of them.
Group = Callable[[Sequence[Any]], Searchable]
#: (distinct terms, statistics) -> the terms to search for, and those left out because there are too many.
ChooseTerms = Callable[[Sequence[str], TermStatistics], tuple[Sequence[str], Sequence[str]]]


class Asked(NamedTuple):
    """What asking the partitions came to."""

    #: Over this shard's partitions, and over all that the question addresses.
    own: TermStatistics
    statistics: TermStatistics
    #: Terms that were searched for, and how many were not.
    chosen: Sequence[str]
    cut: int
    found: Sequence[tuple[list[str], npt.NDArray[np.float64], int]]
    answered: Sequence[tuple[str, LexicalPartition]]
    failures: Sequence[PartitionFailure]


class LexicalShard:
    """Answers lexical questions over the partitions that it holds, with the statistics of all addressed ones."""

    def __init__(
        self,
        partitions: PartitionHolder[Any],
        analyse: Callable[[str], Mapping[str, int]],
        choose_terms: ChooseTerms,
        resources: Sequence[Closable] = (),
        group: Group | None = None,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        """`analyse` gives the distinct terms of a text in order, and how often each counts, 1 or more; `group` makes one of
        several partitions, where they can be asked together."""
        self._partitions = partitions
        self._analyse = analyse
        self._choose_terms = choose_terms
        self._resources = tuple(resources)
        self._group = group
        self._now_s = now_s

    def prepare(self, pins: Pins) -> tuple[PartitionFailure, ...]:
        """Opens the pinned generations ahead of the first question; returns what of them could not be opened.

        Asks each of them once: what a first question loads (classes, pages of files) is then no caller's wait.
        """
        self._search(LexicalQuery(text="warm up", guard=EVERYTHING, pins=pins, k=1))
        return tuple(self._partitions.prepare(pins))

    def prepare_some(self, pins: Pins, seconds: float) -> tuple[PartitionFailure, ...] | None:
        """`prepare` in pieces of about `seconds`; None: call again. See `PartitionHolder.prepare_some`."""
        return None if self._partitions.prepare_some(pins, seconds) is None else self.prepare(pins)

    def catch_up(self, revision: int) -> tuple[PartitionFailure, ...]:
        """See `PartitionHolder.catch_up`."""
        return tuple(self._partitions.catch_up(revision))

    def statistics(self, queries: Sequence[LexicalQuery]) -> list[TermStatistics]:
        """This shard's part of each query's statistics; the caller adds the parts up and sends the sum with the search.

        A query that cannot be worked on, or is late, gets zeros, and the others their own: its failure is told by `search`.
        """
        return [self._statistics_or_zeros(query) for query in queries]

    def search(self, queries: Sequence[LexicalQuery]) -> list[LegAnswer]:
        """One answer a query. A partition that fails is named in its answer, and the others' hits stand.

        For a query that cannot be worked on, or that nobody waits for any more, that is every project that it asks; its batch
        goes on.
        """
        return [self._search_or_failures(query) for query in queries]

    def close(self) -> None:
        """Closes every partition, and what they were read from."""
        self._partitions.close()
        for resource in self._resources:
            resource.close()

    def _statistics_or_zeros(self, query: LexicalQuery) -> TermStatistics:
        if is_late(query, self._now_s()):
            return TermStatistics(documents=0, tokens=0, document_frequency={})
        try:
            terms = countable_terms(self._analyse(query.text))[0]
            group = self._grouped(self._partitions.held(query.pins)[0])
            return self._own_statistics(query, terms)[0] if group is None else group.statistics(terms, _counted(query))
        except Exception as error:
            log.error("query failed", exc_info=error, extra={"action": "query_failed"})  # noqa: TRY400
            return TermStatistics(documents=0, tokens=0, document_frequency={})

    def _search_or_failures(self, query: LexicalQuery) -> LegAnswer:
        if is_late(query, self._now_s()):
            return late_answer(query)
        try:
            return self._search(query)
        except Exception as error:
            failures = tuple(partition_failure(f"{project}/*", query.pins, error) for project in query.pins)
            return LegAnswer(ids=(), scores=np.zeros(0), asked=len(failures), failures=failures)

    def _grouped(self, held: Sequence[tuple[str, LexicalPartition]]) -> Searchable | None:
        """All of `held` as one; None where there is nothing to gain, or they cannot be opened together."""
        if self._group is None or len(held) < 2:
            return None
        try:
            return self._group([partition for _, partition in held])
        except Exception as error:
            # Each by itself, they show which one it is.
            log.error("partitions cannot be asked together", exc_info=error, extra={"action": "group_failed"})  # noqa: TRY400
            return None

    def _together(self, query: LexicalQuery, terms: Sequence[str], weights: Mapping[str, int]) -> Asked | None:
        """All partitions asked as one; None when they are not, or when one fails: then each is asked by itself."""
        held, failures = self._partitions.held(query.pins)
        group = self._grouped(held)
        if group is None:
            return None
        try:
            own = group.statistics(terms, _counted(query))
            statistics = query.statistics or own
            chosen, cut = self._choose_terms(terms, statistics)
            found = group.search(_weighted(chosen, weights), query.guard, statistics, query.k)
        except Exception as error:
            log.error("partitions failed together", exc_info=error, extra={"action": "group_failed"})  # noqa: TRY400
            return None
        return Asked(own, statistics, chosen, len(cut), [found], held, failures)

    def _own_statistics(
        self, query: LexicalQuery, terms: Sequence[str]
    ) -> tuple[TermStatistics, list[tuple[str, LexicalPartition]], list[PartitionFailure]]:
        """The sum over the partitions that could be asked, those partitions, and the failures of the rest."""
        held, failures = self._partitions.held(query.pins)
        guard = _counted(query)
        total = TermStatistics(documents=0, tokens=0, document_frequency=dict.fromkeys(terms, 0))
        usable = []
        for name, partition in held:
            try:
                total += partition.statistics(terms, guard)
                usable.append((name, partition))
            except Exception as error:
                failures.append(partition_failure(name, query.pins, error))
        return total, usable, failures

    def _one_by_one(self, query: LexicalQuery, terms: Sequence[str], weights: Mapping[str, int]) -> Asked:
        own, partitions, failures = self._own_statistics(query, terms)
        statistics = query.statistics or own
        chosen, cut = self._choose_terms(terms, statistics)
        weighted = _weighted(chosen, weights)
        found, answered = [], []
        for name, partition in partitions:
            try:
                found.append(partition.search(weighted, query.guard, statistics, query.k))
                answered.append((name, partition))
            except Exception as error:
                failures.append(partition_failure(name, query.pins, error))
        return Asked(own, statistics, chosen, len(cut), found, answered, failures)

    def _search(self, query: LexicalQuery) -> LegAnswer:
        weights = self._analyse(query.text)
        terms, uncounted = countable_terms(weights)
        asked = self._together(query, terms, weights) or self._one_by_one(query, terms, weights)
        statistics = asked.statistics
        hits = merge_hits((zip(ids, scores.tolist(), strict=True) for ids, scores, _ in asked.found), query.k)
        return LegAnswer(
            ids=tuple(node_id for node_id, _ in hits),
            scores=np.array([score for _, score in hits], dtype=np.float64),
            matched=sum(count for _, _, count in asked.found),
            asked=len(asked.answered) + len(asked.failures),
            answered=len(asked.answered),
            failures=tuple(asked.failures),
            **bounds_of(asked.answered),
            moved=query.own_statistics is not None and query.own_statistics != asked.own,
            explain={
                "terms": {term: statistics.document_frequency.get(term, 0) for term in asked.chosen},
                "terms_cut": uncounted + asked.cut,
                "documents": statistics.documents,
                "tokens": statistics.tokens,
                "statistics": query.statistics_mode.value,
            },
        )


def _counted(query: LexicalQuery) -> Guard:
    """The guard of the rows that statistics are taken over."""
    return query.guard if query.statistics_mode is Statistics.VISIBLE else EVERYTHING


def _weighted(chosen: Sequence[str], weights: Mapping[str, int]) -> list[str]:
    return [term for term in chosen for _ in range(weights[term])]
