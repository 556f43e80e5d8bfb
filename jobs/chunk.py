"""Cutting text to size: at a blank line, else at a line, else at a sentence or word, else between two whole characters.

Offsets and lengths count code points. The spans of a text, joined, are the text: nothing is lost, trimmed or repeated.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from typing import NamedTuple

from cluster.text import joins


class Span(NamedTuple):
    """A part of a text, `text[start:end]`."""

    start: int
    end: int


#: Where a chunk may end, best first. Each match's end is a cut.
_CUTS = (
    re.compile(r"\n(?:[^\S\n]*\n)+"),
    re.compile(r"\n"),
    re.compile(r"[.!?…][\"'”’)\]]*\s+|[。！？｡]"),
    re.compile(r"\s"),
)
#: A better kind of cut is taken only if it fills at least this part of the limit; otherwise a lesser kind that fills more.
_MIN_FILL = 0.25


def split_text(text: str, max_chars: int) -> list[Span]:
    """Spans of at most `max_chars` (1 or more) code points that join to `text`; none for "".

    No span starts inside a grapheme cluster (combining marks, ZWJ sequences, flags, decomposed Hangul), unless one cluster
    alone is longer than `max_chars`. Time is linear in len(text).
    """
    if max_chars < 1:
        raise ValueError("max_chars must be at least 1")
    spans: list[Span] = []
    start = 0
    while len(text) - start > max_chars:
        end = _cut(text, start, start + max_chars)
        spans.append(Span(start, end))
        start = end
    if start < len(text):
        spans.append(Span(start, len(text)))
    return spans


def _cut(text: str, start: int, limit: int) -> int:
    """The best end, in (start, limit], for a chunk that begins at `start`; `limit` < len(text)."""
    least = start + max(1, int((limit - start) * _MIN_FILL))
    for pattern in _CUTS:
        ends = [match.end() for match in pattern.finditer(text, start, limit)]
        for end in reversed(ends):
            if end < least:
                break
            if not joins(text, end, start):
                return end
    for end in range(limit, start, -1):
        if not joins(text, end, start):
            return end
    return limit


class LineIndex:
    """Line numbers of offsets in one text. A line ends with "\\n" and with nothing else; lines count from 1."""

    def __init__(self, text: str) -> None:
        self._starts = [0, *(match.end() for match in re.finditer("\n", text))]

    def line_of(self, offset: int) -> int:
        return bisect_right(self._starts, offset)

    def lines_of(self, text: str, span: Span) -> tuple[int, int]:
        """(line of the first character, line of the last one that is not white space) of a span of `text`."""
        last = span.start + max(len(text[span.start : span.end].rstrip()) - 1, 0)
        return self.line_of(span.start), self.line_of(last)
