"""Keeps what is served up with what other processes do: generations that are published, rows that are written."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Protocol

from actors.router import CaughtUp
from cluster.errors import RaycallError

log = logging.getLogger(__name__)


#: Seconds that a generation which is being opened is waited for before what was written is shown.
OPENING_WAIT_S = 0.5


class Followed(Protocol):
    """The router, as far as it follows."""

    def watch(self) -> None: ...
    async def refresh(self) -> list[str]: ...
    async def catch_up(self, revision: int) -> CaughtUp: ...


class Revisions(Protocol):
    """The store, as far as it tells that something was written."""

    def revision(self) -> int: ...


@dataclass(slots=True)
class Follower:
    """To be called again and again. A store that cannot be read for a moment is asked again the next time."""

    router: Followed
    store: Revisions
    #: The revision that every shard is known to show.
    _shown: int = -1
    _refreshing: asyncio.Task[list[str]] | None = None

    async def __call__(self) -> None:
        """Has newly published generations served, what was written shown, and replicas that are down brought back.

        The first call returns when what was published is served. Later ones do not wait for long: a generation may take a
        minute to open, and what is written meanwhile is to be shown.
        """
        self.router.watch()
        await self._refresh()
        try:
            revision = self.store.revision()
        except RaycallError as error:
            log.warning("the store cannot be read: %s", error.detail, extra={"action": "store_unreadable"})
            return
        if revision != self._shown:
            caught = await self.router.catch_up(revision)
            if not caught.down and not caught.failures:
                self._shown = revision

    async def _refresh(self) -> None:
        first = self._refreshing is None
        task = self._refreshing
        if task is None or task.done():
            task = self._refreshing = asyncio.ensure_future(self.router.refresh())
        done, _ = await asyncio.wait({task}, timeout=None if first else OPENING_WAIT_S)
        if done:
            task.result()
