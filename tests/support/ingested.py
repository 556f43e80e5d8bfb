"""Runs of the ingest job in tests, and what a reader of the store sees after them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from cluster.graph.memory import MemoryGraphStore
from cluster.model.guard import All, In, IsNull
from cluster.model.nodes import Edge, Node
from jobs.ingest import IngestReport, ingest
from tests.support.factories import ACCOUNT

State: TypeAlias = tuple[dict[str, Node], dict[tuple[str, str, str], Edge]]


def run_ingest(store: Any, root: Path, **changes: Any) -> IngestReport:
    arguments: dict[str, Any] = {"account": ACCOUNT, "project": "main", "repository": "repo", "now": 1_000}
    report = ingest(store, root, **(arguments | changes))
    assert report.indexed + report.unchanged + len(report.skipped) == report.files_seen
    return report


def live_nodes(store: Any, project: str = "main") -> list[Node]:
    return [*store.scan(All((IsNull("deleted_at"), In("project", (project,)))))]


def visible_state(store: Any, project: str = "main", *, commits: bool = True) -> State:
    """What a reader can see: live nodes, and the edges between them."""
    nodes = {}
    for node in live_nodes(store, project):
        source = node.source if commits or node.source is None else replace(node.source, commit=None)
        nodes[node.id] = replace(node, revision=0, source=source)
    edges = {(edge.from_id, edge.type, edge.to_id): edge for edge in store.edges(ACCOUNT, project)}
    return nodes, {key: edge for key, edge in edges.items() if key[0] in nodes and key[2] in nodes}


def fresh_store(root: Path, **changes: Any) -> MemoryGraphStore:
    store = MemoryGraphStore(account=ACCOUNT)
    run_ingest(store, root, **changes)
    return store


def stored_paths(store: Any, project: str = "main") -> list[str]:
    return sorted({node.source.path for node in live_nodes(store, project) if node.source})


def stored_contents(store: Any, path: str) -> list[str]:
    found = [node for node in live_nodes(store) if node.source and node.source.path == path and "content" in node.text]
    return [node.text["content"] for node in sorted(found, key=lambda node: (node.source and node.source.start_line) or 0)]


def stored_symbols(store: Any, path: str) -> set[str]:
    return {
        node.text["symbol"] for node in live_nodes(store) if node.source and node.source.path == path and "symbol" in node.text
    }
