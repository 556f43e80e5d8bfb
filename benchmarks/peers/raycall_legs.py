"""Raycall's own engines inside one process, as libraries are: `python -m benchmarks.peers.raycall_legs DATA DATA_DIR`.

Both legs and their fusion, over the plain shards, with the guard of a key that has a list of projects. Questions are asked in
groups of as many as there are clients, which is what the router's group commit makes of a closed loop.
"""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks import worker
from benchmarks.indexes import configured, open_shards
from benchmarks.peers.clients import summary
from benchmarks.peers.data import Data, K
from benchmarks.peers.prepare import PROJECTS
from cluster.guards import search_guard
from cluster.model.access import Principal, Role
from cluster.model.query import LegAnswer, LexicalQuery, VectorQuery
from serve.fusion import fuse

#: Candidates of each leg before fusion, as an answer of ten hits has them.
DEPTH = 100


class Legs:
    """The shards over all projects."""

    def __init__(self, data: Data, data_dir: Path) -> None:
        self._data, self._config = data, configured(data_dir)
        self._questions, self._vectors = data.questions(), data.question_vectors()
        self._numbers: dict[str, int] = {}

    def build(self) -> dict[str, Any]:
        """Builds all projects' indexes anew; vectors are there already, as they are for the peers."""
        from jobs.setup import generations_root, reindexer

        shutil.rmtree(generations_root(self._config))
        started, cpu = time.perf_counter(), time.process_time()
        with reindexer(self._config) as indexer:
            for project in PROJECTS:
                indexer.publish(self._config.account, project, lambda _phase, _done, _total: None)
        return {"seconds": round(time.perf_counter() - started, 2), "cpu_s": round(time.process_time() - cpu, 2)}

    def open(self) -> dict[str, Any]:
        """Opens both shards."""
        from cluster.storage import GenerationStore
        from jobs.setup import generations_root

        started = time.perf_counter()
        store = GenerationStore(generations_root(self._config))
        manifests = [manifest for project in PROJECTS if (manifest := store.current(project)) is not None]
        self._pins = {manifest.project: manifest.generation for manifest in manifests}
        self._identity = manifests[0].identity
        self._principal = Principal(account=self._config.account, key_id="bench", role=Role.ADMIN, projects=frozenset(PROJECTS))
        self._lexical, self._vector = open_shards(self._config)
        for shard in (self._lexical, self._vector):
            assert not shard.prepare(self._pins)
        return {"seconds": round(time.perf_counter() - started, 2)}

    def round(self, leg: str, filtered: bool, clients: int, seconds: float) -> dict[str, Any]:
        """Groups of `clients` questions; each of a group waits for all of it."""
        latencies, asked, started = list[float](), 0, time.perf_counter()
        while (now := time.perf_counter()) < started + seconds:
            self._ask(leg, [number % len(self._questions) for number in range(asked, asked + clients)], filtered)
            latencies += [time.perf_counter() - now] * clients
            asked += clients
        return summary(latencies, time.perf_counter() - started)

    def answers(self, leg: str, filtered: bool, count: int) -> dict[str, Any]:
        """The row numbers that a leg finds for the first questions."""
        numbers = self._numbers = self._numbers or {row.id: number for number, row in enumerate(self._data.rows())}
        return {"rows": [[numbers[node_id] for node_id in ids] for ids in self._ask(leg, range(count), filtered)]}

    def _ask(self, leg: str, numbers: Sequence[int], filtered: bool) -> list[Sequence[str]]:
        k = DEPTH if leg == "hybrid" else K
        words = self._words(numbers, filtered, k) if leg != "vector" else []
        near = self._near(numbers, filtered, k) if leg != "lexical" else []
        assert not any(answer.failures for answer in (*words, *near))
        if leg != "hybrid":
            return [answer.ids for answer in (*words, *near)]
        return [[hit.id for hit in fuse(*pair)[:K]] for pair in zip(words, near, strict=True)]

    def _words(self, numbers: Sequence[int], filtered: bool, k: int) -> list[LegAnswer]:
        queries = []
        for number in numbers:
            question = self._questions[number]
            pins = self._pinned(question.project if filtered else None)
            guard = search_guard(self._principal, pins)
            queries.append(LexicalQuery(text=question.text, guard=guard, pins=pins, k=k))
        return self._lexical.search(queries)

    def _near(self, numbers: Sequence[int], filtered: bool, k: int) -> list[LegAnswer]:
        queries = []
        for number in numbers:
            pins = self._pinned(self._questions[number].project if filtered else None)
            guard = search_guard(self._principal, pins)
            vector = self._vectors[number]
            queries.append(VectorQuery(vector=vector, identity=self._identity, guard=guard, pins=pins, k=k))
        return self._vector.search(queries)

    def _pinned(self, project: str | None) -> dict[str, str]:
        return self._pins if project is None else {project: self._pins[project]}


def main() -> None:
    legs = Legs(Data(Path(sys.argv[1])), Path(sys.argv[2]))
    names = ("build", "open", "round", "answers")
    worker.serve({"legs": ["lexical", "vector", "hybrid"]}, {name: getattr(legs, name) for name in names})


if __name__ == "__main__":
    main()
