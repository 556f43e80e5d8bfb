"""Every graph store, freshly made, and short ways to ask one."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from cluster.graph.memory import MemoryGraphStore
from cluster.graph.neo4j_store import Neo4jGraphStore
from cluster.graph.sqlite import SqliteGraphStore
from cluster.model.guard import All
from cluster.model.nodes import Node
from cluster.ports import FileState, GraphStore
from tests.support import neo4j_server
from tests.support.factories import ACCOUNT

#: A guard that selects every node.
EVERYTHING = All(())

AnyStore = MemoryGraphStore | SqliteGraphStore | Neo4jGraphStore


def make_memory_store(_folder: Path) -> AnyStore:
    return MemoryGraphStore(account=ACCOUNT)


def make_sqlite_store(folder: Path) -> AnyStore:
    return SqliteGraphStore(folder / "graph.sqlite", account=ACCOUNT)


def make_neo4j_store(_folder: Path) -> AnyStore:
    """Over an empty database: only one of these is of use at a time."""
    server = neo4j_server.shared_server()
    neo4j_server.empty(server)
    return neo4j_server.open_store(server)


GRAPH_STORES = {"memory": make_memory_store, "sqlite": make_sqlite_store, "neo4j": make_neo4j_store}


def ids(found: Iterable[Node]) -> list[str]:
    return [node.id for node in found]


def feed(store: GraphStore, since: int = 0) -> list[tuple[int, str, str]]:
    """(revision, kind, subject) of every change after `since`."""
    return [(change.revision, change.kind, change.subject) for change in store.changes(since)]


def make_file(path: str = "a.md", **changes: object) -> FileState:
    fields = {"account": ACCOUNT, "project": "main", "path": path, "content_hash": "h", "extractor": "markdown/1"}
    return FileState(**(fields | changes))
