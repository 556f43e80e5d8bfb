"""The graph store in Neo4j, over Bolt: for many machines. The one file that knows the driver."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import neo4j
from neo4j import exceptions as failures

from cluster import guards
from cluster.errors import ConfigError, ConflictError, IntegrityError, RaycallError, TooLargeError, UnavailableError
from cluster.graph import batches, neo4j_work
from cluster.graph import neo4j_rows as rows
from cluster.graph.neo4j_rows import Record
from cluster.graph.neo4j_schema import QUERIES, guarded, migrate
from cluster.graph.neo4j_work import Snapshot, Spool, Transaction, value, where
from cluster.model.access import ApiKey
from cluster.model.guard import All, Guard
from cluster.model.nodes import Edge, Node, Related
from cluster.ports import Change, FileState, Present, Project, WriteBatch

logger = logging.getLogger(__name__)

#: The first release with scoped subqueries.
OLDEST = (5, 26)

_ADDRESS = re.compile(r"(bolt|neo4j)(\+s|\+ssc)?://")

T = TypeVar("T")


class Neo4jGraphStore:
    """A `GraphStore` in the Neo4j database `database` of the server at `uri`, for the writes of one account.

    Safe to use from several threads, processes and machines. A write has been synced to the server's disk when it returns, and
    every later read of this store sees it. A server that is away raises UnavailableError, after trying again for `retry_s`
    seconds; when it is back, so is the store. Where the connection breaks in the very moment of a commit, the write may have
    been stored: UnavailableError says so, and writing the same batch again is safe. A transaction is given up after
    `timeout_s`.

    Scans, edges, the feed and the revision are one state of the store. Other reads show each node as one write left it, but may
    meet a write of many nodes while the server applies it.

    Lone surrogates become U+FFFD in what is written; asking for one finds nothing. Ids and paths hold 8,000 bytes. Raises
    UnavailableError for a wrong password or database and for a server older than 5.26, and IntegrityError for a database that
    holds another program's data or was written by a newer release.
    """

    def __init__(
        self,
        uri: str,
        *,
        account: str,
        password: str,
        user: str = "neo4j",
        database: str = "neo4j",
        retry_s: float = 5.0,
        timeout_s: float = 120.0,
    ) -> None:
        self._gate = batches.AccountGate(account)
        self._connection = _Connection(uri, (user, password), database, retry_s, timeout_s)
        try:
            self._connection.check_version()
            migrate(self._connection.run)
        except BaseException:
            self._connection.close()
            raise

    @property
    def rejected_writes(self) -> int:
        """Writes refused because they held another account."""
        return self._gate.rejected

    # --- writes ---

    def write(self, batch: WriteBatch) -> int:
        batch = self._admitted(batch)
        return self._connection.write(lambda tx: neo4j_work.write(tx, batch, self._gate, neo4j_work.lock(tx)))

    def transact(self, ids: Sequence[str], receipt: str, decide: Callable[[Present], WriteBatch | None]) -> int:
        def work(tx: Transaction) -> int:
            present = neo4j_work.present(tx, self._gate.account, ids, receipt)
            batch = decide(present)
            if batch is None:
                return present.revision
            return neo4j_work.write(tx, self._admitted(batch), self._gate, present.revision)

        return self._connection.write(work)

    def _admitted(self, batch: WriteBatch) -> WriteBatch:
        self._gate.check(batches.accounts_of(batch))
        return batches.clean_batch(batch)

    def put_key(self, key: ApiKey) -> None:
        self._gate.check((key.principal.account,))
        key = batches.clean_key(key)

        def work(tx: Transaction) -> None:
            neo4j_work.lock(tx)
            self._gate.check(row["account"] for row in tx.run(QUERIES["account_of_key"], {"key_id": key.key_id}))
            list(tx.run(QUERIES["put_key"], {"row": rows.key_record(key)}))

        self._connection.write(work)

    def revoke_key(self, account: str, key_id: str, now: int) -> bool:
        self._gate.check((account,))
        asked = {"account": account, "key_id": value(key_id), "now": now}

        def work(tx: Transaction) -> bool:
            neo4j_work.lock(tx)
            return bool(list(tx.run(QUERIES["revoke_key"], asked)))

        return self._connection.write(work)

    # --- reads ---

    def revision(self) -> int:
        return self._connection.write(neo4j_work.lock)

    def changes(self, since: int, limit: int = 10_000) -> list[Change]:
        # A revision shows in the feed a moment before all of its nodes do: who has read of it must find them. The lock waits.
        if not self._connection.read(lambda tx: list(tx.run(QUERIES["change_sizes"], {"since": since, "limit": 1}))):
            return []

        def work(tx: Transaction) -> list[Change]:
            neo4j_work.lock(tx)
            return neo4j_work.changes(tx, since, max(1, limit))

        return self._connection.write(work)

    def get_nodes(self, ids: Sequence[str], guard: Guard | None = None) -> dict[str, Node]:
        wanted = list(dict.fromkeys(ids))
        found = self._connection.read(lambda tx: list(neo4j_work.load_records(tx, wanted, guard)))
        nodes = self._nodes(found, All(()) if guard is None else guard)
        return {key: nodes[key] for key in wanted if key in nodes}

    def scan(self, guard: Guard) -> Iterator[Node]:
        for row in self._snapshot(neo4j_work.scan_of(guard)):
            yield rows.to_node(row["node"])

    def count(self, guard: Guard) -> int:
        expression, parameters = where(guard)
        query = guarded("count", expression)
        return int(self._connection.read(lambda tx: [row["found"] for row in tx.run(query, parameters)])[0])

    def neighbours(self, ids: Sequence[str], guard: Guard, limit: int) -> tuple[dict[str, list[Related]], dict[str, int]]:
        wanted, limit = list(dict.fromkeys(ids)), max(0, limit)
        expression, parameters = where(guard)
        query = guarded("neighbours", expression)

        def work(tx: Transaction) -> list[Record]:
            # One at least is asked for: a row also carries how many there are.
            asked = neo4j_work.chunks(map(value, wanted))
            return [row for ids in asked for row in tx.run(query, {"ids": ids, "limit": max(1, limit), **parameters})]

        found = self._connection.read(work)
        nodes = self._nodes([row["node"] for row in found], guard)
        shown: dict[str, list[Related]] = {asked: [] for asked in wanted}
        omitted = dict.fromkeys(wanted, 0)
        for row in found:
            asked, node = row["asked"], nodes.get(row["node"].get("id"))
            if limit and node is not None:
                shown[asked].append(Related(edge=rows.to_edge(row), direction=row["direction"], node=node))
            omitted[asked] = max(0, row["total"] - len(shown[asked]))
        return shown, omitted

    def crowded(self, ids: Sequence[str], most: int) -> bool:  # noqa: ARG002
        # The server goes through them; what comes here is bounded by the limit of `neighbours`.
        return False

    def edges(self, account: str, project: str) -> Iterator[Edge]:
        yield from map(rows.to_edge, self._snapshot(neo4j_work.edges_of(account, project)))

    def files(self, account: str, project: str) -> dict[str, FileState]:
        asked = {"account": value(account), "project": value(project)}
        found = self._connection.run(QUERIES["files"], asked)
        return {file.path: file for file in (rows.to_file(row["file"]) for row in found)}

    def projects(self, account: str) -> list[Project]:
        return [
            rows.to_project(row["project"]) for row in self._connection.run(QUERIES["projects"], {"account": value(account)})
        ]

    def find_key(self, secret_hash: str) -> ApiKey | None:
        found = self._connection.run(QUERIES["find_key"], {"secret_hash": value(secret_hash)})
        return rows.to_key(found[0]["key"]) if found else None

    def keys(self, account: str) -> list[ApiKey]:
        return [rows.to_key(row["key"]) for row in self._connection.run(QUERIES["keys"], {"account": value(account)})]

    def close(self) -> None:
        self._connection.close()

    def _nodes(self, found: Sequence[Record], guard: Guard) -> dict[str, Node]:
        """The nodes of `found`, each as one write left it, that `guard` still selects."""
        whole = {record["id"]: record for record in found if rows.is_whole(record)}
        torn = [record["id"] for record in found if record.get("id") not in whole and "id" in record]
        if torn:
            # Half of a write was read, or somebody edited by hand: under the lock the server shows what it holds.
            whole |= self._connection.write(lambda tx: _locked_records(tx, torn))
        nodes = {key: rows.to_node(record) for key, record in whole.items()}
        return {key: node for key, node in nodes.items() if guards.allows(guard, node)}

    def _snapshot(self, snapshot: Snapshot) -> Iterator[Record]:
        with contextlib.closing(Spool()) as spool:
            since = self._connection.write(neo4j_work.lock)
            torn = self._connection.read(lambda tx: snapshot.read(tx, spool))
            stale, fresh = self._connection.write(lambda tx: snapshot.amend(tx, since, torn))
            yield from snapshot.merged(spool, stale, fresh)


def _locked_records(tx: Transaction, ids: Sequence[str]) -> dict[str, Record]:
    neo4j_work.lock(tx)
    return {record["id"]: record for record in neo4j_work.load_records(tx, ids)}


# --- the driver --------------------------------------------------------------------------------------------------------------


class _Connection:
    """The driver's sessions, with errors in the house's terms. Its password is in the driver alone, never in a text."""

    def __init__(self, uri: str, auth: tuple[str, str], database: str, retry_s: float, timeout_s: float) -> None:
        self._uri, self._auth, self._database = uri, _Secret(auth), database
        self._retry_s, self._timeout_s = retry_s, timeout_s
        self._guard = threading.Lock()
        self._driver: neo4j.Driver | None = None
        self._process = 0
        self._closed = False

    def write(self, work: Callable[[Transaction], T]) -> T:
        """Runs `work` in a transaction that is committed; again, as a whole, after a failure that may pass."""
        with self._session(neo4j.WRITE_ACCESS) as session:
            return session.execute_write(self._timed(work))

    def read(self, work: Callable[[Transaction], T]) -> T:
        with self._session(neo4j.READ_ACCESS) as session:
            return session.execute_read(self._timed(work))

    def run(self, query: str, parameters: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """All rows of one statement, which may write or change the schema."""
        return self.write(lambda tx: list(tx.run(query, dict(parameters))))

    def _timed(self, work: Callable[[Transaction], T]) -> Callable[[neo4j.ManagedTransaction], T]:
        return neo4j.unit_of_work(timeout=self._timeout_s)(work)

    @contextlib.contextmanager
    def _session(self, access: str) -> Iterator[neo4j.Session]:
        with self._mapped_errors(), self._opened().session(database=self._database, default_access_mode=access) as session:
            yield session

    def _opened(self) -> neo4j.Driver:
        with self._guard:
            if self._closed:
                raise UnavailableError("the store is closed")
            if self._driver is None or self._process != os.getpid():
                # A forked child must not use, nor close, what its parent talks through.
                self._driver, self._process = self._connected(), os.getpid()
            return self._driver

    def _connected(self) -> neo4j.Driver:
        try:
            if not _ADDRESS.match(self._uri):
                raise ValueError(self._uri)  # the driver speaks HTTP too, in preview
            return neo4j.GraphDatabase.driver(
                self._uri,
                auth=self._auth.value,
                # Sessions of one store follow each other: a read waits for what was written before it.
                bookmark_manager=neo4j.GraphDatabase.bookmark_manager(),
                max_transaction_retry_time=self._retry_s,
                connection_timeout=5.0,
                connection_acquisition_timeout=15.0,
                liveness_check_timeout=10.0,
                notifications_min_severity=neo4j.NotificationMinimumSeverity.OFF,
                user_agent="raycall",
            )
        except (failures.ConfigurationError, ValueError) as error:
            raise ConfigError("the Neo4j address is not usable, it must be like bolt://host:7687", field="uri") from error

    def check_version(self) -> None:
        """Raises UnavailableError for a server that is not Neo4j `OLDEST` or newer."""
        with self._mapped_errors():
            agent = self._opened().get_server_info().agent
        found = re.fullmatch(r"Neo4j/(\d+)\.(\d+).*", agent)
        if found is None or (int(found[1]), int(found[2])) < OLDEST:
            raise UnavailableError(f"Neo4j {OLDEST[0]}.{OLDEST[1]} or newer is needed, the server is {agent[:100]}")

    def close(self) -> None:
        with self._guard:
            driver, self._driver, self._closed = self._driver, None, True
        if driver is not None and self._process == os.getpid():
            driver.close()

    @contextlib.contextmanager
    def _mapped_errors(self) -> Iterator[None]:
        try:
            yield
        except (failures.Neo4jError, failures.DriverError) as error:
            found = self._meaning(error)
            reason = f"{type(error).__name__} {getattr(error, 'code', None) or ''}".strip()
            logger.warning("graph store failed", extra={"action": "store_failed", "code": found.code, "reason": reason})
            raise found from error

    def _meaning(self, error: Exception) -> RaycallError:
        code = str(getattr(error, "code", None) or "")
        for kind, meaning in _MEANINGS.items():
            if isinstance(error, kind):
                return UnavailableError(meaning)
        if isinstance(error, failures.ConstraintError):
            return ConflictError("the store refused a duplicate")
        if "too large to index" in str(error):
            return TooLargeError("an id, a path or a name is longer than the 8,000 bytes that Neo4j can look up")
        if code == "Neo.ClientError.Database.DatabaseNotFound":
            return UnavailableError(f"the Neo4j server has no database {self._database!r}")
        if code.startswith(("Neo.ClientError.Security.", "Neo.ClientError.Transaction.")):
            return UnavailableError(f"Neo4j refused: {code}")
        if isinstance(error, failures.DriverError) and "closed" in str(error):
            return UnavailableError("the store is closed")
        return IntegrityError(f"the store failed: {code or type(error).__name__}")


#: In this order: the first kind that an error is of counts.
_MEANINGS: dict[type[Exception], str] = {
    failures.AuthError: "Neo4j refused the user name or the password",
    failures.IncompleteCommit: "the connection to Neo4j broke while a write was committed: it may be stored; write it again",
    failures.ServiceUnavailable: "Neo4j does not answer",
    failures.SessionExpired: "Neo4j does not answer",
    failures.ConnectionPoolError: "Neo4j has no free connection; try again",
    failures.TransientError: "Neo4j could not do it now; try again",
}


class _Secret:
    """A value that shows in no text."""

    __slots__ = ("value",)

    def __init__(self, value: tuple[str, str]) -> None:
        self.value = value
