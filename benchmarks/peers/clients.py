"""A closed loop of threads inside one process: each asks its next question when the last was answered."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from typing import Any


def closed_loop(ask: Callable[[int], object], questions: int, clients: int, seconds: float) -> dict[str, Any]:
    """Asks questions 0 to `questions` - 1 in turn, over and over, by `clients` threads for `seconds` s."""
    numbers, latencies, failures = itertools.count(), list[float](), list[Exception]()
    lock = threading.Lock()
    started = time.perf_counter()

    def client() -> None:
        own = []
        try:
            while (now := time.perf_counter()) < started + seconds:
                ask(next(numbers) % questions)
                own.append(time.perf_counter() - now)
        except Exception as error:
            failures.append(error)
        with lock:
            latencies.extend(own)

    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return summary(latencies, time.perf_counter() - started)


def summary(latencies: list[float], took: float) -> dict[str, Any]:
    """Throughput and latencies."""
    latencies.sort()
    count = len(latencies)
    return {
        "per_second": round(count / took, 1),
        "p50_ms": round(1000 * latencies[count // 2], 2),
        "p99_ms": round(1000 * latencies[min(count - 1, int(0.99 * count))], 2),
        "answered": count,
    }
