"""Who sees what: the second look, related nodes, and what an answer may tell."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.errors import (
    ForbiddenError,
    UnavailableError,
)
from cluster.guards import allows, expansion_guard, search_guard
from cluster.model.access import Principal
from cluster.model.nodes import Node, Scope, Visibility
from cluster.model.query import Answer, Statistics
from serve.question import make_question
from serve.render import to_json
from tests.support.factories import ACCOUNT, make_agent, make_edge, principals
from tests.support.legs import IDENTITY, OTHER_IDENTITY, make_manifest
from tests.support.retrieval import ADMIN, Bench, codes, doc, ids, leg

# --- the second look ---------------------------------------------------------------------------------------------------------


def test_a_candidate_that_the_store_forbids_is_dropped_counted_and_alarmed(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(
        doc("a"),
        doc("b", deleted_at=5),
        doc("c"),
        doc("d"),
        unguarded=True,
        lexical_scores={"a": 5.0, "b": 4.0, "absent": 3.0, "c": 2.0, "d": 1.0},
        vector_scores={},
    )
    answer = bench.ask(limit=2)
    assert ids(answer) == ["a", "c"]
    assert answer.disclosure.candidates == 5
    assert answer.disclosure.omitted == {"over_limit": 1, "guard_recheck": 1, "gone": 1}
    alarm = next(record for record in caplog.records if getattr(record, "action", "") == "guard_recheck_drop")
    assert alarm.levelno == logging.ERROR and alarm.node_ids == ["b"]
    assert "title b" not in str(to_json(answer))


def test_counts_of_candidates_add_up() -> None:
    scores = {f"n{number:02}": 100.0 - number for number in range(40)}
    nodes = [doc(f"n{number:02}", deleted_at=1 if number % 3 == 0 else None) for number in range(35)]
    bench = Bench(*nodes, unguarded=True, lexical_scores=scores, vector_scores={})
    for limit in (1, 5, 20, 100):
        disclosure = bench.ask(limit=limit).disclosure
        assert disclosure.returned == min(limit, 23)
        assert disclosure.candidates == disclosure.returned + sum(disclosure.omitted.values())


def test_a_store_that_cannot_be_read_fails_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(doc("a"))

    def broken(*_args: object) -> dict[str, Node]:
        raise UnavailableError("the store is locked")

    monkeypatch.setattr(bench.store, "get_nodes", broken)
    with pytest.raises(UnavailableError):
        bench.ask()


@settings(max_examples=40, deadline=None)
@given(principals(), st.lists(st.sampled_from(range(60)), unique=True, max_size=30), st.integers(1, 12))
def test_whatever_the_legs_propose_only_what_the_guard_allows_is_shown(
    principal: Principal, proposed: list[int], limit: int
) -> None:
    nodes = _many_nodes()
    manifests = {name: make_manifest(name) for name in ("main", "NOT")}
    scores = {f"n{number:02}": float(number + 1) for number in proposed}
    bench = Bench(*nodes, manifests=manifests, unguarded=True, lexical_scores=scores, vector_scores={})
    chain(bench, *(node.id for node in nodes))
    principal = replace(principal, account=ACCOUNT)
    answer = bench.ask(principal=principal, limit=limit, expand_hops=2)
    guard, around = search_guard(principal, manifests), expansion_guard(principal)
    allowed = [node for node in nodes if node.id in scores and allows(guard, node)]
    assert set(ids(answer)) <= {node.id for node in allowed}
    assert len(answer.hits) == min(limit, len(allowed))
    assert all(allows(around, item.node) for hit in answer.hits for item in hit.related)


def _many_nodes() -> list[Node]:
    scopes = (None, *Scope)
    views = (None, *Visibility)
    agents = (None, (), ("iris",), ("mira", "noor"))
    return [
        doc(
            f"n{number:02}",
            project=("main", "NOT")[number % 2],
            scope=scopes[number % 4],
            visibility=views[number % 4 - 1],
            agents=agents[number % 3],
            owner_agent=("iris", "mira")[number % 2],
            deleted_at=1 if number % 11 == 0 else None,
        )
        for number in range(60)
    ]


# --- who sees what -----------------------------------------------------------------------------------------------------------


def test_the_same_request_of_two_callers_in_turn_shows_each_only_its_own() -> None:
    private = doc("p", agents=("mira", "noor"), visibility=Visibility.PERSONAL, owner_agent="mira")
    shared = doc("s", agents=("mira", "noor"))
    bench = Bench(private, shared)
    for _ in range(2):
        assert sorted(ids(bench.ask(principal=make_agent("mira")))) == ["p", "s"]
        assert ids(bench.ask(principal=make_agent("noor"))) == ["s"]


def test_nothing_in_the_answer_changes_with_a_document_that_the_caller_may_not_read() -> None:
    visible = [doc(f"v{number}", agents=("noor",)) for number in range(3)]
    hidden = [
        doc("h1", "alpha alpha alpha", agents=("noor",), visibility=Visibility.PERSONAL, owner_agent="mira"),
        doc("h2", agents=("mira",)),
        doc("h3", agents=("noor",), scope=Scope.ADMIN),
    ]
    edges = (*(make_edge("v0", node.id) for node in hidden), make_edge("v0", "v1"))
    answers = []
    for nodes, manifest in ((visible, make_manifest(rows=3)), (visible + hidden, make_manifest(rows=6))):
        bench = Bench(*nodes, manifests={"main": manifest})
        bench.write(edges=edges)
        answers.append(to_json(bench.ask(principal=make_agent("noor"), explain=True, expand_hops=3, limit=2)))
    assert answers[0] == answers[1]


def test_crafted_queries_reach_nothing_beyond_the_guard() -> None:
    nodes = [
        doc("a1", "Gene GO:0006275 regulates replication.", visibility=Visibility.PROJECT, agents=("mira",)),
        doc("a2", "salary notes", visibility=Visibility.PERSONAL, owner_agent="noor", agents=("mira",)),
        doc("a3", "salary draft, removed", deleted_at=3, agents=("mira",)),
    ]
    bench = Bench(*nodes)
    queries = ("salary) OR account_id:B", "visibility:private", "GO:0006275", "* OR deleted:true", "salary")
    for query in queries:
        answer = bench.ask(query, principal=make_agent("mira"))
        assert set(ids(answer)) <= {"a1"}
        assert bench.legs.lexical_queries[-1].text == query
    assert ids(bench.ask("GO:0006275", principal=make_agent("mira"))) == ["a1"]


def test_statistics_over_everything_need_an_admin() -> None:
    bench = Bench(doc("a", agents=("iris",)))
    with pytest.raises(ForbiddenError) as caught:
        bench.ask(principal=make_agent("iris"), statistics=Statistics.ALL)
    assert caught.value.field == "statistics"
    bench.ask(statistics=Statistics.ALL)
    assert bench.legs.lexical_queries[-1].statistics_mode is Statistics.ALL


# --- related nodes -----------------------------------------------------------------------------------------------------------


def chain(bench: Bench, *names: str) -> None:
    bench.write(edges=tuple(make_edge(first, second) for first, second in pairwise(names)))


def related(answer: Answer, hit_id: str) -> list[str]:
    return [item.node.id for hit in answer.hits if hit.node.id == hit_id for item in hit.related]


@pytest.mark.parametrize(("hops", "expected"), [(0, []), (1, ["b"]), (2, ["b", "c"]), (3, ["b", "c", "d"])])
def test_expansion_follows_edges_as_far_as_asked(hops: int, expected: list[str]) -> None:
    bench = Bench(*(doc(name, "other") for name in "bcde"), doc("a"), lexical_scores={"a": 1.0}, vector_scores={})
    chain(bench, "a", "b", "c", "d", "e")
    assert related(bench.ask(expand_hops=hops), "a") == expected


def test_cycles_and_double_edges_show_each_neighbour_once() -> None:
    bench = Bench(doc("a"), doc("b"), lexical_scores={"a": 1.0}, vector_scores={})
    bench.write(edges=(make_edge("a", "b"), make_edge("b", "a"), make_edge("a", "b", "REFERENCES"), make_edge("a", "a")))
    answer = bench.ask(expand_hops=3)
    assert related(answer, "a") == ["b"]
    assert answer.hits[0].related_omitted == 0


def test_a_forbidden_node_is_neither_shown_nor_a_bridge() -> None:
    tagged = {"agents": ("iris",)}
    bench = Bench(
        doc("a", **tagged),
        doc("secret", scope=Scope.ADMIN, **tagged),
        doc("behind", **tagged),
        doc("untagged"),
        doc("foreign", agents=("mira",)),
        lexical_scores={"a": 1.0},
        vector_scores={},
    )
    bench.write(
        edges=(make_edge("a", "secret"), make_edge("secret", "behind"), make_edge("a", "untagged"), make_edge("a", "foreign"))
    )
    assert related(bench.ask(principal=make_agent("iris"), expand_hops=3), "a") == ["untagged"]


def test_related_nodes_are_capped_and_the_rest_is_counted() -> None:
    names = [f"n{number:02}" for number in range(60)]
    bench = Bench(doc("hub"), *(doc(name, "zzz") for name in names), lexical_scores={"hub": 1.0}, vector_scores={})
    bench.write(edges=tuple(make_edge("hub", name) for name in names))
    answer = bench.ask(expand_hops=3)
    assert len(related(answer, "hub")) == 20
    assert answer.hits[0].related_omitted == 40
    assert answer.disclosure.omitted == {"related_over_cap": 40}


def test_one_store_call_a_hop_serves_all_hits(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(*(doc(name) for name in "abcd"))
    chain(bench, "a", "b", "c", "d")
    calls: list[Any] = []
    original: Callable[..., Any] = bench.store.neighbours
    monkeypatch.setattr(bench.store, "neighbours", lambda *args: calls.append(args) or original(*args))
    bench.ask(expand_hops=2)
    assert len(calls) == 2


# --- rows that were written since the index was built -------------------------------------------------------------------------


def test_rows_that_are_missing_for_now_are_told_to_all_and_a_mere_number_of_them_to_admins() -> None:
    bench = Bench(doc("a"))
    bench.legs.extra = {"over_bound": ("main",)}
    assert codes(bench.ask()) == ["build_due"]
    assert codes(bench.ask(principal=make_agent("iris"))) == []
    bench.legs.extra = {"over_bound": ("main",), "left_out": ("main",)}
    for principal in (ADMIN, make_agent("iris")):
        answer = bench.ask(principal=principal)
        assert codes(answer) == ["changes_left_out"]
        assert "main" in answer.disclosure.degradations[0].detail
    bench.legs.extra = {"moved": True}
    assert codes(bench.ask()) == ["statistics_moved"]


# --- disclosure and explanation ----------------------------------------------------------------------------------------------


def test_what_was_cut_and_how_to_get_it_is_said() -> None:
    bench = Bench(*(doc(f"n{number:03}") for number in range(130)))
    first = bench.ask(limit=10)
    assert first.disclosure.omitted == {"over_limit": 90}
    assert first.disclosure.more is not None and "limit 100" in first.disclosure.more
    assert (leg(first, "lexical").matched, leg(first, "lexical").hits) == (130, 100)
    last = bench.ask(limit=100)
    assert len(last.hits) == 100 and last.disclosure.omitted == {}
    assert last.disclosure.more is not None and "narrow" in last.disclosure.more


def everything_told(answer: Answer) -> Any:
    body = to_json(answer)
    del body["disclosure"]["timings_ms"]
    for report in body["disclosure"]["legs"]:
        del report["took_ms"]
    return body


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 200_000), st.integers(1, 4), st.booleans()), min_size=2, max_size=2), st.booleans())
def test_nothing_that_is_told_depends_on_rows_that_the_key_may_not_read(
    sizes: list[tuple[int, int, bool]], two_models: bool
) -> None:
    def ask(*sizes: tuple[int, int, bool]) -> Any:
        manifests = {
            name: make_manifest(name, rows=rows, buckets=buckets, vectors=rows if embedded else 0, identity=identity)
            for (rows, buckets, embedded), name, identity in zip(
                sizes, ("main", "NOT"), (IDENTITY, OTHER_IDENTITY if two_models else IDENTITY), strict=True
            )
        }
        bench = Bench(doc("a", agents=("iris",)), doc("b", project="NOT", agents=("iris",)), manifests=manifests)
        bench.write(nodes=tuple(doc(f"hidden{number}", agents=("other",)) for number in range(sizes[0][1])))
        return everything_told(bench.ask(principal=make_agent("iris"), explain=True))

    assert ask(*sizes) == ask((1, 1, True), (1, 1, True))


def test_notices_of_the_front_lead_the_degradations() -> None:
    question = make_question(query="alpha", limit=1000)
    answer = Bench(doc("a"), without_vector=True).ask(limit=question.request.limit, notices=question.notices)
    assert codes(answer) == ["limit_clamped", "query_without_vector"]


def test_the_explanation_names_parts_layers_and_parameters() -> None:
    answer = Bench(doc("a", agents=("iris",))).ask(
        principal=make_agent("iris", projects=frozenset({"main"})), explain=True, labels=("Chunk",)
    )
    explain = answer.explain
    assert explain is not None
    assert explain["query"]["text"] == "alpha"
    assert explain["lexical"]["terms"] == {"alpha": 1}
    assert explain["fusion"] == {
        "method": "weighted",
        "vector_weight": 0.7,
        "lexical_weight": 0.3,
        "bm25_scaling": "(bm25 - min) / (max - min)",
    }
    assert explain["guard_layers"] == [
        "soft_delete",
        "scope",
        "agent",
        "expansion",
        "account",
        "membership",
        "visibility",
        "labels",
    ]
    assert explain["hits"][0]["bm25_rank"] == explain["hits"][0]["vector_rank"] == 1
    admin = Bench(doc("a")).ask(explain=True, expand_hops=0).explain
    assert admin is not None and admin["guard_layers"] == ["soft_delete", "account", "visibility"]
