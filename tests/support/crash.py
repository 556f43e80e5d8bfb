"""What a process that is to be killed does, and how it is started: forked from one that has everything imported and no JVM."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path
from typing import Any

from cluster import faults
from cluster.graph.sqlite import SqliteGraphStore
from cluster.ports import WriteBatch
from jobs import generations as operations
from tests.support.factories import ACCOUNT, make_node

_MODULES = ["tests.support.crash", "tests.support.live"]


def run_killed(point: str, action: str, folder: Path) -> int | None:
    """Does `action` in a process that dies at `point`; its exit code, -9 when it was killed."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_MODULES)
    process = context.Process(target=_work, args=(point, action, str(folder)))
    process.start()
    process.join(120)
    code = process.exitcode
    process.close()
    return code


def _work(point: str, action: str, folder: str) -> None:
    from tests.support.live import LiveIndex

    os.environ[faults.VARIABLE] = point
    live = LiveIndex(Path(folder), shards=0, target_rows=8)
    if action == "build":
        live.publish("main")
    elif action == "rollback":
        operations.roll_back(live.generations, ACCOUNT, "main")
    elif action == "publish":
        operations.publish(live.generations, ACCOUNT, "main", live.generations.finished("main")[0])
    elif action == "gc":
        operations.collect(live.generations, "main")
    live.close()


def acknowledged(store: SqliteGraphStore, texts: dict[str, str]) -> None:
    """Writes these nodes; a text of "" removes one."""
    written = tuple(make_node(node_id, text={"content": text}) for node_id, text in texts.items() if text)
    store.write(WriteBatch(nodes=written, purge=tuple(node_id for node_id, text in texts.items() if not text)))


def listing(folder: Path) -> dict[str, Any]:
    """The names below the project's folder: finished, unfinished and hidden ones."""
    names = sorted(path.name for path in (folder / "generations" / "main").iterdir())
    return {
        "finished": [name for name in names if name.startswith("g") and not name.endswith(".part")],
        "unfinished": [name for name in names if name.endswith(".part")],
        "hidden": [name for name in names if name.startswith(".") and name not in {".lock", ".build.lock"}],
    }
