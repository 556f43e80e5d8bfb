"""The replicas of a shard: whoever is asked, the answer is the same, shows what was promised, and comes in time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from actors.replicas import ReplicaSet, RouterSettings
from cluster.errors import OverloadedError, ShardDownError, ShardError
from cluster.model.query import LegAnswer, PartitionFailure, Pins

LOST = PartitionFailure(project="demo", generation="g1", bucket="b0000", code="corrupt_index", detail="changed")


class Fake:
    """A replica that answers with the revision that it shows."""

    def __init__(self) -> None:
        self.revision = 0
        self.asked = 0
        self.prepared: list[Pins] = []
        self.restarts = 0
        self.error: Exception | None = None
        self.failures: tuple[PartitionFailure, ...] = ()
        self.open = asyncio.Event()
        self.open.set()

    async def _call(self) -> None:
        await self.open.wait()
        if self.error is not None:
            raise self.error

    async def prepare(self, pins: Pins) -> tuple[PartitionFailure, ...]:
        await self._call()
        self.prepared.append(pins)
        return self.failures

    async def catch_up(self, revision: int) -> tuple[PartitionFailure, ...]:
        await self._call()
        self.revision = revision
        return self.failures

    async def search(self, questions: Sequence[object]) -> list[LegAnswer]:
        self.asked += len(questions)
        await self._call()
        answer = LegAnswer(
            ids=(f"r{self.revision}",), scores=np.ones(1), asked=1, answered=1 - len(self.failures), failures=self.failures
        )
        return [answer for _ in questions]

    async def restart(self) -> None:
        self.restarts += 1
        self.revision = 0


@pytest.fixture
def fakes() -> list[Fake]:
    return [Fake(), Fake()]


@pytest.fixture
def now() -> list[float]:
    return [0.0]


@pytest.fixture
def make(fakes: list[Fake]) -> Callable[..., ReplicaSet]:
    def made(**options: float) -> ReplicaSet:
        return ReplicaSet("lexical-0", fakes, ("search",), RouterSettings(hung_s=5.0), **options)  # type: ignore[arg-type]

    return made


async def asked(shard: ReplicaSet, seconds: float = 10.0) -> LegAnswer:
    answer: LegAnswer = (await shard.ask("search", "pump", time.monotonic() + seconds))[0]
    return answer


def states(shard: ReplicaSet) -> list[str]:
    return [report.state for report in shard.report()]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0)


async def test_questions_are_shared_out(fakes: list[Fake], make: Callable[..., ReplicaSet]) -> None:
    shard = make()
    for _ in range(6):
        await asked(shard)
    assert [fake.asked for fake in fakes] == [3, 3]


@pytest.mark.parametrize("dead", [0, 1])
async def test_a_dead_replica_is_answered_around_and_comes_back_only_with_all_that_was_promised(
    fakes: list[Fake], make: Callable[..., ReplicaSet], dead: int
) -> None:
    shard = make()
    await shard.catch_up(1, 10)
    fakes[dead].error = ShardDownError("the shard is down")
    assert [(await asked(shard)).ids for _ in range(4)] == [("r1",)] * 4
    assert states(shard)[dead] == "down"
    assert await shard.catch_up(2, 10) == ()
    shard.watch({"demo": "g1"})
    await asyncio.sleep(0)
    fakes[dead].error, fakes[dead].revision = None, 0
    before = fakes[dead].asked
    assert [(await asked(shard)).ids for _ in range(4)] == [("r2",)] * 4
    assert fakes[dead].asked == before
    await until(lambda: not shard._tasks)
    shard.watch({"demo": "g1"})
    await until(lambda: states(shard) == ["serving", "serving"])
    assert fakes[dead].prepared[-1] == {"demo": "g1"}
    assert [(await asked(shard)).ids for _ in range(4)] == [("r2",)] * 4
    assert fakes[dead].asked > before


async def test_a_replica_that_lags_is_not_asked_until_it_has_followed(
    fakes: list[Fake], make: Callable[..., ReplicaSet], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("actors.replicas.GRACE_S", 0.0)
    shard = make()
    fakes[0].open.clear()
    assert await shard.catch_up(3, 10) == ()
    assert states(shard) == ["behind", "serving"]
    assert [(await asked(shard)).ids for _ in range(4)] == [("r3",)] * 4
    assert fakes[0].asked == 0
    fakes[0].open.set()
    await until(lambda: states(shard) == ["serving", "serving"])
    assert {(await asked(shard)).ids for _ in range(4)} == {("r3",)}


async def test_the_last_resort_catches_up_before_it_answers(fakes: list[Fake], make: Callable[..., ReplicaSet]) -> None:
    shard = make()
    fakes[0].error = ShardDownError("the shard is down")
    await asked(shard)
    await asked(shard)
    await shard.catch_up(4, 10)
    fakes[0].error, fakes[1].error = None, ShardDownError("the shard is down")
    assert (await asked(shard)).ids == ("r4",)
    assert states(shard) == ["down", "down"], "it is not opened yet"


async def test_a_replica_that_hangs_costs_a_delay_and_then_nothing(fakes: list[Fake], make: Callable[..., ReplicaSet]) -> None:
    shard = make()
    fakes[0].open.clear()
    for _ in range(50):
        assert (await asked(shard)).answered == 1
    assert fakes[0].asked == 1, "once it is late the others are asked first"
    assert fakes[1].asked == 50


async def test_many_at_once_all_come_over_from_a_replica_that_hangs(fakes: list[Fake], make: Callable[..., ReplicaSet]) -> None:
    shard = make()
    fakes[0].open.clear()
    answers = await asyncio.gather(*(asked(shard) for _ in range(100)))
    assert [answer.answered for answer in answers] == [1] * 100


async def test_with_all_of_them_dead_the_error_says_so(fakes: list[Fake], make: Callable[..., ReplicaSet]) -> None:
    shard = make()
    for fake in fakes:
        fake.error = ShardDownError("the shard is down")
    with pytest.raises(ShardError, match="the shard is down") as caught:
        await asked(shard)
    assert type(caught.value) is ShardError
    with pytest.raises(ShardError):
        await shard.catch_up(1, 10)
    with pytest.raises(ShardError):
        await shard.prepare({"demo": "g1"})


async def test_a_partition_that_one_replica_lost_is_asked_of_the_other(
    fakes: list[Fake], make: Callable[..., ReplicaSet]
) -> None:
    shard = make()
    fakes[0].failures = (LOST,)
    assert [(await asked(shard)).failures for _ in range(4)] == [()] * 4
    assert await shard.catch_up(1, 10) == (), "one of them can show it"
    fakes[1].failures = (LOST,)
    assert (await asked(shard)).failures == (LOST,)
    counts = sum(fake.asked for fake in fakes)
    assert (await asked(shard)).failures == (LOST,)
    assert sum(fake.asked for fake in fakes) == counts + 1, "what nobody has is not looked for everywhere each time"
    assert await shard.catch_up(2, 10) == (LOST,)


async def test_too_many_waiting_is_told_as_such(fakes: list[Fake], make: Callable[..., ReplicaSet]) -> None:
    shard = make()
    fakes[0].error, fakes[1].error = OverloadedError("full"), ShardDownError("the shard is down")
    with pytest.raises(OverloadedError):
        await asked(shard)


async def test_a_generation_is_opened_by_one_after_the_other_and_one_that_cannot_is_out(
    fakes: list[Fake], make: Callable[..., ReplicaSet]
) -> None:
    shard = make()
    fakes[0].open.clear()
    opening = asyncio.create_task(shard.prepare({"demo": "g2"}))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert fakes[1].prepared == []
    fakes[0].error = ShardError("out of memory")
    fakes[0].open.set()
    assert await opening == ()
    assert fakes[1].prepared == [{"demo": "g2"}]
    assert states(shard) == ["down", "serving"]


async def test_a_replica_that_is_silent_for_too_long_is_restarted_once(
    fakes: list[Fake], make: Callable[..., ReplicaSet], now: list[float]
) -> None:
    shard = make(clock=lambda: now[0])
    await shard.catch_up(1, 10)
    fakes[0].open.clear()
    telling = asyncio.create_task(shard.catch_up(2, 1000.0))
    await until(lambda: fakes[1].revision == 2)
    now[0] = 5.0
    shard.watch({})
    now[0] = 5.1
    shard.watch({})
    shard.watch({})
    await until(lambda: fakes[0].restarts > 0)
    assert [fake.restarts for fake in fakes] == [1, 0]
    assert states(shard)[0] == "down"
    fakes[0].open.set()
    await telling
    shard.watch({})
    await until(lambda: states(shard) == ["serving", "serving"])
    assert fakes[0].revision == 2


async def test_one_replica_is_asked_even_when_it_was_down(make: Callable[..., ReplicaSet], fakes: list[Fake]) -> None:
    del fakes[1]
    shard = make()
    fakes[0].error = ShardDownError("the shard is down")
    with pytest.raises(ShardError):
        await asked(shard)
    fakes[0].error = None
    assert (await asked(shard)).answered == 1


async def test_a_replica_that_was_late_is_not_taken_for_one_that_lacks_the_partition(
    fakes: list[Fake], make: Callable[..., ReplicaSet]
) -> None:
    shard = make()
    fakes[0].failures = (LOST,)
    fakes[1].open.clear()
    assert (await asked(shard, 0.3)).failures == (LOST,)
    fakes[1].open.set()
    await until(lambda: not shard._tasks)
    found = [(await asked(shard)).failures for _ in range(6)]
    assert found == [()] * 6


async def test_a_replica_that_missed_a_round_of_the_same_revision_is_not_asked(
    fakes: list[Fake], make: Callable[..., ReplicaSet], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Vectors that come after the write show in another round of the same revision."""
    monkeypatch.setattr("actors.replicas.GRACE_S", 0.0)
    shard = make()
    await shard.catch_up(3, 10)
    await until(lambda: states(shard) == ["serving", "serving"])
    fakes[0].open.clear()
    assert await shard.catch_up(3, 10) == ()
    assert states(shard) == ["behind", "serving"]
    assert [report.revision for report in shard.report()] == [3, 3]
    before = fakes[0].asked
    for _ in range(4):
        await asked(shard)
    assert fakes[0].asked == before
    fakes[0].open.set()
    await until(lambda: states(shard) == ["serving", "serving"])
