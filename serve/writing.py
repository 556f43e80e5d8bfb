"""The use case: commands and a principal in, nodes in the store and what came of each command out. Knows no HTTP and no Ray."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from itertools import count
from typing import Any, Protocol, TypeVar

from cluster.errors import DeadlineError, NotFoundError, RaycallError, ReusedKeyError, StaleError, UnavailableError
from cluster.guards import expansion_guard
from cluster.model.access import Principal
from cluster.model.ids import derived_id
from cluster.model.nodes import Node
from cluster.ports import Clock, GraphStore, Present, Receipt, WriteBatch
from serve.admission import Lane
from serve.writing_rules import Command, Op, Result, apply

logger = logging.getLogger(__name__)

_Result = TypeVar("_Result")

#: Commands of one transaction.
BATCH_ROWS = 500
#: How long an idempotency key is kept.
RECEIPT_MS = 24 * 3600 * 1000
#: Seconds that a write may take, and wait to be visible; then the answer says that it is not yet.
DEADLINE_S = 2.0
#: Seconds that a request with many commands may take; what is not begun by then is refused.
BULK_DEADLINE_S = 60.0
#: Threads that write: one is in a transaction, the next makes ready. The pool of others (queries' vectors) stays free.
_THREADS = 2
#: Requests in work at once: more than threads, which would idle while a busy event loop comes to what they have done.
_WORKING = 16
#: Transactions that wait for their turn. Most requests are refused before by the time that they would wait.
_MOST_WAITING = 256
_BUSY = "the store was busy until the request's time was over: nothing was written; try again"
_NOT_READ = "the node could not be read in time; try again"


class WaitFor(StrEnum):
    """When a write is answered."""

    DURABLE = "durable"
    VISIBLE = "visible"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """How far what was written can be found."""

    #: Whether every answer from now on shows it.
    visible: bool
    #: Whether it is compared by its vector, too, as far as its text has one.
    vectors: bool


class Showing(Protocol):
    """What makes writes visible."""

    def soon(self, revision: int) -> None:
        """Starts to show what was written up to `revision`; does not wait."""
        ...

    async def shown(self, revision: int, projects: Collection[str], timeout_s: float) -> Shown:
        """Waits until `revision` is shown in `projects`, at most `timeout_s`."""
        ...

    def projects(self) -> Collection[str]:
        """The projects that are served."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Once:
    """An idempotency key, and what tells apart two requests that carry it."""

    key: str
    fingerprint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One command of many, or why the caller's line is none."""

    #: Counted from 1, as in the caller's file.
    line: int
    command: Command | None = None
    error: RaycallError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of a command."""

    op: str | None
    id: str | None
    project: str | None = None
    result: Result | None = None
    #: The node's revision afterwards; of a deletion, the deletion's.
    revision: int | None = None
    error: RaycallError | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What came of one request."""

    #: By line.
    outcomes: tuple[tuple[int, Outcome], ...]
    #: None where the caller did not wait.
    shown: Shown | None
    #: Whether the whole request had been answered before.
    replayed: bool

    @property
    def counts(self) -> dict[str, int]:
        """How many commands came to which result; those that failed are "failed"."""
        found = Counter("failed" if outcome.result is None else outcome.result.value for _, outcome in self.outcomes)
        return {name: found[name] for name in (*(result.value for result in Result), "failed")}


@dataclass(slots=True)
class _Committed:
    outcomes: list[Outcome] = field(default_factory=list)
    revision: int = 0
    replayed: bool = False


class _Turn:
    """Who comes first: the transaction, which then is waited for, or the end of its time, after which nothing is written."""

    def __init__(self, late: Callable[[], bool]) -> None:
        self._late = late
        self._lock = threading.Lock()
        self._begun = False
        self._over = False

    def check(self) -> None:
        """Called before the store is asked for anything; raises DeadlineError when the time is over."""
        if self._over or self._late():
            raise DeadlineError(_BUSY)

    def begin(self) -> None:
        """Called under the store's write lock, before anything is decided; raises DeadlineError when the time is over."""
        with self._lock:
            if self._over or (not self._begun and self._late()):
                raise DeadlineError(_BUSY)
            self._begun = True

    def end(self) -> bool:
        """Ends the time; False when the transaction is under way."""
        with self._lock:
            self._over = not self._begun
            return self._over


class Writing:
    """Writes the nodes of one account."""

    def __init__(
        self,
        *,
        account: str,
        store: GraphStore,
        clock: Clock,
        showing: Showing,
        deadline_s: float = DEADLINE_S,
        bulk_deadline_s: float = BULK_DEADLINE_S,
        new_id: Callable[[], str] = lambda: str(uuid.uuid4()),
    ) -> None:
        self._account = account
        self._store = store
        self._clock = clock
        self._showing = showing
        self._deadline_s = deadline_s
        self._bulk_deadline_s = bulk_deadline_s
        self.new_id = new_id
        self._threads = ThreadPoolExecutor(_THREADS, "writes")
        # Those that read rows never wait for the store.
        self._readers = ThreadPoolExecutor(_THREADS, "rows")
        # Apart from questions and from each other, so that none keeps the others out.
        self._lane, self._reads = (
            Lane(name, clock.monotonic, most=_WORKING, least=_WORKING, most_waiting=_MOST_WAITING)
            for name in ("writes", "reads")
        )

    def deadline(self, timeout_s: float | None = None, *, many: bool = False) -> float:
        """When a request that arrives now must be answered, on the clock: after `timeout_s`, but no later than they all."""
        most = self._bulk_deadline_s if many else self._deadline_s
        return self._clock.monotonic() + min(most, most if timeout_s is None else timeout_s)

    def seconds_left(self, deadline: float) -> float:
        """Seconds until `deadline`, 0 or more."""
        return max(0.0, deadline - self._clock.monotonic())

    async def read(self, node_id: str, principal: Principal, deadline: float | None = None) -> Node:
        """The node, if `principal` may see it by its id; NotFoundError, in the same words, if not and if there is none.

        Raises OverloadedError or DeadlineError when it cannot be read by the `deadline` (None: it arrives now).
        """
        deadline = self.deadline() if deadline is None else deadline
        guard = expansion_guard(principal)

        def reading() -> Awaitable[dict[str, Node]]:
            return self._in_time(deadline, asyncio.to_thread(self._store.get_nodes, [node_id], guard), _NOT_READ)

        found = await self._reads.run(deadline, reading)
        if node_id not in found:
            raise NotFoundError(f"no node of that id that this key may read: {node_id[:100]!r}", field="id")
        return found[node_id]

    async def one(
        self,
        command: Command,
        principal: Principal,
        wait_for: WaitFor,
        once: Once | None = None,
        deadline: float | None = None,
    ) -> Written:
        """Does `command`, durably; raises what it was refused for, and nothing is written then.

        Raises OverloadedError or DeadlineError when it cannot be begun by its `deadline` (see there; None: it arrives now).

        Of a request that carries an idempotency key, `once`, the first success counts for RECEIPT_MS: later ones are answered
        the same and do nothing, whatever happened in between. Raises ReusedKeyError for another request with that key.
        """
        deadline = self.deadline() if deadline is None else deadline
        turn = self._turn(deadline)

        def work() -> _Committed:
            turn.check()
            return self._commit([command], principal, self._projects(principal), once, None, turn)

        committed = await self._lane.run(deadline, lambda: self._by(deadline, turn, work))
        (outcome,) = committed.outcomes
        if outcome.error is not None:
            raise outcome.error
        shown = await self._wait(committed.revision, {outcome.project or ""}, wait_for, deadline)
        return Written(outcomes=((1, outcome),), shown=shown, replayed=committed.replayed)

    async def many(
        self,
        rows: Iterable[Row],
        principal: Principal,
        wait_for: WaitFor,
        once: Once | None = None,
        deadline: float | None = None,
    ) -> Written:
        """Does the commands of `rows` in their order, some hundred a transaction; one that is refused takes no other along.

        When the store fails, or the time is over, the rest is not tried and says so. With `once`, a transaction that was
        committed by an earlier request of that key is answered as it was then, and the others are done now: a request that was
        cut off in the middle is sent again. Raises ReusedKeyError, with nothing written, for another request with that key.
        """
        deadline = self.deadline(many=True) if deadline is None else deadline
        projects = await self._in_time(deadline, asyncio.to_thread(self._projects, principal))
        batches = batched(rows)
        outcomes: list[tuple[int, Outcome]] = []
        revision, replayed, down = 0, True, None
        for part in count():
            reading = asyncio.get_running_loop().run_in_executor(self._readers, next, batches, None)
            # What stands must be said: once something may, the rows that are left are read to be refused.
            batch = await (reading if outcomes else self._in_time(deadline, reading))
            if batch is None:
                break
            committed, down = await self._commit_rows(batch, principal, projects, once, part, down, deadline)
            outcomes += zip((row.line for row in batch), committed.outcomes, strict=True)
            replayed = replayed and committed.replayed
            if committed.revision > revision:
                revision = committed.revision
                self._showing.soon(revision)
        touched = {outcome.project for _, outcome in outcomes if outcome.project is not None}
        shown = await self._wait(revision, touched, wait_for, min(deadline, self.deadline()))
        written = Written(outcomes=tuple(outcomes), shown=shown, replayed=replayed and bool(outcomes))
        logger.info("written in bulk", extra={"action": "bulk_written", "key_id": principal.key_id, "counts": written.counts})
        return written

    def _projects(self, principal: Principal) -> frozenset[str]:
        registered = {project.project for project in self._store.projects(self._account)}
        known = registered | set(self._showing.projects())
        return frozenset(known if principal.projects is None else known & principal.projects)

    async def _wait(self, revision: int, projects: Collection[str], wait_for: WaitFor, deadline: float) -> Shown | None:
        if wait_for is WaitFor.VISIBLE:
            return await self._showing.shown(revision, projects, self.seconds_left(deadline))
        self._showing.soon(revision)
        return None

    async def _in_time(self, deadline: float, work: Awaitable[_Result], late: str = _BUSY) -> _Result:
        """What `work` gives; DeadlineError with the words `late` when it has not come by the deadline. Before anything is
        written alone."""
        try:
            async with asyncio.timeout(self.seconds_left(deadline)):
                return await work
        except TimeoutError as error:
            raise DeadlineError(late) from error

    def _turn(self, deadline: float) -> _Turn:
        return _Turn(lambda: self._clock.monotonic() >= deadline)

    async def _by(self, deadline: float, turn: _Turn, work: Callable[[], _Committed]) -> _Committed:
        """What `work` gives in a thread; DeadlineError, and nothing is written, when its turn has not come by the deadline."""
        waiting = [work]

        def begin() -> _Committed:
            return waiting.pop()()

        job = self._threads.submit(begin)
        task = asyncio.wrap_future(job)
        given_up = False
        try:
            await asyncio.wait({task}, timeout=self.seconds_left(deadline))
        finally:
            # Also when nobody waits for the answer any more.
            given_up = not task.done() and turn.end()
            if given_up:
                task.add_done_callback(_forget)
                if job.cancel():
                    # The pool forgets it when it comes to it; what it would have written need not wait that long.
                    waiting.clear()
        if given_up:
            raise DeadlineError(_BUSY)
        # A transaction under way ends soon, and whether it was committed is no guess then.
        return await task

    async def _commit_rows(
        self,
        batch: Sequence[Row],
        principal: Principal,
        projects: frozenset[str],
        once: Once | None,
        part: int,
        down: UnavailableError | None,
        deadline: float,
    ) -> tuple[_Committed, UnavailableError | None]:
        """The outcomes of `batch`, and why trying on is useless: the store fails, or the time is over."""
        commands = [row.command for row in batch if row.command is not None]
        committed, turn = _Committed(), self._turn(deadline)
        work = partial(self._commit, commands, principal, projects, once, part, turn)
        if down is None and (commands or once is not None):
            try:
                committed = await self._lane.run(deadline, lambda: self._by(deadline, turn, work))
            except UnavailableError as error:
                down = error
            except RaycallError as error:
                if part == 0 and isinstance(error, ReusedKeyError):
                    raise
                logger.error("rows not written: %s", error.detail, extra={"action": "rows_not_written", "rows": len(commands)})  # noqa: TRY400
                committed.outcomes = [_failed(command, error) for command in commands]
        if down is not None:
            committed.outcomes = [_failed(command, down) for command in commands]
        done = iter(committed.outcomes)
        committed.outcomes = [
            Outcome(op=None, id=None, error=row.error) if row.command is None else next(done) for row in batch
        ]
        return committed, down

    def _commit(
        self,
        commands: Sequence[Command],
        principal: Principal,
        projects: frozenset[str],
        once: Once | None,
        part: int | None,
        turn: _Turn,
    ) -> _Committed:
        """One transaction. No two commands name the same node, and all or none of them delete: see `batched`.

        `part`: of a request with many; its refusals are kept, too, so that a repeated request is the same in all parts.
        """
        now = self._clock.now_ms()
        turn.check()
        name = "" if once is None else derived_id("idempotency", principal.key_id, once.key, str(part or 0))
        committed = _Committed()

        def decide(present: Present) -> WriteBatch | None:
            turn.begin()
            known = present.receipt
            committed.replayed = known is not None and known.expires_at > now
            if known is not None and once is not None and committed.replayed:
                if known.fingerprint != once.fingerprint:
                    raise ReusedKeyError("that idempotency key was sent with another request before; take a new key")
                committed.outcomes = _read(known.answer)
                return None
            committed.outcomes, written, deleted = _decided(commands, principal, projects, present, now)
            if part is None and committed.outcomes[0].error is not None:
                return None
            receipts = () if once is None else (_receipt(self._account, name, once, committed.outcomes, now),)
            return WriteBatch(nodes=tuple(written), soft_delete=tuple(deleted), receipts=receipts, now=now)

        committed.revision = self._store.transact([command.id for command in commands], name, decide)
        return committed


def batched(rows: Iterable[Row], most: int = BATCH_ROWS) -> Iterator[list[Row]]:
    """`rows` in their order, cut so that each part can be one transaction, whose commands see what was there before it.

    So no node is named twice in a part, and deletions, which take contained nodes along, are in parts of their own: what is
    written in the transaction that also deletes it would be answered with a revision that it never had.
    """
    batch: list[Row] = []
    ids: set[str] = set()
    deleting = False
    for row in rows:
        command = row.command
        deletes = deleting if command is None else command.op is Op.DELETE
        other = bool(ids) and deletes is not deleting
        if len(batch) >= most or other or (command is not None and command.id in ids):
            yield batch
            batch, ids = [], set()
        batch.append(row)
        if command is not None:
            ids.add(command.id)
            deleting = deletes
    if batch:
        yield batch


def _decided(
    commands: Sequence[Command], principal: Principal, projects: frozenset[str], present: Present, now: int
) -> tuple[list[Outcome], list[Node], list[str]]:
    """The outcome of each command; the nodes to store; the ids to delete."""
    outcomes: list[Outcome] = []
    written: list[Node] = []
    deleted: list[str] = []
    for command in commands:
        try:
            change = apply(command, principal, present.nodes.get(command.id), projects, now)
        except RaycallError as error:
            outcomes.append(_failed(command, error))
            continue
        if change.writes:
            written.append(change.node)
        if change.result is Result.DELETED:
            deleted.append(change.node.id)
        # What changes gets the revision that this transaction makes.
        revision = change.node.revision if change.result is Result.UNCHANGED else present.revision + 1
        outcomes.append(
            Outcome(op=command.op, id=command.id, project=change.node.project, result=change.result, revision=revision)
        )
    return outcomes, written, deleted


def _forget(task: asyncio.Future[_Committed]) -> None:
    """Whoever waited for `task` was told that nothing is written."""
    if not task.cancelled() and (error := task.exception()) is not None and not isinstance(error, DeadlineError):
        logger.error("a write that was given up failed", exc_info=error, extra={"action": "write_given_up"})


def _failed(command: Command, error: RaycallError) -> Outcome:
    return Outcome(op=command.op, id=command.id if command.named else None, error=error)


# --- receipts ----------------------------------------------------------------------------------------------------------------


def _receipt(account: str, name: str, once: Once, outcomes: Sequence[Outcome], now: int) -> Receipt:
    answer = json.dumps([_as_json(outcome) for outcome in outcomes])
    return Receipt(account=account, key=name, fingerprint=once.fingerprint, answer=answer, expires_at=now + RECEIPT_MS)


def _as_json(outcome: Outcome) -> dict[str, Any]:
    error = outcome.error
    return {
        "op": outcome.op,
        "id": outcome.id,
        "project": outcome.project,
        "result": outcome.result,
        "revision": error.revision if isinstance(error, StaleError) else outcome.revision,
        "error": None if error is None else [type(error).__name__, error.detail, error.field],
    }


def _read(answer: str) -> list[Outcome]:
    return [_outcome(item) for item in json.loads(answer)]


def _outcome(item: dict[str, Any]) -> Outcome:
    error = None
    if item["error"] is not None:
        kind, detail, name = item["error"]
        stale = kind == StaleError.__name__
        error = StaleError(detail, field=name, revision=item["revision"]) if stale else _KINDS[kind](detail, field=name)
    return Outcome(
        op=item["op"],
        id=item["id"],
        project=item["project"],
        result=None if item["result"] is None else Result(item["result"]),
        revision=None if error is not None else item["revision"],
        error=error,
    )


def _kinds(kind: type[RaycallError]) -> Iterator[type[RaycallError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from _kinds(below)


_KINDS = {kind.__name__: kind for kind in _kinds(RaycallError)}
