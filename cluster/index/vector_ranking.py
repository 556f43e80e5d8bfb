"""From what FAISS proposes to what is returned: scores of the float32 vectors, one total order, what may be missing. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
#: int64 positions in an index, shape (n,) -> their float32 vectors, shape (n, dimensions).
Take = Callable[[Ints], Floats]

#: Two scores closer than this may change places between two ways of computing them (float32 sums of up to 4096 products).
SCORE_NOISE = 2e-6


@dataclass(frozen=True, slots=True)
class Proposal:
    """What FAISS proposes for one query, best first."""

    #: float32, shape (dimensions,), of length 1.
    query: Floats
    #: int64, shape (n,), and float32 of the same: positions and their cosines, score descending, then position ascending.
    positions: Ints
    scores: Floats
    #: float32, shape (n,): the scores that FAISS gave, of quantised vectors perhaps.
    raw: Floats
    #: Whether all allowed rows were looked at: one that is not proposed then has at most the least `raw` score.
    exact: bool

    def may_miss(self, wanted: int, error: float, links: int) -> bool:
        """Whether a row that was not proposed may belong among the first `wanted`.

        `error`: how far a raw score may be from the real one. `links`: those of a node on the graph's lowest level.
        """
        least = self.raw.min()
        if self.exact:
            return bool(least >= self.scores[wanted - 1] - error)
        # A graph finds what it finds, but a run of equal vectors, whose codes are equal too, is not to be cut anywhere: where
        # the list ends inside one, or holds so many that they may fill the links of a node and hide others of the run.
        if least >= self.raw[:wanted].min() - SCORE_NOISE:
            return True
        best_first = -np.sort(-self.raw)
        run = max(2, links // 2)
        return bool((best_first[: 1 - run] - best_first[run - 1 :] <= SCORE_NOISE).any())


def propose(query: Floats, positions: Ints, scores: Floats, raw: Floats, exact: bool) -> Proposal:
    """A Proposal of arrays of one shape (n,) in any order; -1 positions are none."""
    order = np.lexsort((positions, -scores))
    order = order[positions[order] >= 0]
    return Proposal(query, positions[order], scores[order], raw[order], exact)


def by_score(positions: Ints, scores: Floats) -> tuple[Ints, Floats]:
    """By score descending, then position ascending."""
    order = np.lexsort((positions, -scores))
    return positions[order], scores[order]


def cosines(take: Take, queries: Floats, found: Ints) -> Floats:
    """float32 of shape `found.shape` (q, n): the cosine of each query and each of its positions; -1 positions give -inf.

    einsum sums along the last axis in one order, whatever the batch; a matrix product would not, and equal vectors would get
    unequal scores.
    """
    taken = take(found.ravel()).reshape(*found.shape, queries.shape[1])
    scores: Floats = np.clip(np.einsum("qfd,qd->qf", taken, queries), -1.0, 1.0)
    return np.where(found >= 0, scores, np.float32(-np.inf))
