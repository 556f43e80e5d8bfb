"""The HTTP application over a store in memory and fake legs, asked without a socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import httpx
from fastapi import FastAPI

from cluster.graph.memory import MemoryGraphStore
from cluster.model.access import Principal, Role
from cluster.model.nodes import Node
from cluster.ports import WriteBatch
from serve.admission import Lane
from serve.http.app import Service, create_app
from serve.http.routes import Limits
from serve.keys import Keys
from serve.retrieval import Retrieval
from tests.support.clock import ManualClock
from tests.support.factories import ACCOUNT
from tests.support.legs import FakeLegs
from tests.support.writing import FakeShowing, make_writing


@dataclass
class Front:
    """One served application and a key of each kind."""

    store: MemoryGraphStore
    legs: FakeLegs
    clock: ManualClock
    keys: Keys
    showing: FakeShowing
    app: FastAPI
    admin: str
    agent: str

    def call(self, method: str, path: str, *, key: str | None = "", **arguments: Any) -> httpx.Response:
        """One request, with the admin's key unless `key` says another, or None for none."""
        headers = dict(arguments.pop("headers", {}))
        secret = self.admin if key == "" else key
        if secret is not None:
            headers.setdefault("authorization", f"Bearer {secret}")

        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(app=self.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://raycall.test") as client:
                return await client.request(method, path, headers=headers, **arguments)

        return asyncio.run(send())

    def search(self, body: Any, **arguments: Any) -> httpx.Response:
        """POST /v1/search with `body` as JSON, or as it is when it is bytes or an iterator of them."""
        raw = json.dumps(body).encode() if isinstance(body, dict | list | str | int | float | None) else body
        headers = {"content-type": "application/json", **arguments.pop("headers", {})}
        return self.call("POST", "/v1/search", content=raw, headers=headers, **arguments)


def make_front(
    *nodes: Node,
    status: Callable[[Principal], dict[str, Any] | Awaitable[dict[str, Any]]] | None = None,
    questions: Lane | None = None,
    deadline_s: float = 0.2,
    lag_s: Callable[[], float] = float,
    limits: Limits | None = None,
    **legs: Any,
) -> Front:
    """An application that serves `nodes`; further arguments are those of `FakeLegs`."""
    store = MemoryGraphStore(account=ACCOUNT)
    store.write(WriteBatch(nodes=nodes))
    clock = ManualClock()
    keys = Keys(account=ACCOUNT, store=store, clock=clock)
    fake = FakeLegs(store, **legs)
    retrieval = Retrieval(account=ACCOUNT, store=store, legs=fake, clock=clock, deadline_s=deadline_s)
    showing = FakeShowing(fake.manifests)
    service = Service(
        retrieval=retrieval,
        keys=keys,
        status=status or (lambda principal: {"key": principal.key_id}),
        questions=questions,
        lag_s=lag_s,
        limits=limits or Limits(),
        writing=make_writing(store, clock, showing),
    )
    return Front(
        store=store,
        legs=fake,
        clock=clock,
        keys=keys,
        showing=showing,
        app=create_app(service),
        admin=keys.create(name="admin").secret,
        agent=keys.create(name="iris", role=Role.AGENT, agent="iris").secret,
    )
