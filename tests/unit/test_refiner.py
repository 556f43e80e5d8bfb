from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from cluster.errors import EmbedderError, UnavailableError
from cluster.storage import GenerationStore
from serve.refiner import COUNT_EVERY_S, RETRY_AFTER_S, Refiner
from tests.unit.test_router import publish


class Clock:
    now = 0.0

    def now_ms(self) -> int:
        return int(self.now * 1000)

    def monotonic(self) -> float:
        return self.now


class Job:
    """A refinement that ends when it is told to."""

    def __init__(self) -> None:
        self.outcome: object = None
        self.over = self.cancelled = False

    def done(self) -> bool:
        return self.over

    def result(self) -> object:
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome

    def cancel(self) -> None:
        self.cancelled = True

    def end(self, outcome: object) -> None:
        self.over, self.outcome = True, outcome


class World:
    def __init__(self, folder: Path) -> None:
        self.generations = GenerationStore(folder)
        self.jobs: list[tuple[str, Job]] = []
        self.clock = Clock()
        #: Changes of every project, by the revision at which each came.
        self.changes: list[int] = []
        self.refiner = Refiner(
            generations=self.generations,
            start=self._start,
            clock=self.clock,
            pending=lambda _project, since, most: min(most + 1, sum(change > since for change in self.changes)),
            revision=lambda: max(self.changes, default=0),
            most_changes=3,
        )

    def _start(self, project: str) -> Job:
        self.jobs.append((project, Job()))
        return self.jobs[-1][1]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_nothing_is_refined_before_something_is_served(world: World) -> None:
    world.refiner.step()
    assert world.jobs == []


def test_a_refined_generation_is_left_alone_until_another_is_served(world: World) -> None:
    publish(world.generations, "g1", 1)
    world.refiner.step()
    world.refiner.step()
    assert len(world.jobs) == 1
    publish(world.generations, "g2", 1, required="g1")
    world.jobs[0][1].end(SimpleNamespace(generation="g2"))
    world.refiner.step()
    world.refiner.step()
    assert len(world.jobs) == 1
    publish(world.generations, "g3", 1, required="g2")
    world.refiner.step()
    assert len(world.jobs) == 2


def test_what_was_published_during_a_refinement_is_looked_at_again(world: World) -> None:
    publish(world.generations, "g1", 1)
    world.refiner.step()
    publish(world.generations, "g2", 1, required="g1")
    publish(world.generations, "g3", 1, required="g2")
    world.jobs[0][1].end(SimpleNamespace(generation="g2"))
    world.refiner.step()
    assert len(world.jobs) == 2


def test_a_refinement_that_failed_is_tried_again_later_and_not_at_once(world: World) -> None:
    publish(world.generations, "g1", 1)
    world.refiner.step()
    world.jobs[0][1].end(EmbedderError("refused"))
    world.refiner.step()
    world.refiner.step()
    assert len(world.jobs) == 1
    world.clock.now += RETRY_AFTER_S
    world.refiner.step()
    assert len(world.jobs) == 2


def test_stopping_cancels_what_runs(world: World) -> None:
    publish(world.generations, "g1", 1)
    world.refiner.step()
    world.refiner.stop()
    assert world.jobs[0][1].cancelled


def test_many_changes_have_a_new_generation_built_once(world: World) -> None:
    publish(world.generations, "g1", 1)
    world.refiner.step()
    world.jobs[0][1].end(None)
    world.changes = [5, 6, 7]
    world.refiner.step()
    assert len(world.jobs) == 1, "as many as the shards may hold"
    world.changes.append(8)
    world.refiner.step()
    assert len(world.jobs) == 1, "not counted again at once"
    world.clock.now += COUNT_EVERY_S
    world.refiner.step()
    assert len(world.jobs) == 2
    world.changes.append(9)
    # A build that finds nothing to do (all changes undone) is not repeated for the same changes.
    world.jobs[1][1].end(None)
    for _ in range(3):
        world.clock.now += COUNT_EVERY_S
        world.refiner.step()
    assert len(world.jobs) == 2
    world.changes += [10, 11, 12, 13]
    world.clock.now += COUNT_EVERY_S
    world.refiner.step()
    assert len(world.jobs) == 3


def test_a_store_that_cannot_be_read_now_is_asked_again_later(world: World) -> None:
    publish(world.generations, "g1", 1)
    world.refiner.step()
    world.jobs[0][1].end(None)
    world.changes = [5, 6, 7, 8]
    counting = world.refiner.pending

    def down(*_: object) -> int:
        raise UnavailableError("locked")

    world.refiner.pending = down
    world.refiner.step()
    assert len(world.jobs) == 1
    world.refiner.pending = counting
    world.clock.now += COUNT_EVERY_S
    world.refiner.step()
    assert len(world.jobs) == 2
