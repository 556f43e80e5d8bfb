"""The use case of writing over any store, without shards."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from itertools import count
from typing import Any

from cluster.errors import RaycallError
from cluster.model.access import Principal
from cluster.model.nodes import Node
from cluster.ports import GraphStore, Project, WriteBatch
from serve.writing import Once, Outcome, Row, Shown, WaitFor, Writing, Written
from serve.writing_rules import Command, Op
from tests.support.clock import ManualClock
from tests.support.factories import ACCOUNT, make_principal

ADMIN = make_principal()
#: Of generated ids: two requests never have the same.
_NUMBERS = count(1)


class FakeShowing:
    """Shows at once, or not at all."""

    def __init__(self, projects: Collection[str] = ()) -> None:
        self._projects = projects
        self.answer = Shown(visible=True, vectors=True)
        self.started: list[int] = []
        self.waited: list[tuple[int, tuple[str, ...], float]] = []

    def projects(self) -> Collection[str]:
        return self._projects

    def soon(self, revision: int) -> None:
        self.started.append(revision)

    async def shown(self, revision: int, projects: Collection[str], timeout_s: float) -> Shown:
        self.waited.append((revision, tuple(sorted(projects)), timeout_s))
        return self.answer


def register(store: GraphStore, *names: str) -> None:
    projects = [Project(account=ACCOUNT, project=name, root="", commit=None, indexed_at=0) for name in names]
    store.write(WriteBatch(projects=tuple(projects)))


def make_writing(store: GraphStore, clock: ManualClock, showing: FakeShowing) -> Writing:
    """With ids like new-7 for nodes without one."""
    return Writing(account=ACCOUNT, store=store, clock=clock, showing=showing, new_id=lambda: f"new-{next(_NUMBERS)}")


def upsert(node_id: str | None = "n1", content: str = "alpha", project: str = "main", **fields: Any) -> Command:
    control = {name: fields.pop(name) for name in ("store", "expected", "must_exist") if name in fields}
    named = node_id is not None
    return Command(
        op=Op.UPSERT,
        id=node_id or f"new-{next(_NUMBERS)}",
        named=named,
        project=project,
        fields={"text": {"content": content}, **fields},
        **control,
    )


def patch(node_id: str = "n1", expected: int | None = None, **fields: Any) -> Command:
    return Command(op=Op.PATCH, id=node_id, fields=fields, expected=expected)


def delete(node_id: str = "n1", expected: int | None = None) -> Command:
    return Command(op=Op.DELETE, id=node_id, expected=expected)


def rows(*commands: Command | RaycallError) -> Iterable[Row]:
    for line, item in enumerate(commands, 1):
        yield Row(line=line, command=item) if isinstance(item, Command) else Row(line=line, error=item)


class Desk:
    """A store with the project "main", and the use case over it; asked without awaiting."""

    def __init__(self, store: GraphStore) -> None:
        register(store, "main")
        self.store = store
        self.clock = ManualClock()
        self.showing = FakeShowing()
        self.writing = make_writing(store, self.clock, self.showing)

    def one(
        self, command: Command, principal: Principal = ADMIN, wait: WaitFor = WaitFor.DURABLE, key: str = "", body: str = "b"
    ) -> Written:
        once = Once(key=key, fingerprint=body) if key else None
        return asyncio.run(self.writing.one(command, principal, wait, once))

    def do(self, command: Command, principal: Principal = ADMIN, **arguments: Any) -> Outcome:
        """What came of a command that must succeed."""
        ((_, outcome),) = self.one(command, principal, **arguments).outcomes
        return outcome

    def many(self, *commands: Command | RaycallError, principal: Principal = ADMIN, key: str = "", body: str = "b") -> Written:
        once = Once(key=key, fingerprint=body) if key else None
        return asyncio.run(self.writing.many(rows(*commands), principal, WaitFor.DURABLE, once))

    def node(self, node_id: str = "n1") -> Node:
        return self.store.get_nodes([node_id])[node_id]


def results(written: Written) -> list[str]:
    """The result of each row, or its error's code."""
    return [outcome.error.code if outcome.error is not None else str(outcome.result) for _, outcome in written.outcomes]
