"""The shards as Ray actors. The only file of this package that imports Ray; the classes that it wraps know nothing of it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError

from actors.source import Source
from cluster.errors import RaycallError, ShardDownError, ShardError, UnavailableError
from cluster.model.query import LegAnswer, LexicalQuery, PartitionFailure, Pins, TermStatistics, VectorQuery
from cluster.placement import replica_name
from cluster.telemetry import configure_file

log = logging.getLogger(__name__)

NAMESPACE = "raycall"
#: Seconds of one piece of a new generation's opening.
PIECE_S = 0.03
#: Seconds that the shards have to come up.
START_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSettings:
    """What an actor needs to open its part of the index, after a restart too: paths and names, no data."""

    #: Folder of the generations.
    root: Path
    #: The store that the shards follow.
    source: Source
    #: The vector cache, from which new rows get their vectors.
    vectors: Path
    #: All shards of this kind, for placement.
    shards: tuple[str, ...]
    #: Folder of the shards' logs, and how they are written.
    logs: Path
    log_level: str = "info"
    log_format: str = "text"
    threads: int = 1
    #: Changes of one bucket in memory from which on a build is due.
    delta_rows: int = 5_000
    #: Heap of the JVM in MiB, and how text is read (see `cluster.index.analysis`); lexical shards only.
    heap_mib: int = 512
    analyzer: str = "text"


class LexicalShardActor:
    """What Ray runs: builds the plain shard inside the actor's own process, where the JVM lives and nowhere else.

    `replica` is a name of its own, `shard` the name that placement goes by.
    """

    def __init__(self, replica: str, shard: str, settings: ShardSettings) -> None:
        from actors.opening import open_lexical_shard

        _log_to_file(replica, settings)
        self._shard = open_lexical_shard(
            shard,
            settings.root,
            settings.shards,
            settings.heap_mib,
            settings.source,
            settings.delta_rows,
            settings.analyzer,
        )

    def prepare(self, pins: Pins) -> tuple[PartitionFailure, ...] | None:
        return self._shard.prepare_some(pins, PIECE_S)

    def catch_up(self, revision: int) -> tuple[PartitionFailure, ...]:
        return self._shard.catch_up(revision)

    def statistics(self, queries: Sequence[LexicalQuery]) -> list[TermStatistics]:
        return self._shard.statistics(queries)

    def search(self, queries: Sequence[LexicalQuery]) -> list[LegAnswer]:
        return self._shard.search(queries)

    def process_id(self) -> int:
        return os.getpid()


class VectorShardActor:
    """As `LexicalShardActor`, for vectors."""

    def __init__(self, replica: str, shard: str, settings: ShardSettings) -> None:
        from actors.opening import open_vector_shard

        _log_to_file(replica, settings)
        self._shard = open_vector_shard(
            shard, settings.root, settings.shards, settings.threads, settings.source, settings.vectors, settings.delta_rows
        )

    def prepare(self, pins: Pins) -> tuple[PartitionFailure, ...] | None:
        return self._shard.prepare_some(pins, PIECE_S)

    def catch_up(self, revision: int) -> tuple[PartitionFailure, ...]:
        return self._shard.catch_up(revision)

    def search(self, queries: Sequence[VectorQuery]) -> list[LegAnswer]:
        return self._shard.search(queries)

    def process_id(self) -> int:
        return os.getpid()


def _log_to_file(name: str, settings: ShardSettings) -> None:
    configure_file(settings.log_level, settings.log_format, settings.logs / f"{name}.log")


def start_shards(actor_class: type, names: Sequence[str], settings: ShardSettings, replicas: int = 1) -> None:
    """Starts `replicas` named actors a shard and waits until each has opened. Detached: they outlive the application.

    An actor that dies is restarted for ever; it opens its generations when it is told to, or on the first question that names
    them.
    """
    # A shard waits for questions most of its life: it takes no CPU from Ray's books, so that batch work is never shut out.
    options = {"lifetime": "detached", "namespace": NAMESPACE, "num_cpus": 0, "max_restarts": -1, "max_task_retries": 0}
    handles = [
        ray.remote(actor_class).options(name=replica, get_if_exists=True, **options).remote(replica, shard, settings)
        for shard in names
        for replica in (replica_name(shard, number) for number in range(replicas))
    ]
    try:
        ray.get([handle.process_id.remote() for handle in handles], timeout=START_TIMEOUT_S)
    except GetTimeoutError as error:
        raise UnavailableError(
            f"the shards did not start within {START_TIMEOUT_S:.0f} s; their logs are in {settings.logs}"
        ) from error
    except RayError as error:
        raise UnavailableError(f"a shard did not start: {error}") from error


class ShardClient:
    """A replica of a shard by its name. The handle is looked up again when the actor behind it was replaced."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._handle: Any = None

    async def prepare(self, pins: Pins) -> tuple[PartitionFailure, ...]:
        # An actor works on one call at a time: questions that wait for it are answered between two pieces.
        while (result := await self._call("prepare", pins)) is None:
            pass
        failures: tuple[PartitionFailure, ...] = result
        return failures

    async def catch_up(self, revision: int) -> tuple[PartitionFailure, ...]:
        result: tuple[PartitionFailure, ...] = await self._call("catch_up", revision)
        return result

    async def statistics(self, queries: Sequence[LexicalQuery]) -> Sequence[TermStatistics]:
        result: Sequence[TermStatistics] = await self._call("statistics", queries)
        return result

    async def search(self, queries: Sequence[Any]) -> Sequence[LegAnswer]:
        result: Sequence[LegAnswer] = await self._call("search", queries)
        return result

    async def restart(self) -> None:
        """Ends the actor's process, be it stopped or in a loop; Ray starts it anew. What is on its way to it fails."""
        with contextlib.suppress(ValueError, RayError):
            handle = self._handle or ray.get_actor(self.name, namespace=NAMESPACE)
            await asyncio.to_thread(ray.kill, handle, no_restart=False)

    async def _call(self, method: str, argument: object) -> Any:
        try:
            if self._handle is None:
                self._handle = ray.get_actor(self.name, namespace=NAMESPACE)
        except ValueError as error:
            raise ShardDownError("the shard is down") from error
        try:
            return await getattr(self._handle, method).remote(argument)
        except RayActorError as error:
            self._handle = None
            raise ShardDownError("the shard is down") from error
        except RaycallError:
            raise
        except RayError as error:
            log.warning("shard failed", exc_info=error, extra={"action": "shard_failed", "shard": self.name})
            raise ShardError("the shard failed") from error


def clients(names: Sequence[str], replicas: int = 1) -> Mapping[str, tuple[ShardClient, ...]]:
    """A client a replica of each shard."""
    return {name: tuple(ShardClient(replica_name(name, number)) for number in range(replicas)) for name in names}


@dataclass(frozen=True, slots=True, kw_only=True)
class RaySettings:
    """How the local Ray is started."""

    num_cpus: int
    object_store_bytes: int
    #: Ray's folder for its sockets and logs; a short path, since a Unix socket's name has at most 107 bytes.
    temp_dir: Path
    environment: Mapping[str, str]


def start_ray(settings: RaySettings) -> None:
    """Starts a Ray of our own on this machine; never joins one that is already there.

    "local" and a folder of our own keep a `ray_current_cluster` file that a dead cluster left behind out of the way. Raises
    UnavailableError when Ray does not start.
    """
    os.environ.update(settings.environment)
    os.environ.pop("RAY_ADDRESS", None)
    try:
        _init(settings)
    except Exception as first:
        # Ray gives its own processes 30 s, which a busy machine may miss once; it raises bare exceptions for it, too.
        log.warning("Ray did not start; trying once more", exc_info=first, extra={"action": "ray_start_retried"})
        ray.shutdown()
        try:
            _init(settings)
        except Exception as error:
            raise UnavailableError(f"Ray did not start, twice (is the machine overloaded?): {error}") from error


def _init(settings: RaySettings) -> None:
    ray.init(
        address="local",
        num_cpus=settings.num_cpus,
        object_store_memory=settings.object_store_bytes,
        include_dashboard=False,
        namespace=NAMESPACE,
        log_to_driver=False,
        configure_logging=False,
        _temp_dir=str(settings.temp_dir),
    )


def stop_ray() -> None:
    """Ends the Ray that `start_ray` started, with all its processes."""
    if ray.is_initialized():
        ray.shutdown()
