"""Progress of long work: bars on a terminal's stderr, and nothing anywhere else."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

from serve.commands.output import is_terminal, one_line

#: (phase, done, total or None while it is not known). A phase is a short word such as "read" or "embed".
Progress: TypeAlias = Callable[[str, int, int | None], None]


def log_level(configured: str) -> str:
    """The level to log at. On a terminal the bars and the command's own words say what info records would."""
    return "warning" if configured == "info" and is_terminal(sys.stderr) else configured


@contextmanager
def make_progress() -> Iterator[Progress]:
    """A `Progress` that draws one bar a phase. Leaving the block removes the bars; a write to stderr meanwhile stays whole."""
    if not is_terminal(sys.stderr):
        yield lambda _phase, _done, _total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description:>12}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    # stdout stays the command's own: it may be a pipe that wants JSON.
    bars = Bars(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False)
    tasks: dict[str, TaskID] = {}

    def show(phase: str, done: int, total: int | None) -> None:
        if phase not in tasks:
            tasks[phase] = bars.add_task(one_line(phase), total=total)
        bars.update(tasks[phase], completed=done, total=total)

    with bars:
        yield show
