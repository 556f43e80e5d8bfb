"""A closed-loop HTTP load: a number of keep-alive connections, each sending its next request when the last was answered.

On a bare protocol, since the client shares the machine with what it measures: it must cost little.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import urlsplit

T = TypeVar("T")

_LENGTH = b"content-length:"


@dataclass(frozen=True, slots=True)
class Load:
    """What a run of load came to."""

    answered: int
    #: Answers with another status than 200.
    failed: int
    #: Good answers without the marker that was asked for.
    unmarked: int
    seconds: float
    #: Seconds of each answer, ascending.
    latencies: tuple[float, ...]

    @property
    def per_second(self) -> float:
        """Good answers a second."""
        return (self.answered - self.failed) / self.seconds

    def latency_ms(self, share: float) -> float:
        """The latency that `share` (0 to 1) of the answers kept, in milliseconds."""
        if not self.latencies:
            return float("nan")
        return round(1000 * self.latencies[min(len(self.latencies) - 1, int(share * len(self.latencies)))], 2)


def request(path: str, body: bytes, key: str) -> bytes:
    """One POST as it goes over the wire."""
    head = (
        f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {key}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def run(url: str, requests: Iterator[bytes], connections: int, seconds: float, marker: bytes = b"") -> Load:
    """Sends what `requests` gives over `connections` connections for `seconds` s. Raises when a connection breaks.

    `marker`: bytes that a good answer holds, such as the statement that nothing was left out.
    """
    return asyncio.run(_run(url, requests, connections, seconds, marker))


def cycle(requests: Sequence[T]) -> Iterator[T]:
    """The requests in turn, from the start again when they run out; one iterator serves all rounds."""
    while True:
        yield from requests


async def _run(url: str, requests: Iterator[bytes], connections: int, seconds: float, marker: bytes) -> Load:
    parts = urlsplit(url)
    assert parts.hostname is not None and parts.port is not None
    host, port, loop = parts.hostname, parts.port, asyncio.get_running_loop()
    started = time.perf_counter()
    end = started + seconds
    clients = []
    for _ in range(connections):
        _, client = await loop.create_connection(lambda: _Client(requests, end, marker), host, port)
        clients.append(client)
    await asyncio.gather(*(client.done for client in clients))
    latencies = sorted(latency for client in clients for latency in client.latencies)
    took = time.perf_counter() - started
    failed, unmarked = (sum(counts) for counts in zip(*((client.failed, client.unmarked) for client in clients), strict=True))
    return Load(len(latencies), failed, unmarked, took, tuple(latencies))


class _Client(asyncio.Protocol):
    def __init__(self, requests: Iterator[bytes], end: float, marker: bytes) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.latencies: list[float] = []
        self.failed = self.unmarked = 0
        self._requests = requests
        self._end = end
        self._marker = marker
        self._received = b""
        self._sent_at = 0.0
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._send()

    def _send(self) -> None:
        assert self._transport is not None
        self._sent_at = time.perf_counter()
        self._transport.write(next(self._requests))

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, found, body = self._received.partition(b"\r\n\r\n")
        if not found or len(body) < _content_length(head):
            return
        now = time.perf_counter()
        self.latencies.append(now - self._sent_at)
        if b" 200 " not in head[:16]:
            self.failed += 1
        elif self._marker not in body:
            self.unmarked += 1
        self._received = b""
        if now < self._end:
            self._send()
        elif not self.done.done():
            self.done.set_result(None)
            assert self._transport is not None
            self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(error or ConnectionError("the server closed the connection"))


def _content_length(head: bytes) -> int:
    lower = head.lower()
    if _LENGTH not in lower:
        raise ConnectionError(f"an answer without its length: {head[:200]!r}")
    return int(lower.split(_LENGTH, 1)[1].split(b"\r\n", 1)[0])
