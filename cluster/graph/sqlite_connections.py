"""Connections to a SQLite file in WAL mode: lent to one thread at a time, with transactions and errors in the house's terms."""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from cluster.errors import ConflictError, IntegrityError, RaycallError, TooLargeError, UnavailableError

logger = logging.getLogger(__name__)

_UNAVAILABLE = {
    sqlite3.SQLITE_BUSY: "the store is locked by another writer for too long; try again",
    sqlite3.SQLITE_LOCKED: "the store is locked by another writer for too long; try again",
    sqlite3.SQLITE_FULL: "the store could not be written: its disk is full",
    sqlite3.SQLITE_IOERR: "the store's disk could not be read or written",
    sqlite3.SQLITE_CANTOPEN: "the store's file could not be opened",
    sqlite3.SQLITE_READONLY: "the store's file is read-only",
    sqlite3.SQLITE_PERM: "the store's file may not be opened",
    sqlite3.SQLITE_NOMEM: "there is no memory left for the store",
}


#: Pages that a connection keeps, in KiB. SQLite's own 2,000 are read again and again by searches over some ten thousand nodes.
PAGE_CACHE_KIB = 8192


class ConnectionPool:
    """As many connections as are used at once. Each is used by one thread at a time and by the process that opened it."""

    def __init__(self, path: str | os.PathLike[str], busy_timeout_ms: int) -> None:
        self._path = Path(path)
        self._timeout_s = busy_timeout_ms / 1000
        self._guard = threading.Lock()
        # Threads of one process queue here; SQLite's own lock, polled with sleeps, is left to processes.
        self._writer = threading.Lock()
        self._idle: list[sqlite3.Connection] = []
        self._inherited: list[list[sqlite3.Connection]] = []
        self._process = os.getpid()
        self._closed = False
        with mapped_errors():
            self._create()

    def _create(self) -> None:
        """Makes the file, readable by its owner alone (WAL and index files take over its mode), and puts it in WAL mode."""
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            _make_file(self._path)
        except OSError as error:
            raise UnavailableError(f"the store's file could not be opened: {error.strerror}") from error
        connection = self._open()
        try:
            _use_wal(connection, time.monotonic() + self._timeout_s)
        except BaseException:
            connection.close()
            raise
        self._give_back(connection)

    def _open(self) -> sqlite3.Connection:
        # Transactions are written out below, hence no isolation level; the pool hands connections from thread to thread.
        connection = sqlite3.connect(self._path, timeout=self._timeout_s, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA synchronous = FULL")  # an acknowledged write survives a power cut
        connection.execute(f"PRAGMA cache_size = -{PAGE_CACHE_KIB}")
        connection.execute("PRAGMA foreign_keys = OFF")  # dangling edges are kept
        return connection

    def _take(self) -> sqlite3.Connection:
        with self._guard:
            if self._closed:
                raise UnavailableError("the store is closed")
            self._part_from_parent()
            if self._idle:
                return self._idle.pop()
        return self._open()

    def _part_from_parent(self) -> None:
        """In a child that was forked: sets aside what belongs to the parent. `self._guard` is held."""
        if self._process != os.getpid():
            # SQLite forbids to use a connection in a forked child, and to close it there. A thread that held the parent's lock
            # does not exist here, so nobody would ever let it go.
            self._inherited.append(self._idle)
            self._idle, self._process, self._writer = [], os.getpid(), threading.Lock()

    def _give_back(self, connection: sqlite3.Connection) -> None:
        with self._guard:
            if not self._closed:
                self._idle.append(connection)
                return
        connection.close()

    @contextlib.contextmanager
    def lent(self) -> Iterator[sqlite3.Connection]:
        """A connection outside any transaction; for single statements."""
        with mapped_errors():
            connection = self._take()
            try:
                yield connection
            except BaseException as error:
                if isinstance(error, sqlite3.Error) or connection.in_transaction:
                    connection.close()  # rolls back, whatever state the failure left it in
                else:
                    self._give_back(connection)
                raise
            self._give_back(connection)

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """A connection inside a read transaction: all of its statements see the same snapshot."""
        with self.lent() as connection:
            connection.execute("BEGIN")
            yield connection
            connection.execute("COMMIT")

    @contextlib.contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A connection inside a write transaction, committed (and on disk) when the block ends without an error."""
        with self._guard:
            self._part_from_parent()
            writer = self._writer
        if not writer.acquire(timeout=self._timeout_s):
            raise UnavailableError(_UNAVAILABLE[sqlite3.SQLITE_BUSY])
        try:
            with self.lent() as connection:
                connection.execute("BEGIN IMMEDIATE")
                yield connection
                connection.execute("COMMIT")
        finally:
            writer.release()

    def close(self) -> None:
        """Closes what is idle now, and what is lent as soon as it comes back."""
        with self._guard:
            self._part_from_parent()
            self._closed = True
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()


def _make_file(path: Path) -> None:
    """Makes an empty file that its owner alone may read, if there is none.

    The database itself is never opened here: closing any descriptor of a file drops all locks that this process holds on it
    (fcntl(2)), those of its SQLite connections among them. Another process that closes its own last one would then take itself
    for the last of all and delete the write-ahead log that this one still reads and writes.
    """
    if path.exists():
        return
    empty = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    os.close(os.open(empty, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    try:
        with contextlib.suppress(FileExistsError):
            try:
                os.link(empty, path)
            except FileExistsError:
                raise
            except OSError:
                # A file system without hard links. Only one opener gets past O_EXCL, and before it no connection is there.
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600))
    finally:
        empty.unlink()


def _use_wal(connection: sqlite3.Connection, deadline: float) -> None:
    """Switches the file to WAL mode. SQLite does not wait for its lock here, so that two openers at once need this loop."""
    while True:
        try:
            mode = connection.execute("PRAGMA journal_mode = WAL").fetchone()[0]
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
            continue
        if mode != "wal":
            raise UnavailableError(f"the store's file system has no write-ahead log (journal mode {mode})")
        return


@contextlib.contextmanager
def mapped_errors() -> Iterator[None]:
    """Turns errors of SQLite into Raycall's."""
    try:
        yield
    except sqlite3.Error as error:
        found = _meaning(error)
        logger.warning("graph store failed", extra={"action": "store_failed", "code": found.code, "reason": _reason(error)})
        raise found from error


def _reason(error: sqlite3.Error) -> str:
    """SQLite's words, which are the same for many causes, and its name of this one."""
    return f"{error} ({getattr(error, 'sqlite_errorname', None) or type(error).__name__})"


def _meaning(error: sqlite3.Error) -> RaycallError:
    code = (getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
    if code in _UNAVAILABLE:
        return UnavailableError(_UNAVAILABLE[code])
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return IntegrityError("the store's file is damaged or no SQLite database")
    if code == sqlite3.SQLITE_CONSTRAINT:
        return ConflictError(f"the store refused a duplicate: {error}")
    if code == sqlite3.SQLITE_TOOBIG or isinstance(error, sqlite3.DataError):
        return TooLargeError("a value is larger than the store can hold")
    return IntegrityError(f"the store failed: {error}")
