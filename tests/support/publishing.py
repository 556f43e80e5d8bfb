"""Writing into a server's store and publishing it, as a job beside the server does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from cluster.graph.sqlite import SqliteGraphStore
from cluster.ports import WriteBatch
from tests.support.server import clean_env

#: The account of a server without a configuration of its own.
DEFAULT_ACCOUNT = "local"
_PUBLISH = """
import os, sys
from cluster.config import load
from jobs.tasks import publish
publish(load(None, os.environ), sys.argv[1])
"""


def write_and_publish(data_dir: Path, batch: WriteBatch, project: str) -> None:
    """Writes `batch` into the store of `data_dir` and makes `project` searchable."""
    store = SqliteGraphStore(data_dir / "graph.sqlite", account=DEFAULT_ACCOUNT)
    try:
        store.write(batch)
    finally:
        store.close()
    done = subprocess.run(
        [sys.executable, "-c", _PUBLISH, project],
        env=clean_env(data_dir),
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
