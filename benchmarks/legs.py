"""The legs without HTTP, in a process of their own: router, micro-batching and the shard actors on a local Ray.

`python -m benchmarks.legs DATA_DIR` answers the commands "lexical" and "vector" (see `benchmarks.worker`): BATCH questions are
outstanding at any time, with the guard of a key that has a list of projects.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from actors.router import Router
from benchmarks import worker
from benchmarks.material import BATCH, PROJECT, K, make_material
from cluster.config import Config
from cluster.guards import search_guard
from cluster.model.access import Principal, Role
from cluster.model.manifest import Manifest
from cluster.model.query import LegAnswer, LexicalQuery, VectorQuery

#: Longer than any round: a late answer is counted, not lost.
DEADLINE_S = 60.0


class Legs:
    """Questions to the router on an event loop of their own."""

    def __init__(self, router: Router, data_dir: Path) -> None:
        self._router = router
        self._loop = asyncio.new_event_loop()
        swapped = self._loop.run_until_complete(router.refresh())
        assert swapped == [PROJECT], swapped
        material = make_material(data_dir)
        manifest = router.served()[PROJECT]
        pins = {PROJECT: manifest.generation}
        principal = Principal(account=manifest.account, key_id="bench", role=Role.ADMIN, projects=frozenset({PROJECT}))
        guard = search_guard(principal, pins, ())
        lexical = [LexicalQuery(text=text, guard=guard, pins=pins, k=K) for text in material.texts]
        vector = [VectorQuery(vector=row, identity=manifest.identity, guard=guard, pins=pins, k=K) for row in material.vectors]
        self._lexical, self._vector = itertools.cycle(lexical), itertools.cycle(vector)

    def lexical(self, seconds: float) -> dict[str, Any]:
        """One round of lexical questions."""
        return self._round(self._router.lexical, self._lexical, seconds)

    def vector(self, seconds: float) -> dict[str, Any]:
        """One round of vector questions."""
        return self._round(self._router.vector, self._vector, seconds)

    def _round(
        self, ask: Callable[[Any, float], Awaitable[LegAnswer]], queries: Iterator[Any], seconds: float
    ) -> dict[str, Any]:
        return self._loop.run_until_complete(_asked(ask, queries, seconds))

    def close(self) -> None:
        """Ends the loop."""
        self._loop.close()


async def _asked(ask: Callable[[Any, float], Awaitable[LegAnswer]], queries: Iterable[Any], seconds: float) -> dict[str, Any]:
    questions = iter(queries)
    started = time.perf_counter()
    counts = {"answered": 0, "without_hits": 0}

    async def client() -> None:
        while time.perf_counter() < started + seconds:
            answer = await ask(next(questions), time.monotonic() + DEADLINE_S)
            assert not answer.failures, answer.failures
            counts["answered"] += 1
            counts["without_hits"] += not answer.ids

    await asyncio.gather(*(client() for _ in range(BATCH)))
    return {"per_second": counts["answered"] / (time.perf_counter() - started), "without_hits": counts["without_hits"]}


async def _ready(_manifest: Manifest) -> None:
    """Nothing has to be loaded before a generation is served: the vectors are there already."""


def main() -> None:
    from serve import machine, stack
    from serve.replica import make_router

    data_dir = Path(sys.argv[1]).resolve()
    config = replace(Config(), data_dir=data_dir)
    with stack.running_ray(config, machine.run_dir_of(data_dir), {}):
        stack.start_all_shards(config)
        legs = Legs(make_router(config, _ready), data_dir)
        try:
            worker.serve({}, {"lexical": legs.lexical, "vector": legs.vector})
        finally:
            legs.close()


if __name__ == "__main__":
    main()
