"""A closed-loop HTTP load: a number of keep-alive connections, each sending its next request when the last was answered.

On bare sockets, since the client shares the machine with what it measures: it must cost little.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True)
class Load:
    """What a run of load came to."""

    requests: int
    failed: int
    seconds: float

    @property
    def per_second(self) -> float:
        """Answered requests a second."""
        return (self.requests - self.failed) / self.seconds


def request(path: str, body: bytes, key: str) -> bytes:
    """One POST as it goes over the wire."""
    head = (
        f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {key}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def run(url: str, requests: Sequence[bytes], connections: int, seconds: float) -> Load:
    """Sends `requests` in turn, again from the start when they run out, over `connections` connections for `seconds` s."""
    return asyncio.run(_run(url, requests, connections, seconds))


async def _run(url: str, requests: Sequence[bytes], connections: int, seconds: float) -> Load:
    parts = urlsplit(url)
    assert parts.hostname is not None
    counts = [0, 0]
    end = time.monotonic() + seconds
    started = time.monotonic()
    workers = [
        _connection(parts.hostname, parts.port or 80, requests, number, connections, end, counts)
        for number in range(connections)
    ]
    await asyncio.gather(*workers)
    return Load(counts[0], counts[1], time.monotonic() - started)


async def _connection(
    host: str, port: int, requests: Sequence[bytes], first: int, step: int, end: float, counts: list[int]
) -> None:
    reader, writer = await asyncio.open_connection(host, port)
    place = first
    while time.monotonic() < end:
        writer.write(requests[place % len(requests)])
        place += step
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length:", 1)[1].split(b"\r\n", 1)[0])
        await reader.readexactly(length)
        counts[0] += 1
        counts[1] += b" 200 " not in head[:16]
    writer.close()
