"""How much was written to a project since a revision: what decides that its index is built anew."""

from __future__ import annotations

from cluster.feed import NODE_KINDS, PAGE
from cluster.ports import GraphStore
from cluster.storage import GenerationStore


def outgrown(store: GraphStore, generations: GenerationStore, project: str, most: int) -> bool:
    """Whether more than `most` nodes of `project` changed since its served generation was built."""
    served = generations.current(project)
    return served is not None and pending_changes(store, project, served.watermark, most) > most


def pending_changes(store: GraphStore, project: str, since: int, most: int) -> int:
    """Nodes of `project` that were written or removed after revision `since`; counting stops above `most`.

    A node that is gone for good counts for every project, since nobody knows any more whose it was.
    """
    counted: set[str] = set()
    while len(counted) <= most and (entries := store.changes(since, PAGE)):
        since = entries[-1].revision
        ids = list(dict.fromkeys(entry.subject for entry in entries if entry.kind in NODE_KINDS))
        found = store.get_nodes(ids) if ids else {}
        counted.update(node_id for node_id in ids if node_id not in found or found[node_id].project == project)
    return len(counted)
