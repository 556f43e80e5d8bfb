"""Which replica is asked, and when another one is: a question's way over simulated replicas on a simulated clock."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.failover import (
    EVERY,
    FIRST_DELAY_S,
    HEDGE_BURST,
    LEAST_DELAY_S,
    MOST_DELAY_S,
    OPENING_S,
    Course,
    Pace,
    ReplicaState,
    Standing,
)

DEADLINE = 2.0


@dataclass
class Simulated:
    """What a replica does with each question: after `takes` seconds it answers, or fails; math.inf: never."""

    takes: float
    fails: bool = False
    out: bool = False
    shown: int = 5


@dataclass
class Ride:
    """What happened to one question."""

    #: (when, replica, how many were asked and silent at that time)
    asked: list[tuple[float, int, int]] = field(default_factory=list)
    answered: int | None = None


def ride(replicas: Sequence[Simulated], promised: int = 5, pace: Pace | None = None) -> Ride:
    states = [ReplicaState(f"r{n}", shown=one.shown, out="down" if one.out else None) for n, one in enumerate(replicas)]
    course = Course(Standing(states, promised=promised), pace or Pace(), DEADLINE)
    now, found = 0.0, Ride()
    flying: dict[int, float] = {}
    while True:
        while (place := course.next(now)) is not None:
            found.asked.append((now, place, len(flying)))
            flying[place] = now + replicas[place].takes
        if not flying:
            return found
        first = min(flying, key=lambda place: flying[place])
        upto = min(flying[first], course.wake_at())
        if upto >= DEADLINE:
            # Those that are asked all give up now; another one must not be asked for it.
            for place in flying:
                course.failed(place)
            if (place := course.next(DEADLINE)) is not None:
                found.asked.append((DEADLINE, place, 0))
            return found
        assert upto > now or flying[first] <= now, "time must go on"
        now = max(now, upto)
        if flying[first] <= now:
            del flying[first]
            if not replicas[first].fails:
                found.answered = first
                return found
            states[first].answered_at = now
            course.failed(first)


simulated = st.builds(
    Simulated,
    takes=st.one_of(st.floats(0.0, 3.0), st.just(math.inf)),
    fails=st.booleans(),
    out=st.booleans(),
    shown=st.integers(3, 5),
)


@settings(max_examples=200)
@given(st.lists(simulated, min_size=1, max_size=4))
def test_each_replica_is_asked_at_most_once_and_none_after_the_deadline(replicas: list[Simulated]) -> None:
    asked = ride(replicas).asked
    assert len({place for _, place, _ in asked}) == len(asked) >= 1
    assert all(when < DEADLINE for when, _, _ in asked)


@settings(max_examples=200)
@given(st.lists(simulated, min_size=1, max_size=4))
def test_one_that_is_behind_or_down_is_the_last_resort(replicas: list[Simulated]) -> None:
    ready = {n for n, one in enumerate(replicas) if not one.out and one.shown >= 5}
    for number, (_, place, flying) in enumerate(ride(replicas).asked):
        if place not in ready:
            assert flying == 0
            assert ready <= {before for _, before, _ in ride(replicas).asked[:number]}


@settings(max_examples=200)
@given(st.lists(simulated, min_size=2, max_size=4), st.integers(0, 3), st.floats(0.0, 0.9))
def test_with_one_that_is_well_and_one_that_is_not_there_is_an_answer(
    replicas: list[Simulated], place: int, takes: float
) -> None:
    # Half of the time is left to the second one.
    two = [replicas[0], Simulated(takes)] if place % 2 else [Simulated(takes), replicas[0]]
    assert ride(two).answered is not None


@settings(max_examples=100)
@given(st.lists(st.floats(0.0, 3.0), min_size=2, max_size=4))
def test_a_hedge_is_one_more_and_only_silence_makes_it_two(times: list[float]) -> None:
    asked = ride([Simulated(takes) for takes in times]).asked
    assert [flying for _, _, flying in asked] == list(range(len(asked)))
    if len(asked) > 1:
        assert asked[1][0] == pytest.approx(FIRST_DELAY_S)
    for (earlier, _, _), (later, _, _) in itertools.pairwise(asked[1:]):
        assert later - earlier == pytest.approx(min(0.4, (DEADLINE - earlier) / 2))


def test_without_hedges_left_a_slow_replica_is_left_alone_only_when_silent() -> None:
    pace = Pace()
    while pace.hedge():
        pass
    assert [when for when, _, _ in ride([Simulated(math.inf), Simulated(math.inf)], pace=pace).asked] == [0.0, 0.4]


def test_a_replica_that_answers_others_is_slow_but_not_silent() -> None:
    pace = Pace()
    while pace.hedge():
        pass
    states = [ReplicaState("a"), ReplicaState("b")]
    course = Course(Standing(states), pace, DEADLINE)
    first = course.next(0.0)
    assert first is not None
    assert course.next(0.1) is None
    states[first].answered_at = 0.3
    assert course.next(0.5) is None
    assert course.next(0.7) == 1 - first


def test_hedges_are_a_small_share_of_the_questions() -> None:
    pace = Pace()
    granted = 0
    for _ in range(1000):
        pace.asked()
        granted += pace.hedge()
    assert granted == pytest.approx(HEDGE_BURST + 1000 * 0.05, abs=1)


def test_the_delay_follows_the_recent_answers_within_bounds() -> None:
    pace = Pace()
    assert pace.delay_s == FIRST_DELAY_S
    for number in range(EVERY):
        pace.took(0.2 if number == EVERY - 1 else 0.02)
    assert pace.delay_s == 0.2
    for _ in range(200):
        pace.took(0.02)
    assert pace.delay_s == 0.02
    for seconds, bound in ((9.0, MOST_DELAY_S), (0.0001, LEAST_DELAY_S)):
        for _ in range(200):
            pace.took(seconds)
        assert pace.delay_s == bound


def test_questions_go_to_the_one_with_the_fewest_and_equals_take_turns() -> None:
    standing = Standing([ReplicaState("a"), ReplicaState("b"), ReplicaState("c")])
    turns = []
    for _ in range(6):
        standing.turn += 1
        turns.append(standing.choose(()))
    assert turns == [1, 2, 0, 1, 2, 0]
    standing.states[2].waiting = standing.states[0].waiting = 1
    assert standing.choose(()) == 1
    standing.states[1].late = True
    standing.turn = 0
    assert standing.choose(()) == 0
    assert standing.choose((0, 2)) == 1


def test_a_replica_is_hung_when_nothing_comes_back_and_a_new_process_has_longer() -> None:
    state = ReplicaState("a")
    assert not state.hung(100.0, 5.0)
    first = state.sent(100.0)
    assert not state.hung(106.0, 5.0), "it may be opening"
    assert state.hung(100.0 + OPENING_S + 1, 5.0)
    state.came_back(first, 107.0)
    second = state.sent(108.0)
    assert (state.hung(113.0, 5.0), state.hung(113.1, 5.0)) == (False, True)
    third = state.sent(113.0)
    state.came_back(second, 114.0)
    assert (state.hung(118.0, 5.0), state.hung(119.1, 5.0)) == (False, True)
    state.restarted(120.0, "hung")
    assert not state.hung(126.0, 5.0)
    assert state.died(third, "the shard is down") is False
    assert not state.hung(10_000.0, 5.0)


def test_a_replica_that_opens_a_generation_has_longer() -> None:
    state = ReplicaState("a", settled=True)
    state.sent(100.0)
    state.opening += 1
    assert not state.hung(160.6, 60.0)
    assert state.hung(100.0 + OPENING_S + 1, 60.0)
    state.opening -= 1
    assert state.hung(160.6, 60.0)
