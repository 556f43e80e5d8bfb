"""After any sequence of writes, builds, rollbacks and restarts, search equals a fresh index of what the reader may see."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cluster.embed.node_text import embedding_hash, embedding_text
from cluster.guards import allows, search_guard
from cluster.model.access import Principal
from cluster.model.nodes import Node, Scope, Visibility
from cluster.model.query import LegAnswer
from cluster.ports import WriteBatch
from tests.integration.test_lexical_exact import assert_same_ranking
from tests.support.factories import make_agent, make_node, make_principal
from tests.support.lexical import Ranked, opened, search
from tests.support.live import EMBEDDER, LiveIndex, texts_of

PROJECTS = ("main", "ap-erp")
WORDS = [*("pump", "valve", "flow", "pressure", "sensor", "index", "shard", "token"), *("parse", "request", "water", "table")]
EVERYBODY = 10_000


class Driver:
    """Changes the index and a model of it, a dictionary of nodes, at random; and compares what both say."""

    def __init__(self, pick: random.Random, folder: Path, shards: int) -> None:
        self.pick = pick
        self.folder = folder
        (folder / "fresh").mkdir()
        self.live = LiveIndex(folder, shards, target_rows=9)
        self.model: dict[str, Node] = {}
        self.made = 0

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

    # --- parts of steps ---

    def _any(self) -> str:
        return self.pick.choice(sorted(self.model))

    def _node(self, node_id: str) -> Node:
        weights = [1 / (rank + 1) for rank in range(len(WORDS))]
        words = self.pick.choices(WORDS, weights, k=self.pick.choice([0, 1, 1, 3, 12, 60]))
        return make_node(
            node_id,
            project=self.pick.choice(PROJECTS),
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


@pytest.mark.parametrize(("shards", "seed"), [(1, 0), (1, 1), (2, 0), (2, 1), (4, 0), (4, 1), (8, 0)])
async def test_for_every_reader_shard_count_split_and_moment_the_answer_is_that_of_a_private_fresh_index(
    tmp_path: Path, seed: int, shards: int
) -> None:
    """Over two projects, whose rows change, die, move and are built anew; the private index holds what the reader may read."""
    driver = Driver(random.Random(f"{seed}/{shards}"), tmp_path, shards)
    steps: list[Callable[[], Any]] = [
        *(
            driver.insert,
            driver.insert,
            driver.update,
            driver.update,
            driver.update_one_often,
            driver.soft_delete,
            driver.restore,
        ),
        *(driver.purge, driver.build_and_swap, driver.write_between_build_and_swap, driver.write_between_opening_and_swap),
        *(driver.roll_back, driver.restart, driver.restart_after_a_write_that_nobody_was_told_of),
    ]
    try:
        for _ in range(6):
            driver._store(nodes=[driver._node(f"n{driver.pick.randrange(10**6):06}") for _ in range(6)])
        driver.live.publish(*PROJECTS)
        await driver.live.router.refresh()
        await driver.compare()
        # Each kind of step at least once, in an order of its own.
        planned = [*steps, *driver.pick.choices(steps, k=10)]
        driver.pick.shuffle(planned)
        for step in planned:
            await step()
            await driver.compare()
    finally:
        driver.live.close()


@pytest.fixture
async def live(tmp_path: Path) -> AsyncIterator[LiveIndex]:
    index = LiveIndex(tmp_path, shards=3, target_rows=4, delta_rows=2)
    index.store.write(WriteBatch(nodes=tuple(make_node(f"n{n:02}", text={"content": f"pump number{n}"}) for n in range(20))))
    index.publish("main")
    await index.router.refresh()
    yield index
    index.close()


async def test_a_write_between_statistics_and_scores_leaves_the_scores_of_one_index(live: LiveIndex, tmp_path: Path) -> None:
    nodes = {node.id: node for node in live.store.scan(search_guard(make_principal()))}
    written = [make_node(f"w{n}", text={"content": "pump " * n}) for n in range(1, 4)]

    async def write(method: str) -> None:
        if method == "search" and written:
            node = written.pop()
            nodes[node.id] = node
            revision = live.store.write(WriteBatch(nodes=(node,)))
            for client in live.clients.values():
                client.shard.catch_up(revision)

    for client in live.clients.values():
        client.before = write
    answer = await live.lexical(make_principal(), "pump", 100)
    assert not written
    assert not answer.moved
    (tmp_path / "fresh").mkdir()
    with opened(tmp_path / "fresh", sorted(nodes.values(), key=lambda node: node.id)) as fresh:
        ranked = Ranked(answer.ids, tuple(answer.scores.tolist()), answer.matched or 0)
        assert_same_ranking(ranked, search(fresh, "pump"), 100)


async def test_the_answer_says_that_a_build_is_due_and_that_rows_are_missing(live: LiveIndex) -> None:
    assert (await live.lexical(make_principal(), "pump", 9)).over_bound == ()
    for number in range(60):
        live.store.write(WriteBatch(nodes=(make_node(f"w{number}", text={"content": "pump"}),)))
        if number == 20:
            await live.catch_up()
            for answer in (await live.lexical(make_principal(), "pump", 9), await live.vector(make_principal(), "pump", 9)):
                assert (answer.over_bound, answer.left_out) == (("main",), ())
    await live.catch_up()
    for answer in (await live.lexical(make_principal(), "pump", 9), await live.vector(make_principal(), "pump", 9)):
        assert (answer.over_bound, answer.left_out) == (("main",), ("main",))
    live.store.write(WriteBatch(soft_delete=tuple(f"n{n:02}" for n in range(20)), now=5))
    await live.catch_up()
    answer = await live.lexical(make_principal(), "number3", 9)
    assert answer.ids == (), "deletions are never left out"
    live.publish("main")
    await live.router.refresh()
    answer = await live.lexical(make_principal(), "pump", 100)
    assert (len(answer.ids), answer.matched, answer.over_bound, answer.left_out) == (60, 60, (), ())


async def test_rows_that_tie_at_the_cut_come_by_id_and_not_by_arrival(tmp_path: Path) -> None:
    """In one bucket, where equal texts have equal scores to the last bit."""
    live = LiveIndex(tmp_path, shards=1, target_rows=100)
    live.publish("main")
    await live.router.refresh()
    for number in (5, 9, 3, 7, 1, 8):
        live.store.write(WriteBatch(nodes=(make_node(f"t{number}", text={"content": "turbine"}),)))
        await live.catch_up()
    for k in (1, 2, 3, 6, 9):
        answer = await live.lexical(make_principal(), "turbine", k)
        assert answer.ids == ("t1", "t3", "t5", "t7", "t8", "t9")[:k]
        assert answer.matched == 6
    live.close()
