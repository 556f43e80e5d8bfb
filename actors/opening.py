"""Opens shards over the real indexes: the one place where a shard meets Lucene and FAISS."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from actors.lexical_shard import LexicalShard
from actors.partitions import PartitionHolder
from actors.vector_shard import VectorShard
from cluster.errors import CorruptIndexError
from cluster.guards import signature, to_mask
from cluster.index.analysis import DEFAULT, Analysis, analysis, choose_terms
from cluster.index.rows import read_rows
from cluster.model.guard import Guard
from cluster.model.manifest import Bucket, Manifest, VectorIdentity
from cluster.model.query import TermStatistics
from cluster.storage import GenerationStore

#: Bytes of guards' row selections that a partition keeps; one is a bit or an index a row.
SELECTION_BYTES = 64 * 1024 * 1024


class LexicalPart:
    """One bucket's rows and Lucene directory, as a lexical shard sees them."""

    def __init__(self, folder: Path, bucket: Bucket, manifest: Manifest, reading: Analysis) -> None:
        from cluster.index.lexical import LexicalIndex

        if manifest.analyzer != reading.version:
            built, here = manifest.analyzer, reading.version
            raise CorruptIndexError(f"built with analyzer {built}, this server has {here}: index the project again")
        rows = read_rows(folder / "lexical" / "rows.parquet", bucket.rows)
        self._ids = _column(rows, "id")
        self._index = LexicalIndex(folder / "lexical" / "lucene", rows, reading)

    def statistics(self, terms: Sequence[str], guard: Guard) -> TermStatistics:
        """See `LexicalIndex.statistics`."""
        return self._index.statistics(terms, guard)

    def search(
        self, terms: Sequence[str], guard: Guard, statistics: TermStatistics, k: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64], int | None]:
        """See `LexicalIndex.search`."""
        return self._index.search(terms, guard, statistics, k)

    def ids(self, rows: npt.NDArray[np.int64]) -> list[str]:
        """The node ids of the rows."""
        return _ids(self._ids, rows)

    def close(self) -> None:
        """Closes the Lucene reader."""
        self._index.close()


class VectorPart:
    """One bucket's rows and FAISS file, as a vector shard sees them."""

    def __init__(self, folder: Path, bucket: Bucket, manifest: Manifest, threads: int) -> None:
        from cluster.index.vector import VectorIndex

        self.identity: VectorIdentity = manifest.identity
        self._rows = read_rows(folder / "lexical" / "rows.parquet", bucket.rows)
        self._ids = _column(self._rows, "id")
        self._index = VectorIndex(folder / "vector" / "vectors.faiss", bucket.rows, manifest.identity, threads=threads)
        self._selections: OrderedDict[str, Any] = OrderedDict()
        self._selection_bytes = 0

    def search(
        self, queries: npt.NDArray[np.float32], guard: Guard, k: int
    ) -> list[tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]]:
        """The k nearest allowed rows of each query, best first."""
        return self._index.search(queries, [self._selection(guard)] * len(queries), k)

    def ids(self, rows: npt.NDArray[np.int64]) -> list[str]:
        """The node ids of the rows."""
        return _ids(self._ids, rows)

    def close(self) -> None:
        """Closes the index."""
        self._index.close()

    def _selection(self, guard: Guard) -> Any:
        key = signature(guard)
        if key in self._selections:
            self._selections.move_to_end(key)
            return self._selections[key]
        selection = self._index.prepare(np.asarray(to_mask(guard, self._rows).to_numpy(zero_copy_only=False), dtype=bool))
        self._selections[key] = selection
        self._selection_bytes += selection.nbytes
        while self._selection_bytes > SELECTION_BYTES and len(self._selections) > 1:
            _, oldest = self._selections.popitem(last=False)
            self._selection_bytes -= oldest.nbytes
        return selection


def open_lexical_shard(name: str, root: Path, shards: Sequence[str], heap_mib: int, analyzer: str = DEFAULT) -> LexicalShard:
    """The shard `name` of `shards` over the generations below `root`; starts the JVM of this process."""
    from cluster.index import jvm

    jvm.start(heap_mb=heap_mib)
    reading = analysis(analyzer)

    def opener(folder: Path, bucket: Bucket, manifest: Manifest) -> LexicalPart:
        return LexicalPart(folder, bucket, manifest, reading)

    holder: PartitionHolder[LexicalPart] = PartitionHolder(GenerationStore(root), name, shards, opener)
    return LexicalShard(holder, reading.query_terms, choose_terms)


def open_vector_shard(name: str, root: Path, shards: Sequence[str], threads: int) -> VectorShard:
    """The shard `name` of `shards` over the generations below `root`."""

    def opener(folder: Path, bucket: Bucket, manifest: Manifest) -> VectorPart:
        return VectorPart(folder, bucket, manifest, threads)

    return VectorShard(PartitionHolder(GenerationStore(root), name, shards, opener))


def _column(rows: pa.Table, name: str) -> pa.Array:
    column = rows[name]
    return column.chunk(0) if column.num_chunks else pa.array([], column.type)


def _ids(column: pa.Array, rows: npt.NDArray[np.int64]) -> list[str]:
    found: list[str] = column.take(pa.array(rows, pa.int64())).to_pylist()
    return found
