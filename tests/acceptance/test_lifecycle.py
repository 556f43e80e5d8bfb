"""Starting, stopping, starting again, and what happens when parts are killed: with real processes and real signals."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.support.files import flip
from tests.support.repository import commit_all, make_repository
from tests.support.server import RAYCALL, Server, clean_env, processes_naming, raycall

#: A project of which these tests change what is served.
PROJECT = "valve-notes"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Iterator[Server]:
    """A server whose parts these tests may kill."""
    running = Server(tmp_path_factory.mktemp("killed"), "--index", str(repository))
    try:
        yield running
    finally:
        running.stop()


def rows(data_dir: Path, project: str) -> dict[str, int]:
    """id -> tokens of every row of the served generation."""
    folder = data_dir / "generations" / project
    served = json.loads((folder / "CURRENT").read_text())["generation"]
    found: dict[str, int] = {}
    for path in sorted((folder / served).rglob("rows.parquet")):
        table = pq.read_table(path)
        found.update(zip(table["id"].to_pylist(), table["tokens"].to_pylist(), strict=True))
    return found


def many_files(folder: Path, count: int) -> Path:
    files = {
        f"pkg/module_{n:03d}.py": f'"""Module {n}."""\n\n\ndef handler_{n}(event):\n    return event\n' for n in range(count)
    }
    return make_repository(folder, files)


def run_dir(server: Server) -> str:
    return str(json.loads((server.data_dir / "server.json").read_text())["run_dir"])


def kill(server: Server, name: str) -> None:
    """SIGKILL to the server's process whose title holds `name`."""
    mark = run_dir(server).encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            if name.encode() in (entry / "cmdline").read_bytes() and mark in (entry / "environ").read_bytes():
                os.kill(int(entry.name), signal.SIGKILL)
                return
    raise AssertionError(f"no process {name}")


def legs(server: Server) -> list[bool]:
    """Which legs answered; none when there was no answer at all."""
    try:
        reply = server.request("POST", "/v1/search", {"query": "pump pressure"})
    except (OSError, http.client.HTTPException):
        return []
    if reply.status != 200:
        return []
    return [leg["ran"] for leg in reply.json["disclosure"]["legs"]]


def generations(server: Server, *arguments: str, code: int = 0) -> Any:
    done = raycall(server.data_dir, "generations", *arguments, "--json")
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return json.loads(done.stdout) if done.stdout else done.stderr


def states(server: Server) -> dict[str, str]:
    return {entry["state"]: entry["generation"] for entry in generations(server, "list", PROJECT)["generations"]}


def until_served(server: Server, generation: str) -> None:
    server.until(
        f"{generation} is served", lambda: server.search("valve")["disclosure"]["generations"].get(PROJECT) == generation
    )


@pytest.mark.parametrize(("victim", "leg"), [("LexicalShardActor", 0), ("VectorShardActor", 1)])
def test_a_killed_shard_lowers_the_answer_and_comes_back_whole(server: Server, victim: str, leg: int) -> None:
    before = [hit["id"] for hit in server.search("pump pressure")["hits"]]
    kill(server, victim)
    answer = server.search("pump pressure valve")
    assert answer["hits"]
    if not answer["disclosure"]["legs"][leg]["ran"]:
        assert answer["disclosure"]["degradations"]
    server.until("both legs", lambda: legs(server) == [True, True])
    assert [hit["id"] for hit in server.search("pump pressure")["hits"]] == before


def test_a_killed_replica_is_replaced(server: Server) -> None:
    before = [hit["id"] for hit in server.search("pump pressure")["hits"]]
    kill(server, "ServeReplica")
    server.until("an answer", lambda: legs(server) == [True, True])
    assert [hit["id"] for hit in server.search("pump pressure")["hits"]] == before


def test_a_folder_indexed_beside_a_running_server_is_found_at_once(server: Server, tmp_path: Path) -> None:
    other = make_repository(tmp_path / "other-project", {"notes.md": "# Notes\n\nThe zebrafish protocol.\n"})
    done = raycall(server.data_dir, "index", str(other), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["files"]["indexed"] == 1

    def best() -> Any:
        # The vectors propose something of the first project until the second one is swapped in.
        hits = server.search("zebrafish protocol")["hits"]
        return hits[0] if hits and hits[0]["project"] == "other-project" else None

    assert server.until("the new project", best, timeout=60)["path"] == "notes.md"
    assert server.search("zebrafish protocol", projects=["pump-controller"])["disclosure"]["generations"].keys() == {
        "pump-controller"
    }


def test_generations_change_under_a_running_server_without_a_failed_request(server: Server, tmp_path: Path) -> None:
    source = make_repository(tmp_path / PROJECT, {"notes.md": "# Notes\n\nThe valve.\n"})
    assert raycall(server.data_dir, "index", str(source)).returncode == 0
    ended, failed = threading.Event(), []

    def ask() -> None:
        while not ended.is_set():
            reply = server.request("POST", "/v1/search", {"query": "the valve", "limit": 5, "projects": [PROJECT]})
            if reply.status != 200 or not all(leg["ran"] for leg in reply.json["disclosure"]["legs"]):
                failed.append(reply.body)

    (first,) = states(server).values()
    until_served(server, first)
    asking = threading.Thread(target=ask)
    asking.start()
    try:
        (source / "valves.md").write_text("# Valves\n\nThe axolotl valve.\n")
        commit_all(source, "second")
        assert raycall(server.data_dir, "index", str(source)).returncode == 0
        second = states(server)["served"]
        assert states(server) == {"previous": first, "served": second}
        until_served(server, second)
        assert generations(server, "verify")["intact"]
        assert generations(server, "rollback", PROJECT)["replaced"] == second
        until_served(server, first)
        assert server.search("axolotl")["hits"][0]["path"] == "valves.md", "what was written since is found all the same"
        assert generations(server, "publish", PROJECT, second)["replaced"] == first
        until_served(server, second)
        assert generations(server, "gc")["removed"] == []
        (faiss,) = (server.data_dir / "generations" / PROJECT / first).rglob("vectors.faiss")
        flip(faiss)
        found = generations(server, "verify", code=1)
        assert "vectors.faiss" in found["projects"][PROJECT][first][0]
        assert "vectors.faiss" in generations(server, "rollback", PROJECT, code=1)
        assert states(server)["served"] == second
    finally:
        ended.set()
        asking.join()
    assert failed == []


def test_the_command_line_asks_the_running_server(server: Server) -> None:
    done = raycall(server.data_dir, "search", "check_pressure", "--limit", "1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("[Symbol, Method] (id: ")
    asked = raycall(server.data_dir, "search", "check_pressure", "--json")
    assert json.loads(asked.stdout)["hits"][0]["path"] == "src/pump/controller.py"
    status = raycall(server.data_dir, "status", "--json")
    assert status.returncode == 0, status.stderr


def test_without_a_server_the_command_line_says_how_to_start_one(tmp_path: Path) -> None:
    done = raycall(tmp_path / "data", "search", "anything")
    assert done.returncode == 1
    assert "raycall serve" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_second_server_on_the_same_data_is_refused(server: Server) -> None:
    done = raycall(server.data_dir, "serve", "--json", "--port", "0")
    assert done.returncode == 1, done.stderr
    assert server.url in done.stderr
    assert server.search("pump")["hits"]


def test_without_haproxy_requests_go_through_serves_own_proxy_and_the_server_says_so(tmp_path: Path) -> None:
    source = make_repository(tmp_path / "pump-controller")
    running = Server(tmp_path / "data", "--index", str(source), RAY_SERVE_HAPROXY_BINARY_PATH="/nonexistent")
    try:
        assert running.state["ha_proxy"] is False
        assert "/nonexistent" in running.state["ha_proxy_problem"]
        assert running.search("check_pressure")["hits"]
        assert running.request("GET", "/v1/status").json["ingress"]["ha_proxy"] is False
    finally:
        running.stop()


def test_ctrl_c_ends_everything_and_the_next_start_serves_what_is_there(tmp_path: Path) -> None:
    source = make_repository(tmp_path / "pump-controller")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        first = Server(tmp_path / "data", "--index", str(source), "--port", str(taken.getsockname()[1]))
        try:
            assert first.state["port"] != taken.getsockname()[1]
            mark = run_dir(first)
            ids = [hit["id"] for hit in first.search("calibration")["hits"]]
        finally:
            code = first.stop()
    assert code in {0, 130}
    assert processes_naming(mark) == []
    assert not (tmp_path / "data" / "server.json").exists()
    # Killed outright, a server leaves helpers behind; the next one ends them and serves what was published.
    second = Server(tmp_path / "data")
    try:
        assert [hit["id"] for hit in second.search("calibration")["hits"]] == ids
        second.stop(signal.SIGKILL)
        third = Server(tmp_path / "data", "--index", str(source))
        try:
            assert [hit["id"] for hit in third.search("calibration")["hits"]] == ids
        finally:
            third.stop(signal.SIGTERM)
    finally:
        second.stop()
    assert processes_naming(mark) == []


def test_only_what_changed_is_read_again(tmp_path: Path) -> None:
    source = make_repository(tmp_path / "pump-controller")
    first = json.loads(raycall(tmp_path / "data", "index", str(source), "--json").stdout)
    (source / "README.md").write_text("# Pump controller\n\nNow about hydraulics.\n")
    (source / "web" / "api.ts").unlink()
    commit_all(source, "second")
    second = json.loads(raycall(tmp_path / "data", "index", str(source), "--json").stdout)
    assert second["files"]["indexed"] == 1
    assert second["files"]["unchanged"] == first["files"]["indexed"] - 2
    assert second["files"]["removed"] == 1
    raycall(tmp_path / "fresh", "index", str(source), "--json")
    assert rows(tmp_path / "data", "pump-controller") == rows(tmp_path / "fresh", "pump-controller")
    third = json.loads(raycall(tmp_path / "data", "index", str(source), "--json").stdout)
    assert third["generation"] == second["generation"]


@pytest.mark.parametrize("progress", [1, 60, 250])
def test_indexing_that_is_killed_goes_on_where_it_was_and_ends_as_a_fresh_run(tmp_path: Path, progress: int) -> None:
    source = many_files(tmp_path / "source", 300)
    data_dir = tmp_path / "data"
    command = [RAYCALL, "index", str(source)]
    with subprocess.Popen(command, env=clean_env(data_dir), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        store = data_dir / "graph.sqlite"
        while process.poll() is None and stored_files(store) < progress:
            time.sleep(0.005)
        process.kill()
    assert not (data_dir / "generations" / "source" / "CURRENT").exists() or len(rows(data_dir, "source")) >= 600
    stored = stored_files(store)
    again = json.loads(raycall(data_dir, "index", str(source), "--json").stdout)
    assert again["files"]["unchanged"] == stored
    assert again["files"]["indexed"] == 300 - stored
    raycall(tmp_path / "fresh", "index", str(source), "--json")
    assert rows(data_dir, "source") == rows(tmp_path / "fresh", "source")


def stored_files(store: Path) -> int:
    import sqlite3

    try:
        with contextlib.closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as connection:
            return int(connection.execute("SELECT count(*) FROM files").fetchone()[0])
    except sqlite3.Error:
        return 0


def test_a_large_folder_is_indexed_on_ray_and_leaves_nothing_behind(tmp_path: Path) -> None:
    source = many_files(tmp_path / "large", 450)
    done = raycall(tmp_path / "data", "index", str(source), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["files"]["indexed"] == 450
    assert processes_naming(str(tmp_path)) == []
