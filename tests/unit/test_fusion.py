"""Fusion: the values that the formulas define, and what must hold for any two lists."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.model.query import Fusion, LegAnswer
from serve.fusion import ROUNDING, Candidate, fuse, lexical_ranks, parameters, vector_ranks

METHODS = list(Fusion)


def leg(scores: Mapping[str, float] | Sequence[tuple[str, float]]) -> LegAnswer:
    pairs = list(scores.items()) if isinstance(scores, Mapping) else list(scores)
    return LegAnswer(ids=tuple(i for i, _ in pairs), scores=np.array([s for _, s in pairs], dtype=np.float64))


def ranked(ids: Sequence[str]) -> LegAnswer:
    return leg([(node_id, float(len(ids) - place)) for place, node_id in enumerate(ids)])


def values(fused: Sequence[Candidate]) -> dict[str, float]:
    return {candidate.id: candidate.fused for candidate in fused}


def order(fused: Sequence[Candidate]) -> list[str]:
    return [candidate.id for candidate in fused]


def test_a_single_lexical_hit_scales_to_one() -> None:
    fused = fuse(leg({"B": 7.3}), leg({"A": 0.80, "B": 0.60}))
    assert order(fused) == ["B", "A"]
    assert values(fused) == pytest.approx({"A": 0.56, "B": 0.72})


def test_equal_lexical_scores_scale_to_one_and_ties_go_by_id() -> None:
    fused = fuse(leg({"A": 4.2, "B": 4.2, "C": 4.2}), leg({"A": 0.5, "B": 0.5, "C": 0.9}))
    assert order(fused) == ["C", "A", "B"]
    assert values(fused) == pytest.approx({"A": 0.65, "B": 0.65, "C": 0.93})


@pytest.mark.parametrize("names", [("A", "B", "C"), ("A", "Z", "C")], ids=["by-id-too", "against-the-id"])
def test_the_weakest_match_stands_before_no_match(names: tuple[str, str, str]) -> None:
    strong, weak, none = names
    fused = fuse(leg({strong: 8.0, weak: 2.0}), leg({strong: 0.5, weak: 0.5, none: 0.5}))
    assert order(fused) == [strong, weak, none]
    assert values(fused) == pytest.approx({strong: 0.65, weak: 0.35, none: 0.35})


def test_a_tiny_spread_is_scaled_like_any_other_and_the_raw_scores_are_kept() -> None:
    fused = fuse(leg({"A": 0.011, "B": 0.010}), leg({"A": 0.30, "B": 0.60}))
    assert values(fused) == pytest.approx({"A": 0.51, "B": 0.42})
    assert {candidate.id: candidate.score.bm25 for candidate in fused} == {"A": 0.011, "B": 0.010}


@pytest.mark.parametrize("method", METHODS)
def test_scores_that_rounding_tells_apart_are_equal(method: Fusion) -> None:
    """One text in three partitions, as float32 sums come out: neither the order nor the scaling may follow the last bit."""
    noisy = leg({"A": 0.9796780943870544, "B": 0.9796782732009888, "C": 0.9796781539916992})
    cosine = leg({"A": 0.5, "B": 0.5, "C": 0.5})
    fused = fuse(noisy, cosine, method)
    assert order(fused) == ["A", "B", "C"]
    if method is not Fusion.RRF:
        assert values(fused) == pytest.approx({"A": 0.65, "B": 0.65, "C": 0.65})
    assert lexical_ranks(noisy) == {"A": 1, "B": 2, "C": 3}
    assert vector_ranks(leg({"A": 0.5, "B": 0.50000001})) == {"B": 1, "A": 2}, "cosines are exact"


def test_rounding_is_measured_from_the_best_of_equals_and_never_chains() -> None:
    step = 0.6 * ROUNDING
    fused = fuse(leg({"D": 10.0, "C": 10.0 * (1 - step), "B": 10.0 * (1 - 2 * step), "A": 10.0 * (1 - 3 * step)}), None)
    assert order(fused) == ["C", "D", "A", "B"]
    assert values(fused) == {"C": 1.0, "D": 1.0, "A": 0.0, "B": 0.0}


@pytest.mark.parametrize("places", list(itertools.permutations("ABC")), ids="".join)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_an_unusable_score_counts_as_absent_in_any_order(places: tuple[str, ...], bad: float) -> None:
    cosine, bm25 = {"A": bad, "B": 0.4, "C": 0.1}, {"A": 1.0, "B": 3.0, "C": 2.0}
    fused = fuse(leg({i: bm25[i] for i in reversed(places)}), leg({i: cosine[i] for i in places}))
    assert order(fused) == ["B", "C", "A"]
    assert values(fused) == pytest.approx({"A": 0.0, "B": 0.58, "C": 0.22})
    assert [candidate.score.vector for candidate in fused if candidate.id == "A"] == [None]


def test_rrf_counts_an_id_once_a_leg_and_ranks_close_up() -> None:
    fused = fuse(ranked(["d2"]), ranked(["d1", "d1", "d2"]), Fusion.RRF)
    assert order(fused) == ["d2", "d1"]
    assert values(fused) == pytest.approx({"d1": 1 / 61, "d2": 1 / 62 + 1 / 61})
    twice = ranked(["d1", "d1", "d2"])
    assert lexical_ranks(twice) == vector_ranks(twice) == {"d1": 1, "d2": 2}


def test_rrf_rewards_agreement() -> None:
    fused = fuse(ranked(["one"]), ranked(["one", "other"]), Fusion.RRF)
    assert values(fused) == pytest.approx({"one": 2 / 61, "other": 1 / 62})


def test_rrf_makes_no_rank_up_for_the_leg_that_did_not_find_it() -> None:
    fused = fuse(ranked(["b", "c", "Y"]), ranked(["X", "a", "Y"]), Fusion.RRF)
    assert order(fused) == ["Y", "X", "b", "a", "c"]
    assert values(fused) == pytest.approx({"Y": 2 / 63, "X": 1 / 61, "b": 1 / 61, "a": 1 / 62, "c": 1 / 62})


def test_max_scaling_keeps_the_proportion_of_the_lexical_scores() -> None:
    fused = fuse(leg({"A": 8.0, "B": 2.0}), leg({"A": 0.5, "B": 0.5}), Fusion.WEIGHTED_MAX)
    assert values(fused) == pytest.approx({"A": 0.65, "B": 0.35 + 0.3 * 0.25})


@pytest.mark.parametrize("method", [Fusion.WEIGHTED, Fusion.WEIGHTED_MAX])
def test_a_missing_leg_leaves_the_other_its_full_weight(method: Fusion) -> None:
    assert values(fuse(None, leg({"A": 0.9, "B": -0.2}), method)) == {"A": 0.9, "B": -0.2}
    assert values(fuse(leg({"A": 4.0, "B": 2.0}), None, method))["A"] == 1.0


def test_a_leg_that_found_nothing_is_not_missing() -> None:
    assert values(fuse(leg({}), leg({"A": 0.9}))) == pytest.approx({"A": 0.63})


def test_a_negative_cosine_is_kept() -> None:
    fused = fuse(leg({"A": 2.0, "B": 1.0}), leg({"C": -0.5}))
    assert order(fused) == ["A", "B", "C"]
    assert values(fused)["C"] == pytest.approx(-0.35)


@pytest.mark.parametrize("method", METHODS)
def test_nothing_in_nothing_out(method: Fusion) -> None:
    assert fuse(None, None, method) == fuse(leg({}), leg({}), method) == []


@pytest.mark.parametrize("method", METHODS)
def test_the_parameters_name_the_method(method: Fusion) -> None:
    assert parameters(method)["method"] == method.value


IDS = st.text("abcdefgh", min_size=1, max_size=2)
ANY_SCORE = st.floats(allow_nan=True, allow_infinity=True, width=32)
BM25 = st.floats(0, 60)
COSINE = st.floats(-1, 1)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(IDS, ANY_SCORE)), st.lists(st.tuples(IDS, ANY_SCORE)), st.sampled_from(METHODS), st.randoms())
def test_input_order_is_irrelevant_and_no_unusable_number_leaves(
    lexical: list[tuple[str, float]], vector: list[tuple[str, float]], method: Fusion, random: object
) -> None:
    expected = fuse(leg(lexical), leg(vector), method)
    for pairs in (lexical, vector):
        random.shuffle(pairs)  # type: ignore[attr-defined]
    assert fuse(leg(lexical), leg(vector), method) == expected
    assert len(set(order(expected))) == len(expected)
    for score in (candidate.score for candidate in expected):
        assert all(part is None or math.isfinite(part) for part in (score.fused, score.vector, score.bm25, score.bm25_scaled))
        assert score.bm25_scaled is None or 0 <= score.bm25_scaled <= 1


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(IDS, BM25, min_size=1),
    st.dictionaries(IDS, COSINE, min_size=1),
    st.sampled_from(METHODS),
    st.sampled_from(["lexical", "vector"]),
    st.floats(0, 1),
    st.data(),
)
def test_a_better_score_never_lowers_a_place(
    bm25: dict[str, float], cosine: dict[str, float], method: Fusion, which: str, gain: float, data: st.DataObject
) -> None:
    raised = bm25 if which == "lexical" else cosine
    node_id = data.draw(st.sampled_from(sorted(raised)))
    before = order(fuse(leg(bm25), leg(cosine), method)).index(node_id)
    raised[node_id] += gain
    assert order(fuse(leg(bm25), leg(cosine), method)).index(node_id) <= before


@settings(max_examples=30, deadline=None)
@given(st.dictionaries(IDS, BM25), st.dictionaries(IDS, COSINE), st.sampled_from(METHODS), st.integers(1, 5))
def test_pages_of_any_size_join_to_the_same_list(
    bm25: dict[str, float], cosine: dict[str, float], method: Fusion, size: int
) -> None:
    whole = order(fuse(leg(bm25), leg(cosine), method))
    pages = [order(fuse(leg(bm25), leg(cosine), method))[at : at + size] for at in range(0, len(whole), size)]
    assert [node_id for page in pages for node_id in page] == whole
