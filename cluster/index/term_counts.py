"""How many rows hold a term: of all, and of those that a guard selects.

A filtered count as a Lucene query builds the guard's whole scorer for each term, 0.35 ms; here the guard is a bit a row, and a
term's rows are counted against it in some 20 us.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from cluster.index import jvm
from cluster.index.lucene_query import TEXT

#: Of PostingsEnum: rows alone, no frequencies.
_ROWS_ALONE = 0


def row_bits(mask: npt.NDArray[np.bool_]) -> Any:
    """Lucene's FixedBitSet of the rows that are true in `mask`, shape (rows,)."""
    packed = np.packbits(mask, bitorder="little")
    words = np.zeros(-(-len(mask) // 64) * 8, np.uint8)
    words[: len(packed)] = packed
    return jvm.java().FixedBitSet(words.view("<i8").tolist(), len(mask))


class TermCounts:
    """Counts of the terms of one open reader."""

    def __init__(self, reader: Any, rows: int) -> None:
        self._rows = rows
        terms = jvm.java().MultiTerms.getTerms(reader, TEXT)
        #: None when no row has a word.
        self._terms: Any = None if terms is None else terms.iterator()
        self._postings: Any = None
        self._found = row_bits(np.zeros(rows, np.bool_))

    def count(self, term: str) -> int:
        """Rows with `term`."""
        return int(self._terms.docFreq()) if self._seek(term) else 0

    def count_within(self, term: str, allowed: Any) -> int:
        """Rows with `term` among those of the bit set `allowed`."""
        self._found.clear(0, self._rows)
        return self.gathered_within(allowed) if self._mark(term) else 0

    def gather(self, terms: Iterable[str], allowed: Any) -> int:
        """Marks the rows with any of `terms`, and counts those that are in the bit set `allowed`."""
        self._found.clear(0, self._rows)
        for term in terms:
            self._mark(term)
        return self.gathered_within(allowed)

    @property
    def gathered(self) -> int:
        """Rows that the last `gather` marked."""
        return self.gathered_within(self._found)

    def gathered_within(self, allowed: Any) -> int:
        """Rows that the last `gather` marked among those of the bit set `allowed`."""
        return int(jvm.java().FixedBitSet.intersectionCount(self._found, allowed))

    def _mark(self, term: str) -> bool:
        if not self._seek(term):
            return False
        self._postings = self._terms.postings(self._postings, _ROWS_ALONE)
        getattr(self._found, "or")(self._postings)
        return True

    def _seek(self, term: str) -> bool:
        if self._terms is None:
            return False
        wanted = jvm.java().BytesRef(term)
        return bool(self._terms.seekExact(wanted))
