"""The partitions that a shard holds open: loaded on demand, kept up with the store, dropped when no longer asked for."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from cluster.errors import DeadlineError, RaycallError, ShardError, UnavailableError
from cluster.feed import NodeChanges
from cluster.model.manifest import Bucket, Manifest
from cluster.model.nodes import Node
from cluster.model.query import LegAnswer, LexicalQuery, PartitionFailure, Pins, VectorQuery
from cluster.placement import bucket_of, shard_of
from cluster.storage import GenerationStore

log = logging.getLogger(__name__)

#: Generations of one project that a shard keeps open: the served one and the one before, whose last queries may still come.
KEPT_GENERATIONS = 2
#: Seconds until a partition that could not be opened is tried again, and until one that could not follow the store is.
RETRY_S = 10.0
FOLLOW_RETRY_S = 1.0
#: Nodes that are replayed at once while questions wait.
PIECE = 32
#: Seconds after the last question to the older generation from which on it is kept up no more, until somebody asks again.
IDLE_S = 60.0


class Closable(Protocol):
    """What holds something that must be given back."""

    def close(self) -> None: ...


class Partition(Closable, Protocol):
    """What a partition is, to its holder."""

    def apply(self, changes: Mapping[str, Node | None]) -> None: ...
    def settle(self) -> None: ...


P = TypeVar("P", bound=Partition)

#: Opens one partition: folder of the bucket, its manifest entry, its generation's manifest. Raises RaycallError.
Opener = Callable[[Path, Bucket, Manifest], P]
#: What changed after a revision, page by page, of the nodes whose id is wanted: see `cluster.feed.Feed`.
Follow = Callable[[int, Callable[[str], bool]], Iterable[NodeChanges]]


@dataclass(slots=True, eq=False)
class _Slot(Generic[P]):
    """One bucket of a generation that this shard is to hold."""

    #: "project/bucket"
    name: str
    manifest: Manifest
    #: The bucket's place in the manifest, which is what an id is hashed to.
    number: int
    partition: P | None = None
    #: The store's revision that the partition shows.
    revision: int = 0
    #: Why it cannot answer; tried again at `retry_at`, on the holder's clock.
    failure: PartitionFailure | None = None
    retry_at: float = 0.0


@dataclass(slots=True)
class _Generation(Generic[P]):
    slots: tuple[_Slot[P], ...]
    #: Why not even its manifest could be read.
    failure: PartitionFailure | None = None
    retry_at: float = 0.0
    asked_at: float = field(default=0.0)


class PartitionHolder(Generic[P]):
    """Opens and keeps the partitions of the pinned generations that placement gives to `shard`.

    A partition shows its generation's rows as changed by all that was written since: it is opened, then everything after the
    generation's watermark is replayed, and only then it answers. `catch_up` keeps it so. One that cannot be opened, or not be
    brought up to a revision that is known to exist, is a failure of its own, and the rest answer; it is tried again after
    RETRY_S: a machine that was short of memory or files for a moment must not lose it for good.
    """

    def __init__(
        self,
        generations: GenerationStore,
        shard: str,
        shards: Sequence[str],
        opener: Opener[P],
        follow: Follow,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._generations = generations
        self._shard = shard
        self._shards = tuple(shards)
        self._opener = opener
        self._follow = follow
        self._held: dict[str, OrderedDict[str, _Generation[P]]] = {}
        #: The generations that are made ready piece by piece, and by which pins.
        self._preparing: tuple[Pins, Generator[None, None, None]] | None = None
        #: The newest revision that a caller knew of: no partition behind it may answer.
        self._wanted = 0

    def held(self, pins: Pins) -> tuple[list[tuple[str, P]], list[PartitionFailure]]:
        """The partitions of the pinned generations as ("project/bucket", partition), and what of them cannot answer."""
        generations = [self._generation(project, generation) for project, generation in pins.items()]
        slots = [slot for generation in generations for slot in generation.slots]
        self._bring_up(slots)
        partitions = [(slot.name, slot.partition) for slot in slots if slot.partition is not None and slot.failure is None]
        failures = [generation.failure for generation in generations if generation.failure is not None]
        failures += [slot.failure for slot in slots if slot.failure is not None]
        return partitions, failures

    def prepare(self, pins: Pins) -> list[PartitionFailure]:
        """Makes the pinned generations ready for questions; returns what of them cannot answer."""
        self.held(pins)
        self._settle(slot for project, generation in pins.items() for slot in self._generation(project, generation).slots)
        return self.held(pins)[1]

    def prepare_some(self, pins: Pins, seconds: float) -> list[PartitionFailure] | None:
        """`prepare` in pieces of about `seconds`, so that questions to other generations are answered in between.

        None: there is more to do, call again. One set of pins at a time; others end the one before.
        """
        until = self._clock() + seconds
        if self._preparing is None or self._preparing[0] != pins:
            self._forget_preparing()
            self._preparing = (dict(pins), self._steps(pins))
        for _ in self._preparing[1]:
            if self._clock() >= until:
                return None
        self._preparing = None
        return self.prepare(pins)

    def catch_up(self, revision: int) -> list[PartitionFailure]:
        """Makes everything that was written up to `revision` part of all answers from now on; returns what could not follow.

        The generation of each project that was asked last follows now, the other one when it is asked again.
        """
        self._wanted = max(self._wanted, revision)
        since = self._clock() - IDLE_S
        slots: list[_Slot[P]] = []
        for opened in self._held.values():
            *older, newest = opened.values()
            for generation in (newest, *(known for known in older if known.asked_at >= since)):
                slots.extend(generation.slots)
        self._bring_up(slots)
        self._settle(slots)
        return [slot.failure for slot in slots if slot.failure is not None]

    def close(self) -> None:
        """Closes everything."""
        self._forget_preparing()
        for opened in self._held.values():
            for generation in opened.values():
                _close(generation)
        self._held.clear()

    def _generation(self, project: str, generation: str) -> _Generation[P]:
        opened = self._held.setdefault(project, OrderedDict())
        known = opened.get(generation)
        if known is None or (known.failure is not None and self._clock() >= known.retry_at):
            known = opened[generation] = self._read(project, generation)
        return self._used(project, generation)

    def _used(self, project: str, generation: str) -> _Generation[P]:
        opened = self._held[project]
        opened.move_to_end(generation)
        opened[generation].asked_at = self._clock()
        while len(opened) > KEPT_GENERATIONS:
            _close(opened.popitem(last=False)[1])
        return opened[generation]

    def _steps(self, pins: Pins) -> Generator[None, None, None]:
        """Opens and replays what of `pins` is not held yet, and holds it when it is whole. A step is a bucket or a PIECE.

        Nobody else knows of it before: catching up would replay all that is left of it at once.
        """
        for project, generation in pins.items():
            if generation in self._held.get(project, ()):
                continue
            fresh = self._read(project, generation)
            try:
                for slot in fresh.slots:
                    self._try(slot, self._open, slot)
                    yield
                    yield from self._replay_in_pieces(slot)
            except GeneratorExit:
                _close(fresh)
                raise
            self._held.setdefault(project, OrderedDict())[generation] = fresh
            self._used(project, generation)

    def _replay_in_pieces(self, slot: _Slot[P]) -> Iterator[None]:
        count = len(slot.manifest.buckets)
        try:
            for page in self._follow(slot.revision, lambda node_id: bucket_of(node_id, count) == slot.number):
                ((_, mine),) = _shares([slot], [count], page)
                changes = list(mine.items())
                for start in range(0, len(changes), PIECE):
                    if slot.partition is None:
                        return
                    self._try(slot, slot.partition.apply, dict(changes[start : start + PIECE]))
                    yield
                slot.revision = page.revision
        except Exception as error:
            self._failed(slot, error, FOLLOW_RETRY_S)

    def _forget_preparing(self) -> None:
        if self._preparing is not None:
            # It closes what it has opened.
            self._preparing[1].close()
            self._preparing = None

    def _read(self, project: str, generation: str) -> _Generation[P]:
        try:
            manifest = self._generations.manifest(project, generation)
        except RaycallError as error:
            failure = partition_failure(f"{project}/*", {project: generation}, error)
            return _Generation((), failure, self._clock() + RETRY_S)
        return _Generation(
            tuple(
                _Slot(f"{project}/{bucket.name}", manifest, number)
                for number, bucket in enumerate(manifest.buckets)
                if shard_of(project, bucket.name, self._shards) == self._shard
            )
        )

    def _bring_up(self, slots: Iterable[_Slot[P]]) -> None:
        """Opens what is closed, and follows the store with what is behind it."""
        now = self._clock()
        behind = [
            slot
            for slot in slots
            if (slot.partition is None or slot.revision < self._wanted or slot.failure is not None) and now >= slot.retry_at
        ]
        for slot in behind:
            slot.failure = None
            if slot.partition is None:
                self._try(slot, self._open, slot)
        usable = [slot for slot in behind if slot.partition is not None]
        if usable:
            self._replay(usable)
        for slot in usable:
            if slot.failure is None and slot.revision < self._wanted:
                error = UnavailableError(f"the store does not show revision {self._wanted} yet")
                self._failed(slot, error, FOLLOW_RETRY_S)

    def _settle(self, slots: Iterable[_Slot[P]]) -> None:
        for slot in slots:
            if slot.partition is not None and slot.failure is None:
                self._try(slot, slot.partition.settle)

    def _open(self, slot: _Slot[P]) -> None:
        manifest, bucket = slot.manifest, slot.manifest.buckets[slot.number]
        folder = self._generations.folder(manifest.project, manifest.generation)
        slot.partition = self._opener(folder / bucket.name, bucket, manifest)
        slot.revision = manifest.watermark

    def _replay(self, slots: Sequence[_Slot[P]]) -> None:
        numbers: dict[int, set[int]] = {}
        for slot in slots:
            numbers.setdefault(len(slot.manifest.buckets), set()).add(slot.number)
        since = min(slot.revision for slot in slots)
        try:
            for page in self._follow(since, lambda node_id: any(bucket_of(node_id, n) in own for n, own in numbers.items())):
                for slot, mine in _shares(slots, numbers, page):
                    if slot.partition is not None and slot.revision < page.revision:
                        if mine:
                            self._try(slot, slot.partition.apply, mine)
                        slot.revision = page.revision
        except Exception as error:
            for slot in slots:
                self._failed(slot, error, FOLLOW_RETRY_S)

    def _try(self, slot: _Slot[P], step: Callable[..., None], *arguments: object) -> None:
        """Does `step`; a partition that fails in it shows nobody knows what, so it is closed, and opened anew later."""
        try:
            step(*arguments)
        except Exception as error:
            partition, slot.partition = slot.partition, None
            self._failed(slot, error, RETRY_S)
            if partition is not None:
                _close_one(partition, slot.name)

    def _failed(self, slot: _Slot[P], error: Exception, retry_s: float) -> None:
        slot.failure = partition_failure(slot.name, {slot.manifest.project: slot.manifest.generation}, error)
        slot.retry_at = self._clock() + retry_s


def _shares(
    slots: Sequence[_Slot[P]], counts: Iterable[int], page: NodeChanges
) -> Iterable[tuple[_Slot[P], dict[str, Node | None]]]:
    """Each slot with the changes of `page` that are its own: by bucket, and another project's node is none of its own."""
    by_bucket: dict[tuple[int, int], list[str]] = {}
    for count in counts:
        for node_id in page.nodes:
            by_bucket.setdefault((count, bucket_of(node_id, count)), []).append(node_id)
    for slot in slots:
        project = slot.manifest.project
        found = {node_id: page.nodes[node_id] for node_id in by_bucket.get((len(slot.manifest.buckets), slot.number), ())}
        yield slot, {key: node if node is not None and node.project == project else None for key, node in found.items()}


def _close(generation: _Generation[Any]) -> None:
    for slot in generation.slots:
        if slot.partition is not None:
            _close_one(slot.partition, slot.name)


def _close_one(partition: Partition, name: str) -> None:
    try:
        partition.close()
    except Exception as error:
        log.error("partition did not close", exc_info=error, extra={"action": "partition_close_failed", "partition": name})  # noqa: TRY400


class Bounded(Protocol):
    """A partition that says how full it is."""

    @property
    def over_bound(self) -> bool: ...
    @property
    def left_out(self) -> bool: ...


def bounds_of(partitions: Iterable[tuple[str, Bounded]]) -> dict[str, Any]:
    """The fields of a `LegAnswer` that say which projects hold too many changes."""
    found: dict[str, set[str]] = {"over_bound": set(), "left_out": set()}
    for name, partition in partitions:
        project = name.partition("/")[0]
        if partition.over_bound:
            found["over_bound"].add(project)
        if partition.left_out:
            found["left_out"].add(project)
    return {field_name: tuple(sorted(projects)) for field_name, projects in found.items()}


def is_late(query: LexicalQuery | VectorQuery, now_s: float) -> bool:
    """Whether nobody waits for the answer any more: the shard was busy. `now_s`: seconds since the epoch."""
    return query.until_ms is not None and 1000 * now_s >= query.until_ms


def late_answer(query: LexicalQuery | VectorQuery) -> LegAnswer:
    """The answer to a query that was not begun, for whoever may still hear it."""
    failures = tuple(
        PartitionFailure(project=project, generation=generation, bucket="*", code=DeadlineError.code, detail="it was too late")
        for project, generation in query.pins.items()
    )
    return LegAnswer(ids=(), scores=np.zeros(0), asked=len(failures), failures=failures)


def partition_failure(name: str, pins: Pins, error: Exception) -> PartitionFailure:
    """A failure as data, for the partition "project/bucket". The log has the details: a caller is told nothing of what a
    foreign exception says."""
    log.error("partition failed", exc_info=error, extra={"action": "partition_failed", "partition": name})
    known = error if isinstance(error, RaycallError) else ShardError("the partition could not be searched")
    project, _, bucket = name.partition("/")
    return PartitionFailure(project=project, generation=pins[project], bucket=bucket, code=known.code, detail=known.detail)
