"""A stand-in for `http.client.HTTPConnection`: records what is asked and answers from a list, without a socket."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any


@dataclass
class FakeResponse:
    status: int
    body: bytes

    def read(self, amount: int) -> bytes:
        return self.body[:amount]


@dataclass
class FakeConnection:
    """Answers each request with the next of `answers`; an exception there is raised instead."""

    answers: list[Any]
    requests: list[dict[str, Any]] = field(default_factory=list)
    closed: int = 0

    def request(self, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> None:
        self.requests.append(
            {"method": method, "path": path, "body": None if body is None else json.loads(body), "headers": headers}
        )
        if isinstance(self.answers[0], OSError):
            raise self.answers.pop(0)

    def getresponse(self) -> FakeResponse:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        status, body = answer
        raw = body if isinstance(body, bytes) else json.dumps(body).encode()
        return FakeResponse(status, raw)

    def close(self) -> None:
        self.closed += 1
