"""The vectors of a bucket that were written since its generation was built: an exact scan over rows in memory.

Rows stand in the order in which they arrived. A row whose node was written again or deleted is dead, and is left out of every
search; when there are more dead rows than living ones, the living move together. A row without a vector waits for it.

Scores are computed as `cluster.index.vector` computes them, so that equal vectors score equal in both.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Collection, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cluster.errors import VectorError
from cluster.guards import to_mask
from cluster.index.rows import SCHEMA, rows_table
from cluster.model.guard import Guard
from cluster.model.manifest import VectorIdentity
from cluster.model.nodes import Node
from cluster.unit_vectors import find_fault

logger = logging.getLogger(__name__)

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
Scores = npt.NDArray[np.float64]

#: Dead rows are not worth moving the living together while they are so few.
_DEAD_ROWS = 1000
_CHUNKS = 16
#: Guards whose rows are remembered until the next change.
_SELECTIONS = 128
#: Two scores closer than this may change places between two ways of computing them (float32 sums of up to 4096 products).
_SCORE_NOISE = 2e-6


class VectorDelta:
    """The rows of one bucket that no generation has yet."""

    def __init__(self, identity: VectorIdentity) -> None:
        self._identity = identity
        self._row: dict[str, int] = {}
        self._ids: list[str] = []
        self._rows: pa.Table = SCHEMA.empty_table()
        self._vectors: Floats = np.zeros((0, identity.dimensions), np.float32)
        #: Whether a row is alive and has a vector.
        self._usable: npt.NDArray[np.bool_] = np.zeros(0, np.bool_)
        self._selections: OrderedDict[Guard, Ints] = OrderedDict()

    def __len__(self) -> int:
        """Living rows, with or without a vector."""
        return len(self._row)

    def __contains__(self, node_id: str) -> bool:
        """Whether the node has a living row here."""
        return node_id in self._row

    @property
    def rows(self) -> int:
        """Rows, dead or alive."""
        return len(self._ids)

    def apply(self, written: Sequence[Node], vectors: Mapping[str, Floats], gone: Collection[str] = ()) -> None:
        """Adds a row for each node of `written`; their older rows, and those of the ids in `gone`, die in the same step.

        `vectors` has unit vectors, float32 of shape (dimensions,), by node id. No id of `written` may repeat.
        """
        for node_id in (*gone, *(node.id for node in written)):
            if node_id in self._row:
                self._usable[self._row.pop(node_id)] = False
        first = self.rows
        self._grow(first + len(written))
        self._ids += [node.id for node in written]
        self._row.update((node.id, first + place) for place, node in enumerate(written))
        if written:
            rows = pa.concat_tables([self._rows, rows_table(written, np.zeros(len(written), np.int32))])
            self._rows = rows if rows["id"].num_chunks <= _CHUNKS else rows.combine_chunks()
        self.fill(vectors)
        if self.rows - len(self._row) > max(_DEAD_ROWS, len(self._row)):
            self._move_together()

    def fill(self, vectors: Mapping[str, Floats]) -> None:
        """Gives living rows their vectors, by node id; one that is no unit vector of this identity is left out and logged."""
        self._selections.clear()
        for node_id, vector in vectors.items():
            fault = find_fault(vector, self._identity)
            if fault is not None:
                logger.error("vector left out: it %s", fault, extra={"action": "vector_refused", "node": node_id})
            elif node_id in self._row:
                row = self._row[node_id]
                self._vectors[row] = vector
                self._usable[row] = True

    def search(self, queries: Floats, guard: Guard, k: int) -> tuple[Ints, Scores]:
        """For each query the m = min(k, allowed) rows of highest cosine, score descending, then id ascending.

        `queries` is float32 of shape (q, dimensions), of any length; raises VectorError when one has no direction. Rows and
        scores are of shape (q, m).
        """
        units = _unit(queries)
        positions = self._allowed(guard)
        found = np.empty((len(units), min(k, len(positions))), np.int64)
        scores = np.empty(found.shape, np.float64)
        if not found.size:
            return found, scores
        # Of a few rows a copy is cheaper than scores that nobody wants.
        if 4 * len(positions) < self.rows:
            rough = units @ self._vectors[positions].T
        else:
            rough = (units @ self._vectors[: self.rows].T)[:, positions]
        for place, unit in enumerate(units):
            found[place], scores[place] = self._best(unit, positions, rough[place], k)
        return found, scores

    def count(self, guard: Guard) -> int:
        """Rows that a search under `guard` finds when it is asked for all."""
        return len(self._allowed(guard))

    def ids(self, rows: Ints) -> list[str]:
        """The ids of the rows."""
        return [self._ids[row] for row in rows.tolist()]

    def _best(self, unit: Floats, positions: Ints, rough: Floats, k: int) -> tuple[Ints, Scores]:
        """All rows that may be among the best `k` by the rough scores, scored again and cut."""
        if k < len(positions):
            least = np.partition(rough, -k)[-k] - 2 * _SCORE_NOISE
            positions = positions[rough >= least]
        taken = self._vectors[positions]
        # Sums in one fixed order; a matrix product's would depend on how many queries come together.
        scores = np.clip(np.einsum("qfd,qd->qf", taken[None], unit[None])[0], -1.0, 1.0).astype(np.float64)
        order = sorted(range(len(positions)), key=lambda place: (-scores[place], self._ids[positions[place]]))[:k]
        return positions[order], scores[order]

    def _allowed(self, guard: Guard) -> Ints:
        known = self._selections.get(guard)
        if known is None:
            mask = to_mask(guard, self._rows).to_numpy(zero_copy_only=False)
            known = self._selections[guard] = np.flatnonzero(mask & self._usable[: self.rows])
            if len(self._selections) > _SELECTIONS:
                self._selections.popitem(last=False)
        return known

    def _grow(self, rows: int) -> None:
        room = len(self._usable)
        if rows <= room:
            return
        more = max(rows, 2 * room) - room
        self._vectors = np.concatenate([self._vectors, np.zeros((more, self._identity.dimensions), np.float32)])
        self._usable = np.concatenate([self._usable, np.zeros(more, np.bool_)])

    def _move_together(self) -> None:
        kept = np.array(sorted(self._row.values()), np.int64)
        self._ids = [self._ids[row] for row in kept.tolist()]
        self._row = {node_id: row for row, node_id in enumerate(self._ids)}
        self._rows = self._rows.take(pa.array(kept)).combine_chunks()
        self._vectors = self._vectors[kept]
        self._usable = self._usable[kept]


def _unit(queries: Floats) -> Floats:
    wide = queries.astype(np.float64)
    lengths = np.sqrt(np.einsum("ij,ij->i", wide, wide))
    if not (np.isfinite(lengths) & (lengths > 0)).all():
        raise VectorError("the query's vector is NaN, infinite or all zeros")
    return np.ascontiguousarray(wide / lengths[:, None], dtype=np.float32)
