"""The graph store on disk: one SQLite file in WAL mode, for several threads and processes of one machine."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from heapq import nsmallest
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from cluster import guards
from cluster.graph import batches
from cluster.graph import sqlite_rows as rows
from cluster.graph.batches import EdgeKey
from cluster.graph.node_cache import NodeCache
from cluster.graph.sqlite_connections import ConnectionPool
from cluster.graph.sqlite_schema import QUERIES, migrate
from cluster.model.access import ApiKey
from cluster.model.guard import All, Guard
from cluster.model.nodes import Edge, Node, Related
from cluster.ports import Change, FileState, Present, Project, WriteBatch

#: Ids of one statement; SQLite takes 32,766 values, and a guard needs some of them.
CHUNK = 500

_Item = TypeVar("_Item")
_Filler = TypeVar("_Filler")
#: Equal to no edge's key: none has NULL in it.
_NO_EDGE = (None, None, None)

_NODES = ", ".join(f"nodes.{name}" for name in rows.NODE_COLUMNS)
_EDGES = ", ".join(f"edges.{name}" for name in rows.EDGE_COLUMNS)
_KEYS = ", ".join(rows.KEY_COLUMNS)


def _places(count: int) -> str:
    return ", ".join("?" * count)


def _upsert(name: str, columns: Sequence[str]) -> str:
    updates = ", ".join(f"{column} = excluded.{column}" for column in columns[1:])
    listed = ", ".join(columns)
    return QUERIES[name].format(columns=listed, key_columns=listed, places=_places(len(columns)), updates=updates)


_PUT_NODE = _upsert("put_node", rows.NODE_COLUMNS)
_PUT_KEY = _upsert("put_key", rows.KEY_COLUMNS)


class SqliteGraphStore:
    """A `GraphStore` in the file `path`, made when it is not there, for the writes of one account.

    Safe to use from several threads and processes. A write has been synced to the disk when it returns. Waiting longer than
    `busy_timeout_ms` for another writer, a full disk and a failing one raise UnavailableError, and nothing of the batch is
    stored. The revision advances with the feed: a batch that changes files and projects alone leaves it.

    Lone surrogates become U+FFFD in what is written; asking for one finds nothing. Raises IntegrityError for a file that is
    damaged, of another program, or of a newer release.

    `cached_nodes`: how many nodes `get_nodes` and `neighbours` keep, decoded, in 32 MiB at most. What a reader may see is asked
    of the file every time, and with it the revision that the node has there: a node that is kept stands for that revision
    alone. Nodes that are kept are given to several readers, so that nobody may change their mappings.
    """

    def __init__(
        self, path: str | os.PathLike[str], *, account: str, busy_timeout_ms: int = 30_000, cached_nodes: int = 0
    ) -> None:
        self._gate = batches.AccountGate(account)
        self._cache = NodeCache(cached_nodes) if cached_nodes else None
        self._pool = ConnectionPool(path, busy_timeout_ms)
        try:
            with self._pool.lent() as connection:
                migrate(connection)
        except BaseException:
            self._pool.close()
            raise

    @property
    def rejected_writes(self) -> int:
        """Writes refused because they held another account."""
        return self._gate.rejected

    # --- writes ---

    def write(self, batch: WriteBatch) -> int:
        batch = self._admitted(batch)
        with self._pool.writing() as connection:
            return self._written(connection, batch)

    def transact(self, ids: Sequence[str], receipt: str, decide: Callable[[Present], WriteBatch | None]) -> int:
        with self._pool.writing() as connection:
            known = connection.execute(QUERIES["receipt"], (self._gate.account, _value(receipt))).fetchone()
            present = Present(
                revision=_revision(connection),
                nodes=_load_nodes(connection, list(dict.fromkeys(ids))),
                receipt=None if known is None else rows.to_receipt(known),
            )
            batch = decide(present)
            return present.revision if batch is None else self._written(connection, self._admitted(batch))

    def _admitted(self, batch: WriteBatch) -> WriteBatch:
        self._gate.check(batches.accounts_of(batch))
        return batches.clean_batch(batch)

    def _written(self, connection: sqlite3.Connection, batch: WriteBatch) -> int:
        plan = self._planned(connection, batch)
        revision = _revision(connection)
        if plan.feed:
            revision += 1
            _store(connection, plan, revision)
        connection.executemany(QUERIES["drop_file"], batch.forget_files)
        connection.executemany(QUERIES["put_file"], map(rows.file_row, batch.files))
        connection.executemany(QUERIES["put_project"], map(rows.project_row, batch.projects))
        if batch.receipts:
            connection.execute(QUERIES["drop_receipts"], (batch.now,))
            connection.executemany(QUERIES["put_receipt"], map(rows.receipt_row, batch.receipts))
        return revision

    def _planned(self, connection: sqlite3.Connection, batch: WriteBatch) -> batches.Plan:
        nodes = _load_nodes(connection, batches.touched_ids(batch))
        edges = _load_edges(connection, batches.touched_edges(batch))
        self._gate.check_stored(batch, nodes, edges)
        paths = set(batch.replace_paths)
        for path in paths:
            found = map(rows.to_node, connection.execute(QUERIES["nodes_of_path"].format(columns=_NODES), path))
            nodes.update((node.id, node) for node in found if batches.is_derived_from(node, paths))
        edges.update(_load_edges_from(connection, batches.removed_ids(batch, nodes)))
        batches.load_contained(
            batch,
            nodes,
            edges,
            lambda ids: _load_nodes(connection, ids),
            lambda ids: dict(_load_edges_from(connection, ids)),
        )
        mine = self._gate.account
        return batches.plan(
            batch,
            {key: node for key, node in nodes.items() if node.account == mine},
            {key: edge for key, edge in edges.items() if edge.account == mine},
        )

    def put_key(self, key: ApiKey) -> None:
        self._gate.check((key.principal.account,))
        key = batches.clean_key(key)
        with self._pool.writing() as connection:
            self._gate.check(account for (account,) in connection.execute(QUERIES["account_of_key"], (key.key_id,)))
            connection.execute(_PUT_KEY, rows.key_row(key))

    def revoke_key(self, account: str, key_id: str, now: int) -> bool:
        self._gate.check((account,))
        with self._pool.writing() as connection:
            return connection.execute(QUERIES["revoke_key"], (now, account, _value(key_id))).rowcount > 0

    # --- reads ---

    def revision(self) -> int:
        with self._pool.lent() as connection:
            return _revision(connection)

    def changes(self, since: int, limit: int = 10_000) -> list[Change]:
        limit = max(1, limit)
        with self._pool.reading() as connection:
            entries = [rows.to_change(row) for row in connection.execute(QUERIES["changes"], (since, limit + 1))]
            if len(entries) <= limit:
                return entries
            # The revision that the limit would cut is left for the next call, unless it is the first: then it comes whole.
            whole = [change for change in entries if change.revision < entries[limit].revision]
            if whole:
                return whole
            return [rows.to_change(row) for row in connection.execute(QUERIES["changes_of"], (entries[0].revision,))]

    def get_nodes(self, ids: Sequence[str], guard: Guard | None = None) -> dict[str, Node]:
        wanted = list(dict.fromkeys(ids))
        # A second statement must see what the first one saw.
        one_statement = len(wanted) <= CHUNK and self._cache is None
        with self._pool.lent() if one_statement else self._pool.reading() as connection:
            if self._cache is None:
                found = _load_nodes(connection, wanted, guard)
            else:
                found = self._known(connection, _load_revisions(connection, wanted, guard))
        return {key: found[key] for key in wanted if key in found}

    def scan(self, guard: Guard) -> Iterator[Node]:
        where, values = _where(guard)
        query = QUERIES["scan"].format(columns=_NODES, guard=where)
        yield from map(rows.to_node, self._stream(query, values))

    def count(self, guard: Guard) -> int:
        where, values = _where(guard)
        with self._pool.lent() as connection:
            return int(connection.execute(QUERIES["count"].format(guard=where), values).fetchone()[0])

    def neighbours(self, ids: Sequence[str], guard: Guard, limit: int) -> tuple[dict[str, list[Related]], dict[str, int]]:
        wanted, limit = list(dict.fromkeys(ids)), max(0, limit)
        with self._pool.reading() as connection:
            ends = {asked: _Ends() for asked in wanted}
            for chunk in _chunks(wanted):
                _gather_ends(connection, chunk, guard, ends)
            shown = {asked: found.first(limit) for asked, found in ends.items()}
            # The snapshot is the one that the ends are from, so nothing is missing.
            nodes = self._known(connection, {end.other: end.revision for found in shown.values() for end in found})
        related = {asked: [_related(asked, end, nodes[end.other]) for end in found] for asked, found in shown.items()}
        return related, {asked: found.count - len(shown[asked]) for asked, found in ends.items()}

    def crowded(self, ids: Sequence[str], most: int) -> bool:
        found = 0
        with self._pool.lent() as connection:
            for chunk in _chunks(dict.fromkeys(ids)):
                asked = [*_padded([*map(_value, chunk)], None), most + 1]
                found += connection.execute(_crowd_query(len(asked) - 1), [*asked, *asked]).fetchone()[0]
                if found > most:
                    return True
        return False

    def _known(self, connection: sqlite3.Connection, revisions: Mapping[str, int]) -> dict[str, Node]:
        """The nodes of `revisions`, which the transaction of `connection` has just read: those that are kept, and the rest."""
        if self._cache is None:
            return _load_nodes(connection, revisions)
        found = self._cache.get(revisions)
        if len(found) < len(revisions):
            missing = (key for key in revisions if key not in found)
            loaded = [(rows.to_node(row), rows.node_bytes(row)) for row in _load_rows(connection, missing)]
            self._cache.put(loaded)
            found.update((node.id, node) for node, _ in loaded)
        return found

    def edges(self, account: str, project: str) -> Iterator[Edge]:
        query = QUERIES["edges_of_project"].format(edge_columns=_EDGES)
        yield from map(rows.to_edge, self._stream(query, [_value(account), _value(project)]))

    def files(self, account: str, project: str) -> dict[str, FileState]:
        with self._pool.lent() as connection:
            found = map(rows.to_file, connection.execute(QUERIES["files"], (_value(account), _value(project))))
            return {file.path: file for file in found}

    def projects(self, account: str) -> list[Project]:
        with self._pool.lent() as connection:
            return [rows.to_project(row) for row in connection.execute(QUERIES["projects"], (_value(account),))]

    def find_key(self, secret_hash: str) -> ApiKey | None:
        with self._pool.lent() as connection:
            row = connection.execute(QUERIES["find_key"].format(key_columns=_KEYS), (_value(secret_hash),)).fetchone()
        return None if row is None else rows.to_key(row)

    def keys(self, account: str) -> list[ApiKey]:
        with self._pool.lent() as connection:
            found = connection.execute(QUERIES["keys"].format(key_columns=_KEYS), (_value(account),))
            return [rows.to_key(row) for row in found]

    def close(self) -> None:
        self._pool.close()

    def _stream(self, query: str, values: Sequence[Any]) -> Iterator[rows.Row]:
        """Rows as they are asked for, from one snapshot, over a connection of their own."""
        with self._pool.reading() as connection, contextlib.closing(connection.execute(query, values)) as cursor:
            yield from cursor


def _revision(connection: sqlite3.Connection) -> int:
    return int(connection.execute(QUERIES["revision"]).fetchone()[0])


def _store(connection: sqlite3.Connection, plan: batches.Plan, revision: int) -> None:
    connection.executemany(QUERIES["drop_node"], ((key,) for key in plan.drop_nodes))
    connection.executemany(_PUT_NODE, (rows.node_row(node, revision) for node in plan.put_nodes))
    connection.executemany(QUERIES["drop_edge"], plan.drop_edges)
    connection.executemany(QUERIES["put_edge"], map(rows.edge_row, plan.put_edges))
    entries = ((revision, place, kind, subject) for place, (kind, subject) in enumerate(plan.feed))
    connection.executemany(QUERIES["put_change"], entries)
    connection.execute(QUERIES["advance"], (revision,))


def _load_nodes(connection: sqlite3.Connection, ids: Iterable[str], guard: Guard | None = None) -> dict[str, Node]:
    return {row[0]: rows.to_node(row) for row in _load_rows(connection, ids, guard)}


def _load_rows(connection: sqlite3.Connection, ids: Iterable[str], guard: Guard | None = None) -> Iterator[rows.Row]:
    where, values = _where(All(()) if guard is None else guard)
    for chunk in _chunks(ids):
        asked = _padded([*map(_value, chunk)], None)
        yield from connection.execute(_nodes_query(len(asked), where), [*asked, *values]).fetchall()


def _load_revisions(connection: sqlite3.Connection, ids: Iterable[str], guard: Guard | None) -> dict[str, int]:
    """id -> revision, of the nodes that exist and that `guard` selects."""
    where, values = _where(All(()) if guard is None else guard)
    found: dict[str, int] = {}
    for chunk in _chunks(ids):
        asked = _padded([*map(_value, chunk)], None)
        found.update(connection.execute(_revisions_query(len(asked), where), [*asked, *values]))
    return found


@lru_cache(maxsize=1024)
def _revisions_query(count: int, where: str) -> str:
    return QUERIES["revisions_by_id"].format(places=_places(count), guard=where)


@lru_cache(maxsize=1024)
def _nodes_query(count: int, where: str) -> str:
    return QUERIES["nodes_by_id"].format(columns=_NODES, places=_places(count), guard=where)


def _load_edges(connection: sqlite3.Connection, keys: Iterable[EdgeKey]) -> dict[EdgeKey, Edge]:
    found: dict[EdgeKey, Edge] = {}
    for chunk in _chunks(keys):
        asked = _padded(chunk, _NO_EDGE)
        for row in connection.execute(_edges_query(len(asked)), [part for key in asked for part in key]).fetchall():
            edge = rows.to_edge(row)
            found[batches.edge_key(edge)] = edge
    return found


def _load_edges_from(connection: sqlite3.Connection, ids: Iterable[str]) -> Iterator[tuple[EdgeKey, Edge]]:
    for chunk in _chunks(ids):
        query = QUERIES["edges_from"].format(edge_columns=_EDGES, places=_places(len(chunk)))
        for edge in map(rows.to_edge, connection.execute(query, chunk)):
            yield batches.edge_key(edge), edge


class _End(NamedTuple):
    """One neighbour of a node. The first three are what neighbours are ordered by, and no two are equal in them; SQLite and
    Python order text alike, by code points."""

    type: str
    direction: str
    other: str
    #: Of the neighbour.
    revision: int
    #: Of the edge.
    account: str
    project: str
    properties: str


class _Ends:
    """The neighbours of one node, kept as they were read: of a node with many, few are looked at further."""

    __slots__ = ("_all",)

    def __init__(self) -> None:
        self._all: list[tuple[Any, ...]] = []

    @property
    def count(self) -> int:
        return len(self._all)

    def add(self, row: tuple[Any, ...]) -> None:
        """A row of the query `ends`: the asked id, then an `_End`'s fields."""
        self._all.append(row)

    def first(self, limit: int) -> list[_End]:
        chosen = sorted(self._all)[:limit] if len(self._all) <= limit else nsmallest(limit, self._all)
        return [_End._make(row[1:]) for row in chosen]


def _gather_ends(connection: sqlite3.Connection, ids: Sequence[str], guard: Guard, ends: Mapping[str, _Ends]) -> None:
    """Adds the neighbours of `ids` that `guard` allows.

    Plain rows: ranking them by window functions and reading the nodes in the same statement took five times as long.
    """
    where, values = _where(guard)
    asked = _padded([*map(_value, ids)], None)
    for row in connection.execute(_ends_query(len(asked), where), [*asked, *asked, *values]).fetchall():
        ends[row[0]].add(row)


def _related(asked: str, end: _End, node: Node) -> Related:
    from_id, to_id = (asked, end.other) if end.direction == "outgoing" else (end.other, asked)
    edge = rows.to_edge((from_id, end.type, to_id, end.account, end.project, end.properties))
    return Related(edge=edge, direction=end.direction, node=node)


@lru_cache(maxsize=1024)
def _ends_query(count: int, where: str) -> str:
    return QUERIES["ends"].format(places=_places(count), guard=where)


@lru_cache(maxsize=64)
def _crowd_query(count: int) -> str:
    return QUERIES["crowd"].format(places=_places(count))


@lru_cache(maxsize=64)
def _edges_query(count: int) -> str:
    return QUERIES["edges_by_key"].format(edge_columns=_EDGES, rows=", ".join(["(?, ?, ?)"] * count))


def _padded(items: Sequence[_Item], filler: _Filler) -> list[_Item | _Filler]:
    """`items`, filled up to a power of two with what matches nothing, so that few different statements have to be compiled."""
    return [*items, *(filler for _ in range((1 << max(0, len(items) - 1).bit_length()) - len(items)))]


@lru_cache(maxsize=1024)
def _where(guard: Guard) -> tuple[str, tuple[str | bytes, ...]]:
    where, values = guards.to_sql(guard)
    return where, tuple(map(_value, values))


def _value(text: str) -> str | bytes:
    """What to ask SQLite for. A lone surrogate is never stored, so it is asked for as bytes, which equal no text."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")
    return text


def _chunks(items: Iterable[_Item]) -> Iterator[list[_Item]]:
    left = iter(items)
    while chunk := list(islice(left, CHUNK)):
        yield chunk
