"""What decides on a new generation, on answers that are made up; and reading and writing recorded questions."""

from __future__ import annotations

import asyncio
import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.errors import UsageError
from cluster.model.access import Principal, Role
from cluster.model.nodes import Scope
from cluster.model.query import SearchRequest
from serve.gate import Bounds, Replayed, as_text, compare, ndcg, overlap
from serve.query_log import QueryLog, RecordedQuery, RecordingRetrieval, as_line, read_queries
from tests.support import factories
from tests.support.retrieval import Bench, doc

ACCOUNT = factories.ACCOUNT
NAMES = ("g1", "g2")


def asked(query: str = "pump", **judged: float) -> RecordedQuery:
    return RecordedQuery(request=SearchRequest(query=query), principal=factories.make_agent(), judged=judged)


def answer(*ids: str, ms: float = 5.0, error: str | None = None) -> Replayed:
    return Replayed(ids=ids, took_ms=ms, error=error)


@given(st.lists(st.integers(0, 20), unique=True), st.lists(st.integers(0, 20), unique=True))
def test_overlap_is_symmetric_and_1_for_the_same_answer_alone(left: list[int], right: list[int]) -> None:
    before, after = [str(n) for n in left], [str(n) for n in right]
    assert overlap(before, before) == 1.0
    assert overlap(before, after) == overlap(after, before)
    assert (overlap(before, after) == 1.0) == (set(before[:10]) == set(after[:10]))
    assert 0.0 <= overlap(before, after) <= 1.0


def test_ndcg_is_that_of_the_definition() -> None:
    grades = {"a": 3.0, "b": 2.0, "c": 1.0}
    best = 3 + 2 / math.log2(3) + 1 / 2
    assert ndcg(["a", "b", "c"], grades) == pytest.approx(1.0)
    assert ndcg(["x", "a"], grades) == pytest.approx(3 / math.log2(3) / best)
    assert ndcg([], grades) == ndcg(["a"], {}) == 0.0


def test_equal_answers_pass_and_nothing_is_shown_as_changed() -> None:
    report = compare([asked()] * 3, [answer("a", "b")] * 3, [answer("a", "b")] * 3, Bounds(), NAMES)
    assert (report.passed, report.overlap, report.changed, report.reasons) == (True, 1.0, (), ())


@pytest.mark.parametrize(
    ("after", "judged", "bounds", "words"),
    [
        (answer("a", "x"), {}, Bounds(), "overlap@10 is 0.500"),
        (answer("a", "b", ms=50), {}, Bounds(), "8.50 times as long"),
        (answer("b", "a"), {"a": 1.0}, Bounds(), "nDCG@10 of the judged questions is 0.631, at least 0.980"),
        (answer("a", "b"), {"x": 1.0}, Bounds(min_score=0.5), "at least 0.500"),
        (answer("a", "b"), {}, Bounds(min_score=0.5), "no question is judged"),
        (answer(error="shard_unavailable: down"), {}, Bounds(min_overlap=0.0), "not answered any more"),
    ],
)
def test_each_bound_fails_by_itself_and_says_so(after: Replayed, judged: dict[str, float], bounds: Bounds, words: str) -> None:
    report = compare([asked(**judged)], [answer("a", "b")], [after], bounds, NAMES)
    (reason,) = report.reasons
    assert not report.passed and words in reason
    assert f"failed: {reason}" in as_text(report)


def test_changed_answers_come_worst_first() -> None:
    queries = [asked(name) for name in ("same", "order", "half", "none", "error")]
    before = [answer("a", "b")] * 5
    after = [answer("a", "b"), answer("b", "a"), answer("a", "x"), answer("x", "y"), answer(error="e")]
    report = compare(queries, before, after, Bounds(), NAMES)
    assert [change.query for change in report.changed] == ["error", "none", "half", "order"]
    text = as_text(report)
    assert "gone: b\n        new: x" in text and "the same hits in another order" in text and "(agent iris)" in text
    assert json.loads(json.dumps(report.to_json()))["queries"] == 5


@given(factories.principals())
def test_a_recorded_question_is_read_as_it_was_asked(principal: Principal) -> None:
    request = SearchRequest(query="where?\nline", projects=("main",), labels=("Chunk",), limit=7, expand_hops=2)
    line = as_line(request, principal)
    assert "\n" not in line
    from serve.query_log import _parsed

    found = _parsed(json.loads(line), principal.account)
    assert found.request == request
    agent_without_scopes = principal.role is Role.AGENT and principal.scopes is None
    assert found.principal == principal or agent_without_scopes


def test_a_hand_written_question_needs_little(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text('{"query": "a\u2028b"}\n\n{"query": "b", "principal": {"agent": "iris"}, "judged": ["n1"]}\n', "utf-8")
    first, second = read_queries(path, ACCOUNT)
    assert first.principal == Principal(account=ACCOUNT, key_id="replayed", role=Role.ADMIN)
    assert (second.principal.role, second.principal.agent) == (Role.AGENT, "iris")
    assert second.principal.scopes == {Scope.PUBLIC, Scope.SHARED}
    assert second.judged == {"n1": 1.0}


@pytest.mark.parametrize(
    "line",
    [
        *(
            "{",
            "[]",
            "5",
            "{}",
            '{"query": ""}',
            '{"query": 5}',
            '{"query": "a", "limit": "5"}',
            '{"query": "a", "key": "rk_1"}',
        ),
        *(
            '{"query": "a", "principal": 5}',
            '{"query": "a", "principal": {"name": "x"}}',
            '{"query": "a", "judged": {"a": -1}}',
        ),
        *(
            '{"query": "a", "principal": {"scopes": ["all"]}}',
            '{"query": "a", "judged": "n1"}',
            '{"query": "a", "projects": [1]}',
        ),
    ],
)
def test_a_line_that_is_wrong_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text('{"query": "fine"}\n' + line + "\n")
    with pytest.raises(UsageError, match="line 2"):
        read_queries(path, ACCOUNT)


def test_a_file_that_is_not_there_is_wrong_usage(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No such file"):
        read_queries(tmp_path / "none", ACCOUNT)


def test_a_server_records_what_is_asked_without_keys_and_answers_whatever_becomes_of_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(doc("n1"))
    parts = {"account": ACCOUNT, "store": bench.store, "legs": bench.legs, "clock": bench.retrieval._clock}
    path = tmp_path / "q.jsonl"
    recording = RecordingRetrieval(log=QueryLog(path), **parts)
    principal = factories.make_principal()
    assert asyncio.run(recording.search(SearchRequest(query="alpha"), principal)).hits
    assert path.stat().st_mode & 0o777 == 0o600
    (recorded,) = read_queries(path, ACCOUNT)
    assert (recorded.request.query, recorded.principal) == ("alpha", principal)
    assert "rk_" not in path.read_text()
    unwritable = RecordingRetrieval(log=QueryLog(tmp_path / "no folder" / "q"), **parts)
    for _ in range(3):
        assert asyncio.run(unwritable.search(SearchRequest(query="alpha"), principal)).hits
    assert [getattr(record, "action", "") for record in caplog.records].count("query_log_stopped") == 1
