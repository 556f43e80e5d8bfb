"""The graph store used by several processes at once, and by one that is killed."""

import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from cluster.graph.sqlite import SqliteGraphStore
from cluster.model.guard import All, In
from cluster.ports import WriteBatch
from tests.support.factories import ACCOUNT, make_node
from tests.support.store_worker import GROUP

ROOT = Path(__file__).parents[2]
STEPS = 60


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "graph.sqlite"


@pytest.fixture
def processes() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def start(processes: ExitStack, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "error", "-m", "tests.support.store_worker", *map(str, arguments)]
    pipe = subprocess.PIPE
    process = processes.enter_context(subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe, text=True))
    processes.callback(process.kill)
    return process


def acknowledged(output: str) -> list[tuple[int, str]]:
    """The (revision, node id) of each whole line."""
    lines = [line.split() for line in output.splitlines(keepends=True) if line.endswith("\n")]
    return [(int(revision), node_id) for revision, node_id in lines]


def assert_sound(path: Path) -> None:
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    connection.close()


def test_two_writers_and_two_readers_never_meet_a_lock(path: Path, processes: ExitStack) -> None:
    # All four open a file that is not there yet: the schema, too, is made once.
    readers = [start(processes, "read", path, "one,two") for _ in range(2)]
    writers = [start(processes, "write", path, name, STEPS) for name in ("one", "two")]
    written = [writer.communicate() for writer in writers]
    read = [reader.communicate() for reader in readers]
    assert [process.returncode for process in (*writers, *readers)] == [0, 0, 0, 0], (written, read)
    assert all(int(output) >= 1 for output, _ in read)

    entries = [entry for output, _ in written for entry in acknowledged(output)]
    assert sorted(revision for revision, _ in entries) == list(range(1, 2 * STEPS + 1)), "one revision a write, none twice"
    store = SqliteGraphStore(path, account=ACCOUNT)
    kept = {node.id: node.revision for node in store.scan(In("project", ("one-kept", "two-kept")))}
    assert kept == {node_id: revision for revision, node_id in entries}
    for name in ("one", "two"):
        assert sorted(node.id for node in store.scan(In("project", (name,)))) == [
            f"{name}-{STEPS - 1}-{place}" for place in range(GROUP)
        ]
    assert store.revision() == 2 * STEPS
    store.close()
    assert_sound(path)


def test_a_killed_writer_loses_no_acknowledged_write(path: Path, processes: ExitStack) -> None:
    store = SqliteGraphStore(path, account=ACCOUNT)
    total = 0
    for name in ("first", "second", "third"):
        writer = start(processes, "write", path, name, 0)
        assert writer.stdout is not None
        head = [writer.stdout.readline() for _ in range(25)]
        writer.send_signal(signal.SIGKILL)
        rest, errors = writer.communicate()
        assert (writer.returncode, errors) == (-signal.SIGKILL, "")
        entries = acknowledged("".join(head) + rest)
        assert len(entries) >= 25

        kept = {node.id: node.revision for node in store.scan(In("project", (f"{name}-kept",)))}
        assert {node_id: revision for revision, node_id in entries}.items() <= kept.items()
        # The last write may have been committed and not yet said so; what is there, is there whole.
        assert len(kept) - len(entries) in (0, 1)
        assert store.count(In("project", (name,))) == GROUP
        total += len(kept)
        assert store.revision() == total
    assert store.write(WriteBatch(nodes=(make_node("after"),))) == total + 1
    assert store.count(All(())) == total + 3 * GROUP + 1
    store.close()
    assert_sound(path)
