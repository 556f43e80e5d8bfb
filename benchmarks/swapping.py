"""How even answers are while nodes are written and a generation is swapped: open loop, at half of the saturation rate."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.material import PROJECT
from benchmarks.server import Indexed
from tests.support import open_loop
from tests.support.open_loop import Outcome, spaced
from tests.support.server import Server, raycall

WRITES_PER_S = 50.0


@dataclass(frozen=True, slots=True)
class Evenness:
    """One run: latencies of searches in milliseconds, and what failed."""

    per_second: float
    p50_ms: float
    p99_ms: float
    worst_ms: float
    write_p50_ms: float
    write_p99_ms: float
    requests: int
    failed: int
    degraded: int
    #: Latency of the slowest search of each second, from the start on.
    seconds_ms: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """p99 in units of p50."""
        return round(self.p99_ms / self.p50_ms, 2)


def swap(data_dir: Path) -> None:
    """Has the server serve the other generation of the project."""
    done = raycall(data_dir, "generations", "rollback", PROJECT)
    if done.returncode:
        raise RuntimeError(f"no swap:\n{done.stderr[-3000:]}")


def evenness(
    server: Server,
    indexed: Indexed,
    questions: Iterator[str],
    per_second: float,
    seconds: float,
    writes_per_s: float = WRITES_PER_S,
    beside: Callable[[], None] = lambda: None,
) -> Evenness:
    """Asks `per_second` questions and writes `writes_per_s` nodes; `beside` is done a third of the time after the start."""
    asking = (open_loop.request("POST", "/v1/search", json.dumps({"query": text}).encode(), indexed.key) for text in questions)
    arrivals = spaced("search", per_second, seconds, asking)
    if writes_per_s:
        arrivals += spaced("write", writes_per_s, seconds, _writes(indexed.key))
    timer = threading.Timer(seconds / 3, beside)
    timer.start()
    try:
        outcomes = open_loop.run(server.url, arrivals)
    finally:
        timer.join()
    return summary(outcomes, per_second, seconds)


def _writes(key: str) -> Iterator[bytes]:
    for number in count():
        body = {"project": PROJECT, "text": {"title": f"Note {number}", "content": f"What was found out about {number}."}}
        yield open_loop.request("POST", "/v1/nodes", json.dumps(body).encode(), key)


def summary(outcomes: list[Outcome], per_second: float, seconds: float) -> Evenness:
    """The figures of one run."""
    searches = [outcome for outcome in outcomes if outcome.kind == "search"]
    writes = [outcome.latency_s for outcome in outcomes if outcome.kind == "write"] or [0.0]
    latencies = [outcome.latency_s for outcome in searches]
    by_second = [[1000 * o.latency_s for o in searches if int(o.at_s) == second] for second in range(int(seconds))]
    return Evenness(
        per_second=round(per_second, 1),
        p50_ms=round(1000 * open_loop.share(latencies, 0.5), 1),
        p99_ms=round(1000 * open_loop.share(latencies, 0.99), 1),
        worst_ms=round(1000 * max(latencies), 1),
        write_p50_ms=round(1000 * open_loop.share(writes, 0.5), 1),
        write_p99_ms=round(1000 * open_loop.share(writes, 0.99), 1),
        requests=len(outcomes),
        failed=sum(outcome.status not in (200, 201) for outcome in outcomes),
        degraded=sum(outcome.status == 200 and b'"degradations":[]' not in outcome.body for outcome in searches),
        seconds_ms=tuple(round(max(found, default=0.0), 1) for found in by_second),
    )


def visible_after_ack_ms(server: Server, indexed: Indexed, rounds: int = 30) -> dict[str, Any]:
    """Milliseconds from the acknowledgement of a durable write to the first answer that holds it; the median of `rounds`."""
    delays = []
    for number in range(rounds):
        word = f"zq{number:03d}{time.monotonic_ns():x}"
        body = {"project": PROJECT, "text": {"title": word, "content": f"The word {word} is nowhere else."}}
        written = server.request("POST", "/v1/nodes", body, key=indexed.key)
        acknowledged = time.perf_counter()
        if written.status != 201:
            raise RuntimeError(f"not written: {written.body!r}")
        while True:
            found = server.request("POST", "/v1/search", {"query": word, "limit": 1, "expand_hops": 0}, key=indexed.key)
            if found.status == 200 and any(hit["title"] == word for hit in found.json["hits"]):
                break
            if time.perf_counter() - acknowledged > 10:
                raise RuntimeError("what was written is not found")
        delays.append(1000 * (time.perf_counter() - acknowledged))
    return {"ms": round(median(delays), 1), "worst_ms": round(max(delays), 1), "rounds": rounds}


def add_generation(indexed: Indexed, corpus: Path) -> None:
    """Builds a second generation of the project, so that a server swaps between two that it need not build."""
    (corpus / "added_for_a_second_generation.py").write_text('"""One more file."""\n')
    done = raycall(indexed.data_dir, "index", "--json", "--project", PROJECT, str(corpus), timeout=1200.0)
    if done.returncode:
        raise RuntimeError(f"no second generation:\n{done.stderr[-3000:]}")
