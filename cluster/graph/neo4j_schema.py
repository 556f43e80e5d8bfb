"""The Cypher of the Neo4j graph store: its named queries, and the migrations that bring a database to the newest schema."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import resources
from typing import Any, Protocol

from cluster.errors import IntegrityError

logger = logging.getLogger(__name__)

_FOLDER = resources.files("cluster.graph")

#: Scripts by version: the first makes version 1 of an empty database, each next one takes one a version on. Released ones are
#: never edited. Each statement may run twice, for Neo4j takes no schema change and data into one transaction.
MIGRATIONS: tuple[str, ...] = tuple(
    _FOLDER.joinpath(f"migration_{version:03}.cypher").read_text("utf-8") for version in range(1, 3)
)


def load_queries(text: str) -> dict[str, str]:
    """The queries of `text` by name; each starts at a line "// name: <name>"."""
    _, *parts = re.split(r"^// name: (\w+)\n", text, flags=re.MULTILINE)
    return {name: query.strip() for name, query in zip(parts[::2], parts[1::2], strict=True)}


QUERIES = load_queries(_FOLDER.joinpath("queries.cypher").read_text("utf-8"))


def guarded(name: str, guard: str) -> str:
    """The query `name` with the compiled `guard` in its place."""
    return QUERIES[name].replace("{guard}", guard)


def statements(script: str) -> Iterator[str]:
    """The statements of `script`, without its comments."""
    text = re.sub(r"^\s*//.*$", "", script, flags=re.MULTILINE)
    yield from (part.strip() for part in text.split(";") if part.strip())


class Run(Protocol):
    """Runs one statement in a transaction of its own and gives all of its rows."""

    def __call__(self, query: str, parameters: Mapping[str, Any], /) -> list[Mapping[str, Any]]: ...


def migrate(run: Run, migrations: Sequence[str] = MIGRATIONS) -> None:
    """Brings the database to version len(migrations). The version is kept in the one :Meta node.

    Raises IntegrityError for a database of a newer version, or that holds another program's data.
    """
    version = _version(run)
    if version == 0 and run(QUERIES["is_used"], {}) and (version := _version(run)) == 0:
        raise IntegrityError("the Neo4j database holds data of another program, not a graph store")
    if version > len(migrations):
        raise IntegrityError(
            f"the graph store was written by a newer release: its schema is version {version}, this release knows "
            f"up to {len(migrations)}; use the newer release"
        )
    for place in range(version, len(migrations)):
        for statement in statements(migrations[place]):
            run(statement, {})
        run(QUERIES["indexes_ready"], {})
        run(QUERIES["migrated"], {"version": place + 1})
        logger.info("graph store migrated", extra={"action": "store_migrated", "from": place, "to": place + 1})


def _version(run: Callable[[str, Mapping[str, Any]], list[Mapping[str, Any]]]) -> int:
    found = run(QUERIES["version"], {})
    return int(found[0]["version"]) if found else 0
