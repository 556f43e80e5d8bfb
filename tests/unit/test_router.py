from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actors.closed import ClosedPart
from actors.replicas import RouterSettings
from actors.router import MOST_ATTEMPTS, RETRY_S, Router
from cluster.errors import AnalyzerError, ShardError, UnreadableIndexError
from cluster.model.guard import All
from cluster.model.query import LegAnswer, LexicalQuery, PartitionFailure, Pins, TermStatistics
from cluster.placement import shard_of
from cluster.storage import GenerationStore
from tests.unit.test_generations import bucket, make_manifest

SHARDS = ("lexical-0", "lexical-1")


class FakeShard:
    """One shard that holds one hit a bucket of its own, named after the shard."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.asked: list[Sequence[LexicalQuery]] = []
        self.prepared: list[Pins] = []
        self.revisions: list[int] = []
        self.broken: tuple[PartitionFailure, ...] = ()
        self.error: Exception | None = None
        #: What each question is answered with, instead of the hit.
        self.answer: LegAnswer | None = None

    async def prepare(self, pins: Pins) -> tuple[PartitionFailure, ...]:
        if self.error is not None:
            raise self.error
        self.prepared.append(pins)
        return self.broken

    async def catch_up(self, revision: int) -> tuple[PartitionFailure, ...]:
        if self.error is not None:
            raise self.error
        self.revisions.append(revision)
        return self.broken

    async def restart(self) -> None:
        self.error = None

    async def statistics(self, queries: Sequence[LexicalQuery]) -> list[TermStatistics]:
        if self.error is not None:
            raise self.error
        return [TermStatistics(documents=1, tokens=10, document_frequency={"x": 1}) for _ in queries]

    async def search(self, queries: Sequence[LexicalQuery]) -> list[LegAnswer]:
        if self.error is not None:
            raise self.error
        self.asked.append(queries)
        if self.answer is not None:
            return [self.answer for _ in queries]
        return [LegAnswer(ids=(self.name,), scores=np.array([1.0]), matched=1, asked=1, answered=1) for _ in queries]


def publish(store: GenerationStore, generation: str, buckets: int, required: str | None = None) -> None:
    with store.building("demo", generation) as part:
        folders = [part / f"b{number:04d}" for number in range(buckets)]
        for folder in folders:
            folder.mkdir()
            (folder / "rows.parquet").write_bytes(b"x")
        manifest = make_manifest(generation, buckets=tuple(bucket(folder, 1) for folder in folders))
        store.finish(part, manifest)
    store.publish(manifest, required=required)


def soon() -> float:
    return time.monotonic() + 5


@pytest.fixture
def shards() -> dict[str, FakeShard]:
    return {name: FakeShard(name) for name in SHARDS}


@pytest.fixture
def make_router(tmp_path: Path, shards: dict[str, FakeShard]) -> Callable[..., Router]:
    def make(account: str = "acme", **options: Any) -> Router:
        return Router(
            GenerationStore(tmp_path),
            account,
            {name: [shard] for name, shard in shards.items()},
            {},
            RouterSettings(),
            **options,
        )

    return make


def query(generation: str = "g1") -> LexicalQuery:
    return LexicalQuery(text="x", guard=All(()), pins={"demo": generation}, k=10)


async def test_each_shard_is_sent_the_statistics_of_all(
    tmp_path: Path, shards: dict[str, FakeShard], make_router: Callable[..., Router]
) -> None:
    publish(GenerationStore(tmp_path), "g1", 8)
    router = make_router()
    assert await router.refresh() == ["demo"]
    answer = await router.lexical(query(), soon())
    assert answer.ids == SHARDS
    sent = [shard.asked[0][0].statistics for shard in shards.values()]
    assert sent == [TermStatistics(documents=2, tokens=20, document_frequency={"x": 2})] * 2


async def test_a_dead_shard_is_named_in_the_answer_and_the_rest_stands(
    tmp_path: Path, shards: dict[str, FakeShard], make_router: Callable[..., Router]
) -> None:
    publish(GenerationStore(tmp_path), "g1", 8)
    router = make_router()
    await router.refresh()
    shards["lexical-1"].error = RuntimeError("secret detail of a foreign library")
    answer = await router.lexical(query(), soon())
    lost = [f"b{number:04d}" for number in range(8) if shard_of("demo", f"b{number:04d}", SHARDS) == "lexical-1"]
    assert answer.ids == ("lexical-0",)
    assert [failure.bucket for failure in answer.failures] == lost
    assert {failure.detail for failure in answer.failures} == {"the shard failed"}


async def test_with_every_shard_dead_the_leg_is_an_error(
    tmp_path: Path, shards: dict[str, FakeShard], make_router: Callable[..., Router]
) -> None:
    publish(GenerationStore(tmp_path), "g1", 8)
    router = make_router()
    await router.refresh()
    for shard in shards.values():
        shard.error = ShardError("gone")
    with pytest.raises(ShardError):
        await router.lexical(query(), soon())


async def test_a_new_generation_is_opened_by_every_shard_before_it_is_served(
    tmp_path: Path, shards: dict[str, FakeShard], make_router: Callable[..., Router]
) -> None:
    store = GenerationStore(tmp_path)
    publish(store, "g1", 1)
    now = [0.0]
    router = make_router(clock=lambda: now[0])
    await router.refresh()
    publish(store, "g2", 1, required="g1")
    shards["lexical-0"].error = ShardError("restarting")
    assert await router.refresh() == []
    assert router.served()["demo"].generation == "g1"
    assert router.refused() == {"demo": "restarting"}
    shards["lexical-0"].error = None
    assert await router.refresh() == []
    now[0] += RETRY_S
    assert await router.refresh() == ["demo"]
    assert router.refused() == {}
    assert router.served()["demo"].generation == "g2"
    assert shards["lexical-1"].prepared[-1] == {"demo": "g2"}
    assert await router.refresh() == []


async def test_a_broken_generation_does_not_replace_a_served_one(
    tmp_path: Path, shards: dict[str, FakeShard], make_router: Callable[..., Router]
) -> None:
    store = GenerationStore(tmp_path)
    publish(store, "g1", 1)
    router = make_router()
    await router.refresh()
    publish(store, "g2", 1, required="g1")
    shards["lexical-0"].broken = (
        PartitionFailure(project="demo", generation="g2", bucket="b0000", code="corrupt_index", detail="changed"),
    )
    assert await router.refresh() == []
    assert router.served()["demo"].generation == "g1"


async def test_generations_of_another_account_are_never_served(tmp_path: Path, make_router: Callable[..., Router]) -> None:
    publish(GenerationStore(tmp_path), "g1", 1)
    router = make_router(account="other")
    await router.refresh()
    assert router.served() == {}


async def test_a_query_over_no_project_asks_nobody(
    tmp_path: Path, shards: dict[str, FakeShard], make_router: Callable[..., Router]
) -> None:
    router = make_router()
    answer = await router.lexical(LexicalQuery(text="x", guard=All(()), pins={}, k=1), soon())
    assert answer.ids == ()
    assert all(not shard.asked for shard in shards.values())


async def test_a_query_pinned_to_the_generation_before_the_swap_loses_nothing(
    tmp_path: Path, shards: dict[str, FakeShard], make_router: Callable[..., Router]
) -> None:
    store = GenerationStore(tmp_path)
    publish(store, "g1", 8)
    router = make_router()
    await router.refresh()
    publish(store, "g2", 1, required="g1")
    await router.refresh()
    assert (await router.lexical(query("g1"), soon())).ids == SHARDS
    assert len((await router.lexical(query("g2"), soon())).ids) == 1
    with pytest.raises(ShardError, match=r"g0 .* is gone"):
        await router.lexical(query("g0"), soon())


async def test_what_a_generation_needs_is_ready_before_it_is_served(tmp_path: Path, make_router: Callable[..., Router]) -> None:
    publish(GenerationStore(tmp_path), "g1", 1)
    seen = []

    async def before_swap(manifest: Any) -> None:
        seen.append((manifest.generation, dict(router.served())))

    router = make_router(before_swap=before_swap)
    await router.refresh()
    assert seen == [("g1", {})]


async def test_a_damaged_pointer_keeps_what_is_served_and_is_told(tmp_path: Path, make_router: Callable[..., Router]) -> None:
    publish(GenerationStore(tmp_path), "g1", 1)
    router = make_router()
    await router.refresh()
    (tmp_path / "demo" / "CURRENT").write_text("[]")
    assert await router.refresh() == []
    assert router.served()["demo"].generation == "g1"
    assert "damaged" in router.refused()["demo"]


async def test_every_shard_is_told_of_a_revision_and_what_could_not_follow_is_named(
    tmp_path: Path, shards: dict[str, FakeShard], make_router: Callable[..., Router]
) -> None:
    publish(GenerationStore(tmp_path), "g1", 1)
    router = make_router()
    await router.refresh()
    done = await router.catch_up(7)
    assert [shard.revisions for shard in shards.values()] == [[7], [7]], "those too that hold nothing of the project"
    assert (done.revision, done.down, done.failures) == (7, {}, ())
    assert done.complete("demo")
    shards["lexical-0"].error = ShardError("the shard is down")
    shards["lexical-1"].broken = (
        PartitionFailure(project="demo", generation="g1", bucket="b0000", code="unavailable", detail="the store is down"),
    )
    done = await router.catch_up(8)
    assert done.down == {"lexical-0": "the shard is down"}
    assert [failure.bucket for failure in done.failures] == ["b0000"]
    assert not done.complete("demo")
    shards["lexical-0"].error = None
    done = await router.catch_up(9)
    assert (done.complete("demo"), done.complete("other")) == (False, True)


async def test_a_shard_that_hangs_does_not_hold_a_writer_for_ever(
    tmp_path: Path, shards: dict[str, FakeShard], make_router: Callable[..., Router], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(_revision: int) -> tuple[PartitionFailure, ...]:
        await asyncio.Event().wait()
        return ()

    monkeypatch.setattr(shards["lexical-0"], "catch_up", hang)
    done = await make_router().catch_up(7, timeout_s=0.01)
    assert list(done.down) == ["lexical-0"]


class WrittenShard(FakeShard):
    """One whose rows change between its statistics and its search, for the first `writes` searches."""

    def __init__(self, name: str, writes: int) -> None:
        super().__init__(name)
        self.writes = writes
        self.documents = 1

    async def statistics(self, queries: Sequence[LexicalQuery]) -> list[TermStatistics]:
        return [TermStatistics(documents=self.documents, tokens=10, document_frequency={"x": 1}) for _ in queries]

    async def search(self, queries: Sequence[LexicalQuery]) -> list[LegAnswer]:
        if self.writes:
            self.writes -= 1
            self.documents += 1
        answers = await super().search(queries)
        own = (await self.statistics(queries))[0]
        return [replace(answer, moved=query.own_statistics != own) for answer, query in zip(answers, queries, strict=True)]


@pytest.mark.parametrize(("writes", "asked", "moved"), [(0, 1, False), (1, 2, False), (9, MOST_ATTEMPTS, True)])
async def test_statistics_that_a_write_overtook_are_taken_again(
    tmp_path: Path, shards: dict[str, FakeShard], make_router: Callable[..., Router], writes: int, asked: int, moved: bool
) -> None:
    shards["lexical-1"] = WrittenShard("lexical-1", writes)
    publish(GenerationStore(tmp_path), "g1", 8)
    router = make_router()
    await router.refresh()
    answer = await router.lexical(query(), soon())
    assert answer.moved is moved
    sent = [batch[0].statistics for batch in shards["lexical-1"].asked]
    assert len(sent) == asked
    assert [found and found.documents for found in sent] == [2 + attempt for attempt in range(asked)]


def refused_by(code: str, detail: str = "words", buckets: int = 1) -> LegAnswer:
    failures = tuple(
        PartitionFailure(project="demo", generation="g1", bucket=f"b{number:04d}", code=code, detail=detail)
        for number in range(buckets)
    )
    return LegAnswer(ids=(), scores=np.zeros(0), asked=buckets, failures=failures)


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        ("shard_unavailable", ShardError, "words"),
        ("unavailable", ShardError, "words"),
        ("corrupt_index", UnreadableIndexError, "raycall generations verify"),
        ("bad_vector", UnreadableIndexError, "raycall generations verify"),
        ("analyzer_mismatch", AnalyzerError, "words (demo)"),
    ],
)
async def test_a_leg_of_which_nothing_answers_says_whether_to_try_again_or_what_helps(
    tmp_path: Path, shards: dict[str, FakeShard], make_router: Callable[..., Router], code: str, kind: type, words: str
) -> None:
    publish(GenerationStore(tmp_path), "g1", 8)
    router = make_router()
    await router.refresh()
    for shard in shards.values():
        shard.answer = refused_by(code)
    with pytest.raises(ShardError if kind is ShardError else UnreadableIndexError) as caught:
        await router.lexical(query(), soon())
    assert type(caught.value) is kind and words in caught.value.detail
    assert ("words" in caught.value.detail) == (kind is not UnreadableIndexError), "a damaged file's own words are for the log"


@pytest.mark.parametrize("damage", [b"", b"{", b"[]", b"{}", b'{"generation": null}', b'{"generation": "../x"}', b"\xff\x00"])
async def test_a_damaged_pointer_is_no_project_without_an_index_and_stops_no_generation_that_is_served(
    tmp_path: Path, make_router: Callable[..., Router], damage: bytes
) -> None:
    store, now = GenerationStore(tmp_path), [0.0]
    publish(store, "g1", 1)
    running = make_router(clock=lambda: now[0])
    await running.refresh()
    path = tmp_path / "demo" / "CURRENT"
    whole = path.read_bytes()
    path.write_bytes(damage)
    started = make_router()
    for router in (running, started):
        assert await router.refresh() == []
        assert "pointer of project demo is damaged" in router.refused()["demo"]
    assert started.served() == {} and started.unserved() == {"demo": "index_unreadable"}
    assert running.served()["demo"].generation == "g1" and running.unserved() == {}
    path.write_bytes(whole)
    now[0] += RETRY_S
    assert await running.refresh() == []
    assert running.refused() == {}, "what is served again is not refused any more"


async def test_a_pointer_that_cannot_be_opened_keeps_no_other_project_back(
    tmp_path: Path, make_router: Callable[..., Router]
) -> None:
    publish(GenerationStore(tmp_path), "g1", 1)
    (tmp_path / "another" / "CURRENT").mkdir(parents=True)
    router = make_router()
    assert await router.refresh() == ["demo"]
    assert router.unserved() == {"another": "index_unreadable"}


async def test_a_first_generation_that_no_shard_opens_yet_is_told_from_a_damaged_one(
    tmp_path: Path, shards: dict[str, FakeShard], make_router: Callable[..., Router]
) -> None:
    publish(GenerationStore(tmp_path), "g1", 1)
    shards["lexical-0"].error = ShardError("restarting")
    router = make_router()
    await router.refresh()
    assert router.unserved() == {"demo": "shard_unavailable"}


async def test_what_the_shards_cannot_open_is_told_by_shard(
    tmp_path: Path, shards: dict[str, FakeShard], make_router: Callable[..., Router]
) -> None:
    publish(GenerationStore(tmp_path), "g1", 8)
    router = make_router()
    await router.refresh()
    assert await router.closed() == {}
    shards["lexical-0"].broken = refused_by("corrupt_index", "x.bin was changed").failures
    shards["lexical-1"].error = RuntimeError("a foreign library's words")
    assert await router.closed() == {
        "demo": [
            ClosedPart(shard="lexical-0", bucket="b0000", code="corrupt_index", detail="x.bin was changed"),
            ClosedPart(shard="lexical-1", bucket="*", code="shard_unavailable", detail="the shard failed"),
        ]
    }


async def test_what_a_write_overtook_is_answered_where_asking_again_comes_to_nothing(
    tmp_path: Path, shards: dict[str, FakeShard], make_router: Callable[..., Router]
) -> None:
    class DiesLater(FakeShard):
        async def search(self, queries: Sequence[LexicalQuery]) -> list[LegAnswer]:
            answers = await super().search(queries)
            self.error = ShardError("the shard is down")
            return [replace(answer, moved=True) for answer in answers]

    for name in SHARDS:
        shards[name] = DiesLater(name)
    publish(GenerationStore(tmp_path), "g1", 8)
    router = make_router()
    await router.refresh()
    answer = await router.lexical(query(), soon())
    assert (answer.ids, answer.moved, answer.failures) == (SHARDS, True, ())


async def test_it_is_not_asked_again_when_there_is_no_time_for_it(
    tmp_path: Path, shards: dict[str, FakeShard], make_router: Callable[..., Router]
) -> None:
    now = [0.0]

    class Slow(WrittenShard):
        async def search(self, queries: Sequence[LexicalQuery]) -> list[LegAnswer]:
            now[0] += 0.3
            return await super().search(queries)

    shards["lexical-1"] = Slow("lexical-1", 9)
    publish(GenerationStore(tmp_path), "g1", 8)
    router = make_router(clock=lambda: now[0])
    await router.refresh()
    answer = await router.lexical(query(), 0.5)
    assert (answer.moved, len(shards["lexical-1"].asked)) == (True, 1)


async def test_a_folder_that_somebody_copied_keeps_nothing_from_being_served(
    tmp_path: Path, make_router: Callable[..., Router]
) -> None:
    publish(GenerationStore(tmp_path), "g1", 2)
    for name in ("demo (copy)", "demo.bak"):
        shutil.copytree(tmp_path / "demo", tmp_path / name)
    router = make_router()
    assert await router.refresh() == ["demo"]
    assert list(router.served()) == ["demo"]
    assert "copied or renamed" in router.refused()["demo.bak"]
