import asyncio
from typing import Any

import pytest

from actors.router import CaughtUp
from cluster.errors import UnavailableError
from serve.follower import Follower
from tests.support.legs import failure


class Router:
    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.watched = 0
        self.down: dict[str, str] = {}
        self.failures: tuple[Any, ...] = ()

    def watch(self) -> None:
        self.watched += 1

    async def refresh(self) -> list[str]:
        self.calls.append("refresh")
        return []

    async def catch_up(self, revision: int) -> CaughtUp:
        self.calls.append(revision)
        return CaughtUp(revision=revision, down=self.down, failures=self.failures)


class Store:
    number = 7
    broken = False

    def revision(self) -> int:
        if self.broken:
            raise UnavailableError("locked")
        return self.number


async def test_shards_are_told_of_each_revision_once_and_after_new_generations() -> None:
    router, store = Router(), Store()
    follow = Follower(router, store)
    await follow()
    await follow()
    store.number = 9
    await follow()
    assert router.calls == ["refresh", 7, "refresh", "refresh", 9]
    assert router.watched == 3


async def test_they_are_told_again_until_all_show_it() -> None:
    router, store = Router(), Store()
    follow = Follower(router, store)
    router.down = {"lexical-0": "the shard is down"}
    await follow()
    router.down, router.failures = {}, (failure(),)
    await follow()
    router.failures = ()
    await follow()
    await follow()
    assert router.calls == ["refresh", 7, "refresh", 7, "refresh", 7, "refresh"]


async def test_a_store_that_cannot_be_read_stops_nothing() -> None:
    router, store = Router(), Store()
    follow = Follower(router, store)
    store.broken = True
    await follow()
    store.broken = False
    await follow()
    assert router.calls == ["refresh", "refresh", 7]


async def test_what_is_written_while_a_generation_opens_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serve.follower.OPENING_WAIT_S", 0.0)
    opened = asyncio.Event()

    class Opening(Router):
        async def refresh(self) -> list[str]:
            if self.calls:
                await opened.wait()
            return await super().refresh()

    router, store = Opening(), Store()
    follow = Follower(router, store)
    await follow()
    store.number = 8
    await follow()
    assert (router.calls, router.watched) == (["refresh", 7, 8], 2)
    opened.set()
    await follow()
    await follow()
    assert router.calls[:4] == ["refresh", 7, 8, "refresh"]
