"""One bucket as a vector shard sees it: its generation's vectors, and what was written since."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from actors.bounds import Bound
from actors.near import Near
from cluster.embed.node_text import embedding_hash
from cluster.guards import to_mask
from cluster.index.rows import RowIds, read_rows
from cluster.model.guard import Guard
from cluster.model.manifest import Bucket, Manifest, VectorIdentity
from cluster.model.nodes import Node

#: Bytes of guards' row selections that a partition keeps; one is a bit or an index a row.
SELECTION_BYTES = 64 * 1024 * 1024
#: Dead rows that a selection may still hold: as many more rows are asked for, and the dead are dropped. More, and the selection
#: is made anew.
DEAD_IN_SELECTION = 32

Floats = npt.NDArray[np.float32]
#: The vectors that there are, by content hash: see `VectorCache.get`.
FindVectors = Callable[[VectorIdentity, Sequence[str]], Mapping[str, Floats]]


@dataclass(frozen=True, slots=True)
class _Selected:
    selection: Any
    #: How many deaths it takes into account.
    deaths: int


class VectorPart:
    """Rows of the generation that are dead and rows of the delta that are alive are one index, as far as anyone can tell."""

    def __init__(
        self, folder: Path, bucket: Bucket, manifest: Manifest, threads: int, find_vectors: FindVectors, max_rows: int
    ) -> None:
        from cluster.index.vector import VectorIndex
        from cluster.index.vector_delta import VectorDelta

        self.identity: VectorIdentity = manifest.identity
        self._rows = read_rows(folder / "lexical" / "rows.parquet", bucket.rows)
        self._ids = RowIds(self._rows)
        self._base = VectorIndex(folder / "vector" / "vectors.faiss", bucket.rows, manifest.identity, threads=threads)
        self._alive = np.ones(bucket.rows, np.bool_)
        self._deaths = 0
        self._delta = VectorDelta(manifest.identity)
        self._bound = Bound(max_rows)
        self._find_vectors = find_vectors
        #: Content hash of each row of the delta that waits for its vector, by node id.
        self._waiting: dict[str, str] = {}
        self._selections: OrderedDict[Guard, _Selected] = OrderedDict()
        self._selection_bytes = 0

    def apply(self, changes: Mapping[str, Node | None]) -> None:
        """Makes the nodes of `changes` searchable as they are there; None takes one out. By id, of this bucket alone."""
        written, gone = self._bound.admit(changes, self._delta)
        hashes = {node.id: embedding_hash(node) for node in written}
        vectors = self._found(hashes)
        self._delta.apply(written, vectors, gone)
        for node_id in changes:
            row = self._ids.find(node_id)
            if row is not None and self._alive[row]:
                self._alive[row] = False
                self._deaths += 1
            self._waiting.pop(node_id, None)
        self._waiting.update((node_id, key) for node_id, key in hashes.items() if node_id not in vectors)

    def settle(self) -> None:
        """Looks again for the vectors that were not there yet."""
        vectors = self._found(self._waiting)
        if vectors:
            self._delta.fill(vectors)
            for node_id in vectors:
                del self._waiting[node_id]

    @property
    def over_bound(self) -> bool:
        """Whether a build is due."""
        return self._bound.exceeded(len(self._delta) + self._deaths)

    @property
    def left_out(self) -> bool:
        """Whether newer rows are missing because there are too many."""
        return self._bound.left_out

    def search(self, queries: Floats, guard: Guard, k: int) -> Near:
        """The k nearest allowed rows at least of each query, in no order across generation and delta.

        Rows of the delta are numbered after those of the generation.
        """
        selected = self._selected(guard)
        asked = k + self._deaths - selected.deaths
        rows, scores = self._base.search_together(queries, selected.selection, asked)
        near = Near.of(rows, scores, complete=asked >= selected.selection.count)
        if selected.deaths < self._deaths:
            near = near.only(self._alive[rows])
        if not len(self._delta):
            return near
        rows, scores = self._delta.search(queries, guard, k)
        return near.beside(Near.of(rows + len(self._alive), scores, complete=k >= self._delta.count(guard)))

    def ids(self, rows: npt.NDArray[np.int64]) -> list[str]:
        """The ids of rows that `search` found, until the next change."""
        newer = rows >= len(self._alive)
        if not newer.any():
            return self._ids.at(rows)
        found = np.empty(len(rows), object)
        found[~newer] = self._ids.at(rows[~newer])
        found[newer] = self._delta.ids(rows[newer] - len(self._alive))
        return found.tolist()

    def close(self) -> None:
        """Closes the index."""
        self._base.close()

    def _found(self, hashes: Mapping[str, str]) -> dict[str, Floats]:
        """Of the nodes whose content hashes are given, the vectors that there are."""
        if not hashes:
            return {}
        known = self._find_vectors(self.identity, list(dict.fromkeys(hashes.values())))
        return {node_id: known[key] for node_id, key in hashes.items() if key in known}

    def _selected(self, guard: Guard) -> _Selected:
        known = self._selections.get(guard)
        if known is not None and self._deaths - known.deaths <= DEAD_IN_SELECTION:
            self._selections.move_to_end(guard)
            return known
        if known is not None:
            self._selection_bytes -= self._selections.pop(guard).selection.nbytes
        mask = np.asarray(to_mask(guard, self._rows).to_numpy(zero_copy_only=False), dtype=bool) & self._alive
        selected = self._selections[guard] = _Selected(self._base.prepare(mask), self._deaths)
        self._selection_bytes += selected.selection.nbytes
        while self._selection_bytes > SELECTION_BYTES and len(self._selections) > 1:
            _, oldest = self._selections.popitem(last=False)
            self._selection_bytes -= oldest.selection.nbytes
        return selected
