"""A vector shard: the FAISS side of the partitions placed on it. A plain class; `actors.remote` makes an actor of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from actors.merge import merge_hits
from actors.partitions import Closable, PartitionHolder, bounds_of, partition_failure
from cluster.errors import IntegrityError
from cluster.guards import signature
from cluster.model.guard import Guard
from cluster.model.manifest import VectorIdentity
from cluster.model.query import LegAnswer, PartitionFailure, Pins, VectorQuery


class VectorPartition(Protocol):
    """What a vector shard needs of a partition."""

    @property
    def identity(self) -> VectorIdentity: ...
    def search(
        self, queries: npt.NDArray[np.float32], guard: Guard, k: int, floors: Sequence[float]
    ) -> list[tuple[list[str], npt.NDArray[np.float64]]]: ...
    @property
    def over_bound(self) -> bool: ...
    @property
    def left_out(self) -> bool: ...
    def close(self) -> None: ...


class VectorShard:
    """Answers vector questions over the partitions that it holds."""

    def __init__(self, partitions: PartitionHolder[Any], resources: Sequence[Closable] = ()) -> None:
        self._partitions = partitions
        self._resources = tuple(resources)

    def prepare(self, pins: Pins) -> tuple[PartitionFailure, ...]:
        """Opens the pinned generations ahead of the first question; returns what of them could not be opened."""
        return tuple(self._partitions.prepare(pins))

    def catch_up(self, revision: int) -> tuple[PartitionFailure, ...]:
        """See `PartitionHolder.catch_up`. Rows that waited for their vectors get those that are there now."""
        return tuple(self._partitions.catch_up(revision))

    def search(self, queries: Sequence[VectorQuery]) -> list[LegAnswer]:
        """One answer a query. Questions of one guard over one set of generations are scanned together."""
        answers: list[LegAnswer | None] = [None] * len(queries)
        groups: dict[tuple[object, ...], list[int]] = {}
        for place, query in enumerate(queries):
            key = (signature(query.guard), tuple(sorted(query.pins.items())), query.identity.key, query.k)
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
        partitions, failures = self._partitions.held(first.pins)
        vectors = np.stack([query.vector for query in queries])
        parts: list[list[list[tuple[str, float]]]] = [[] for _ in queries]
        #: The k-th best score so far of each query: what is below needs no id, and no place in the merge.
        floors = [-math.inf] * len(queries)
        best = [np.empty(0)] * len(queries)
        answered = 0
        for name, partition in partitions:
            try:
                found = self._scan(partition, vectors, first, floors)
            except Exception as error:
                failures.append(partition_failure(name, first.pins, error))
                continue
            answered += 1
            for place, (ids, scores) in enumerate(found):
                parts[place].append(list(zip(ids, scores.tolist(), strict=True)))
                best[place] = -np.sort(-np.concatenate([best[place], scores]))[: first.k]
                if len(best[place]) == first.k:
                    floors[place] = float(best[place][-1])
        bounds = bounds_of(partitions)
        return [replace(_answer(part, first.k, answered, failures), **bounds) for part in parts]

    def _scan(
        self, partition: VectorPartition, vectors: npt.NDArray[np.float32], query: VectorQuery, floors: Sequence[float]
    ) -> list[tuple[list[str], npt.NDArray[np.float64]]]:
        if partition.identity != query.identity:
            raise IntegrityError(f"the partition's vectors are {partition.identity.key}, the query's are {query.identity.key}")
        return partition.search(vectors, query.guard, query.k, floors)


def _answer(parts: list[list[tuple[str, float]]], k: int, answered: int, failures: list[PartitionFailure]) -> LegAnswer:
    hits = merge_hits(parts, k)
    return LegAnswer(
        ids=tuple(node_id for node_id, _ in hits),
        scores=np.array([score for _, score in hits], dtype=np.float64),
        asked=answered + len(failures),
        answered=answered,
        failures=tuple(failures),
    )
