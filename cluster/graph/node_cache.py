"""Decoded nodes that were read lately."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping

from cluster.model.nodes import Node

#: Characters of text from which a node is not kept, so that a number of nodes bounds the memory too.
LONG_TEXT = 16_384


class NodeCache:
    """The `size` nodes that were asked for last, each at one revision. Safe to use from several threads.

    A store gives a node a new revision with each change, and gives no revision twice. So what is kept for an id and a revision
    is what a transaction finds that reads that revision; nothing has to be thrown away for a write. It knows nothing of who may
    read: the caller asks for what it was allowed to. Only committed nodes may be put in.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._lock = threading.Lock()
        self._nodes: OrderedDict[str, Node] = OrderedDict()

    def get(self, revisions: Mapping[str, int]) -> dict[str, Node]:
        """Those of the ids in `revisions` that are kept at exactly that revision."""
        found = {}
        with self._lock:
            for key, revision in revisions.items():
                node = self._nodes.get(key)
                if node is not None and node.revision == revision:
                    self._nodes.move_to_end(key)
                    found[key] = node
        return found

    def put(self, nodes: Iterable[Node]) -> None:
        """Keeps `nodes`, the newest of an id that is there already; throws out what was not asked for longest."""
        with self._lock:
            for node in nodes:
                kept = self._nodes.get(node.id)
                if kept is not None and kept.revision > node.revision:
                    continue
                if sum(map(len, node.text.values())) < LONG_TEXT:
                    self._nodes[node.id] = node
                    self._nodes.move_to_end(node.id)
            while len(self._nodes) > self._size:
                self._nodes.popitem(last=False)
