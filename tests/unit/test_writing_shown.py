"""Showing what was written: group commit of the shards' catching up, and vectors of what has none yet."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from actors.rounds import MOST_REST_S, REST, Rounds
from actors.router import CaughtUp
from cluster.embed.cache import MemoryVectorCache
from cluster.embed.node_text import embedding_hash
from cluster.errors import EmbedderError, UnavailableError
from cluster.graph.memory import MemoryGraphStore
from cluster.model.manifest import Manifest, VectorIdentity
from cluster.model.nodes import Node
from cluster.model.query import PartitionFailure
from cluster.ports import WriteBatch
from serve.writing_shown import LiveShowing
from serve.writing_vectors import RETRY_S, VectorFiller
from tests.support.clock import ManualClock
from tests.support.factories import ACCOUNT, make_node
from tests.support.legs import IDENTITY, OTHER_IDENTITY, failure, make_manifest

# --- rounds ------------------------------------------------------------------------------------------------------------------


async def test_work_that_is_asked_for_while_it_runs_is_done_once_more_for_all() -> None:
    gates = [asyncio.Event() for _ in range(3)]
    begun: list[int] = []

    async def work() -> int:
        number = len(begun)
        begun.append(number)
        await gates[number].wait()
        return number

    rounds = Rounds(work)
    first = asyncio.create_task(rounds())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    later = [asyncio.create_task(rounds()) for _ in range(5)]
    await asyncio.sleep(0)
    gates[0].set()
    assert await first == 0
    gates[1].set()
    assert [await task for task in later] == [1] * 5
    assert begun == [0, 1]


async def test_who_goes_away_does_not_end_the_round_of_others() -> None:
    gate = asyncio.Event()

    async def work() -> str:
        await gate.wait()
        return "done"

    rounds = Rounds(work)
    impatient, patient = asyncio.create_task(rounds()), asyncio.create_task(rounds())
    await asyncio.sleep(0)
    impatient.cancel()
    await asyncio.sleep(0)
    gate.set()
    assert await patient == "done"


async def test_a_round_that_fails_is_told_and_the_next_one_runs() -> None:
    results = iter([UnavailableError("no"), "yes"])

    async def work() -> str:
        result = next(results)
        if isinstance(result, Exception):
            raise result
        return result

    rounds = Rounds(work)
    with pytest.raises(UnavailableError):
        await rounds()
    assert await rounds() == "yes"


async def test_after_a_round_there_is_a_rest_in_which_askers_gather(monkeypatch: pytest.MonkeyPatch) -> None:
    loop, now, rest = asyncio.get_running_loop(), [100.0], asyncio.Event()
    slept: list[float] = []
    begun: list[float] = []

    async def work() -> int:
        begun.append(now[0])
        now[0] += 0.01 if len(begun) == 1 else 100.0
        return len(begun)

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        await rest.wait()
        now[0] += seconds

    monkeypatch.setattr(loop, "time", lambda: now[0])
    monkeypatch.setattr("serve.writing_shown.asyncio.sleep", sleep)
    rounds = Rounds(work)
    assert await rounds() == 1, "nothing came before it: at once"
    later = [asyncio.ensure_future(rounds()) for _ in range(5)]
    await asyncio.wait(later, timeout=0)
    assert begun == [100.0] and slept == [pytest.approx(REST * 0.01)]
    rest.set()
    assert await asyncio.gather(*later) == [2] * 5
    assert await rounds() == 3
    assert slept[1:] == [MOST_REST_S], "however long a round took"


# --- showing -----------------------------------------------------------------------------------------------------------------


class Shards:
    """A router whose shards follow when `gate` is open."""

    def __init__(self, *projects: str) -> None:
        self.manifests = {project: make_manifest(project) for project in projects}
        self.asked: list[int] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.down: dict[str, str] = {}
        self.failures: tuple[PartitionFailure, ...] = ()

    def served(self) -> Mapping[str, Manifest]:
        return self.manifests

    async def catch_up(self, revision: int) -> CaughtUp:
        self.asked.append(revision)
        await self.gate.wait()
        return CaughtUp(revision=revision, down=self.down, failures=self.failures)


class Fill:
    """A filler by script."""

    def __init__(self, fresh: int = 0, waiting: frozenset[str] = frozenset()) -> None:
        self.result = (fresh, waiting)
        self.calls = 0
        self.error: Exception | None = None

    def fill(self, _served: Mapping[str, Manifest]) -> tuple[int, frozenset[str]]:
        self.calls += 1
        if self.error is not None:
            raise self.error
        return self.result


async def test_a_write_is_shown_when_the_shards_follow_and_again_when_its_vector_is_there() -> None:
    shards, fill = Shards("main"), Fill(fresh=1)
    shown = await LiveShowing(shards, fill).shown(7, {"main"}, 5)
    assert (shown.visible, shown.vectors) == (True, True)
    assert shards.asked == [7, 7] and fill.calls == 1


async def test_without_new_vectors_the_shards_are_asked_once() -> None:
    shards = Shards("main")
    await LiveShowing(shards, Fill()).shown(7, {"main"}, 5)
    assert shards.asked == [7]


@pytest.mark.parametrize(
    ("changes", "visible", "vectors"),
    [
        ({"down": {"lexical-0": "gone"}}, False, False),
        ({"failures": (failure("main"),)}, False, False),
        ({"failures": (failure("other"),)}, True, True),
        ({"manifests": {}}, False, False),
    ],
)
async def test_what_is_not_shown_is_said(changes: dict[str, Any], visible: bool, vectors: bool) -> None:
    shards = Shards("main", "other")
    for name, value in changes.items():
        setattr(shards, name, value)
    shown = await LiveShowing(shards, Fill()).shown(7, {"main"}, 5)
    assert (shown.visible, shown.vectors) == (visible, vectors)


@pytest.mark.parametrize(("waiting", "vectors"), [("main", False), ("other", True)])
async def test_vectors_that_wait_are_said(waiting: str, vectors: bool) -> None:
    shown = await LiveShowing(Shards("main", "other"), Fill(waiting=frozenset({waiting}))).shown(7, {"main"}, 5)
    assert (shown.visible, shown.vectors) == (True, vectors)


async def test_waiting_ends_at_the_deadline_and_the_work_goes_on() -> None:
    shards = Shards("main")
    shards.gate.clear()
    showing = LiveShowing(shards, Fill())
    shown = await showing.shown(7, {"main"}, 0)
    assert (shown.visible, shown.vectors) == (False, False)
    shards.gate.set()
    assert (await showing.shown(8, {"main"}, 5)).visible
    assert shards.asked == [7, 8]


async def test_a_filler_that_fails_costs_vectors_alone(caplog: pytest.LogCaptureFixture) -> None:
    fill = Fill()
    fill.error = UnavailableError("the cache is locked")
    with caplog.at_level(logging.ERROR):
        shown = await LiveShowing(Shards("main"), fill).shown(7, {"main"}, 5)
        await asyncio.sleep(0)
    assert (shown.visible, shown.vectors) == (True, False)
    assert caplog.records[-1].__dict__["action"] == "showing_failed"


async def test_many_writes_at_once_are_shown_together() -> None:
    shards = Shards("main")
    shards.gate.clear()
    showing = LiveShowing(shards, Fill())
    for revision in range(1, 40):
        showing.soon(revision)
    last = asyncio.create_task(showing.shown(40, {"main"}, 5))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    shards.gate.set()
    assert (await last).visible
    assert len(shards.asked) <= 3 and shards.asked[-1] == 40


# --- vectors -----------------------------------------------------------------------------------------------------------------


class Letters:
    """Counts letters; raises while `down`."""

    def __init__(self, identity: VectorIdentity = IDENTITY) -> None:
        self.identity = identity
        self.max_tokens = 100
        self.down = False
        self.texts: list[str] = []

    def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        if self.down:
            raise EmbedderError("connection refused")
        self.texts += texts
        rows = np.array([[text.count(chr(code)) for code in range(97, 123)] for text in texts], dtype=np.float32)
        with np.errstate(invalid="ignore"):
            return rows / np.linalg.norm(rows, axis=1, keepdims=True)

    def embed_query(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        return self.embed(texts)


class Filled:
    """A filler over a store in memory, with two models."""

    def __init__(self) -> None:
        self.store = MemoryGraphStore(account=ACCOUNT)
        self.cache = MemoryVectorCache()
        self.clock = ManualClock()
        self.first, self.better = Letters(), Letters(OTHER_IDENTITY)
        self.served = {"main": replace(make_manifest("main"), watermark=0)}
        self.filler = self.restarted()

    def restarted(self) -> VectorFiller:
        return VectorFiller(
            account=ACCOUNT, store=self.store, cache=self.cache, embedders=(self.first, self.better), clock=self.clock
        )

    def write(self, *nodes: Node) -> None:
        self.store.write(WriteBatch(nodes=nodes))

    def fill(self) -> tuple[int, frozenset[str]]:
        return self.filler.fill(self.served)

    def has(self, node: Node, identity: VectorIdentity = IDENTITY) -> bool:
        return bool(self.cache.get(identity, [embedding_hash(node)]))


def test_what_was_written_is_embedded_once() -> None:
    on = Filled()
    on.write(make_node("a"), make_node("same", text=make_node("a").text), make_node("b"))
    assert on.fill() == (2, frozenset())
    assert on.has(make_node("a")) and on.has(make_node("b")) and len(on.first.texts) == 2
    assert on.fill() == (0, frozenset())
    on.write(make_node("a", text={"content": "new"}))
    assert on.fill() == (1, frozenset()) and len(on.first.texts) == 3
    assert on.better.texts == []


def test_what_the_generation_holds_is_gone_or_is_elsewhere_is_not_embedded() -> None:
    on = Filled()
    on.write(make_node("old"))
    on.served["main"] = replace(on.served["main"], watermark=1)
    on.write(make_node("gone"), make_node("unserved", project="NOT"), make_node("blank", text={"content": " "}))
    on.store.write(WriteBatch(soft_delete=("gone",), now=1))
    assert on.fill() == (0, frozenset()) and on.first.texts == []


def test_an_embedder_that_is_down_is_asked_again_and_what_waits_is_said() -> None:
    on = Filled()
    on.served["other"] = replace(make_manifest("other", identity=OTHER_IDENTITY), watermark=0)
    on.first.down = True
    on.write(make_node("a"), make_node("b", project="other"))
    assert on.fill() == (1, frozenset({"main"})) and on.has(make_node("b"), OTHER_IDENTITY)
    on.first.down = False
    on.write(make_node("c", project="other"))
    assert on.fill() == (1, frozenset({"main"})), "not before its time"
    on.clock.advance(RETRY_S + 1)
    assert on.fill() == (1, frozenset()) and on.has(make_node("a"))


def test_a_restart_finds_what_was_left() -> None:
    on = Filled()
    on.write(make_node("a"))
    on.first.down = True
    on.fill()
    on.first.down = False
    assert on.restarted().fill(on.served) == (1, frozenset()) and on.has(make_node("a"))


def test_another_identity_is_filled_anew() -> None:
    on = Filled()
    on.write(make_node("a"))
    on.fill()
    on.served["main"] = replace(on.served["main"], identity=OTHER_IDENTITY)
    assert on.fill() == (1, frozenset()) and on.has(make_node("a"), OTHER_IDENTITY)


def test_a_model_that_is_not_configured_is_waited_for() -> None:
    on = Filled()
    on.write(make_node("a"))
    on.served["main"] = replace(on.served["main"], identity=replace(IDENTITY, model="unknown"))
    assert on.fill() == (0, frozenset({"main"}))


def test_a_text_without_a_vector_is_not_waited_for() -> None:
    on = Filled()
    on.write(make_node("digits", text={"content": "123"}))
    assert on.fill() == (0, frozenset())
    assert on.fill() == (0, frozenset()) and len(on.first.texts) == 1


def test_many_are_embedded_in_small_calls() -> None:
    on = Filled()
    sizes: list[int] = []
    embed = on.first.embed

    def watched(texts: Sequence[str]) -> npt.NDArray[np.float32]:
        sizes.append(len(texts))
        return embed(texts)

    on.first.embed = watched  # type: ignore[method-assign]
    on.write(*(make_node(f"n{number}", text={"content": f"a{'b' * number}"}) for number in range(40)))
    assert on.fill() == (40, frozenset())
    assert sizes == [16, 16, 8]


def test_a_fault_of_a_model_is_as_if_it_were_down(caplog: pytest.LogCaptureFixture) -> None:
    on = Filled()

    def broken(_texts: Sequence[str]) -> npt.NDArray[np.float32]:
        raise KeyError("tokenizer")

    on.first.embed = broken  # type: ignore[method-assign]
    on.write(make_node("a"))
    with caplog.at_level(logging.WARNING):
        assert on.fill() == (0, frozenset({"main"}))
    assert caplog.records[-1].__dict__["action"] == "vectors_late"
