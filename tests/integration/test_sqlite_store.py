"""What only the graph store on disk has to get right: its file, its schema, its disk and its locks."""

import os
import resource
import sqlite3
import stat
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster.errors import ForbiddenError, IntegrityError, RaycallError, TooLargeError, UnavailableError
from cluster.graph import sqlite, sqlite_connections
from cluster.graph.sqlite import SqliteGraphStore
from cluster.graph.sqlite_rows import EDGE_COLUMNS, KEY_COLUMNS, NODE_COLUMNS
from cluster.graph.sqlite_schema import MIGRATIONS, QUERIES, load_queries, migrate, statements
from cluster.model.guard import All
from cluster.ports import WriteBatch
from tests.support.factories import ACCOUNT, make_edge, make_key, make_node, make_principal

EVERYTHING = All(())
#: A write of some hundred pages.
BIG = WriteBatch(nodes=tuple(make_node(f"big{place}", text={"content": "x" * 10_000}) for place in range(100)))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "graph.sqlite"


@pytest.fixture
def store(path: Path) -> Iterator[SqliteGraphStore]:
    opened = SqliteGraphStore(path, account=ACCOUNT)
    yield opened
    opened.close()


@pytest.fixture
def raw(path: Path, store: SqliteGraphStore) -> Iterator[sqlite3.Connection]:
    """Another program's connection to the store's file."""
    connection = sqlite3.connect(path, isolation_level=None)
    yield connection
    connection.close()


def pragma(path: Path, name: str) -> Any:
    connection = sqlite3.connect(path)
    try:
        return connection.execute(f"PRAGMA {name}").fetchone()[0]
    finally:
        connection.close()


# --- the file ---


def test_the_file_is_made_for_its_owner_alone_and_in_wal_mode(tmp_path: Path) -> None:
    path = tmp_path / "not" / "there" / "graph.sqlite"
    store = SqliteGraphStore(path, account=ACCOUNT)
    store.write(WriteBatch(nodes=(make_node(),)))
    modes = {name.name: stat.S_IMODE(name.stat().st_mode) for name in path.parent.iterdir()}
    assert modes == {"graph.sqlite": 0o600, "graph.sqlite-wal": 0o600, "graph.sqlite-shm": 0o600}
    store.close()
    assert (pragma(path, "journal_mode"), pragma(path, "user_version")) == ("wal", len(MIGRATIONS))
    assert [name.name for name in path.parent.iterdir()] == ["graph.sqlite"]


def test_every_connection_syncs_each_commit(store: SqliteGraphStore) -> None:
    with store._pool.lent() as first, store._pool.lent() as second:
        for connection in (first, second):
            assert connection.execute("PRAGMA synchronous").fetchone()[0] == 2
            assert connection.execute("PRAGMA foreign_keys").fetchone()[0] == 0
            assert connection.execute("PRAGMA busy_timeout").fetchone()[0] == 30_000


def test_what_was_written_is_there_when_opened_again(path: Path, store: SqliteGraphStore) -> None:
    store.write(WriteBatch(nodes=(make_node("a"),), edges=(make_edge("a", "b"),)))
    store.put_key(make_key())
    store.close()
    again = SqliteGraphStore(path, account=ACCOUNT)
    assert (again.revision(), list(again.get_nodes(["a"])), len(again.changes(0))) == (1, ["a"], 2)
    assert again.keys(ACCOUNT) == [make_key()]
    again.close()


def test_a_file_that_is_no_database_is_refused(path: Path) -> None:
    content = b"not a database, but long enough to look like one" * 100
    path.write_bytes(content)
    with pytest.raises(IntegrityError):
        SqliteGraphStore(path, account=ACCOUNT)
    assert path.read_bytes() == content


def test_another_programs_database_is_refused_and_left_alone(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE recipes (name TEXT)")
    connection.close()
    with pytest.raises(IntegrityError, match="another program"):
        SqliteGraphStore(path, account=ACCOUNT)
    assert pragma(path, "user_version") == 0


def test_a_damaged_file_is_named_as_such(path: Path, store: SqliteGraphStore) -> None:
    store.write(BIG)
    store.close()
    content = bytearray(path.read_bytes())
    for start in range(4096 * 2, len(content), 4096):
        content[start : start + 2000] = os.urandom(2000)
    path.write_bytes(content)
    damaged = None
    with pytest.raises(IntegrityError, match="damaged"):
        damaged = SqliteGraphStore(path, account=ACCOUNT)
        list(damaged.scan(EVERYTHING))
    if damaged is not None:
        damaged.close()


@pytest.mark.parametrize("place", ["", "missing-parent-is-a-file/graph.sqlite"])
def test_a_file_that_cannot_be_opened_is_a_clear_error(tmp_path: Path, place: str) -> None:
    (tmp_path / "missing-parent-is-a-file").write_text("")
    with pytest.raises(UnavailableError) as caught:
        SqliteGraphStore(tmp_path / place, account=ACCOUNT)
    assert str(tmp_path) not in caught.value.detail


def test_a_closed_store_says_so(store: SqliteGraphStore) -> None:
    scan = store.scan(EVERYTHING)
    store.close()
    store.close()
    asks: list[Callable[[], object]] = [
        store.revision,
        lambda: next(scan),
        lambda: store.write(WriteBatch(nodes=(make_node(),))),
    ]
    for ask in asks:
        with pytest.raises(UnavailableError, match="closed"):
            ask()


def test_closing_while_a_scan_runs_lets_it_end(store: SqliteGraphStore) -> None:
    store.write(WriteBatch(nodes=(make_node("a"), make_node("b"))))
    scan = store.scan(EVERYTHING)
    next(scan)
    store.close()
    assert [node.id for node in scan] == ["b"]


def test_a_forked_child_does_not_use_its_parents_connections(store: SqliteGraphStore) -> None:
    store.write(WriteBatch(nodes=(make_node("parent"),)))
    with store._pool.lent() as connection:
        inherited = connection
    if (child := os.fork()) == 0:
        with store._pool.lent() as connection:
            fresh = connection is not inherited
        written = store.write(WriteBatch(nodes=(make_node("child"),))) == 2
        os._exit(0 if fresh and written else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert store.write(WriteBatch(nodes=(make_node("after"),))) == 3
    assert store.count(EVERYTHING) == 3


def in_a_fork(check: Callable[[], None]) -> None:
    """Runs `check` in a forked child; fails when it raises."""
    if (child := os.fork()) == 0:
        try:
            check()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_the_first_thing_that_a_forked_child_does_may_be_a_write(store: SqliteGraphStore) -> None:
    store.write(WriteBatch(nodes=(make_node("parent"),)))

    def write_twice() -> None:
        assert store.write(WriteBatch(nodes=(make_node("child"),))) == 2
        assert store.write(WriteBatch(nodes=(make_node("child too"),))) == 3

    in_a_fork(write_twice)
    assert store.write(WriteBatch(nodes=(make_node("after"),))) == 4


def test_a_write_that_its_parent_was_in_does_not_hold_a_forked_child_up(store: SqliteGraphStore) -> None:
    store.write(WriteBatch(nodes=(make_node("parent"),)))

    def write() -> None:
        assert store.write(WriteBatch(nodes=(make_node("child"),))) == 2

    with store._pool._writer:  # as a thread of the parent holds it, which the child does not have
        in_a_fork(write)
    assert store.write(WriteBatch(nodes=(make_node("after"),))) == 3


def test_a_forked_child_that_only_closes_leaves_its_parents_connections_open(store: SqliteGraphStore) -> None:
    with store._pool.lent() as connection:
        inherited = connection

    def close() -> None:
        store.close()
        inherited.execute("SELECT 1")  # raises when it has been closed

    in_a_fork(close)
    assert store.write(WriteBatch(nodes=(make_node("after"),))) == 1


# --- the schema ---


def versioned(version: int) -> tuple[str, ...]:
    colours = "-- a comment; with a semicolon\nALTER TABLE nodes ADD COLUMN colour TEXT NOT NULL DEFAULT 'red';\n"
    places = "CREATE TABLE places (name TEXT); CREATE TRIGGER t AFTER INSERT ON places BEGIN DELETE FROM files; SELECT 1; END;"
    return (*MIGRATIONS, colours, places)[:version]


def test_a_file_of_an_older_version_is_taken_forward_with_its_data(
    path: Path, store: SqliteGraphStore, raw: sqlite3.Connection
) -> None:
    store.write(WriteBatch(nodes=(make_node("a"), make_node("b"))))
    store.put_key(make_key())
    migrate(raw, versioned(len(MIGRATIONS) + 2))
    assert raw.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS) + 2,)
    assert raw.execute("SELECT id, colour FROM nodes ORDER BY id").fetchall() == [("a", "red"), ("b", "red")]
    assert raw.execute("SELECT count(*) FROM keys").fetchone() == (1,)
    assert raw.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetchall() == [("t",)]
    migrate(raw, versioned(len(MIGRATIONS) + 2))


def test_a_failing_migration_leaves_the_file_as_it_was(store: SqliteGraphStore, raw: sqlite3.Connection) -> None:
    store.write(WriteBatch(nodes=(make_node("a"),)))
    before = raw.execute("SELECT sql FROM sqlite_schema ORDER BY name").fetchall()
    failing = (*MIGRATIONS, "CREATE TABLE half (x TEXT);\nDROP TABLE changes;\nINSERT INTO nowhere VALUES (1);\n")
    with pytest.raises(sqlite3.OperationalError):
        migrate(raw, failing)
    assert raw.execute("SELECT sql FROM sqlite_schema ORDER BY name").fetchall() == before
    assert raw.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS),)
    assert store.write(WriteBatch(nodes=(make_node("b"),))) == 2


def test_a_file_of_a_newer_version_is_refused_and_left_alone(path: Path, store: SqliteGraphStore) -> None:
    store.close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(IntegrityError, match="newer release"):
        SqliteGraphStore(path, account=ACCOUNT)
    assert pragma(path, "user_version") == 99


def test_many_openers_of_a_new_file_make_its_schema_once(path: Path) -> None:
    gate, errors = threading.Barrier(8), []

    def open_it() -> None:
        gate.wait()
        try:
            SqliteGraphStore(path, account=ACCOUNT).close()
        except RaycallError as error:
            errors.append(error)

    threads = [threading.Thread(target=open_it) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_every_query_compiles_and_is_used(raw: sqlite3.Connection) -> None:
    used = Path(sqlite.__file__).read_text("utf-8")
    names = {"columns": NODE_COLUMNS, "edge_columns": EDGE_COLUMNS, "key_columns": KEY_COLUMNS}
    for name, query in QUERIES.items():
        assert f'"{name}"' in used, f"{name} is used nowhere"
        columns = KEY_COLUMNS if name == "put_key" else NODE_COLUMNS
        table = "edges." if "edges." in query else ""
        filled = query.format(
            columns=", ".join(f"nodes.{column}" if "SELECT" in query else column for column in names["columns"]),
            edge_columns=", ".join(f"{table}{column}" for column in EDGE_COLUMNS),
            key_columns=", ".join(KEY_COLUMNS),
            places=", ".join("?" * (len(columns) if name.startswith("put_") else 2)),
            updates=f"{columns[1]} = excluded.{columns[1]}",
            guard="1",
            rows="(?, ?, ?), (?, ?, ?)",
        )
        raw.execute(f"EXPLAIN {filled}", [None] * filled.count("?"))


def test_queries_are_read_by_name() -> None:
    assert load_queries("-- about\n\n-- name: one\nSELECT 1\n\n-- name: two\nSELECT\n  2\n") == {
        "one": "SELECT 1",
        "two": "SELECT\n  2",
    }


def test_statements_are_told_apart() -> None:
    script = "SELECT ';'; -- a;\nSELECT 2;\nCREATE TRIGGER t AFTER INSERT ON x BEGIN SELECT 1; SELECT 2; END;\nSELECT 3"
    assert list(statements(script)) == [
        "SELECT ';';",
        "-- a;\nSELECT 2;",
        "CREATE TRIGGER t AFTER INSERT ON x BEGIN SELECT 1; SELECT 2; END;",
        "SELECT 3",
    ]


def test_lookups_use_their_indexes(raw: sqlite3.Connection) -> None:
    def plan(query: str, count: int) -> str:
        return " | ".join(row[3] for row in raw.execute(f"EXPLAIN QUERY PLAN {query}", [None] * count))

    assert "nodes_by_path (source_path=? AND account=? AND project=?)" in plan(QUERIES["nodes_of_path"].format(columns="*"), 3)
    in_project = "nodes.account IN (?) AND nodes.project IN (?)"
    scan = plan(QUERIES["scan"].format(columns="*", guard=in_project), 2)
    assert "nodes_by_project (account=? AND project=?)" in scan
    assert "TEMP B-TREE" not in scan, "the order by id comes from the index"
    ends = plan(QUERIES["ends"].format(places="?", guard=in_project), 4)
    assert "edges_by_target" in ends
    assert "SCAN edges" not in ends
    assert "SCAN nodes" not in ends
    by_key = plan(QUERIES["edges_by_key"].format(edge_columns="edges.*", rows="(?, ?, ?)"), 3)
    assert "SCAN edges" not in by_key


# --- locks and the disk ---


def test_waiting_too_long_for_another_writer_is_an_unavailable_store(path: Path, raw: sqlite3.Connection) -> None:
    impatient = SqliteGraphStore(path, account=ACCOUNT, busy_timeout_ms=20)
    raw.execute("BEGIN IMMEDIATE")
    with pytest.raises(UnavailableError, match="locked"):
        impatient.write(WriteBatch(nodes=(make_node("a"),)))
    assert impatient.revision() == 0, "readers do not wait for a writer"
    raw.execute("ROLLBACK")
    assert impatient.write(WriteBatch(nodes=(make_node("a"),))) == 1
    impatient.close()


def test_waiting_too_long_for_another_thread_is_an_unavailable_store(path: Path) -> None:
    impatient = SqliteGraphStore(path, account=ACCOUNT, busy_timeout_ms=20)
    with impatient._pool.writing(), pytest.raises(UnavailableError, match="locked"):
        impatient.write(WriteBatch(nodes=(make_node("a"),)))
    assert impatient.write(WriteBatch(nodes=(make_node("a"),))) == 1
    impatient.close()


def test_a_writer_waits_for_another_that_ends_in_time(store: SqliteGraphStore, raw: sqlite3.Connection) -> None:
    raw.execute("BEGIN IMMEDIATE")
    written: list[int] = []
    thread = threading.Thread(target=lambda: written.append(store.write(WriteBatch(nodes=(make_node("a"),)))))
    thread.start()
    raw.execute("COMMIT")
    thread.join()
    assert written == [1]


def test_a_full_disk_is_a_clear_error_and_nothing_half_written(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[sqlite3.Connection] = []
    connect = sqlite3.connect

    def remembered(*arguments: Any, **options: Any) -> sqlite3.Connection:
        opened.append(connect(*arguments, **options))
        return opened[-1]

    monkeypatch.setattr(sqlite_connections.sqlite3, "connect", remembered)
    store = SqliteGraphStore(path, account=ACCOUNT)
    store.write(WriteBatch(nodes=(make_node("before"),)))
    pages = opened[-1].execute("PRAGMA page_count").fetchone()[0]
    opened[-1].execute(f"PRAGMA max_page_count = {pages + 5}")
    with pytest.raises(UnavailableError, match="disk is full"):
        store.write(BIG)
    # The failed connection is gone, and with it the limit: there is room again.
    assert (store.revision(), store.count(EVERYTHING)) == (1, 1)
    assert store.write(BIG) == 2
    assert store.count(EVERYTHING) == 1 + len(BIG.nodes)
    store.close()


_LIMITED = """
import resource, sys
from cluster.errors import UnavailableError
from cluster.graph.sqlite import SqliteGraphStore
from tests.integration.test_sqlite_store import BIG
from tests.support.factories import ACCOUNT
store = SqliteGraphStore(sys.argv[1], account=ACCOUNT)
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
try:
    store.write(BIG)
except UnavailableError as error:
    print(error.detail, store.revision())
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print(store.write(BIG))
store.close()
"""


def test_a_failing_disk_is_a_clear_error_and_nothing_half_written(path: Path) -> None:
    """The system itself refuses the write, in the middle of a transaction."""
    result = subprocess.run(
        [sys.executable, "-c", _LIMITED, path],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    first, second = result.stdout.splitlines()
    assert first in (
        "the store's disk could not be read or written 0",
        "the store could not be written: its disk is full 0",
    )
    assert second == "1"
    assert pragma(path, "integrity_check") == "ok"
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY


def test_a_value_beyond_sqlites_limit_is_too_large(store: SqliteGraphStore) -> None:
    with store._pool.lent() as connection:
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 5_000)
    with pytest.raises(TooLargeError):
        store.write(BIG)
    assert store.count(EVERYTHING) == 0


def test_an_error_in_the_middle_of_a_batch_leaves_nothing(store: SqliteGraphStore, raw: sqlite3.Connection) -> None:
    raw.execute("CREATE TRIGGER broken BEFORE INSERT ON edges BEGIN SELECT RAISE(ABORT, 'broken'); END")
    with pytest.raises(RaycallError):
        store.write(WriteBatch(nodes=(make_node("a"),), edges=(make_edge("a", "a"),)))
    assert (store.revision(), store.count(EVERYTHING), store.changes(0)) == (0, 0, [])


# --- accounts that share a file ---


def test_one_account_neither_overwrites_nor_removes_what_another_stored(path: Path, store: SqliteGraphStore) -> None:
    store.write(WriteBatch(nodes=(make_node("a", path="a.md"),), edges=(make_edge("a", "b"),)))
    store.put_key(make_key("k1"))
    other = SqliteGraphStore(path, account="zenith")
    for batch in (
        WriteBatch(nodes=(make_node("fine", account="zenith"), make_node("a", account="zenith"))),
        WriteBatch(edges=(make_edge("a", "b", account="zenith"),)),
    ):
        with pytest.raises(ForbiddenError):
            other.write(batch)
    with pytest.raises(ForbiddenError):
        other.put_key(make_key("k1", principal=make_principal(account="zenith")))
    assert other.rejected_writes == 3
    assert other.write(WriteBatch(purge=("a",), soft_delete=("a",), remove_edges=(("a", "CALLS", "b"),), now=5)) == 1
    assert other.write(WriteBatch(replace_paths=(("zenith", "main", "a.md"),))) == 1
    assert other.revoke_key("zenith", "k1", 5) is False
    other.close()
    assert [node.deleted_at for node in store.scan(EVERYTHING)] == [None]
    assert len(list(store.edges(ACCOUNT, "main"))) == 1
    assert store.keys(ACCOUNT) == [make_key("k1")]
