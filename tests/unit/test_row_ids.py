"""A node's id of whatever form names its row and no other; FAISS sees row numbers alone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cluster.index.rows import RowIds, read_rows, rows_table, write_rows
from cluster.index.vector import VectorIndex, write_vectors
from cluster.placement import bucket_of
from tests.support.factories import make_node
from tests.support.vectors import clustered, identity

# The last two collide in CRC-32.
IDS = ("doc-1", "p/" * 150, "文档", str(2**63 + 5), "-1", "plumless", "buckeroo")


def test_every_id_comes_back_with_its_own_vector(tmp_path: Path) -> None:
    nodes = [make_node(one) for one in IDS]
    write_rows(tmp_path / "rows.parquet", rows_table(nodes, np.ones(len(IDS), np.int32)))
    vectors = clustered(len(IDS), 16, seed=1)
    write_vectors(tmp_path / "v.faiss", vectors, np.arange(len(IDS)), identity(16))
    names = read_rows(tmp_path / "rows.parquet", len(IDS))["id"].to_pylist()
    index = VectorIndex(tmp_path / "v.faiss", len(IDS), identity(16))
    found = index.search(vectors, [None] * len(IDS), 1)
    assert [names[rows[0]] for rows, _ in found] == list(IDS)


@pytest.mark.parametrize("count", [0, 3, 500])
def test_rows_are_named_alike_however_many_are_asked_for(count: int) -> None:
    names = sorted(f"{number:03}-{'文档-é'[: number % 5]}" for number in range(600))
    table = rows_table([make_node(one) for one in ("", *names)], np.ones(601, np.int32)).slice(1)
    rows = np.random.default_rng(1).integers(0, 600, count)
    assert RowIds(table).at(rows) == [names[row] for row in rows]


@pytest.mark.parametrize(("name", "bucket"), [("doc-1", 9249), ("文档", 7004), ("-1", 3734)])
def test_the_bucket_of_an_id_is_the_same_in_every_process(name: str, bucket: int) -> None:
    assert bucket_of(name, 10_000) == bucket
