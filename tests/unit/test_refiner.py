from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from cluster.errors import EmbedderError, UnavailableError
from cluster.model.manifest import VectorIdentity
from cluster.storage import GenerationStore
from serve.refiner import COUNT_EVERY_S, RETRY_AFTER_S, Refiner
from tests.unit.test_generations import IDENTITY, bucket, make_manifest
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
        self.counts = 0
        self.refiner = Refiner(
            generations=self.generations,
            start=self._start,
            clock=self.clock,
            target=IDENTITY,
            pending=self._pending,
            revision=lambda: max(self.changes, default=0),
            most_changes=3,
        )

    def _pending(self, _project: str, since: int, most: int) -> int:
        self.counts += 1
        return min(most + 1, sum(change > since for change in self.changes))

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


def publish_embedded(world: World, generation: str, vectors: int, identity: VectorIdentity = IDENTITY) -> None:
    """Two rows, of which so many have their vector."""
    with world.generations.building("demo", generation) as part:
        (part / "b0000").mkdir()
        (part / "b0000" / "rows.parquet").write_bytes(b"x")
        manifest = replace(make_manifest(generation, buckets=(bucket(part / "b0000", 2, vectors),)), identity=identity)
        world.generations.finish(part, manifest)
    world.generations.publish(manifest, required=None)


def test_a_generation_that_has_all_vectors_of_the_target_costs_no_task(world: World) -> None:
    publish_embedded(world, "g1", vectors=2)
    world.refiner.step()
    assert world.jobs == []
    # What is written later is looked at all the same.
    world.changes = [5, 6, 7, 8]
    world.clock.now += COUNT_EVERY_S
    world.refiner.step()
    assert len(world.jobs) == 1


@pytest.mark.parametrize(("vectors", "identity"), [(1, IDENTITY), (2, replace(IDENTITY, model="other"))])
def test_rows_without_a_vector_of_the_target_are_refined(world: World, vectors: int, identity: VectorIdentity) -> None:
    publish_embedded(world, "g1", vectors, identity)
    world.refiner.step()
    assert len(world.jobs) == 1


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


def test_changes_are_counted_again_only_when_something_was_written(world: World) -> None:
    publish_embedded(world, "g1", vectors=2)
    for changes, counts in (([5], 1), ([5], 1), ([5, 6], 2), ([5, 6], 2)):
        world.changes = changes
        world.clock.now += COUNT_EVERY_S
        world.refiner.step()
        assert world.counts == counts
    world.changes = [5, 6, 7, 8]
    world.clock.now += COUNT_EVERY_S
    world.refiner.step()
    assert len(world.jobs) == 1
    # A build that failed is tried again, though nothing was written since.
    world.jobs[0][1].end(UnavailableError("no"))
    world.refiner.step()
    world.clock.now += RETRY_AFTER_S
    world.refiner.step()
    assert len(world.jobs) == 2
