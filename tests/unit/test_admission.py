from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.errors import DeadlineError, OverloadedError
from serve.admission import LOOK_S, START, WAITING_SHARE, Lane, LoopLag
from tests.support.clock import ManualClock


class Work:
    """Requests that end when they are told to."""

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self.begun: list[int] = []
        self._ends: dict[int, asyncio.Event] = {}

    def ask(self, number: int, deadline: float = 60.0) -> asyncio.Task[int]:
        self._ends[number] = asyncio.Event()

        async def work() -> int:
            self.begun.append(number)
            await self._ends[number].wait()
            return number

        return asyncio.get_running_loop().create_task(self.lane.run(deadline, work))

    def end(self, *numbers: int) -> None:
        for number in numbers:
            self._ends[number].set()


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def make_lane(clock: ManualClock | None = None, most: int = 2, **settings: float) -> Lane:
    arguments = {"most_waiting": 100, **settings}
    return Lane("questions", (clock or ManualClock()).monotonic, most=most, **arguments)  # type: ignore[arg-type]


def at_once(value: int = 0) -> Callable[[], Awaitable[int]]:
    async def work() -> int:
        return value

    return work


async def test_more_than_the_limit_wait_and_are_begun_in_their_order() -> None:
    work = Work(make_lane())
    tasks = [work.ask(number) for number in range(5)]
    await settle()
    assert (work.begun, work.lane.working, work.lane.waiting) == ([0, 1], 2, 3)
    work.end(1)
    await settle()
    assert work.begun == [0, 1, 2]
    work.end(0, 2, 3, 4)
    assert await asyncio.gather(*tasks) == [0, 1, 2, 3, 4]
    assert (work.begun, work.lane.working, work.lane.waiting) == ([0, 1, 2, 3, 4], 0, 0)


async def test_a_full_queue_refuses_at_once() -> None:
    work = Work(make_lane(most=1, most_waiting=1))
    first, second = work.ask(1), work.ask(2)
    await settle()
    with pytest.raises(OverloadedError):
        await work.lane.run(60.0, at_once())
    work.end(1, 2)
    assert await asyncio.gather(first, second) == [1, 2]


async def test_who_would_wait_too_long_is_told_at_once_and_when_to_come_back() -> None:
    clock = ManualClock()
    work = Work(make_lane(clock, most=1))
    first = work.ask(0)
    await settle()
    clock.advance(3.0)  # so long takes one
    work.end(0)
    await first
    running, waiting = work.ask(1, 100.0), work.ask(2, 100.0)
    await settle()
    assert work.lane.expected_wait_s() == pytest.approx(6.0)
    refusing = asyncio.ensure_future(work.lane.run(clock.monotonic() + 6.0 / WAITING_SHARE - 0.1, at_once()))
    await settle()
    assert refusing.done(), "without waiting first"
    with pytest.raises(OverloadedError) as refused:
        await refusing
    assert refused.value.retry_after_s == 6
    patient = work.ask(3, clock.monotonic() + 6.0 / WAITING_SHARE + 0.1)
    await settle()
    assert work.lane.waiting == 2
    work.end(1, 2, 3)
    assert await asyncio.gather(running, waiting, patient) == [1, 2, 3]


async def test_one_that_was_held_up_does_not_turn_the_next_away() -> None:
    clock = ManualClock()
    work = Work(make_lane(clock, most=1))
    for number, seconds in enumerate((0.01, 0.01, 10.0)):
        task = work.ask(number, math.inf)
        await settle()
        clock.advance(seconds)
        work.end(number)
        await task
    running = work.ask(3, math.inf)
    await settle()
    assert work.lane.expected_wait_s() < 0.02
    work.end(3)
    await running


async def test_what_is_late_on_arrival_is_not_begun() -> None:
    lane = make_lane()
    with pytest.raises(DeadlineError):
        await lane.run(0.0, at_once())
    assert (lane.working, await lane.run(1.0, at_once(7))) == (0, 7)


async def test_who_has_waited_his_part_leaves_the_queue_and_is_not_begun() -> None:
    work = Work(make_lane(most=1))
    first = work.ask(1)
    await settle()
    late = work.ask(2, 0.02)
    with pytest.raises(OverloadedError):
        await late
    assert work.lane.waiting == 0
    work.end(1)
    assert (await first, work.begun, work.lane.working) == (1, [1], 0)


async def test_a_cancelled_request_gives_its_place_back() -> None:
    work = Work(make_lane(most=1))
    first, second, third = (work.ask(number) for number in (1, 2, 3))
    await settle()
    second.cancel()
    first.cancel()
    work.end(3)
    assert await third == 3
    assert (work.begun, work.lane.working, work.lane.waiting) == ([1, 3], 0, 0)


async def test_a_turn_that_comes_as_its_request_is_cancelled_goes_to_the_next() -> None:
    work = Work(make_lane(most=1))
    first, second, third = (work.ask(number) for number in (1, 2, 3))
    await settle()
    work.end(1, 3)
    while work.lane.waiting == 2:
        await asyncio.sleep(0)
    second.cancel()  # called, but not begun yet
    assert await asyncio.gather(first, third) == [1, 3]
    assert (work.begun, work.lane.working) == ([1, 3], 0)


async def test_a_failure_gives_its_place_back() -> None:
    lane = make_lane(most=1)

    async def fail() -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        await lane.run(1.0, fail)
    assert await lane.run(1.0, at_once(7)) == 7


async def saturate(lane: Lane, clock: ManualClock, seconds: float, rounds: int, crowd: int = 300) -> None:
    """As many requests as want to be there; all that are in work end together, each after `seconds`, `rounds` times."""
    gate = asyncio.Event()

    async def work() -> None:
        await gate.wait()

    tasks = [asyncio.ensure_future(lane.run(math.inf, work)) for _ in range(crowd)]
    for _ in range(rounds):
        await settle()
        clock.advance(seconds)
        gate.set()
        await asyncio.sleep(0)
        gate = asyncio.Event()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_the_limit_rises_while_requests_are_quick_and_falls_while_they_are_slow() -> None:
    clock = ManualClock()
    lane = make_lane(clock, most=64, least=4, target_s=1.0)
    assert lane.limit == START
    await saturate(lane, clock, 0.1, 6)
    assert lane.limit == 64
    await saturate(lane, clock, 3.0, 12)
    assert lane.limit == 4
    await saturate(lane, clock, 0.1, 3)
    assert 4 < lane.limit < 12  # carefully now: one more each time that as many as there are have ended


async def test_a_slow_request_among_few_does_not_lower_the_limit() -> None:
    clock = ManualClock()
    work = Work(make_lane(clock, most=64, least=4, target_s=1.0))
    slow = work.ask(1)
    await settle()
    clock.advance(30.0)
    work.end(1)
    await slow
    assert work.lane.limit == START


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from(["ask", "end", "cancel", "wait"]), max_size=60), st.integers(1, 4))
def test_the_places_add_up_whatever_happens(steps: list[str], most: int) -> None:
    async def run() -> None:
        clock = ManualClock()
        lane = make_lane(clock, most=most, least=1, target_s=0.5, most_waiting=5)
        work = Work(lane)
        tasks: list[asyncio.Task[int]] = []
        for step in steps:
            if step == "ask":
                tasks.append(work.ask(len(tasks), math.inf))
            elif step == "wait":
                clock.advance(0.3)
                await settle()
            elif tasks:
                number = len(tasks) // 2
                work.end(number) if step == "end" else tasks[number].cancel()
            assert lane.working <= most and lane.waiting <= 5
        work.end(*range(len(tasks)))
        await asyncio.gather(*tasks, return_exceptions=True)
        assert (lane.working, lane.waiting) == (0, 0)
        assert await lane.run(math.inf, at_once(7)) == 7

    asyncio.run(run())


async def test_the_lag_is_how_late_the_loop_comes_to_what_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    lag = LoopLag()
    assert lag() == 0.0
    loop = asyncio.get_running_loop()
    now = [100.0]
    looked = asyncio.Event()

    async def sleep(_seconds: float) -> None:
        await looked.wait()

    monkeypatch.setattr(loop, "time", lambda: now[0])
    monkeypatch.setattr("serve.admission.asyncio.sleep", sleep)
    watching = loop.create_task(lag.watch())
    await asyncio.wait({watching}, timeout=0)
    now[0] += LOOK_S
    assert lag() == 0.0
    now[0] += 3.0
    assert lag() == pytest.approx(3.0), "it is late already"
    watching.cancel()
