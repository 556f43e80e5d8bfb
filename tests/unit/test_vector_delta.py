"""Rows in memory are searched as the vectors of a generation are."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

from cluster.errors import VectorError
from cluster.guards import allows
from cluster.index import vector_delta
from cluster.index.vector import VectorIndex, write_vectors
from cluster.index.vector_delta import VectorDelta
from cluster.model.guard import All, Guard, Has, In
from cluster.model.manifest import VectorIdentity
from cluster.model.nodes import Node
from tests.support.factories import make_node

IDENTITY = VectorIdentity(provider="test", model="random", dimensions=48)
EVERYTHING = All(())


def unit(rng: np.random.Generator, count: int) -> np.ndarray:
    rows = rng.standard_normal((count, 48)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def rows(count: int) -> list[Node]:
    return [make_node(f"n{number:03}", agents=("iris",) if number % 3 else ("mira",)) for number in range(count)]


def filled(nodes: list[Node], vectors: np.ndarray) -> VectorDelta:
    delta = VectorDelta(IDENTITY)
    delta.apply(nodes, {node.id: vector for node, vector in zip(nodes, vectors, strict=True)})
    return delta


def found(delta: VectorDelta, queries: np.ndarray, guard: Guard, k: int) -> list[tuple[list[str], np.ndarray]]:
    rows, scores = delta.search(queries, guard, k)
    assert rows.shape == scores.shape == (len(queries), min(k, delta.count(guard)))
    return [(delta.ids(mine), theirs) for mine, theirs in zip(rows, scores, strict=True)]


def test_scores_and_order_are_those_of_a_generations_index(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    nodes, vectors = rows(200), unit(rng, 200)
    vectors[150] = vectors[20]
    write_vectors(tmp_path / "v.faiss", vectors, np.arange(200), IDENTITY)
    index, delta = VectorIndex(tmp_path / "v.faiss", 200, IDENTITY), filled(nodes, vectors)
    queries = np.concatenate([unit(rng, 4) * 3, vectors[20][None]])
    for guard in (EVERYTHING, Has("agents", ("mira",)), In("project", ("nowhere",))):
        selection = index.prepare(np.array([allows(guard, node) for node in nodes]))
        for k in (1, 7, 500):
            right = index.search(queries, [selection] * len(queries), k)
            for (ids, scores), (right_rows, expected) in zip(found(delta, queries, guard, k), right, strict=True):
                assert ids == [nodes[row].id for row in right_rows]
                assert scores.tolist() == expected.tolist()
    assert found(delta, queries[4:], EVERYTHING, 2)[0][0] == ["n020", "n150"]


def test_rows_that_tie_are_cut_by_id_and_not_by_arrival() -> None:
    vector = np.eye(1, 48, dtype=np.float32)[0]
    delta = VectorDelta(IDENTITY)
    for name in ("d", "b", "c", "a"):
        delta.apply([make_node(name)], {name: vector})
    assert found(delta, vector[None], EVERYTHING, 2)[0][0] == ["a", "b"]


def test_a_new_version_takes_the_place_of_the_old_and_what_is_gone_is_gone() -> None:
    rng = np.random.default_rng(2)
    old, new = unit(rng, 2)
    delta = filled([make_node("a"), make_node("b")], unit(rng, 2))
    delta.apply([make_node("a", agents=("iris",))], {"a": old})
    delta.apply([make_node("a", agents=("mira",))], {"a": new}, gone=["b", "never"])
    ((ids, scores),) = found(delta, new[None], EVERYTHING, 10)
    assert ids == ["a"]
    assert scores[0] == pytest.approx(1.0)
    assert found(delta, new[None], Has("agents", ("iris",)), 10)[0][0] == []
    assert (len(delta), "a" in delta, "b" in delta) == (1, True, False)


def test_a_row_without_a_vector_waits_for_it() -> None:
    vector = np.eye(1, 48, dtype=np.float32)[0]
    delta = VectorDelta(IDENTITY)
    delta.apply([make_node("a"), make_node("b")], {"a": vector})
    assert found(delta, vector[None], EVERYTHING, 10)[0][0] == ["a"]
    delta.fill({"b": vector, "unknown": vector})
    assert found(delta, vector[None], EVERYTHING, 10)[0][0] == ["a", "b"]


def test_what_is_no_unit_vector_is_left_out_with_its_node_named(caplog: pytest.LogCaptureFixture) -> None:
    good = np.eye(1, 48, dtype=np.float32)[0]
    delta = VectorDelta(IDENTITY)
    bad = {"nan": good * np.float32("nan"), "long": good * 2, "short": good[:3]}
    with caplog.at_level(logging.ERROR):
        delta.apply([make_node(name) for name in ("good", *bad)], {"good": good, **bad})
    assert found(delta, good[None], EVERYTHING, 10)[0][0] == ["good"]
    assert {record.__dict__["node"] for record in caplog.records} == set(bad)
    with pytest.raises(VectorError):
        delta.search(good[None] * 0, EVERYTHING, 1)


def test_many_updates_of_few_rows_take_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector_delta, "_DEAD_ROWS", 20)
    rng = np.random.default_rng(3)
    delta, last = VectorDelta(IDENTITY), {}
    for step in range(300):
        name = f"n{step % 7}"
        last[name] = unit(rng, 1)[0]
        delta.apply([make_node(name, labels=(f"step{step}",))], {name: last[name]})
        assert delta.rows <= 7 + 20 + 1
    for name, vector in last.items():
        ((ids, scores),) = found(delta, vector[None], EVERYTHING, 1)
        assert ids == [name]
        assert scores[0] == pytest.approx(1.0)
    assert len(found(delta, vector[None], EVERYTHING, 100)[0][0]) == 7
    assert found(delta, vector[None], Has("labels", ("step299",)), 9)[0][0] == ["n5"]
