"""The retrieval use case on a store in memory and legs without shards."""

from __future__ import annotations

import asyncio
from typing import Any

from cluster.graph.memory import MemoryGraphStore
from cluster.model.access import Principal
from cluster.model.nodes import Node
from cluster.model.query import Answer, Degradation, SearchRequest
from cluster.ports import Project, WriteBatch
from serve.retrieval import Retrieval
from tests.support.clock import ManualClock
from tests.support.factories import ACCOUNT, make_node, make_principal
from tests.support.legs import FakeLegs

ADMIN = make_principal()


def doc(node_id: str, content: str = "alpha beta", **changes: Any) -> Node:
    return make_node(node_id, text={"content": content, "title": f"title {node_id}"}, **changes)


class Bench:
    """A store, legs and the use case over both."""

    def __init__(self, *nodes: Node, deadline_s: float = 2.0, **legs: Any) -> None:
        self.store = MemoryGraphStore(account=ACCOUNT)
        self.write(nodes=nodes)
        self.legs = FakeLegs(self.store, **legs)
        self.retrieval = Retrieval(
            account=ACCOUNT,
            store=self.store,
            legs=self.legs,
            clock=ManualClock(),
            deadline_s=deadline_s,
            new_id=lambda: "q1",
        )

    def write(self, **batch: Any) -> None:
        self.store.write(WriteBatch(**batch))

    def register(self, *names: str) -> None:
        projects = [Project(account=ACCOUNT, project=name, root="", commit=None, indexed_at=0) for name in names]
        self.write(projects=tuple(projects))

    def ask(self, query: str = "alpha", principal: Principal = ADMIN, **request: Any) -> Answer:
        notices: tuple[Degradation, ...] = request.pop("notices", ())
        return asyncio.run(self.retrieval.search(SearchRequest(query=query, **request), principal, notices=notices))


def ids(answer: Answer) -> list[str]:
    return [hit.node.id for hit in answer.hits]


def codes(answer: Answer) -> list[str]:
    return [degradation.code for degradation in answer.disclosure.degradations]


def leg(answer: Answer, name: str) -> Any:
    return next(report for report in answer.disclosure.legs if report.leg == name)
