"""A vector shard: the FAISS side of the partitions placed on it. A plain class; `actors.remote` makes an actor of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from actors.merge import merge_hits
from actors.near import Hits, Near, best_of, part_of, unsure
from actors.partitions import Closable, PartitionHolder, bounds_of, is_late, late_answer, partition_failure
from cluster.errors import IntegrityError
from cluster.model.guard import Guard
from cluster.model.manifest import VectorIdentity
from cluster.model.query import LegAnswer, PartitionFailure, Pins, VectorQuery


class VectorPartition(Protocol):
    """What a vector shard needs of a partition."""

    @property
    def identity(self) -> VectorIdentity: ...
    def search(self, queries: npt.NDArray[np.float32], guard: Guard, k: int) -> Near: ...
    def ids(self, rows: npt.NDArray[np.int64]) -> list[str]: ...
    @property
    def over_bound(self) -> bool: ...
    @property
    def left_out(self) -> bool: ...
    def close(self) -> None: ...


class _Asked(NamedTuple):
    """One partition and what it found."""

    name: str
    partition: VectorPartition
    near: Near


class VectorShard:
    """Answers vector questions over the partitions that it holds."""

    def __init__(
        self,
        partitions: PartitionHolder[Any],
        resources: Sequence[Closable] = (),
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._now_s = now_s
        self._partitions = partitions
        self._resources = tuple(resources)

    def prepare(self, pins: Pins) -> tuple[PartitionFailure, ...]:
        """Opens the pinned generations ahead of the first question; returns what of them could not be opened."""
        return tuple(self._partitions.prepare(pins))

    def prepare_some(self, pins: Pins, seconds: float) -> tuple[PartitionFailure, ...] | None:
        """`prepare` in pieces of about `seconds`; None: call again. See `PartitionHolder.prepare_some`."""
        return None if self._partitions.prepare_some(pins, seconds) is None else self.prepare(pins)

    def catch_up(self, revision: int) -> tuple[PartitionFailure, ...]:
        """See `PartitionHolder.catch_up`. Rows that waited for their vectors get those that are there now."""
        return tuple(self._partitions.catch_up(revision))

    def search(self, queries: Sequence[VectorQuery]) -> list[LegAnswer]:
        """One answer a query. Questions of one guard over one set of generations are scanned together; those that nobody waits
        for any more are not."""
        answers: list[LegAnswer | None] = [None] * len(queries)
        groups: dict[tuple[object, ...], list[int]] = {}
        now_s = self._now_s()
        for place, query in enumerate(queries):
            if is_late(query, now_s):
                answers[place] = late_answer(query)
                continue
            key = (query.guard, tuple(sorted(query.pins.items())), query.identity.key, query.k)
            groups.setdefault(key, []).append(place)
        for places in groups.values():
            for place, answer in zip(places, self._search_group([queries[place] for place in places]), strict=True):
                answers[place] = answer
        return [answer for answer in answers if answer is not None]

    def close(self) -> None:
        """Closes every partition, and what they were read from."""
        self._partitions.close()
        for resource in self._resources:
            resource.close()

    def _search_group(self, queries: Sequence[VectorQuery]) -> list[LegAnswer]:
        first = queries[0]
        vectors = np.stack([query.vector for query in queries])
        partitions, failures = self._partitions.held(first.pins)
        part = part_of(first.k, len(partitions))
        asked = self._asked(partitions, vectors, first, part, failures)
        if part < first.k:
            asked = self._completed(asked, vectors, first, failures)
        hits = _best(asked, len(queries), first.k)
        if len(first.pins) > 1 and any(len(set(ids)) < len(ids) for ids, _ in hits):
            # A node that moves is in two projects for a moment; the best of each partition by itself are enough then.
            asked = self._asked([(one.name, one.partition) for one in asked], vectors, first, first.k, failures)
            hits = _best_by_id(asked, len(queries), first.k)
        bounds = bounds_of(partitions)
        return [
            LegAnswer(
                ids=tuple(ids[: first.k]),
                scores=scores[: first.k],
                asked=len(asked) + len(failures),
                answered=len(asked),
                failures=tuple(failures),
                **bounds,
            )
            for ids, scores in hits
        ]

    def _asked(
        self,
        partitions: Sequence[tuple[str, VectorPartition]],
        vectors: npt.NDArray[np.float32],
        query: VectorQuery,
        k: int,
        failures: list[PartitionFailure],
    ) -> list[_Asked]:
        """The partitions that could be asked for `k` hits of each vector, under what else `query` says; adds to `failures`."""
        asked = []
        for name, partition in partitions:
            try:
                asked.append(_Asked(name, partition, _scan(partition, vectors, query, k)))
            except Exception as error:
                failures.append(partition_failure(name, query.pins, error))
        return asked

    def _completed(
        self, asked: list[_Asked], vectors: npt.NDArray[np.float32], query: VectorQuery, failures: list[PartitionFailure]
    ) -> list[_Asked]:
        """With all hits of those that were asked for too few. One that fails then makes room for the others' hits."""
        while asked:
            again = unsure([one.near for one in asked], query.k)
            if not any(queries.any() for queries in again):
                break
            fuller = []
            for one, queries in zip(asked, again, strict=True):
                if not queries.any():
                    fuller.append(one)
                    continue
                whole = self._asked([(one.name, one.partition)], vectors[queries], query, query.k, failures)
                fuller += [one._replace(near=one.near.completed(queries, found.near)) for found in whole]
            asked = fuller
        return asked


def _scan(partition: VectorPartition, vectors: npt.NDArray[np.float32], query: VectorQuery, k: int) -> Near:
    if partition.identity != query.identity:
        raise IntegrityError(f"the partition's vectors are {partition.identity.key}, the query's are {query.identity.key}")
    return partition.search(vectors, query.guard, k)


def _best(asked: Sequence[_Asked], queries: int, k: int) -> list[Hits]:
    if not asked:
        return [([], np.empty(0))] * queries
    return best_of([one.near for one in asked], [one.partition.ids for one in asked], k)


def _best_by_id(asked: Sequence[_Asked], queries: int, k: int) -> list[Hits]:
    """As `_best`, each id once: from all of each partition's own best."""
    lists = [_best([one], queries, k) for one in asked] or [_best([], queries, k)]
    merged = [merge_hits((zip(*hits, strict=True) for hits in each), k) for each in zip(*lists, strict=True)]
    return [([node_id for node_id, _ in hits], np.array([score for _, score in hits])) for hits in merged]
