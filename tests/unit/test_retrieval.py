"""The use case on a store in memory and legs without shards."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.errors import (
    EmbedderError,
    ForbiddenError,
    NotFoundError,
    OverloadedError,
    ShardError,
    UnavailableError,
    UsageError,
)
from cluster.graph.memory import MemoryGraphStore
from cluster.guards import allows, expansion_guard, search_guard
from cluster.model.access import Principal
from cluster.model.nodes import Node, Scope, Visibility
from cluster.model.query import Answer, Degradation, Fusion, ProjectFailure, SearchRequest, Statistics
from cluster.ports import Project, WriteBatch
from serve.question import make_question
from serve.render import to_json
from serve.retrieval import WINDOW, Retrieval
from tests.support.clock import ManualClock
from tests.support.factories import ACCOUNT, make_agent, make_edge, make_node, make_principal, principals
from tests.support.legs import IDENTITY, OTHER_IDENTITY, FakeLegs, failure, make_manifest

ADMIN = make_principal()


def doc(node_id: str, content: str = "alpha beta", **changes: Any) -> Node:
    return make_node(node_id, text={"content": content, "title": f"title {node_id}"}, **changes)


class Bench:
    """A store, legs and the use case over both."""

    def __init__(self, *nodes: Node, deadline_s: float = 2.0, **legs: Any) -> None:
        self.store = MemoryGraphStore(account=ACCOUNT)
        self.write(nodes=nodes)
        self.legs = FakeLegs(self.store, **legs)
        self.retrieval = Retrieval(
            account=ACCOUNT,
            store=self.store,
            legs=self.legs,
            clock=ManualClock(),
            deadline_s=deadline_s,
            new_id=lambda: "q1",
        )

    def write(self, **batch: Any) -> None:
        self.store.write(WriteBatch(**batch))

    def register(self, *names: str) -> None:
        projects = [Project(account=ACCOUNT, project=name, root="", commit=None, indexed_at=0) for name in names]
        self.write(projects=tuple(projects))

    def ask(self, query: str = "alpha", principal: Principal = ADMIN, **request: Any) -> Answer:
        notices: tuple[Degradation, ...] = request.pop("notices", ())
        return asyncio.run(self.retrieval.search(SearchRequest(query=query, **request), principal, notices=notices))


def ids(answer: Answer) -> list[str]:
    return [hit.node.id for hit in answer.hits]


def codes(answer: Answer) -> list[str]:
    return [degradation.code for degradation in answer.disclosure.degradations]


def leg(answer: Answer, name: str) -> Any:
    return next(report for report in answer.disclosure.legs if report.leg == name)


# --- the plain way through ---------------------------------------------------------------------------------------------------


def test_hits_come_fused_hydrated_and_with_a_snippet() -> None:
    bench = Bench(doc("a", "alpha alpha"), doc("b", "alpha"), doc("c", "zzz"))
    answer = bench.ask()
    assert ids(answer) == ["a", "b", "c"]
    assert answer.hits[0].snippet.matches == ((0, 5), (6, 11))
    assert answer.query_id == "q1"
    disclosure = answer.disclosure
    assert (disclosure.candidates, disclosure.returned, disclosure.omitted, disclosure.more) == (3, 3, {}, None)
    assert disclosure.generations == {"main": "g-main"}
    assert [(report.leg, report.ran, report.hits) for report in disclosure.legs] == [("lexical", True, 2), ("vector", True, 3)]
    assert leg(answer, "vector").identity == IDENTITY.key
    assert {"plan", "embed", "lexical", "vector", "fuse", "hydrate", "expand", "snippets", "total"} <= set(
        disclosure.timings_ms
    )
    assert answer.explain is None and codes(answer) == []


def test_both_legs_get_the_same_guard_and_the_whole_window() -> None:
    bench = Bench(doc("a"))
    agent = make_agent("iris", projects=frozenset({"main"}))
    bench.ask(principal=agent, labels=("Chunk",), limit=1)
    lexical, vector = bench.legs.lexical_queries[0], bench.legs.vector_queries[0]
    assert lexical.guard == vector.guard == search_guard(agent, ["main"], ["Chunk"])
    assert lexical.k == vector.k == WINDOW
    assert lexical.pins == vector.pins == {"main": "g-main"}
    assert lexical.statistics_mode is Statistics.VISIBLE


@pytest.mark.parametrize("method", list(Fusion))
def test_a_larger_limit_only_makes_the_list_longer(method: Fusion) -> None:
    nodes = [doc(f"n{number:02}", "alpha " * (number % 7) + "xyz"[number % 3]) for number in range(30)]
    bench = Bench(*nodes)
    whole = ids(bench.ask(limit=30, fusion=method))
    assert len(set(whole)) == 30
    for limit in (3, 6, 29):
        assert ids(bench.ask(limit=limit, fusion=method)) == whole[:limit]


def test_equal_documents_come_in_the_order_of_their_ids_each_time() -> None:
    nodes = [doc(f"n{number:02}", "release note item") for number in range(25)]
    bench = Bench(*reversed([replace(node, text={"content": "release note item"}) for node in nodes]))
    assert all(ids(bench.ask("release note", limit=25)) == [node.id for node in nodes] for _ in range(3))


# --- projects ----------------------------------------------------------------------------------------------------------------


def test_a_foreign_and_an_unknown_project_are_refused_alike() -> None:
    bench = Bench(manifests={"main": make_manifest(), "secret": make_manifest("secret")})
    bench.register("other")
    member = make_principal(projects=frozenset({"main"}))
    errors = []
    for name in ("secret", "other", "absent", "", "a b", "x" * 10_000):
        with pytest.raises(NotFoundError) as caught:
            bench.ask(principal=member, projects=("main", name))
        errors.append((caught.value.detail.replace(repr(name[:100]), "NAME"), caught.value.field))
        assert len(caught.value.detail) < 300
    assert len(set(errors)) == 1
    assert bench.legs.lexical_queries == []


def test_only_what_is_asked_for_is_searched() -> None:
    manifests = {name: make_manifest(name) for name in ("main", "ap-erp", "NOT")}
    bench = Bench(doc("a"), doc("b", project="ap-erp"), doc("c", project="NOT"), manifests=manifests)
    assert sorted(ids(bench.ask())) == ["a", "b", "c"]
    assert ids(bench.ask(projects=("NOT",))) == ["c"]
    assert sorted(ids(bench.ask(principal=make_principal(projects=frozenset({"main", "NOT"}))))) == ["a", "c"]
    assert bench.legs.lexical_queries[-1].pins == {"NOT": "g-NOT", "main": "g-main"}


def test_a_project_without_a_generation_is_disclosed() -> None:
    bench = Bench(doc("a"))
    bench.register("main", "waiting", "foreign")
    answer = bench.ask(principal=make_principal(projects=frozenset({"main", "waiting"})))
    assert ids(answer) == ["a"]
    notice = answer.disclosure.degradations[0]
    assert notice.code == "not_indexed_yet" and "waiting" in notice.detail and "foreign" not in notice.detail
    alone = bench.ask(projects=("waiting",))
    assert (ids(alone), codes(alone)) == ([], ["not_indexed_yet"])
    assert [report.ran for report in alone.disclosure.legs] == [False, False]


def test_an_account_without_projects_answers_with_nothing_and_says_so() -> None:
    answer = Bench(manifests={}).ask()
    assert (ids(answer), codes(answer)) == ([], ["no_projects"])


def test_the_identity_of_most_projects_serves_and_the_other_is_disclosed() -> None:
    manifests = {
        "main": make_manifest("main", rows=5_000),
        "ap-erp": make_manifest("ap-erp", rows=30, identity=OTHER_IDENTITY),
        "NOT": make_manifest("NOT", rows=30, identity=OTHER_IDENTITY),
    }
    bench = Bench(doc("a"), doc("b", project="ap-erp"), manifests=manifests)
    answer = bench.ask()
    assert bench.legs.vector_queries[0].identity == OTHER_IDENTITY
    assert bench.legs.vector_queries[0].pins == {"ap-erp": "g-ap-erp", "NOT": "g-NOT"}
    assert bench.legs.lexical_queries[0].pins.keys() == manifests.keys()
    assert leg(answer, "vector").identity == OTHER_IDENTITY.key
    notice = answer.disclosure.degradations[0]
    assert notice.code == "identity_mismatch" and "main" in notice.detail
    assert sorted(ids(answer)) == ["a", "b"]


def test_without_any_vector_the_words_serve_alone_at_full_weight() -> None:
    answer = Bench(doc("a"), manifests={"main": make_manifest(vectors=0)}, vector_scores={}).ask()
    assert codes(answer) == ["no_vectors"]
    assert [hit.score.fused for hit in answer.hits] == [1.0]


# --- failing legs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault",
    [EmbedderError("connection refused"), EmbedderError("HTTP 500"), EmbedderError("HTTP 401"), RuntimeError("boom")],
    ids=lambda fault: str(fault),
)
def test_without_the_embedder_the_words_keep_their_full_weight(fault: Exception, caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench(doc("a", "alpha alpha"), doc("b", "alpha"), errors={"embed": fault})
    answer = bench.ask()
    assert [(hit.node.id, hit.score.fused) for hit in answer.hits] == [("a", 1.0), ("b", 0.0)]
    assert codes(answer) == ["embedder_unavailable"]
    assert "boom" not in str(to_json(answer))
    assert not leg(answer, "vector").ran and leg(answer, "lexical").ran
    assert len([record for record in caplog.records if getattr(record, "action", "") == "leg_unavailable"]) == 1
    bench.legs.errors.clear()
    assert codes(bench.ask()) == []


@pytest.mark.parametrize(
    ("hanging", "code"),
    [("embed", "embedder_unavailable"), ("vector", "vector_leg_unavailable"), ("lexical", "lexical_leg_unavailable")],
)
def test_a_leg_that_never_answers_is_left_at_the_deadline(hanging: str, code: str) -> None:
    answer = Bench(doc("a"), doc("b", "alpha alpha"), hanging={hanging}, deadline_s=0.02).ask()
    assert len(answer.hits) == 2
    assert codes(answer) == [code]
    assert "in time" in answer.disclosure.degradations[0].detail


@pytest.mark.parametrize("lost", ["lexical", "vector"])
@pytest.mark.parametrize("fault", [ShardError("the shard is restarting"), ValueError("a fault of ours")])
def test_one_leg_down_lowers_the_answer_and_says_so(lost: str, fault: Exception) -> None:
    bench = Bench(doc("a", "alpha alpha"), doc("b", "alpha"), errors={lost: fault})
    answer = bench.ask()
    assert codes(answer) == [f"{lost}_leg_unavailable"]
    assert not leg(answer, lost).ran
    for hit in answer.hits:
        assert hit.score.fused == (hit.score.vector if lost == "lexical" else hit.score.bm25_scaled)


def test_with_no_leg_left_the_call_fails_as_unavailable() -> None:
    down = {"lexical": ShardError("down"), "vector": ShardError("down")}
    with pytest.raises(ShardError):
        Bench(doc("a"), errors=down).ask()
    with pytest.raises(ShardError):
        Bench(doc("a"), errors={"lexical": ShardError("down"), "embed": EmbedderError("down")}).ask()
    with pytest.raises(ShardError):
        Bench(doc("a"), errors={"lexical": ShardError("down")}, without_vector=True).ask()
    full = {"lexical": OverloadedError("full"), "vector": OverloadedError("full")}
    with pytest.raises(OverloadedError):
        Bench(doc("a"), errors=full).ask()


def told(project: str, code: str = "shard_unavailable", detail: str = "the shard is restarting") -> ProjectFailure:
    return ProjectFailure(project=project, generation=f"g-{project}", code=code, detail=detail)


def test_partitions_that_fail_are_told_by_project_and_never_in_words_that_count_rows() -> None:
    damaged = failure("NOT", bucket="b0001", code="corrupt_index", detail="vectors.faiss has row 7, the bucket has 5 rows")
    manifests = {"main": make_manifest(buckets=3), "NOT": make_manifest("NOT", buckets=2)}
    failures = {"vector": (failure(), failure(bucket="b0001"), damaged)}
    answer = Bench(doc("a"), manifests=manifests, failures=failures).ask()
    report = leg(answer, "vector")
    assert (report.ran, report.asked, report.answered) == (True, 2, 0)
    assert [(one.project, one.code) for one in report.failed] == [("NOT", "corrupt_index"), ("main", "shard_unavailable")]
    assert "row 7" not in str(to_json(answer)) and "b0001" not in str(to_json(answer))


def test_a_failed_partition_is_named_and_the_rest_answers() -> None:
    manifests = {"main": make_manifest(), "NOT": make_manifest("NOT")}
    answer = Bench(doc("a"), manifests=manifests, failures={"lexical": (failure("NOT"),)}).ask()
    assert codes(answer) == ["partition_failed"]
    report = leg(answer, "lexical")
    assert (report.ran, report.asked, report.answered, report.failed) == (True, 2, 1, (told("NOT"),))


def test_a_leg_without_a_living_partition_counts_as_missing() -> None:
    answer = Bench(doc("a"), failures={"vector": (failure(),)}).ask()
    assert codes(answer) == ["vector_leg_unavailable"]
    assert answer.hits[0].score.fused == 1.0
    assert leg(answer, "vector").failed == (told("main"),)


def test_a_query_without_a_vector_is_answered_by_its_words() -> None:
    answer = Bench(doc("a"), without_vector=True).ask()
    assert (ids(answer), codes(answer)) == (["a"], ["query_without_vector"])
    assert answer.hits[0].score.fused == 1.0


@pytest.mark.parametrize("query", ["alpha " * 30, "検索" * 30, "alpha" * 60], ids=["words", "unspaced", "one-word"])
def test_a_query_longer_than_the_model_reads_is_stated(query: str) -> None:
    answer = Bench(doc("a"), query_tokens=32).ask(query)
    assert "query_cut_for_vectors" in codes(answer)
    assert any("32 tokens" in notice.detail for notice in answer.disclosure.degradations)
    assert "query_cut_for_vectors" not in codes(Bench(doc("a"), query_tokens=1000).ask(query))
    assert "query_cut_for_vectors" not in codes(Bench(doc("a"), query_tokens=None).ask(query))


def test_a_cut_is_not_stated_where_no_vector_was_compared() -> None:
    gone = Bench(doc("a"), query_tokens=2, errors={"embed": EmbedderError("down")}).ask("alpha " * 30)
    assert codes(gone) == ["embedder_unavailable"]
    empty = Bench(doc("a"), query_tokens=2, vector_scores={}).ask("alpha " * 30)
    assert codes(empty) == ["no_vectors"]


@pytest.mark.parametrize("query", ["!", "*", "~", "--", "&& ||", "?"])
def test_a_query_of_signs_alone_is_answered_by_the_vector_leg(query: str) -> None:
    answer = Bench(doc("a")).ask(query)
    assert codes(answer) == ["no_terms"]
    assert leg(answer, "lexical").ran and leg(answer, "lexical").hits == 0
    assert leg(answer, "vector").ran


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_score_that_is_no_number_never_leaves(bad: float) -> None:
    scripts = {"lexical_scores": {"a": 2.0, "b": bad}, "vector_scores": {"a": bad, "b": 0.4}}
    answer = Bench(doc("a"), doc("b"), **scripts).ask(explain=True)
    assert ids(answer) == ["a", "b"]
    assert [hit.score.vector for hit in answer.hits] == [None, 0.4]
    assert not any(math.isinf(value) or math.isnan(value) for value in _numbers(to_json(answer)))


def _numbers(value: Any) -> Iterator[float]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _numbers(item)
    elif isinstance(value, float):
        yield value


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


# --- the bounds that every front shares --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "query", ["", " ", "\t\n", "\u00a0", "\u200b", "\u3000", None, "\0", "\ufeff\u2060", "\u3164", "\u00ad\ufe0f"]
)
def test_a_blank_query_is_refused_in_the_same_words(query: str | None) -> None:
    with pytest.raises(UsageError) as caught:
        make_question(query=query)
    assert (caught.value.field, caught.value.detail) == ("query", "query must hold at least one visible character")


@pytest.mark.parametrize("query", ["!", "a", "\u200ba", "检", "🚀", "ok \ufffd tail"])
def test_a_query_with_anything_to_see_is_kept(query: str) -> None:
    assert make_question(query=query).request.query == query


def test_nul_goes_and_half_a_pair_is_replaced() -> None:
    assert make_question(query="a\0b \ud83d c 🚀").request.query == "ab \ufffd c 🚀"


@pytest.mark.parametrize(
    ("asked", "used", "noticed"),
    [(None, 10, False), (1, 1, False), (100, 100, False), (0, 1, True), (-1, 1, True), (101, 100, True), (2**63, 100, True)],
)
def test_an_integer_limit_outside_is_clamped_with_a_notice(asked: int | None, used: int, noticed: bool) -> None:
    question = make_question(query="x", limit=asked)
    assert question.request.limit == used
    assert [notice.code for notice in question.notices] == (["limit_clamped"] if noticed else [])


@pytest.mark.parametrize(("asked", "used"), [(None, 1), (0, 0), (3, 3), (4, 3), (-1, 0), (10**400, 3)])
def test_hops_are_clamped_too(asked: int | None, used: int) -> None:
    question = make_question(query="x", expand_hops=asked)
    assert question.request.expand_hops == used
    assert all(len(notice.detail) < 200 for notice in question.notices)


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"projects": []}, "projects"),
        ({"projects": ["p"] * 101}, "projects"),
        ({"labels": [""]}, "labels"),
        ({"labels": ["x" * 201]}, "labels"),
        ({"fusion": "sum"}, "fusion"),
        ({"statistics": "none"}, "statistics"),
    ],
)
def test_values_that_are_not_usable_name_their_field(values: dict[str, Any], field: str) -> None:
    with pytest.raises(UsageError) as caught:
        make_question(query="x", **values)
    assert caught.value.field == field
