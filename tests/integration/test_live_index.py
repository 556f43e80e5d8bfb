"""After any sequence of writes, builds, rollbacks and restarts, search equals a fresh index of what the reader may see."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from cluster.guards import search_guard
from cluster.model.query import Fusion
from cluster.ports import WriteBatch
from jobs.embed import fill_cache
from serve.fusion import fuse
from tests.integration.test_lexical_exact import assert_same_ranking
from tests.support.factories import make_node, make_principal
from tests.support.lexical import Ranked, opened, search
from tests.support.live import EMBEDDER, LiveIndex
from tests.support.live_driver import LiveDriver


@pytest.mark.parametrize(("shards", "seed"), [(1, 0), (1, 1), (2, 0), (2, 1), (4, 0), (4, 1), (8, 0)])
async def test_for_every_reader_shard_count_split_and_moment_the_answer_is_that_of_a_private_fresh_index(
    tmp_path: Path, seed: int, shards: int
) -> None:
    """Over two projects, whose rows change, die, move and are built anew; the private index holds what the reader may read."""
    driver = LiveDriver(random.Random(f"{seed}/{shards}"), tmp_path, shards)
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
        await driver.start()
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


@pytest.mark.parametrize("shards", [1, 4])
async def test_equal_texts_rank_by_id_wherever_they_are_and_before_and_after_a_restart(tmp_path: Path, shards: int) -> None:
    """In several buckets and in memory, where each part rounds its scores in its own way; others make the parts uneven."""
    live = LiveIndex(tmp_path, shards=shards, target_rows=4)
    others = [make_node(f"z{n:02}", text={"content": "filler " * (n % 5 + 1) + "other " * (n % 7)}) for n in range(30)]
    equal = [make_node(f"t{n:02}", text={"content": "release note item"}) for n in range(25)]
    live.store.write(WriteBatch(nodes=(*others, *equal[::2], equal[1])))
    live.publish("main")
    await live.router.refresh()
    fill_cache(equal, EMBEDDER, live.cache, lambda *_: None)
    live.store.write(WriteBatch(nodes=tuple(equal[3::2]), soft_delete=("z01", "z02", "t01"), now=5))
    await live.catch_up()
    right = [node.id for node in equal if node.id != "t01"]
    try:
        for _ in range(2):
            lexical = await live.lexical(make_principal(), "release note", 100)
            vector = await live.vector(make_principal(), "release note", 100)
            for method in Fusion:
                fused = fuse(lexical, vector, method)
                assert [candidate.id for candidate in fused[:24]] == right
                assert {candidate.bm25_scaled for candidate in fused[:24]} <= {1.0, None}
            for name in live.clients:
                live.restart(name)
            await live.catch_up()
    finally:
        live.close()
