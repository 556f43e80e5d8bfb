"""A vector shard's answer is the one of a single list of all its partitions' rows, however they are split."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.near import Near
from actors.vector_shard import VectorShard
from cluster.model.guard import All, Guard, In
from cluster.model.manifest import VectorIdentity
from cluster.model.query import LegAnswer, VectorQuery

IDENTITY = VectorIdentity(provider="test", model="one", dimensions=1)


class Part:
    """Rows with a score each for the query (1,), and the negative of it for (-1,). Ids ascend with the rows."""

    identity = IDENTITY
    over_bound = False
    left_out = False

    def __init__(self, rows: dict[str, float], fails_at: int | None = None) -> None:
        self.names = sorted(rows)
        self.scores = np.array([rows[name] for name in self.names])
        self.fails_at = fails_at
        self.asked: list[tuple[int, int]] = []

    def search(self, queries: npt.NDArray[np.float32], _guard: Guard, k: int) -> Near:
        self.asked.append((len(queries), k))
        if self.fails_at is not None and k >= self.fails_at:
            raise MemoryError("no memory left")
        scores = queries[:, :1].astype(np.float64) * self.scores
        rows = np.lexsort((np.broadcast_to(np.arange(len(self.names)), scores.shape), -scores), axis=-1)[:, :k]
        return Near.of(rows, np.take_along_axis(scores, rows, axis=1), complete=k >= len(self.names))

    def ids(self, rows: npt.NDArray[np.int64]) -> list[str]:
        return [self.names[row] for row in rows]


class Holder:
    def __init__(self, parts: dict[str, Part]) -> None:
        self.parts = parts

    def held(self, _pins: Any) -> tuple[list[tuple[str, Part]], list[Any]]:
        return list(self.parts.items()), []


def answers(parts: dict[str, Part], k: int) -> list[LegAnswer]:
    pins = {name.partition("/")[0]: "g1" for name in parts} or {"main": "g1"}
    shard = VectorShard(Holder(parts))  # type: ignore[arg-type]
    vectors = [np.array([sign], np.float32) for sign in (1, -1)]
    return shard.search([VectorQuery(vector=row, identity=IDENTITY, guard=All(()), pins=pins, k=k) for row in vectors])


def expected(rows: dict[str, float], k: int, sign: int) -> list[tuple[str, float]]:
    return sorted(((name, sign * score) for name, score in rows.items()), key=lambda hit: (-hit[1], hit[0]))[:k]


def found(answer: LegAnswer) -> list[tuple[str, float]]:
    return list(zip(answer.ids, answer.scores.tolist(), strict=True))


#: Few different scores, so that many tie; each row in one of four partitions, often most of them in one.
splits = st.lists(st.tuples(st.integers(0, 2).map(float), st.sampled_from([0, 0, 0, 1, 2, 3])), min_size=20, max_size=60)


@settings(max_examples=100, deadline=None)
@given(splits, st.integers(1, 40), st.randoms(use_true_random=False))
def test_any_split_gives_the_list_of_all_rows(split: list[tuple[float, int]], k: int, random: Any) -> None:
    names = [f"n{number:02}" for number in range(len(split))]
    random.shuffle(names)
    rows: list[dict[str, float]] = [{}, {}, {}, {}]
    for name, (score, part) in zip(names, split, strict=True):
        rows[part][name] = score
    parts = {f"main/b{number}": Part(own) for number, own in enumerate(rows)}
    for sign, answer in zip((1, -1), answers(parts, k), strict=True):
        assert found(answer) == expected({name: score for own in rows for name, score in own.items()}, k, sign)
        assert (answer.asked, answer.answered) == (4, 4)


def test_a_partition_is_asked_for_its_part_and_for_all_only_when_it_has_more_of_the_best() -> None:
    even = [{f"p{part}-{number:03}": float(number) for number in range(200)} for part in range(4)]
    parts = {f"main/b{number}": Part(own) for number, own in enumerate(even)}
    answers(parts, 100)
    assert {tuple(part.asked) for part in parts.values()} == {((2, 40),)}
    even[2] = {name: score + 1000 for name, score in even[2].items()}
    parts = {f"main/b{number}": Part(own) for number, own in enumerate(even)}
    best, _ = answers(parts, 100)
    assert all(name.startswith("p2") for name in best.ids)
    assert parts["main/b2"].asked == [(2, 40), (1, 100)], "for the one query of which it has more"
    assert all(part.asked[1:] in ([], [(1, 100)]) for part in parts.values())


def test_hits_of_others_take_the_place_of_a_partition_that_fails_when_it_is_asked_again() -> None:
    rows = [{f"p{part}-{number:03}": float(number) + 1000 * (part == 0) for number in range(200)} for part in range(3)]
    failing = Part(rows[0], fails_at=100)
    parts = {"main/b0": failing, "main/b1": Part(rows[1]), "main/b2": Part(rows[2])}
    best, _ = answers(parts, 100)
    assert failing.asked[-1][1] == 100
    assert found(best) == expected(rows[1] | rows[2], 100, 1)
    assert ([failure.bucket for failure in best.failures], best.answered, best.asked) == (["b0"], 2, 3)


def test_a_node_in_two_projects_is_found_once_and_costs_no_hit() -> None:
    own = {f"a{number:02}": float(number) for number in range(30)}
    others = {"a29": 28.5, "a28": 50.0} | {f"b{number:02}": float(number) for number in range(5)}
    best, _ = answers({"one/b0": Part(own), "two/b0": Part(others)}, 10)
    assert found(best) == expected(own | others | {"a29": 29.0}, 10, 1)


def test_without_partitions_and_without_rows_there_are_no_hits() -> None:
    for parts in ({}, {"main/b0": Part({})}, {"main/b0": Part({}), "main/b1": Part({})}):
        assert [answer.ids for answer in answers(parts, 5)] == [(), ()]


def test_questions_of_equal_guards_are_scanned_together() -> None:
    part = Part({"a": 1.0})
    shard = VectorShard(Holder({"main/b0": part}))  # type: ignore[arg-type]
    vector = np.ones(1, np.float32)
    guards = [In("project", ("main",)), In("project", ("main",)), In("project", ("docs",))]
    shard.search([VectorQuery(vector=vector, identity=IDENTITY, guard=one, pins={"main": "g1"}, k=3) for one in guards])
    assert part.asked == [(2, 3), (1, 3)]


def test_a_question_that_nobody_waits_for_any_more_is_not_begun() -> None:
    part = Part({"a": 1.0})
    shard = VectorShard(Holder({"main/b0": part}), now_s=lambda: 5.0)  # type: ignore[arg-type]
    ask = VectorQuery(vector=np.ones(1, np.float32), identity=IDENTITY, guard=All(()), pins={"main": "g1"}, k=3)
    given = shard.search([replace(ask, until_ms=until) for until in (5_001, 5_000, None, 1)])
    assert part.asked == [(2, 3)]
    assert [answer.ids for answer in given] == [("a",), (), ("a",), ()]
    assert [[failure.code for failure in answer.failures] for answer in given[1::2]] == [["deadline_exceeded"]] * 2
