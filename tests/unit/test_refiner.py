from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from cluster.errors import EmbedderError
from cluster.storage import GenerationStore
from serve.refiner import RETRY_AFTER_S, Refiner
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
        self.refiner = Refiner(generations=self.generations, start=self._start, clock=self.clock)

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
