"""A real process that dies in the middle of an ingest, on the store on disk."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from cluster.errors import ConflictError
from cluster.graph.sqlite import SqliteGraphStore
from jobs.ingest import IngestOptions
from tests.support.factories import ACCOUNT
from tests.support.git_tree import write
from tests.support.ingested import fresh_store, live_nodes, run_ingest, visible_state

FILES = 300
#: Says where it is and then waits for its reader, so that the parent decides at which file it ends.
PROGRAM = textwrap.dedent("""\
    import sys
    from pathlib import Path
    from cluster.graph.sqlite import SqliteGraphStore
    from jobs.ingest import IngestOptions, ingest

    def tell(phase, done, total, path):
        print(phase, done, flush=True)
        if phase == sys.argv[4] and done == int(sys.argv[5]):
            sys.stdin.readline()

    store = SqliteGraphStore(Path(sys.argv[1]), account="acme")
    options = IngestOptions(lock_folder=Path(sys.argv[3]))
    names = {"account": "acme", "project": "main", "repository": "repo"}
    ingest(store, Path(sys.argv[2]), **names, now=1000, options=options, progress=tell)
    """)


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    root = tmp_path / "repo"
    write(root, {f"doc{n:03}.md": f"# Number {n}\n\ntext {n}\n" for n in range(FILES // 2)})
    write(root, {f"mod{n:03}.py": f"import mod{n - 1:03}\n\n\ndef f{n}():\n    return {n}\n" for n in range(FILES // 2)})
    return root


def _stopped_at(tmp_path: Path, repo: Path, phase: str, done: int) -> subprocess.Popen[str]:
    """The program, waiting at that point."""
    arguments = [str(tmp_path / "graph.sqlite"), str(repo), str(tmp_path / "locks"), phase, str(done)]
    command = [sys.executable, "-c", PROGRAM, *arguments]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    for line in process.stdout:
        if line.split() == [phase, str(done)]:
            return process
    raise AssertionError(process.communicate()[1])


@pytest.mark.parametrize(
    ("how", "phase", "done", "stored"),
    [
        (signal.SIGKILL, "extract", 0, 0),
        (signal.SIGKILL, "extract", 100, 100),
        (signal.SIGKILL, "extract", 299, 250),
        (signal.SIGKILL, "link", 0, 300),
        (signal.SIGINT, "extract", 100, 100),
    ],
)
def test_a_run_that_dies_is_resumed_and_ends_as_a_fresh_one(
    tmp_path: Path, repo: Path, how: signal.Signals, phase: str, done: int, stored: int
) -> None:
    process = _stopped_at(tmp_path, repo, phase, done)
    process.send_signal(how)
    process.communicate(timeout=30)
    assert process.returncode in (-how, 128 + how)

    store = SqliteGraphStore(tmp_path / "graph.sqlite", account=ACCOUNT)
    try:
        known = set(store.files(ACCOUNT, "main"))
        assert known == {node.source.path for node in live_nodes(store) if node.source}
        assert len(known) == stored
        report = run_ingest(store, repo, options=IngestOptions(lock_folder=tmp_path / "locks"))
        assert (report.indexed, report.unchanged) == (FILES - stored, stored)
        assert visible_state(store) == visible_state(fresh_store(repo))
    finally:
        store.close()


def test_a_second_process_is_refused_while_the_first_runs(tmp_path: Path, repo: Path) -> None:
    process = _stopped_at(tmp_path, repo, "extract", 10)
    store = SqliteGraphStore(tmp_path / "graph.sqlite", account=ACCOUNT)
    options = IngestOptions(lock_folder=tmp_path / "locks")
    try:
        with pytest.raises(ConflictError, match=f"by process {process.pid}"):
            run_ingest(store, repo, options=options)
        process.communicate("go\n", timeout=60)
        assert process.returncode == 0
        assert run_ingest(store, repo, options=options).unchanged == FILES
    finally:
        process.kill()
        store.close()
