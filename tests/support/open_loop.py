"""An open-loop HTTP load: requests are sent at fixed times, whether those before were answered or not.

A closed loop asks less while the server is slow, and so hides how long others would have waited. Latencies count from the time
at which a request was due. On a bare protocol, since the client shares the machine with what it measures.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request and when it is due, in seconds after the start."""

    at_s: float
    kind: str
    raw: bytes


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a request; status 0: the connection broke."""

    kind: str
    at_s: float
    latency_s: float
    status: int
    body: bytes


def request(method: str, path: str, body: bytes, key: str) -> bytes:
    """One request as it goes over the wire."""
    head = (
        f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {key}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def spaced(kind: str, per_second: float, seconds: float, raws: Iterable[bytes]) -> list[Arrival]:
    """Requests at even distances, as many as `raws` has for that time."""
    count = int(per_second * seconds)
    return [Arrival(number / per_second, kind, raw) for number, raw in zip(range(count), raws, strict=False)]


def run(url: str, arrivals: Sequence[Arrival]) -> list[Outcome]:
    """Sends each of `arrivals` when it is due, and returns what became of each, in their order by time."""
    return asyncio.run(_run(url, sorted(arrivals, key=lambda arrival: arrival.at_s)))


def share(latencies: Iterable[float], part: float) -> float:
    """The latency that `part` (0 to 1) of the requests kept."""
    ordered = sorted(latencies)
    return ordered[min(len(ordered) - 1, int(part * len(ordered)))]


class _Connection(asyncio.Protocol):
    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.used = self.closed = False
        self._received = b""
        self._answer: asyncio.Future[tuple[int, bytes]] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    async def send(self, raw: bytes) -> tuple[int, bytes]:
        assert self.transport is not None
        self._answer = asyncio.get_running_loop().create_future()
        if self.closed:
            raise ConnectionError("closed while idle")
        self.transport.write(raw)
        answer = await self._answer
        self.used = True
        return answer

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, found, body = self._received.partition(b"\r\n\r\n")
        if not found:
            return
        headers = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:])
        if len(body) < int(headers[b"content-length"]):
            return
        self._received = b""
        self.closed = self.closed or headers.get(b"connection") == b"close"
        if self._answer is not None and not self._answer.done():
            self._answer.set_result((int(head[9:12]), body))

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error or ConnectionError("the server closed the connection"))


class _Pool:
    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname, parts.port
        self._idle: list[_Connection] = []

    async def send(self, raw: bytes) -> tuple[int, bytes]:
        """The answer, or (0, b"") when a fresh connection breaks; one that was idle may have been closed in between."""
        while True:
            connection = self._idle.pop() if self._idle else await self._fresh()
            try:
                answer = await connection.send(raw)
            except OSError:
                if connection.used:
                    continue
                return 0, b""
            if not connection.closed:
                self._idle.append(connection)
            return answer

    async def _fresh(self) -> _Connection:
        _, connection = await asyncio.get_running_loop().create_connection(_Connection, self._host, self._port)
        return connection

    def close(self) -> None:
        for connection in self._idle:
            assert connection.transport is not None
            connection.transport.close()


async def _run(url: str, arrivals: Sequence[Arrival]) -> list[Outcome]:
    loop, pool = asyncio.get_running_loop(), _Pool(url)
    started = loop.time()

    async def one(arrival: Arrival) -> Outcome:
        try:
            status, body = await pool.send(arrival.raw)
        except OSError:
            status, body = 0, b""
        return Outcome(arrival.kind, arrival.at_s, loop.time() - started - arrival.at_s, status, body)

    tasks = []
    for arrival in arrivals:
        await asyncio.sleep(max(0.0, started + arrival.at_s - loop.time()))
        tasks.append(loop.create_task(one(arrival)))
    outcomes = await asyncio.gather(*tasks)
    pool.close()
    return outcomes
