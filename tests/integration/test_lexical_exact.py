"""Partitions searched with summed statistics answer as one index of exactly what the reader may see."""

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cluster.guards import allows, search_guard
from cluster.model.access import Principal
from cluster.model.guard import All, AnyOf, Guard, Has, In, IsNull
from cluster.model.nodes import Node, Scope, Visibility
from tests.support import factories
from tests.support.factories import make_agent, make_node, make_principal
from tests.support.lexical import EVERYTHING, K1, B, Ranked, analyse, opened, row_terms, search, statistics

RELATIVE = 1e-6
few = settings(max_examples=30)  # each builds an index
WORDS = [f"word{number}" for number in range(60)]


def random_nodes(pick: random.Random, count: int) -> list[Node]:
    """Rows of very different lengths, some without any word, over a vocabulary that follows Zipf's law."""
    weights = [1 / (rank + 1) for rank in range(len(WORDS))]
    return [
        make_node(
            f"n{number:04}",
            text={"content": " ".join(pick.choices(WORDS, weights, k=pick.choice([0, 1, 3, 10, 40, 150])))},
            project=pick.choice(factories.PROJECTS),
            scope=pick.choice([None, *Scope]),
            agents=pick.choice([None, (), ("iris",), ("iris", "mira")]),
            visibility=pick.choice([None, *Visibility]),
            owner_agent=pick.choice([None, "iris"]),
            labels=pick.choice([("Chunk",), ("Document",), ()]),
        )
        for number in range(count)
    ]


def random_guard(pick: random.Random) -> Guard:
    projects = frozenset(pick.sample(factories.PROJECTS, pick.randint(1, 4)))
    principal = pick.choice(
        [
            make_principal(),
            make_principal(projects=projects),
            make_agent("iris", teams=projects),
            make_agent("mira", scopes=frozenset({Scope.ADMIN})),
        ]
    )
    return search_guard(principal, pick.choice([None, projects]), pick.choice([(), ("Chunk",)]))


def uneven_split(pick: random.Random, nodes: Sequence[Node], parts: int) -> list[list[Node]]:
    """Some parts get much, some little, and of many parts one gets nothing."""
    weights = [pick.random() ** 3 for _ in range(parts)]
    if parts > 2:
        weights[pick.randrange(parts)] = 0
    split: list[list[Node]] = [[] for _ in range(parts)]
    for node in nodes:
        pick.choices(split, weights)[0].append(node)
    return split


def assert_same_ranking(got: Ranked, right: Ranked, k: int) -> None:
    """Same ids, same scores, same order up to scores that tie within the tolerance."""
    assert got.matched == right.matched
    assert len(got.ids) == min(k, right.matched)
    expected = right.as_map()
    for node_id, score in zip(got.ids, got.scores, strict=True):
        assert score == pytest.approx(expected[node_id], rel=RELATIVE)
    in_order = [expected[node_id] for node_id in got.ids]
    assert all(first >= second * (1 - RELATIVE) for first, second in pairwise(in_order))
    assert in_order == pytest.approx(list(right.scores[:k]), rel=RELATIVE)


@pytest.mark.parametrize("parts", [1, 2, 4, 8])
@pytest.mark.parametrize("seed", range(2))
def test_any_split_scores_like_one_index_of_the_visible_rows(tmp_path: Path, parts: int, seed: int) -> None:
    pick = random.Random(f"{seed}/{parts}")
    nodes = random_nodes(pick, 300)
    # One term lives in a single partition.
    nodes[7] = replace(nodes[7], text={"content": "lonely word3"})
    with opened(tmp_path, *uneven_split(pick, nodes, parts)) as partitions:
        for _ in range(4):
            guard = random_guard(pick)
            visible = [node for node in nodes if allows(guard, node)]
            with opened(tmp_path, visible) as fresh:
                for _ in range(8):
                    query = " ".join(pick.choices([*WORDS, "lonely", "nowhere"], k=pick.randint(1, 6)))
                    right = search(fresh, query)
                    assert_same_ranking(search(partitions, query, guard), right, k=10_000)
                    assert_same_ranking(search(partitions, query, guard, k=10), right, k=10)
                    assert statistics(partitions, analyse(query), guard) == statistics(fresh, analyse(query), EVERYTHING)


def kept_length(length: int) -> int:
    """A length as Lucene keeps it in one byte: exact to 40, then the leading 4 bits of what exceeds 24."""
    if length < 40:
        return length
    beyond = length - 24
    shift = max(beyond.bit_length() - 4, 0)
    return 24 + (beyond >> shift << shift)


def bm25(nodes: Sequence[Node], query: str) -> dict[str, float]:
    """BM25 by its formula, in plain Python."""
    rows = {node.id: row_terms(node) for node in nodes}
    lengths = {node_id: sum(terms.values()) for node_id, terms in rows.items() if terms}
    average = sum(lengths.values()) / len(lengths)
    scores: dict[str, float] = {}
    for term in analyse(query):
        holders = [node_id for node_id, terms in rows.items() if term in terms]
        idf = math.log(1 + (len(lengths) - len(holders) + 0.5) / (len(holders) + 0.5))
        for node_id in holders:
            frequency = rows[node_id][term]
            norm = K1 * (1 - B + B * kept_length(lengths[node_id]) / average)
            scores[node_id] = scores.get(node_id, 0.0) + idf * frequency / (frequency + norm)
    return scores


@pytest.mark.parametrize("seed", range(3))
def test_scores_are_those_of_the_formula(tmp_path: Path, seed: int) -> None:
    pick = random.Random(seed)
    nodes = random_nodes(pick, 200)
    guard = random_guard(pick)
    visible = [node for node in nodes if allows(guard, node)]
    with opened(tmp_path, *uneven_split(pick, nodes, 3)) as partitions:
        for _ in range(20):
            query = " ".join(pick.choices(WORDS, k=3))
            assert search(partitions, query, guard).as_map() == pytest.approx(bm25(visible, query), rel=RELATIVE)


def test_equal_texts_score_equal_wherever_they_are(tmp_path: Path) -> None:
    """One partition is full of one word, the other of the other; twins in both have the same text."""
    first = [make_node(f"a{n}", text={"content": f"common filler {n}"}) for n in range(12)]
    second = [make_node(f"b{n}", text={"content": f"rare filler {n}"}) for n in range(12)]
    twins = [make_node(name, text={"content": "rare common twin"}) for name in ("t1", "t2")]
    with opened(tmp_path, [*first, twins[0]], [*second, twins[1]]) as two, opened(tmp_path, [*first, *second, *twins]) as one:
        split, whole = search(two, "rare common"), search(one, "rare common")
    scores = split.as_map()
    assert split.ids[:2] == ("t1", "t2")
    assert scores["t1"] == pytest.approx(scores["t2"], rel=RELATIVE)
    assert_same_ranking(split, whole, k=10_000)


def test_what_is_hidden_leaves_no_trace_in_the_scores(tmp_path: Path) -> None:
    """Deleted and foreign rows full of the searched word change neither frequencies nor lengths nor scores."""
    kept = [make_node("k1", text={"content": "valve closed"}), make_node("k2", text={"content": "valve opened by noor"})]
    gone = [make_node(f"g{n}", text={"content": "valve " * 50}, deleted_at=5) for n in range(20)]
    alien = [make_node(f"x{n}", text={"content": "valve"}, account="zenith") for n in range(20)]
    guard = search_guard(make_principal())
    with opened(tmp_path, [*gone, *kept], alien) as partitions, opened(tmp_path, kept) as fresh:
        got, right = search(partitions, "valve noor", guard), search(fresh, "valve noor")
        with opened(tmp_path, [*gone, *kept], alien) as again:
            assert search(again, "valve noor", guard) == got
    assert got.ids == right.ids == ("k2", "k1")
    assert_same_ranking(got, right, k=10)
    assert all(score > 0 for score in got.scores)


def assert_filters(nodes: Sequence[Node], guard: Guard) -> None:
    """Every row that the guard allows is found and counted, and no other."""
    numbered = [replace(node, id=f"{number:03}", text={"content": "word"}) for number, node in enumerate(nodes)]
    allowed = tuple(node.id for node in numbered if allows(guard, node))
    with TemporaryDirectory() as folder, opened(Path(folder), numbered) as partitions:
        found = search(partitions, "word", guard)
        assert found.ids == allowed
        assert found.matched == len(allowed)
        counts = statistics(partitions, ["word", "absent"], guard)
    assert counts.documents == len(allowed)
    assert counts.tokens == 2 * len(allowed)
    assert counts.document_frequency == {"word": len(allowed), "absent": 0}


@few
@given(st.lists(factories.nodes(), max_size=25), factories.principals(), factories.labels())
def test_a_search_guard_filters_as_it_allows(nodes: list[Node], principal: Principal, labels: tuple[str, ...]) -> None:
    assert_filters(nodes, search_guard(principal, None, labels))


@few
@given(st.lists(factories.nodes(), max_size=25), factories.guard_expressions())
@example([make_node(agents=()), make_node(agents=None)], IsNull("agents"))
@example([make_node(agents=()), make_node(agents=None)], Has("agents", ()))
@example([make_node(), make_node(scope=Scope.PUBLIC)], All(()))
@example([make_node()], AnyOf(()))
@example([make_node(), make_node(deleted_at=7)], All((All(()), In("deleted_at", ("7",)))))
@example([make_node(), make_node(project="NOT")], In("project", ("NOT", "ap-erp")))
@example([make_node(labels=("x" * 40_000,)), make_node(labels=("x" * 40_001,))], Has("labels", ("x" * 40_000,)))
@example([make_node(), make_node(project="p1999")], In("project", tuple(f"p{number}" for number in range(3000))))
def test_any_expression_filters_as_it_allows(nodes: list[Node], guard: Guard) -> None:
    assert_filters(nodes, guard)
