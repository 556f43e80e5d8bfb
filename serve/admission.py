"""Admission: how many requests are in work at once, how many wait, and who is told at once to come back later.

Time in the queue is a request's own time, so a queue is only as long as its last request can still be answered from. Little's
law (L = lambda W) gives the waiting to expect: with `limit` requests in work that take `mean` seconds each, the n-th in the
queue waits n * mean / limit. The limit follows what the machine can do, by slow start, additive increase and multiplicative
decrease (Jacobson 1988) on the time that a request in work takes: no number that is right for questions of 5 ms is right for
those of 300 ms.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeVar

from cluster.errors import DeadlineError, OverloadedError

T = TypeVar("T")

#: Of what remains of its time, the part that a request may wait; the rest is for the work.
WAITING_SHARE = 0.5
#: Requests in work at once before anything is known.
START = 16
#: What is left of the limit when requests take too long: the more the longer they take, within these bounds.
_LEAST_LEFT, _MOST_LEFT = 0.5, 0.9
#: Weight of the last request in the mean of the times in work, and how many times the mean it counts as at most: one that was
#: held up (by a disk, by a swap) says little about the next.
_WEIGHT, _MOST_TIMES = 0.1, 4.0


#: Seconds between two looks at the event loop.
LOOK_S = 0.05


class LoopLag:
    """How long what arrives has to wait before the event loop comes to it: time of a request that nobody else can see."""

    def __init__(self) -> None:
        self._due = math.inf
        self._lag_s = 0.0

    def __call__(self) -> float:
        """Seconds, 0 or more; 0 while nobody watches."""
        return max(self._lag_s, asyncio.get_running_loop().time() - self._due, 0.0)

    async def watch(self) -> None:
        """Looks again and again; to be run as a task of the loop."""
        loop = asyncio.get_running_loop()
        while True:
            self._due = loop.time() + LOOK_S
            await asyncio.sleep(LOOK_S)
            self._lag_s = loop.time() - self._due


class Lane:
    """Requests of one kind, first come, first served. Belongs to one event loop.

    `most`, `least`: bounds of the requests in work at once, 1 or more; equal, they fix it. `target_s`: the time in work from
    which on there are too many. `most_waiting`: bound of the queue, whatever the times are. `clock`: monotonic, in seconds.
    """

    def __init__(
        self, name: str, clock: Callable[[], float], *, most: int, least: int = 1, target_s: float = math.inf, most_waiting: int
    ) -> None:
        self._name = name
        self._clock = clock
        self._most = most
        self._least = min(least, most)
        self._target_s = target_s
        self._most_waiting = most_waiting
        self._limit = float(min(max(START, least), most))
        #: Until the limit has been too high once, it doubles each time that many requests end.
        self._slow_start = True
        self._working = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        #: Seconds in work, smoothed; 0 until one is done.
        self._mean_s = 0.0
        #: Requests that must end before the limit may fall again: those in work now were let in under the old one.
        self._settling = 0

    @property
    def limit(self) -> int:
        """Requests that may be in work at once now."""
        return int(self._limit)

    @property
    def working(self) -> int:
        """Requests in work."""
        return self._working

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return len(self._waiting)

    def expected_wait_s(self) -> float:
        """Seconds that a request that came now would wait."""
        if self._working < self.limit and not self._waiting:
            return 0.0
        return (len(self._waiting) + 1) * self._mean_s / self.limit

    async def run(self, deadline: float, work: Callable[[], Awaitable[T]]) -> T:
        """What `work` gives, begun when its turn has come.

        Raises OverloadedError, with nothing begun, when waiting would take too much of the time until `deadline` (on the lane's
        clock), at once where that can be foreseen; DeadlineError when that has passed already.
        """
        await self._enter(deadline)
        crowded = 2 * self._working >= self.limit
        started = self._clock()
        try:
            return await work()
        finally:
            self._leave(self._clock() - started, crowded)

    async def _enter(self, deadline: float) -> None:
        left = deadline - self._clock()
        if left <= 0:
            raise DeadlineError("the request's time was over before it was begun")
        if self._working < self.limit and not self._waiting:
            self._working += 1
            return
        patience, wait = WAITING_SHARE * left, self.expected_wait_s()
        if wait > patience or len(self._waiting) >= self._most_waiting:
            raise self._overloaded(wait)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            async with asyncio.timeout(patience):
                await turn
        except BaseException as error:
            self._give_up(turn)
            if isinstance(error, TimeoutError):
                raise self._overloaded(self.expected_wait_s()) from error
            raise

    def _give_up(self, turn: asyncio.Future[None]) -> None:
        if turn.done() and not turn.cancelled():
            # Its turn came in the same moment.
            self._working -= 1
            self._call_next()
            return
        # What was awaited is cancelled by now, and `_call_next` may have passed over it.
        turn.cancel()
        if turn in self._waiting:
            self._waiting.remove(turn)

    def _leave(self, took_s: float, crowded: bool) -> None:
        self._working -= 1
        if self._mean_s:
            self._mean_s += (min(took_s, _MOST_TIMES * self._mean_s) - self._mean_s) * _WEIGHT
        else:
            self._mean_s = took_s
        self._settling -= 1
        if took_s <= self._target_s:
            if self._waiting:
                more = 1.0 if self._slow_start else 1 / self._limit
                self._limit = min(float(self._most), self._limit + more)
        elif crowded and self._settling <= 0:
            # One that takes long where few are in work says nothing about how many may be.
            left = max(_LEAST_LEFT, min(_MOST_LEFT, self._target_s / took_s))
            self._limit = max(float(self._least), self._limit * left)
            self._settling = self._working
            self._slow_start = False
        self._call_next()

    def _call_next(self) -> None:
        while self._waiting and self._working < self.limit:
            turn = self._waiting.popleft()
            if not turn.done():
                self._working += 1
                turn.set_result(None)

    def _overloaded(self, wait_s: float) -> OverloadedError:
        return OverloadedError(f"too many {self._name} are waiting; try again later", retry_after_s=max(1, math.ceil(wait_s)))
