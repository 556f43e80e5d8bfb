"""The rows of a bucket as an Arrow table: ids, guard columns and token counts, in the order that Lucene and FAISS number."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from cluster.errors import CorruptIndexError
from cluster.model.nodes import Node

SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("account", pa.string()),
        ("project", pa.string()),
        ("store", pa.string()),
        ("scope", pa.string()),
        ("visibility", pa.string()),
        ("owner_agent", pa.string()),
        ("deleted_at", pa.int64()),
        ("labels", pa.list_(pa.string())),
        ("agents", pa.list_(pa.string())),
        ("shared_with", pa.list_(pa.string())),
        ("tokens", pa.int32()),
    ]
)


def rows_table(nodes: Sequence[Node], tokens: npt.NDArray[np.int32]) -> pa.Table:
    """One row a node, in the given order; `tokens` has shape (len(nodes),): the length of each row's text in tokens."""
    columns = [pa.array([_value(node, name) for node in nodes], SCHEMA.field(name).type) for name in SCHEMA.names[:-1]]
    return pa.table([*columns, pa.array(tokens, pa.int32())], schema=SCHEMA)


def _value(node: Node, name: str) -> object:
    value = getattr(node, name)
    if isinstance(value, tuple):
        return list(value)
    # Enumerations are stored by their value.
    return getattr(value, "value", value)


def write_rows(path: Path, table: pa.Table) -> None:
    """Writes `rows.parquet`. The same table gives the same bytes."""
    pq.write_table(table, path, compression="zstd", store_schema=False)


def read_rows(path: Path, expected: int) -> pa.Table:
    """Reads `rows.parquet` with one chunk a column; raises CorruptIndexError unless it has `expected` rows of this schema."""
    try:
        table = pq.read_table(path, schema=SCHEMA).combine_chunks()
    except (OSError, pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise CorruptIndexError(f"{path.name} is not readable: {error}") from error
    if table.num_rows != expected:
        raise CorruptIndexError(f"{path.name} has {table.num_rows} rows, the manifest says {expected}")
    return table


#: Up to so many ids are read one by one; beyond, Arrow takes them faster.
_FEW_ROWS = 128


class RowIds:
    """The ids of a bucket's rows, which ascend: from rows to ids and back, without a table in memory for the way back."""

    def __init__(self, table: pa.Table) -> None:
        """Raises CorruptIndexError when the ids do not ascend, each once."""
        column = table["id"].combine_chunks()
        self._ids: pa.Array = column.chunk(0) if isinstance(column, pa.ChunkedArray) else column
        if len(self._ids) > 1 and not pc.all(pc.less(self._ids[:-1], self._ids[1:])).as_py():
            raise CorruptIndexError("the rows are not in the order of their ids")
        _, ends, text = self._ids.buffers()
        first = self._ids.offset
        #: Where in the text each id ends, and the one after it starts.
        self._ends = np.frombuffer(ends or bytes(4), np.int32)[first : first + len(self._ids) + 1]
        self._text = memoryview(text or b"")

    def at(self, rows: npt.NDArray[np.int64]) -> list[str]:
        """The ids of the rows."""
        if len(rows) <= _FEW_ROWS:
            starts, ends = self._ends[rows].tolist(), self._ends[rows + 1].tolist()
            return [str(self._text[start:end], "utf-8") for start, end in zip(starts, ends, strict=True)]
        found: list[str] = self._ids.take(pa.array(rows, pa.int64())).to_pylist()
        return found

    def find(self, node_id: str) -> int | None:
        """The row of an id; None when it has none. Some 20 us: a binary search."""
        # UTF-8 and Python order text alike.
        row = bisect_left(range(len(self._ids)), node_id, key=lambda at: self._ids[at].as_py())
        return row if row < len(self._ids) and self._ids[row].as_py() == node_id else None
