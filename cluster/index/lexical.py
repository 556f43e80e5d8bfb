"""The lexical index of one bucket: built once, then opened and searched with a guard and with global statistics.

A row's number is its Lucene document number: one segment, no deletes. So a hit is a row, and everything else about it is read
from the bucket's rows, not from Lucene. How it is searched says `lexical_search`.

An index belongs to one thread (see `cluster.index.jvm`).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cluster.errors import CorruptIndexError, IntegrityError
from cluster.index import jvm
from cluster.index.analysis import Analysis, analysis
from cluster.index.lexical_search import LexicalSearcher
from cluster.index.lexical_writer import add_rows, open_writer
from cluster.index.lucene_query import TEXT
from cluster.model.nodes import Node

logger = logging.getLogger(__name__)


def build_lexical(directory: Path, nodes: Iterable[Node], reading: Analysis | None = None) -> npt.NDArray[np.int32]:
    """Writes the index of `nodes`, one row each in their order, into `directory` and returns each row's length in terms.

    `reading` is how text is read, by default `analysis()`; `LexicalIndex` must be given the same. Whatever index was there is
    replaced. Everything is on disk (fsync) on return. The result has shape (rows,); a row without
    words has 0 and is never found. Raises IntegrityError if Lucene cannot write it, UnavailableError without a JVM.
    """
    java = jvm.java()
    reading = reading or analysis()
    directory.mkdir(parents=True, exist_ok=True)
    lengths: list[int] = []
    try:
        folder = _folder(directory)
        try:
            writer = open_writer(folder, reading)
            try:
                lengths = add_rows(writer, nodes, reading)
                writer.forceMerge(1)
                writer.commit()
            except BaseException:
                writer.rollback()
                raise
            writer.close()
        finally:
            folder.close()
    except java.Error as error:
        raise IntegrityError(f"the lexical index in {directory.name} could not be written: {error}") from error
    tokens = np.array(lengths, np.int32)
    _, reader = _opened(directory, tokens)
    _close(reader)
    return tokens


def _folder(directory: Path) -> Any:
    java = jvm.java()
    path = java.File(str(directory.absolute())).toPath()
    # One builder by design (a staging folder of its own), so no lock file is left in the artifact.
    return java.FSDirectory.open(path, java.NoLockFactory.INSTANCE)


def _opened(directory: Path, tokens: npt.NDArray[np.int32]) -> tuple[Any, Any]:
    """(folder, reader), checked against the rows' lengths."""
    java = jvm.java()
    if not directory.is_dir():
        raise CorruptIndexError(f"there is no lexical index {directory.name}")
    try:
        folder = _folder(directory)
        reader = java.DirectoryReader.open(folder)
        found = (
            reader.maxDoc(),
            reader.numDocs(),
            reader.leaves().size(),
            reader.getDocCount(TEXT),
            reader.getSumTotalTermFreq(TEXT),
        )
    except java.Error as error:
        raise CorruptIndexError(f"the lexical index {directory.name} cannot be opened: {error}") from error
    rows = len(tokens)
    expected = (rows, rows, min(rows, 1), int((tokens > 0).sum()), int(tokens.sum(dtype=np.int64)))
    if found != expected:
        reader.close()
        folder.close()
        what = "rows, live rows, segments, rows with words, terms"
        raise CorruptIndexError(f"the lexical index {directory.name} holds {found} ({what}), its rows say {expected}")
    return folder, reader


class LexicalIndex(LexicalSearcher):
    """One bucket's index, open for search."""

    def __init__(self, directory: Path, rows: pa.Table, reading: Analysis | None = None) -> None:
        """Opens what `build_lexical` wrote with `reading`. `rows` has the guard columns and "tokens" (int32), in row order.

        Raises CorruptIndexError when the files are not readable or do not belong to `rows`.
        """
        tokens = np.asarray(rows["tokens"].to_numpy(), np.int32)
        self._folder, reader = _opened(directory, tokens)
        super().__init__(reader, rows, reading or analysis())

    def close(self) -> None:
        """Unmaps the files. The index is not usable afterwards."""
        self._selections.clear()
        _close(self._reader)
        _close(self._folder)


def _close(resource: Any) -> None:
    java = jvm.java()
    try:
        resource.close()
    except java.Error as error:
        logger.warning("an index file could not be closed", extra={"action": "index_close_failed", "error": str(error)})
