from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actors.replicas import RouterSettings
from actors.router import Router
from cluster.errors import EmbedderError
from cluster.model.guard import All
from cluster.model.manifest import VectorIdentity
from cluster.model.query import LexicalQuery, VectorQuery
from cluster.storage import GenerationStore
from jobs.setup import SystemClock
from serve.router_legs import RouterLegs
from tests.support.clock import ManualClock
from tests.unit.test_build import FIRST, TARGET, Embedder


class Blocking(Embedder):
    """Embeds when it is let."""

    def __init__(self, identity: VectorIdentity) -> None:
        super().__init__(identity)
        self.error: Exception | None = None

    def embed_query(self, texts: Sequence[str]) -> np.ndarray:
        if self.error is not None:
            raise self.error
        return self.embed(texts)


def make_legs(folder: Path, *embedders: Embedder) -> RouterLegs:
    router = Router(GenerationStore(folder), "acme", {}, {}, RouterSettings())
    return RouterLegs(router, embedders, SystemClock(), max_batch=8, embed_timeout_s=5)


def soon() -> float:
    return time.monotonic() + 5


async def test_a_question_is_embedded_once_with_the_identity_that_was_asked_for(tmp_path: Path) -> None:
    first, target = Embedder(FIRST), Embedder(TARGET)
    legs = make_legs(tmp_path, first, target)
    one = await legs.embed("pump", TARGET, soon(), "k1")
    two = await legs.embed("pump", TARGET, soon(), "k1")
    assert one is two
    assert (first.asked, target.asked) == ([], ["pump"])
    # Another caller must not be able to tell from the time it takes that somebody has asked this before.
    await legs.embed("pump", TARGET, soon(), "k2")
    assert target.asked == ["pump", "pump"]
    await legs.embed("pump", FIRST, soon(), "k1")
    assert first.asked == ["pump"]


async def test_a_text_without_a_vector_is_no_error(tmp_path: Path) -> None:
    assert await make_legs(tmp_path, Embedder(FIRST)).embed("unknown", FIRST, soon(), "k1") is None


@pytest.mark.parametrize("number", [0.0, np.nan, np.inf])
async def test_a_vector_of_a_question_that_cannot_be_used_is_none(number: float, tmp_path: Path) -> None:
    embedder = Embedder(FIRST)
    embedder.embed_query = lambda texts: np.full((len(texts), 4), number, np.float32)  # type: ignore[method-assign]
    assert await make_legs(tmp_path, embedder).embed("zzz", FIRST, soon(), "k1") is None


async def test_an_identity_that_no_embedder_makes_is_named(tmp_path: Path) -> None:
    with pytest.raises(EmbedderError, match="test/target/4"):
        await make_legs(tmp_path, Embedder(FIRST)).embed("pump", TARGET, soon(), "k1")


@pytest.mark.parametrize("error", [EmbedderError("refused"), RuntimeError("internal path /secret")])
async def test_a_failure_is_an_embedder_error_without_foreign_details_and_the_next_question_is_tried(
    tmp_path: Path, error: Exception
) -> None:
    embedder = Blocking(FIRST)
    legs = make_legs(tmp_path, embedder)
    embedder.error = error
    with pytest.raises(EmbedderError) as caught:
        await legs.embed("pump", FIRST, soon(), "k1")
    assert "/secret" not in caught.value.detail
    embedder.error = None
    assert await legs.embed("pump", FIRST, soon(), "k1") is not None


def test_the_tokens_that_a_model_reads_are_those_of_its_embedder(tmp_path: Path) -> None:
    legs = make_legs(tmp_path, Embedder(FIRST))
    assert legs.max_query_tokens(FIRST) == Embedder(FIRST).max_tokens
    assert legs.max_query_tokens(TARGET) is None


async def test_a_question_goes_to_the_shards_with_the_time_until_which_somebody_waits() -> None:
    asked: list[LexicalQuery | VectorQuery] = []

    class Spy:
        async def lexical(self, query: LexicalQuery, _deadline: float) -> None:
            asked.append(query)

        async def vector(self, query: VectorQuery, _deadline: float) -> None:
            asked.append(query)

    clock = ManualClock(now_ms=1_000_000)
    clock.advance(50.0)
    spy: Any = Spy()
    legs = RouterLegs(spy, (), clock, max_batch=8, embed_timeout_s=5)
    await legs.lexical(LexicalQuery(text="x", guard=All(()), pins={}, k=1), clock.monotonic() + 1.5)
    vector = np.ones(TARGET.dimensions, np.float32)
    await legs.vector(VectorQuery(vector=vector, identity=TARGET, guard=All(()), pins={}, k=1), clock.monotonic() - 1.0)
    assert [query.until_ms for query in asked] == [1_051_500, 1_049_000]
