"""A repository goes in, guarded hybrid answers come out: asked over HTTP as an agent would."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from tests.support.server import Server, raycall


def paths(answer: dict) -> list[str]:
    return [hit["path"] for hit in answer["hits"]]


@pytest.mark.parametrize(
    ("query", "path"),
    [
        ("check_pressure", "src/pump/controller.py"),
        ("PumpController", "src/pump/controller.py"),
        ("pumpcontroller", "src/pump/controller.py"),
        ("start pump", "src/pump/controller.py"),
        ("where is the sensor calibrated", "README.md"),
        ("renderDashboard", "web/dashboard.ts"),
        ("fetch status", "web/api.ts"),
        ("ParseFlags", "cmd/main.go"),
        ("sensor_b", "calibration.yaml"),
        ("resume", "docs/résumé.md"),
        ("Re\u0301sume\u0301", "docs/résumé.md"),
        ("倒排索引", "docs/résumé.md"),
        ("src/pump/serial_port.py", "src/pump/serial_port.py"),
        ("web\\api.ts", "web/api.ts"),
    ],
)
def test_the_file_that_answers_is_found_first(server: Server, query: str, path: str) -> None:
    assert paths(server.search(query))[0] == path


def test_a_hit_says_where_it_is_and_why(server: Server) -> None:
    answer = server.search("check_pressure")
    hit = answer["hits"][0]
    assert {"Symbol", "Method"} <= set(hit["labels"])
    assert (hit["project"], hit["store"]) == ("pump-controller", "structure")
    assert hit["start_line"] == 14
    assert len(hit["commit"]) == 40
    assert hit["scores"]["bm25"] > 0
    assert -1 <= hit["scores"]["vector"] <= 1
    assert math.isclose(hit["score"], 0.7 * hit["scores"]["vector"] + 0.3 * hit["scores"]["bm25_scaled"], rel_tol=1e-6)
    shown = [hit["snippet"]["text"][start:end].lower() for start, end in hit["snippet"]["matches"]]
    assert {"check", "pressure"} <= set(shown)


def test_the_disclosure_adds_up(server: Server) -> None:
    answer = server.search("pump", limit=2)
    said = answer["disclosure"]
    assert [leg["leg"] for leg in said["legs"]] == ["lexical", "vector"]
    assert all(leg["ran"] and leg["asked"] == leg["answered"] == 1 for leg in said["legs"])
    assert said["candidates"] == said["returned"] + said["omitted"]["over_limit"]
    assert said["returned"] == len(answer["hits"]) == 2
    assert "limit" in said["more"]
    assert list(said["generations"]) == ["pump-controller"]
    assert "static" in json.dumps(said["legs"]) or "wordllama" in json.dumps(said["legs"])


def test_related_nodes_come_with_a_hit_unless_they_are_not_wanted(server: Server) -> None:
    hit = server.search("check_pressure")["hits"][0]
    assert ("DEFINES", "incoming") in {(related["type"], related["direction"]) for related in hit["related"]}
    assert ("CALLS", "incoming") in {(related["type"], related["direction"]) for related in hit["related"]}
    assert server.search("check_pressure", expand_hops=0)["hits"][0]["related"] == []


def test_labels_narrow_inside_the_indexes(server: Server) -> None:
    answer = server.search("pump", labels=["Section"])
    assert answer["hits"]
    assert all("Section" in hit["labels"] for hit in answer["hits"])
    assert server.search("pump", labels=["NoSuchLabel"])["hits"] == []


def test_ignored_and_binary_files_are_not_there(server: Server) -> None:
    assert "build/generated.py" not in paths(server.search("ignored_symbol"))
    assert "logo.png" not in paths(server.search("logo.png", limit=100))


@pytest.mark.parametrize("fusion", ["weighted", "weighted_max", "rrf"])
def test_every_fusion_answers(server: Server, fusion: str) -> None:
    answer = server.search("calibration", fusion=fusion)
    assert answer["disclosure"]["fusion"] == fusion
    assert "README.md" in paths(answer)[:4]


@pytest.mark.parametrize(
    "query",
    [
        *[
            "foo:bar AND (",
            "*",
            "a/b",
            '"unclosed',
            "foo)",
            "call(a, b",
            "arr[0",
            "{json",
            "httpclient()",
            "!",
            "~",
            "--",
            "&& ||",
        ],
        *[
            "AND",
            "NOT",
            "OR OR",
            "?",
            "^2",
            "C++",
            "a && !b",
            "salary) OR account_id:B",
            "visibility:private",
            "* OR deleted:true",
        ],
        *[
            "root causes/solutions for timeouts in src/api/v2",
            "😀",
            "👩‍👩‍👧‍👦",
            "停止",
            "x\u0000y",
            "to be or not to be",
            "\u202eabc",
        ],
    ],
)
def test_no_text_is_syntax(server: Server, query: str) -> None:
    answer = server.search(query)
    assert answer["disclosure"]["legs"][0]["ran"]
    assert all(hit["project"] == "pump-controller" for hit in answer["hits"])


def test_slashes_and_spaces_ask_the_same(server: Server) -> None:
    assert paths(server.search("timeouts in serial/port/line"))[:1] == paths(server.search("timeouts in serial port line"))[:1]


@pytest.mark.parametrize("query", ["", " ", "\t\n", "\u00a0", "\u200b", "\u3000", None])
def test_a_blank_question_is_refused(server: Server, query: str | None) -> None:
    reply = server.request("POST", "/v1/search", {"query": query})
    assert reply.status == 422
    assert reply.headers["content-type"] == "application/problem+json"
    assert (reply.json["code"], reply.json["field"]) == ("invalid_input", "query")


def test_a_huge_question_is_answered_with_what_was_cut_named(server: Server) -> None:
    # Words of letters alone: the number in a word like "word98" is a part of it, and would find the 0.98 of a file.
    letters = ["zz" + "".join(chr(97 + number // 26**place % 26) for place in range(3)) for number in range(9_000)]
    words = " ".join([*letters, "overpressureerror"])
    answer = server.search(words)
    assert {hit["path"] for hit in answer["hits"] if hit["scores"]["bm25"]} == {"src/pump/controller.py"}
    assert [note["code"] for note in answer["disclosure"]["degradations"]] == ["query_terms_cut", "query_cut_for_vectors"]
    assert server.request("POST", "/v1/search", {"query": "x" * 200_000}).status == 413


@pytest.mark.parametrize("limit", [0, -5, 101, 10**9, 2**63])
def test_a_limit_out_of_range_is_clamped_and_said(server: Server, limit: int) -> None:
    answer = server.search("pump", limit=limit)
    assert "limit_clamped" in {note["code"] for note in answer["disclosure"]["degradations"]}
    assert len(answer["hits"]) >= 1


@pytest.mark.parametrize("raw", ['{"query":', "", "[]", '"x"', "null", '{"query":"a","query":"b"}', "[" * 10_000])
def test_a_body_that_is_no_question_is_a_problem_and_the_next_one_is_answered(server: Server, raw: str) -> None:
    reply = server.request("POST", "/v1/search", raw=raw.encode())
    assert reply.status in {400, 422}
    assert reply.json["type"].startswith("urn:raycall:error:")
    assert "Traceback" not in reply.body.decode()
    assert server.search("pump")["hits"]


@pytest.mark.parametrize("raw", ['{"query":"x","limit":NaN}', '{"query":"x","limit":1e999}', '{"query":"x","limit":"10"}'])
def test_what_is_no_number_is_refused_by_name(server: Server, raw: str) -> None:
    reply = server.request("POST", "/v1/search", raw=raw.encode())
    assert reply.status == 422
    assert reply.json["field"] == "limit"


@pytest.mark.parametrize("field", ["account", "account_id", "agent", "agents", "scopes", "scope", "reader", "principal"])
def test_a_body_cannot_say_who_is_asking(server: Server, field: str) -> None:
    reply = server.request("POST", "/v1/search", {"query": "pump", field: "admin"})
    assert reply.status == 422
    assert reply.json["field"] == field
    assert "key" in reply.json["detail"]


@pytest.mark.parametrize("key", ["", "rk_wrong", "rk_" + "A" * 43])
def test_nothing_answers_without_a_key(server: Server, key: str) -> None:
    for method, path in [("POST", "/v1/search"), ("GET", "/v1/status"), ("POST", "/v1/noop")]:
        reply = server.request(method, path, {"query": "pump"} if method == "POST" else None, key=key)
        assert reply.status == 401
        assert reply.headers["www-authenticate"].startswith("Bearer")


def test_a_key_of_one_project_is_told_nothing_about_the_others(server: Server) -> None:
    made = raycall(server.data_dir, "keys", "create", "visitor", "--agent", "visitor", "--project", "elsewhere", "--json")
    assert made.returncode == 0, made.stderr
    secret = json.loads(made.stdout)["secret"]
    hidden = server.request("POST", "/v1/search", {"query": "pump", "projects": ["pump-controller"]}, key=secret)
    missing = server.request("POST", "/v1/search", {"query": "pump", "projects": ["no-such-proj-x"]}, key=secret)
    assert hidden.status == missing.status == 404
    same = [
        reply.json["detail"].replace(name, "X") for reply, name in [(hidden, "pump-controller"), (missing, "no-such-proj-x")]
    ]
    assert same[0] == same[1]
    assert server.request("POST", "/v1/search", {"query": "pump"}, key=secret).json["hits"] == []
    assert server.request("GET", "/v1/status", key=secret).json["projects"] == []


def test_a_revoked_key_stops_working(server: Server) -> None:
    made = json.loads(raycall(server.data_dir, "keys", "create", "short", "--json").stdout)
    assert server.request("GET", "/v1/status", key=made["secret"]).status == 200
    assert raycall(server.data_dir, "keys", "revoke", made["id"]).returncode == 0
    server.until("the revocation", lambda: server.request("GET", "/v1/status", key=made["secret"]).status == 401, timeout=10)


def test_text_is_given_to_who_asks_for_text(server: Server) -> None:
    reply = server.request("POST", "/v1/search", {"query": "check_pressure", "limit": 1}, accept="text/plain")
    first = reply.body.decode().splitlines()[0]
    assert reply.headers["content-type"].startswith("text/plain")
    assert first.startswith("[Symbol, Method] (id: ")
    assert "(score: 0." in first


def test_the_description_of_the_interface_has_examples(server: Server) -> None:
    described = server.request("GET", "/openapi.json").json
    assert "examples" in json.dumps(described["paths"]["/v1/search"])


def test_status_names_what_is_served(server: Server) -> None:
    status = server.request("GET", "/v1/status").json
    project = next(entry for entry in status["projects"] if entry["project"] == "pump-controller")
    assert project["rows"] == project["vectors"] > 10
    assert project["generation"].startswith("g")


def test_the_key_file_is_for_its_owner_alone(server: Server) -> None:
    assert Path(server.state["key_file"]).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("fusion", ["weighted", "rrf"])
def test_pages_of_any_size_join_to_one_list(server: Server, fusion: str) -> None:
    whole = server.search("pump", limit=100, fusion=fusion, expand_hops=0)
    assert whole["next_cursor"] is None and len(whole["hits"]) > 8
    for size in (3, 4):
        found, cursor = [], None
        while not found or cursor is not None:
            page = server.search("pump", limit=size, fusion=fusion, expand_hops=0, **({"cursor": cursor} if cursor else {}))
            found += page["hits"]
            cursor = page["next_cursor"]
        assert [(hit["id"], hit["score"]) for hit in found] == [(hit["id"], hit["score"]) for hit in whole["hits"]]
    refused = server.request("POST", "/v1/search", {"query": "pump", "cursor": "x"})
    assert (refused.status, refused.json["field"]) == (422, "cursor")


@pytest.mark.parametrize("path", ["/healthz", "/v1/status"])
def test_head_is_answered_without_a_body_through_the_whole_ingress(server: Server, path: str) -> None:
    reply = server.request("HEAD", path)
    assert (reply.status, reply.body) == (200, b"")
