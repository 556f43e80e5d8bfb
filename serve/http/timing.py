"""How long a request may take: the header by which a client shortens it."""

from __future__ import annotations

import math
import re
from typing import Any

from starlette.requests import Request

from cluster.errors import UsageError
from cluster.model.query import Degradation

TIMEOUT_HEADER = "x-request-timeout"
#: Shortest time that is read as it is; nothing can be done in less.
LEAST_S = 0.01

#: As OpenAPI says it.
TIMEOUT_PARAMETER: dict[str, Any] = {
    "name": "X-Request-Timeout",
    "in": "header",
    "schema": {"type": "number", "exclusiveMinimum": 0},
    "example": 0.5,
    "description": "Seconds that the client gives the request, waiting included; at most the server's own deadline.",
}

_SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?")


def read_timeout(request: Request) -> float | None:
    """Seconds that the client gives the request, from its arrival on, at least LEAST_S; None when it says nothing.

    Raises UsageError for what is no positive decimal number of seconds, like 0.5, and for two of them.
    """
    values = request.headers.getlist(TIMEOUT_HEADER)
    if not values:
        return None
    text = values[0].strip(" ")
    seconds = float(text) if len(values) == 1 and _SECONDS.fullmatch(text) else math.nan
    if not seconds > 0:
        raise UsageError(f"{TIMEOUT_HEADER} must be one positive number of seconds, such as 0.5", field=TIMEOUT_HEADER)
    return max(LEAST_S, seconds)


def clamped_notice(asked_s: float | None, most_s: float) -> tuple[Degradation, ...]:
    """What is to be said when the client gave more time than there is."""
    if asked_s is None or asked_s <= most_s:
        return ()
    detail = f"{TIMEOUT_HEADER} is at most {most_s:g} s here: that was used instead of {asked_s:g} s"
    return (Degradation(code="timeout_clamped", detail=detail),)
