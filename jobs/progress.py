"""How far a job is, in a small file that any process can read: the job may run in another one, or be gone."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from cluster.errors import RaycallError
from cluster.model.ids import parse_name

#: Seconds between two writes of one phase.
INTERVAL_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """One look at a job."""

    project: str
    #: "walk", "extract", "embed", "build", "done" or "failed".
    phase: str
    done: int
    total: int
    #: What is being done it with or why it failed, for people.
    detail: str
    pid: int
    #: Milliseconds since the epoch.
    updated_at: int

    @property
    def running(self) -> bool:
        """Whether the process that wrote this is still there and not finished."""
        return self.phase not in {"done", "failed"} and is_alive(self.pid)


class ProgressFile:
    """The progress of one kind of job on one project."""

    def __init__(self, folder: Path, kind: str, project: str, clock: Callable[[], float] = time.time) -> None:
        self._path = folder / f"{parse_name(project, 'project')}.{kind}.json"
        self._project = project
        self._clock = clock
        self._last = ("", 0.0)

    def report(self, phase: str, done: int, total: int, detail: str = "") -> None:
        """Writes where the job is; within one phase at most every INTERVAL_S seconds, but always its end."""
        now = self._clock()
        if phase == self._last[0] and done < total and now - self._last[1] < INTERVAL_S:
            return
        self._last = (phase, now)
        progress = Progress(
            project=self._project,
            phase=phase,
            done=done,
            total=total,
            detail=detail,
            pid=os.getpid(),
            updated_at=int(now * 1000),
        )
        self._path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._path.with_suffix(f".{os.getpid()}.part")
        temporary.write_text(json.dumps(asdict(progress)))
        temporary.rename(self._path)

    def read(self) -> Progress | None:
        """The last report, or None when there is none that can be read."""
        try:
            return Progress(**json.loads(self._path.read_bytes()))
        except (OSError, ValueError, TypeError):
            return None


def all_progress(folder: Path, kind: str) -> list[Progress]:
    """The last report of every project, by project."""
    found = []
    for path in sorted(folder.glob(f"*.{kind}.json")):
        try:
            progress = ProgressFile(folder, kind, path.name.removesuffix(f".{kind}.json")).read()
        except RaycallError:
            continue
        if progress is not None:
            found.append(progress)
    return found


def is_alive(pid: int) -> bool:
    """Whether a process with that id exists; it may be another one by now. What is no process id names none."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, TypeError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
