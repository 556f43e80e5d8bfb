"""A request's time: from its arrival on, in every stage, and what is said when it is over."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import httpx
import pytest

from cluster.errors import DeadlineError
from cluster.graph.memory import MemoryGraphStore
from cluster.model.guard import Guard
from cluster.model.nodes import Node
from cluster.model.query import LegAnswer, LexicalQuery, SearchRequest
from cluster.ports import Present, Project, WriteBatch
from serve.admission import Lane
from serve.retrieval import HOPS_SHARE, LEGS_SHARE
from serve.writing import WaitFor
from tests.support.clock import ManualClock
from tests.support.factories import ACCOUNT, make_edge
from tests.support.http import Front, make_front
from tests.support.retrieval import ADMIN, Bench, codes, doc, ids
from tests.support.writing import Desk, results, rows, upsert


class SlowBench(Bench):
    """Time goes on in the stages that are told to take some."""

    def __init__(self, *nodes: Node, **seconds: float) -> None:
        super().__init__(*nodes)
        self.seconds = seconds
        self.deadlines: list[float] = []
        self.clock = ManualClock()
        self.retrieval._clock = self.clock
        self.slow(self.legs, "lexical", "legs")
        self.slow(self.store, "get_nodes", "hydrate")
        self.slow(self.store, "neighbours", "hop")

    def slow(self, target: Any, name: str, stage: str) -> None:
        original = getattr(target, name)

        def wrapped(*arguments: Any) -> Any:
            self.deadlines += arguments[1:] if stage == "legs" else ()
            self.clock.advance(self.seconds.get(stage, 0.0))
            return original(*arguments)

        setattr(target, name, wrapped)

    def at(self, deadline: float, **request: Any) -> Any:
        search = self.retrieval.search(SearchRequest(query="alpha", **request), ADMIN, deadline=deadline)
        return asyncio.run(search)


def chain() -> SlowBench:
    bench = SlowBench(doc("a"), doc("b", "beta"), doc("c", "gamma"))
    bench.write(edges=(make_edge("a", "b"), make_edge("b", "c")))
    return bench


def test_the_legs_get_a_part_of_what_is_left_so_that_their_hits_can_still_be_read() -> None:
    bench = chain()
    bench.clock.advance(0.4)  # in the queue
    bench.at(2.0)
    assert bench.deadlines == [pytest.approx(0.4 + LEGS_SHARE * 1.6)]


def test_a_question_that_waited_too_long_is_not_begun() -> None:
    bench = chain()
    bench.clock.advance(2.0)
    with pytest.raises(DeadlineError):
        bench.at(2.0)
    assert not bench.legs.lexical_queries and not bench.legs.embedded


def test_hits_that_cannot_be_read_in_time_are_not_read() -> None:
    bench = chain()
    bench.seconds["legs"] = 2.5
    with pytest.raises(DeadlineError, match="over before its hits were read"):
        bench.at(2.0)


def test_a_hop_that_there_is_no_time_for_is_left_out_and_stated() -> None:
    bench = chain()
    whole = bench.at(2.0, expand_hops=2, limit=1)
    assert codes(whole) == [] and [item.node.id for item in whole.hits[0].related] == ["b", "c"]
    bench.seconds["hop"] = 2.0 * HOPS_SHARE
    cut = bench.at(bench.clock.monotonic() + 2.0, expand_hops=2, limit=1)
    assert ids(cut) == ["a"] and codes(cut) == ["expansion_cut"]
    assert [item.node.id for item in cut.hits[0].related] == ["b"]


def test_reading_many_hits_is_given_up_at_the_deadline() -> None:
    bench = Bench(*(doc(f"n{number}") for number in range(30)), deadline_s=0.05)
    release = threading.Event()
    original = bench.store.get_nodes

    def stuck(ids: Sequence[str], guard: Guard | None = None) -> dict[str, Node]:
        release.wait(30)
        return original(ids, guard)

    bench.store.get_nodes = stuck  # type: ignore[method-assign, assignment]

    async def ask() -> None:
        try:
            with pytest.raises(DeadlineError):
                await bench.retrieval.search(SearchRequest(query="alpha", limit=100), ADMIN)
        finally:
            release.set()  # the loop waits for its threads

    asyncio.run(ask())


# --- writes ------------------------------------------------------------------------------------------------------------------


class BusyStore(MemoryGraphStore):
    """Holds its write lock back until it is told otherwise, and counts what was decided under it."""

    def __init__(self) -> None:
        super().__init__(account=ACCOUNT)
        self.free = threading.Event()
        self.free.set()
        self.before: Callable[[], None] = lambda: None

    def transact(self, ids: Sequence[str], receipt: str, decide: Callable[[Present], WriteBatch | None]) -> int:
        self.free.wait(30)
        self.before()
        return super().transact(ids, receipt, decide)


class Content(str):
    """A text whose end is seen."""


@pytest.fixture
def busy() -> BusyStore:
    return BusyStore()


def test_a_write_whose_time_is_over_on_arrival_is_not_begun(busy: BusyStore) -> None:
    desk = Desk(busy)
    with pytest.raises(DeadlineError):
        asyncio.run(desk.writing.one(upsert(), ADMIN, WaitFor.DURABLE, deadline=desk.clock.monotonic()))
    assert not busy.get_nodes(["n1"])


def test_a_write_that_the_store_is_too_busy_for_is_given_up_and_never_done(busy: BusyStore) -> None:
    desk = Desk(busy)
    busy.free.clear()

    async def write() -> None:
        with pytest.raises(DeadlineError, match="nothing was written"):
            await desk.writing.one(upsert(), ADMIN, WaitFor.DURABLE, deadline=desk.clock.monotonic() + 0.02)
        busy.free.set()
        # The thread that was given up comes to the lock now; what is asked next follows it.
        await desk.writing.one(upsert("n2"), ADMIN, WaitFor.DURABLE)

    asyncio.run(write())
    assert set(busy.get_nodes(["n1", "n2"])) == {"n2"}


def test_writes_that_were_given_up_do_not_come_to_the_store_later(busy: BusyStore) -> None:
    desk = Desk(busy)
    busy.free.clear()
    calls: list[str] = []
    original = busy.projects
    busy.projects = lambda account: calls.append(account) or original(account)  # type: ignore[method-assign, func-returns-value]

    async def write() -> None:
        for number in range(20):
            with pytest.raises(DeadlineError, match="nothing was written"):
                await desk.writing.one(upsert(f"g{number}"), ADMIN, WaitFor.DURABLE, deadline=desk.clock.monotonic() + 0.005)
        busy.free.set()
        await desk.writing.one(upsert("n2"), ADMIN, WaitFor.DURABLE)

    asyncio.run(write())
    assert len(calls) <= 3, "those of the two threads, and the last"
    assert not busy.get_nodes([f"g{number}" for number in range(20)])


def test_a_write_that_is_given_up_keeps_nothing_in_memory(busy: BusyStore) -> None:
    desk = Desk(busy)
    busy.free.clear()

    async def write() -> None:
        for _ in range(2):  # one for each thread
            with pytest.raises(DeadlineError):
                await desk.writing.one(upsert(), ADMIN, WaitFor.DURABLE, deadline=desk.clock.monotonic() + 0.005)
        content = Content("beta")
        kept = weakref.ref(content)
        with contextlib.suppress(DeadlineError):
            await desk.writing.one(upsert("n2", content), ADMIN, WaitFor.DURABLE, deadline=desk.clock.monotonic() + 0.005)
        del content
        await asyncio.sleep(0)
        gc.collect()
        try:
            assert kept() is None
        finally:
            busy.free.set()

    asyncio.run(write())


def test_a_caller_that_goes_away_takes_what_was_not_begun_along(busy: BusyStore) -> None:
    desk = Desk(busy)
    busy.free.clear()

    async def write() -> None:
        task = asyncio.ensure_future(desk.writing.one(upsert(), ADMIN, WaitFor.DURABLE))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        busy.free.set()
        await desk.writing.one(upsert("n2"), ADMIN, WaitFor.DURABLE)

    asyncio.run(write())
    assert set(busy.get_nodes(["n1", "n2"])) == {"n2"}


def test_many_rows_wait_no_longer_than_their_time_for_what_comes_before_the_first(busy: BusyStore) -> None:
    desk = Desk(busy)
    free, original = threading.Event(), busy.projects

    def stuck(account: str) -> list[Project]:
        free.wait(30)
        return original(account)

    busy.projects = stuck  # type: ignore[method-assign]

    async def write() -> None:
        try:
            with pytest.raises(DeadlineError, match="nothing was written"):
                await desk.writing.many(rows(upsert()), ADMIN, WaitFor.DURABLE, deadline=desk.clock.monotonic() + 0.02)
        finally:
            free.set()

    asyncio.run(write())
    assert not busy.get_nodes(["n1"])


def test_rows_are_read_while_the_store_is_busy(busy: BusyStore) -> None:
    desk = Desk(busy)
    busy.free.clear()

    async def write() -> None:
        for _ in range(3):
            with pytest.raises(DeadlineError):
                await desk.writing.one(upsert(), ADMIN, WaitFor.DURABLE, deadline=desk.clock.monotonic() + 0.005)
        try:
            many = desk.writing.many(rows(upsert("m")), ADMIN, WaitFor.DURABLE, deadline=desk.clock.monotonic() + 0.2)
            assert results(await many) == ["deadline_exceeded"]
        finally:
            busy.free.set()

    asyncio.run(write())


def test_the_lock_may_come_when_the_time_is_over(busy: BusyStore) -> None:
    desk = Desk(busy)
    busy.before = lambda: desk.clock.advance(5.0)
    with pytest.raises(DeadlineError, match="nothing was written"):
        desk.one(upsert())
    assert not busy.get_nodes(["n1"])


def test_waiting_to_be_visible_gets_what_is_left(busy: BusyStore) -> None:
    desk = Desk(busy)
    original = busy.revision
    busy.before = lambda: None
    desk.showing.soon = lambda revision: None  # type: ignore[method-assign]

    async def write() -> None:
        deadline = desk.writing.deadline(1.5)
        desk.clock.advance(0.5)
        await desk.writing.one(upsert(), ADMIN, WaitFor.VISIBLE, deadline=deadline)

    asyncio.run(write())
    assert desk.showing.waited == [(original(), ("main",), 1.0)]


def test_rows_that_come_too_late_are_refused_and_those_before_stand(busy: BusyStore, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(busy)
    # The first row's transaction ends at 7 s, and the second, of the same node, comes after the time is over.
    monkeypatch.setattr(desk.writing, "_bulk_deadline_s", 10.0)
    busy.before = lambda: desk.clock.advance(7.0)
    written = desk.many(upsert(content="one"), upsert(content="two"), upsert("n2"))
    assert results(written) == ["created", "deadline_exceeded", "deadline_exceeded"]
    assert desk.node().text["content"] == "one"


# --- HTTP --------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def front() -> Front:
    return make_front(doc("a"))


def search(front: Front, timeout: str | None, **arguments: Any) -> httpx.Response:
    headers = {} if timeout is None else {"x-request-timeout": timeout}
    return front.search({"query": "alpha", **arguments}, headers=headers)


@pytest.mark.parametrize("text", ["", "0", "-1", "0.0", "1s", "nan", "inf", "1e3", "1,5", "٣", "0.5, 0.5"])
def test_a_timeout_is_a_positive_number_of_seconds(front: Front, text: str) -> None:
    response = front.search({"query": "alpha"}, headers={"x-request-timeout": text.encode()})
    assert response.status_code == 422
    assert (response.json()["code"], response.json()["field"]) == ("invalid_input", "x-request-timeout")
    assert front.call("DELETE", "/v1/nodes/a", headers={"x-request-timeout": text.encode()}).status_code == 422


class Arrivals:
    """What the lexical leg was given, relative to now."""

    def __init__(self, front: Front) -> None:
        self.left: list[float] = []
        original = front.legs.lexical

        async def lexical(query: LexicalQuery, deadline: float) -> LegAnswer:
            self.left.append(deadline - front.clock.monotonic())
            return await original(query, deadline)

        front.legs.lexical = lexical  # type: ignore[method-assign]


@pytest.mark.parametrize(("timeout", "seconds"), [(None, 0.2), ("0.1", 0.1), (" 0.1 ", 0.1), ("0.000001", 0.01), ("7", 0.2)])
def test_a_client_may_shorten_its_time_and_no_more(front: Front, timeout: str | None, seconds: float) -> None:
    arrivals = Arrivals(front)
    response = search(front, timeout)
    assert response.status_code == 200
    assert arrivals.left == [pytest.approx(LEGS_SHARE * seconds)]
    notices = [notice["code"] for notice in response.json()["disclosure"]["degradations"]]
    assert notices == (["timeout_clamped"] if timeout == "7" else [])


def test_what_waited_before_it_was_seen_has_so_much_less_time() -> None:
    front = make_front(doc("a"), lag_s=lambda: 0.15)
    arrivals = Arrivals(front)
    assert search(front, None).status_code == 200
    assert arrivals.left == [pytest.approx(LEGS_SHARE * 0.05)]
    assert search(front, "0.1").json()["code"] == "deadline_exceeded"
    write = {"project": "main", "text": {"content": "x"}}
    late = front.call("POST", "/v1/nodes", json=write, headers={"x-request-timeout": "0.1"})
    assert (late.status_code, late.json()["code"]) == (504, "deadline_exceeded")
    assert front.call("POST", "/v1/nodes", json=write).status_code == 201


def test_a_question_that_cannot_be_answered_in_time_is_504(front: Front) -> None:
    original = front.legs.lexical

    async def lexical(query: LexicalQuery, deadline: float) -> LegAnswer:
        front.clock.advance(1.0)
        return await original(query, deadline)

    front.legs.lexical = lexical  # type: ignore[method-assign]
    response = search(front, None)
    assert response.status_code == 504
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["code"] == "deadline_exceeded"


@pytest.mark.parametrize("path", ["/v1/search", "/v1/nodes", "/v1/nodes/bulk"])
def test_a_body_that_does_not_come_is_not_waited_for(front: Front, path: str) -> None:
    async def never() -> Any:
        yield b"{"
        await asyncio.Event().wait()

    kind = "application/x-ndjson" if path.endswith("bulk") else "application/json"
    response = front.call("POST", path, content=never(), headers={"content-type": kind, "x-request-timeout": "0.02"})
    assert (response.status_code, response.json()["code"]) == (504, "deadline_exceeded")


def test_a_deletion_does_not_wait_for_the_end_of_its_request(front: Front) -> None:
    async def never() -> Any:
        yield b""
        await asyncio.Event().wait()

    response = front.call("DELETE", "/v1/nodes/a", content=never(), headers={"x-request-timeout": "0.02"})
    assert (response.status_code, response.json()["code"]) == (504, "deadline_exceeded")


# --- too many ----------------------------------------------------------------------------------------------------------------


def test_questions_beyond_the_bounds_get_429_and_the_rest_goes_on() -> None:
    """Of many at once two are in work and three wait; writes, health, status and the route that does nothing do not queue."""
    clock = ManualClock()
    lane = Lane("questions", clock.monotonic, most=2, most_waiting=3)
    front = make_front(doc("a"), questions=lane, deadline_s=60.0)
    gate = asyncio.Event()
    original = front.legs.lexical

    async def lexical(query: LexicalQuery, deadline: float) -> LegAnswer:
        await gate.wait()
        return await original(query, deadline)

    front.legs.lexical = lexical  # type: ignore[method-assign]

    async def crowd() -> tuple[list[httpx.Response], list[httpx.Response]]:
        transport = httpx.ASGITransport(app=front.app, raise_app_exceptions=False)
        headers = {"authorization": f"Bearer {front.admin}"}
        async with httpx.AsyncClient(transport=transport, base_url="http://raycall.test", headers=headers) as client:
            questions = [asyncio.ensure_future(client.post("/v1/search", json={"query": "alpha"})) for _ in range(9)]
            while lane.waiting < 3:
                await asyncio.sleep(0)
            others = [
                await client.post("/v1/nodes", json={"project": "main", "text": {"content": "x"}}),
                await client.get("/healthz"),
                await client.get("/v1/status"),
                await client.post("/v1/noop"),
            ]
            gate.set()
            return list(await asyncio.gather(*questions)), others

    questions, others = asyncio.run(crowd())
    assert [response.status_code for response in others] == [201, 200, 200, 200]
    refused = [response for response in questions if response.status_code == 429]
    assert len(refused) == 4 and [response.status_code for response in questions].count(200) == 5
    for response in refused:
        assert response.headers["content-type"] == "application/problem+json"
        assert response.json()["code"] == "overloaded"
        assert int(response.headers["retry-after"]) >= 1
