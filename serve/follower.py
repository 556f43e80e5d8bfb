"""Keeps what is served up with what other processes do: generations that are published, rows that are written."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Protocol

from actors.router import CaughtUp
from cluster.errors import RaycallError

log = logging.getLogger(__name__)


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

    async def __call__(self) -> None:
        """Has newly published generations served, what was written shown, and replicas that are down brought back."""
        self.router.watch()
        await self.router.refresh()
        try:
            revision = self.store.revision()
        except RaycallError as error:
            log.warning("the store cannot be read: %s", error.detail, extra={"action": "store_unreadable"})
            return
        if revision != self._shown:
            caught = await self.router.catch_up(revision)
            if not caught.down and not caught.failures:
                self._shown = revision
