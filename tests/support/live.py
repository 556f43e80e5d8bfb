"""A store, its generations, and a router over shards in this process: all of the index but Ray."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from actors.lexical_shard import LexicalShard
from actors.opening import open_lexical_shard, open_vector_shard
from actors.replicas import RouterSettings
from actors.router import CaughtUp, Router
from actors.source import Source
from actors.vector_shard import VectorShard
from cluster.embed.cache import SqliteVectorCache
from cluster.embed.static import StaticEmbedder
from cluster.graph.sqlite import SqliteGraphStore
from cluster.guards import search_guard
from cluster.index.analysis import analysis
from cluster.index.lexical import build_lexical
from cluster.index.vector import write_vectors
from cluster.model.access import Principal
from cluster.model.query import LegAnswer, LexicalQuery, VectorQuery
from cluster.ports import Embedder
from cluster.storage import GenerationStore
from jobs.build import Builder
from jobs.reindex import Reindexer
from jobs.setup import SystemClock
from tests.support.factories import ACCOUNT

EMBEDDER: Embedder = StaticEmbedder()


class InProcess:
    """A shard as the router reaches it, without Ray. `shard` may be replaced, as an actor that is restarted."""

    def __init__(self, shard: LexicalShard | VectorShard) -> None:
        self.shard = shard
        #: Awaited before each call, with the method's name: what happens elsewhere meanwhile.
        self.before: Callable[[str], Awaitable[None]] | None = None

    def __getattr__(self, name: str) -> Any:
        async def call(argument: object) -> object:
            if self.before is not None:
                await self.before(name)
            return getattr(self.shard, name)(argument)

        return call


class LiveIndex:
    """`shards` shards a leg over the store in `folder`; a project has a bucket for each `target_rows` rows."""

    def __init__(self, folder: Path, shards: int, target_rows: int, delta_rows: int = 5_000) -> None:
        self.folder = folder
        self.store = SqliteGraphStore(folder / "graph.sqlite", account=ACCOUNT)
        self.cache = SqliteVectorCache(folder / "vectors.sqlite")
        self.generations = GenerationStore(folder / "generations")
        self._delta_rows = delta_rows
        builder = Builder(
            store=self.store,
            generations=self.generations,
            vectors=self.cache,
            build_lexical=build_lexical,
            write_vectors=write_vectors,
            analyzer=analysis().version,
            target_rows=target_rows,
        )
        self.jobs = Reindexer(builder=builder, first=EMBEDDER, target=EMBEDDER, clock=SystemClock())
        self._names = {kind: tuple(f"{kind}-{number}" for number in range(shards)) for kind in ("lexical", "vector")}
        self.clients = {name: InProcess(self._opened(name)) for names in self._names.values() for name in names}
        self.router = self.make_router()

    def make_router(self) -> Router:
        legs: list[Any] = [{name: [self.clients[name]] for name in names} for names in self._names.values()]
        return Router(self.generations, ACCOUNT, legs[0], legs[1], RouterSettings())

    def _opened(self, name: str) -> LexicalShard | VectorShard:
        source = Source(graph=self.folder / "graph.sqlite", account=ACCOUNT)
        kind = name.split("-", maxsplit=1)[0]
        if kind == "lexical":
            return open_lexical_shard(name, self.generations.root, self._names[kind], 256, source, self._delta_rows)
        cache = self.folder / "vectors.sqlite"
        return open_vector_shard(name, self.generations.root, self._names[kind], 1, source, cache, self._delta_rows)

    def publish(self, *projects: str) -> None:
        for project in projects:
            self.jobs.publish(ACCOUNT, project, lambda *_: None)

    async def catch_up(self) -> CaughtUp:
        return await self.router.catch_up(self.store.revision())

    def restart(self, name: str) -> None:
        """What a killed actor holds is lost; the one that takes its place knows paths alone."""
        client = self.clients[name]
        client.shard.close()
        client.shard = self._opened(name)

    def close(self) -> None:
        for client in self.clients.values():
            client.shard.close()
        self.cache.close()
        self.store.close()

    async def lexical(self, principal: Principal, text: str, k: int) -> LegAnswer:
        query = LexicalQuery(text=text, guard=search_guard(principal), pins=self.pins(), k=k)
        return await self.router.lexical(query, time.monotonic() + 60)

    async def vector(self, principal: Principal, text: str, k: int) -> LegAnswer:
        vector = EMBEDDER.embed_query([text])[0]
        identity = EMBEDDER.identity
        query = VectorQuery(vector=vector, identity=identity, guard=search_guard(principal), pins=self.pins(), k=k)
        return await self.router.vector(query, time.monotonic() + 60)

    def pins(self) -> dict[str, str]:
        return {project: manifest.generation for project, manifest in self.router.served().items()}


def texts_of(words: Sequence[str]) -> dict[str, str]:
    """Node text of these words; without any, none."""
    return {"content": " ".join(words)} if words else {}
