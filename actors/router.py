"""The router: which generations are served, and scatter and gather over the shards that hold them. No Ray in here."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from types import MappingProxyType
from typing import Protocol

import numpy as np

from actors.batcher import Batcher
from actors.merge import merge_answers
from cluster.errors import RaycallError, ShardError
from cluster.model.manifest import Manifest
from cluster.model.query import LegAnswer, LexicalQuery, PartitionFailure, Pins, TermStatistics, VectorQuery
from cluster.placement import shard_of
from cluster.storage import GenerationStore

log = logging.getLogger(__name__)

#: How long the shards may take to open a new generation before the router goes on serving the old one, in seconds.
PREPARE_TIMEOUT_S = 60.0


class LexicalClient(Protocol):
    """A lexical shard as the router reaches it."""

    async def prepare(self, pins: Pins) -> tuple[PartitionFailure, ...]: ...
    async def statistics(self, queries: Sequence[LexicalQuery]) -> Sequence[TermStatistics]: ...
    async def search(self, queries: Sequence[LexicalQuery]) -> Sequence[LegAnswer]: ...


class VectorClient(Protocol):
    """A vector shard as the router reaches it."""

    async def prepare(self, pins: Pins) -> tuple[PartitionFailure, ...]: ...
    async def search(self, queries: Sequence[VectorQuery]) -> Sequence[LegAnswer]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterSettings:
    """How the router sends."""

    #: Questions of one batch to a shard.
    max_batch: int = 64
    #: Batches in flight to one shard. 1 = group commit; a large number with max_batch 1 = a call for each question.
    lanes: int = 1


class Router:
    """Serves one account. The view of served generations is replaced as a whole, so that a query sees one state of it."""

    def __init__(
        self,
        generations: GenerationStore,
        account: str,
        lexical: Mapping[str, LexicalClient],
        vector: Mapping[str, VectorClient],
        settings: RouterSettings,
    ) -> None:
        self._generations = generations
        self._account = account
        self._lexical = dict(lexical)
        self._vector = dict(vector)
        batch, lanes = settings.max_batch, settings.lanes
        self._statistics_batchers = {
            name: Batcher(client.statistics, max_batch=batch, lanes=lanes) for name, client in lexical.items()
        }
        self._lexical_batchers = {
            name: Batcher(client.search, max_batch=batch, lanes=lanes) for name, client in lexical.items()
        }
        self._vector_batchers = {name: Batcher(client.search, max_batch=batch, lanes=lanes) for name, client in vector.items()}
        self._served: Mapping[str, Manifest] = MappingProxyType({})
        self._stamps: dict[str, tuple[int, int] | None] = {}

    def served(self) -> Mapping[str, Manifest]:
        """project -> manifest of the generation that new queries are pinned to."""
        return self._served

    async def refresh(self) -> list[str]:
        """Looks for newly published generations, has the shards open them, then swaps the view; returns the projects swapped.

        Queries that are under way keep their pins. A generation that a shard cannot open whole does not replace one that is
        served; where none is, its readable part is better than nothing, and each answer names what is missing.
        """
        changed = {}
        stamps = {project: self._generations.pointer_stamp(project) for project in self._generations.projects()}
        for project, stamp in stamps.items():
            if self._stamps.get(project) == stamp:
                continue
            try:
                manifest = self._generations.current(project)
            except RaycallError as error:
                log.error(error.detail, extra={"action": "generation_unreadable", "project": project})  # noqa: TRY400
                continue
            self._stamps[project] = stamp
            if manifest is not None and manifest.account == self._account and self._served.get(project) != manifest:
                changed[project] = manifest
        swapped = [project for project, manifest in changed.items() if await self._prepare(manifest)]
        if swapped:
            self._served = MappingProxyType({**self._served, **{project: changed[project] for project in swapped}})
        return swapped

    async def _prepare(self, manifest: Manifest) -> bool:
        pins = {manifest.project: manifest.generation}
        clients: list[LexicalClient | VectorClient] = [*self._lexical.values(), *self._vector.values()]
        try:
            async with asyncio.timeout(PREPARE_TIMEOUT_S):
                results = await asyncio.gather(*(client.prepare(pins) for client in clients), return_exceptions=True)
        except TimeoutError:
            results = [ShardError("a shard did not open the generation in time")]
        extra = {"project": manifest.project, "generation": manifest.generation}
        errors = [result for result in results if isinstance(result, BaseException)]
        if errors:
            log.warning("generation not opened: %s", errors[0], extra={"action": "generation_not_opened", **extra})
            # Tried again at the next look: a shard that restarts is no reason to stay on the old generation.
            self._stamps.pop(manifest.project, None)
            return False
        broken = [failure for result in results if isinstance(result, tuple) for failure in result]
        if broken and manifest.project in self._served:
            log.error("generation is broken: %s", broken[0].detail, extra={"action": "generation_refused", **extra})
            return False
        log.info("generation swapped in", extra={"action": "generation_swapped", **extra})
        return True

    async def lexical(self, query: LexicalQuery, deadline: float) -> LegAnswer:
        """The lexical leg over every addressed partition; ShardError when no shard answered."""
        shards = self._holders(query.pins, self._lexical)
        if len(shards) > 1 and query.statistics is None:
            query = replace(query, statistics=await self._global_statistics(query, shards, deadline))
        answers = await asyncio.gather(
            *(self._lexical_batchers[shard].ask(query, deadline) for shard in shards), return_exceptions=True
        )
        return self._gathered(query.pins, query.k, shards, answers, self._lexical)

    async def vector(self, query: VectorQuery, deadline: float) -> LegAnswer:
        """The vector leg over every addressed partition; ShardError when no shard answered."""
        shards = self._holders(query.pins, self._vector)
        answers = await asyncio.gather(
            *(self._vector_batchers[shard].ask(query, deadline) for shard in shards), return_exceptions=True
        )
        return self._gathered(query.pins, query.k, shards, answers, self._vector)

    async def _global_statistics(self, query: LexicalQuery, shards: Sequence[str], deadline: float) -> TermStatistics:
        """The sum over the shards that answer: a shard that is down holds none of the documents that can be answered from."""
        parts = await asyncio.gather(
            *(self._statistics_batchers[shard].ask(query, deadline) for shard in shards), return_exceptions=True
        )
        present = [part for part in parts if isinstance(part, TermStatistics)]
        if not present:
            raise ShardError("no lexical shard answered")
        return reduce(lambda left, right: left + right, present)

    def _holders(self, pins: Pins, shards: Iterable[str]) -> list[str]:
        names = sorted(shards)
        found = {shard_of(project, bucket, names) for project, bucket in self._buckets(pins)}
        return sorted(found)

    def _buckets(self, pins: Pins) -> Iterable[tuple[str, str]]:
        for project in pins:
            manifest = self._served.get(project)
            if manifest is not None:
                yield from ((project, bucket.name) for bucket in manifest.buckets)

    def _gathered(
        self,
        pins: Pins,
        k: int,
        shards: Sequence[str],
        answers: Sequence[LegAnswer | BaseException],
        all_shards: Iterable[str],
    ) -> LegAnswer:
        names = sorted(all_shards)
        parts = []
        for shard, answer in zip(shards, answers, strict=True):
            if isinstance(answer, LegAnswer):
                parts.append(answer)
                continue
            if not isinstance(answer, Exception):
                raise answer
            error = answer if isinstance(answer, RaycallError) else ShardError("the shard failed")
            lost = [place for place in self._buckets(pins) if shard_of(*place, names) == shard]
            parts.append(_lost(lost, pins, error))
        if shards and not any(part.answered for part in parts):
            details = sorted({failure.detail for part in parts for failure in part.failures})
            raise ShardError("; ".join(details) or "no shard answered")
        return merge_answers(parts, k) if parts else EMPTY


EMPTY = LegAnswer(ids=(), scores=np.zeros(0))


def _lost(places: Iterable[tuple[str, str]], pins: Pins, error: RaycallError) -> LegAnswer:
    failures = tuple(
        PartitionFailure(project=project, generation=pins[project], bucket=bucket, code=error.code, detail=error.detail)
        for project, bucket in places
    )
    return replace(EMPTY, asked=len(failures), failures=failures)
