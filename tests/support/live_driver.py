"""Changes an index and a model of it, and compares what both say."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cluster import faults
from cluster.embed.node_text import embedding_hash, embedding_text
from cluster.guards import allows, search_guard
from cluster.model.access import Principal
from cluster.model.nodes import Node, Scope, Visibility
from cluster.model.query import LegAnswer
from cluster.ports import WriteBatch
from tests.integration.test_lexical_exact import assert_same_ranking
from tests.support.crash import run_killed
from tests.support.factories import make_agent, make_node, make_principal
from tests.support.lexical import Ranked, opened, search
from tests.support.live import EMBEDDER, LiveIndex, texts_of

PROJECTS = ("main", "ap-erp")
WORDS = [*("pump", "valve", "flow", "pressure", "sensor", "index", "shard", "token"), *("parse", "request", "water", "table")]
EVERYBODY = 10_000
#: Points of `cluster.faults` that a build of "main" reaches whatever changed.
BUILD_POINTS = tuple(point for point in faults.POINTS if point.split(".")[0] in {"build", "finish", "publish", "swap"})


class LiveDriver:
    """Changes the index and a model of it, a dictionary of nodes, at random; and compares what both say."""

    def __init__(self, pick: random.Random, folder: Path, shards: int) -> None:
        self.pick = pick
        self.folder = folder
        (folder / "fresh").mkdir()
        self.live = LiveIndex(folder, shards, target_rows=9)
        self.model: dict[str, Node] = {}
        self.made = 0

    async def start(self) -> None:
        """Some rows in both projects, built and served."""
        for _ in range(6):
            self._store(nodes=[self._node(f"n{self.pick.randrange(10**6):06}") for _ in range(6)])
        self.live.publish(*PROJECTS)
        await self.live.router.refresh()

    # --- steps ---

    async def insert(self) -> None:
        nodes = []
        for _ in range(self.pick.choice([1, 1, 2, 5])):
            # Ids in no order of time.
            nodes.append(self._node(f"n{self.pick.randrange(10**6):06}"))
        await self._write(nodes=nodes)

    async def update(self) -> None:
        if self.model:
            await self._write(nodes=[self._node(self._any()), *([self._node(self._any())] if self.pick.random() < 0.3 else [])])

    async def update_one_often(self) -> None:
        if self.model:
            node_id = self._any()
            for _ in range(self.pick.randint(2, 6)):
                await self._write(nodes=[self._node(node_id)])

    async def soft_delete(self) -> None:
        if self.model:
            await self._write(soft_delete=[self._any()])

    async def restore(self) -> None:
        deleted = [key for key, node in self.model.items() if node.deleted_at is not None]
        if deleted:
            await self._write(restore=[self.pick.choice(deleted)])

    async def purge(self) -> None:
        if self.model:
            await self._write(purge=[self._any()])

    def publish(self) -> None:
        self.live.publish(self.pick.choice(PROJECTS))

    async def build_and_swap(self) -> None:
        self.publish()
        await self.live.router.refresh()
        # A build embeds what had no vector yet, and the other project may hold the same text.
        await self.live.catch_up()

    async def write_between_build_and_swap(self) -> None:
        """The new generation is on disk, and not yet served, when the row is written."""
        self.publish()
        await self.insert()
        await self.update()
        await self.live.router.refresh()

    async def write_between_opening_and_swap(self) -> None:
        """The shards have opened the new generation, and the router has not swapped to it."""
        self.publish()
        current = self.live.generations
        for client in self.live.clients.values():
            for project in PROJECTS:
                manifest = current.current(project)
                assert manifest is not None
                await client.prepare({project: manifest.generation})
        await self.update()
        await self.insert()
        await self.live.router.refresh()

    async def roll_back(self) -> None:
        project = self.pick.choice(PROJECTS)
        pointer = self.live.generations.pointer(project)
        if pointer.previous is not None and self.live.generations.folder(project, pointer.previous).is_dir():
            self.live.generations.roll_back(project)
            await self.live.router.refresh()

    async def restart(self) -> None:
        self.live.restart(self.pick.choice(sorted(self.live.clients)))

    async def restart_after_a_write_that_nobody_was_told_of(self) -> None:
        revision = self.live.store.revision()
        self._store(nodes=[self._node(f"n{self.pick.randrange(10**6):06}")], purge=[self._any()] if self.model else [])
        assert self.live.store.revision() > revision
        for name in self.live.clients:
            self.live.restart(name)

    async def kill_a_build(self, point: str) -> None:
        """SIGKILL to a process that builds "main", where it reaches `point`; one that has nothing to build ends by itself."""
        self._store(nodes=[self._node(f"n{self.pick.randrange(10**6):06}", project="main")])
        assert run_killed(point, "build", self.folder) in {-9, 0}
        await self.live.router.refresh()
        await self.live.catch_up()

    async def restart_everything(self) -> None:
        """The shards and the router, as when the machine was switched off."""
        for name in self.live.clients:
            self.live.restart(name)
        self.live.router = self.live.make_router()
        await self.live.router.refresh()
        await self.live.catch_up()

    # --- parts of steps ---

    def _any(self) -> str:
        return self.pick.choice(sorted(self.model))

    def _node(self, node_id: str, project: str | None = None) -> Node:
        weights = [1 / (rank + 1) for rank in range(len(WORDS))]
        words = self.pick.choices(WORDS, weights, k=self.pick.choice([0, 1, 1, 3, 12, 60]))
        return make_node(
            node_id,
            project=project or self.pick.choice(PROJECTS),
            text=texts_of(words),
            scope=self.pick.choice([None, None, *Scope]),
            agents=self.pick.choice([None, ("iris",), ("iris", "mira")]),
            visibility=self.pick.choice([None, None, *Visibility]),
            owner_agent=self.pick.choice([None, "iris"]),
        )

    def _store(
        self,
        nodes: Sequence[Node] = (),
        soft_delete: Sequence[str] = (),
        restore: Sequence[str] = (),
        purge: Sequence[str] = (),
    ) -> None:
        self.live.store.write(
            WriteBatch(
                nodes=tuple({node.id: node for node in nodes}.values()),
                soft_delete=tuple(soft_delete),
                restore=tuple(restore),
                purge=tuple(purge),
                now=7,
            )
        )
        self.model.update((node.id, node) for node in nodes)
        for key in soft_delete:
            self.model[key] = replace(self.model[key], deleted_at=self.model[key].deleted_at or 7)
        for key in restore:
            self.model[key] = replace(self.model[key], deleted_at=None)
        for key in purge:
            del self.model[key]

    async def _write(self, nodes: Sequence[Node] = (), **batch: Any) -> None:
        early = self.pick.random() < 0.5
        if early:
            self._embed(nodes)
        self._store(nodes, **batch)
        assert (await self.live.catch_up()).complete("main")
        if not early and self.pick.random() < 0.7:
            self._embed(nodes)
            await self.live.catch_up()

    def _embed(self, nodes: Sequence[Node]) -> None:
        texts = {embedding_hash(node): text for node in nodes if (text := embedding_text(node))}
        if texts:
            rows = EMBEDDER.embed(list(texts.values()))
            self.live.cache.put(EMBEDDER.identity, dict(zip(texts, rows, strict=True)))

    # --- comparing ---

    def reader(self) -> Principal:
        return self.pick.choice(
            [
                make_principal(),
                make_principal(projects=frozenset({"main"})),
                make_agent("iris", teams=frozenset({"main"})),
                make_agent("mira", scopes=frozenset({Scope.ADMIN})),
            ]
        )

    def visible(self, reader: Principal) -> list[Node]:
        guard = search_guard(reader)
        served = self.live.router.served()
        found = [
            node for node in self.model.values() if node.project in served and allows(guard, node) and embedding_text(node)
        ]
        return sorted(found, key=lambda node: node.id)

    async def compare(self) -> None:
        reader, k = self.reader(), self.pick.choice([1, 3, 10, EVERYBODY])
        text = " ".join(self.pick.choices([*WORDS, "nowhere"], k=self.pick.randint(1, 4)))
        visible = self.visible(reader)
        with opened(self.folder / "fresh", visible) as fresh:
            right = search(fresh, text)
        lexical = await self.live.lexical(reader, text, k)
        assert not lexical.failures
        assert not lexical.moved
        assert_same_ranking(Ranked(lexical.ids, tuple(lexical.scores.tolist()), lexical.matched or 0), right, k)
        self._compare_vectors(await self.live.vector(reader, text, k), visible, text, k)

    def _compare_vectors(self, answer: LegAnswer, visible: Sequence[Node], text: str, k: int) -> None:
        assert not answer.failures
        known = self.live.cache.get(EMBEDDER.identity, [embedding_hash(node) for node in visible])
        query = EMBEDDER.embed_query([text])[0]
        right = {node.id: float(known[key] @ query) for node in visible if (key := embedding_hash(node)) in known}
        assert len(answer.ids) == len(set(answer.ids)) == min(k, len(right))
        assert [right[node_id] for node_id in answer.ids] == pytest.approx(answer.scores.tolist(), abs=1e-6)
        assert sorted(right.values(), reverse=True)[:k] == pytest.approx(answer.scores.tolist(), abs=1e-6)
