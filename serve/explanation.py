"""`explain`: how an answer came about, in plain values. Pure. Names guard layers and never what they hold for somebody else."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from cluster.model.access import Principal
from cluster.model.query import Hit, SearchRequest
from serve.fusion import lexical_ranks, parameters, vector_ranks
from serve.legs import LegOutcome
from serve.plan import Plan


def explain(
    request: SearchRequest, principal: Principal, plan: Plan, outcomes: tuple[LegOutcome, LegOutcome], hits: Sequence[Hit]
) -> dict[str, Any]:
    """JSON values only, every number finite. The terms' statistics are over documents that the caller may read."""
    lexical, vector = (outcome.answer for outcome in outcomes)
    by_words, by_vector = lexical_ranks(lexical), vector_ranks(vector)
    told: dict[str, Any] = plain(
        {
            "query": {
                "text": request.query,
                "projects": list(plan.pins),
                "labels": list(request.labels),
                "limit": request.limit,
                "expand_hops": request.expand_hops,
                "statistics": request.statistics.value,
            },
            "guard_layers": guard_layers(request, principal),
            "fusion": parameters(request.fusion),
            "lexical": None if lexical is None else dict(lexical.explain),
            "vector": None if vector is None else {"identity": outcomes[1].report.identity, **vector.explain},
            "hits": [
                {
                    "id": hit.node.id,
                    "fused": hit.score.fused,
                    "vector": hit.score.vector,
                    "vector_rank": by_vector.get(hit.node.id),
                    "bm25": hit.score.bm25,
                    "bm25_rank": by_words.get(hit.node.id),
                    "bm25_scaled": hit.score.bm25_scaled,
                }
                for hit in hits
            ],
        }
    )
    return told


def guard_layers(request: SearchRequest, principal: Principal) -> list[str]:
    """The layers that apply to this principal, by name, in the order of the guard table."""
    layers = {
        "soft_delete": True,
        "scope": principal.scopes is not None,
        "agent": principal.agent is not None,
        "expansion": request.expand_hops > 0,
        "account": True,
        "membership": principal.projects is not None or request.projects is not None,
        "visibility": True,
        "labels": bool(request.labels),
    }
    return [name for name, applies in layers.items() if applies]


def plain(value: Any) -> Any:
    """`value` as JSON can hold it: numbers that are not finite become None, other objects their text, keys strings."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, Sequence | set | frozenset):
        return [plain(item) for item in value]
    return plain(value.tolist()) if hasattr(value, "tolist") else str(value)
