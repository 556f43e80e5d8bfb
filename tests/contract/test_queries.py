"""No query is built from what somebody wrote: whatever the texts are, the queries are the same, and none holds any of them."""

import functools
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import neo4j
import pytest

from cluster.graph import sqlite_connections
from cluster.model.access import ApiKey
from cluster.model.guard import All, AnyOf, Has, In, IsNull
from cluster.model.nodes import Source
from cluster.ports import GraphStore, Project, WriteBatch
from tests.support.factories import ACCOUNT, make_agent, make_edge, make_key, make_node
from tests.support.graph_stores import make_file, make_neo4j_store, make_sqlite_store

PLAIN = "plaintext"
HOSTILE = (
    "x') OR 1=1 --",
    '"; DROP TABLE nodes; --',
    "`) DETACH DELETE n //",
    "' RETURN 1 UNION MATCH (n) DETACH DELETE n //",
    "$guard0 {guard} {columns} {places} ?",
    "-- name: scan\n// name: scan",
    "\\u0027 OR true",
)


class RecordingConnection(sqlite3.Connection):
    """Keeps the text of every statement."""

    seen: set[str] = set()  # noqa: RUF012

    def execute(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
        self.seen.add(sql)
        return super().execute(sql, *arguments)

    def executemany(self, sql: str, *arguments: Any) -> sqlite3.Cursor:
        self.seen.add(sql)
        return super().executemany(sql, *arguments)


@pytest.fixture
def seen_by_sqlite(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    connect = functools.partial(sqlite3.connect, factory=RecordingConnection)
    monkeypatch.setattr(sqlite_connections.sqlite3, "connect", connect)
    monkeypatch.setattr(RecordingConnection, "seen", set())
    return RecordingConnection.seen


@pytest.fixture
def seen_by_neo4j(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[str]]:
    seen: set[str] = set()
    run = neo4j.ManagedTransaction.run

    def recorded(self: Any, query: str, *arguments: Any, **more: Any) -> Any:
        seen.add(query)
        return run(self, query, *arguments, **more)

    monkeypatch.setattr(neo4j.ManagedTransaction, "run", recorded)
    return seen


def use_everything(store: GraphStore, text: str) -> None:
    """Every call of the port, with `text` wherever a caller may write something."""
    node = make_node(
        text,
        project=text,
        labels=(text,),
        text={text: text, "content": text},
        properties={text: text},
        agents=(text,),
        keywords=(text,),
        owner_agent=text,
        shared_with=(text,),
        status=text,
        source=Source(repository=text, path=text, commit=text),
        content_hash=text,
    )
    batch = WriteBatch(
        replace_paths=((ACCOUNT, text, text),),
        nodes=(node, make_node("other")),
        edges=(make_edge(text, "other", text, project=text, properties={text: text}),),
        files=(make_file(text, project=text, facts={text: text}),),
        projects=(Project(account=ACCOUNT, project=text, root=text, commit=text, indexed_at=1),),
    )
    key = make_key(text, name=text, secret_hash=text, principal=make_agent(agent=text, key_id=text, projects=frozenset({text})))
    guard = All((AnyOf((In("project", (text,)), IsNull("scope"))), Has("labels", (text,)), In("owner_agent", (text, "x"))))
    store.write(batch)
    store.write(batch)
    store.put_key(key)
    assert store.get_nodes([text], guard).keys() == {text}
    assert [found.id for found in store.scan(guard)] == [text]
    assert store.count(guard) == 1
    assert [related.node.id for related in store.neighbours(["other"], guard, 3)[0]["other"]] == [text]
    assert [edge.type for edge in store.edges(ACCOUNT, text)] == [text]
    assert list(store.files(ACCOUNT, text)) == [text]
    assert store.projects(ACCOUNT) and store.projects(text) == [] == store.keys(text)
    assert isinstance(store.find_key(text), ApiKey)
    assert store.revoke_key(ACCOUNT, text, 5)
    assert len(store.changes(0)) == 3
    removal = WriteBatch(
        soft_delete=(text,),
        restore=(text,),
        remove_edges=((text, text, "other"),),
        purge=(text, "other"),
        forget_files=((ACCOUNT, text, text),),
    )
    store.write(removal)
    assert store.count(All(())) == 0


def _assert_same_queries(seen: set[str], open_store: Any, folder: Path) -> None:
    by_text: dict[str, set[str]] = {}
    for place, text in enumerate((PLAIN, *HOSTILE)):
        store = open_store(folder / str(place))
        seen.clear()
        use_everything(store, text)
        by_text[text] = set(seen)
        store.close()
    assert len(by_text[PLAIN]) > 15
    for text, queries in by_text.items():
        assert queries == by_text[PLAIN], text
        assert not [query for query in queries if text in query]


def test_sqlite_is_asked_the_same_whatever_the_texts_are(seen_by_sqlite: set[str], tmp_path: Path) -> None:
    _assert_same_queries(seen_by_sqlite, make_sqlite_store, tmp_path)


@pytest.mark.neo4j
def test_neo4j_is_asked_the_same_whatever_the_texts_are(seen_by_neo4j: set[str], tmp_path: Path) -> None:
    _assert_same_queries(seen_by_neo4j, make_neo4j_store, tmp_path)
