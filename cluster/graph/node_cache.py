"""Decoded nodes that were read lately."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping

from cluster.model.nodes import Node

#: Bytes of all kept nodes together, and of the largest one that is kept: one large answer leaves room for the others.
MOST_BYTES = 32 * 1024 * 1024
LARGEST_BYTES = 64 * 1024


class NodeCache:
    """The nodes that were asked for last, each at one revision: at most `size`, and at most `most_bytes` in all.

    Safe to use from several threads. A store gives a node a new revision with each change, and gives no revision twice. So what
    is kept for an id and a revision is what a transaction finds that reads that revision; nothing has to be thrown away for a
    write. It knows nothing of who may read: the caller asks for what it was allowed to. Only committed nodes may be put in.
    """

    def __init__(self, size: int, most_bytes: int = MOST_BYTES) -> None:
        self._size = size
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        #: With the bytes of each.
        self._nodes: OrderedDict[str, tuple[Node, int]] = OrderedDict()
        self._bytes = 0

    @property
    def bytes(self) -> int:
        """Bytes of what is kept, as it was said when it was put in."""
        return self._bytes

    def get(self, revisions: Mapping[str, int]) -> dict[str, Node]:
        """Those of the ids in `revisions` that are kept at exactly that revision."""
        found = {}
        with self._lock:
            for key, revision in revisions.items():
                kept = self._nodes.get(key)
                if kept is not None and kept[0].revision == revision:
                    self._nodes.move_to_end(key)
                    found[key] = kept[0]
        return found

    def put(self, nodes: Iterable[tuple[Node, int]]) -> None:
        """Keeps nodes, each given with its bytes in memory, the newest of an id that is there already; throws out what was not
        asked for longest."""
        with self._lock:
            for node, size in nodes:
                kept = self._nodes.get(node.id)
                if kept is not None:
                    if kept[0].revision > node.revision:
                        continue
                    self._drop(node.id)
                if size <= LARGEST_BYTES:
                    self._nodes[node.id] = node, size
                    self._bytes += size
            while len(self._nodes) > self._size or self._bytes > self._most_bytes:
                self._drop(next(iter(self._nodes)))

    def _drop(self, key: str) -> None:
        self._bytes -= self._nodes.pop(key)[1]
