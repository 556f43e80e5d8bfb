"""Two replicas of each shard as Ray actors: killed, stopped and brought back while questions run."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator

import pytest
import ray

from actors.remote import (
    NAMESPACE,
    clients,
)
from actors.replicas import RouterSettings
from actors.router import Router
from cluster.embed.node_text import embedding_hash
from cluster.guards import search_guard
from cluster.model.query import LegAnswer, LexicalQuery, VectorQuery
from cluster.placement import shard_of
from cluster.ports import WriteBatch
from tests.support.factories import ACCOUNT, make_node, make_principal
from tests.support.live import EMBEDDER, LiveIndex
from tests.support.live_actors import live_actors

LEXICAL, VECTOR = ("lexical-0",), ("vector-0", "vector-1")
GUARD = search_guard(make_principal())
#: Seconds that each question has; a process that is gone may take 2 s to be noticed.
DEADLINE_S = 15.0

pytestmark = pytest.mark.ray_in_process("last")  # it builds its index in this process, which takes a JVM


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveIndex]:
    """A store with a published generation of several buckets, and two replicas of each shard over it."""
    with live_actors(tmp_path_factory.mktemp("replicas"), LEXICAL, VECTOR, replicas=2) as index:
        yield index


@pytest.fixture
async def router(live: LiveIndex) -> Router:
    made = Router(live.generations, ACCOUNT, clients(LEXICAL, 2), clients(VECTOR, 2), RouterSettings(hung_s=3.0))
    await made.refresh()
    await made.catch_up(live.store.revision())
    await serving(made)
    return made


def pid_of(name: str) -> int:
    pid: int = ray.get(ray.get_actor(name, namespace=NAMESPACE).process_id.remote())
    return pid


async def both(router: Router, text: str = "pump") -> tuple[LegAnswer, LegAnswer]:
    pins = {project: manifest.generation for project, manifest in router.served().items()}
    vector = EMBEDDER.embed_query([text])[0]
    until = time.monotonic() + DEADLINE_S
    lexical, vectors = await asyncio.gather(
        router.lexical(LexicalQuery(text=text, guard=GUARD, pins=pins, k=50), until),
        router.vector(VectorQuery(vector=vector, identity=EMBEDDER.identity, guard=GUARD, pins=pins, k=50), until),
    )
    return lexical, vectors


async def serving(router: Router) -> None:
    """Until every replica is back, looking after them as the server does."""
    async with asyncio.timeout(90):
        while {report.state for report in router.replicas()} != {"serving"}:
            router.watch()
            await asyncio.sleep(0.05)


@contextlib.asynccontextmanager
async def asked_all_the_time(router: Router) -> AsyncIterator[list[tuple[LegAnswer, LegAnswer]]]:
    """Four callers that ask one question after the other; every answer is kept, an error fails the test."""
    found: list[tuple[LegAnswer, LegAnswer]] = []
    over = asyncio.Event()

    async def caller() -> None:
        while not over.is_set():
            found.append(await both(router))

    tasks = [asyncio.create_task(caller()) for _ in range(4)]
    try:
        yield found
    finally:
        over.set()
        await asyncio.gather(*tasks)


def write(live: LiveIndex, node_id: str) -> int:
    node = make_node(node_id, text={"content": f"pump {node_id}"})
    live.cache.put(EMBEDDER.identity, {embedding_hash(node): EMBEDDER.embed([f"pump {node_id}"])[0]})
    return live.store.write(WriteBatch(nodes=(node,)))


async def test_no_answer_fails_while_a_replica_is_killed_and_it_is_back_with_what_was_written_meanwhile(
    live: LiveIndex, router: Router
) -> None:
    async with asked_all_the_time(router) as answers:
        while len(answers) < 20:
            await asyncio.sleep(0.01)
        for name in ("lexical-0.1", "vector-0"):
            os.kill(pid_of(name), signal.SIGKILL)
        before = len(answers)
        while len(answers) < before + 40:
            await asyncio.sleep(0.01)
        done = await router.catch_up(write(live, "w1"))
        assert done.complete("main")
        for answer in await both(router):
            assert "w1" in answer.ids
        await serving(router)
    assert all(not answer.failures and answer.answered == answer.asked for pair in answers for answer in pair)
    for _ in range(8):
        for answer in await both(router):
            assert {"w1", *(f"n{n}" for n in range(12))} <= set(answer.ids)
    # The one that came back answers alone, and as the others do.
    os.kill(pid_of("lexical-0"), signal.SIGKILL)
    assert "w1" in (await both(router))[0].ids


async def test_a_stopped_replica_is_answered_around_then_ended_and_restarted(live: LiveIndex, router: Router) -> None:
    stopped = pid_of("lexical-0")
    os.kill(stopped, signal.SIGSTOP)
    try:
        async with asked_all_the_time(router) as answers:
            while len(answers) < 100:
                await asyncio.sleep(0.01)
            assert (await router.catch_up(write(live, "w2"))).complete("main")
            for answer in await both(router):
                assert "w2" in answer.ids
            async with asyncio.timeout(60):
                while all(report.state != "down" for report in router.replicas()):
                    router.watch()
                    await asyncio.sleep(0.05)
            await serving(router)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(stopped, signal.SIGCONT)
    assert all(not answer.failures for pair in answers for answer in pair)
    assert pid_of("lexical-0") != stopped
    for _ in range(8):
        assert "w2" in (await both(router))[0].ids


async def test_with_all_replicas_of_a_partition_gone_it_is_named_and_the_rest_answers(live: LiveIndex, router: Router) -> None:
    manifest = router.served()["main"]
    gone = [bucket.name for bucket in manifest.buckets if shard_of("main", bucket.name, VECTOR) == "vector-1"]
    assert 0 < len(gone) < len(manifest.buckets)
    handles = [ray.get_actor(name, namespace=NAMESPACE) for name in ("vector-1", "vector-1.1")]
    for handle in handles:
        ray.kill(handle)  # for good
    lexical, vector = await both(router)
    assert lexical.answered == lexical.asked == len(manifest.buckets)
    assert sorted(failure.bucket for failure in vector.failures) == sorted(gone)
    assert {failure.code for failure in vector.failures} == {"shard_unavailable"}
    assert vector.ids
    down = [(report.shard, report.replica) for report in router.replicas() if report.state == "down"]
    assert down == [("vector-1", 0), ("vector-1", 1)]
    assert not (await router.catch_up(live.store.revision())).complete("main")
