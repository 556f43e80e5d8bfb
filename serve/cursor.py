"""Where a page of an answer ended, as a text that the caller hands back for the next page. Pure.

A cursor pins the generations of the answer that it came with, so that a rebuild between two pages neither repeats nor loses a
hit, and it names the last candidate rather than a number of hits. It belongs to one question of one key. It grants nothing: a
page is guarded as every answer is, so a forged one finds what its forger may read anyway.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cluster.errors import UsageError
from cluster.model.access import Principal
from cluster.model.ids import NAME_PATTERN
from cluster.model.query import Fusion, Pins, SearchRequest
from serve.fusion import ROUNDING, Candidate, order_key

#: Longest cursor in characters: a hundred projects with long names.
MAX_CURSOR = 40_000
_VERSION = 1
_UNREADABLE = "the cursor is not one that this server gave out; ask again without it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """The state behind the text."""

    pins: Pins
    #: Of all that decides on the list, the limit apart.
    question: str
    #: The place of the last candidate that was looked at, in the fused order.
    last: tuple[float, bool, str]


def fingerprint(request: SearchRequest, principal: Principal) -> str:
    """Hash of the question and of who asks; pages of different sizes share it."""
    parts = [
        request.query,
        sorted(request.projects) if request.projects is not None else None,
        sorted(request.labels),
        request.fusion.value,
        request.statistics.value,
        principal.key_id,
    ]
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=12).hexdigest()


def write_cursor(request: SearchRequest, principal: Principal, pins: Pins, last: Candidate) -> str:
    """The cursor behind candidate `last`."""
    value = [_VERSION, dict(pins), fingerprint(request, principal), *order_key(last, request.fusion)]
    return base64.urlsafe_b64encode(json.dumps(value, separators=(",", ":")).encode()).decode().rstrip("=")


def read_cursor(text: str, request: SearchRequest, principal: Principal) -> Cursor:
    """The state that `text` stands for; raises UsageError when it is not a cursor, or one of another question or key."""
    cursor = _parsed(text)
    if cursor.question != fingerprint(request, principal):
        raise UsageError("the cursor belongs to another question; repeat all fields but limit, or leave it out", field="cursor")
    return cursor


def _parsed(text: str) -> Cursor:
    try:
        if len(text) > MAX_CURSOR:
            raise ValueError
        raw: Any = json.loads(base64.b64decode(text + "=" * (-len(text) % 4), altchars="-_", validate=True))
        version, pins, question, negative, unmatched, node_id = raw
        named = all(isinstance(name, str) and NAME_PATTERN.fullmatch(name) for name in (*pins, *pins.values()))
        typed = type(negative) is float and math.isfinite(negative) and type(unmatched) is bool and type(node_id) is str
        if version != _VERSION or not named or not typed or type(question) is not str:
            raise ValueError
    except (ValueError, TypeError, AttributeError, RecursionError, binascii.Error) as error:
        raise UsageError(_UNREADABLE, field="cursor") from error
    return Cursor(pins=pins, question=question, last=(negative, unmatched, node_id))


def start_after(candidates: Sequence[Candidate], last: tuple[float, bool, str], method: Fusion) -> int:
    """The position of the first of `candidates`, in the fused order, that comes after `last`, which need not be there.

    Another replica of a shard may round its scores otherwise. A last one that moved by no more than that is followed, since
    all that ties with it moved, too: by the score alone they would be on two pages or on none.
    """
    for place, candidate in enumerate(candidates):
        if candidate.id == last[2] and abs(candidate.fused + last[0]) <= ROUNDING:
            return place + 1
    return bisect_right(candidates, last, key=lambda candidate: order_key(candidate, method))
