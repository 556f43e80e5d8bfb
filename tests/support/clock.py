"""A clock that stands still until it is told to go on."""

from __future__ import annotations


class ManualClock:
    """A `Clock`. Both of its times advance together."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._elapsed_s = 0.0

    def now_ms(self) -> int:
        return self._now_ms + int(self._elapsed_s * 1000)

    def monotonic(self) -> float:
        return self._elapsed_s

    def advance(self, seconds: float) -> None:
        self._elapsed_s += seconds
