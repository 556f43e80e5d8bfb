"""Makes writes visible: has the shards catch up, and gives what was written its vectors."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Coroutine, Mapping
from typing import Any, Protocol, TypeVar

from actors.rounds import Rounds
from actors.router import CaughtUp
from cluster.model.manifest import Manifest
from serve.writing import Shown

log = logging.getLogger(__name__)

T = TypeVar("T")


class Followed(Protocol):
    """The router, as far as it shows."""

    def served(self) -> Mapping[str, Manifest]: ...
    async def catch_up(self, revision: int) -> CaughtUp: ...


class Filler(Protocol):
    """See `VectorFiller.fill`."""

    def fill(self, served: Mapping[str, Manifest]) -> tuple[int, frozenset[str]]: ...


class LiveShowing:
    """Shows what is written to the served projects of one account. Belongs to one event loop."""

    def __init__(self, router: Followed, filler: Filler) -> None:
        self._router = router
        self._filler = filler
        self._wanted = 0
        self._catching_up = Rounds(self._catch_up)
        self._filling = Rounds(self._fill)
        self._tasks: set[asyncio.Task[Any]] = set()

    def projects(self) -> Collection[str]:
        """The projects that are served."""
        return self._router.served().keys()

    def soon(self, revision: int) -> None:
        """Starts to show what was written up to `revision`, and to fill in vectors; does not wait."""
        self._wanted = max(self._wanted, revision)
        self._start(self._catching_up())
        self._start(self._filling())

    def fill_soon(self) -> None:
        """Starts to fill in vectors that are missing, whoever wrote their nodes; does not wait."""
        self._start(self._filling())

    async def shown(self, revision: int, projects: Collection[str], timeout_s: float) -> Shown:
        """Waits until the shards show `revision` in `projects` and their vectors are there, at most `timeout_s`."""
        self._wanted = max(self._wanted, revision)
        caught, filled = self._start(self._catching_up()), self._start(self._filling())
        await asyncio.wait({caught, filled}, timeout=timeout_s)
        served = self._router.served()
        told = caught.result() if _succeeded(caught) else None
        visible = told is not None and all(project in served and told.complete(project) for project in projects)
        return Shown(visible=visible, vectors=visible and _succeeded(filled) and filled.result().isdisjoint(projects))

    async def _catch_up(self) -> CaughtUp:
        return await self._router.catch_up(self._wanted)

    async def _fill(self) -> frozenset[str]:
        """The projects in which vectors are still missing."""
        served = self._router.served()
        fresh, waiting = await asyncio.to_thread(self._filler.fill, served)
        if not fresh:
            return waiting
        told = await self._catching_up()
        return waiting | {project for project in served if not told.complete(project)}

    def _start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # The store or the cache failed for a moment; the next look tries again.
            log.error("what was written is shown later", exc_info=error, extra={"action": "showing_failed"})


def _succeeded(task: asyncio.Task[Any]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None
