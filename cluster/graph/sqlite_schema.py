"""The SQL of the SQLite graph store: its named queries, and the migrations that bring a file to the newest schema."""

from __future__ import annotations

import logging
import re
import sqlite3
from collections.abc import Iterator, Sequence
from importlib import resources

from cluster.errors import IntegrityError

logger = logging.getLogger(__name__)

_FOLDER = resources.files("cluster.graph")

#: Scripts by version: the first makes version 1 of an empty file, each next one takes a file one version on. Released ones are
#: never edited.
MIGRATIONS: tuple[str, ...] = tuple(
    _FOLDER.joinpath(f"migration_{version:03}.sql").read_text("utf-8") for version in range(1, 3)
)


def load_queries(text: str) -> dict[str, str]:
    """The queries of `text` by name; each starts at a line "-- name: <name>"."""
    _, *parts = re.split(r"^-- name: (\w+)\n", text, flags=re.MULTILINE)
    return {name: query.strip() for name, query in zip(parts[::2], parts[1::2], strict=True)}


QUERIES = load_queries(_FOLDER.joinpath("queries.sql").read_text("utf-8"))


def migrate(connection: sqlite3.Connection, migrations: Sequence[str] = MIGRATIONS) -> None:
    """Brings the open file to version len(migrations), one transaction a step; a failed step leaves its file as it was.

    The version is PRAGMA user_version. Raises IntegrityError for a file of a newer version, or of another program.
    Several processes may do this at once: each step looks again, inside its transaction, at what is left to do.
    """
    while (version := _version(connection)) != len(migrations):
        if version > len(migrations):
            raise IntegrityError(
                f"the graph store was written by a newer release: its schema is version {version}, this release knows "
                f"up to {len(migrations)}; use the newer release"
            )
        connection.execute("BEGIN IMMEDIATE")
        try:
            _step(connection, version, migrations[version])
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


def _step(connection: sqlite3.Connection, version: int, script: str) -> None:
    if _version(connection) != version:
        return
    if version == 0 and connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
        raise IntegrityError("the file is a database of another program, not a graph store")
    for statement in statements(script):
        connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {version + 1}")
    logger.info("graph store migrated", extra={"action": "store_migrated", "from": version, "to": version + 1})


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def statements(script: str) -> Iterator[str]:
    """The statements of `script`, one by one. (`executescript` would commit the transaction around them.)"""
    pending = ""
    for part in re.split(r"(?<=;)", script):
        pending += part
        if sqlite3.complete_statement(pending):
            yield pending.strip()
            pending = ""
    if pending.strip():
        yield pending.strip()
