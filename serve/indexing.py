"""Indexing a folder: files into the store, the store into a served generation. On Ray where this process has started one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from cluster.config import Config
from cluster.model.manifest import Manifest
from cluster.storage import GenerationStore
from jobs.extract import ExtractResult, ExtractTask, lost_result, run_extract
from jobs.ingest import IngestOptions, IngestReport, ingest
from jobs.progress import ProgressFile
from jobs.refuse import Limits
from jobs.setup import SystemClock, generations_root, open_store, progress_folder
from jobs.tasks import INDEX, log_to_file, publish
from jobs.walk import default_project
from serve.gate import make_gate

#: Called with (phase, done, total). Phases in order: walk, extract, link, embed, build.
OnProgress = Callable[[str, int, int], None]


class WorkPool(Protocol):
    """Where batch work runs."""

    def map(
        self,
        function: Callable[[Any], Any],
        items: Sequence[Any],
        *,
        on_lost: Callable[[Any], Any],
        prepare: Callable[[], None],
    ) -> Iterator[Any]:
        """`function` of each item, in order. Where workers do it: `prepare` is called in them, and `on_lost` of an item that a
        worker did not survive stands for its result."""
        ...

    def run(self, function: Callable[..., Any], config: Config, *arguments: object, poll: Callable[[], None]) -> Any: ...


class HerePool:
    """This process."""

    def map(
        self,
        function: Callable[[Any], Any],
        items: Sequence[Any],
        *,
        on_lost: Callable[[Any], Any],  # noqa: ARG002 - what ends this process ends the command
        prepare: Callable[[], None],  # noqa: ARG002 - this process is prepared
    ) -> Iterator[Any]:
        return map(function, items)

    def run(self, function: Callable[..., Any], config: Config, *arguments: object, poll: Callable[[], None]) -> Any:
        poll()
        return function(config, *arguments)


class RayPool:
    """Ray, which this process has started."""

    def __init__(self, cpus: int) -> None:
        self._in_flight = 2 * cpus

    def map(
        self,
        function: Callable[[Any], Any],
        items: Sequence[Any],
        *,
        on_lost: Callable[[Any], Any],
        prepare: Callable[[], None],
    ) -> Iterator[Any]:
        from jobs.remote import map_tasks

        return map_tasks(function, items, in_flight=self._in_flight, on_lost=on_lost, prepare=prepare)

    def run(self, function: Callable[..., Any], config: Config, *arguments: object, poll: Callable[[], None]) -> Any:
        from jobs.remote import run_task

        return run_task(function, config, *arguments, poll=poll)


@dataclass(frozen=True, slots=True, kw_only=True)
class Indexed:
    """What indexing a folder came to."""

    report: IngestReport
    #: What is served now.
    manifest: Manifest
    #: The newer generation that the gate keeps out, and why; see `GenerationStore.refused`.
    kept_out: dict[str, str] | None = None


def index_folder(
    config: Config, path: Path, project: str | None, on_progress: OnProgress, pool: WorkPool, *, replace_root: bool = False
) -> Indexed:
    """Reads what changed below `path` and publishes the project's next generation.

    `replace_root` allows a project that holds another folder to be filled from this one instead. `project` defaults to a name
    made of the folder's. Safe to interrupt at any point: what was stored stays, and the next run goes on from there.
    """
    project = project or default_project(path)

    def extract_many(tasks: Sequence[ExtractTask]) -> Iterator[ExtractResult]:
        return pool.map(run_extract, tasks, on_lost=lost_result, prepare=partial(log_to_file, config))

    store = open_store(config)
    try:
        report = ingest(
            store,
            path,
            account=config.account,
            project=project,
            repository=path.resolve().name or project,
            now=SystemClock().now_ms(),
            options=replace(ingest_options(config), replace_root=replace_root),
            progress=lambda phase, done, total, _path: on_progress(phase, done, total),
            extract_many=extract_many,
        )
    finally:
        store.close()
    shown = ProgressFile(progress_folder(config), INDEX, project)
    started = SystemClock().now_ms()

    def poll() -> None:
        progress = shown.read()
        if progress is not None and progress.updated_at >= started:
            on_progress(progress.phase, progress.done, progress.total)

    manifest: Manifest = pool.run(publish, config, project, make_gate, poll=poll)
    on_progress("build", 1, 1)
    kept_out = GenerationStore(generations_root(config)).refused(project)
    return Indexed(report=report, manifest=manifest, kept_out=kept_out)


def ingest_options(config: Config) -> IngestOptions:
    """How folders are read under `config`."""
    ingest_config = config.ingest
    return IngestOptions(
        limits=Limits(max_bytes=ingest_config.max_file_bytes, max_data_bytes=ingest_config.max_data_file_bytes),
        max_chars=ingest_config.chunk_max_chars,
        exclude=(config.data_dir.resolve(),),
        lock_folder=config.data_dir / "locks",
    )
