from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from actors.merge import merge_answers, merge_hits
from cluster.model.query import LegAnswer

HITS = st.dictionaries(st.text("abcdef", min_size=1, max_size=3), st.sampled_from([0.0, 0.5, 1.0, 1.5, 2.0]), max_size=30)


@given(hits=HITS, cuts=st.lists(st.integers(0, 5), min_size=40, max_size=40), k=st.integers(1, 40))
def test_any_split_of_the_same_hits_gives_the_same_list(hits: dict[str, float], cuts: list[int], k: int) -> None:
    shards: list[list[tuple[str, float]]] = [[] for _ in range(6)]
    for place, hit in enumerate(hits.items()):
        shards[cuts[place]].append(hit)
    assert merge_hits(shards, k) == merge_hits([hits.items()], k) == sorted(hits.items(), key=lambda hit: (-hit[1], hit[0]))[:k]


def test_ties_go_by_id_and_an_id_met_twice_keeps_its_best_score() -> None:
    assert merge_hits([[("b", 1.0), ("c", 3.0)], [("a", 1.0), ("c", 2.0)]], 3) == [("c", 3.0), ("a", 1.0), ("b", 1.0)]


def _answer(ids: tuple[str, ...], scores: list[float], matched: int | None) -> LegAnswer:
    return LegAnswer(ids=ids, scores=np.array(scores), matched=matched, asked=2, answered=1)


def test_counts_add_up_and_an_unknown_count_stays_unknown() -> None:
    merged = merge_answers([_answer(("a",), [1.0], 7), _answer(("b",), [2.0], 5)], 1)
    assert (merged.ids, merged.matched, merged.asked, merged.answered) == (("b",), 12, 4, 2)
    assert merge_answers([_answer(("a",), [1.0], 7), _answer((), [], None)], 1).matched is None


def test_what_a_leg_has_to_say_does_not_depend_on_which_shard_is_lost() -> None:
    lost, whole = _answer((), [], None), replace(_answer(("a",), [1.0], 1), explain={"terms": {}})
    assert merge_answers([lost, whole], 1).explain == merge_answers([whole, lost], 1).explain == {"terms": {}}
