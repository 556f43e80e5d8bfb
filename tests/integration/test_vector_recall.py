"""Recall of a graph search on vectors of real text, at every share that a filter may allow."""

from __future__ import annotations

import random
import sysconfig
from pathlib import Path

import numpy as np
import pytest

from cluster.embed.static import StaticEmbedder
from cluster.index.vector import Plan, VectorIndex, write_vectors
from cluster.index.vector_file import Precision
from tests.support.vectors import Floats


@pytest.fixture(scope="module")
def real_vectors() -> tuple[Floats, Floats]:
    """Vectors of 14,000 lines of installed Python files under the static model, and of 25 more as queries."""
    root = Path(sysconfig.get_paths()["purelib"])
    lines: dict[str, None] = {}
    for path in sorted((root / "ray").rglob("*.py")):
        text = path.read_text("utf-8", "replace")
        lines.update(dict.fromkeys(line.strip() for line in text.splitlines() if 40 <= len(line.strip()) <= 100))
        if len(lines) > 40_000:
            break
    picked = random.Random(3).sample(list(lines), 14_025)
    vectors = StaticEmbedder(2).embed(picked)
    return vectors[:14_000], vectors[14_000:]


@pytest.mark.parametrize("precision", [Precision.FLOAT32, Precision.SQ8])
def test_recall_holds_on_real_text(precision: Precision, real_vectors: tuple[Floats, Floats], tmp_path: Path) -> None:
    vectors, queries = real_vectors
    identity_ = StaticEmbedder.identity
    write_vectors(tmp_path / "v", vectors, np.arange(len(vectors)), identity_, precision=precision, graph_threshold=10_000)
    index = VectorIndex(tmp_path / "v", len(vectors), identity_)
    assert index.plan(index.prepare(None), 1, 10) is Plan.GRAPH
    rng = np.random.default_rng(4)
    for share in (1.0, 0.5, 0.1, 0.01, 0.001):
        for correlation in ("random", "near", "far") if share < 1 else ("random",):
            recalls = []
            for query in queries:
                closeness = vectors @ query
                orders = {"random": rng.permutation(len(vectors)), "near": np.argsort(-closeness), "far": np.argsort(closeness)}
                mask = np.zeros(len(vectors), dtype=bool)
                mask[orders[correlation][: int(share * len(vectors))]] = True
                rows, _ = index.search(query[None], [index.prepare(mask)], 10)[0]
                assert mask[rows].all()
                assert len(rows) == 10
                recalls.append((closeness[rows] >= np.sort(closeness[mask])[-10] - 1e-6).mean())
            assert np.mean(recalls) >= 0.98, (share, correlation)
