"""Several open indexes searched as one: what a question costs for each partition it then costs once.

Lucene reads them one after another as the segments of a MultiReader, so that a term is looked up, a query made ready and the
best hits collected once for all. The sums of their statistics are the statistics of this reader, so scores come out as they do
for each index by itself. It belongs to one thread (see `cluster.index.jvm`).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cluster.errors import CorruptIndexError
from cluster.index import jvm
from cluster.index.lexical_search import Found, LexicalSearcher, Mask
from cluster.model.guard import Guard
from cluster.model.query import TermStatistics

#: Hits asked for beyond k, so that most ties at the cut are seen at once.
_TIE_SLACK = 8


class LexicalUnion(LexicalSearcher):
    """The rows of `parts`, one part after another. Deaths in a part are deaths here, from the next question on.

    It keeps the parts' files open until it is closed itself.
    """

    def __init__(self, parts: Sequence[LexicalSearcher]) -> None:
        """`parts` are two or more, written with one reading."""
        self._parts = tuple(parts)
        sizes = [part.rows for part in self._parts]
        #: The number here of each part's first row.
        self._starts: npt.NDArray[np.int64] = np.cumsum([0, *sizes[:-1]], dtype=np.int64)
        self._followed = [0] * len(self._parts)
        reader = jvm.java().MultiReader([part.reader for part in self._parts], False)
        tokens = np.concatenate([part.tokens for part in self._parts])
        super().__init__(reader, pa.table({"tokens": tokens}), self._parts[0].reading)

    def mask(self, guard: Guard) -> Mask:
        """See `LexicalSearcher.mask`."""
        return np.concatenate([part.mask(guard) for part in self._parts])

    def statistics(self, terms: Sequence[str], guard: Guard) -> TermStatistics:
        """See `LexicalSearcher.statistics`: the sum over the parts."""
        self._follow()
        return super().statistics(terms, guard)

    def search(self, terms: Sequence[str], guard: Guard, statistics: TermStatistics, k: int) -> Found:
        """As `LexicalSearcher.search`, with all rows that tie with the k-th, since rows are in no order of ids here."""
        self._follow()
        wanted = k + _TIE_SLACK
        while True:
            rows, scores, matched = super().search(terms, guard, statistics, wanted)
            if len(rows) < wanted or scores[-1] < scores[k - 1]:
                kept = int(np.searchsorted(-scores, -scores[k - 1], side="right")) if len(rows) > k else len(rows)
                return rows[:kept], scores[:kept], matched
            wanted *= 4

    def by_part(self, rows: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
        """Ascending `rows` as each part numbers its own: one array a part, together as long as `rows`."""
        firsts = [*np.searchsorted(rows, self._starts).tolist(), len(rows)]
        starts = zip(self._starts.tolist(), itertools.pairwise(firsts), strict=True)
        return [rows[first:end] - start for start, (first, end) in starts]

    def close(self) -> None:
        """Lets go of the parts. The union is not usable afterwards; the parts are."""
        self._selections.clear()
        java = jvm.java()
        try:
            self._reader.close()
        except java.Error as error:
            raise CorruptIndexError(f"indexes that were searched together could not be let go: {error}") from error

    def _follow(self) -> None:
        for number, part in enumerate(self._parts):
            news = part.deaths[self._followed[number] :]
            if news:
                start = int(self._starts[number])
                self.bury([start + row for row in news])
                self._followed[number] += len(news)
