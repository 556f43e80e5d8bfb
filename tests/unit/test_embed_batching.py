"""Cutting, estimating and packing."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.embed.batching import cut, embed_cached, estimate_tokens, pack
from cluster.embed.cache import MemoryVectorCache
from cluster.model.manifest import VectorIdentity


@given(st.lists(st.integers(1, 50)), st.integers(1, 6), st.integers(1, 60))
def test_packing_keeps_the_order_and_both_bounds(costs: list[int], max_items: int, max_cost: int) -> None:
    groups = list(pack(costs, max_items, max_cost))
    assert [position for group in groups for position in group] == list(range(len(costs)))
    for group in groups:
        assert 1 <= len(group) <= max_items
        assert sum(costs[position] for position in group) <= max_cost or len(group) == 1
    for group, following in pairwise(groups):
        # No group ends before it has to.
        assert len(group) == max_items or sum(costs[position] for position in [*group, following[0]]) > max_cost


@given(st.text(), st.integers(1, 4))
def test_a_cut_text_is_a_head_of_it_that_can_be_encoded(text: str, max_tokens: int) -> None:
    head = cut(text, max_tokens)
    assert head == text[: 8 * max_tokens]
    head.encode()


def test_a_lone_surrogate_is_replaced() -> None:
    assert cut("a\ud83db", 8) == "a?b"


@pytest.mark.parametrize(("text", "tokens"), [("word " * 100, 100), ("漢字検索" * 25, 100), ("a{b:c;d:#ef}" * 10, 48)])
def test_an_estimate_is_rather_too_high(text: str, tokens: int) -> None:
    assert tokens <= estimate_tokens(text) <= 3 * tokens


class Plain:
    """An embedder that has no more than the port asks for."""

    identity = VectorIdentity(provider="test", model="plain", dimensions=2)
    max_tokens = 10

    def __init__(self) -> None:
        self.asked: list[str] = []

    def embed(self, texts: list[str]) -> np.ndarray:
        self.asked.extend(texts)
        return np.array([[np.nan, np.nan] if text == "?" else [1, 0] for text in texts], dtype=np.float32)

    embed_query = embed


def test_texts_without_a_vector_are_absent_and_tried_again() -> None:
    embedder, cache = Plain(), MemoryVectorCache()
    for asked in (["a", "?"], ["?"]):
        embedder.asked.clear()
        result = embed_cached(embedder, cache, {"h1": "a", "h2": "?"})  # type: ignore[arg-type]
        assert embedder.asked == asked
        assert list(result.vectors) == ["h1"]
        assert list(result.failures) == ["h2"]
    assert list(cache.get(embedder.identity, ["h1", "h2"])) == ["h1"]


@pytest.mark.parametrize(
    ("fault", "words"),
    [([0, 0], "all zeros"), ([np.inf, 0], "infinity"), ([np.nan, 0], "no vector"), ([3, 4], "length 5")],
)
def test_a_batch_keeps_its_good_vectors_beside_an_unusable_one(fault: list[float], words: str) -> None:
    embedder, cache = Plain(), MemoryVectorCache()
    embedder.embed = lambda texts: np.array([fault if text == "?" else [1, 0] for text in texts], np.float32)  # type: ignore[method-assign]
    result = embed_cached(embedder, cache, {"h1": "a", "h2": "?", "h3": "b"})  # type: ignore[arg-type]
    assert list(result.vectors) == ["h1", "h3"]
    assert list(result.failures) == ["h2"]
    assert words in result.failures["h2"]
    assert list(cache.get(embedder.identity, ["h1", "h2", "h3"])) == ["h1", "h3"]


def test_vectors_of_other_dimensions_than_the_models_are_refused_with_both_sizes() -> None:
    embedder, cache = Plain(), MemoryVectorCache()
    embedder.embed = lambda texts: np.ones((len(texts), 3), np.float32)  # type: ignore[method-assign]
    result = embed_cached(embedder, cache, {"h1": "a"})  # type: ignore[arg-type]
    assert not result.vectors
    assert "3 dimensions" in result.failures["h1"]
    assert f"{embedder.identity.key} has 2" in result.failures["h1"]
