"""What comes back: hits, projects, failing legs, and what every front shares."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from cluster.errors import (
    AnalyzerError,
    EmbedderError,
    NotFoundError,
    OverloadedError,
    ShardError,
    UnavailableError,
    UnreadableIndexError,
)
from cluster.guards import search_guard
from cluster.model.query import Fusion, ProjectFailure, Statistics
from serve import retrieval
from serve.labels import MOST_LOOKED_FOR
from serve.render import to_json
from serve.retrieval import WINDOW
from tests.support.factories import make_agent, make_edge, make_principal
from tests.support.legs import IDENTITY, OTHER_IDENTITY, failure, make_manifest
from tests.support.retrieval import Bench, codes, doc, ids, leg

TWO = {"main": make_manifest(), "NOT": make_manifest("NOT")}

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


def test_a_hit_with_very_many_neighbours_is_expanded_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrieval, "INLINE_EDGES", 5)
    bench = Bench(doc("a"), *(doc(f"n{number}", "zzz") for number in range(6)))
    threads: list[threading.Thread] = []
    original = bench.store.neighbours

    def neighbours(*arguments: Any) -> Any:
        threads.append(threading.current_thread())
        return original(*arguments)

    monkeypatch.setattr(bench.store, "neighbours", neighbours)
    for count, inline in ((5, True), (6, False)):
        threads.clear()
        bench.write(edges=tuple(make_edge("a", f"n{number}") for number in range(count)))
        answer = bench.ask(limit=1, expand_hops=1)
        assert (ids(answer), len(answer.hits[0].related), codes(answer)) == (["a"], count, [])
        assert [thread is threading.main_thread() for thread in threads] == [inline]


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


def test_a_damaged_index_is_not_told_as_one_that_is_not_there_yet() -> None:
    bench = Bench(doc("a"), not_served={"hurt": "index_unreadable", "late": "shard_unavailable", "foreign": "index_unreadable"})
    bench.register("main", "hurt", "late", "waiting", "foreign")
    reader = make_principal(projects=frozenset({"main", "hurt", "late", "waiting"}))
    answer = bench.ask(principal=reader)
    assert ids(answer) == ["a"]
    assert codes(answer) == ["index_unreadable", "not_opened_yet", "not_indexed_yet"]
    hurt, late, waiting = (notice.detail for notice in answer.disclosure.degradations)
    assert "hurt" in hurt and "damaged" in hurt and "raycall generations verify" in hurt and "foreign" not in hurt
    assert late.endswith(": late") and waiting.endswith(": waiting")
    with pytest.raises(UnreadableIndexError, match=r"damaged .* hurt; 'raycall generations verify'"):
        bench.ask(principal=reader, projects=("hurt", "waiting"))


def test_a_project_that_is_served_though_its_pointer_is_damaged_now_answers_as_ever() -> None:
    bench = Bench(doc("a"), not_served={"main": "index_unreadable"})
    assert (ids(bench.ask()), codes(bench.ask())) == (["a"], [])


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


@pytest.mark.parametrize(
    ("lexical", "vector", "kind", "words"),
    [
        (
            UnreadableIndexError("verify and index again"),
            UnreadableIndexError("verify and index again"),
            "index_unreadable",
            "",
        ),
        (AnalyzerError("index again"), UnreadableIndexError("verify"), "index_unreadable", "index again; verify"),
        (AnalyzerError("index again"), AnalyzerError("index again"), "analyzer_mismatch", "index again"),
        (UnreadableIndexError("verify"), ShardError("down"), "shard_unavailable", "try again"),
    ],
)
def test_with_no_leg_left_for_what_is_on_the_disk_the_call_says_what_helps_and_not_to_try_again(
    lexical: Exception, vector: Exception, kind: str, words: str
) -> None:
    with pytest.raises(UnavailableError) as caught:
        Bench(doc("a"), errors={"lexical": lexical, "vector": vector}).ask()
    assert caught.value.code == kind and words in caught.value.detail
    if kind == "index_unreadable" and not words:
        assert caught.value.detail == "verify and index again"


def test_another_analyzer_is_told_by_its_own_code_whole_or_in_part() -> None:
    words = "the index was built with analyzer text-1, and this server has text-2: index the project again"
    answer = Bench(doc("a"), errors={"lexical": AnalyzerError(words)}).ask()
    assert codes(answer) == ["analyzer_mismatch"] and words in answer.disclosure.degradations[0].detail
    manifests = {"main": make_manifest(), "NOT": make_manifest("NOT")}
    part = failure("NOT", code="analyzer_mismatch", detail=words)
    answer = Bench(doc("a"), manifests=manifests, failures={"lexical": (part,)}).ask()
    assert leg(answer, "lexical").failed == (told("NOT", "analyzer_mismatch", words),)


# --- labels ------------------------------------------------------------------------------------------------------------------


def test_a_label_that_nothing_has_is_named_whatever_the_others_find() -> None:
    bench = Bench(doc("a", labels=("Chunk",)), doc("b", "gamma", labels=("Document",)))
    assert codes(bench.ask(labels=("Chunk", "Document"))) == [], "one label finds nothing for this question, and exists"
    answer = bench.ask(labels=("Chnk", "Chunk", "Doc"))
    assert ids(answer) == ["a"]
    (notice,) = answer.disclosure.degradations
    assert notice.code == "unknown_labels" and notice.detail.endswith("the label: 'Chnk', 'Doc'")
    assert codes(bench.ask(labels=("Chnk",))) == ["unknown_labels"]


def test_few_labels_of_a_request_are_looked_for() -> None:
    bench = Bench(doc("a", labels=("Chunk",)))
    answer = bench.ask(labels=("Chunk", *(f"No{number}" for number in range(20))))
    assert ids(answer) == ["a"]
    assert len(bench.legs.lexical_queries) == 1 + MOST_LOOKED_FOR
    (notice,) = answer.disclosure.degradations
    assert notice.detail.endswith("the label: 'No0', 'No1', 'No2', 'No3', 'No4' (15 more were not looked for)")


def test_a_label_that_only_others_may_read_is_told_like_one_that_is_not_there() -> None:
    bench = Bench(doc("a", agents=("iris",)), doc("b", labels=("Secret",), agents=("mira",)), manifests=TWO)
    secret, absent = (bench.ask(principal=make_agent("iris"), labels=(label,)) for label in ("Secret", "Absent"))
    assert [notice.detail.replace("Secret", "Absent") for notice in secret.disclosure.degradations] == [
        notice.detail for notice in absent.disclosure.degradations
    ]
    assert codes(secret) == ["unknown_labels"]
    assert codes(bench.ask(labels=("Secret",))) == []
    assert codes(bench.ask(labels=("Secret",), projects=("NOT",))) == ["unknown_labels"]


@pytest.mark.parametrize(
    "trouble",
    [
        {"failures": {"lexical": (failure("NOT"),)}},
        {"extra": {"left_out": ("main",)}},
        {"errors": {"lexical": ShardError("down")}},
        {"hanging": {"lexical"}},
    ],
    ids=["part", "left-out", "down", "late"],
)
def test_nothing_is_said_of_labels_that_could_not_be_looked_for(trouble: dict[str, Any]) -> None:
    answer = Bench(doc("a"), manifests=TWO, deadline_s=0.02, **trouble).ask(labels=("Chnk",))
    assert "unknown_labels" not in codes(answer)


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
