"""A process that opens the store twice keeps the locks that tell others that it is there."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from pathlib import Path

from cluster.graph.sqlite import SqliteGraphStore
from cluster.ports import WriteBatch
from tests.support.factories import ACCOUNT, make_node

#: Opens the database, reads it and closes it: where nobody else holds a lock, SQLite deletes the write-ahead log then.
VISITOR = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
print(connection.execute("SELECT count(*) FROM nodes").fetchone()[0])
connection.close()
"""


def visit(path: Path) -> int:
    done = subprocess.run([sys.executable, "-c", VISITOR, path], capture_output=True, text=True, check=True, timeout=60)
    return int(done.stdout)


def test_another_process_that_leaves_does_not_take_the_log_of_a_store_that_is_open(tmp_path: Path) -> None:
    path = tmp_path / "graph.sqlite"
    first = SqliteGraphStore(path, account=ACCOUNT)
    first.write(WriteBatch(nodes=(make_node("n1"),)))
    second = SqliteGraphStore(path, account=ACCOUNT)
    assert visit(path) == 1
    assert path.with_name("graph.sqlite-wal").exists()
    first.write(WriteBatch(nodes=(make_node("n2"),)))
    second.write(WriteBatch(nodes=(make_node("n3"),)))
    assert visit(path) == 3
    assert set(first.get_nodes(["n1", "n2", "n3"])) == set(second.get_nodes(["n1", "n2", "n3"])) == {"n1", "n2", "n3"}
    first.close()
    second.close()
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()
