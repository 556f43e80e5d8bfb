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


@dataclass(frozen=True, slots=True, eq=False)
class Proposals:
    """What FAISS proposes for q queries, n positions each, best first."""

    #: int64, shape (q, n), and float32 of the same: positions and their cosines, score descending, then position ascending;
    #: last what is missing, as position -1 and -inf.
    positions: Ints
    scores: Floats
    #: float32, shape (q, n): the scores that FAISS gave, of quantised vectors perhaps; -inf where there is no position.
    raw: Floats
    #: bool, shape (q,): whether all allowed rows were looked at; one that is not proposed then has at most the least `raw`.
    exact: npt.NDArray[np.bool_]

    def may_miss(self, wanted: int, error: float, links: int) -> npt.NDArray[np.bool_]:
        """Of which queries a row that was not proposed may belong among the first `wanted`: bool, shape (q,).

        `error`: how far a raw score may be from the real one. `links`: those of a node on the graph's lowest level. Each query
        has `wanted` positions at least.
        """
        least = np.where(self.positions >= 0, self.raw, np.float32(np.inf)).min(axis=1)
        missed: npt.NDArray[np.bool_] = self.exact & (least >= self.scores[:, wanted - 1] - error)
        graph = ~self.exact
        if graph.any():
            # A graph finds what it finds, but a run of equal vectors, whose codes are equal too, is not to be cut anywhere:
            # where the list ends inside one, or holds so many that they may fill a node's links and hide others of the run.
            ends_inside = least >= self.raw[:, :wanted].min(axis=1) - SCORE_NOISE
            missed[graph] = (ends_inside | self._holds_run(max(2, links // 2)))[graph]
        return missed

    def _holds_run(self, length: int) -> npt.NDArray[np.bool_]:
        """Which lists hold so many equal vectors."""
        best_first = -np.sort(-self.raw, axis=1)
        with np.errstate(invalid="ignore"):  # of two that are missing there is no difference
            return np.asarray((best_first[:, : 1 - length] - best_first[:, length - 1 :] <= SCORE_NOISE).any(axis=1))


def propose(positions: Ints, scores: Floats, raw: Floats, exact: npt.NDArray[np.bool_]) -> Proposals:
    """Proposals of arrays of shape (q, n) in any order; -1 positions, whose scores are -inf, are none."""
    order = np.argsort(-scores, axis=1)
    sorted_scores = np.take_along_axis(scores, order, axis=1)
    tied = (sorted_scores[:, 1:] == sorted_scores[:, :-1]).any(axis=1)
    if tied.any():  # seldom, and it takes four times as long
        order[tied] = np.lexsort((positions[tied], -scores[tied]), axis=-1)
    positions = np.take_along_axis(positions, order, axis=1)
    raw = np.where(positions >= 0, np.take_along_axis(raw, order, axis=1), np.float32(-np.inf))
    return Proposals(positions, sorted_scores, raw, exact)


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
