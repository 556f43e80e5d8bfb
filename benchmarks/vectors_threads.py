"""Several processes that search at once on one machine, as vector actors do: with the product's threads, and without.

`python -m benchmarks.vectors_threads FILE ROWS THREADS` answers the command "search" (see `benchmarks.worker`).
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks import worker
from benchmarks.vectors_material import OUT, chunk_vectors, identity_of
from benchmarks.worker import Worker
from cluster.config import Config
from cluster.index.vector import GRAPH_THRESHOLD, VectorIndex, write_vectors
from serve.threads import THREAD_VARIABLES, shard_threads, thread_environment

ROWS = {"flat": GRAPH_THRESHOLD, "graph": 50_000}
BATCH = 16
K = 100
ROUNDS = 3
SECONDS = 3.0


def measure_threads() -> list[dict[str, Any]]:
    """Questions a second of all processes together, median of ROUNDS, by kind of index and number of processes."""
    vectors = chunk_vectors(51_000)
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for kind, rows in ROWS.items():
            path = Path(folder) / kind
            write_vectors(path, vectors[:rows], np.arange(rows), identity_of(vectors))
            for shards in (1, 2, 4):
                rates = {name: _rate(path, rows, shards, own=name == "own") for name in ("shared", "own")}
                ratio = round(rates["shared"] / rates["own"], 3)
                found.append({"index": kind, "shards": shards, "threads": _threads(shards, own=False), **rates, "ratio": ratio})
    return found


def _threads(shards: int, *, own: bool) -> int:
    """Threads of each search: every CPU where the libraries decide for themselves."""
    if own:
        return len(os.sched_getaffinity(0))
    return shard_threads(_config(shards))


def _config(shards: int) -> Config:
    """As many vector actors as there are processes here; one lexical actor, the least there can be."""
    config = Config()
    return replace(config, shards=replace(config.shards, vector_actors=shards))


def _rate(path: Path, rows: int, shards: int, *, own: bool) -> float:
    """`own`: no variable set and as many threads as there are CPUs, which is what FAISS and OpenBLAS do by themselves."""
    # An empty value counts as none.
    environment = dict.fromkeys(THREAD_VARIABLES, "") if own else thread_environment(_config(shards), {})
    arguments = (str(path), str(rows), str(_threads(shards, own=own)))
    workers = [
        Worker("benchmarks.vectors_threads", *arguments, log=OUT / "workers.log", environment=environment)
        for _ in range(shards)
    ]
    try:
        with ThreadPoolExecutor(shards) as pool:
            rates = []
            for _ in range(ROUNDS + 1):
                answers = pool.map(lambda one: one.ask("search", seconds=SECONDS)["per_second"], workers)
                rates.append(sum(answers))
    finally:
        for one in workers:
            one.stop()
    return round(median(rates[1:]), 1)


def main() -> None:
    path, rows, threads = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    vectors = chunk_vectors(51_000)
    index = VectorIndex(path, rows, identity_of(vectors), threads=threads)
    asked = vectors[50_000:]
    del vectors

    def search(seconds: float) -> dict[str, Any]:
        count, started = 0, time.perf_counter()
        while time.perf_counter() < started + seconds:
            batch = asked[count % 900 : count % 900 + BATCH]
            index.search(batch, [None] * len(batch), K)
            count += len(batch)
        return {"per_second": count / (time.perf_counter() - started)}

    worker.serve({}, {"search": search})


if __name__ == "__main__":
    main()
