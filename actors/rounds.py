"""Work for all who asked for it meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")

#: A round is followed by a rest so many times as long, so that the shards answer questions most of the time: showing one write
#: costs a shard some 10 ms, and showing ten at once hardly more. At most so many seconds.
REST, MOST_REST_S = 2.0, 0.25


class Rounds(Generic[T]):
    """Group commit: work that is asked for while it runs, or rests, is done once more, for all who have asked meanwhile."""

    def __init__(self, work: Callable[[], Awaitable[T]], rest: float = REST) -> None:
        self._work = work
        self._rest = rest
        self._asked = 0
        self._running: asyncio.Task[tuple[int, T]] | None = None
        #: When the rest is over, on the loop's clock.
        self._rested_at = 0.0

    async def __call__(self) -> T:
        """The result of a round that began after this call."""
        self._asked += 1
        mine = self._asked
        while True:
            if self._running is None:
                self._running = asyncio.get_running_loop().create_task(self._round())
                self._running.add_done_callback(_heard)
            # A caller that goes away must not end the round of the others.
            began, result = await asyncio.shield(self._running)
            if began >= mine:
                return result

    async def _round(self) -> tuple[int, T]:
        loop = asyncio.get_running_loop()
        try:
            if self._rested_at > loop.time():
                await asyncio.sleep(self._rested_at - loop.time())
            began, started = self._asked, loop.time()
            result = await self._work()
            self._rested_at = loop.time() + min(MOST_REST_S, self._rest * (loop.time() - started))
            return began, result
        finally:
            self._running = None


def _heard(task: asyncio.Task[object]) -> None:
    """Everybody may have gone away: then nobody is told of an error, and asyncio is not to complain."""
    if not task.cancelled():
        task.exception()
