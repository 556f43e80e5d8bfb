"""A shard's partitions follow the store: nothing written is missing from an answer, nothing is applied twice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from actors.partitions import FOLLOW_RETRY_S, IDLE_S, PIECE, RETRY_S, PartitionHolder
from cluster.errors import UnavailableError
from cluster.feed import Feed, NodeChanges
from cluster.graph.memory import MemoryGraphStore
from cluster.model.manifest import Bucket, Manifest
from cluster.model.nodes import Node
from cluster.placement import bucket_of
from cluster.ports import WriteBatch
from cluster.storage import GenerationStore
from tests.support.factories import ACCOUNT, make_edge, make_node
from tests.unit.test_generations import bucket, make_manifest


class Part:
    """A partition that remembers what it was told. Its rows are the ids that its generation was built with."""

    def __init__(self, manifest: Manifest, place: Bucket) -> None:
        self.name = f"{manifest.generation}/{place.name}"
        self.applied: list[Mapping[str, Node | None]] = []
        self.settled = 0
        self.closed = False
        self.error: Exception | None = None

    def apply(self, changes: Mapping[str, Node | None]) -> None:
        if self.error is not None:
            raise self.error
        self.applied.append(changes)

    def settle(self) -> None:
        self.settled += 1

    def close(self) -> None:
        self.closed = True

    @property
    def shown(self) -> dict[str, int | None]:
        """id -> revision of the node that is shown; None for one that was taken out."""
        return {key: node and node.revision for changes in self.applied for key, node in changes.items()}


class World:
    def __init__(self, folder: Path) -> None:
        self.store = MemoryGraphStore(account=ACCOUNT)
        self.generations = GenerationStore(folder)
        self.opened: list[Part] = []
        self.now = 100.0
        self.reads: list[int] = []
        self.down = False
        self.holder = self.make_holder()

    def make_holder(self) -> PartitionHolder[Part]:
        feed = Feed(self.store, ACCOUNT)

        def follow(since: int, wanted: Callable[[str], bool]) -> Iterable[NodeChanges]:
            self.reads.append(since)
            if self.down:
                raise UnavailableError("the store is down")
            return feed(since, wanted)

        def opener(_folder: Path, place: Bucket, manifest: Manifest) -> Part:
            self.opened.append(Part(manifest, place))
            return self.opened[-1]

        return PartitionHolder(self.generations, "s", ("s",), opener, follow, lambda: self.now)

    def publish(self, generation: str, buckets: int = 1, project: str = "main") -> None:
        with self.generations.building(project, generation) as part:
            folders = [part / f"b{number:04d}" for number in range(buckets)]
            for folder in folders:
                folder.mkdir()
                (folder / "rows.parquet").write_bytes(b"x")
            parts = tuple(bucket(folder, 1) for folder in folders)
            manifest = make_manifest(generation, buckets=parts)
            manifest = replace(manifest, account=ACCOUNT, project=project, watermark=self.store.revision())
            self.generations.finish(part, manifest)

    def write(self, *nodes: Node, **batch: Any) -> int:
        return self.store.write(WriteBatch(nodes=nodes, now=5, **batch))

    def part(self, generation: str = "g1", project: str = "main") -> Part:
        """The only partition of a generation, which answers."""
        partitions, failures = self.holder.held({project: generation})
        assert not failures
        return partitions[0][1]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_what_was_written_after_the_build_is_replayed_before_the_first_answer(world: World) -> None:
    world.write(make_node("before"))
    world.publish("g1")
    revision = world.write(make_node("a"), make_node("b"))
    world.write(make_node("b", text={"content": "newer"}))
    assert world.part().shown == {"a": revision, "b": revision + 1}
    world.holder = world.make_holder()
    assert world.part().shown == {"a": revision, "b": revision + 1}, "and again after a restart"


def test_each_change_is_applied_once_and_a_known_revision_reads_nothing(world: World) -> None:
    world.publish("g1")
    part = world.part()
    for number in range(3):
        revision = world.write(make_node("a", text={"content": f"version {number}"}))
        assert world.holder.catch_up(revision) == []
        assert part.shown == {"a": revision}
    reads = len(world.reads)
    assert world.holder.catch_up(revision) == []
    assert world.holder.catch_up(revision - 1) == []
    assert world.part() is part
    assert (len(world.reads), len(part.applied)) == (reads, 3)
    assert part.settled == 5, "what waits for something else is looked at each time"


def test_a_change_goes_to_the_bucket_of_its_id_and_to_no_other(world: World) -> None:
    world.publish("g1", buckets=4)
    nodes = [make_node(f"n{number}") for number in range(40)]
    world.holder.held({"main": "g1"})
    world.holder.catch_up(world.write(*nodes))
    assert [set(part.shown) for part in world.opened] == [
        {node.id for node in nodes if bucket_of(node.id, 4) == number} for number in range(4)
    ]


@pytest.mark.parametrize(
    "batch",
    [
        {"soft_delete": ("a",)},
        {"purge": ("a",)},
        {"nodes": (make_node("a", text={"content": " "}),)},
        {"nodes": (make_node("a", project="other"),)},
    ],
)
def test_what_is_deleted_or_has_no_text_or_went_elsewhere_is_taken_out(world: World, batch: dict[str, Any]) -> None:
    world.write(make_node("a"))
    world.publish("g1")
    part = world.part()
    assert part.shown == {}
    world.holder.catch_up(world.store.write(WriteBatch(now=5, **batch)))
    assert part.shown == {"a": None}


def test_edges_move_the_revision_and_nothing_else(world: World) -> None:
    world.publish("g1")
    part = world.part()
    revision = world.write(edges=(make_edge(),))
    assert world.holder.catch_up(revision) == []
    assert part.applied == []
    reads = len(world.reads)
    world.part()
    assert len(world.reads) == reads


def test_a_generation_that_was_opened_and_is_not_served_yet_misses_nothing(world: World) -> None:
    """The router still pins the old one when the write comes, and swaps after it."""
    world.publish("g1")
    world.part("g1")
    world.publish("g2")
    world.part("g2")
    world.part("g1")
    revision = world.write(make_node("a"))
    world.holder.catch_up(revision)
    assert world.part("g2").shown == {"a": revision}
    assert world.part("g1").shown == {"a": revision}


def test_an_older_generation_that_nobody_asks_costs_nothing_until_somebody_does(world: World) -> None:
    world.publish("g1")
    world.publish("g2")
    old, new = world.part("g1"), world.part("g2")
    world.now += IDLE_S + 1
    first = world.write(make_node("a"))
    world.holder.catch_up(first)
    assert (old.shown, new.shown) == ({}, {"a": first})
    assert world.part("g1").shown == {"a": first}


def test_a_store_that_cannot_be_read_is_no_reason_to_answer_from_what_is_old(world: World) -> None:
    world.publish("g1")
    part = world.part()
    revision = world.write(make_node("a"))
    world.down = True
    failures = world.holder.catch_up(revision)
    assert [(failure.bucket, failure.code) for failure in failures] == [("b0000", "unavailable")]
    assert world.holder.held({"main": "g1"})[0] == []
    reads = len(world.reads)
    assert world.holder.held({"main": "g1"})[0] == []
    assert len(world.reads) == reads, "a store that is down is not asked for every question"
    world.down = False
    world.now += FOLLOW_RETRY_S
    assert world.part() is part, "it was behind, not broken"
    assert part.shown == {"a": revision}


def test_a_generation_is_not_opened_on_a_store_that_is_down(world: World) -> None:
    world.publish("g1")
    world.down = True
    assert [failure.code for failure in world.holder.held({"main": "g1"})[1]] == ["unavailable"]
    world.down = False
    world.now += FOLLOW_RETRY_S
    assert world.part().shown == {}


def test_a_revision_that_the_store_does_not_show_yet_is_waited_for(world: World) -> None:
    world.publish("g1")
    world.part()
    revision = world.write(make_node("a"))
    assert len(world.holder.catch_up(revision + 1)) == 1
    assert world.holder.held({"main": "g1"})[0] == []
    world.write(make_node("b"))
    world.now += FOLLOW_RETRY_S
    assert world.part().shown == {"a": revision, "b": revision + 1}


def test_a_partition_that_fails_to_apply_is_opened_anew_and_replays_all(world: World) -> None:
    world.publish("g1", buckets=2)
    world.holder.held({"main": "g1"})
    broken, whole = world.opened
    node_ids = {bucket_of(f"n{number}", 2): f"n{number}" for number in range(10)}
    first = world.write(make_node(node_ids[0]), make_node(node_ids[1]))
    world.holder.catch_up(first)
    broken.error = MemoryError("no memory left")
    second = world.write(*(make_node(node_id, text={"content": "newer"}) for node_id in node_ids.values()))
    failures = world.holder.catch_up(second)
    assert [failure.bucket for failure in failures] == ["b0000"]
    assert "memory" not in failures[0].detail
    assert broken.closed
    partitions, failures = world.holder.held({"main": "g1"})
    assert [name for name, _ in partitions] == ["main/b0001"]
    assert len(failures) == 1
    world.now += RETRY_S
    partitions, failures = world.holder.held({"main": "g1"})
    assert not failures
    assert [part.shown for _, part in partitions] == [{node_ids[0]: second}, {node_ids[1]: second}]
    assert partitions[1][1] is whole, "the others stay open"
    assert len(whole.applied) == 2, "and are told nothing twice"


def test_older_generations_are_closed_when_newer_ones_came(world: World) -> None:
    for name in ("g1", "g2", "g3"):
        world.publish(name)
        world.part(name)
    assert [part.closed for part in world.opened] == [True, False, False]
    world.holder.close()
    assert all(part.closed for part in world.opened)


# --- making ready piece by piece ---------------------------------------------------------------------------------------------


def pieces(world: World, pins: dict[str, str], between: Callable[[], None] = lambda: None) -> int:
    """How many calls it takes when each does one step."""
    calls = 1
    while (failures := world.holder.prepare_some(pins, 0.0)) is None:
        between()
        calls += 1
    assert failures == []
    return calls


def test_a_generation_is_made_ready_in_pieces_while_the_other_answers_and_follows(world: World) -> None:
    world.publish("g1")
    old = world.part()
    world.publish("g2")
    world.write(*(make_node(f"n{number:03}") for number in range(5 * PIECE)))
    newest: list[int] = []

    def between() -> None:
        newest.append(world.write(make_node(f"later-{len(newest)}")))
        assert world.holder.catch_up(newest[-1]) == []
        assert world.part() is old and old.shown[f"later-{len(newest) - 1}"] == newest[-1]
        fresh = world.opened[1]
        assert all(len(changes) <= PIECE for changes in fresh.applied), "catching up does not do the rest at once"

    assert pieces(world, {"main": "g2"}, between) >= 6
    fresh = world.part("g2")
    assert fresh is world.opened[1] and len(world.opened) == 2
    assert fresh.shown == old.shown
    assert fresh.shown[f"later-{len(newest) - 1}"] == newest[-1]


def test_what_is_ready_takes_one_call(world: World) -> None:
    world.publish("g1")
    world.write(make_node("a"))
    part = world.part()
    assert pieces(world, {"main": "g1"}) == 1
    assert world.part() is part


def test_other_pins_end_what_was_being_made_ready(world: World) -> None:
    world.publish("g1")
    world.publish("g2")
    world.write(make_node("a"))
    assert world.holder.prepare_some({"main": "g1"}, 0.0) is None
    pieces(world, {"main": "g2"})
    assert [part.closed for part in world.opened] == [True, False]
    assert world.part("g1").shown == world.part("g2").shown
    assert world.holder.prepare_some({"main": "g3"}, 0.0) is not None, "a generation that is not there is told as failed"


def test_a_partition_that_fails_in_a_piece_is_told(world: World) -> None:
    world.publish("g1")
    world.write(*(make_node(f"n{number:03}") for number in range(3 * PIECE)))
    assert world.holder.prepare_some({"main": "g1"}, 0.0) is None
    world.opened[0].error = MemoryError("no memory left")
    failures = None
    while failures is None:
        failures = world.holder.prepare_some({"main": "g1"}, 0.0)
    assert [failure.bucket for failure in failures] == ["b0000"] and world.opened[0].closed
    world.now += RETRY_S
    assert world.holder.prepare({"main": "g1"}) == []
