"""What one transaction of the Neo4j graph store does: loads what a plan needs, stores what it says, reads under the lock."""

from __future__ import annotations

import heapq
import pickle
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import IO, Any, Protocol, TypeAlias, TypeVar

from cluster import guards
from cluster.graph import batches
from cluster.graph import neo4j_rows as rows
from cluster.graph.batches import EdgeKey
from cluster.graph.neo4j_rows import Record
from cluster.graph.neo4j_schema import QUERIES, guarded
from cluster.model.guard import All, Guard
from cluster.model.nodes import Edge, Node
from cluster.ports import Change, Present, WriteBatch

#: Rows of one statement.
CHUNK = 2000

#: Bytes of a snapshot that are kept in memory; what is more goes to a temporary file.
_SPOOL_BYTES = 32 << 20

T = TypeVar("T")
Key: TypeAlias = tuple[str, ...]


class Transaction(Protocol):
    """An open transaction of the driver."""

    def run(self, query: str, parameters: dict[str, Any], /) -> Iterable[Mapping[str, Any]]: ...


def execute(tx: Transaction, query: str, rows_of: str, items: Iterable[Any]) -> None:
    """Runs `query` over `items`, some thousand at a time; with none, not at all."""
    for chunk in chunks(items):
        for _ in tx.run(query, {rows_of: chunk}):
            pass


def chunks(items: Iterable[T]) -> Iterator[list[T]]:
    left = iter(items)
    while chunk := list(islice(left, CHUNK)):
        yield chunk


def value(text: str) -> str | bytes:
    """What to ask Neo4j for. A lone surrogate is never stored, so it is asked for as bytes, which equal no text."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")
    return text


def where(guard: Guard) -> tuple[str, dict[str, Any]]:
    expression, parameters = guards.to_cypher(guard)
    return expression, {name: [value(item) for item in values] for name, values in parameters.items()}


def lock(tx: Transaction) -> int:
    """The revision; until the end of the transaction no other one writes, or is half applied."""
    for row in tx.run(QUERIES["lock"], {}):
        return int(row["revision"])
    return 0


# --- writing -----------------------------------------------------------------------------------------------------------------


def planned(tx: Transaction, batch: WriteBatch, gate: batches.AccountGate) -> tuple[batches.Plan, set[EdgeKey]]:
    """The net effect of a clean `batch`, and the edges of it that are stored already. The lock is held."""
    nodes = load_nodes(tx, batches.touched_ids(batch))
    edges = _edges(tx, "edges_by_key", "keys", batches.touched_edges(batch))
    gate.check_stored(batch, nodes, edges)
    paths = set(batch.replace_paths)
    for chunk in chunks(paths):
        for row in tx.run(QUERIES["nodes_of_paths"], {"paths": chunk}):
            node = rows.to_node(row["node"])
            if batches.is_derived_from(node, paths):
                nodes[node.id] = node
    edges.update(_edges(tx, "edges_from", "ids", batches.removed_ids(batch, nodes)))
    batches.load_contained(
        batch, nodes, edges, lambda ids: load_nodes(tx, ids), lambda ids: _edges(tx, "edges_from", "ids", ids)
    )
    batches.load_contained(
        batch, nodes, edges, lambda ids: load_nodes(tx, ids), lambda ids: _edges(tx, "edges_from", "ids", ids)
    )
    mine = gate.account
    plan = batches.plan(
        batch,
        {key: node for key, node in nodes.items() if node.account == mine},
        {key: edge for key, edge in edges.items() if edge.account == mine},
    )
    return plan, set(edges)


def store(tx: Transaction, plan: batches.Plan, known: set[EdgeKey], revision: int) -> None:
    """Stores `plan` as `revision`. `known`: keys of edges that are stored already."""
    execute(tx, QUERIES["drop_edges"], "keys", plan.drop_edges)
    execute(tx, QUERIES["drop_nodes"], "ids", plan.drop_nodes)
    execute(tx, QUERIES["put_nodes"], "rows", (rows.node_record(node, revision) for node in plan.put_nodes))
    changed = [edge for edge in plan.put_edges if batches.edge_key(edge) in known]
    new = [edge for edge in plan.put_edges if batches.edge_key(edge) not in known]
    execute(tx, QUERIES["put_edges"], "rows", map(rows.edge_record, changed))
    execute(tx, QUERIES["new_edges"], "rows", map(rows.edge_record, new))
    loose = {*plan.drop_nodes, *(key[0] for key in plan.drop_edges), *(key[2] for key in plan.drop_edges)}
    execute(tx, QUERIES["drop_unused"], "ids", sorted(loose))
    kinds, subjects = zip(*plan.feed, strict=True)
    for _ in tx.run(QUERIES["advance"], {"revision": revision, "kinds": list(kinds), "subjects": list(subjects)}):
        pass


def store_records(tx: Transaction, batch: WriteBatch) -> None:
    """What of `batch` is no part of the graph: files, projects and receipts."""
    execute(tx, QUERIES["drop_files"], "keys", batch.forget_files)
    execute(tx, QUERIES["put_files"], "rows", map(rows.file_record, batch.files))
    execute(tx, QUERIES["put_projects"], "rows", map(rows.project_record, batch.projects))
    if batch.receipts:
        for _ in tx.run(QUERIES["drop_receipts"], {"now": batch.now}):
            pass
        execute(tx, QUERIES["put_receipts"], "rows", map(rows.receipt_record, batch.receipts))


def present(tx: Transaction, account: str, ids: Iterable[str], receipt: str) -> Present:
    """What there is of `ids` and of the receipt of that key; takes the lock."""
    revision = lock(tx)
    known = [row["receipt"] for row in tx.run(QUERIES["receipt"], {"account": account, "key": value(receipt)})]
    return Present(
        revision=revision, nodes=load_nodes(tx, dict.fromkeys(ids)), receipt=rows.to_receipt(known[0]) if known else None
    )


def write(tx: Transaction, batch: WriteBatch, gate: batches.AccountGate, revision: int) -> int:
    """Applies a clean `batch` to the store at `revision`; the revision afterwards. The lock is held."""
    plan, known = planned(tx, batch, gate)
    if plan.feed:
        revision += 1
        store(tx, plan, known, revision)
    store_records(tx, batch)
    return revision


# --- reading -----------------------------------------------------------------------------------------------------------------


def load_records(tx: Transaction, ids: Iterable[str], guard: Guard | None = None) -> Iterator[Record]:
    """The properties of the nodes among `ids`."""
    expression, parameters = where(All(()) if guard is None else guard)
    query = guarded("nodes_by_id", expression)
    for chunk in chunks(map(value, ids)):
        for row in tx.run(query, {"ids": chunk, **parameters}):
            yield row["node"]


def load_nodes(tx: Transaction, ids: Iterable[str]) -> dict[str, Node]:
    """The nodes among `ids`, in no order. The lock is held, so that each is one version."""
    return {record["id"]: rows.to_node(record) for record in load_records(tx, ids)}


def _edges(tx: Transaction, name: str, parameter: str, items: Iterable[Any]) -> dict[EdgeKey, Edge]:
    found = (rows.to_edge(row) for chunk in chunks(items) for row in tx.run(QUERIES[name], {parameter: chunk}))
    return {batches.edge_key(edge): edge for edge in found}


def changes(tx: Transaction, since: int, limit: int) -> list[Change]:
    """Whole revisions after `since`, of at most `limit` entries together, but one revision at least."""
    until, entries = since, 0
    for row in tx.run(QUERIES["change_sizes"], {"since": since, "limit": limit + 1}):
        if entries and entries + row["size"] > limit:
            break
        until, entries = row["revision"], entries + row["size"]
    return list(_entries(tx, since, until))


def _entries(tx: Transaction, since: int, until: int) -> Iterator[Change]:
    for row in tx.run(QUERIES["changes"], {"since": since, "until": until}):
        for kind, subject in zip(row["kinds"], row["subjects"], strict=True):
            yield Change(revision=row["revision"], kind=kind, subject=subject)


# --- snapshots ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A long read that is one state of the store in the end.

    Neo4j has no snapshots, and a lock held as long as a long read takes would stop all writers. So everything is read without
    one first, and then, for a moment under the lock, what has changed meanwhile is read again.
    """

    query: str
    parameters: Mapping[str, Any]
    #: What orders the rows, and tells them apart.
    key: Callable[[Record], Key]
    #: The subject of the feed that a row stands for.
    subject: Callable[[Record], str]
    #: Whether a row is of one version.
    is_whole: Callable[[Record], bool]
    #: Reads the rows of some subjects of the feed.
    reread: Callable[[Transaction, list[str]], Iterable[Record]]
    #: "node" or "edge": what the feed's kinds start with.
    kind: str

    def read(self, tx: Transaction, spool: Spool) -> set[str]:
        """Reads all rows into `spool`; subjects of those that are not of one version."""
        torn: set[str] = set()
        spool.clear()
        for chunk in chunks(tx.run(self.query, dict(self.parameters))):
            found = [dict(row) for row in chunk]
            torn.update(self.subject(row) for row in found if not self.is_whole(row))
            spool.add(found)
        return torn

    def amend(self, tx: Transaction, since: int, torn: set[str]) -> tuple[set[str], list[Record]]:
        """Subjects whose rows in the spool do not count, and the rows that count instead, in order."""
        now = lock(tx)
        stale = torn | {change.subject for change in _entries(tx, since, now) if change.kind.startswith(self.kind)}
        fresh = {self.key(row): row for row in self.reread(tx, sorted(stale)) if self.subject(row) in stale} if stale else {}
        return stale, [fresh[key] for key in sorted(fresh)]

    def merged(self, spool: Spool, stale: set[str], fresh: Sequence[Record]) -> Iterator[Record]:
        kept = (row for row in spool.rows() if self.subject(row) not in stale) if stale else spool.rows()
        return heapq.merge(kept, fresh, key=self.key)


class Spool:
    """Rows on their way, in memory as long as they are few."""

    def __init__(self) -> None:
        self._file: IO[bytes] = tempfile.SpooledTemporaryFile(_SPOOL_BYTES)  # noqa: SIM115  (closed by `close`)

    def clear(self) -> None:
        self._file.seek(0)
        self._file.truncate()

    def add(self, found: list[dict[str, Any]]) -> None:
        pickle.dump(found, self._file, pickle.HIGHEST_PROTOCOL)

    def rows(self) -> Iterator[Record]:
        self._file.seek(0)
        while True:
            try:
                # Written by `add` of this same process, into a file that has no name.
                yield from pickle.load(self._file)  # noqa: S301
            except EOFError:
                return

    def close(self) -> None:
        self._file.close()


def scan_of(guard: Guard) -> Snapshot:
    """Every node that `guard` selects, by id."""
    expression, parameters = where(guard)
    return Snapshot(
        query=guarded("scan", expression),
        parameters=parameters,
        key=lambda row: (row["node"].get("id", ""),),
        subject=lambda row: str(row["node"].get("id", "")),
        is_whole=lambda row: rows.is_whole(row["node"]),
        reread=lambda tx, subjects: ({"node": record} for record in load_records(tx, subjects, guard)),
        kind="node",
    )


def edges_of(account: str, project: str) -> Snapshot:
    """Every edge of a project, by its key."""

    def reread(tx: Transaction, subjects: list[str]) -> Iterator[Record]:
        keys = [key for subject in subjects for key in rows.edge_keys(subject)]
        for chunk in chunks(keys):
            for row in tx.run(QUERIES["edges_by_key"], {"keys": chunk}):
                if (row["edge"]["account"], row["edge"]["project"]) == (account, project):
                    yield dict(row)

    return Snapshot(
        query=QUERIES["edges_of_project"],
        parameters={"account": value(account), "project": value(project)},
        key=_edge_key,
        subject=lambda row: "\x1f".join(_edge_key(row)),
        is_whole=lambda row: len(row["edge"]) == 4,
        reread=reread,
        kind="edge",
    )


def _edge_key(row: Record) -> Key:
    return row["from_id"] or "", row["edge"].get("type", ""), row["to_id"] or ""
