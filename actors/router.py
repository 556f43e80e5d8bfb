"""The router: which generations are served, and scatter and gather over the shards that hold them. No Ray in here."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from types import MappingProxyType
from typing import Protocol, TypeAlias

import numpy as np

from actors.closed import ClosedPart, closed_parts
from actors.merge import merge_answers
from actors.partitions import KEPT_GENERATIONS
from actors.replicas import Client, Failures, ReplicaReport, ReplicaSet, RouterSettings
from cluster.checks import ADVICE
from cluster.errors import (
    AnalyzerError,
    DeadlineError,
    OverloadedError,
    RaycallError,
    ShardError,
    UnavailableError,
    UnreadableIndexError,
)
from cluster.model.manifest import Manifest
from cluster.model.query import LegAnswer, LexicalQuery, PartitionFailure, Pins, TermStatistics, VectorQuery
from cluster.placement import shard_of
from cluster.storage import GenerationStore

log = logging.getLogger(__name__)

#: How long the shards may take to follow a write, in seconds.
CATCH_UP_TIMEOUT_S = 10.0
#: How often a question is asked when writes keep coming between its statistics and its scores.
MOST_ATTEMPTS = 3
#: Seconds until a generation that could not be opened is tried again.
RETRY_S = 10.0

#: Failures that pass: the shard is down, late, or behind the store.
PASSING = frozenset({ShardError.code, UnavailableError.code, DeadlineError.code})
#: Projects that a sentence names.
MOST_NAMED = 20

#: (project, bucket)
Place: TypeAlias = tuple[str, str]
#: Called with a generation that the shards have opened, before it is served: what its queries need is made ready here.
BeforeSwap: TypeAlias = Callable[[Manifest], Awaitable[None]]


class LexicalClient(Client, Protocol):
    """A replica of a lexical shard as the router reaches it."""

    async def statistics(self, queries: Sequence[LexicalQuery]) -> Sequence[TermStatistics]: ...
    async def search(self, queries: Sequence[LexicalQuery]) -> Sequence[LegAnswer]: ...


class VectorClient(Client, Protocol):
    """A replica of a vector shard as the router reaches it."""

    async def search(self, queries: Sequence[VectorQuery]) -> Sequence[LegAnswer]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CaughtUp:
    """How far the shards follow the store."""

    revision: int
    #: shard -> why no replica of it could be told. Its partitions come back with all that was written: they replay it when
    #: they open.
    down: Mapping[str, str]
    #: Partitions that do not answer until they can follow.
    failures: Failures

    def complete(self, project: str) -> bool:
        """Whether every answer about `project` from now on shows `revision`, as far as shards answer at all."""
        return not self.down and all(failure.project != project for failure in self.failures)


class Router:
    """Serves one account. The view of served generations is replaced as a whole, so that a query sees one state of it."""

    def __init__(
        self,
        generations: GenerationStore,
        account: str,
        lexical: Mapping[str, Sequence[LexicalClient]],
        vector: Mapping[str, Sequence[VectorClient]],
        settings: RouterSettings,
        before_swap: BeforeSwap | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`lexical` and `vector`: the replicas of each shard, at least one."""
        self._generations = generations
        self._before_swap = before_swap
        self._clock = clock
        self._account = account
        self._lexical = {
            name: ReplicaSet(name, replicas, ("statistics", "search"), settings, clock) for name, replicas in lexical.items()
        }
        self._vector = {name: ReplicaSet(name, replicas, ("search",), settings, clock) for name, replicas in vector.items()}
        self._served: Mapping[str, Manifest] = MappingProxyType({})
        self._stamps: dict[str, tuple[int, int] | None] = {}
        #: Manifests that queries under way may still be pinned to, oldest first, by project.
        self._pinned: dict[str, list[Manifest]] = {}
        #: project -> (why its published generation is not served, when to try again).
        self._refused: dict[str, tuple[str, float]] = {}
        #: Those of them whose pointer or manifest is damaged.
        self._unreadable: set[str] = set()

    def refused(self) -> Mapping[str, str]:
        """project -> why the generation that was published last is not the one that is served."""
        return {project: detail for project, (detail, _) in self._refused.items()}

    def unserved(self) -> Mapping[str, str]:
        """project -> an error code, for those that were indexed and that no generation is served of: index_unreadable when
        what is on the disk is damaged, else shard_unavailable."""
        return {
            project: UnreadableIndexError.code if project in self._unreadable else ShardError.code
            for project in self._refused
            if project not in self._served
        }

    def served(self) -> Mapping[str, Manifest]:
        """project -> manifest of the generation that new queries are pinned to."""
        return self._served

    def manifest(self, project: str, generation: str) -> Manifest | None:
        """The manifest of a generation that queries may still be pinned to; None when it is gone, or of another account."""
        try:
            manifest = self._manifest(project, generation)
        except ShardError:
            return None
        return manifest if manifest.account == self._account else None

    async def refresh(self) -> list[str]:
        """Looks for newly published generations, has the shards open them, then swaps the view; returns the projects swapped.

        Queries that are under way keep their pins. A generation that a shard cannot open whole does not replace one that is
        served; where none is, its readable part is better than nothing, and each answer names what is missing.
        """
        changed = {}
        stamps = {project: self._generations.pointer_stamp(project) for project in self._generations.projects()}
        for project, stamp in stamps.items():
            if self._stamps.get(project) == stamp and self._clock() < self._refused.get(project, ("", math.inf))[1]:
                continue
            try:
                manifest = self._generations.current(project)
            except RaycallError as error:
                log.error(error.detail, extra={"action": "generation_unreadable", "project": project})  # noqa: TRY400
                self._stamps[project] = stamp
                self._refused[project] = (error.detail, self._clock() + RETRY_S)
                self._unreadable.add(project)
                continue
            self._stamps[project] = stamp
            self._unreadable.discard(project)
            if self._served.get(project) == manifest:
                self._refused.pop(project, None)
            elif manifest is not None and manifest.account == self._account:
                changed[project] = manifest
        swapped = [project for project, manifest in changed.items() if await self._prepare(manifest)]
        for project in swapped:
            self._pinned[project] = [*self._pinned.get(project, []), changed[project]][-KEPT_GENERATIONS:]
        if swapped:
            self._served = MappingProxyType({**self._served, **{project: changed[project] for project in swapped}})
        return swapped

    async def _prepare(self, manifest: Manifest) -> bool:
        pins = {manifest.project: manifest.generation}
        shards = (*self._lexical.values(), *self._vector.values())
        results = await asyncio.gather(*(shard.prepare(pins) for shard in shards), return_exceptions=True)
        errors = [result for result in results if isinstance(result, BaseException)]
        broken = [failure for result in results if isinstance(result, tuple) for failure in result]
        extra = {"project": manifest.project, "generation": manifest.generation}
        if errors or (broken and manifest.project in self._served):
            detail = str(errors[0]) if errors else f"{broken[0].bucket}: {broken[0].detail}"
            log.error("generation not swapped in: %s", detail, extra={"action": "generation_refused", **extra})
            # Tried again later: a shard that restarts, or a machine short of files, is no reason to stay on the old one.
            self._refused[manifest.project] = (detail, self._clock() + RETRY_S)
            return False
        self._refused.pop(manifest.project, None)
        if self._before_swap is not None:
            await self._before_swap(manifest)
        log.info("generation swapped in", extra={"action": "generation_swapped", **extra})
        return True

    async def closed(self) -> dict[str, list[ClosedPart]]:
        """project -> what of its served generation cannot be asked now; see `closed_parts`."""
        pins = {project: manifest.generation for project, manifest in self._served.items()}
        legs = (leg for leg in (self._lexical, self._vector) if leg)
        # One that opens a generation answers questions between two pieces; it would answer this one when it is done.
        held = {shard: at for leg in legs for shard, at in self._places(pins, leg).items() if not leg[shard].opening}
        return await closed_parts({**self._lexical, **self._vector}, pins, held)

    async def catch_up(self, revision: int, timeout_s: float = CATCH_UP_TIMEOUT_S) -> CaughtUp:
        """Has every shard show what was written up to `revision`, in every project, whichever replica answers.

        Returns when each does, or failed to.

        All shards are told, those too that hold nothing of the written project: a generation that is on its way may give them
        some of it.
        """
        shards = {**self._lexical, **self._vector}
        told = (shard.catch_up(revision, timeout_s) for shard in shards.values())
        results = await asyncio.gather(*told, return_exceptions=True)
        down: dict[str, str] = {}
        failures: list[PartitionFailure] = []
        for name, result in zip(shards, results, strict=True):
            if isinstance(result, tuple):
                failures.extend(result)
            elif isinstance(result, Exception):
                down[name] = result.detail if isinstance(result, RaycallError) else "the shard did not follow in time"
            else:
                raise result
        if down or failures:
            extra = {"action": "catch_up_incomplete", "revision": revision, "shards": sorted(down), "failed": len(failures)}
            log.warning("not every partition shows what was written", extra=extra)
        return CaughtUp(revision=revision, down=down, failures=tuple(failures))

    def watch(self) -> None:
        """See `ReplicaSet.watch`; to be called again and again."""
        pins = {project: manifest.generation for project, manifest in self._served.items()}
        for shard in (*self._lexical.values(), *self._vector.values()):
            shard.watch(pins)

    def replicas(self) -> list[ReplicaReport]:
        """Each replica of each shard."""
        return [report for shard in (*self._lexical.values(), *self._vector.values()) for report in shard.report()]

    async def lexical(self, query: LexicalQuery, deadline: float) -> LegAnswer:
        """The lexical leg over every addressed partition; ShardError when no shard answered.

        A write that comes between a shard's statistics and its scores would mix two states of the index. The shard notices,
        and the question is asked again, at most MOST_ATTEMPTS times in all; if writes still came between, the answer says so.
        """
        places = self._places(query.pins, self._lexical)
        shards = sorted(places)
        began = self._clock()
        answer = await self._lexical_once(query, shards, places, deadline)
        for _ in range(1, MOST_ATTEMPTS):
            # What there is must not be lost to an attempt that comes to nothing.
            if not answer.moved or self._clock() + (self._clock() - began) > deadline:
                break
            began = self._clock()
            try:
                again = await self._lexical_once(query, shards, places, deadline)
            except RaycallError:
                break
            if len(again.failures) > len(answer.failures):
                break
            answer = again
        return answer

    async def _lexical_once(
        self, query: LexicalQuery, shards: Sequence[str], places: Mapping[str, Sequence[Place]], deadline: float
    ) -> LegAnswer:
        alone = len(shards) <= 1 or query.statistics is not None
        parts = {} if alone else await self._statistics(query, shards, deadline)
        total = reduce(lambda left, right: left + right, (part for part, _ in parts.values())) if parts else query.statistics
        answers = await asyncio.gather(
            *(self._search(self._lexical[shard], query, total, parts.get(shard), deadline) for shard in shards),
            return_exceptions=True,
        )
        return _gathered(query.pins, query.k, places, dict(zip(shards, answers, strict=True)))

    async def vector(self, query: VectorQuery, deadline: float) -> LegAnswer:
        """The vector leg over every addressed partition; ShardError when no shard answered."""
        places = self._places(query.pins, self._vector)
        shards = sorted(places)
        answers = await asyncio.gather(
            *(_answer(self._vector[shard], query, deadline) for shard in shards), return_exceptions=True
        )
        return _gathered(query.pins, query.k, places, dict(zip(shards, answers, strict=True)))

    async def _statistics(
        self, query: LexicalQuery, shards: Sequence[str], deadline: float
    ) -> dict[str, tuple[TermStatistics, int]]:
        """Those of the shards that answer, and which replica gave them: a shard that is down holds none of the documents that
        can be answered from."""
        parts = await asyncio.gather(
            *(self._lexical[shard].ask("statistics", query, deadline) for shard in shards), return_exceptions=True
        )
        present = {shard: part for shard, part in zip(shards, parts, strict=True) if isinstance(part, tuple)}
        if not present:
            raise ShardError("no lexical shard answered")
        return present

    @staticmethod
    async def _search(
        shard: ReplicaSet,
        query: LexicalQuery,
        total: TermStatistics | None,
        part: tuple[TermStatistics, int] | None,
        deadline: float,
    ) -> LegAnswer:
        own, first = part or (None, None)
        return await _answer(shard, replace(query, statistics=total, own_statistics=own), deadline, first)

    def _places(self, pins: Pins, shards: Iterable[str]) -> dict[str, list[Place]]:
        """shard -> the partitions of the pinned generations that it holds."""
        names = sorted(shards)
        found: dict[str, list[Place]] = {}
        for project, generation in pins.items():
            for bucket in self._manifest(project, generation).buckets:
                found.setdefault(shard_of(project, bucket.name, names), []).append((project, bucket.name))
        return found

    def _manifest(self, project: str, generation: str) -> Manifest:
        """The pinned manifest, which need not be the served one any more; ShardError when it is gone."""
        for manifest in reversed(self._pinned.get(project, [])):
            if manifest.generation == generation:
                return manifest
        try:
            return self._generations.manifest(project, generation)
        except RaycallError as error:
            raise ShardError(f"generation {generation} of project {project} is gone") from error


async def _answer(shard: ReplicaSet, query: object, deadline: float, first: int | None = None) -> LegAnswer:
    answer: LegAnswer = (await shard.ask("search", query, deadline, first))[0]
    return answer


EMPTY = LegAnswer(ids=(), scores=np.zeros(0))


def _gathered(
    pins: Pins, k: int, places: Mapping[str, Sequence[Place]], answers: Mapping[str, LegAnswer | BaseException]
) -> LegAnswer:
    parts = []
    for shard, answer in answers.items():
        if isinstance(answer, LegAnswer):
            parts.append(answer)
            continue
        if not isinstance(answer, Exception):
            raise answer
        if isinstance(answer, OverloadedError):
            raise answer
        error = answer if isinstance(answer, RaycallError) else ShardError("the shard failed")
        parts.append(_lost(places[shard], pins, error))
    if parts and not any(part.answered for part in parts):
        raise _nothing_answered([failure for part in parts for failure in part.failures])
    return merge_answers(parts, k) if parts else EMPTY


def _nothing_answered(failures: Sequence[PartitionFailure]) -> RaycallError:
    """The error of a leg of which no partition answered. What a damaged one says of itself (rows, buckets) is for the log
    alone; the caller is told whether to try again, or what helps."""
    passing = {failure.detail for failure in failures if failure.code in PASSING}
    if passing or not failures:
        return ShardError("; ".join(sorted(passing)))
    projects = sorted({failure.project for failure in failures})
    named = ", ".join(projects[:MOST_NAMED]) + (f" and {len(projects) - MOST_NAMED} more" * (len(projects) > MOST_NAMED))
    if all(failure.code == AnalyzerError.code for failure in failures):
        return AnalyzerError(f"{'; '.join(sorted({failure.detail for failure in failures}))} ({named})")
    return UnreadableIndexError(f"the index of {named} cannot be read: {ADVICE}")


def _lost(places: Iterable[Place], pins: Pins, error: RaycallError) -> LegAnswer:
    failures = tuple(
        PartitionFailure(project=project, generation=pins[project], bucket=bucket, code=error.code, detail=error.detail)
        for project, bucket in places
    )
    return replace(EMPTY, asked=len(failures), failures=failures)
