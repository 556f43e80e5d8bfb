"""How many changes a partition holds in memory: over one bound a build is due, over the other new rows are left out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from cluster.model.nodes import Node

#: Rows that are still taken in beyond the bound, in bounds: a build takes its time, and agents go on writing.
HARD_FACTOR = 4


class Delta(Protocol):
    """What counts: the living rows, by id."""

    def __len__(self) -> int: ...
    def __contains__(self, node_id: str) -> bool: ...


class Bound:
    """The bounds of one partition, and what was left out for them."""

    def __init__(self, max_rows: int) -> None:
        self._max_rows = max_rows
        #: Ids whose newest version is not held. Their older rows are dead all the same: no answer shows what was overwritten.
        self._left_out: set[str] = set()

    def admit(self, changes: Mapping[str, Node | None], delta: Delta) -> tuple[list[Node], list[str]]:
        """What of `changes` becomes a row, and the ids whose row in the delta dies without a new one."""
        room = HARD_FACTOR * self._max_rows - len(delta)
        written: list[Node] = []
        gone: list[str] = []
        for node_id, node in changes.items():
            self._left_out.discard(node_id)
            if node is None:
                gone.append(node_id)
                room += node_id in delta
            elif node_id in delta:
                written.append(node)
            elif room > 0:
                written.append(node)
                room -= 1
            else:
                self._left_out.add(node_id)
        return written, gone

    def exceeded(self, changes: int) -> bool:
        """Whether `changes` (rows in memory and dead rows of the generation) are so many that a build is due."""
        return changes > self._max_rows or bool(self._left_out)

    @property
    def left_out(self) -> bool:
        """Whether a row is missing."""
        return bool(self._left_out)
