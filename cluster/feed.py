"""What happened to the nodes since a revision, as the indexes need it: page by page, with the nodes as they are now."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from cluster.embed.node_text import embedding_text
from cluster.model.guard import All, In, IsNull
from cluster.model.nodes import Node
from cluster.ports import GraphStore

log = logging.getLogger(__name__)

#: Entries of the store's feed in one page.
PAGE = 2_000
#: Pages that are read after the first one that reached the end: writers that never pause must not hold a reader for ever.
CHASED_PAGES = 20

#: Entries that are about nodes.
NODE_KINDS = frozenset({"node_written", "node_deleted", "node_removed"})


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeChanges:
    """The nodes that changed up to a revision; several versions of one are one change to the last of them."""

    #: Everything up to this revision has been reported, by this page and those before it.
    revision: int
    #: By id. None: nothing is left to search for; it was deleted, marked as deleted, or has no text any more.
    nodes: Mapping[str, Node | None]


class Feed:
    """The changes of one account's nodes, in the order of their revisions."""

    def __init__(self, store: GraphStore, account: str, page: int = PAGE) -> None:
        self._store = store
        self._page = page
        self._live = All((IsNull("deleted_at"), In("account", (account,))))

    def __call__(self, since: int, wanted: Callable[[str], bool]) -> Iterator[NodeChanges]:
        """The changes after revision `since` of the nodes whose id is `wanted`.

        A node is given as it is when its page is read, which may be newer than the page. It is then in a later page as well,
        and the pages end when nothing is newer: applied all, they show the store as it was at the last page's revision.
        """
        chased = 0
        while entries := self._store.changes(since, self._page):
            since = entries[-1].revision
            ids = dict.fromkeys(entry.subject for entry in entries if entry.kind in NODE_KINDS)
            mine = [node_id for node_id in ids if wanted(node_id)]
            found = self._store.get_nodes(mine, self._live) if mine else {}
            yield NodeChanges(revision=since, nodes={node_id: _searchable(found.get(node_id)) for node_id in mine})
            chased += len(entries) < self._page
            if chased > CHASED_PAGES:
                log.warning("the store is written faster than it is followed", extra={"action": "feed_chased"})
                return

    def close(self) -> None:
        """Closes the store."""
        self._store.close()


def _searchable(node: Node | None) -> Node | None:
    return node if node is not None and embedding_text(node) else None
