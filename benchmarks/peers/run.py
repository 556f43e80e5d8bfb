"""`python -m benchmarks.peers.run PYTHON`: Raycall beside other systems, on one corpus with one set of vectors.

PYTHON is the interpreter of the peers' environment (`make bench-peers`). Every system is indexed and measured in processes of
its own, one after the other; its figures, and what they can and cannot be compared with, are in RESULTS.md.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import load, machine
from benchmarks.peers import chroma
from benchmarks.peers.data import K, Question
from benchmarks.peers.peer import ENGINES
from benchmarks.peers.prepare import Prepared, prepare
from benchmarks.peers.quality import Quality
from benchmarks.peers.table import write_results
from benchmarks.worker import Worker
from tests.support.server import Server

HERE = Path(__file__).parent
OUT = HERE.parent / "out" / "peers"
RESULTS = HERE / "RESULTS.md"
CLIENTS = 16
#: Questions whose answers are judged.
JUDGED = 500
#: Share of a round's length that is asked before it, unmeasured.
WARM_UP = 1.0
FILTERS = (False, True)


@dataclass(slots=True)
class Run:
    """What all measurements share."""

    python: str
    prepared: Prepared
    seconds: float
    quality: Quality
    systems: dict[str, dict[str, Any]] = field(default_factory=dict)
    started: float = field(default_factory=time.monotonic)

    def say(self, text: str) -> None:
        """One line of progress."""
        sys.stderr.write(f"peers: [{time.monotonic() - self.started:5.0f} s] {text}\n")
        sys.stderr.flush()

    @contextlib.contextmanager
    def worker(self, module: str, *arguments: str, own: bool = False) -> Iterator[tuple[Worker, str]]:
        """A worker of the peers' environment, or of the product's, and the mark by which its processes are known."""
        mark = uuid.uuid4().hex
        found = Worker(
            f"benchmarks.peers.{module}",
            *arguments,
            log=OUT / "workers.log",
            environment={"BENCHMARK_MARK": mark, "LANCE_LOG": "error"},
            python=sys.executable if own else self.python,
        )
        try:
            yield found, mark
        finally:
            found.stop()


def measure_in_process(run: Run, name: str, module: str, *arguments: str, own: bool = False) -> None:
    """A library: builds in one process, is opened and asked in another."""
    run.say(f"{name}: building")
    with run.worker(module, *arguments, own=own) as (worker, _):
        built = worker.ask("build")
    found: dict[str, Any] = {"kind": "in process", "build": built, "rounds": {}}
    with run.worker(module, *arguments, own=own) as (worker, mark):
        empty = machine.resident_mb(worker.pid, mark)[0]
        found["open"] = worker.ask("open")
        for leg in worker.hello["legs"]:
            for filtered in FILTERS:
                asked = {"leg": leg, "filtered": filtered, "clients": CLIENTS}
                worker.ask("round", seconds=WARM_UP * run.seconds, **asked)
                measured = worker.ask("round", seconds=run.seconds, **asked)
                rows = worker.ask("answers", leg=leg, filtered=filtered, count=JUDGED)["rows"]
                found["rounds"][_key(leg, filtered)] = {**measured, **run.quality.of(leg, rows, filtered)}
        found["rss_mb"], found["rss_empty_mb"] = machine.resident_mb(worker.pid, mark)[0], empty
    run.systems[name] = found
    run.say(f"{name}: {json.dumps(found['rounds'])}")


def _key(leg: str, filtered: bool) -> str:
    return f"{leg}, filtered" if filtered else leg


# --- servers ------------------------------------------------------------------------------------------------------------------


def measure_chroma(run: Run) -> None:
    """Chroma's server, asked over HTTP."""
    run.say("Chroma: building")
    folder, mark = OUT / "chroma", uuid.uuid4().hex
    with chroma_server(run.python, folder, mark) as (url, pid):
        empty = machine.resident_mb(pid, mark)[0]
        with run.worker("chroma", str(run.prepared.data.folder), url) as (worker, _):
            built = worker.ask("load")
    found: dict[str, Any] = {"kind": "HTTP server", "build": {"seconds": built["seconds"]}, "rounds": {}, "rss_empty_mb": empty}
    vectors = run.prepared.data.question_vectors().tolist()
    with chroma_server(run.python, folder, mark) as (url, pid):
        for filtered in FILTERS:
            requests = [
                load.request(
                    built["path"], json.dumps(chroma.body(vector, question.project if filtered else None)).encode(), ""
                )
                for vector, question in zip(vectors, run.quality.questions, strict=True)
            ]
            measured = http_round(run, url, requests)
            rows = [[int(row) for row in reply["ids"][0]] for reply in replies(url, requests[:JUDGED])]
            found["rounds"][_key("vector", filtered)] = {**measured, **run.quality.of("vector", rows, filtered)}
        found["rss_mb"] = machine.resident_mb(pid, mark)[0]
    run.systems["Chroma"] = found
    run.say(f"Chroma: {json.dumps(found['rounds'])}")


@contextlib.contextmanager
def chroma_server(python: str, folder: Path, mark: str) -> Iterator[tuple[str, int]]:
    """`chroma run` over `folder`; gives its address and process."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    command = [str(Path(python).with_name("chroma")), "run", "--path", str(folder), "--host", "127.0.0.1", "--port", str(port)]
    environment = {**os.environ, "BENCHMARK_MARK": mark, "ANONYMIZED_TELEMETRY": "False"}
    with (OUT / "chroma.log").open("ab") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        _wait(lambda: urllib.request.urlopen(f"{url}/api/v2/heartbeat", timeout=2).close())
        yield url, process.pid
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(look: Callable[[], None]) -> None:
    end = time.monotonic() + 60
    while True:
        try:
            return look()
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.2)


def measure_raycall(run: Run, built: dict[str, Any]) -> None:
    """The served product, asked over HTTP: with its default answers, and with hits alone."""
    run.say("Raycall: starting")
    found: dict[str, Any] = {"kind": "HTTP server", "build": built, "rounds": {}}
    numbers = {row.id: number for number, row in enumerate(run.prepared.data.rows())}
    server = Server(run.prepared.data_dir)
    try:
        state = json.loads((run.prepared.data_dir / "server.json").read_bytes())
        found["rss_empty_mb"] = machine.resident_mb(server.process.pid, state["run_dir"])[0]
        for leg, fields in (("hybrid", {}), ("hybrid, hits alone", {"expand_hops": 0})):
            for filtered in FILTERS:
                requests = [_search(run, question, filtered, fields) for question in run.quality.questions]
                measured = http_round(run, server.url, requests, b'"degradations":[]')
                answers = replies(server.url, requests[:JUDGED])
                rows = [[numbers[hit["id"]] for hit in answer["hits"]] for answer in answers]
                found["rounds"][_key(leg, filtered)] = {**measured, **run.quality.of(leg, rows, filtered)}
        found["rss_mb"], found["rss_programs_mb"] = machine.resident_mb(server.process.pid, state["run_dir"])
    finally:
        server.stop()
    run.systems["Raycall"] = found
    run.say(f"Raycall: {json.dumps(found['rounds'])}")


def _search(run: Run, question: Question, filtered: bool, fields: dict[str, Any]) -> bytes:
    projects = {"projects": [question.project]} if filtered else {}
    body = {"query": question.text, "limit": K, **projects, **fields}
    return load.request("/v1/search", json.dumps(body).encode(), run.prepared.key)


def http_round(run: Run, url: str, requests: list[bytes], marker: bytes = b"") -> dict[str, Any]:
    """The same load as the in-process clients', over as many connections."""
    asked = load.cycle(requests)
    load.run(url, asked, CLIENTS, WARM_UP * run.seconds, marker)
    found = load.run(url, asked, CLIENTS, run.seconds, marker)
    return {
        "per_second": round(found.per_second, 1),
        "p50_ms": found.latency_ms(0.50),
        "p99_ms": found.latency_ms(0.99),
        "answered": found.answered,
        "failed": found.failed + found.unmarked,
    }


def replies(url: str, requests: list[bytes]) -> Iterator[Any]:
    """The answers to some of the requests, one after the other."""
    host, port = url.rsplit("//")[1].split(":")
    for request in requests:
        head, _, body = request.partition(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines[1:])
        path = f"http://{host}:{port}{lines[0].split()[1]}"
        with urllib.request.urlopen(urllib.request.Request(path, data=body, headers=headers), timeout=60) as reply:
            yield json.loads(reply.read())


# --- the run ------------------------------------------------------------------------------------------------------------------


def peer_versions(python: str) -> dict[str, str]:
    """Versions of what the requirements name, as installed."""
    names = [line.split("#")[0].strip() for line in (HERE / "requirements.in").read_text().splitlines()]
    names = [name for name in names if name]
    code = "import json, sys; from importlib.metadata import version; print(json.dumps({n: version(n) for n in sys.argv[1:]}))"
    done = subprocess.run([python, "-c", code, *names], capture_output=True, text=True, check=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found


def main() -> int:
    """Measures every system and writes the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers.run", description=__doc__)
    parser.add_argument("python", help="interpreter of the peers' environment")
    parser.add_argument("--chunks", type=int, default=100_000, help="rows, about")
    parser.add_argument("--seconds", type=float, default=10.0, help="length of a round")
    parser.add_argument("--only", nargs="*", help="systems to measure (default: all)")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the table goes; JSON goes beside it")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    shutil.rmtree(OUT, ignore_errors=True)
    OUT.mkdir(parents=True)
    described = {**machine.describe(), "peer_versions": peer_versions(options.python)}
    started = time.time()
    prepared = prepare(OUT / "corpus", options.chunks)
    run = Run(options.python, prepared, options.seconds, Quality(prepared.data))
    data, wanted = str(prepared.data.folder), options.only or [*ENGINES, "Chroma", "Raycall"]
    run.say(f"{prepared.rows} rows of {prepared.files} files")
    for number, name in enumerate(ENGINES):
        if name in wanted:
            folder = OUT / f"engine-{number}"
            folder.mkdir()
            measure_in_process(run, name, "peer", name, data, str(folder))
            shutil.rmtree(folder)
    if "Chroma" in wanted:
        measure_chroma(run)
    if "Raycall" in wanted:
        measure_in_process(run, "Raycall, legs", "raycall_legs", data, str(prepared.data_dir), own=True)
        measure_raycall(run, run.systems["Raycall, legs"]["build"])
    corpus = {
        "rows": prepared.rows,
        "files": prepared.files,
        "dimensions": prepared.dimensions,
        "raycall_index_s": prepared.index_seconds,
        "clients": CLIENTS,
        "seconds": options.seconds,
        "judged": JUDGED,
    }
    write_results(options.results, {"date": started, "machine": described, "corpus": corpus, "systems": run.systems})
    shutil.rmtree(OUT / "corpus")
    return 0


if __name__ == "__main__":
    sys.exit(main())
