"""Shards as Ray actors: told of a write they show it, and killed they come back with all that was written."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from actors.remote import (
    NAMESPACE,
    clients,
)
from actors.replicas import RouterSettings
from actors.router import Router
from cluster.embed.node_text import embedding_hash
from cluster.errors import RaycallError
from cluster.guards import search_guard
from cluster.model.query import LegAnswer, LexicalQuery, VectorQuery
from cluster.ports import WriteBatch
from tests.support.factories import ACCOUNT, make_node, make_principal
from tests.support.live import EMBEDDER, LiveIndex
from tests.support.live_actors import live_actors

LEXICAL, VECTOR = ("lexical-0", "lexical-1"), ("vector-0",)
GUARD = search_guard(make_principal())

pytestmark = pytest.mark.ray_in_process("last")  # it builds its index in this process, which takes a JVM


@pytest.fixture
def live(tmp_path: Path) -> Iterator[LiveIndex]:
    """A store with a published generation of several buckets, and the actors over it."""
    with live_actors(tmp_path, LEXICAL, VECTOR) as index:
        yield index


async def both(router: Router, text: str) -> tuple[LegAnswer, LegAnswer]:
    pins = {project: manifest.generation for project, manifest in router.served().items()}
    vector: np.ndarray = EMBEDDER.embed_query([text])[0]
    until = time.monotonic() + 30
    return (
        await router.lexical(LexicalQuery(text=text, guard=GUARD, pins=pins, k=50), until),
        await router.vector(VectorQuery(vector=vector, identity=EMBEDDER.identity, guard=GUARD, pins=pins, k=50), until),
    )


async def answered(router: Router, text: str) -> tuple[LegAnswer, LegAnswer]:
    """As `both`, from shards that may be on their way back."""
    until = time.monotonic() + 60
    while True:
        try:
            answers = await both(router, text)
            if not any(answer.failures for answer in answers):
                return answers
        except RaycallError:
            if time.monotonic() > until:
                raise


def process_ids() -> list[int]:
    import ray

    handles = [ray.get_actor(name, namespace=NAMESPACE) for name in (*LEXICAL, *VECTOR)]
    found: list[int] = ray.get([handle.process_id.remote() for handle in handles])
    return found


async def test_a_write_is_seen_when_all_have_followed_and_survives_the_death_of_all(live: LiveIndex) -> None:
    router = Router(live.generations, ACCOUNT, clients(LEXICAL), clients(VECTOR), RouterSettings())
    assert await router.refresh() == ["main"]
    node = make_node("w1", text={"content": "pump turbine"})
    live.cache.put(EMBEDDER.identity, {embedding_hash(node): EMBEDDER.embed(["pump turbine"])[0]})
    live.store.write(WriteBatch(nodes=(node,)))
    revision = live.store.write(WriteBatch(soft_delete=("n3",), now=5))
    done = await router.catch_up(revision)
    assert done.complete("main")
    expected = {"w1", *(f"n{n}" for n in range(12) if n != 3)}
    for answer in await both(router, "pump"):
        assert set(answer.ids) == expected

    for pid in process_ids():
        os.kill(pid, signal.SIGKILL)
    for answer in await answered(router, "pump"):
        assert set(answer.ids) == expected
