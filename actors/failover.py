"""Which replica of a shard a question is asked of, and when another one is. Pure: time is told by the caller.

A question goes to the replica that has the fewest waiting. When its answer takes longer than most, it is asked of another one
as well, and the first answer counts (hedging: Dean and Barroso, "The tail at scale", 2013). When a replica fails, or has been
silent for longer still, the question moves on to the next. Replicas hold the same rows, so the answer does not depend on which
one gave it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

#: A second replica is asked after this share of the recent answers was there; the bounds are seconds, the last one is for when
#: there are too few answers to say.
QUANTILE, LEAST_DELAY_S, MOST_DELAY_S, FIRST_DELAY_S = 0.95, 0.005, 0.5, 0.1
#: Answers that the share is taken over, and how many new ones there are until it is taken again.
SAMPLES, EVERY = 128, 16
#: Hedges a question, and how many may be saved up: where all are slow, asking twice must not double the load.
HEDGE_SHARE, HEDGE_BURST = 0.05, 10.0
#: A replica that has answered nothing for so many times the time of QUANTILE, and at least so many seconds, is left alone.
SILENT_TIMES, LEAST_SILENT_S = 4.0, 0.25
#: Seconds that a process may take for its first answer, or while it opens a generation, before it counts as hung, if `hung_s`
#: is not longer: a question that comes first has it open all that it holds.
OPENING_S = 600.0


@dataclass(slots=True, eq=False)
class ReplicaState:
    """What is known of one replica."""

    name: str
    #: The newest round of following the store that it took part in, as its set counts them.
    shown: int = -1
    #: The newest revision of the store that it is known to show.
    revision: int = -1
    #: Why it is out of service: it is asked nothing, until it has opened and shows all that was promised.
    out: str | None = None
    #: Whether a question went elsewhere because this one was late, and nothing came from it since.
    late: bool = False
    #: Generations that it is opening: it answers more slowly meanwhile.
    opening: int = 0
    #: Questions that wait for it.
    waiting: int = 0
    #: Whether anything came from its process since that was started.
    settled: bool = False
    #: When it answered last, in any way.
    answered_at: float = -math.inf
    _sent: dict[int, float] = field(default_factory=dict)
    _number: int = 0

    def sent(self, now: float) -> int:
        """Notes a call that is on its way; returns its number."""
        self._number += 1
        self._sent[self._number] = now
        return self._number

    def came_back(self, number: int, now: float) -> None:
        """Notes that a call was answered, be it with an error."""
        self._sent.pop(number, None)
        self.answered_at = now
        self.late, self.settled = False, True

    def died(self, number: int, detail: str) -> bool:
        """Notes that a call found the process gone; whether that is news."""
        self._sent.pop(number, None)
        self.settled = False
        news, self.out = self.out is None, detail
        return news

    def silent_s(self, now: float) -> float:
        """Seconds since it should have answered something; 0 while nothing is on its way."""
        return max(0.0, now - max(min(self._sent.values()), self.answered_at)) if self._sent else 0.0

    def hung(self, now: float, hung_s: float) -> bool:
        """Whether it has been silent for longer than `hung_s`, or OPENING_S where it opens something."""
        limit = hung_s if self.settled and not self.opening else max(hung_s, OPENING_S)
        return self.silent_s(now) > limit

    def restarted(self, now: float, detail: str) -> None:
        """Notes that its process was ended. Its silence counts anew, should that have failed."""
        self.out, self.settled, self.answered_at = detail, False, now


@dataclass(slots=True, eq=False)
class Standing:
    """The replicas of one shard."""

    states: Sequence[ReplicaState]
    #: The round after which somebody was told that what was written is visible: no answer may come from a replica that did not
    #: follow it. Rounds are counted and not revisions, since vectors that come later show in a round of the same revision.
    promised: int = -1
    #: Counts the questions.
    turn: int = 0

    def ready(self, place: int) -> bool:
        """Whether the replica at `place` may be asked as it is."""
        state = self.states[place]
        return state.out is None and state.shown >= self.promised

    def choose(self, asked: Collection[int]) -> int | None:
        """The best replica that is ready and not in `asked`; those that are equally good take turns."""
        count = len(self.states)
        places = [(self.turn + step) % count for step in range(count)]
        ready = [place for place in places if place not in asked and self.ready(place)]
        return min(ready, key=self._burden, default=None)

    def resort(self, asked: Collection[int]) -> int | None:
        """Another one that is not in `asked`: it may be on its way back, and must catch up first."""
        left = [place for place in range(len(self.states)) if place not in asked]
        return min(left, key=lambda place: (self.states[place].late, -self.states[place].shown), default=None)

    def _burden(self, place: int) -> tuple[bool, bool, int]:
        state = self.states[place]
        return state.late, state.opening > 0, state.waiting


class Pace:
    """How long answers took lately, and how many hedges that leaves."""

    def __init__(self) -> None:
        self._took: deque[float] = deque(maxlen=SAMPLES)
        self._new = 0
        self._quantile: float | None = None
        self._hedges = HEDGE_BURST

    def asked(self) -> None:
        """Notes a question."""
        self._hedges = min(HEDGE_BURST, self._hedges + HEDGE_SHARE)

    def took(self, seconds: float) -> None:
        """Notes an answer."""
        self._took.append(seconds)
        self._new += 1
        if self._new >= EVERY:
            self._new = 0
            self._quantile = sorted(self._took)[math.ceil(QUANTILE * len(self._took)) - 1]

    def hedge(self) -> bool:
        """Takes one hedge, if one is left."""
        if self._hedges < 1:
            return False
        self._hedges -= 1
        return True

    @property
    def delay_s(self) -> float:
        """Seconds until a question is late."""
        return FIRST_DELAY_S if self._quantile is None else min(MOST_DELAY_S, max(LEAST_DELAY_S, self._quantile))

    @property
    def silent_s(self) -> float:
        """Seconds after which a replica that has answered nothing is left alone."""
        return max(LEAST_SILENT_S, SILENT_TIMES * self.delay_s)


class Course:
    """One question's way over the replicas.

    It meets each at most once and none after the deadline. While one may still answer, another one is asked in two cases alone:
    once because the first is late and a hedge is left, and when all that were asked are silent.
    """

    def __init__(self, standing: Standing, pace: Pace, deadline: float, first: int | None = None) -> None:
        """`first` is the replica to begin with, if it is ready."""
        self._standing = standing
        self._pace = pace
        self._deadline = deadline
        self._first = first
        self._asked: set[int] = set()
        self._flying: set[int] = set()
        #: When the last of them was asked.
        self._asked_at = 0.0
        #: Whether the time to hedge has come and gone.
        self._decided = False
        #: No look before, since the last one found nobody to ask.
        self._not_before = 0.0
        standing.turn += 1
        pace.asked()

    def next(self, now: float) -> int | None:
        """The replica to ask now, if any. To be called until it is None, whenever something came back and at `wake_at`."""
        if now >= self._deadline:
            return None
        if not self._flying:
            place = self._begin()
        elif now < self.wake_at():
            place = None
        else:
            place = self._go_on(now)
        if place is not None:
            self._asked.add(place)
            self._flying.add(place)
            self._asked_at = now
        return place

    def failed(self, place: int) -> None:
        """Notes that the replica at `place` gave no answer, or not a whole one."""
        self._flying.discard(place)

    def wake_at(self) -> float:
        """When to look again if nothing comes back."""
        if len(self._asked) == len(self._standing.states):
            return self._deadline
        due = self._silent_until() if self._decided else self._asked_at + self._pace.delay_s
        return min(self._deadline, max(due, self._not_before))

    def _begin(self) -> int | None:
        first, self._first = self._first, None
        if first is not None and self._standing.ready(first) and not self._standing.states[first].late:
            return first
        place = self._standing.choose(self._asked)
        return self._standing.resort(self._asked) if place is None else place

    def _go_on(self, now: float) -> int | None:
        place = self._standing.choose(self._asked)
        if place is None:
            self._not_before = now + LEAST_SILENT_S
            return None
        hedged = not self._decided and self._pace.hedge()
        self._decided = True
        if not hedged and now < self._silent_until():
            return None
        for late in self._flying:
            self._standing.states[late].late = True
        return place

    def _silent_until(self) -> float:
        """When all that were asked will have been silent for so long that nothing more is expected of them."""
        since = max((self._asked_at, *(self._standing.states[place].answered_at for place in self._flying)))
        # Half of the time is left to the next one.
        return since + min(self._pace.silent_s, (self._deadline - self._asked_at) / 2)
