"""The vector index measured alone. `python -m benchmarks.vectors [SECTION ...]` prints one JSON object.

    recall    recall@10 against an exact scan and queries a second, by precision, share of rows allowed and how the allowed ones
              lie to the query: at random, the nearest, the farthest
    threads   searches a second of 2 and 4 processes at once, with the product's threads and with each library's own
    memory    resident memory of a million vectors of 384 numbers as bytes, in buckets of 50,000
    quality   nDCG@10 of BM25 and vectors fused, by precision (needs --judged: folders with corpus, queries and qrels)

About 5 minutes on 2 cores the first time; 51,000 chunks are embedded then.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks import machine
from benchmarks.vectors_material import Floats, chunk_vectors, identity_of
from cluster.index.vector import VectorIndex, write_vectors
from cluster.index.vector_file import Precision

ROWS = 50_000
QUERIES = 200
K = 10
SHARES = (1.0, 0.5, 0.1, 0.01, 0.001)
CORRELATIONS = ("random", "near", "far")


def measure_recall(rows: int = ROWS, queries: int = QUERIES) -> list[dict[str, Any]]:
    """One entry a precision, share and correlation."""
    vectors = chunk_vectors(ROWS + 1000)
    stored, asked = vectors[:rows], vectors[ROWS : ROWS + queries]
    found = []
    for precision in Precision:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "vectors.faiss"
            started = time.perf_counter()
            write_vectors(path, stored, np.arange(rows), identity_of(stored), precision=precision)
            seconds = round(time.perf_counter() - started, 1)
            index = VectorIndex(path, rows, identity_of(stored))
            for share in SHARES:
                for correlation in CORRELATIONS if share < 1 else ("random",):
                    case = {"precision": precision.value, "share": share, "correlation": correlation, "build_s": seconds}
                    found.append(case | recall_of(index, stored, asked, share, correlation))
    return found


def recall_of(index: VectorIndex, stored: Floats, asked: Floats, share: float, correlation: str) -> dict[str, Any]:
    """Mean and least recall@K over the queries, one at a time, each with a guard of its own that is prepared already."""
    rng = np.random.default_rng(5)
    recalls, plans, seconds = [], set(), 0.0
    for query in asked:
        closeness = stored @ query
        mask = allowed_rows(rng, closeness, share, correlation)
        selection = index.prepare(mask)
        plans.add(index.plan(selection, 1, K).value)
        started = time.perf_counter()
        rows, _ = index.search(query[None], [selection], K)[0]
        seconds += time.perf_counter() - started
        assert mask[rows].all() and len(rows) == min(K, mask.sum())
        # By score, so that equal chunks may stand for one another.
        least = np.sort(closeness[mask])[-len(rows)] - 1e-6
        recalls.append(float((closeness[rows] >= least).mean()))
    return {
        "plan": "/".join(sorted(plans)),
        "recall": round(float(np.mean(recalls)), 4),
        "least_recall": round(min(recalls), 2),
        "per_second": round(len(asked) / seconds),
    }


def allowed_rows(rng: np.random.Generator, closeness: Floats, share: float, correlation: str) -> npt.NDArray[np.bool_]:
    """bool, shape (rows,): the share of rows that are allowed, by how close each is to the query."""
    count = max(1, round(share * len(closeness)))
    order = {
        "random": lambda: rng.permutation(len(closeness)),
        "near": lambda: np.argsort(-closeness),
        "far": lambda: np.argsort(closeness),
    }[correlation]()
    mask = np.zeros(len(closeness), dtype=bool)
    mask[order[:count]] = True
    return mask


def main() -> None:
    from benchmarks.vectors_memory import measure_memory
    from benchmarks.vectors_quality import measure_quality
    from benchmarks.vectors_threads import measure_threads

    sections = {"recall": measure_recall, "threads": measure_threads, "memory": measure_memory}
    parser = argparse.ArgumentParser(prog="python -m benchmarks.vectors", description=__doc__)
    parser.add_argument("sections", nargs="*", choices=[*sections, "quality", []], help="default: all but quality")
    parser.add_argument("--judged", nargs="*", type=Path, default=[], help="folders of judged collections")
    options = parser.parse_args()
    found: dict[str, Any] = {"machine": machine.describe()}
    for name in options.sections or list(sections):
        found[name] = measure_quality(options.judged) if name == "quality" else sections[name]()
        sys.stderr.write(f"{name}: {json.dumps(found[name])}\n")
    sys.stdout.write(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
