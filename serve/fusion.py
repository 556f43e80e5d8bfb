"""Two ranked lists become one. Pure: the same answers give the same order, whatever order they came in.

    weighted      0.7 * cosine + 0.3 * (bm25 - min) / (max - min), the minimum and maximum taken over the lexical candidates of
                  this query; 1.0 for each of them when they are all equal (the first seed's formula and weights)
    weighted_max  0.7 * cosine + 0.3 * bm25 / max
    rrf           sum over the legs of 1 / (60 + rank), rank from 1 (Cormack, Clarke, Büttcher, SIGIR 2009)

Rules that hold for all of them:

- A node that one leg did not find has 0 there (weighted) or no summand there (rrf): no rank is made up for it.
- A node that a leg names twice counts once, with that leg's best score; ranks close up behind it.
- A score that is not a finite number counts as not found by that leg.
- When a whole leg is missing (it failed, or had nothing to ask with) the other one gets the full weight, so that scores keep
  their range: the cosine as it is, or the scaled BM25. A leg that ran and found nothing is not missing.
- A negative cosine stays negative: such a node stands below one that the vector leg did not propose at all, and is not lifted
  to 0, because the order inside the vector leg would be lost.
- BM25 scores that differ by less than ROUNDING of the greater are the same score. Each partition rounds its sums in its own
  way, so texts that are equal would else be ranked by the last bit of a float32, and `weighted` would stretch that bit to the
  whole range from 0 to 1. Cosines need no such care: they are worked out alike wherever a row is.
- No other lower bound on the spread of BM25 scores is assumed: two close scores become 1 and 0. Both are in the answer.
- Order: fused score descending, then id ascending. The scaling of `weighted` takes the weakest real match to 0, which is also
  the part of a node without any match, so there a match stands before none at equal score.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from cluster.model.query import Fusion, LegAnswer, Score

VECTOR_WEIGHT = 0.7
LEXICAL_WEIGHT = 0.3
#: The constant of reciprocal rank fusion.
RRF_K = 60
#: More than partitions, whose scores are sums of float32, differ on equal rows; a few 1e-7 are seen.
ROUNDING = 1e-6


class Candidate(NamedTuple):
    """A node that a leg proposes, with the parts of its score; None where that leg did not find it."""

    id: str
    fused: float
    vector: float | None
    bm25: float | None
    #: None for a fusion that does not scale.
    bm25_scaled: float | None

    @property
    def score(self) -> Score:
        """The parts as the answer carries them. Made for the few that are shown: making one costs as much as fusing it."""
        return Score(fused=self.fused, vector=self.vector, bm25=self.bm25, bm25_scaled=self.bm25_scaled)


def order_key(candidate: Candidate, method: Fusion) -> tuple[float, bool, str]:
    """What candidates are sorted by, ascending: the best first; of equals, where scores are scaled, a match; the lower id."""
    return -candidate.fused, method is not Fusion.RRF and candidate.bm25 is None, candidate.id


def fuse(lexical: LegAnswer | None, vector: LegAnswer | None, method: Fusion = Fusion.WEIGHTED) -> list[Candidate]:
    """Every node that a leg proposes, once, best first. None for a leg that is missing. Fused scores are finite."""
    bm25 = None if lexical is None else _settled(_best(lexical))
    cosine = None if vector is None else _best(vector)
    if method is Fusion.RRF:
        return _reciprocal_ranks(bm25 or {}, cosine or {})
    return _weighted(bm25, cosine, method)


def parameters(method: Fusion) -> dict[str, float | str]:
    """The numbers behind `method`, for an explanation."""
    if method is Fusion.RRF:
        return {"method": method.value, "k": RRF_K}
    scaling = "bm25 / max" if method is Fusion.WEIGHTED_MAX else "(bm25 - min) / (max - min)"
    return {"method": method.value, "vector_weight": VECTOR_WEIGHT, "lexical_weight": LEXICAL_WEIGHT, "bm25_scaling": scaling}


def lexical_ranks(answer: LegAnswer | None) -> dict[str, int]:
    """Rank from 1 by id, as fusion counts it: duplicates and unusable scores out, equal scores by id."""
    return {} if answer is None else _ranked(_settled(_best(answer)))


def vector_ranks(answer: LegAnswer | None) -> dict[str, int]:
    """As `lexical_ranks`, of the vector leg."""
    return {} if answer is None else _ranked(_best(answer))


def _best(answer: LegAnswer) -> dict[str, float]:
    best: dict[str, float] = {}
    for node_id, score in zip(answer.ids, answer.scores.tolist(), strict=True):
        if math.isfinite(score) and score > best.get(node_id, -math.inf):
            best[node_id] = score
    return best


def _settled(scores: Mapping[str, float]) -> dict[str, float]:
    """Each score as the greatest one that it differs from by rounding alone."""
    settled: dict[str, float] = {}
    top, floor = 0.0, math.inf
    for node_id in sorted(scores, key=scores.__getitem__, reverse=True):
        score = scores[node_id]
        if score < floor:
            top, floor = score, score - ROUNDING * abs(score)
        settled[node_id] = top
    return settled


def _ranked(scores: Mapping[str, float]) -> dict[str, int]:
    order = sorted(scores, key=lambda node_id: (-scores[node_id], node_id))
    return {node_id: rank for rank, node_id in enumerate(order, start=1)}


def _weighted(bm25: dict[str, float] | None, cosine: dict[str, float] | None, method: Fusion) -> list[Candidate]:
    lexical_weight = LEXICAL_WEIGHT if cosine is not None else 1.0
    vector_weight = VECTOR_WEIGHT if bm25 is not None else 1.0
    bm25, cosine = bm25 or {}, cosine or {}
    scaled = _over_max(bm25) if method is Fusion.WEIGHTED_MAX else _min_max(bm25)
    # What `order_key` says, once a candidate and without a call for it: tuples are sorted in C, and there are up to 200.
    keyed = [
        (-(vector_weight * cosine.get(node_id, 0.0) + lexical_weight * scaled.get(node_id, 0.0)), node_id not in bm25, node_id)
        for node_id in bm25.keys() | cosine.keys()
    ]
    keyed.sort()
    return [
        Candidate(node_id, -negative, cosine.get(node_id), bm25.get(node_id), scaled.get(node_id))
        for negative, _, node_id in keyed
    ]


def _min_max(scores: Mapping[str, float]) -> dict[str, float]:
    if not scores:
        return {}
    low, high = min(scores.values()), max(scores.values())
    if high <= low:
        return dict.fromkeys(scores, 1.0)
    spread = high - low
    return {node_id: (score - low) / spread for node_id, score in scores.items()}


def _over_max(scores: Mapping[str, float]) -> dict[str, float]:
    high = max(scores.values(), default=0.0)
    if high <= 0:
        return dict.fromkeys(scores, 1.0)
    return {node_id: max(score, 0.0) / high for node_id, score in scores.items()}


def _reciprocal_ranks(bm25: dict[str, float], cosine: dict[str, float]) -> list[Candidate]:
    legs = (_ranked(bm25), _ranked(cosine))
    fused = [
        Candidate(
            node_id,
            sum(1.0 / (RRF_K + leg[node_id]) for leg in legs if node_id in leg),
            cosine.get(node_id),
            bm25.get(node_id),
            None,
        )
        for node_id in bm25.keys() | cosine.keys()
    ]
    fused.sort(key=lambda item: order_key(item, Fusion.RRF))
    return fused
