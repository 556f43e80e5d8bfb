"""Brings every project under the better embedder, one at a time, in the background."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from cluster.errors import RaycallError
from cluster.ports import Clock
from cluster.storage import GenerationStore

log = logging.getLogger(__name__)

#: Seconds until a refinement that failed (a model service that is down) is tried again.
RETRY_AFTER_S = 30.0


class Task(Protocol):
    """A refinement that runs."""

    def done(self) -> bool: ...
    def result(self) -> Any: ...
    def cancel(self) -> None: ...


@dataclass(slots=True)
class Refiner:
    """Decides what to refine next; `start` runs the refinement of a project, whose result is its new manifest or None."""

    generations: GenerationStore
    start: Callable[[str], Task]
    clock: Clock
    _task: Task | None = None
    _project: str = ""
    #: project -> the generation that a refinement ended with: it is looked at again when another is served.
    _settled: dict[str, str | None] = field(default_factory=dict)
    #: project -> the time, in monotonic seconds, before which it is not tried again.
    _not_before: dict[str, float] = field(default_factory=dict)

    def step(self) -> None:
        """Looks after the running refinement and starts the next; to be called again and again."""
        if self._task is not None:
            if not self._task.done():
                return
            self._end(self._task)
            self._task = None
        for project in self.generations.projects():
            if self._due(project):
                self._project = project
                self._task = self.start(project)
                return

    def stop(self) -> None:
        """Ends the running refinement; what it embedded is kept."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def _due(self, project: str) -> bool:
        if self.clock.monotonic() < self._not_before.get(project, 0.0):
            return False
        try:
            served = self.generations.pointer(project).generation
        except RaycallError:
            # The router has said so already; there is nothing here to refine.
            return False
        return served is not None and self._settled.get(project) != served

    def _end(self, task: Task) -> None:
        project = self._project
        try:
            before = self.generations.pointer(project).generation
            manifest = task.result()
        except RaycallError as error:
            extra = {"action": "refine_failed", "project": project}
            log.warning("the better embedder could not be used: %s", error.detail, extra=extra)
            self._not_before[project] = self.clock.monotonic() + RETRY_AFTER_S
            return
        # A generation that was published meanwhile is not the one that was refined: it is looked at again.
        self._settled[project] = before if manifest is None else manifest.generation
