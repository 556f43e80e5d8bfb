from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from actors.lexical_shard import LexicalShard
from cluster.index.analysis import MAX_COUNTED_TERMS, MAX_QUERY_TERMS, choose_terms
from cluster.model.guard import All, Guard
from cluster.model.query import LexicalQuery, TermStatistics

PINS = {"web": "g1", "docs": "g7"}


class Part:
    """A partition of 100 rows in which each term is in one row, number 0."""

    over_bound = False
    left_out = False

    def __init__(self) -> None:
        self.counted: list[str] = []

    def statistics(self, terms: Sequence[str], _guard: Guard) -> TermStatistics:
        self.counted.extend(terms)
        return TermStatistics(documents=100, tokens=1000, document_frequency=dict.fromkeys(terms, 1))

    def search(
        self, _terms: Sequence[str], _guard: Guard, _statistics: TermStatistics, _k: int
    ) -> tuple[list[str], npt.NDArray[np.float64], int]:
        return ["row0"], np.array([2.0]), 1

    def close(self) -> None: ...


class Parts:
    """Holds one partition, whatever is pinned."""

    def __init__(self) -> None:
        self.part = Part()

    def held(self, _pins: Any) -> tuple[list[tuple[str, Part]], list[Any]]:
        return [("web/b0000", self.part)], []


def analyse(text: str) -> dict[str, int]:
    if "bad" in text:
        raise MemoryError("no memory left")
    return dict(Counter(text.split()))


def question(text: str) -> LexicalQuery:
    return LexicalQuery(text=text, guard=All(()), pins=PINS, k=10)


@pytest.fixture
def parts() -> Parts:
    return Parts()


@pytest.fixture
def shard(parts: Parts) -> LexicalShard:
    holder: Any = parts
    return LexicalShard(holder, analyse, choose_terms)


def test_a_query_that_cannot_be_worked_on_fails_alone(shard: LexicalShard) -> None:
    questions = [question("one two"), question("bad"), question("three")]
    counts = shard.statistics(questions)
    assert [dict(found.document_frequency) for found in counts] == [{"one": 1, "two": 1}, {}, {"three": 1}]
    assert (counts[1].documents, counts[1].tokens) == (0, 0)

    first, bad, last = shard.search(questions)
    assert first.ids == last.ids == ("row0",)
    assert (bad.ids, bad.asked, bad.answered) == ((), 2, 0)
    assert [(failure.project, failure.generation, failure.bucket) for failure in bad.failures] == [
        ("web", "g1", "*"),
        ("docs", "g7", "*"),
    ]
    assert not any("memory" in failure.detail for failure in bad.failures), "callers are told nothing of foreign errors"


def test_no_query_has_more_terms_counted_than_the_bound_and_what_is_cut_is_told(shard: LexicalShard, parts: Parts) -> None:
    count = 13_000
    text = question(" ".join(f"w{number}" for number in range(count)))
    shard.statistics([text])
    assert len(parts.part.counted) == MAX_COUNTED_TERMS
    assert {"w0", f"w{count - 1}"} <= set(parts.part.counted)
    answer = shard.search([text])[0]
    assert len(answer.explain["terms"]) == MAX_QUERY_TERMS
    assert answer.explain["terms_cut"] == count - MAX_QUERY_TERMS
