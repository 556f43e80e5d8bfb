"""Brings every project under the better embedder, and folds what was written into new generations; one at a time, in the
background."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from cluster.errors import RaycallError
from cluster.model.manifest import VectorIdentity
from cluster.ports import Clock
from cluster.storage import GenerationStore

log = logging.getLogger(__name__)

#: Seconds between two counts of what was written to a project.
COUNT_EVERY_S = 5.0
#: Seconds until a refinement that failed (a model service that is down) is tried again.
RETRY_AFTER_S = 30.0


class Task(Protocol):
    """A refinement that runs."""

    def done(self) -> bool: ...
    def result(self) -> Any: ...
    def cancel(self) -> None: ...


@dataclass(slots=True)
class Refiner:
    """Decides what to refine next; `start` runs the refinement of a project, whose result is its new manifest or None.

    A task costs a second of CPU before it finds out that there is nothing to do. A start with many projects would spend it on
    each, beside the first questions; so what a manifest shows to be complete is not handed out.
    """

    generations: GenerationStore
    start: Callable[[str], Task]
    clock: Clock
    #: The vectors that every project is to have.
    target: VectorIdentity
    #: (project, revision, most) -> changes of the project after that revision, counted up to `most`.
    pending: Callable[[str, int, int], int]
    #: The store's revision.
    revision: Callable[[], int]
    #: Changes of a project above which it is built anew: the shards hold them in memory until then.
    most_changes: int
    _task: Task | None = None
    _project: str = ""
    #: project -> the generation that a refinement ended with: it is looked at again when another is served.
    _settled: dict[str, str | None] = field(default_factory=dict)
    #: project -> the time, in monotonic seconds, before which it is not tried again, and before which it is not counted again.
    _not_before: dict[str, float] = field(default_factory=dict)
    _next_count: dict[str, float] = field(default_factory=dict)
    #: project -> the store's revision when its last build started: what came before needs no other one.
    _built: dict[str, int] = field(default_factory=dict)
    _started_at: int = 0
    #: project -> (the revision since which, the store's revision up to which) few changes were counted. Counting reads every
    #: node that any project wrote in between, so that a server at rest with many projects would count all the time.
    _counted: dict[str, tuple[int, int]] = field(default_factory=dict)

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
                self._started_at = self.revision()
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
        if served is None:
            return False
        if self._settled.get(project) != served and self._complete(project, served):
            self._settled[project] = served
        return self._settled.get(project) != served or self._outgrown(project, served)

    def _complete(self, project: str, served: str) -> bool:
        """Whether every row of the served generation has its vector of the target."""
        try:
            manifest = self.generations.manifest(project, served)
        except RaycallError:
            # Whoever refines it says what is wrong with it.
            return False
        return manifest.identity == self.target and manifest.vectors == manifest.rows

    def _outgrown(self, project: str, served: str) -> bool:
        """Whether so much was written since the served generation was built that it should be built again."""
        now = self.clock.monotonic()
        if now < self._next_count.get(project, 0.0):
            return False
        self._next_count[project] = now + COUNT_EVERY_S
        try:
            since = max(self.generations.manifest(project, served).watermark, self._built.get(project, 0))
            state = (since, self.revision())
            if self._counted.get(project) == state:
                return False
            changes = self.pending(project, since, self.most_changes)
        except RaycallError as error:
            extra = {"action": "changes_not_counted", "project": project}
            log.warning("what was written could not be counted: %s", error.detail, extra=extra)
            return False
        if changes <= self.most_changes:
            self._counted[project] = state
        else:
            log.info("many changes; building anew", extra={"action": "build_due", "project": project})
        return changes > self.most_changes

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
        self._built[project] = self._started_at
        # A generation that was published meanwhile is not the one that was refined: it is looked at again.
        self._settled[project] = before if manifest is None else manifest.generation
