"""Half of what the server can answer, with writes and a swap at the same time: no request fails."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Iterator

import pytest

from tests.support import open_loop
from tests.support.open_loop import spaced
from tests.support.repository import make_repository
from tests.support.server import Server, raycall

PROJECT = "pump-controller"
SECONDS = 8.0
WRITES_PER_S, MOST_PER_S = 50.0, 15.0
QUESTIONS = ("pump pressure", "where is the valve closed", "check_pressure", "what restarts the controller", "alarm limits")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server over two generations of one project, of which it serves the second; with the deadline of a normal one."""
    folder = tmp_path_factory.mktemp("load")
    repository = make_repository(folder / PROJECT)
    data_dir = folder / "data"
    assert raycall(data_dir, "index", str(repository)).returncode == 0
    (repository / "added.md").write_text("# Added\n\nThe second generation has this file.\n")
    assert raycall(data_dir, "index", str(repository)).returncode == 0
    running = Server(data_dir, RAYCALL_SEARCH_DEADLINE_S="10")
    try:
        yield running
    finally:
        running.stop()


def searches(key: str) -> Iterator[bytes]:
    for text in itertools.cycle(QUESTIONS):
        yield open_loop.request("POST", "/v1/search", json.dumps({"query": text}).encode(), key)


def writes(key: str) -> Iterator[bytes]:
    for number in itertools.count():
        body = {"id": f"note-{number}", "project": PROJECT, "text": {"content": f"Note {number} about the pump."}}
        yield open_loop.request("POST", "/v1/nodes", json.dumps(body).encode(), key)


def served(server: Server) -> str:
    (project,) = server.request("GET", "/v1/status").json["projects"]
    return str(project["generation"])


def saturation(server: Server) -> float:
    """Questions a second that are answered when fifty are asked at once."""
    raws = searches(server.key)
    for _ in range(20):
        open_loop.run(server.url, [open_loop.Arrival(0.0, "search", next(raws))])
    started = time.perf_counter()
    outcomes = open_loop.run(server.url, [open_loop.Arrival(0.0, "search", next(raws)) for _ in range(50)])
    assert all(outcome.status == 200 for outcome in outcomes)
    return 50 / (time.perf_counter() - started)


def test_no_request_fails_while_nodes_are_written_and_a_generation_is_swapped(server: Server) -> None:
    before = served(server)
    # Capped: the machine that tests run on does other work, too, and no machine is to be measured here.
    rate = min(saturation(server) / 2, MOST_PER_S)
    arrivals = spaced("search", rate, SECONDS, searches(server.key)) + spaced(
        "write", WRITES_PER_S, SECONDS, writes(server.key)
    )
    swaps: list[int] = []
    swap = threading.Timer(
        SECONDS / 4, lambda: swaps.append(raycall(server.data_dir, "generations", "rollback", PROJECT).returncode)
    )
    swap.start()
    outcomes = open_loop.run(server.url, arrivals)
    swap.join()
    assert len(outcomes) == len(arrivals) > SECONDS * WRITES_PER_S
    failed = [(outcome.kind, outcome.at_s, outcome.status, outcome.body[:300]) for outcome in outcomes]
    assert [one for one in failed if one[2] not in (200, 201)] == []
    assert swaps == [0]
    server.until("the swap", lambda: served(server) != before)
    last = f"note-{int(SECONDS * WRITES_PER_S) - 1}"
    assert server.request("GET", f"/v1/nodes/{last}").status == 200
