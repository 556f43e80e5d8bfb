"""Data folders that the product itself indexed, and servers over them under load."""

from __future__ import annotations

import contextlib
import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import load
from benchmarks.material import PROJECT
from benchmarks.rounds import Rate
from tests.support.server import Server, raycall

#: What an answer holds from which nothing was left out for a failure.
COMPLETE = b'"degradations":[]'
CONNECTIONS = 16


@dataclass(frozen=True, slots=True)
class Indexed:
    """An indexed data folder and what its making took."""

    data_dir: Path
    report: dict[str, Any]
    seconds: float
    #: An admin's key that is a member of the project alone, so that every guard layer but the agent's has a clause.
    key: str


def index(corpus: Path, data_dir: Path, **settings: Any) -> Indexed:
    """`raycall index` as a user runs it, from start to end of the process, and a key for the project."""
    started = time.perf_counter()
    done = raycall(data_dir, "index", "--json", "--project", PROJECT, str(corpus), timeout=1200.0, **settings)
    seconds = time.perf_counter() - started
    if done.returncode:
        raise RuntimeError(f"indexing failed:\n{done.stderr[-3000:]}")
    report = json.loads(done.stdout)
    report.pop("skipped_files")
    made = raycall(data_dir, "keys", "create", "bench", "--project", PROJECT, "--json", **settings)
    if made.returncode:
        raise RuntimeError(f"no key was made:\n{made.stderr[-3000:]}")
    return Indexed(data_dir, report, seconds, json.loads(made.stdout)["secret"])


def copied(indexed: Indexed, data_dir: Path) -> Indexed:
    """A copy of a data folder that no server uses."""
    shutil.rmtree(data_dir, ignore_errors=True)
    shutil.copytree(indexed.data_dir, data_dir)
    return Indexed(data_dir, indexed.report, indexed.seconds, indexed.key)


@contextlib.contextmanager
def running(indexed: Indexed, **settings: str) -> Iterator[Server]:
    """`raycall serve` over the folder, with its normal deadline; stopped in the end, whatever happens."""
    server = Server(indexed.data_dir, **settings)
    try:
        yield server
    finally:
        server.stop()


class Searches:
    """Rounds of load on one server."""

    def __init__(self, server: Server, key: str, questions: list[str], seconds: float, **fields: Any) -> None:
        self._server = server
        self._seconds = seconds
        bodies = [json.dumps({"query": question, **fields}).encode() for question in questions]
        self._searches = load.cycle([load.request("/v1/search", body, key) for body in bodies])
        self._noops = load.cycle([load.request("/v1/noop", body, key) for body in bodies])
        self.failed = 0

    def search(self) -> Rate:
        """Hybrid searches; an answer with a degradation makes the round worthless, so it is counted."""
        return self._rate(self._searches, COMPLETE)

    def noop(self) -> Rate:
        """The same bodies to the route that does nothing."""
        return self._rate(self._noops, b"")

    def _rate(self, requests: Iterator[bytes], marker: bytes) -> Rate:
        found = load.run(self._server.url, requests, CONNECTIONS, self._seconds, marker)
        self.failed += found.failed + found.unmarked
        notes = {
            "requests": found.answered,
            "failed": found.failed,
            "degraded": found.unmarked,
            "p50_ms": found.latency_ms(0.50),
            "p99_ms": found.latency_ms(0.99),
        }
        return Rate(found.per_second, notes)
