from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from actors import vector_part
from actors.near import best_of
from actors.vector_part import VectorPart
from cluster.index.rows import rows_table, write_rows
from cluster.index.vector import write_vectors
from cluster.model.guard import All, Guard, In
from cluster.model.manifest import Bucket, Manifest, VectorIdentity
from tests.support.factories import ACCOUNT, make_node

ROWS = 64
IDENTITY = VectorIdentity(provider="test", model="grid", dimensions=16)


@pytest.fixture
def part(tmp_path: Path) -> VectorPart:
    """64 rows with a vector each; row N is owned by "agentN"."""
    nodes = [make_node(f"n{number:02}", owner_agent=f"agent{number:02}") for number in range(ROWS)]
    (tmp_path / "lexical").mkdir()
    (tmp_path / "vector").mkdir()
    write_rows(tmp_path / "lexical" / "rows.parquet", rows_table(nodes, np.ones(ROWS, np.int32)))
    vectors = np.eye(ROWS, 16, dtype=np.float32)
    vectors[16:, 0] = 1
    write_vectors(tmp_path / "vector" / "vectors.faiss", vectors, np.arange(ROWS), IDENTITY)
    bucket = Bucket(name="b0000", rows=ROWS, vectors=ROWS, checksums={}, lexical_fingerprint="", vector_fingerprint="")
    manifest = Manifest(
        generation="g1",
        account=ACCOUNT,
        project="main",
        created_at=0,
        watermark=1,
        analyzer="a1",
        identity=IDENTITY,
        buckets=(bucket,),
    )
    return VectorPart(tmp_path, bucket, manifest, 1, lambda _identity, _hashes: {}, 5000)


def found(part: VectorPart, query: np.ndarray, guard: Guard, k: int) -> list[str]:
    """The ids of the `k` best, as a shard takes them from what the partition finds."""
    return best_of([part.search(query, guard, k)], [part.ids], k)[0][0][:k]


def test_selections_of_guards_are_kept_by_their_bytes(part: VectorPart, monkeypatch: pytest.MonkeyPatch) -> None:
    def guard(number: int) -> In:
        return In("owner_agent", tuple(f"agent{row:02}" for row in range(number, number + 32)))

    size = part._selected(guard(0)).selection.nbytes
    assert size >= 32 * 16 * 4, "it holds a copy of its vectors"
    monkeypatch.setattr(vector_part, "SELECTION_BYTES", 3 * size + size // 2)
    first = part._selected(guard(0))
    for number in range(1, 20):
        near = found(part, np.eye(1, 16, dtype=np.float32), guard(number), 5)
        assert near
        assert all(number <= int(node_id[1:]) < number + 32 for node_id in near)
        assert part._selected(guard(0)) is first, "what is used stays"
        kept = [known.selection.nbytes for known in part._selections.values()]
        assert sum(kept) == part._selection_bytes <= 3 * size + size // 2
    assert len(kept) == 3


def test_a_selection_larger_than_all_that_is_kept_is_used_once(part: VectorPart, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector_part, "SELECTION_BYTES", 10)
    for name in ("agent01", "agent02", "agent01"):
        assert found(part, np.eye(1, 16, dtype=np.float32), In("owner_agent", (name,)), 5) == [f"n{name[-2:]}"]
        assert len(part._selections) == 1


def test_dead_rows_cost_no_hit_before_and_after_the_selection_is_made_anew(part: VectorPart) -> None:
    """Rows 16 and on are one vector's neighbours by number of the second axis; the nearest die first."""
    everything = All(())
    query = np.zeros((1, 16), np.float32)
    query[0, 0] = 1
    alive = found(part, query, everything, ROWS)
    assert len(alive) == ROWS
    while alive:
        for k in (1, 5):
            assert found(part, query, everything, k) == alive[:k]
        part.apply(dict.fromkeys(alive[:3]))
        alive = alive[3:]
    assert found(part, query, everything, 5) == []


def test_a_row_that_was_written_again_shows_its_new_vector_alone(part: VectorPart) -> None:
    node = make_node("n03", owner_agent="iris")
    vector = np.eye(1, 16, 9, dtype=np.float32)
    part.apply({"n03": node})
    assert "n03" not in found(part, vector, All(()), ROWS), "its vector is not there yet"
    part._find_vectors = lambda _identity, hashes: dict.fromkeys(hashes, vector[0])
    part.settle()
    (hits,) = best_of([part.search(vector, In("owner_agent", ("iris",)), 5)], [part.ids], 5)
    assert (hits[0], hits[1].tolist()) == (["n03"], [1.0])
    assert found(part, vector, In("owner_agent", ("agent03",)), 5) == []
