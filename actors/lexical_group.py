"""Partitions that are asked together, as a question over many projects asks them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import numpy as np

from actors.lexical_part import Found, LexicalPart
from cluster.model.guard import Guard
from cluster.model.query import TermStatistics

#: Sets of partitions whose union is kept, and rows of all of them together; a row costs some 5 bytes, and a bit for each guard.
GROUPS = 64
GROUP_ROWS = 20_000_000


class LexicalGroup:
    """Partitions as one: their generations' rows in one search, and the rows of each one's delta."""

    def __init__(self, parts: Sequence[LexicalPart]) -> None:
        from cluster.index.lexical_union import LexicalUnion

        self.parts = tuple(parts)
        self._union = LexicalUnion([part.base for part in self.parts])

    @property
    def rows(self) -> int:
        """Rows of all generations, dead or alive."""
        return self._union.rows

    @property
    def closed(self) -> bool:
        """Whether one of the partitions is."""
        return any(part.closed for part in self.parts)

    def statistics(self, terms: Sequence[str], guard: Guard) -> TermStatistics:
        """The sum over the partitions."""
        total = self._union.statistics(terms, guard)
        for part in self.parts:
            if len(part.delta):
                total += part.delta.statistics(terms, guard)
        return total

    def search(self, terms: Sequence[str], guard: Guard, statistics: TermStatistics, k: int) -> Found:
        """The best `k` rows at least of all partitions, in no order across generations and deltas."""
        rows, scores, matched = self._union.search(terms, guard, statistics, k)
        order = np.argsort(rows)
        ids: list[str] = []
        for part, local in zip(self.parts, self._union.by_part(rows[order]), strict=True):
            ids += part.ids.at(local)
        found: Found = (ids, scores[order], matched)
        for part in self.parts:
            found = part.with_newer(found, terms, guard, statistics, k)
        return found

    def close(self) -> None:
        """Lets go of the partitions."""
        self._union.close()


class LexicalGroups:
    """The groups that questions asked for lately."""

    def __init__(self, most: int = GROUPS, most_rows: int = GROUP_ROWS) -> None:
        self._most = most
        self._most_rows = most_rows
        self._known: OrderedDict[tuple[int, ...], LexicalGroup] = OrderedDict()

    def __call__(self, parts: Sequence[LexicalPart]) -> LexicalGroup:
        """The group of `parts`, two or more. Groups of closed partitions are let go, or their files would stay open."""
        for key, group in list(self._known.items()):
            if group.closed:
                self._known.pop(key).close()
        key = tuple(map(id, parts))  # a group keeps its parts, so no other one has the same id
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = LexicalGroup(parts)
        self._known.move_to_end(key)
        while len(self._known) > 1 and (
            len(self._known) > self._most or sum(group.rows for group in self._known.values()) > self._most_rows
        ):
            self._known.popitem(last=False)[1].close()
        return known

    def close(self) -> None:
        """Lets go of everything."""
        while self._known:
            self._known.popitem()[1].close()
