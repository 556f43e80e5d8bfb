"""Vectors by identity and content hash, kept between runs. What is lost here costs time, never an answer."""

from __future__ import annotations

import contextlib
import json
import logging
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from cluster.errors import UnavailableError, VectorError
from cluster.model.manifest import VectorIdentity

log = logging.getLogger(__name__)

Floats = npt.NDArray[np.float32]

#: How long a writer waits for another process's transaction.
_BUSY_S = 30.0
_SCHEMA_VERSION = 1
_SCHEMA = """
    CREATE TABLE IF NOT EXISTS identities (id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE);
    CREATE TABLE IF NOT EXISTS vectors (
        identity INTEGER NOT NULL, hash TEXT NOT NULL, vector BLOB NOT NULL, PRIMARY KEY (identity, hash)
    ) WITHOUT ROWID;
"""


class MemoryVectorCache:
    """A cache for as long as the process lives."""

    def __init__(self) -> None:
        self._vectors: dict[tuple[str, str], bytes] = {}
        self._lock = threading.Lock()

    def get(self, identity: VectorIdentity, hashes: Sequence[str]) -> dict[str, Floats]:
        """See `VectorCache.get`: float32 of shape (dimensions,) by hash; what is not cached is absent."""
        with self._lock:
            found = {key: self._vectors.get((identity.key, key)) for key in hashes}
        return {key: np.frombuffer(raw, dtype="<f4") for key, raw in found.items() if raw is not None}

    def put(self, identity: VectorIdentity, vectors: Mapping[str, Floats]) -> None:
        """See `VectorCache.put`: all or, with VectorError naming the hash, none."""
        encoded = {(identity.key, key): _encoded(identity, key, vector) for key, vector in vectors.items()}
        with self._lock:
            self._vectors.update(encoded)

    def close(self) -> None:
        """Forgets everything."""
        with self._lock:
            self._vectors.clear()


class SqliteVectorCache:
    """A cache in one SQLite file in WAL mode. Several processes and threads may use the same file."""

    def __init__(self, path: Path) -> None:
        """Opens or creates `path`. A file that is no database is put aside and replaced; raises UnavailableError otherwise."""
        self._path = Path(path)
        self._lock = threading.Lock()
        self._path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self._connection = self._open()
        except sqlite3.DatabaseError as error:
            if error.sqlite_errorcode not in {sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT}:
                raise UnavailableError(f"the vector cache could not be opened: {error}") from error
            aside = self._path.with_name(f"{self._path.name}.damaged")
            self._path.replace(aside)
            for suffix in ("-wal", "-shm"):
                # A log that is left would be played into the new file.
                self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
            log.warning("vector cache is damaged, starting a new one", extra={"action": "vector_cache_replaced"})
            with _mapped():
                self._connection = self._open()

    def _open(self) -> sqlite3.Connection:
        # One connection, used under the lock: the work inside a call is short beside making the vectors.
        connection = sqlite3.connect(self._path, timeout=_BUSY_S, check_same_thread=False, isolation_level=None)
        try:
            _use_wal(connection)
            connection.execute("PRAGMA synchronous = NORMAL")  # a power cut may cost the last vectors, not the file
            with _transaction(connection):
                if connection.execute("PRAGMA user_version").fetchone()[0] != _SCHEMA_VERSION:
                    # Another version's vectors are computed again rather than guessed at.
                    connection.execute("DROP TABLE IF EXISTS vectors")
                    connection.execute("DROP TABLE IF EXISTS identities")
                    for statement in _SCHEMA.split(";"):
                        connection.execute(statement)
                    connection.execute(f"PRAGMA user_version = {_SCHEMA_VERSION}")
        except BaseException:
            connection.close()
            raise
        return connection

    def get(self, identity: VectorIdentity, hashes: Sequence[str]) -> dict[str, Floats]:
        """See `VectorCache.get`: float32 of shape (dimensions,) by hash; what is not cached, or damaged, is absent."""
        with self._lock, _mapped():
            rows = self._connection.execute(
                "SELECT hash, vector FROM vectors WHERE identity = (SELECT id FROM identities WHERE key = ?)"
                " AND hash IN (SELECT value FROM json_each(?))",
                (identity.key, json.dumps(list(hashes))),
            ).fetchall()
        size = 4 * identity.dimensions
        whole = [(key, raw) for key, raw in rows if len(raw) == size]
        vectors = np.frombuffer(b"".join(raw for _, raw in whole), dtype="<f4").reshape(len(whole), identity.dimensions)
        # What `put` would refuse is damage, and as good as absent: it is embedded again.
        with np.errstate(over="ignore", invalid="ignore"):
            squares = np.einsum("ij,ij->i", vectors, vectors)
        sound = np.isfinite(squares) & (squares > 0)
        return {key: vector for (key, _), vector, good in zip(whole, vectors, sound.tolist(), strict=True) if good}

    def put(self, identity: VectorIdentity, vectors: Mapping[str, Floats]) -> None:
        """See `VectorCache.put`: all or, with VectorError naming the hash, none."""
        encoded = [(key, _encoded(identity, key, vector)) for key, vector in vectors.items()]
        if not encoded:
            return
        with self._lock, _mapped(), _transaction(self._connection):
            self._connection.execute("INSERT OR IGNORE INTO identities (key) VALUES (?)", (identity.key,))
            number = self._connection.execute("SELECT id FROM identities WHERE key = ?", (identity.key,)).fetchone()[0]
            self._connection.executemany(
                "INSERT OR REPLACE INTO vectors (identity, hash, vector) VALUES (?, ?, ?)",
                [(number, key, raw) for key, raw in encoded],
            )

    def close(self) -> None:
        """Closes the file; calling it twice does no harm."""
        with self._lock:
            self._connection.close()


def _encoded(identity: VectorIdentity, key: str, vector: Floats) -> bytes:
    if vector.shape != (identity.dimensions,):
        sizes = f"shape {vector.shape}, {identity.key} has {identity.dimensions} dimensions"
        raise VectorError(f"the vector of {key} has {sizes}")
    if not np.isfinite(vector).all() or not vector.any():
        raise VectorError(f"the vector of {key} is NaN, infinite or all zeros")
    return np.ascontiguousarray(vector, dtype="<f4").tobytes()


def _use_wal(connection: sqlite3.Connection) -> None:
    """Switches to WAL. SQLite does not wait here by itself while another process switches."""
    deadline = time.monotonic() + _BUSY_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return


@contextlib.contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


@contextlib.contextmanager
def _mapped() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        raise UnavailableError(f"the vector cache could not be used: {error}") from error
