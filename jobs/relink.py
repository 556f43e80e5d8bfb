"""Brings the stored edges between files to what the files' facts give, and touches nobody else's."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

from cluster.model.nodes import Edge, Node, Store
from cluster.ports import GraphStore, WriteBatch
from jobs.model import CALLS, IMPORTS, REFERENCES

EdgeKey = tuple[str, str, str]

#: Edge types that linking owns, where they leave what a job extracted.
_TYPES = frozenset({IMPORTS, CALLS, REFERENCES})
_IDS_AT_ONCE = 500


def relink(
    store: GraphStore, account: str, project: str, facts: Mapping[str, Mapping[str, Any]], contained: Set[EdgeKey], now: int
) -> int:
    """Writes the difference in one transaction; returns how many links there are now.

    `facts`: of every file of the project, by path. `contained`: keys of the edges inside files, which are no links.
    """
    from jobs.link import link  # loads the languages' readers

    wanted = {_key(edge): edge for edge in link(account, project, facts)}
    types = _TYPES | {edge.type for edge in wanted.values()}
    stored = {_key(edge): edge for edge in store.edges(account, project) if edge.type in types and _key(edge) not in contained}
    missing = tuple(edge for key, edge in wanted.items() if stored.get(key) != edge)
    stale = _owned(store, [key for key in stored if key not in wanted])
    if missing or stale:
        store.write(WriteBatch(remove_edges=stale, edges=missing, now=now))
    return len(wanted)


def _owned(store: GraphStore, keys: list[EdgeKey]) -> tuple[EdgeKey, ...]:
    """Those that leave a node of the ingest job, or one that is no more: agents may use the same types for their own edges."""
    ids = sorted({key[0] for key in keys})
    owners: dict[str, Node] = {}
    for start in range(0, len(ids), _IDS_AT_ONCE):
        owners |= store.get_nodes(ids[start : start + _IDS_AT_ONCE])
    return tuple(key for key in keys if key[0] not in owners or owners[key[0]].store is Store.STRUCTURE)


def _key(edge: Edge) -> EdgeKey:
    return edge.from_id, edge.type, edge.to_id
