"""Labels that no row has, as far as the caller may read: a misspelt one shows in the answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from cluster.errors import RaycallError
from cluster.guards import search_guard
from cluster.model.access import Principal
from cluster.model.query import Degradation, LexicalQuery, Pins, SearchRequest
from serve.legs import Legs

#: Labels that are looked for, of one request: each costs a question to the lexical leg.
MOST_LOOKED_FOR = 5


async def unknown_labels(
    legs: Legs, request: SearchRequest, principal: Principal, pins: Pins, seen: Iterable[str], deadline: float, timeout_s: float
) -> tuple[Degradation, ...]:
    """A notice that names the labels of `request` that no row has which `principal` may search in the projects of `pins`.

    What the principal may not read does not count, so that such a label is told like one that does not exist. `seen`: labels
    of the hits, which need no second look. `deadline`: as for the legs; where it cannot be found out in `timeout_s` from now,
    nothing is said. The first MOST_LOOKED_FOR alone are looked for; where one of them is named, so is how many others were not.
    """
    known = set(seen)
    absent = [label for label in request.labels if label not in known]
    asked, left = absent[:MOST_LOOKED_FOR], len(absent[MOST_LOOKED_FOR:])
    if not asked or not pins:
        return ()

    async def missing(label: str) -> bool:
        guard = search_guard(principal, pins, (label,))
        answer = await legs.lexical(LexicalQuery(text=request.query, guard=guard, pins=pins, k=1), deadline)
        return not answer.failures and not answer.left_out and answer.explain.get("documents") == 0

    try:
        async with asyncio.timeout(max(0.0, timeout_s)):
            found = await asyncio.gather(*map(missing, asked))
    except (RaycallError, TimeoutError):
        return ()
    names = ", ".join(repr(label[:100]) for label, is_missing in zip(asked, found, strict=True) if is_missing)
    if not names:
        return ()
    rest = f" ({left} more were not looked for)" if left else ""
    return (Degradation(code="unknown_labels", detail=f"nothing that this key may search here has the label: {names}{rest}"),)
