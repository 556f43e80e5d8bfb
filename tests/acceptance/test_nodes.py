"""Writing over HTTP on a running server: found at once, changed as a whole, gone at once, and never lost."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.server import Reply, Server, processes_naming, raycall

PROJECT = "pump-controller"


def write(server: Server, method: str, path: str, body: Any = None, *, wait: str = "visible", **headers: str) -> Reply:
    return server.request(method, f"/v1/nodes{path}?wait_for={wait}", body, **headers)


def note(node_id: str, content: str, **fields: Any) -> dict[str, Any]:
    return {"id": node_id, "project": PROJECT, "text": {"content": content}, **fields}


def by_words(server: Server, query: str, **arguments: Any) -> list[str]:
    """Ids that the words of `query` find."""
    answer = server.search(query, limit=100, expand_hops=0, **arguments)
    return [hit["id"] for hit in answer["hits"] if hit["scores"]["bm25"]]


def by_vector(server: Server, query: str) -> list[str]:
    answer = server.search(query, limit=100, expand_hops=0)
    return [hit["id"] for hit in answer["hits"] if hit["scores"]["vector"] is not None]


def test_a_note_is_found_changed_and_gone_as_soon_as_it_is_visible(server: Server) -> None:
    created = write(server, "POST", "", note("t-note", "the quillwort gauge was recalibrated"))
    assert (created.status, created.json["visible"], created.json["vectors"]) == (201, True, True)
    assert by_words(server, "quillwort") == ["t-note"]
    assert "t-note" in by_vector(server, "the quillwort gauge was recalibrated")
    changed = write(server, "PATCH", "/t-note", {"text": {"content": "the bladderwort gauge was replaced"}})
    assert (changed.status, changed.json["visible"]) == (200, True)
    assert by_words(server, "quillwort") == [] and by_words(server, "bladderwort") == ["t-note"]
    stale = write(server, "PATCH", "/t-note", {"status": "x"}, if_match=created.headers["etag"])
    assert (stale.status, stale.json["revision"]) == (409, changed.json["revision"])
    gone = write(server, "DELETE", "/t-note")
    assert (gone.status, gone.json["result"], gone.json["visible"]) == (200, "deleted", True)
    assert by_words(server, "bladderwort") == []
    assert server.request("GET", "/v1/nodes/t-note").status == 404


def test_a_durable_write_is_visible_soon(server: Server) -> None:
    assert write(server, "POST", "", note("t-soon", "the liverwort valve"), wait="durable").status == 201
    server.until("the note is found", lambda: by_words(server, "liverwort") == ["t-soon"])
    server.until("its vector is", lambda: "t-soon" in by_vector(server, "the liverwort valve"))
    write(server, "DELETE", "/t-soon")


def test_an_update_never_shows_the_old_and_the_new_together(server: Server) -> None:
    """Each version has a word of its own beside the common one: a question for all of them may show one."""
    versions = [f"hornwort version{number}" for number in range(12)]
    write(server, "POST", "", note("t-torn", versions[0]))
    asked = " ".join(["hornwort", *(f"version{number}" for number in range(12))])

    def ask() -> list[str]:
        hits = server.search(asked, limit=100, expand_hops=0, projects=[PROJECT])["hits"]
        return [hit["snippet"]["text"] for hit in hits if hit["id"] == "t-torn"]

    with ThreadPoolExecutor(3) as askers:
        seen = []
        for version in versions[1:]:
            waiting = [askers.submit(ask) for _ in range(4)]
            assert write(server, "POST", "", note("t-torn", version)).json["visible"]
            seen += [future.result() for future in waiting]
            assert ask() == [version]
    assert {len(found) for found in seen} == {1}
    assert {text for found in seen for text in found} <= set(versions)
    write(server, "DELETE", "/t-torn")


def test_rows_are_written_in_bulk_and_each_is_answered(server: Server) -> None:
    lines = [{"op": "upsert", **note(f"t-bulk-{number}", f"spikemoss entry{number}")} for number in range(40)]
    raw = b"\n".join(json.dumps(line).encode() for line in [*lines, {"op": "delete", "id": "t-absent"}]) + b"\n{oops"
    reply = server.request("POST", "/v1/nodes/bulk?wait_for=visible", raw=raw, content_type="application/x-ndjson")
    assert reply.status == 200
    assert (reply.json["counts"]["created"], reply.json["counts"]["failed"], reply.json["visible"]) == (40, 2, True)
    assert [row["status"] for row in reply.json["results"][-2:]] == [404, 400]
    assert len(by_words(server, "spikemoss")) == 40
    raw = b"\n".join(json.dumps({"op": "delete", "id": line["id"]}).encode() for line in lines)
    server.request("POST", "/v1/nodes/bulk?wait_for=visible", raw=raw, content_type="application/x-ndjson")
    assert by_words(server, "spikemoss") == []


def test_an_agents_notes_are_its_own(server: Server) -> None:
    keys = {}
    for agent in ("iris", "mira"):
        made = raycall(server.data_dir, "keys", "create", agent, "--agent", agent, "--project", PROJECT, "--json")
        assert made.returncode == 0, made.stderr
        keys[agent] = json.loads(made.stdout)["secret"]
    body = note("iris:t1", "the clubmoss rota")
    created = server.request("POST", "/v1/nodes?wait_for=visible", body, key=keys["iris"])
    assert created.status == 201, created.body

    def found(agent: str) -> list[str]:
        reply = server.request("POST", "/v1/search", {"query": "clubmoss", "expand_hops": 0}, key=keys[agent])
        return [hit["id"] for hit in reply.json["hits"]]

    assert (found("iris"), found("mira")) == (["iris:t1"], [])
    for method in ("GET", "DELETE"):
        assert server.request(method, "/v1/nodes/iris:t1", key=keys["mira"]).status == 404
    shared = {"visibility": "project", "agents": ["iris", "mira"]}
    server.request("PATCH", "/v1/nodes/iris:t1?wait_for=visible", shared, key=keys["iris"])
    assert (found("iris"), found("mira")) == (["iris:t1"], ["iris:t1"])
    assert server.request("DELETE", "/v1/nodes/iris:t1", key=keys["mira"]).status == 403
    assert server.request("DELETE", "/v1/nodes/iris:t1?wait_for=visible", key=keys["iris"]).status == 200


@pytest.fixture
def own_server(tmp_path: Path, repository: Path) -> Iterator[list[Server]]:
    """A server of the test's own, as a list that a restarted one may be added to."""
    servers = [Server(tmp_path / "data", "--index", str(repository))]
    try:
        yield servers
    finally:
        servers[-1].stop()


def kill_all(server: Server) -> None:
    """SIGKILL to every process of the server at once, as a power cut would: application, shards, Ray."""
    mark = str(json.loads((server.data_dir / "server.json").read_text())["run_dir"]).encode()
    os.kill(server.process.pid, signal.SIGKILL)
    while victims := _processes_with(mark):  # until none was started meanwhile
        for number in victims:
            with contextlib.suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
    server.stop()


def _processes_with(mark: bytes) -> list[int]:
    """Ids of the live processes whose environment holds `mark`."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            # A process that has ended and was not waited for has no environment any more.
            if entry.name.isdigit() and int(entry.name) != os.getpid() and mark in (entry / "environ").read_bytes():
                found.append(int(entry.name))
    return found


def test_what_was_acknowledged_survives_a_kill_in_that_moment_and_a_restart(own_server: list[Server], tmp_path: Path) -> None:
    server = own_server[-1]
    once = {"idempotency_key": "k-1"}
    first = write(server, "POST", "", {"project": PROJECT, "text": {"content": "the pillwort log"}}, **once)
    write(server, "POST", "", note("kept", "the milkwort log"))
    write(server, "POST", "", note("deleted", "the woundwort log"))
    write(server, "DELETE", "/deleted")
    last = write(server, "POST", "", note("last", "the ragwort log"), wait="durable")
    assert last.status == 201
    kill_all(server)
    assert processes_naming(str(server.data_dir)) == []
    own_server.append(Server(tmp_path / "data"))
    server = own_server[-1]
    assert by_words(server, "pillwort") == [first.json["id"]]
    assert by_words(server, "milkwort") == ["kept"]
    assert by_words(server, "woundwort") == []
    assert by_words(server, "ragwort") == ["last"], "it was acknowledged, and killed before anybody could see it"
    server.until("its vector is there", lambda: "last" in by_vector(server, "the ragwort log"))
    again = write(server, "POST", "", {"project": PROJECT, "text": {"content": "the pillwort log"}}, **once)
    assert (again.status, again.json["id"], again.headers["idempotency-replayed"]) == (201, first.json["id"], "true")
    assert by_words(server, "pillwort") == [first.json["id"]], "no second effect"
    reused = write(server, "POST", "", note("other", "x"), **once)
    assert (reused.status, reused.json["code"]) == (422, "idempotency_key_reused")
