"""The vector index against brute force, its guards, and what it refuses."""

from __future__ import annotations

import errno
import json
import math
import os
import random
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import faiss
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.errors import CorruptIndexError, ShardError, UsageError, VectorError
from cluster.index import vector as module
from cluster.index.vector import Plan, VectorIndex, write_vectors
from cluster.index.vector_file import Precision, raw_path
from tests.support.vectors import Floats, clustered, identity, unit


@pytest.fixture
def opened(tmp_path: Path) -> Callable[..., VectorIndex]:
    def build(vectors: Floats, rows: npt.ArrayLike | None = None, total: int | None = None, **options: Any) -> VectorIndex:
        numbers = np.arange(len(vectors)) if rows is None else np.asarray(rows, dtype=np.int64)
        dimensions = vectors.shape[1]
        write_vectors(tmp_path / "vectors.faiss", vectors, numbers, identity(dimensions), **options)
        return VectorIndex(tmp_path / "vectors.faiss", len(vectors) if total is None else total, identity(dimensions))

    return build


# Coordinates from a small grid: many equal vectors and equal scores, which is where cuts and orders go wrong.
coordinates = st.integers(-2, 2)


@st.composite
def searches(draw: st.DrawFn) -> tuple[Floats, npt.NDArray[np.int64], int, list[npt.NDArray[np.bool_]], Floats, int]:
    total = draw(st.integers(1, 60))
    rows = draw(st.lists(st.integers(0, total - 1), unique=True, min_size=1, max_size=total))
    vector = st.lists(coordinates, min_size=3, max_size=3).filter(any)
    vectors = unit(draw(st.lists(vector, min_size=len(rows), max_size=len(rows))))
    queries = unit(draw(st.lists(vector, min_size=1, max_size=6)))
    masks = [np.array(draw(st.lists(st.booleans(), min_size=total, max_size=total))) for _ in range(2)]
    return vectors, np.array(sorted(rows), dtype=np.int64), total, masks, queries, draw(st.integers(1, 70))


@given(case=searches(), graph=st.booleans(), gather=st.booleans(), precision=st.sampled_from(Precision))
def test_every_search_equals_brute_force_over_the_allowed_rows(
    case: tuple[Floats, npt.NDArray[np.int64], int, list[npt.NDArray[np.bool_]], Floats, int],
    graph: bool,
    gather: bool,
    precision: Precision,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    vectors, rows, total, masks, queries, k = case
    path = tmp_path_factory.getbasetemp() / "property.faiss"
    write_vectors(path, vectors, rows, identity(3), precision=precision, graph_threshold=0 if graph else 1000)
    index = VectorIndex(path, total, identity(3))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "GATHER_BYTES", module.GATHER_BYTES if gather else 0)
        prepared = [index.prepare(mask) for mask in masks]
    picks = [place % 2 for place in range(len(queries))]
    found = index.search(queries, [prepared[pick] for pick in picks], k)
    for query, pick, (hits, scores) in zip(queries, picks, found, strict=True):
        check_ranking(dict(zip(rows.tolist(), vectors, strict=True)), masks[pick], query, k, hits, scores)


def check_ranking(
    by_row: dict[int, Floats],
    mask: npt.NDArray[np.bool_],
    query: Floats,
    k: int,
    hits: npt.NDArray[np.int64],
    scores: npt.NDArray[np.float64],
) -> None:
    """As brute force has it, save for float32's noise between unequal vectors of one score; equal ones have no such excuse."""
    exact = {row: float(vector.astype(np.float64) @ query) for row, vector in by_row.items() if mask[row]}
    best = sorted(exact.values(), reverse=True)[:k]
    assert (hits.dtype, scores.dtype) == (np.int64, np.float64)
    assert len(set(hits.tolist())) == len(hits) == len(best)
    np.testing.assert_allclose([exact[row] for row in hits.tolist()], best, atol=1e-6)
    np.testing.assert_allclose(scores, best, atol=1e-6)
    listed = list(zip((-scores).tolist(), hits.tolist(), strict=True))
    assert listed == sorted(listed)
    place = {row: (-score, row) for row, score in zip(hits.tolist(), scores.tolist(), strict=True)}
    for row in hits.tolist():
        for other, vector in by_row.items():
            if mask[other] and other < row and np.array_equal(vector, by_row[row]):
                assert other in place
                assert place[other] < place[row]


def test_the_plan_follows_the_costs(opened: Callable[..., VectorIndex], monkeypatch: pytest.MonkeyPatch) -> None:
    index = opened(clustered(30_000, 2, seed=1), graph_threshold=100_000)
    everything = index.prepare(None)
    assert index.plan(everything, 1, 100) is Plan.EXACT
    monkeypatch.setattr(index, "_links", 32)
    half = index.prepare(np.arange(30_000) % 2 == 0)
    assert half.gathered is not None
    assert index.plan(half, 1, 100) is Plan.EXACT
    monkeypatch.setattr(module, "GATHER_BYTES", 0)
    assert index.plan(everything, 1, 10) is Plan.GRAPH
    assert index.plan(index.prepare(np.arange(30_000) % 2 == 0), 1, 10) is Plan.GRAPH
    assert index.plan(index.prepare(np.arange(30_000) % 100 == 0), 1, 10) is Plan.EXACT
    assert index.plan(index.prepare(np.zeros(30_000, bool)), 1, 10) is Plan.NOTHING


def far_survivors() -> tuple[Floats, Floats]:
    """A thousand vectors near the query (1, 0) and five far from it, nearest first."""
    source = random.Random(7)
    angles = [source.uniform(-0.3, 0.3) for _ in range(1000)] + [math.pi / 2 + 0.05 * step for step in range(5)]
    return unit([[math.cos(angle), math.sin(angle)] for angle in angles]), np.array([[1.0, 0.0]], dtype=np.float32)


@pytest.mark.parametrize("survivors", [5, 1, 0])
@pytest.mark.parametrize(("graph_threshold", "gather"), [(0, False), (10_000, False), (10_000, True)])
def test_few_far_survivors_are_all_found(
    graph_threshold: int,
    survivors: int,
    gather: bool,
    opened: Callable[..., VectorIndex],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    vectors, query = far_survivors()
    index = opened(vectors, graph_threshold=graph_threshold)
    if not gather:
        monkeypatch.setattr(module, "GATHER_BYTES", 0)
    if graph_threshold == 0:
        monkeypatch.setattr(VectorIndex, "plan", lambda self, selection, *_: Plan.GRAPH if selection.count else Plan.NOTHING)
    mask = np.zeros(1005, dtype=bool)
    mask[1000 : 1000 + survivors] = True
    rows, _ = index.search(query, [index.prepare(mask)], 5)[0]
    assert rows.tolist() == list(range(1000, 1000 + survivors))


def test_asking_for_more_than_there_is_gives_what_there_is(opened: Callable[..., VectorIndex]) -> None:
    index = opened(unit([[1, 0], [0, 1]]), rows=[3, 9], total=12)
    rows, scores = index.search(np.array([[0, 2]], np.float32), [None], 5)[0]
    assert rows.tolist() == [9, 3]
    assert scores.tolist() == [1.0, 0.0]


def test_an_empty_index_has_no_hits(opened: Callable[..., VectorIndex]) -> None:
    index = opened(np.empty((0, 4), np.float32), total=7)
    queries = np.ones((2, 4), np.float32)
    for selection in (None, index.prepare(np.ones(7, bool))):
        assert [hits.tolist() for hits, _ in index.search(queries, [selection] * 2, 5)] == [[], []]
    assert index.search(np.empty((0, 4), np.float32), [], 5) == []


@pytest.mark.parametrize("k", [0, -1])
def test_no_hits_cannot_be_asked_for(k: int, opened: Callable[..., VectorIndex]) -> None:
    with pytest.raises(UsageError) as caught:
        opened(unit([[1, 0]])).search(np.ones((1, 2), np.float32), [None], k)
    assert caught.value.field == "limit"


@pytest.mark.parametrize(
    ("fault", "word"),
    [([math.nan, 0, 0], "NaN"), ([0, math.inf, 0], "infinity"), ([0, 0, 0], "zeros"), ([0.5, 0, 0], "length 0.5")],
)
def test_an_unusable_vector_is_refused_by_row(fault: list[float], word: str, tmp_path: Path) -> None:
    vectors = unit([[1, 0, 0], [0, 1, 0], [0, 0, 1]])
    vectors[1] = fault
    with pytest.raises(VectorError, match=rf"row 14: .*{word}"):
        write_vectors(tmp_path / "v.faiss", vectors, np.array([11, 14, 20]), identity(3))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("rows", [[5, 5], [5, 4], [-1, 0], [0]])
def test_row_numbers_out_of_order_are_refused(rows: list[int], tmp_path: Path) -> None:
    with pytest.raises(VectorError):
        write_vectors(tmp_path / "v.faiss", unit([[1, 0], [0, 1]]), np.array(rows), identity(2))


@pytest.mark.parametrize("query", [[math.nan, 1, 1, 1], [math.inf, 1, 1, 1], [0, 0, 0, 0]])
def test_an_unusable_query_is_an_error_and_not_an_empty_answer(query: list[float], opened: Callable[..., VectorIndex]) -> None:
    index = opened(unit(np.eye(4)))
    with pytest.raises(VectorError):
        index.search(np.array([[1, 0, 0, 0], query], np.float32), [None, None], 3)


def test_wrong_dimensions_are_named_with_both_sizes_and_the_model(opened: Callable[..., VectorIndex], tmp_path: Path) -> None:
    index = opened(unit(np.eye(4)))
    with pytest.raises(VectorError, match=r"1x3.*test/m1/4/.*4 dimensions"):
        index.search(np.ones((1, 3), np.float32), [None], 3)
    with pytest.raises(VectorError, match=r"2x3.*test/m1/4/.*4 dimensions"):
        write_vectors(tmp_path / "w.faiss", np.ones((2, 3), np.float32), np.arange(2), identity(4))
    assert index.search(np.ones((1, 4), np.float32), [None], 3)[0][0].tolist() == [0, 1, 2]


def test_vectors_of_another_model_or_size_are_not_opened(tmp_path: Path) -> None:
    path = tmp_path / "v.faiss"
    write_vectors(path, unit(np.eye(4)), np.arange(4), identity(4))
    for other in (identity(4, "m2"), identity(8)):
        with pytest.raises(VectorError, match=r"test/m1/4/.*embed the project again"):
            VectorIndex(path, 4, other)
    assert VectorIndex(path, 4, identity(4)).count == 4


def test_inputs_are_only_read(tmp_path: Path) -> None:
    vectors = unit([[3, 4], [1, 0]])
    queries = np.array([[6.0, 8.0]], dtype=np.float32)
    rows = np.array([0, 1], dtype=np.int32)
    mask = np.array([True, False])
    for array in (vectors, queries, rows, mask):
        array.flags.writeable = False
    write_vectors(tmp_path / "v.faiss", vectors, rows, identity(2))
    index = VectorIndex(tmp_path / "v.faiss", 2, identity(2))
    found, scores = index.search(queries, [index.prepare(mask)], 2)[0]
    assert found.tolist() == [0]
    assert scores == pytest.approx([1.0], abs=1e-6)
    assert queries.tolist() == [[6.0, 8.0]]
    np.testing.assert_array_equal(vectors, unit([[3, 4], [1, 0]]))


def test_scores_are_cosines_not_distances(opened: Callable[..., VectorIndex]) -> None:
    # Squared distances 0 and 1.2 from the query: cosine = 1 - d / 2.
    index = opened(unit([[1, 0], [0.4, math.sqrt(1 - 0.16)], [-1, 0]]))
    rows, scores = index.search(np.array([[5, 0]], np.float32), [None], 3)[0]
    assert rows.tolist() == [0, 1, 2]
    assert scores == pytest.approx([1.0, 0.4, -1.0], abs=1e-6)
    assert scores.max() <= 1.0
    assert scores.min() >= -1.0


@pytest.mark.parametrize("graph_threshold", [0, 10_000])
@pytest.mark.parametrize("queries", [1, 16])
@pytest.mark.parametrize("k", [10, 150])
@pytest.mark.parametrize("precision", list(Precision))
def test_among_equal_vectors_the_lowest_rows_win(
    precision: Precision,
    k: int,
    queries: int,
    graph_threshold: int,
    opened: Callable[..., VectorIndex],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = clustered(1, 64, seed=8)
    vectors = np.concatenate([clustered(300, 64, seed=2), np.tile(one, (1200, 1))])
    index = opened(vectors, graph_threshold=graph_threshold, precision=precision)
    odd = np.arange(1500) % 2 == 1
    gathered = index.prepare(odd)
    monkeypatch.setattr(module, "GATHER_BYTES", 0)
    selections = [None, index.prepare(odd)]
    if graph_threshold:
        selections.append(gathered)
    else:
        monkeypatch.setattr(VectorIndex, "plan", lambda *_: Plan.GRAPH)
    for selection in selections:
        expected = range(300, 1500) if selection is None else range(301, 1500, 2)
        for rows, scores in index.search(np.tile(one, (queries, 1)), [selection] * queries, k):
            assert rows.tolist() == list(expected)[:k]
            assert len(set(scores.tolist())) == 1


def test_a_cosine_is_never_above_one(opened: Callable[..., VectorIndex]) -> None:
    vectors = clustered(300, 384, seed=7)
    # What is clipped: float32's sums of squares of unit vectors are above 1 now and then.
    assert np.einsum("ij,ij->i", vectors, vectors).max() > 1
    found = opened(vectors).search(vectors, [None] * 300, 1)
    assert [rows.tolist() for rows, _ in found] == [[row] for row in range(300)]
    assert max(scores[0] for _, scores in found) <= 1


def test_neither_batching_nor_the_filter_shows_in_a_score(
    opened: Callable[..., VectorIndex], monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors = clustered(600, 40, seed=5)
    index = opened(vectors)
    queries = clustered(16, 40, seed=6)
    alone = [index.search(query[None], [None], 600)[0] for query in queries]
    together = index.search(queries, [None] * 16, 600)
    masked = index.search(queries, [index.prepare(np.arange(600) > 0)] * 16, 600)
    for (rows, scores), (rows_2, scores_2), (rows_3, scores_3) in zip(alone, together, masked, strict=True):
        assert rows.tolist() == rows_2.tolist()
        assert scores.tolist() == scores_2.tolist()
        assert scores_3.tolist() == [score for row, score in zip(rows, scores, strict=True) if row > 0]
        assert rows_3.tolist() == [row for row in rows if row > 0]


@pytest.mark.parametrize("graph_threshold", [0, 10_000])
@pytest.mark.parametrize("precision", list(Precision))
@pytest.mark.parametrize("step", [1, 2])
def test_equal_input_gives_equal_bytes_and_a_rewrite_replaces_the_files(
    step: int, precision: Precision, graph_threshold: int, tmp_path: Path
) -> None:
    vectors, rows = clustered(300, 8, seed=9), np.arange(300) * step
    for name in ("a", "b", "a"):
        write_vectors(tmp_path / name, vectors, rows, identity(8), graph_threshold=graph_threshold, precision=precision)
    names = ["a", "b"] if precision is Precision.FLOAT32 else ["a", "a.f32", "b", "b.f32"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    for name in names[: len(names) // 2]:
        assert (tmp_path / name).read_bytes() == (tmp_path / name.replace("a", "b")).read_bytes()
    write_vectors(tmp_path / "a", vectors, rows, identity(8))
    assert not (tmp_path / "a.f32").exists()
    (tmp_path / "a.f32").write_bytes(b"of no concern")
    assert VectorIndex(tmp_path / "a", 600, identity(8)).count == 300


@pytest.mark.parametrize("precision", [Precision.FLOAT16, Precision.SQ8])
def test_no_precision_shows_in_a_score(precision: Precision, opened: Callable[..., VectorIndex]) -> None:
    vectors, queries = clustered(3_000, 48, seed=5), clustered(8, 48, seed=6)
    mask = np.arange(3_000) % 3 == 0
    expected = opened(vectors).search(queries, [None] * 8, 100)
    index = opened(vectors, precision=precision)
    assert index.precision is precision
    assert index.memory_bytes < vectors.nbytes * (0.6 if precision is Precision.FLOAT16 else 0.35)
    for (rows, scores), (rows_2, scores_2) in zip(expected, index.search(queries, [None] * 8, 100), strict=True):
        assert rows.tolist() == rows_2.tolist()
        assert scores.tolist() == scores_2.tolist()
    part = opened(vectors)
    expected = part.search(queries, [part.prepare(mask)] * 8, 100)
    index = opened(vectors, precision=precision)
    for (rows, scores), (rows_2, scores_2) in zip(expected, index.search(queries, [index.prepare(mask)] * 8, 100), strict=True):
        assert (rows.tolist(), scores.tolist()) == (rows_2.tolist(), scores_2.tolist())


@pytest.mark.parametrize("precision", [Precision.FLOAT16, Precision.SQ8])
def test_an_exact_search_is_exact_where_rounding_swaps_whole_neighbourhoods(
    precision: Precision, opened: Callable[..., VectorIndex]
) -> None:
    # A thousand vectors closer to each other than what one byte a number can tell apart.
    rng = np.random.default_rng(11)
    centre = unit(rng.standard_normal((1, 64)))
    crowd = unit(centre + 0.0005 * rng.standard_normal((1000, 64)))
    vectors = np.concatenate([crowd, clustered(500, 64, seed=1)])
    for query in unit(centre + 0.3 * rng.standard_normal((5, 64))):
        index = opened(vectors, precision=precision)
        rows, _ = index.search(query[None], [None], 10)[0]
        scores = np.einsum("ij,j->i", vectors, query)
        assert rows.tolist() == np.lexsort((np.arange(1500), -scores))[:10].tolist()


def test_scored_rows_do_not_stay_mapped(opened: Callable[..., VectorIndex], monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = clustered(20_000, 128, seed=2)
    index = opened(vectors, precision=Precision.SQ8)
    touched = []
    for query in vectors[:300]:
        rows, _ = index.search(query[None], [None], 20)[0]
        touched.append(rows)
    assert len(np.unique(np.concatenate(touched))) > 2_000
    assert mapped_bytes("vectors.faiss.f32") < vectors.nbytes / 2


def mapped_bytes(name: str) -> int:
    """Resident bytes of this process's mapping of the file `name`."""
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    sizes = [int(next(line for line in lines if line.startswith("Rss:")).split()[1]) for line in lines if name in line]
    return 1024 * sum(sizes)


def test_float32_vectors_of_another_write_are_refused(tmp_path: Path) -> None:
    path, other = tmp_path / "v.faiss", tmp_path / "w.faiss"
    write_vectors(path, clustered(50, 8, seed=1), np.arange(50), identity(8), precision=Precision.SQ8)
    write_vectors(other, clustered(50, 8, seed=2), np.arange(50), identity(8), precision=Precision.SQ8)
    raw = raw_path(path).read_bytes()
    for damaged in (raw_path(other).read_bytes(), raw[:-1], raw[40:], b""):
        raw_path(path).write_bytes(damaged)
        with pytest.raises(CorruptIndexError):
            VectorIndex(path, 50, identity(8))
    raw_path(path).unlink()
    with pytest.raises(CorruptIndexError):
        VectorIndex(path, 50, identity(8))
    raw_path(path).write_bytes(raw)
    assert VectorIndex(path, 50, identity(8)).count == 50


@pytest.mark.parametrize("kind", ["exact", "graph"])
def test_files_of_the_first_format_are_still_read(kind: str, tmp_path: Path) -> None:
    vectors, rows = clustered(200, 8, seed=3), np.arange(200) * 3
    inner = faiss.IndexFlatIP(8) if kind == "exact" else faiss.IndexHNSWFlat(8, 16, faiss.METRIC_INNER_PRODUCT)
    index = faiss.IndexIDMap(inner)
    index.add_with_ids(vectors, rows)
    path = tmp_path / "v.faiss"
    faiss.write_index(index, str(path))
    trailer = json.dumps({"format": 1, "identity": asdict(identity(8)), "count": 200, "kind": kind}, sort_keys=True).encode()
    with path.open("ab") as file:
        file.write(trailer + len(trailer).to_bytes(8, "little") + b"RAYCVEC\x01")
    opened = VectorIndex(path, 600, identity(8))
    for row in (0, 100, 199):
        found, _ = opened.search(vectors[row : row + 1], [None], 1)[0]
        assert found.tolist() == [3 * row]


def test_a_format_that_is_not_known_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "v.faiss"
    trailer = json.dumps({"format": 3}).encode()
    path.write_bytes(trailer + len(trailer).to_bytes(8, "little") + b"RAYCVEC\x01")
    with pytest.raises(CorruptIndexError, match="format 3"):
        VectorIndex(path, 4, identity(4))


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "v.faiss"
    write_vectors(path, unit(np.eye(4)), np.arange(4), identity(4))
    whole = path.read_bytes()
    for damaged in (b"", b"x", whole[:40], whole[:-3], whole[100:], whole[:-16] + b"\xff" * 8 + whole[-8:]):
        path.write_bytes(damaged)
        with pytest.raises(CorruptIndexError):
            VectorIndex(path, 4, identity(4))
    path.unlink()
    with pytest.raises(CorruptIndexError):
        VectorIndex(path, 4, identity(4))


def test_a_row_beyond_the_bucket_is_refused(tmp_path: Path) -> None:
    write_vectors(tmp_path / "v", unit(np.eye(2)), np.array([0, 7]), identity(2))
    with pytest.raises(CorruptIndexError, match="row 7"):
        VectorIndex(tmp_path / "v", 7, identity(2))


def test_a_selection_serves_only_the_index_that_made_it(opened: Callable[..., VectorIndex]) -> None:
    first = opened(unit(np.eye(3)))
    selection = first.prepare(np.array([True, False, False]))
    second = opened(unit(np.eye(3)))
    with pytest.raises(UsageError, match="another index"):
        second.search(np.ones((1, 3), np.float32), [selection], 1)
    for mask in (np.ones(2, bool), np.ones(3, np.int64)):
        with pytest.raises(UsageError):
            first.prepare(mask)
    with pytest.raises(UsageError):
        first.search(np.ones((1, 3), np.float32), [], 1)


def test_a_closed_index_says_so(opened: Callable[..., VectorIndex]) -> None:
    index = opened(unit(np.eye(3)))
    assert index.memory_bytes > 0
    index.close()
    with pytest.raises(ShardError):
        index.search(np.ones((1, 3), np.float32), [None], 1)


@pytest.mark.parametrize("step", [1, 2])
def test_a_full_disk_leaves_the_file_as_it_was_or_one_that_is_refused(
    step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, synced = tmp_path / "v.faiss", iter(range(10))
    write_vectors(path, clustered(50, 8, seed=1), np.arange(50), identity(8), precision=Precision.SQ8)
    before = path.read_bytes()

    def full(_descriptor: int) -> None:
        # A file is synced before it is moved to its place, and its folder after: 0 and 1 are the float32 vectors'.
        if next(synced) == 2 * (step - 1):
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(CorruptIndexError, match="No space left"):
            write_vectors(path, clustered(50, 8, seed=2), np.arange(50), identity(8), precision=Precision.SQ8)
    assert path.read_bytes() == before
    assert sorted(item.name for item in tmp_path.iterdir()) == ["v.faiss", "v.faiss.f32"], "nothing half written stays"
    if step == 1:
        assert VectorIndex(path, 50, identity(8)).count == 50
    else:
        with pytest.raises(CorruptIndexError, match="belongs to another"):
            VectorIndex(path, 50, identity(8))
