"""The lexical rows of a bucket that were written since its generation was built: a small Lucene index in memory.

Rows stand in the order in which they arrived, and are searchable when `apply` returns. A row whose node was written again or
deleted is dead (see `lexical_search`); when there are more dead rows than living ones, the living are written anew.

Nothing is kept on disk: after a restart the store's feed brings the rows back.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cluster.errors import CorruptIndexError
from cluster.index import jvm
from cluster.index.analysis import Analysis
from cluster.index.lexical_search import Found, LexicalSearcher
from cluster.index.lexical_writer import add_rows, open_writer
from cluster.index.rows import SCHEMA, rows_table
from cluster.model.guard import Guard
from cluster.model.nodes import Node
from cluster.model.query import TermStatistics

#: Dead rows are not worth the living being written anew while they are so few.
_DEAD_ROWS = 1000
#: Chunks of the table of rows; a write adds one, and each guard's mask is worked out for each.
_CHUNKS = 16


class LexicalDelta:
    """The rows of one bucket that no generation has yet. It belongs to one thread (see `cluster.index.jvm`)."""

    def __init__(self, reading: Analysis) -> None:
        self._reading = reading
        #: Living nodes by id, and their rows.
        self._nodes: dict[str, Node] = {}
        self._row: dict[str, int] = {}
        self._rows: pa.Table = SCHEMA.empty_table()
        #: Made with the first row: most buckets have no delta.
        self._folder: Any = None
        self._writer: Any = None
        self._reader: Any = None
        self._searcher: LexicalSearcher | None = None

    def __len__(self) -> int:
        """Living rows."""
        return len(self._row)

    def __contains__(self, node_id: str) -> bool:
        """Whether the node has a living row here."""
        return node_id in self._row

    @property
    def rows(self) -> int:
        """Rows, dead or alive."""
        return int(self._rows.num_rows)

    @property
    def files(self) -> int:
        """Files of the index in memory: those of its segments, and of older ones as long as a reader holds them."""
        return 0 if self._folder is None else len(self._folder.listAll())

    def apply(self, written: Sequence[Node], gone: Collection[str] = ()) -> None:
        """Adds a row for each node of `written`; their older rows, and those of the ids in `gone`, die in the same step.

        No id of `written` may repeat. Raises CorruptIndexError when Lucene fails; the delta is not usable then.
        """
        dead = [self._row.pop(node_id) for node_id in (*gone, *(node.id for node in written)) if node_id in self._row]
        for node_id in gone:
            self._nodes.pop(node_id, None)
        self._nodes.update((node.id, node) for node in written)
        try:
            if self.rows + len(written) - len(self._nodes) > max(_DEAD_ROWS, len(self._nodes)):
                self._write_anew()
            elif written:
                before = () if self._searcher is None else self._searcher.deaths
                self._add(written, [*before, *dead])
            elif self._searcher is not None:
                self._searcher.bury(dead)
        except jvm.java().Error as error:
            raise CorruptIndexError(f"new rows could not be made searchable: {error}") from error

    def statistics(self, terms: Sequence[str], guard: Guard) -> TermStatistics:
        """See `LexicalSearcher.statistics`."""
        if self._searcher is None:
            return TermStatistics(documents=0, tokens=0, document_frequency=dict.fromkeys(terms, 0))
        return self._searcher.statistics(terms, guard)

    def search(self, terms: Sequence[str], guard: Guard, statistics: TermStatistics, k: int) -> Found:
        """See `LexicalSearcher.search`."""
        if self._searcher is None:
            return np.empty(0, np.int64), np.empty(0, np.float64), 0
        return self._searcher.search(terms, guard, statistics, k)

    def ids(self, rows: npt.NDArray[np.int64]) -> list[str]:
        """The node ids of the rows."""
        found: list[str] = self._rows["id"].take(pa.array(rows, pa.int64())).to_pylist()
        return found

    def close(self) -> None:
        """Frees the memory. The delta is not usable afterwards."""
        self._searcher = None
        java = jvm.java()
        try:
            if self._reader is not None:
                self._reader.close()
            if self._writer is not None:
                self._writer.rollback()
            if self._folder is not None:
                self._folder.close()
        except java.Error as error:
            raise CorruptIndexError(f"the rows in memory could not be closed: {error}") from error
        finally:
            self._reader = self._writer = self._folder = None

    def _add(self, written: Sequence[Node], dead: Collection[int]) -> None:
        if self._writer is None:
            self._open()
        lengths = np.array(add_rows(self._writer, written, self._reading), np.int32)
        first = self.rows
        rows = pa.concat_tables([self._rows, rows_table(written, lengths)])
        self._rows = rows if rows["id"].num_chunks <= _CHUNKS else rows.combine_chunks()
        self._row.update((node.id, first + place) for place, node in enumerate(written))
        self._refresh(dead)

    def _open(self) -> None:
        java = jvm.java()
        self._folder = java.ByteBuffersDirectory()
        self._writer = open_writer(self._folder, self._reading)
        self._writer.commit()  # or there is nothing yet that a reader could be opened on
        self._reader = java.DirectoryReader.open(self._folder)

    def _refresh(self, dead: Collection[int]) -> None:
        newer = jvm.java().DirectoryReader.openIfChanged(self._reader, self._writer)
        if newer is not None:
            # The old one holds on to the files of segments that were merged away.
            self._reader.close()
            self._reader = newer
        self._searcher = LexicalSearcher(self._reader, self._rows, self._reading, dead, few_rows=True)

    def _write_anew(self) -> None:
        living: Mapping[str, Node] = self._nodes
        self.close()
        self._row.clear()
        self._rows = SCHEMA.empty_table()
        if living:
            self._add(list(living.values()), ())
