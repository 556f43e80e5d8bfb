"""What an answer says of itself, on real Lucene, FAISS and SQLite: words that are none, labels that are not there, damage."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cluster.errors import UnreadableIndexError
from cluster.model.access import Principal
from cluster.model.manifest import Manifest
from cluster.model.query import Answer
from cluster.ports import Project, WriteBatch
from cluster.storage import GenerationStore
from jobs.setup import SystemClock
from serve.question import make_question
from serve.retrieval import Retrieval
from serve.router_legs import RouterLegs
from tests.support.factories import ACCOUNT, make_agent, make_node, make_principal
from tests.support.files import flip
from tests.support.live import EMBEDDER, LiveIndex
from tests.support.retrieval import codes, ids

ADMIN = make_principal()


class Asked(LiveIndex):
    """A live index of two shards a leg, and the whole use case over it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, shards=2, target_rows=2)
        texts = {f"n{number}": {"content": f"pump number{number}"} for number in range(6)}
        nodes = [make_node(name, text=text, labels=("Chunk",), agents=("iris",)) for name, text in texts.items()]
        nodes.append(make_node("s", text={"content": "valve"}, labels=("Secret",), agents=("mira",)))
        project = Project(account=ACCOUNT, project="main", root="", commit=None, indexed_at=0)
        self.store.write(WriteBatch(nodes=tuple(nodes), projects=(project,)))
        self.publish("main")

    async def ask(self, query: str = "pump", principal: Principal = ADMIN, **values: Any) -> Answer:
        await self.router.refresh()
        legs = RouterLegs(self.router, (EMBEDDER,), SystemClock(), max_batch=8, embed_timeout_s=60)
        retrieval = Retrieval(account=ACCOUNT, store=self.store, legs=legs, clock=SystemClock(), deadline_s=60)
        question = make_question(query=query, **values)
        return await retrieval.search(question.request, principal, notices=question.notices)

    def files(self, pattern: str) -> list[Path]:
        (generation,) = self.generations.finished("main")
        return sorted(self.generations.folder("main", generation).glob(pattern))


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Asked]:
    index = Asked(tmp_path)
    yield index
    index.close()


@pytest.mark.parametrize("query", ["\u0301", "\u20dd\u0903", "...", "=> !", "_", "\u2192", "\u00a7\u2022", "+"])
async def test_a_query_that_holds_no_word_says_so(live: Asked, query: str) -> None:
    assert "no_terms" in codes(await live.ask(query))
    assert "no_terms" not in codes(await live.ask(query + " pump"))


@pytest.mark.parametrize("query", ["pump\0number3", "pump\x1bnumber3", "pump\x9bnumber3"])
async def test_a_control_character_parts_words(live: Asked, query: str) -> None:
    answer = await live.ask(query, explain=True)
    assert {"pump", "number3"} <= (answer.explain or {})["lexical"]["terms"].keys()
    assert ids(answer)[0] == "n3"


async def test_labels_that_nothing_has_are_named_and_what_is_hidden_counts_as_nothing(live: Asked) -> None:
    assert codes(await live.ask(labels=["Chunk"])) == []
    assert codes(await live.ask(labels=["Chunk", "Secret"])) == []
    assert "'Chnk'" in (await live.ask(labels=["Chnk", "Chunk"])).disclosure.degradations[-1].detail
    hidden = await live.ask(principal=make_agent("iris"), labels=["Secret"])
    assert (ids(hidden), codes(hidden)) == ([], ["unknown_labels"])


async def test_a_label_that_was_written_a_moment_ago_is_known(live: Asked) -> None:
    assert codes(await live.ask(labels=["Runbook"])) == ["unknown_labels"]
    live.store.write(WriteBatch(nodes=(make_node("r", text={"content": "drain"}, labels=("Runbook",)),)))
    await live.catch_up()
    answer = await live.ask("drain", labels=["Runbook"])
    assert ids(answer) == ["r"] and "unknown_labels" not in codes(answer)


async def test_with_both_legs_damaged_the_call_names_the_project_and_what_helps(live: Asked) -> None:
    for path in live.files("*/*/*.parquet"):
        flip(path)
    for path in live.files("*/lexical/lucene/segments_*"):
        flip(path)
    with pytest.raises(UnreadableIndexError) as caught:
        await live.ask()
    detail = caught.value.detail
    assert "the index of main cannot be read" in detail and "raycall generations verify" in detail
    assert "parquet" not in detail and "b0000" not in detail
    closed = (await live.router.closed())["main"]
    assert {part.shard for part in closed} == set(live.clients) and {part.code for part in closed} == {"corrupt_index"}
    assert any("rows.parquet" in part.detail for part in closed)


async def test_a_generation_of_another_analyzer_is_told_as_one_and_its_vectors_answer(live: Asked) -> None:
    (generation,) = live.generations.finished("main")
    manifest = replace(live.generations.manifest("main", generation), analyzer="text-0")
    (live.generations.folder("main", generation) / "manifest.json").write_text(_json(manifest))
    answer = await live.ask()
    (notice,) = answer.disclosure.degradations
    assert notice.code == "analyzer_mismatch"
    assert "built with analyzer text-0" in notice.detail and "index the project again" in notice.detail
    assert set(ids(answer)) == {"s", *(f"n{number}" for number in range(6))}
    assert {part.code for part in (await live.router.closed())["main"]} == {"analyzer_mismatch"}


async def test_a_damaged_pointer_is_an_error_where_nothing_is_open_and_none_where_it_is(live: Asked) -> None:
    assert len((await live.ask()).hits) == 7
    pointer = GenerationStore(live.generations.root).root / "main" / "CURRENT"
    pointer.write_bytes(b"{}")
    assert (len((await live.ask()).hits), codes(await live.ask())) == (7, [])
    live.router = live.make_router()
    with pytest.raises(UnreadableIndexError, match=r"damaged .* main"):
        await live.ask()


def _json(manifest: Manifest) -> str:
    return json.dumps(manifest.to_json())
