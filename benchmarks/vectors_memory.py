"""Resident memory of a million vectors of 384 numbers as one process serves them.

`python -m benchmarks.vectors_memory FOLDER BUCKETS PRECISION` is that process. The buckets are copies of one: memory depends on
sizes alone. Its vectors are drawn around random centres, since 50,000 chunks take an hour under a model of 384 dimensions.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.vectors_material import Floats
from cluster.index.vector_file import Precision, raw_path
from cluster.model.manifest import VectorIdentity

ROWS = 50_000
BUCKETS = 20
DIMENSIONS = 384
QUERIES = 3000
K = 10
IDENTITY = VectorIdentity(provider="bench", model="clusters", dimensions=DIMENSIONS)


def measure_memory() -> dict[str, Any]:
    """By moment: private and file-backed resident memory in MB of a process that holds and searches all buckets."""
    from cluster.index.vector import write_vectors

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        first = folder / "0.faiss"
        write_vectors(first, _vectors(ROWS), np.arange(ROWS), IDENTITY, precision=Precision.SQ8)
        for number in range(1, BUCKETS):
            path = folder / f"{number}.faiss"
            shutil.copyfile(first, path)
            shutil.copyfile(raw_path(first), raw_path(path))
        command = [sys.executable, "-m", "benchmarks.vectors_memory", name]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _vectors(count: int) -> Floats:
    rng = np.random.default_rng(3)
    drawn = rng.standard_normal((200, DIMENSIONS))[rng.integers(0, 200, count)] + rng.standard_normal((count, DIMENSIONS))
    return (drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float32)


def resident() -> dict[str, float]:
    """Resident memory of this process in MB: private, and pages of files (libraries, mapped vectors)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    sizes = {
        key: int(rest.split()[0]) / 1000 * 1.024 for key, _, rest in (line.partition(":") for line in lines) if "Rss" in key
    }
    return {"private": round(sizes["RssAnon"], 1), "file_backed": round(sizes["RssFile"], 1)}


def main() -> None:
    from cluster.index.vector import VectorIndex

    moments: dict[str, Any] = {"libraries": resident()}
    paths = sorted(Path(sys.argv[1]).glob("*.faiss"))
    indexes = [VectorIndex(path, ROWS, IDENTITY) for path in paths]
    moments["opened"] = resident()
    asked = np.random.default_rng(4).standard_normal((QUERIES, DIMENSIONS)).astype(np.float32)
    started = time.perf_counter()
    for query in asked:
        for index in indexes:
            index.search(query[None], [None], K)
    seconds = time.perf_counter() - started
    moments["searched"] = resident()
    moments |= {"rows": len(paths) * ROWS, "queries": QUERIES, "ms_per_query": round(1000 * seconds / QUERIES, 2)}
    sys.stdout.write(json.dumps(moments))


if __name__ == "__main__":
    main()
