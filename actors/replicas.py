"""The replicas of one shard, as the router reaches them: asked, told, watched, and brought back. No Ray in here."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeAlias

from actors.batcher import Batcher
from actors.failover import Course, Pace, ReplicaState, Standing
from actors.rounds import Rounds
from cluster.errors import DeadlineError, OverloadedError, RaycallError, ShardDownError, ShardError
from cluster.model.query import LegAnswer, PartitionFailure, Pins

log = logging.getLogger(__name__)

#: How long a replica may take to open a new generation, in seconds.
PREPARE_TIMEOUT_S = 60.0
#: Seconds that the other replicas are waited for when one has followed a write. Who is later is not asked until he has.
GRACE_S = 0.25
#: Seconds for which a partition that no replica could answer from is not looked for in all of them again.
RETRY_S = 10.0

Failures: TypeAlias = tuple[PartitionFailure, ...]


class Client(Protocol):
    """One replica of a shard. It also has the methods that questions are sent to, which take a batch."""

    async def prepare(self, pins: Pins) -> Failures: ...
    async def catch_up(self, revision: int) -> Failures: ...
    async def restart(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RouterSettings:
    """How the router sends."""

    #: Questions of one batch to a shard.
    max_batch: int = 64
    #: Batches in flight to one shard. 1 = group commit; a large number with max_batch 1 = a call for each question.
    lanes: int = 1
    #: Seconds of silence after which a replica is ended and restarted; 0: never.
    hung_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaReport:
    """One replica, for whoever runs the server."""

    shard: str
    #: From 0.
    replica: int
    #: "serving", "behind" (it does not show what others show, and is not asked) or "down".
    state: str
    detail: str | None
    #: The newest revision that it is known to show; -1: none.
    revision: int


class Replica:
    """One replica: its batches, and what is known of it."""

    def __init__(
        self, name: str, client: Client, methods: Sequence[str], settings: RouterSettings, clock: Callable[[], float]
    ) -> None:
        self.state = ReplicaState(name)
        self.recovering = False
        self._client = client
        self._clock = clock
        self._batchers: dict[str, Batcher[Any, Any]] = {
            method: Batcher(partial(self.call, method), max_batch=settings.max_batch, lanes=settings.lanes, clock=clock)
            for method in methods
        }
        #: A shard opens one set of generations at a time; another one would have it begin anew.
        self._opening = asyncio.Lock()
        #: The newest round, and the newest revision, that is to be followed.
        self._wanted = (-1, -1)
        self._rounds = Rounds(self._catch_up, rest=0.0)

    async def ask(self, method: str, question: object, deadline: float) -> Any:
        """See `Batcher.ask`."""
        self.state.waiting += 1
        try:
            return await self._batchers[method].ask(question, deadline)
        finally:
            self.state.waiting -= 1

    async def call(self, method: str, argument: object) -> Any:
        """One call of the client; raises as it does. A process that is gone is a ShardError, and the replica out of service."""
        number = self.state.sent(self._clock())
        try:
            result = await getattr(self._client, method)(argument)
        except ShardDownError as error:
            if self.state.died(number, error.detail):
                log.warning("replica is down", extra={"action": "replica_down", "replica": self.state.name})
            raise ShardError(error.detail) from error
        except BaseException:
            self.state.came_back(number, self._clock())
            raise
        self.state.came_back(number, self._clock())
        return result

    async def prepare(self, pins: Pins) -> Failures:
        """Has the generations opened; returns what of them could not be."""
        self.state.opening += 1
        try:
            async with self._opening:
                failures: Failures = await self.call("prepare", pins)
            return failures
        finally:
            self.state.opening -= 1

    async def catch_up(self, number: int, revision: int) -> Failures:
        """Has everything up to `revision` shown by a call that begins now or later, which is that of round `number` then; at
        most one is on its way."""
        self._wanted = (max(self._wanted[0], number), max(self._wanted[1], revision))
        return await self._rounds()

    async def _catch_up(self) -> Failures:
        number, revision = self._wanted
        failures: Failures = await self.call("catch_up", revision)
        self.state.shown = max(self.state.shown, number)
        self.state.revision = max(self.state.revision, revision)
        return failures

    async def restart(self, silent_s: float) -> None:
        """Ends the process, and has it started anew."""
        extra = {"action": "replica_hung", "replica": self.state.name, "seconds": round(silent_s)}
        log.error("replica does not answer; restarting it", extra=extra)
        await self._client.restart()


class ReplicaSet:
    """All replicas of one shard. They hold the same partitions, so any of them answers for the shard."""

    def __init__(
        self,
        shard: str,
        clients: Sequence[Client],
        methods: Sequence[str],
        settings: RouterSettings,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clients`: at least one. `methods`: those that questions are asked of, each of which takes a batch."""
        self._shard = shard
        self._settings = settings
        self._clock = clock
        self._replicas = tuple(
            Replica(f"{shard}#{number}", client, methods, settings, clock) for number, client in enumerate(clients)
        )
        self._standing = Standing([replica.state for replica in self._replicas])
        self._paces = {method: Pace() for method in methods}
        #: Partitions that no replica can answer from, and until when that is taken for granted.
        self._lost: dict[tuple[str, str, str], float] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        #: The last round of following the store, and the newest revision that was asked for.
        self._round = 0
        self._revision = -1

    @property
    def opening(self) -> bool:
        """Whether no replica is free of opening a generation."""
        return all(replica.state.opening for replica in self._replicas)

    async def ask(self, method: str, question: object, deadline: float, first: int | None = None) -> tuple[Any, int]:
        """The answer, and the place of the replica that gave it; `first` is asked first, if it can be.

        The answer with the fewest failures where none is whole. Raises ShardError when there is none until `deadline`, and
        OverloadedError when a replica has too many questions waiting.
        """
        if len(self._replicas) == 1:
            return await self._replicas[0].ask(method, question, deadline), 0
        pace = self._paces[method]
        course, began = Course(self._standing, pace, deadline, first), self._clock()
        flying: dict[asyncio.Task[Any], int] = {}
        partial_answers: list[tuple[Any, int]] = []
        errors: list[Exception] = []
        try:
            while True:
                while (place := course.next(self._clock())) is not None:
                    flying[asyncio.ensure_future(self._ask(place, method, question, deadline))] = place
                if not flying:
                    break
                for task in await _landed(flying, course.wake_at(), deadline, self._clock()):
                    place = flying.pop(task)
                    course.failed(place)
                    if isinstance(error := task.exception(), Exception):
                        errors.append(error)
                    elif self._whole(task.result()):
                        pace.took(self._clock() - began)
                        return task.result(), place
                    else:
                        partial_answers.append((task.result(), place))
        finally:
            for task in flying:
                task.cancel()
        return self._best(partial_answers, errors)

    async def _ask(self, place: int, method: str, question: object, deadline: float) -> Any:
        replica = self._replicas[place]
        if replica.state.shown < self._standing.promised:
            # The last resort: one that nobody expected to be asked.
            try:
                async with asyncio.timeout(deadline - self._clock()):
                    await replica.catch_up(self._standing.promised, self._revision)
            except TimeoutError as error:
                raise ShardError("the shard did not follow within the deadline") from error
        return await replica.ask(method, question, deadline)

    def _whole(self, answer: Any) -> bool:
        """Whether there is no use in asking another replica."""
        if not isinstance(answer, LegAnswer) or not answer.failures:
            return True
        now = self._clock()
        return all(now < self._lost.get(_partition(failure), now) for failure in answer.failures)

    def _best(self, answers: Sequence[tuple[Any, int]], errors: Sequence[Exception]) -> tuple[Any, int]:
        """What is left when no answer was whole."""
        if not answers:
            raise _worst(errors)
        if len(answers) == len(self._replicas):
            self._give_up([answer for answer, _ in answers])
        return min(answers, key=lambda found: len(found[0].failures))

    def _give_up(self, answers: Sequence[LegAnswer]) -> None:
        """Notes the partitions that none of `answers`, those of all replicas, holds. One that was late may have it."""
        now = self._clock()
        self._lost = {partition: until for partition, until in self._lost.items() if now < until}
        failed = [{_partition(one) for one in answer.failures if one.code != DeadlineError.code} for answer in answers]
        self._lost.update(dict.fromkeys(set.intersection(*failed), now + RETRY_S))

    async def prepare(self, pins: Pins, timeout_s: float = PREPARE_TIMEOUT_S) -> Failures:
        """Has the generations opened by one replica after the other, so that the rest answer meanwhile.

        Returns what could not be opened by the one that could open most. One that fails where another did not is out of
        service until it can. Raises the first error when all fail; each has `timeout_s`.
        """
        found: list[Failures] = []
        errors: dict[int, Exception] = {}
        members = self._members()
        for place in members:
            try:
                # What a caller gives up on goes on all the same, so it must be known to be on its way.
                async with asyncio.timeout(timeout_s):
                    found.append(await asyncio.shield(self._start(self._replicas[place].prepare(pins))))
            except TimeoutError:
                errors[place] = ShardError("a shard did not open the generation in time")
            except Exception as error:
                errors[place] = error
        if not found:
            raise next(iter(errors.values()))
        for place, reason in errors.items():
            state = self._replicas[place].state
            state.out = state.out or (reason.detail if isinstance(reason, RaycallError) else "it cannot open a generation")
        return min(found, key=len)

    async def catch_up(self, revision: int, timeout_s: float) -> Failures:
        """Has every later answer show `revision`; returns the partitions that no replica can show it of.

        All replicas are told. Those that take longer than GRACE_S after the first are not asked anything until they have
        followed. Raises ShardError when none did in time, and what the last one raised when none could.
        """
        until = self._clock() + timeout_s
        self._round += 1
        self._revision = max(self._revision, revision)
        number = self._round
        pending = {self._start(self._replicas[place].catch_up(number, revision)) for place in self._members()}
        found: list[Failures] = []
        errors: list[BaseException] = []
        try:
            while pending:
                patience = max(0.0, until - self._clock())
                done, pending = await asyncio.wait(pending, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    break
                for task in done:
                    if (failed := task.exception()) is not None:
                        errors.append(failed)
                    else:
                        found.append(task.result())
                        until = min(until, self._clock() + GRACE_S)
        finally:
            for task in pending:
                task.cancel()
        if not found:
            raise errors[-1] if errors else ShardError("the shard did not follow in time")
        self._standing.promised = max(self._standing.promised, number)
        shared = set.intersection(*({_partition(failure) for failure in failures} for failures in found))
        return tuple(failure for failure in found[0] if _partition(failure) in shared)

    def watch(self, pins: Mapping[str, str]) -> None:
        """Restarts the replicas that hang and brings those back that are out of service; does not wait. `pins` is what is
        served. To be called again and again."""
        now = self._clock()
        for replica in self._replicas:
            if self._settings.hung_s and replica.state.hung(now, self._settings.hung_s):
                self._start(replica.restart(replica.state.silent_s(now)))
                replica.state.restarted(now, "it did not answer and is restarted")
            elif replica.state.out is not None and not replica.recovering:
                replica.recovering = True
                self._start(self._recover(replica, pins))

    async def _recover(self, replica: Replica, pins: Pins) -> None:
        try:
            await replica.prepare(pins)
            await replica.catch_up(self._standing.promised, self._revision)
        except RaycallError:
            return  # still on its way; the next look tries again
        finally:
            replica.recovering = False
        replica.state.out = None
        log.info("replica is back", extra={"action": "replica_back", "replica": replica.state.name})

    def report(self) -> list[ReplicaReport]:
        """Each replica."""
        found = []
        for number, state in enumerate(self._standing.states):
            behind = None if self._standing.ready(number) else "it does not show everything that was written yet"
            name = "down" if state.out is not None else "behind" if behind else "serving"
            detail = state.out or behind
            found.append(ReplicaReport(shard=self._shard, replica=number, state=name, detail=detail, revision=state.revision))
        return found

    def _members(self) -> list[int]:
        """The replicas that are to be told something: those in service, all when none is."""
        places = range(len(self._replicas))
        return [place for place in places if self._replicas[place].state.out is None] or list(places)

    def _start(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, RaycallError):
            log.error("replica failed", exc_info=error, extra={"action": "replica_failed", "shard": self._shard})


def _partition(failure: PartitionFailure) -> tuple[str, str, str]:
    return failure.project, failure.generation, failure.bucket


async def _landed(flying: Collection[asyncio.Task[Any]], wake_at: float, deadline: float, now: float) -> set[asyncio.Task[Any]]:
    """The tasks that are done at `wake_at` at the latest. After the deadline, where each ends by itself, the first to do so."""
    patience = max(0.0, wake_at - now) if now < deadline else None
    return (await asyncio.wait(flying, timeout=patience, return_when=asyncio.FIRST_COMPLETED))[0]


def _worst(errors: Sequence[Exception]) -> Exception:
    overloaded = next((error for error in errors if isinstance(error, OverloadedError)), None)
    return overloaded or (errors[-1] if errors else ShardError("the deadline had passed before the shard was asked"))
