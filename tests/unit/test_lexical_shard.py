from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
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


class Together:
    """Partitions as one; it fails when it is told to."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = parts
        self.failing = False

    def statistics(self, terms: Sequence[str], guard: Guard) -> TermStatistics:
        if self.failing:
            raise MemoryError("together they are too large")
        first, second = (part.statistics(terms, guard) for part in self.parts)
        return first + second

    def search(self, terms: Sequence[str], guard: Guard, statistics: TermStatistics, k: int) -> Any:
        ids, scores, count = self.parts[0].search(terms, guard, statistics, k)
        return [f"together-{node_id}" for node_id in ids], scores, 2 * count


class TwoParts(Parts):
    def held(self, _pins: Any) -> tuple[list[tuple[str, Part]], list[Any]]:
        return [("web/b0000", self.part), ("docs/b0000", Part())], []


def test_partitions_are_asked_together_and_one_by_one_when_that_fails() -> None:
    made: list[Together] = []

    def group(parts: Sequence[Part]) -> Together:
        made.append(Together(parts))
        made[-1].failing = failing
        return made[-1]

    holder: Any = TwoParts()
    shard = LexicalShard(holder, analyse, choose_terms, (), group)
    failing = False
    (together,) = shard.search([question("one")])
    assert together.ids and all(node_id.startswith("together-") for node_id in together.ids)
    assert (together.asked, together.answered, together.failures) == (2, 2, ())
    failing = True
    (alone,) = shard.search([question("one")])
    assert alone.ids and not any(node_id.startswith("together-") for node_id in alone.ids)
    assert (alone.asked, alone.answered) == (2, 2)
    assert len(made) >= 2


def test_a_question_that_nobody_waits_for_any_more_is_not_begun(parts: Parts) -> None:
    holder: Any = parts
    shard = LexicalShard(holder, analyse, choose_terms, now_s=lambda: 5.0)
    questions = [replace(question(f"word{until}"), until_ms=until) for until in (4_999, 5_000, 5_001)]
    assert [found.documents for found in shard.statistics(questions)] == [0, 0, 100]
    late, just_late, answered = shard.search(questions)
    assert set(parts.part.counted) == {"word5001"}
    assert answered.ids and not late.ids and not just_late.ids
    assert {failure.code for failure in late.failures} == {"deadline_exceeded"}
    assert (late.asked, late.answered) == (2, 0)
