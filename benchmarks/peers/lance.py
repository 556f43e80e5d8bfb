"""LanceDB, embedded: full-text index, and vectors as its documentation advises at this size.

Its guide says that up to about 100,000 rows a vector index is usually not worth its cost (a scan then is exact), and that
IVF-PQ suits filtered questions; both are measured, the second with its other advice, a refine factor.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.peers.data import Data, K

_REFINE = 10


class Engine:
    """One table with a full-text index and a bitmap index of the projects."""

    legs = ("lexical", "vector", "hybrid")

    def __init__(self, indexed: bool) -> None:
        self._indexed = indexed
        self._table: Any = None

    def build(self, data: Data, folder: Path) -> None:
        import lancedb
        import pyarrow as pa

        rows, vectors = data.rows(), data.vectors()
        columns = {
            "row": pa.array(range(len(rows)), pa.int64()),
            "project": [row.project for row in rows],
            "text": [row.text for row in rows],
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(np.ravel(vectors)), vectors.shape[1]),
        }
        table = lancedb.connect(folder).create_table("rows", pa.table(columns), mode="overwrite")
        table.create_fts_index("text", replace=True)
        table.create_scalar_index("project", index_type="BITMAP")
        if self._indexed:
            table.create_index(metric="cosine", vector_column_name="vector", index_type="IVF_PQ")
        table.optimize()

    def open(self, folder: Path) -> None:
        import lancedb

        self._table = lancedb.connect(folder).open_table("rows")

    def ask(self, leg: str, text: str, vector: npt.NDArray[np.float32], project: str | None) -> list[int]:
        query = self._query(leg, text, vector).limit(K).select(["row", "text"])
        if project is not None:
            query = query.where(f"project = '{project}'", prefilter=True)
        found: list[int] = query.to_arrow()["row"].to_pylist()
        return found

    def _query(self, leg: str, text: str, vector: npt.NDArray[np.float32]) -> Any:
        if leg == "lexical":
            return self._table.search(text, query_type="fts")
        if leg == "vector":
            query = self._table.search(vector, query_type="vector").distance_type("cosine")
        else:
            query = self._table.search(query_type="hybrid").vector(vector).text(text).distance_type("cosine")
        return query.refine_factor(_REFINE) if self._indexed else query
