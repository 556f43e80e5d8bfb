"""SIGKILL at every named step of a build, a publish, a rollback and a removal: real processes, a real JVM, real files.

Wherever it dies, what is served is one whole generation, all acknowledged writes are there, and the next run ends as if nothing
had happened.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster import faults
from cluster.checks import faults as damage
from cluster.model.guard import All
from jobs import generations as operations
from jobs.embed import fill_cache
from tests.support.crash import acknowledged, listing, run_killed
from tests.support.factories import ACCOUNT, make_principal
from tests.support.live import EMBEDDER, LiveIndex

#: Which action reaches which points. A build reaches those that nothing else is needed for.
ACTIONS = {"rollback.locked": "rollback", "gc.locked": "gc"}
CASES = [
    *((point, ACTIONS.get(point, "build")) for point in faults.POINTS),
    *((point, "rollback") for point in ("swap.written", "swap.renamed")),
    *((point, "publish") for point in ("publish.locked", "swap.written", "swap.renamed", "publish.swapped")),
    *((point, "gc") for point in ("sweep.renamed", "sweep.removed")),
]
READER = make_principal()
FIRST = {f"n{n:02}": f"pump number{n}" for n in range(12)}
#: After this the two buckets of 12 rows are two others: a changed row, a new one, one that is gone.
SECOND = {"n03": "valve number3", "n90": "pump number90", "n05": ""}
THIRD = {"n04": "valve number4", "n91": "pump number91"}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A data folder with two published generations, and a write since."""
    folder = tmp_path_factory.mktemp("template") / "data"
    folder.mkdir()
    live = LiveIndex(folder, shards=0, target_rows=8)
    for texts in (FIRST, SECOND):
        acknowledged(live.store, texts)
        live.publish("main")
    acknowledged(live.store, THIRD)
    # The texts of these rows are embedded, as a build that died later would have left them.
    fill_cache([*live.store.scan(All(()))], EMBEDDER, live.cache, lambda *_: None)
    live.close()
    yield folder


@pytest.fixture
def folder(template: Path, tmp_path: Path) -> Path:
    shutil.copytree(template, tmp_path / "data")
    return tmp_path / "data"


def expected() -> dict[str, str]:
    return {node_id: text for node_id, text in {**FIRST, **SECOND, **THIRD}.items() if text}


def stored(live: LiveIndex) -> dict[str, str]:
    return {node.id: node.text["content"] for node in live.store.scan(All(()))}


async def found(live: LiveIndex) -> dict[str, dict[str, float]]:
    """What both legs find for some words: id -> score, in the order of the answer."""
    await live.router.refresh()
    await live.catch_up()
    answers = {}
    for text in ("pump", "valve", "number3 number90"):
        for leg in (live.lexical, live.vector):
            answer = await leg(READER, text, 100)
            assert not answer.failures
            answers[f"{leg.__name__} {text}"] = dict(zip(answer.ids, answer.scores.tolist(), strict=True))
    return answers


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, float]]:
    """The answers of an index that was built once from what was acknowledged."""
    folder = tmp_path_factory.mktemp("fresh")
    live = LiveIndex(folder, shards=1, target_rows=8)
    acknowledged(live.store, expected())
    live.publish("main")
    try:
        return asyncio.run(found(live))
    finally:
        live.close()


def assert_same(answers: dict[str, dict[str, float]], right: dict[str, dict[str, float]]) -> None:
    assert answers.keys() == right.keys()
    for asked, scores in answers.items():
        assert scores == pytest.approx(right[asked], abs=1e-6), asked


@pytest.mark.parametrize(("point", "action"), CASES)
async def test_a_kill_at_any_step_loses_nothing(
    folder: Path, fresh: dict[str, dict[str, float]], point: str, action: str
) -> None:
    live = LiveIndex(folder, shards=0, target_rows=8)
    before = live.generations.pointer("main")
    if action == "gc":
        # Something to remove: a third generation, and a fourth that makes the first one nobody's.
        operations.publish(live.generations, ACCOUNT, "main", before.previous)
        shutil.copytree(live.generations.folder("main", before.previous or ""), folder / "generations" / "main" / "g0-left")
    live.close()
    assert run_killed(point, action, folder) == -9, f"{point} was not reached"

    live = LiveIndex(folder, shards=1, target_rows=8)
    try:
        pointer = live.generations.pointer("main")
        served = live.generations.current("main")
        assert served is not None
        assert damage(live.generations.folder("main", served.generation), served) == [], "old or new, never a mix"
        moved = pointer.sequence - before.sequence - (action == "gc")
        assert moved == (point in {"swap.renamed", "publish.swapped", "sweep.renamed", "sweep.removed", "build.swept"}) * (
            action != "gc"
        )
        assert stored(live) == expected()
        assert_same(await found(live), fresh)
        live.publish("main")
        assert_same(await found(live), fresh)
        names = listing(folder)
        assert len(names["finished"]) <= 2 + (action == "publish")
        assert (names["unfinished"], names["hidden"]) == ([], [])
        assert live.generations.current("main") == live.jobs.publish(ACCOUNT, "main", lambda *_: None)
    finally:
        live.close()


def test_every_point_is_killed_at() -> None:
    assert {point for point, _ in CASES} == set(faults.POINTS)
    source = "".join(Path(name).read_text() for name in ("cluster/storage.py", "jobs/build.py", "jobs/reindex.py"))
    for point in faults.POINTS:
        assert f'"{point}"' in source


def test_without_the_variable_a_point_does_nothing() -> None:
    for point in faults.POINTS:
        faults.reach(point)
