"""The HTTP front as a client sees it: routes, keys, answers, problems, OpenAPI. No socket."""

from __future__ import annotations

import json
import logging
import math
from pathlib import Path
from typing import Any

import httpx
import pytest

from cluster.errors import AnalyzerError, CorruptIndexError, OverloadedError, ShardError, UnreadableIndexError
from cluster.model.access import Principal
from cluster.model.nodes import Source
from serve.http.app import OPEN_PATHS
from serve.http.description import ANSWER_EXAMPLE
from serve.http.routes import prefers_text
from serve.http.schemas import Problem, SearchAnswer
from tests.support.factories import make_node
from tests.support.http import Front, make_front
from tests.support.legs import make_manifest

IDENTITY_FIELDS = """
account account_id accountId agent agent_slug agents scope scopes allowed_scopes allowedScopes reader principal role tenant team
user owner_agent API-Key
"""
BLANK = ["", " ", "\t\n", "\u00a0", "\u200b", "\u3000", None]


@pytest.fixture
def front() -> Front:
    return make_front(
        make_node("a", text={"title": "A", "content": "alpha tail"}),
        make_node("b", text={"title": "B", "content": "beta tail"}, agents=("iris",)),
    )


def problem(response: httpx.Response, status: int, field: str | None = None) -> dict[str, Any]:
    """Checks the form of a failure and returns it."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = json.loads(response.text, parse_constant=lambda name: pytest.fail(f"{name} in a reply"))
    Problem.model_validate(body, strict=True)
    assert body["status"] == status and body["type"] == f"urn:raycall:error:{body['code']}"
    assert body.get("field") == field, body
    assert "Traceback" not in response.text and str(Path.cwd()) not in response.text and ".py" not in response.text
    return body


# --- routes and keys ---------------------------------------------------------------------------------------------------------


def test_every_route_but_the_open_ones_needs_a_key(front: Front) -> None:
    asked = 0
    for route in front.app.routes:
        for method in getattr(route, "methods", None) or ["GET"]:
            path = route.path  # type: ignore[attr-defined]
            response = front.call(method, path.replace("{id}", "a"), key=None)
            if path in OPEN_PATHS:
                assert response.status_code == 200
            else:
                body = problem(response, 401) if method != "HEAD" else {"query_id": response.headers["x-raycall-query-id"]}
                assert response.status_code == 401
                assert response.headers["www-authenticate"] == 'Bearer realm="raycall"'
                assert body["query_id"] == response.headers["x-raycall-query-id"]
                asked += 1
    assert asked == 10


@pytest.mark.parametrize("path", ["/v1/search", "/v1/noop"])
def test_a_wrong_key_is_refused_before_the_body_is_read(front: Front, path: str) -> None:
    response = front.call("POST", path, key="rk_" + "x" * 43, content=b"{", headers={"content-type": "text/csv"})
    problem(response, 401)
    assert front.legs.lexical_queries == []


def test_a_revoked_key_is_out(front: Front) -> None:
    key_id = front.call("GET", "/v1/status").json()["key"]
    front.keys.revoke(key_id)
    problem(front.call("GET", "/v1/status"), 401)


def test_health_says_ok_and_nothing_else(front: Front) -> None:
    response = front.call("GET", "/healthz", key=None)
    assert (response.status_code, response.json()) == (200, {"ok": True})


def test_noop_answers(front: Front) -> None:
    response = front.call("POST", "/v1/noop")
    assert (response.status_code, response.json()) == (200, {"ok": True})


def test_status_may_be_a_coroutine_function() -> None:
    async def status(principal: Principal) -> dict[str, Any]:
        return {"role": principal.role, "rate": math.nan}

    assert make_front(status=status).call("GET", "/v1/status").json() == {"role": "admin", "rate": None}


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/search/", "/v2/search", "/v1/%00", "/../etc/passwd"])
def test_an_unknown_address_is_a_problem(front: Front, path: str) -> None:
    assert problem(front.call("GET", path), 404)["code"] == "no_such_route"


@pytest.mark.parametrize("path", ["/healthz", "/v1/status", "/openapi.json", "/docs"])
def test_head_is_answered_wherever_get_is_with_the_same_headers(front: Front, path: str) -> None:
    head, get = front.call("HEAD", path), front.call("GET", path)
    assert (head.status_code, get.status_code) == (200, 200)
    assert head.headers["content-type"] == get.headers["content-type"]
    assert "head" not in front.call("GET", "/openapi.json").json()["paths"].get(path, {})


def test_another_method_is_a_problem_that_names_the_right_one(front: Front) -> None:
    response = front.call("GET", "/v1/search")
    assert problem(response, 405)["code"] == "method_not_allowed"
    assert response.headers["allow"] == "POST"


# --- answers -----------------------------------------------------------------------------------------------------------------


def test_a_search_answers_as_the_schema_says(front: Front) -> None:
    response = front.search({"query": "alpha", "explain": True})
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    SearchAnswer.model_validate(body, strict=True)
    assert [hit["id"] for hit in body["hits"]] == ["a", "b"]
    assert body["query_id"] == response.headers["x-raycall-query-id"]
    assert body["explain"]["lexical"]["terms"] == {"alpha": 1}


def test_null_is_the_default_of_every_field(front: Front) -> None:
    names = ("projects", "limit", "labels", "fusion", "expand_hops", "explain", "statistics")
    spelled = front.search({"query": "alpha", **dict.fromkeys(names)}).json()
    plain = front.search({"query": "alpha"}).json()
    assert spelled["hits"] == plain["hits"] and spelled["explain"] is None


def test_each_caller_gets_only_what_its_key_may_read(front: Front) -> None:
    for _ in range(2):
        assert [hit["id"] for hit in front.search({"query": "tail"}).json()["hits"]] == ["a", "b"]
        assert [hit["id"] for hit in front.search({"query": "tail"}, key=front.agent).json()["hits"]] == ["b"]


def test_text_is_given_to_who_prefers_it(front: Front) -> None:
    response = front.search({"query": "alpha"}, headers={"accept": "text/plain"})
    assert response.headers["content-type"] == "text/plain; charset=utf-8"
    assert response.headers["vary"] == "accept"
    assert response.text.startswith("[Chunk] (id: a) (score: ")
    assert f"query {response.headers['x-raycall-query-id']}" in response.text


@pytest.mark.parametrize(
    ("accept", "text"),
    [
        ("", False),
        ("*/*", False),
        ("application/json", False),
        ("application/json, text/plain, */*", False),
        ("text/plain", True),
        ("Text/Plain", True),
        ("text/plain, */*", True),
        ("text/*", True),
        ("text/html", False),
        ("text/plain;q=0.5, application/json", False),
        ("text/plain, application/json;q=0.9", True),
        ("text/plain;q=0", False),
        ("text/plain;q=no", False),
        (",;,text/;q", False),
    ],
)
def test_the_accept_header_is_weighed(accept: str, text: bool) -> None:
    assert prefers_text(accept) is text


def test_a_path_that_is_no_text_does_not_break_the_answer() -> None:
    source = Source(repository="r", path="odd\udcff.txt", start_line=1)
    front = make_front(make_node("a", text={"content": "alpha"}))
    node = make_node("a", text={"content": "alpha", "path": source.path}, source=source)
    front.store.get_nodes = lambda ids, guard=None: dict.fromkeys(ids, node)  # type: ignore[method-assign]
    assert front.search({"query": "alpha"}).json()["hits"][0]["path"] == "odd\ufffd.txt"
    assert "path: odd\\udcff.txt" in front.search({"query": "alpha"}, headers={"accept": "text/plain"}).text


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_bad_score_of_a_leg_never_leaves(bad: float) -> None:
    front = make_front(make_node("a"), make_node("b"), lexical_scores={"a": 1.0, "b": bad}, vector_scores={"a": bad, "b": 0.25})
    response = front.search({"query": "alpha", "explain": True})
    body = json.loads(response.text, parse_constant=lambda name: pytest.fail(f"{name} in a reply"))
    assert [(hit["id"], hit["scores"]["vector"], hit["scores"]["bm25"]) for hit in body["hits"]] == [
        ("a", None, 1.0),
        ("b", 0.25, None),
    ]


# --- what a body may hold ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [*({"query": query} for query in BLANK), {}, {"query": "\u0000"}, {"query": "\ufeff\u2060"}])
def test_every_blank_query_gets_the_same_refusal(front: Front, body: dict[str, Any]) -> None:
    found = problem(front.search(body), 422, "query")
    assert found["detail"] == "query is required, and must hold at least one visible character"
    assert front.legs.embedded == [] and front.legs.lexical_queries == []


@pytest.mark.parametrize("limit", [0, -1, -5, 101, 10**9, 2**63, -(10**30)])
@pytest.mark.parametrize("name", ["limit", "expand_hops"])
def test_an_integer_outside_is_clamped_and_said(front: Front, name: str, limit: int) -> None:
    if name == "expand_hops" and limit == 0:
        limit = 4
    response = front.search({"query": "tail", name: limit})
    assert response.status_code == 200
    assert [item["code"] for item in response.json()["disclosure"]["degradations"]] == [f"{name}_clamped"]


@pytest.mark.parametrize(
    "raw", ['"10"', '"ten"', "1.5", "10.0", "true", "1e999", "-1e999", "NaN", "Infinity", "-Infinity", "[]", "{}"]
)
@pytest.mark.parametrize(("name", "span"), [("limit", "1 to 100"), ("expand_hops", "0 to 3")])
def test_what_is_no_integer_is_refused_with_field_and_range(front: Front, name: str, span: str, raw: str) -> None:
    found = problem(front.search(f'{{"query": "x", "{name}": {raw}}}'.encode()), 422, name)
    assert f"{name} must be an integer from {span}" in found["detail"]


def test_a_number_of_a_hundred_thousand_digits_is_answered(front: Front) -> None:
    problem(front.search(b'{"query": "x", "limit": ' + b"9" * 100_000 + b"}"), 422, "limit")
    assert front.search(b'{"query": "x", "limit": ' + b"9" * 300 + b"}").status_code == 200


@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("query", "1"),
        ("query", "NaN"),
        ("query", '["x"]'),
        ("projects", '"main"'),
        ("projects", "[1]"),
        ("projects", "[NaN]"),
        ("projects", "[null]"),
        ("projects", "[]"),
        ("labels", '[""]'),
        ("labels", "{}"),
        ("fusion", '"sum"'),
        ("fusion", "1"),
        ("explain", "1"),
        ("explain", '"true"'),
        ("statistics", '"none"'),
    ],
)
def test_a_wrong_type_names_its_field(front: Front, name: str, raw: str) -> None:
    query = "" if name == "query" else '"query": "x", '
    problem(front.search(f'{{{query}"{name}": {raw}}}'.encode()), 422, name)


def test_the_cap_gives_exactly_the_cap_and_one_over_it_says_so() -> None:
    nodes = [make_node(f"n{number:03}", text={"content": "alpha"}) for number in range(120)]
    front = make_front(*nodes)
    at_cap = front.search({"query": "alpha", "limit": 100}).json()
    assert len(at_cap["hits"]) == 100 and at_cap["disclosure"]["degradations"] == []
    over = front.search({"query": "alpha", "limit": 101}).json()
    assert len(over["hits"]) == 100
    assert over["disclosure"]["degradations"] == [
        {"code": "limit_clamped", "detail": "limit must be from 1 to 100: 100 was used instead of 101"}
    ]


@pytest.mark.parametrize("name", IDENTITY_FIELDS.split())
def test_a_body_or_address_that_says_who_is_asking_is_refused(front: Front, name: str) -> None:
    found = problem(front.search({"query": "x", name: "mira"}), 422, name)
    assert "comes from the API key alone" in found["detail"]
    response = front.call("POST", f"/v1/search?{name}=mira", json={"query": "x"})
    assert "comes from the API key alone" in problem(response, 422, name)["detail"]
    assert front.legs.lexical_queries == []


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("limits", "did you mean 'limit'?"),
        ("Query", "did you mean 'query'?"),
        ("expandHops", "did you mean 'expand_hops'?"),
        ("min_score", "known fields: query, projects"),
        ("\ud83d", "known fields"),
    ],
)
def test_an_unknown_field_is_refused_with_the_nearest_known_one(front: Front, name: str, hint: str) -> None:
    body = json.dumps({"query": "x", name: float("nan")}).encode()
    found = problem(front.search(body), 422, name.replace("\ud83d", "\ufffd"))
    assert hint in found["detail"]


def test_other_parameters_in_the_address_are_refused(front: Front) -> None:
    problem(front.call("POST", "/v1/search?limit=5", json={"query": "x"}), 422)


def test_half_an_emoji_in_a_query_is_replaced_and_whole_ones_stay(front: Front) -> None:
    response = front.search(b'{"query": "ok \\ud83d tail \\ud83d\\ude80"}')
    assert [hit["id"] for hit in response.json()["hits"]] == ["a", "b"]
    assert front.legs.lexical_queries[0].text == front.legs.embedded[0] == "ok \ufffd tail 🚀"


def test_nul_parts_the_words_of_a_query_and_makes_no_name_of_another(front: Front) -> None:
    assert front.search({"query": "al\0pha"}).status_code == 200
    assert front.legs.lexical_queries[0].text == front.legs.embedded[0] == "al pha"
    for field, name in (("projects", "main\0"), ("labels", "Chunk\0")):
        problem(front.search({"query": "x", field: [name]}), 422, field)


@pytest.mark.parametrize("query", ["!", "*", "~", "--", "&& ||", "AND", "NOT", "OR OR", "?", "^2", "C++", "a && !b", "foo AND"])
def test_operators_are_plain_text(front: Front, query: str) -> None:
    assert front.search({"query": query}).status_code == 200
    assert front.legs.lexical_queries[0].text == query


def test_a_query_of_100_kb_is_answered(front: Front) -> None:
    assert front.search({"query": "alpha " * 17_000}).status_code == 200


def test_unknown_and_foreign_projects_are_the_same_404() -> None:
    manifests = {"main": make_manifest(), "secret": make_manifest("secret")}
    front = make_front(manifests=manifests)
    member = front.keys.create(name="member", projects=["main"]).secret
    details = set()
    for name in ("secret", "absent"):
        body = problem(front.search({"query": "x", "projects": [name]}, key=member), 404, "projects")
        details.add((body["title"], body["code"], body["detail"].replace(name, "NAME")))
    assert len(details) == 1
    assert front.search({"query": "x", "projects": ["secret"]}).status_code == 200


# --- failures behind the front -----------------------------------------------------------------------------------------------


def test_with_all_legs_down_the_answer_is_503_with_retry_after() -> None:
    front = make_front(errors={"lexical": ShardError("down"), "vector": ShardError("down")})
    response = front.search({"query": "x"})
    assert problem(response, 503)["code"] == "shard_unavailable"
    assert response.headers["retry-after"] == "1"


def test_an_index_that_cannot_be_read_is_503_without_the_advice_to_try_again() -> None:
    front = make_front(errors={"lexical": AnalyzerError(), "vector": UnreadableIndexError("verify, and index again")})
    response = front.search({"query": "x"})
    found = problem(response, 503)
    assert found["code"] == "index_unreadable" and "verify, and index again" in found["detail"]
    assert "try again" not in response.text and "retry-after" not in response.headers


def test_overload_is_429_with_retry_after() -> None:
    front = make_front(errors={"lexical": OverloadedError(), "vector": OverloadedError()})
    response = front.search({"query": "x"})
    assert problem(response, 429)["code"] == "overloaded"
    assert response.headers["retry-after"] == "1"


@pytest.mark.parametrize("fault", [KeyError("/srv/secret.py"), CorruptIndexError("/srv/secret.py does not match")])
def test_a_fault_of_the_server_is_500_without_details_and_logged(fault: Exception, caplog: pytest.LogCaptureFixture) -> None:
    def status(_principal: Principal) -> dict[str, Any]:
        raise fault

    response = make_front(status=status).call("GET", "/v1/status")
    body = problem(response, 500)
    assert "secret" not in response.text
    record = next(record for record in caplog.records if getattr(record, "action", "") == "request_failed")
    assert record.levelno == logging.ERROR and record.query_id == body["query_id"]
    assert record.exc_info is not None


def test_after_bad_requests_the_next_one_is_fine(front: Front) -> None:
    for body in (b"{", b"[" * 10_000, b"\xff", b"x" * 200_000):
        assert front.search(body).status_code in (400, 413)
    assert front.search({"query": "alpha"}).status_code == 200


# --- the description ---------------------------------------------------------------------------------------------------------


def test_openapi_describes_every_route_with_examples_and_problems(front: Front) -> None:
    schema = front.call("GET", "/openapi.json", key=None).json()
    nodes = {"/v1/nodes", "/v1/nodes/{id}", "/v1/nodes/bulk"}
    assert set(schema["paths"]) == {"/healthz", "/v1/search", "/v1/status", "/v1/noop", *nodes}
    search = schema["paths"]["/v1/search"]["post"]
    body = search["requestBody"]["content"]["application/json"]
    assert body["schema"] == {"$ref": "#/components/schemas/SearchBody"}
    assert search["security"] == [{"apiKey": []}]
    assert {"200", "400", "401", "404", "413", "415", "422", "429", "503"} <= set(search["responses"])
    for status, response in search["responses"].items():
        kind = "application/json" if status == "200" else "application/problem+json"
        name = response["content"][kind]["schema"]["$ref"].rpartition("/")[2]
        assert name in schema["components"]["schemas"]
    for item in body["examples"].values():
        response = front.search({**item["value"], "projects": None})
        assert response.status_code == 200
    assert schema["components"]["schemas"]["SearchBody"]["additionalProperties"] is False
    assert "HTTPValidationError" not in json.dumps(schema)


def test_the_example_answer_is_one() -> None:
    SearchAnswer.model_validate(ANSWER_EXAMPLE, strict=True)
