"""Document frequencies: counted as brute force counts them, within bounds of time and memory, alike on every shard."""

from __future__ import annotations

import random
import sysconfig
from pathlib import Path

import pytest

from cluster.guards import allows, search_guard
from cluster.index import lexical_search
from cluster.index.analysis import MAX_COUNTED_TERMS, countable_terms, runs
from cluster.index.term_counts import TermCounts
from cluster.model.guard import Guard, In
from cluster.model.nodes import Node, Scope
from tests.support.factories import make_agent, make_node
from tests.support.lexical import analyse, opened, row_terms, search, statistics

AGENT = search_guard(make_agent("iris"))


def tagged(pick: random.Random, texts: list[str]) -> list[Node]:
    """Rows that the agent iris may read, and about as many that it may not."""
    agents = [None, None, ("iris",), ("mira",), ("mira", "noor")]
    return [
        make_node(f"n{number:05}", text={"content": text}, scope=pick.choice([None, Scope.ADMIN]), agents=pick.choice(agents))
        for number, text in enumerate(texts)
    ]


def real_texts(most: int) -> list[str]:
    """Pieces of Python's own library."""
    sources = (path.read_text("utf-8") for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("[a-d]*.py")))
    return [text[start : start + 800] for text in sources for start in range(0, len(text), 800)][:most]


def brute_force(nodes: list[Node], terms: list[str], guard: Guard) -> dict[str, int]:
    rows = [row_terms(node) for node in nodes if allows(guard, node)]
    return {term: sum(term in row for row in rows) for term in terms}


@pytest.mark.parametrize("rows", [1, 63, 64, 65, 129])
def test_frequencies_are_those_of_the_rows_that_a_guard_allows(rows: int, tmp_path: Path) -> None:
    nodes = tagged(random.Random(rows), real_texts(rows))
    with opened(tmp_path, nodes) as partitions:
        terms = analyse(" ".join(node.text["content"] for node in nodes))[:200]
        terms += ["absent", "", "\U0001f9ea"]
        for guard in (AGENT, search_guard(make_agent("mira")), In("project", ("nowhere",))):
            counted = statistics(partitions, terms, guard)
            assert dict(counted.document_frequency) == brute_force(nodes, terms, guard)
            assert counted.documents == sum(allows(guard, node) for node in nodes)


def test_a_huge_question_costs_a_bounded_number_of_counts_and_is_answered_alike_by_any_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pick = random.Random(5)
    nodes = tagged(pick, real_texts(900))
    last = make_node("last", text={"content": "the zanzibarix is here"}, agents=("iris",))
    vocabulary = list(dict.fromkeys(word for node in nodes for word in runs(node.text["content"])))
    query = " ".join([*vocabulary, "zanzibarix"])[-100_000:]
    assert len(analyse(query)) > 2 * MAX_COUNTED_TERMS, "the question is larger than what is counted"
    counts: list[str] = []
    count_within = TermCounts.count_within

    def counting(self: TermCounts, term: str, allowed: object) -> int:
        counts.append(term)
        return count_within(self, term, allowed)

    monkeypatch.setattr(TermCounts, "count_within", counting)
    whole = [*nodes, last]
    with opened(tmp_path, whole) as partitions:
        alone = search(partitions, query, AGENT, k=50)
    assert len(counts) <= MAX_COUNTED_TERMS
    assert "zanzibarix" in counts, "what is said once, at the end, takes part"
    pick.shuffle(whole)
    parts = [sorted(whole[:50], key=lambda n: n.id), sorted(whole[50:400], key=lambda n: n.id)]
    with opened(tmp_path, *parts, sorted(whole[400:], key=lambda n: n.id)) as partitions:
        split = search(partitions, query, AGENT, k=50)
    assert split.matched == alone.matched
    assert split.as_map() == pytest.approx(alone.as_map(), rel=1e-6)


def test_what_is_remembered_of_guards_is_bounded_and_forgotten_without_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lexical_search, "_FREQUENCIES", 100)
    monkeypatch.setattr(lexical_search, "_SELECTIONS", 8)
    nodes = tagged(random.Random(3), real_texts(40))
    terms, _ = countable_terms(analyse(" ".join(node.text["content"] for node in nodes)))
    guards = [search_guard(make_agent("iris", teams=frozenset({f"team{number}"}))) for number in range(20)]
    with opened(tmp_path, nodes) as partitions:
        index = partitions[0].index
        for step in range(60):
            asked, guard = terms[step : step + 40], guards[step % len(guards)]
            assert dict(index.statistics(asked, guard).document_frequency) == brute_force(nodes, asked, guard)
            kept = [len(known.frequency) for known in index._selections.values()]
            assert sum(kept) <= 100 and len(kept) <= 8
        assert sum(kept) >= 40, "what was asked last is remembered"
        assert len(index.statistics(terms[:150], guards[0]).document_frequency) == 150
        assert sum(len(known.frequency) for known in index._selections.values()) <= 100
