"""The partitions that a shard holds open: loaded on demand, swapped whole, dropped when no longer asked for."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from cluster.errors import RaycallError, ShardError
from cluster.model.manifest import Bucket, Manifest
from cluster.model.query import PartitionFailure, Pins
from cluster.placement import shard_of
from cluster.storage import GenerationStore

log = logging.getLogger(__name__)

#: Generations of one project that a shard keeps open: the served one and the one before, whose last queries may still come.
KEPT_GENERATIONS = 2
#: Seconds until a partition that could not be opened is tried again.
RETRY_S = 10.0


class Closable(Protocol):
    """What a partition is, to its holder."""

    def close(self) -> None: ...


P = TypeVar("P", bound=Closable)

#: Opens one partition: folder of the bucket, its manifest entry, its generation's manifest. Raises RaycallError.
Opener = Callable[[Path, Bucket, Manifest], P]


@dataclass(frozen=True, slots=True)
class Held(Generic[P]):
    """One generation's partitions on this shard, and those that could not be opened."""

    partitions: tuple[tuple[str, P], ...]
    failures: tuple[PartitionFailure, ...]
    #: When failures are tried again, on the holder's clock.
    retry_at: float


class PartitionHolder(Generic[P]):
    """Opens and keeps the partitions of the pinned generations that placement gives to `shard`.

    A partition that cannot be opened is a failure of its own, and the rest answer. It is tried again after RETRY_S: a machine
    that was short of memory or files for a moment must not lose it for good.
    """

    def __init__(
        self,
        generations: GenerationStore,
        shard: str,
        shards: Sequence[str],
        opener: Opener[P],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._generations = generations
        self._shard = shard
        self._shards = tuple(shards)
        self._opener = opener
        self._held: dict[str, OrderedDict[str, Held[P]]] = {}

    def held(self, pins: Pins) -> tuple[list[tuple[str, P]], list[PartitionFailure]]:
        """The partitions of the pinned generations as ("project/bucket", partition), and what of them failed to open."""
        partitions: list[tuple[str, P]] = []
        failures: list[PartitionFailure] = []
        for project, generation in pins.items():
            held = self._generation(project, generation)
            partitions.extend(held.partitions)
            failures.extend(held.failures)
        return partitions, failures

    def _generation(self, project: str, generation: str) -> Held[P]:
        opened = self._held.setdefault(project, OrderedDict())
        known = opened.get(generation)
        if known is not None and not (known.failures and self._clock() >= known.retry_at):
            opened.move_to_end(generation)
            return known
        if known is not None:
            _close(known)
        held = self._open(project, generation)
        opened[generation] = held
        while len(opened) > KEPT_GENERATIONS:
            _close(opened.popitem(last=False)[1])
        return held

    def _open(self, project: str, generation: str) -> Held[P]:
        try:
            manifest = self._generations.manifest(project, generation)
        except RaycallError as error:
            return Held((), (partition_failure(f"{project}/*", {project: generation}, error),), self._clock() + RETRY_S)
        partitions = []
        failures = []
        folder = self._generations.folder(project, generation)
        for bucket in manifest.buckets:
            if shard_of(project, bucket.name, self._shards) != self._shard:
                continue
            try:
                partition = self._opener(folder / bucket.name, bucket, manifest)
                partitions.append((f"{project}/{bucket.name}", partition))
            except Exception as error:
                failures.append(partition_failure(f"{project}/{bucket.name}", {project: generation}, error))
        return Held(tuple(partitions), tuple(failures), self._clock() + RETRY_S)

    def close(self) -> None:
        """Closes everything."""
        for opened in self._held.values():
            for held in opened.values():
                _close(held)
        self._held.clear()


def _close(held: Held[Any]) -> None:
    for _name, partition in held.partitions:
        partition.close()


def partition_failure(name: str, pins: Pins, error: Exception) -> PartitionFailure:
    """A failure as data, for the partition "project/bucket". The log has the details: a caller is told nothing of what a
    foreign exception says."""
    log.error("partition failed", exc_info=error, extra={"action": "partition_failed", "partition": name})
    known = error if isinstance(error, RaycallError) else ShardError("the partition could not be searched")
    project, _, bucket = name.partition("/")
    return PartitionFailure(project=project, generation=pins[project], bucket=bucket, code=known.code, detail=known.detail)
