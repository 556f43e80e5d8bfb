"""One peer in a process of its own and in its own environment: `python -m benchmarks.peers.peer NAME DATA FOLDER`.

Commands (see `benchmarks.worker`): "build" writes the index into FOLDER and says how long that took; "open" opens it; "round"
asks questions of a leg, filtered or not; "answers" gives the row numbers that a leg finds.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from benchmarks import worker
from benchmarks.peers.clients import closed_loop
from benchmarks.peers.data import Data

#: Name of a system -> the module with its Engine, and what that is given.
ENGINES: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "LanceDB": ("lance", {"indexed": False}),
    "LanceDB, IVF-PQ": ("lance", {"indexed": True}),
    "Qdrant local": ("qdrant", {}),
    "bm25s": ("sparse", {}),
    "Tantivy": ("tantivy_engine", {}),
}
#: Longest time for the answers that are judged: a slow system has fewer of them.
JUDGING_S = 60.0


class Engine(Protocol):
    """A system under comparison."""

    #: Which of "lexical", "vector" and "hybrid" it answers.
    legs: tuple[str, ...]

    def build(self, data: Data, folder: Path) -> None:
        """Indexes everything, durably."""
        ...

    def open(self, folder: Path) -> None:
        """Makes ready what `build` wrote."""
        ...

    def ask(self, leg: str, text: str, vector: npt.NDArray[np.float32], project: str | None) -> list[int]:
        """The numbers of the best K rows, with their texts fetched; of one project unless None."""
        ...


class _Peer:
    def __init__(self, engine: Engine, data: Data, folder: Path) -> None:
        self._engine, self._data, self._folder = engine, data, folder
        self._questions, self._vectors = data.questions(), data.question_vectors()

    def build(self) -> dict[str, Any]:
        started, cpu = time.perf_counter(), time.process_time()
        self._engine.build(self._data, self._folder)
        return {"seconds": round(time.perf_counter() - started, 2), "cpu_s": round(time.process_time() - cpu, 2)}

    def open(self) -> dict[str, Any]:
        started = time.perf_counter()
        self._engine.open(self._folder)
        return {"seconds": round(time.perf_counter() - started, 2)}

    def round(self, leg: str, filtered: bool, clients: int, seconds: float) -> dict[str, Any]:
        return closed_loop(lambda number: self._ask(leg, number, filtered), len(self._questions), clients, seconds)

    def answers(self, leg: str, filtered: bool, count: int) -> dict[str, Any]:
        end, rows = time.monotonic() + JUDGING_S, list[list[int]]()
        while len(rows) < count and (not rows or time.monotonic() < end):
            rows.append(self._ask(leg, len(rows), filtered))
        return {"rows": rows}

    def _ask(self, leg: str, number: int, filtered: bool) -> list[int]:
        question = self._questions[number]
        return self._engine.ask(leg, question.text, self._vectors[number], question.project if filtered else None)


def main() -> None:
    name, data, folder = sys.argv[1:]
    module, options = ENGINES[name]
    engine: Engine = importlib.import_module(f"benchmarks.peers.{module}").Engine(**options)
    peer = _Peer(engine, Data(Path(data)), Path(folder))
    worker.serve({"legs": engine.legs}, {name: getattr(peer, name) for name in ("build", "open", "round", "answers")})


if __name__ == "__main__":
    main()
