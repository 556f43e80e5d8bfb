"""Writing nodes as a client sees it: bodies, headers, statuses, problems, OpenAPI. No socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from cluster.errors import DeadlineError, IntegrityError, RaycallError, UnavailableError
from cluster.model.access import Role
from cluster.model.nodes import Store
from serve.http.nodes import MAX_BULK_REQUESTS
from serve.http.nodes_body import MAX_BULK_BYTES, MAX_ROWS
from serve.http.nodes_schemas import BulkAnswer, NodeView, WriteAnswer
from serve.http.routes import Limits
from serve.http.schemas import Problem
from serve.writing import Shown
from tests.support.factories import make_node
from tests.support.http import Front, make_front

NDJSON = {"content-type": "application/x-ndjson"}
BODY = {"id": "n1", "project": "main", "text": {"title": "Title", "content": "alpha"}}


@pytest.fixture
def front() -> Front:
    return make_front()


def post(front: Front, body: Any, path: str = "/v1/nodes", **arguments: Any) -> httpx.Response:
    return front.call("POST", path, json=body, **arguments)


def patch(front: Front, body: Any, node_id: str = "n1", **arguments: Any) -> httpx.Response:
    return front.call("PATCH", f"/v1/nodes/{node_id}", json=body, **arguments)


def bulk(front: Front, *lines: Any, **arguments: Any) -> httpx.Response:
    raw = b"".join(line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n" for line in lines)
    headers = {**NDJSON, **arguments.pop("headers", {})}
    return front.call("POST", "/v1/nodes/bulk", content=raw, headers=headers, **arguments)


def problem(response: httpx.Response, status: int, field: str | None = None) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    body: dict[str, Any] = response.json()
    Problem.model_validate(body, strict=True)
    assert body.get("field") == field, body
    return body


# --- one ---------------------------------------------------------------------------------------------------------------------


def test_a_node_is_created_read_replaced_patched_and_deleted(front: Front) -> None:
    created = post(front, BODY)
    assert created.status_code == 201
    WriteAnswer.model_validate(created.json(), strict=True)
    assert created.json() == {
        "id": "n1",
        "project": "main",
        "result": "created",
        "revision": 1,
        "visible": None,
        "vectors": None,
    }
    assert (created.headers["etag"], created.headers["location"]) == ('"1"', "/v1/nodes/n1")
    read = front.call("GET", "/v1/nodes/n1")
    NodeView.model_validate(read.json(), strict=True)
    assert read.headers["etag"] == '"1"' and read.json()["text"] == BODY["text"]
    replaced = post(front, {**BODY, "text": {"content": "beta"}})
    assert (replaced.status_code, replaced.json()["result"], replaced.headers.get("location")) == (200, "updated", None)
    changed = patch(front, {"text": {"title": "T"}}, headers={"content-type": "application/merge-patch+json"})
    assert (changed.status_code, changed.headers["etag"]) == (200, '"3"')
    assert front.call("GET", "/v1/nodes/n1").json()["text"] == {"content": "beta", "title": "T"}
    for result in ("deleted", "unchanged"):
        deleted = front.call("DELETE", "/v1/nodes/n1")
        assert (deleted.status_code, deleted.json()["result"], deleted.headers["etag"]) == (200, result, '"4"')
    problem(front.call("GET", "/v1/nodes/n1"), 404, "id")
    problem(patch(front, {"status": "x"}), 404, "id")


def test_a_node_without_an_id_gets_one(front: Front) -> None:
    found = {post(front, {"project": "main", "text": {"content": "x"}}).json()["id"] for _ in range(3)}
    assert len(found) == 3
    for name in found:
        assert front.call("GET", f"/v1/nodes/{name}").status_code == 200


def test_who_may_read_is_told_to_the_owner_and_admins_alone(front: Front) -> None:
    mira = front.keys.create(name="mira", role=Role.AGENT, agent="mira").secret
    body = {**BODY, "id": "iris:n1", "visibility": "project", "agents": ["iris", "mira"], "shared_with": ["noor"]}
    assert post(front, body, key=front.agent).status_code == 201
    for key in (front.admin, front.agent):
        found = front.call("GET", "/v1/nodes/iris:n1", key=key).json()
        assert (found["owner_agent"], found["agents"], found["shared_with"]) == ("iris", ["iris", "mira"], ["noor"])
    found = front.call("GET", "/v1/nodes/iris:n1", key=mira).json()
    assert (found["owner_agent"], found["agents"], found["shared_with"]) == ("iris", None, None)


def test_a_personal_node_is_404_for_others_like_none_at_all(front: Front) -> None:
    mira = front.keys.create(name="mira", role=Role.AGENT, agent="mira").secret
    post(front, {**BODY, "id": "iris:n1"}, key=front.agent)
    for method, body in (("GET", None), ("PATCH", {"status": "x"}), ("DELETE", None)):
        for key in (mira, front.admin):
            told = set()
            for name in ("iris:n1", "iris:n2"):
                response = front.call(method, f"/v1/nodes/{name}", json=body, key=key)
                found = problem(response, 404, "id")
                told.add(
                    (found["title"], found["detail"].replace(name, "NAME"), tuple(sorted(found)), response.headers.get("etag"))
                )
            assert len(told) == 1


@pytest.mark.parametrize("query", ["?wait_for=visible", "?wait_for=durable", ""])
def test_a_write_waits_for_what_it_is_asked_to(front: Front, query: str) -> None:
    front.showing.answer = Shown(visible=True, vectors=False)
    body = post(front, BODY, f"/v1/nodes{query}").json()
    waited = query.endswith("visible")
    assert (body["visible"], body["vectors"]) == ((True, False) if waited else (None, None))
    assert len(front.showing.waited) == waited


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("wait_for=", "wait_for"),
        ("wait_for=now", "wait_for"),
        ("wait_for=durable&wait_for=visible", "wait_for"),
        ("wait=1", "wait"),
    ],
)
def test_other_parameters_are_refused(front: Front, query: str, field: str) -> None:
    problem(post(front, BODY, f"/v1/nodes?{query}"), 422, field)
    problem(front.call("DELETE", f"/v1/nodes/n1?{query}"), 422, field)
    assert front.store.revision() == 0


def test_an_address_that_says_who_is_asking_is_refused(front: Front) -> None:
    assert "API key alone" in problem(post(front, BODY, "/v1/nodes?agent=mira"), 422, "agent")["detail"]
    assert "API key alone" in problem(front.call("GET", "/v1/nodes/n1?account=x"), 422, "account")["detail"]


@pytest.mark.parametrize("name", ["account", "owner", "owner_agent", "agent", "reader", "principal", "role", "team", "user_id"])
def test_a_body_that_says_who_is_writing_is_refused(front: Front, name: str) -> None:
    post(front, BODY)
    for response in (post(front, {**BODY, name: "mira"}), patch(front, {name: "mira"})):
        assert "API key alone" in problem(response, 422, name)["detail"]
    row = bulk(front, {"op": "upsert", **BODY, name: "mira"}).json()["results"][0]
    assert (row["status"], row["error"]["field"]) == (422, name)
    assert front.store.revision() == 1


@pytest.mark.parametrize(
    ("changes", "status", "field"),
    [
        ({"project": None}, 422, "project"),
        ({"project": 1}, 422, "project"),
        ({"project": "absent"}, 404, "project"),
        ({"store": "structure"}, 403, "store"),
        ({"store": "curated"}, 403, "store"),
        ({"store": 1}, 422, "store"),
        ({"id": 7}, 422, "id"),
        ({"id": "a b"}, 422, "id"),
        ({"text": {}}, 422, "text"),
        ({"text": {"content": 1}}, 422, "text.content"),
        ({"labels": [1]}, 422, "labels"),
        ({"properties": {"n": 1e999}}, 422, "properties"),
        ({"revision": -1}, 422, "revision"),
        ({"revision": "1"}, 422, "revision"),
        ({"revision": True}, 422, "revision"),
        ({"created_at": 1}, 422, "created_at"),
        ({"op": "upsert"}, 422, "op"),
    ],
)
def test_what_cannot_be_written_names_its_field(front: Front, changes: dict[str, Any], status: int, field: str) -> None:
    raw = json.dumps({**BODY, **changes}).encode()
    problem(front.call("POST", "/v1/nodes", content=raw, headers={"content-type": "application/json"}), status, field)
    assert front.store.revision() == 0


@pytest.mark.parametrize("body", [[], "x", 1, True])
def test_a_body_must_be_an_object(front: Front, body: Any) -> None:
    problem(post(front, body), 422)
    problem(patch(front, body), 422)


@pytest.mark.parametrize("name", ["id", "project", "store"])
def test_a_patch_does_not_move(front: Front, name: str) -> None:
    problem(patch(front, {name: "main"}), 422, name)


def test_the_form_of_bodies_is_checked(front: Front) -> None:
    for headers, status in (
        ({"content-type": "text/plain"}, 415),
        ({"content-type": "application/json", "content-encoding": "gzip"}, 415),
    ):
        for method, path in (("POST", "/v1/nodes"), ("PATCH", "/v1/nodes/n1"), ("POST", "/v1/nodes/bulk")):
            problem(front.call(method, path, content=b"{}", headers=headers), status)
    json_type = {"content-type": "application/json"}
    problem(front.call("POST", "/v1/nodes", content=b'{"a":1,"a":2}', headers=json_type), 400)
    problem(front.call("POST", "/v1/nodes", content=b"{", headers=json_type), 400)
    problem(front.call("POST", "/v1/nodes", content=b" " * 131_073, headers=json_type), 413)
    problem(front.call("DELETE", "/v1/nodes/n1", content=b"{}"), 422)
    assert front.call("POST", "/v1/nodes/bulk", content=b"{}", headers=json_type).status_code == 415


# --- revisions ---------------------------------------------------------------------------------------------------------------


def test_a_stale_revision_is_409_and_names_the_present_one(front: Front) -> None:
    post(front, BODY)
    for headers, body in (({"if-match": '"9"'}, {}), ({"if-match": "9"}, {}), ({}, {"revision": 9})):
        for response in (
            post(front, {**BODY, **body}, headers=headers),
            patch(front, {"status": "x", **body}, headers=headers),
        ):
            found = problem(response, 409, "revision")
            assert (found["code"], found["revision"]) == ("stale_revision", 1)
    assert problem(front.call("DELETE", "/v1/nodes/n1", headers={"if-match": '"9"'}), 409, "revision")["revision"] == 1
    assert patch(front, {"status": "x", "revision": 1}, headers={"if-match": '"1"'}).status_code == 200
    assert front.call("DELETE", "/v1/nodes/n1", headers={"if-match": '"2"'}).status_code == 200


def test_creating_and_replacing_alone_are_asked_for(front: Front) -> None:
    assert problem(post(front, BODY, headers={"if-match": "*"}), 409, "revision")["revision"] == 0
    assert post(front, BODY, headers={"if-none-match": "*"}).status_code == 201
    assert problem(post(front, BODY, headers={"if-none-match": "*"}), 409, "revision")["revision"] == 1
    assert problem(post(front, {**BODY, "revision": 0}), 409, "revision")["revision"] == 1
    assert post(front, BODY, headers={"if-match": "*"}).status_code == 200


@pytest.mark.parametrize(
    ("headers", "body", "field"),
    [
        ({"if-match": 'W/"1"'}, {}, "If-Match"),
        ({"if-match": '"1", "2"'}, {}, "If-Match"),
        ({"if-match": '"²"'}, {}, "If-Match"),
        ({"if-match": '"1"'}, {"revision": 2}, "revision"),
        ({"if-none-match": '"1"'}, {}, "If-None-Match"),
        ({"if-none-match": "*", "if-match": "*"}, {}, "If-None-Match"),
        ({"if-none-match": "*"}, {"revision": 1}, "If-None-Match"),
    ],
)
def test_preconditions_that_say_nothing_are_refused(front: Front, headers: dict[str, str], body: Any, field: str) -> None:
    sent = {name: value.encode("latin-1") for name, value in headers.items()}
    problem(post(front, {**BODY, **body}, headers=sent), 422, field)


def test_a_new_node_has_no_revision(front: Front) -> None:
    body = {name: value for name, value in BODY.items() if name != "id"}
    problem(post(front, {**body, "revision": 3}), 422, "revision")
    problem(post(front, body, headers={"if-match": "*"}), 422, "revision")
    assert post(front, {**body, "revision": 0}).status_code == 201


# --- one effect --------------------------------------------------------------------------------------------------------------


def test_a_request_with_a_key_has_one_effect(front: Front) -> None:
    body = {name: value for name, value in BODY.items() if name != "id"}
    first = post(front, body, headers={"idempotency-key": '"a b"'})
    for path in ("/v1/nodes", "/v1/nodes?wait_for=durable"):
        again = post(front, body, path, headers={"idempotency-key": '"a b"'})
        assert (again.status_code, again.json()) == (201, first.json())
        assert again.headers["idempotency-replayed"] == "true" and "idempotency-replayed" not in first.headers
        assert again.headers["location"] == first.headers["location"]
    assert front.store.revision() == 1


def test_a_key_is_for_one_request(front: Front) -> None:
    headers = {"idempotency-key": "k1"}
    post(front, BODY, headers=headers)
    for response in (
        post(front, {**BODY, "status": "x"}, headers=headers),
        post(front, BODY, headers={**headers, "if-match": '"1"'}),
        front.call("DELETE", "/v1/nodes/n1", headers=headers),
        bulk(front, {"op": "delete", "id": "n1"}, headers=headers),
    ):
        found = response.json()
        assert (response.status_code, found["code"]) == (422, "idempotency_key_reused")
    assert front.store.revision() == 1
    assert post(front, BODY, headers={"idempotency-key": '"k1"'}).headers["idempotency-replayed"] == "true"


@pytest.mark.parametrize("key", ["", "a b", '"', '""', "x" * 256, "é", '"a\\b"'])
def test_a_key_must_be_one_string(front: Front, key: str) -> None:
    problem(post(front, BODY, headers={"idempotency-key": key.encode("latin-1")}), 422, "Idempotency-Key")
    assert front.store.revision() == 0


# --- many --------------------------------------------------------------------------------------------------------------------


def test_rows_are_answered_in_their_order_with_what_came_of_each(front: Front) -> None:
    response = bulk(
        front,
        {"op": "upsert", **BODY},
        b"\n",
        b"{bad\n",
        {"op": "patch", "id": "n1", "revision": 7, "status": "x"},
        {"op": "patch", "id": "n1", "text": {"title": None}},
        {"op": "burn", "id": "n1"},
        {"op": "delete"},
        {"op": "delete", "id": "n1", "project": "main"},
        b'{"op":"delete","id":"n1"}',
    )
    assert response.status_code == 200
    body = response.json()
    BulkAnswer.model_validate(body, strict=True)
    assert [(row["line"], row["status"], row["result"] or row["error"]["code"]) for row in body["results"]] == [
        (1, 201, "created"),
        (3, 400, "malformed"),
        (4, 409, "stale_revision"),
        (5, 200, "updated"),
        (6, 422, "invalid_input"),
        (7, 422, "invalid_input"),
        (8, 422, "invalid_input"),
        (9, 200, "deleted"),
    ]
    assert body["counts"] == {"created": 1, "updated": 1, "unchanged": 0, "deleted": 1, "failed": 5}
    assert body["results"][2]["error"]["revision"] == 1
    assert [row["error"]["field"] for row in body["results"][4:7]] == ["op", "id", "project"]
    assert (body["rows"], body["visible"], body["results"][0]["id"]) == (8, None, "n1")


@pytest.mark.parametrize("named", [{}, *({"id": wrong} for wrong in (None, "", " ", [], ["n1"], {}, "*", "%", "n", "n1*"))])
def test_a_deletion_that_names_no_node_deletes_none(front: Front, named: dict[str, Any]) -> None:
    for node_id in ("n1", "n2"):
        post(front, {**BODY, "id": node_id})
    for extra in ({}, {"filter": {}}, {"owner": None}):
        body = bulk(front, {"op": "delete", **named, **extra}).json()
        assert body["counts"]["failed"] == 1 and body["results"][0]["status"] in {404, 422}, body
    for path in ("", "/", "/*", "/%25", "/%20"):
        assert front.call("DELETE", f"/v1/nodes{path}").status_code in {404, 405, 422}
    assert front.store.revision() == 2
    assert [front.call("GET", f"/v1/nodes/{node_id}").status_code for node_id in ("n1", "n2")] == [200, 200]


def test_half_an_emoji_in_a_row_is_replaced_and_costs_no_other_row(front: Front) -> None:
    rows = [
        f'{{"op":"upsert","id":"s{n}","project":"main","text":{{"content":"{text}"}}}}\n'.encode()
        for n, text in enumerate(("ok \\ud83d tail", "fine \\ud83d\\ude80 rocket", "plain"))
    ]
    assert bulk(front, *rows).json()["counts"]["created"] == 3
    stored = [front.call("GET", f"/v1/nodes/s{n}").json()["text"]["content"] for n in range(3)]
    assert stored == ["ok \ufffd tail", "fine \U0001f680 rocket", "plain"]


def test_a_row_over_the_bound_costs_itself_alone(front: Front) -> None:
    long = {"op": "upsert", "project": "main", "text": {"content": "x"}, "properties": {"p": "y" * 131_072}}
    body = bulk(front, long, {"op": "upsert", **BODY}).json()
    assert [(row["status"], row["id"]) for row in body["results"]] == [(413, None), (201, "n1")]


def test_the_bound_of_a_row_is_that_of_a_single_request() -> None:
    front = make_front(limits=Limits(body_bytes=2000))
    rest = len(json.dumps({**BODY, "properties": {"p": ""}}))
    for length, status in ((2000 - rest, 201), (2001 - rest, 413)):
        raw = json.dumps({**BODY, "properties": {"p": "y" * length}}).encode()
        assert front.call("POST", "/v1/nodes", content=raw, headers={"content-type": "application/json"}).status_code == status
        # As long as the body above, with `op` in it.
        row = {"op": "delete", "id": "n1", "x": ""}
        row["x"] = "y" * (len(raw) - len(json.dumps(row)))
        (found,) = bulk(front, row).json()["results"]
        assert found["status"] == (422 if status == 201 else 413)


def test_too_many_rows_or_bytes_are_refused_with_nothing_written(front: Front) -> None:
    line = json.dumps({"op": "upsert", **BODY}).encode() + b"\n"
    problem(bulk(front, line * (MAX_ROWS + 1)), 413)
    problem(bulk(front, line + b"\n" * MAX_BULK_BYTES), 413)
    assert front.store.revision() == 0
    for empty in (b"", b"\n \n"):
        problem(bulk(front, empty), 400)


@pytest.mark.parametrize("size", [1, 7, 100_000])
def test_rows_may_arrive_in_any_pieces(front: Front, size: int) -> None:
    rows = [{"op": "upsert", "id": f"n{number}", "project": "main", "text": {"content": "é" * 9}} for number in range(20)]
    raw = b"\n".join(json.dumps(row, ensure_ascii=False).encode() for row in rows)

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(raw), size):
            yield raw[start : start + size]

    body = front.call("POST", "/v1/nodes/bulk", content=pieces(), headers=NDJSON).json()
    assert body["counts"]["created"] == 20


def test_a_bulk_request_with_a_key_has_one_effect(front: Front) -> None:
    lines = [{"op": "upsert", "project": "main", "text": {"content": str(number)}} for number in range(3)]
    first = bulk(front, *lines, headers={"idempotency-key": "k1"})
    again = bulk(front, *lines, headers={"idempotency-key": "k1"})
    assert first.json() == again.json() and again.headers["idempotency-replayed"] == "true"
    assert front.store.revision() == 1
    found = problem(bulk(front, *lines[:2], headers={"idempotency-key": "k1"}), 422)
    assert found["code"] == "idempotency_key_reused"


@pytest.mark.parametrize("name", ["if-match", "if-none-match"])
def test_rows_have_their_own_revisions(front: Front, name: str) -> None:
    problem(bulk(front, {"op": "upsert", **BODY}, headers={name: "*"}), 422, name)


def test_only_some_bulk_requests_run_at_once(front: Front) -> None:
    gate = asyncio.Event()

    async def body() -> AsyncIterator[bytes]:
        await gate.wait()
        yield json.dumps({"op": "upsert", **BODY}).encode()

    async def run() -> list[int]:
        transport = httpx.ASGITransport(app=front.app)
        headers = {**NDJSON, "authorization": f"Bearer {front.admin}"}
        async with httpx.AsyncClient(transport=transport, base_url="http://raycall.test") as client:

            async def send() -> int:
                return (await client.post("/v1/nodes/bulk", content=body(), headers=headers)).status_code

            waiting = [asyncio.create_task(send()) for _ in range(MAX_BULK_REQUESTS)]
            refused = 0
            while not refused:
                await asyncio.sleep(0)
                probe = await client.post("/v1/nodes/bulk", content=b"", headers=headers)
                refused = probe.status_code == 429
            gate.set()
            return [429, *await asyncio.gather(*waiting)]

    assert asyncio.run(run()) == [429, *[200] * MAX_BULK_REQUESTS]
    assert bulk(front, {"op": "delete", "id": "n1"}).status_code == 200


# --- failures ----------------------------------------------------------------------------------------------------------------


def test_a_store_that_is_down_is_503_and_so_are_its_rows(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    def down(*_: Any) -> int:
        raise UnavailableError("the store could not be written: its disk is full")

    monkeypatch.setattr(front.store, "transact", down)
    response = post(front, BODY)
    assert problem(response, 503)["code"] == "unavailable" and response.headers["retry-after"] == "1"
    body = bulk(front, {"op": "upsert", **BODY}).json()
    assert (body["results"][0]["status"], body["counts"]["failed"]) == (503, 1)


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (DeadlineError("the store was busy"), 504, "the store was busy"),
        (UnavailableError("its disk is full"), 503, "its disk is full"),
        (IntegrityError("page 7 of /secret is damaged"), 500, "the row failed on the server"),
    ],
)
def test_a_refused_row_says_why_unless_it_is_a_fault(
    front: Front, monkeypatch: pytest.MonkeyPatch, error: RaycallError, status: int, words: str
) -> None:
    def refusing(*_: Any) -> int:
        raise error

    monkeypatch.setattr(front.store, "transact", refusing)
    (row,) = bulk(front, {"op": "upsert", **BODY}).json()["results"]
    assert (row["status"], row["error"]["detail"]) == (status, words)


def test_a_client_that_goes_away_in_a_deletion_is_no_fault(front: Front, caplog: pytest.LogCaptureFixture) -> None:
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": "DELETE",
        "scheme": "http",
        "path": "/v1/nodes/n1",
        "raw_path": b"/v1/nodes/n1",
        "query_string": b"",
        "headers": [(b"authorization", f"Bearer {front.admin}".encode())],
    }
    post(front, BODY)
    asyncio.run(front.app(scope, receive, send))
    assert sent[0]["status"] == 400
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
    assert front.call("GET", "/v1/nodes/n1").status_code == 200


def test_another_writers_node_is_seen_and_refused(front: Front) -> None:
    front = make_front(make_node("s1"), make_node("w1", store=Store.WORK))
    for method, path, body in (("PATCH", "/v1/nodes/s1", {"status": "x"}), ("DELETE", "/v1/nodes/s1", None)):
        assert "indexing alone" in problem(front.call(method, path, json=body), 403)["detail"]
        problem(front.call(method, "/v1/nodes/w1", json=body, key=front.agent), 403)
    assert front.call("GET", "/v1/nodes/s1").json()["store"] == "structure"


# --- the description ---------------------------------------------------------------------------------------------------------


def test_openapi_describes_the_routes_of_nodes(front: Front) -> None:
    schema = front.call("GET", "/openapi.json", key=None).json()
    models = schema["components"]["schemas"]
    for path in ("/v1/nodes", "/v1/nodes/{id}", "/v1/nodes/bulk"):
        for method, operation in schema["paths"][path].items():
            assert operation["security"] == [{"apiKey": []}] and operation["description"]
            names = {parameter["name"] for parameter in operation["parameters"]}
            assert ("id" in names) == ("{id}" in path)
            assert ("wait_for" in names and "Idempotency-Key" in names) == (method != "get")
            assert {"401", "500", "503"} <= set(operation["responses"])
            for status, response in operation["responses"].items():
                kind = "application/json" if status < "300" else "application/problem+json"
                assert response["content"][kind]["schema"]["$ref"].rpartition("/")[2] in models
    assert set(models["NodeBody"]["required"]) == {"project", "text"}
    assert models["NodePatch"]["additionalProperties"] is False


def test_the_examples_are_accepted(front: Front) -> None:
    front = make_front()
    front.showing._projects = ["billing"]
    schema = front.call("GET", "/openapi.json", key=None).json()["paths"]
    body = schema["/v1/nodes"]["post"]["requestBody"]["content"]["application/json"]["example"]
    created = post(front, body)
    assert created.status_code == 201
    change = schema["/v1/nodes/{id}"]["patch"]["requestBody"]["content"]["application/merge-patch+json"]["example"]
    assert patch(front, change, created.json()["id"]).status_code == 200
    lines = schema["/v1/nodes/bulk"]["post"]["requestBody"]["content"]["application/x-ndjson"]["example"]
    found = bulk(front, lines.encode()).json()["results"]
    assert [row["status"] for row in found] == [201, 404, 404]
