from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import pytest

from actors.batcher import Batcher
from cluster.errors import OverloadedError, ShardError


class Shard:
    """Answers each question with its double, when it is let."""

    def __init__(self) -> None:
        self.batches: list[list[int]] = []
        self.open = asyncio.Event()

    async def send(self, questions: Sequence[int]) -> list[int]:
        self.batches.append(list(questions))
        await self.open.wait()
        return [2 * question for question in questions]


def soon(seconds: float = 5.0) -> float:
    return time.monotonic() + seconds


async def settled(shard: Shard, batches: int) -> None:
    async with asyncio.timeout(5):
        while len(shard.batches) < batches:
            await asyncio.sleep(0)


async def test_what_arrives_during_a_batch_is_the_next_batch() -> None:
    shard = Shard()
    batcher = Batcher(shard.send, max_batch=3)
    first = asyncio.ensure_future(batcher.ask(1, soon()))
    await settled(shard, 1)
    rest = [asyncio.ensure_future(batcher.ask(number, soon())) for number in (2, 3, 4, 5)]
    await asyncio.sleep(0)
    shard.open.set()
    assert await asyncio.gather(first, *rest) == [2, 4, 6, 8, 10]
    assert shard.batches == [[1], [2, 3, 4], [5]]


async def test_a_failing_shard_fails_its_batch_and_not_the_next() -> None:
    calls = 0

    async def send(questions: Sequence[int]) -> Sequence[int]:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise ValueError("broken")
        return questions

    batcher = Batcher(send, max_batch=8)
    with pytest.raises(ValueError, match="broken"):
        await batcher.ask(1, soon())
    assert await batcher.ask(2, soon()) == 2


async def test_nobody_queues_behind_a_hanging_shard_and_it_is_asked_again_once_it_wakes() -> None:
    shard = Shard()
    batcher = Batcher(shard.send, max_batch=8)
    with pytest.raises(ShardError, match="within the deadline"):
        await batcher.ask(1, soon(0.05))
    await asyncio.sleep(0)
    with pytest.raises(ShardError, match="does not answer"):
        await batcher.ask(2, soon(60))
    shard.open.set()
    async with asyncio.timeout(5):
        while True:
            try:
                assert await batcher.ask(3, soon()) == 6
                break
            except ShardError:
                await asyncio.sleep(0)
    assert [2] not in shard.batches


async def test_a_question_whose_deadline_has_passed_is_not_sent() -> None:
    shard = Shard()
    shard.open.set()
    batcher = Batcher(shard.send, max_batch=8)
    with pytest.raises(ShardError):
        await batcher.ask(1, time.monotonic() - 1)
    assert shard.batches == []


async def test_a_full_queue_refuses_at_once() -> None:
    shard = Shard()
    batcher = Batcher(shard.send, max_batch=8, max_waiting=2)
    asked = [asyncio.ensure_future(batcher.ask(1, soon()))]
    await settled(shard, 1)
    asked += [asyncio.ensure_future(batcher.ask(number, soon())) for number in (2, 3)]
    await asyncio.sleep(0)
    with pytest.raises(OverloadedError):
        await batcher.ask(4, soon())
    shard.open.set()
    assert await asyncio.gather(*asked) == [2, 4, 6]
