"""The plain shards in a process of their own, without Ray: what guards and buckets cost, on the same rows and questions.

`python -m benchmarks.plain DATA_DIR` tags the rows of DATA_DIR for agents, builds them as one bucket and as four, opens one
shard of each leg over either, and answers (see `benchmarks.worker`). A rate is questions a second of this process's CPU time:

    visible, all    lexical questions of an agent, with statistics over what he may read, and over everything
    cold            as `visible`, each of questions that were never asked before
    lexical, vector with `buckets` 1 or 4: questions of an admin
"""

from __future__ import annotations

import itertools
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from actors.lexical_shard import LexicalShard
from actors.vector_shard import VectorShard
from benchmarks import worker
from benchmarks.corpus import questions
from benchmarks.indexes import configured, indexed_nodes, open_shards, principals, publish, tagged
from benchmarks.material import BATCH, PROJECT, K
from cluster.guards import search_guard
from cluster.model.access import Principal
from cluster.model.manifest import Manifest
from cluster.model.nodes import Node
from cluster.model.query import LegAnswer, LexicalQuery, Statistics, VectorQuery

BUCKETS = (1, 4)
#: Questions of each kind before anything is measured: Java compiles meanwhile.
WARM_UP = 2048
#: Questions that are asked again and again, so that what a guard needs to know of their terms is known.
WARM = 512
QUESTIONS = 8192


class Shards:
    """One shard for each leg, over one generation."""

    def __init__(self, folder: Path, nodes: Sequence[Node], buckets: int) -> None:
        config = configured(folder, target_rows=-(-len(nodes) // buckets))
        self.manifest: Manifest = publish(config, nodes)
        assert len(self.manifest.buckets) == buckets, self.manifest.buckets
        self.pins = {PROJECT: self.manifest.generation}
        self.lexical: LexicalShard
        self.vector: VectorShard
        self.lexical, self.vector = open_shards(config)


class Plain:
    """Rounds of questions to the shards, BATCH at a time, as a router sends them."""

    def __init__(self, folder: Path, nodes: Sequence[Node]) -> None:
        rows = tagged([replace(node, account=configured(folder).account) for node in nodes])
        self._shards = {buckets: Shards(folder / f"buckets-{buckets}", rows, buckets) for buckets in BUCKETS}
        texts = [text for node in nodes if (text := node.text.get("content"))]
        self._texts = questions(texts, QUESTIONS)
        self._vectors = self._embedded()
        callers = principals(nodes[0].account)
        self._agent, self._admin = callers[0], callers[-1]
        self._next = {name: itertools.cycle(range(0, QUESTIONS, BATCH)) for name in ("cold", *map(str, BUCKETS))}
        for start in range(0, WARM_UP, BATCH):
            self._ask(1, self._agent, start % WARM, Statistics.VISIBLE)
            for buckets in BUCKETS:
                self._ask(buckets, self._admin, next(self._next[str(buckets)]), Statistics.VISIBLE)

    def _embedded(self) -> Any:
        from cluster.embed.factory import make_embedder
        from cluster.embed.settings import EmbedSettings

        return make_embedder(EmbedSettings(provider="static", threads=1)).embed_query(self._texts)

    def visible(self, seconds: float) -> dict[str, Any]:
        """An agent's questions, with statistics over what he may read."""
        return self._guarded(seconds, Statistics.VISIBLE)

    def all(self, seconds: float) -> dict[str, Any]:
        """The same with statistics over everything."""
        return self._guarded(seconds, Statistics.ALL)

    def _guarded(self, seconds: float, mode: Statistics) -> dict[str, Any]:
        starts = itertools.cycle(range(0, WARM, BATCH))
        return self._round(seconds, lambda: self._ask(1, self._agent, next(starts), mode))

    def cold(self, seconds: float) -> dict[str, Any]:
        """An agent's questions, each for the first time (until all have been asked)."""
        starts = self._next["cold"]
        return self._round(seconds, lambda: self._ask(1, self._agent, next(starts), Statistics.VISIBLE))

    def lexical(self, seconds: float, buckets: int) -> dict[str, Any]:
        """An admin's lexical questions; no question comes twice in a round."""
        starts = self._next[str(buckets)]
        return self._round(seconds, lambda: self._ask(buckets, self._admin, next(starts), Statistics.VISIBLE))

    def vector(self, seconds: float, buckets: int) -> dict[str, Any]:
        """An admin's vector questions."""
        starts = self._next[str(buckets)]
        return self._round(seconds, lambda: self._ask_vectors(buckets, next(starts)))

    def _ask(self, buckets: int, caller: Principal, start: int, mode: Statistics) -> list[LegAnswer]:
        shards = self._shards[buckets]
        guard = search_guard(caller, shards.pins, ())
        texts = self._texts[start : start + BATCH]
        queries = [LexicalQuery(text=text, guard=guard, pins=shards.pins, k=K, statistics_mode=mode) for text in texts]
        # As the router does: statistics first, then the search with their sum, here of one shard.
        found = shards.lexical.statistics(queries)
        return shards.lexical.search([replace(query, statistics=own) for query, own in zip(queries, found, strict=True)])

    def _ask_vectors(self, buckets: int, start: int) -> list[LegAnswer]:
        shards = self._shards[buckets]
        guard, identity = search_guard(self._admin, shards.pins, ()), shards.manifest.identity
        vectors = self._vectors[start : start + BATCH]
        return shards.vector.search(
            [VectorQuery(vector=row, identity=identity, guard=guard, pins=shards.pins, k=K) for row in vectors]
        )

    def _round(self, seconds: float, ask: Callable[[], list[LegAnswer]]) -> dict[str, Any]:
        end, started, answered = time.perf_counter() + seconds, time.process_time(), 0
        while time.perf_counter() < end:
            answers = ask()
            assert not any(answer.failures for answer in answers), answers
            answered += len(answers)
        return {"per_second": answered / (time.process_time() - started), "asked": answered}


def main() -> None:
    nodes = indexed_nodes(Path(sys.argv[1]))
    with tempfile.TemporaryDirectory() as folder:
        plain = Plain(Path(folder), nodes)
        names = ("visible", "all", "cold", "lexical", "vector")
        worker.serve({"rows": len(nodes)}, {name: getattr(plain, name) for name in names})


if __name__ == "__main__":
    main()
