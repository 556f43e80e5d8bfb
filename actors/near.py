"""What partitions find near a batch of queries, and the best of it: arrays up to the end, so that a query costs little."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Scores = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
#: Ids, best first, and their scores, float64 of shape (len(ids),).
Hits = tuple[list[str], Scores]
#: Rows of a partition, shape (n,) -> their ids.
IdsOf = Callable[[Ints], list[str]]

#: How many more hits than its part of all a partition is asked for, in standard deviations of that part.
_DEVIATIONS = 3.0


@dataclass(frozen=True, slots=True, eq=False)
class Near:
    """Rows of one partition for each of q queries, in no order."""

    #: Shape (q, n).
    rows: Ints
    #: Shape (q, n); -inf where there is no row.
    scores: Scores
    #: Shape (q,): no other row of the partition scores higher; -inf when there is no other.
    rest: Scores

    @classmethod
    def of(cls, rows: Ints, scores: Scores, *, complete: bool) -> Near:
        """The best rows, best first, of a partition that has no others when `complete`; both of shape (q, n)."""
        everything = complete or not scores.shape[1]
        return cls(rows, scores, np.full(len(scores), -np.inf) if everything else scores[:, -1])

    def only(self, kept: Flags) -> Near:
        """Without the rows that are not `kept`, shape (q, n)."""
        return Near(self.rows, np.where(kept, self.scores, -np.inf), self.rest)

    def beside(self, other: Near) -> Near:
        """Both, as one partition's."""
        rows = np.concatenate([self.rows, other.rows], axis=1)
        scores = np.concatenate([self.scores, other.scores], axis=1)
        return Near(rows, scores, np.maximum(self.rest, other.rest))

    def completed(self, queries: Flags, best: Near) -> Near:
        """With the `best` of the partition for the `queries`, shape (q,): none of its other rows matters to these."""
        shape = len(self.rows), max(self.rows.shape[1], best.rows.shape[1])
        rows, scores = np.zeros(shape, np.int64), np.full(shape, -np.inf)
        for place, own, other in ((rows, self.rows, best.rows), (scores, self.scores, best.scores)):
            place[~queries, : own.shape[1]] = own[~queries]
            place[queries, : other.shape[1]] = other
        return Near(rows, scores, np.where(queries, -np.inf, self.rest))


def part_of(k: int, partitions: int) -> int:
    """How many hits each of `partitions` is asked for at first when `k` are wanted of all, from 1 to `k`.

    Ids are hashed to the buckets of a project, so a bucket has about k / partitions of the best, with a deviation of the root
    of that. Where they lie otherwise, `unsure` tells.
    """
    mean = k / max(partitions, 1)
    return k if partitions < 2 else min(k, math.ceil(mean + _DEVIATIONS * math.sqrt(mean)))


def unsure(found: Sequence[Near], k: int) -> list[Flags]:
    """Of each partition, for which queries it may have more rows among the best `k` of all: shape (q,) each."""
    least = _kth(np.concatenate([near.scores for near in found], axis=1), k)
    return [(near.rest >= least) & (near.rest > -np.inf) for near in found]


def best_of(found: Sequence[Near], ids_of: Sequence[IdsOf], k: int) -> list[Hits]:
    """Of each query the ids and scores of the best `k` and of all that tie with the last: score descending, then id ascending.

    An id that several partitions have comes as often.
    """
    scores = np.concatenate([near.scores for near in found], axis=1)
    chosen = (scores >= _kth(scores, k)[:, None]) & (scores > -np.inf)
    query, column = np.nonzero(chosen)
    flat, ids, start = scores[chosen], np.empty(len(query), object), 0
    for near, names in zip(found, ids_of, strict=True):
        width = near.rows.shape[1]
        mine = (column >= start) & (column < start + width)
        ids[mine] = names(near.rows[query[mine], column[mine] - start])
        start += width
    order = np.lexsort((-flat, query))
    flat, ids = flat[order], ids[order]
    ends = np.cumsum(chosen.sum(axis=1))
    ties = np.flatnonzero((np.diff(flat) == 0) & (np.diff(query) == 0))
    for tied in np.unique(query[ties]).tolist():
        here = slice(ends[tied - 1] if tied else 0, ends[tied])
        ids[here] = [node_id for _, node_id in sorted(zip((-flat[here]).tolist(), ids[here].tolist(), strict=True))]
    return [(ids[first:end].tolist(), flat[first:end]) for first, end in zip((0, *ends[:-1]), ends, strict=True)]


def _kth(scores: Scores, k: int) -> Scores:
    """The k-th best of each row of `scores`, shape (q,); -inf where there are fewer."""
    width = scores.shape[1]
    if width < k:
        return np.full(len(scores), -np.inf)
    found: Scores = np.partition(scores, width - k, axis=1)[:, width - k]
    return found
