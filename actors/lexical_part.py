"""One bucket as a lexical shard sees it: its generation's index, and what was written since."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from actors.bounds import Bound
from cluster.errors import AnalyzerError
from cluster.index.analysis import Analysis
from cluster.index.rows import RowIds, read_rows
from cluster.model.guard import Guard
from cluster.model.manifest import Bucket, Manifest
from cluster.model.nodes import Node
from cluster.model.query import TermStatistics

#: Ids, best first, their scores, float64 of shape (len(ids),), and how many rows match at all.
Found = tuple[list[str], npt.NDArray[np.float64], int]


class LexicalPart:
    """Rows of the generation that are dead and rows of the delta that are alive are one index, as far as anyone can tell."""

    def __init__(self, folder: Path, bucket: Bucket, manifest: Manifest, reading: Analysis, max_rows: int) -> None:
        from cluster.index.lexical import LexicalIndex
        from cluster.index.lexical_delta import LexicalDelta

        if manifest.analyzer != reading.version:
            built, here = manifest.analyzer, reading.version
            raise AnalyzerError(
                f"the index was built with analyzer {built}, and this server has {here}: index the project again"
            )
        rows = read_rows(folder / "lexical" / "rows.parquet", bucket.rows)
        self.ids = RowIds(rows)
        self.base = LexicalIndex(folder / "lexical" / "lucene", rows, reading)
        self.delta = LexicalDelta(reading)
        self._bound = Bound(max_rows)
        self.closed = False

    def apply(self, changes: Mapping[str, Node | None]) -> None:
        """Makes the nodes of `changes` searchable as they are there; None takes one out. By id, of this bucket alone."""
        written, gone = self._bound.admit(changes, self.delta)
        self.delta.apply(written, gone)
        self.base.bury(row for node_id in changes if (row := self.ids.find(node_id)) is not None)

    def settle(self) -> None:
        """Nothing waits here."""

    @property
    def over_bound(self) -> bool:
        """Whether a build is due."""
        return self._bound.exceeded(len(self.delta) + len(self.base.deaths))

    @property
    def left_out(self) -> bool:
        """Whether newer rows are missing because there are too many."""
        return self._bound.left_out

    def statistics(self, terms: Sequence[str], guard: Guard) -> TermStatistics:
        """See `LexicalSearcher.statistics`."""
        return self.base.statistics(terms, guard) + self.delta.statistics(terms, guard)

    def search(self, terms: Sequence[str], guard: Guard, statistics: TermStatistics, k: int) -> Found:
        """The best `k` rows at least (see `LexicalSearcher.search`), in no order across generation and delta."""
        rows, scores, matched = self.base.search(terms, guard, statistics, k)
        return self.with_newer((self.ids.at(rows), scores, matched), terms, guard, statistics, k)

    def with_newer(self, found: Found, terms: Sequence[str], guard: Guard, statistics: TermStatistics, k: int) -> Found:
        """`found` and the best `k` rows at least of the delta."""
        if not len(self.delta):
            return found
        ids, scores, matched = found
        # Rows of the delta are in no order of ids: of those that tie at the cut, all must be seen.
        newer, their_scores, more = self.delta.search(terms, guard, statistics, k + 1)
        if len(newer) > k and their_scores[k] == their_scores[k - 1]:
            newer, their_scores, more = self.delta.search(terms, guard, statistics, self.delta.rows)
        return ids + self.delta.ids(newer), np.concatenate([scores, their_scores]), matched + more

    def close(self) -> None:
        """Closes the Lucene readers."""
        self.closed = True
        self.delta.close()
        self.base.close()
