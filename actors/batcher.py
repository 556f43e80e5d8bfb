"""Group commit for questions: one batch is on its way to a shard while the next one forms."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from cluster.errors import OverloadedError, ShardError

Q = TypeVar("Q")
A = TypeVar("A")


class Batcher(Generic[Q, A]):
    """Sends what arrives while a batch is in flight as the next batch: no waiting when idle, large batches under load.

    At most `lanes` batches are in flight. A batch that outlives its callers' deadlines marks the shard as stalled: new
    questions then fail at once instead of queueing behind it, until the batch comes back in some way.
    """

    def __init__(
        self,
        send: Callable[[Sequence[Q]], Awaitable[Sequence[A]]],
        *,
        max_batch: int,
        lanes: int = 1,
        max_waiting: int = 1024,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._send = send
        self._max_batch = max_batch
        self._lanes = lanes
        self._max_waiting = max_waiting
        self._clock = clock
        self._waiting: deque[tuple[Q, float, asyncio.Future[A]]] = deque()
        self._in_flight: set[asyncio.Task[None]] = set()
        #: The in-flight batches that every one of their callers has given up on.
        self._stalled = 0

    async def ask(self, question: Q, deadline: float) -> A:
        """The answer to `question`, or ShardError once `deadline` (on the batcher's clock, in seconds) has passed.

        Raises OverloadedError at once when `max_waiting` questions wait already: a queue without a bound helps nobody.
        """
        left = deadline - self._clock()
        if left <= 0:
            raise ShardError("the deadline had passed before the shard was asked")
        if self._stalled >= self._lanes:
            raise ShardError("the shard does not answer")
        if len(self._waiting) >= self._max_waiting:
            raise OverloadedError("too many questions wait for the same shard")
        future: asyncio.Future[A] = asyncio.get_running_loop().create_future()
        self._waiting.append((question, deadline, future))
        self._start()
        try:
            return await asyncio.wait_for(future, left)
        except TimeoutError as error:
            raise ShardError("the shard did not answer within the deadline") from error

    def _start(self) -> None:
        while self._waiting and len(self._in_flight) < self._lanes:
            batch = self._take()
            if batch:
                task = asyncio.get_running_loop().create_task(self._carry(batch))
                self._in_flight.add(task)
                task.add_done_callback(self._landed)

    def _take(self) -> list[tuple[Q, float, asyncio.Future[A]]]:
        batch: list[tuple[Q, float, asyncio.Future[A]]] = []
        now = self._clock()
        while self._waiting and len(batch) < self._max_batch:
            question, deadline, future = self._waiting.popleft()
            # A caller that has given up needs no work done for it.
            if not future.done() and deadline > now:
                batch.append((question, deadline, future))
        return batch

    def _landed(self, task: asyncio.Task[None]) -> None:
        self._in_flight.discard(task)
        self._start()

    async def _carry(self, batch: Sequence[tuple[Q, float, asyncio.Future[A]]]) -> None:
        loop = asyncio.get_running_loop()
        stalled = False

        def give_up() -> None:
            nonlocal stalled
            stalled = True
            self._stalled += 1
            # Whoever waits for a place behind this batch would wait in vain.
            while self._stalled >= self._lanes and self._waiting:
                _, _, future = self._waiting.popleft()
                if not future.done():
                    future.set_exception(ShardError("the shard does not answer"))

        alarm = loop.call_later(max(0.0, max(deadline for _, deadline, _ in batch) - self._clock()), give_up)
        try:
            answers = await self._send([question for question, _, _ in batch])
            for (_, _, future), answer in zip(batch, answers, strict=True):
                if not future.done():
                    future.set_result(answer)
        except Exception as error:
            # Whatever it was, each caller must hear of it.
            for _, _, future in batch:
                if not future.done():
                    future.set_exception(error)
        finally:
            alarm.cancel()
            if stalled:
                self._stalled -= 1
