"""`raycall generations`: the built indexes of each project, directly on disk; a running server takes every change by itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cluster.errors import ConflictError, RaycallError, UsageError
from cluster.text import printable
from serve.commands import options, output
from serve.commands.quick import QuickCommand, QuickGroup

if TYPE_CHECKING:
    from cluster.config import Config
    from cluster.model.manifest import Manifest
    from cluster.storage import GenerationStore
    from jobs.generations import Swapped
    from serve.gate import GateReport

app = typer.Typer(
    cls=QuickGroup, help="List, verify, publish, roll back and remove generations of the index.", rich_markup_mode=None
)

Project = Annotated[str, typer.Argument(metavar="PROJECT", help="Name of the project.")]
AnyProject = Annotated[str | None, typer.Argument(metavar="[PROJECT]", help="Name of the project.  [default: all]")]
AnyGeneration = Annotated[str | None, typer.Argument(metavar="[GENERATION]", help="As 'raycall generations list' shows it.")]


@app.command(name="list", cls=QuickCommand)
def list_generations(
    context: typer.Context,
    project: AnyProject = None,
    json: options.Json = False,
    config: options.ConfigFile = None,
    data_dir: options.DataDir = None,
) -> None:
    """List the generations on disk, oldest first: served, previous (kept for rollback), unpublished, unfinished."""
    from jobs.generations import entries, projects_of

    store = _store(options.load_config(context, config, data_dir))
    found = [asdict(entry) for name in projects_of(store, project) for entry in entries(store, name)]
    if json:
        output.write_json({"generations": found})
    elif found:
        output.write_text("".join(map(_row, found)))
    else:
        output.note("there are no generations; make one with: raycall index PATH")


@app.command(cls=QuickCommand)
def verify(
    context: typer.Context,
    project: AnyProject = None,
    generation: AnyGeneration = None,
    json: options.Json = False,
    config: options.ConfigFile = None,
    data_dir: options.DataDir = None,
) -> None:
    """Read every file and compare it with its checksum. Exits with 1 when one is damaged; each is named."""
    from jobs.generations import projects_of

    store = _store(options.load_config(context, config, data_dir))
    found = {name: _faults(store, name, generation) for name in projects_of(store, project)}
    damaged = any(faults for generations in found.values() for faults in generations.values())
    if json:
        output.write_json({"intact": not damaged, "projects": found})
    else:
        lines = [
            f"{name}  {which}  {'; '.join(faults) or 'intact'}"
            for name, generations in found.items()
            for which, faults in generations.items()
        ]
        output.write_text("".join(f"{output.one_line(line)}\n" for line in lines))
    if damaged:
        output.note("damaged; indexing again rebuilds what is served, and 'raycall generations rollback' goes back meanwhile")
        raise typer.Exit(1)


@app.command(cls=QuickCommand)
def publish(
    context: typer.Context,
    project: Project,
    generation: Annotated[
        str | None,
        typer.Argument(metavar="[GENERATION]", help="The one to serve.  [default: the newest that was never published]"),
    ] = None,
    gate: Annotated[
        Path | None,
        typer.Option(
            "--gate", metavar="FILE", help="Ask these recorded queries of both first; publish only within the bounds."
        ),
    ] = None,
    min_overlap: Annotated[
        float | None, typer.Option("--min-overlap", metavar="NUMBER", help="Least mean overlap@10, 0 to 1.  [default: 0.8]")
    ] = None,
    max_latency_ratio: Annotated[
        float | None,
        typer.Option(
            "--max-latency-ratio", metavar="NUMBER", help="Most that the median answer may slow down.  [default: 2.0]"
        ),
    ] = None,
    min_score: Annotated[
        float | None,
        typer.Option(
            "--min-score",
            metavar="NUMBER",
            help="Least mean nDCG@10 of the judged queries.  [default: the served generation's less 0.02]",
        ),
    ] = None,
    json: options.Json = False,
    config: options.ConfigFile = None,
    data_dir: options.DataDir = None,
) -> None:
    """Serve a generation instead of the one that is served. Refused when a file of it is damaged, or when the gate fails."""
    from jobs import generations

    bounds = {"min_overlap": min_overlap, "max_latency_ratio": max_latency_ratio, "min_score": min_score}
    given: dict[str, object] = {f"publish.{name}": value for name, value in bounds.items() if value is not None}
    if given and gate is None:
        raise UsageError("bounds need recorded queries to be checked with: --gate FILE", field="gate")
    settings = options.load_config(context, config, data_dir, given)
    store = _store(settings)
    generations.projects_of(store, project)
    checked = None if gate is None else _Gate(settings, gate)
    try:
        swapped = generations.publish(store, settings.account, project, generation, checked)
    except ConflictError:
        if checked is not None:
            checked.tell(json)
        raise
    if checked is not None:
        checked.tell(json, asdict(swapped))
    if checked is None or not json:
        _tell(swapped, "published", json)


@app.command(cls=QuickCommand)
def rollback(
    context: typer.Context,
    project: Project,
    json: options.Json = False,
    config: options.ConfigFile = None,
    data_dir: options.DataDir = None,
) -> None:
    """Serve the previous generation again. What was written since it was built is in its answers all the same."""
    from jobs import generations

    settings = options.load_config(context, config, data_dir)
    store = _store(settings)
    generations.projects_of(store, project)
    _tell(generations.roll_back(store, settings.account, project), "rolled back to", json)


@app.command(cls=QuickCommand)
def gc(
    context: typer.Context,
    project: AnyProject = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be removed, and remove nothing.")] = False,
    json: options.Json = False,
    config: options.ConfigFile = None,
    data_dir: options.DataDir = None,
) -> None:
    """Remove what is neither served nor kept for rollback, unpublished generations too; a running build keeps its own."""
    from jobs.generations import collect, projects_of

    store = _store(options.load_config(context, config, data_dir))
    removed: list[dict[str, Any]] = []
    failed: dict[str, str] = {}
    for name in projects_of(store, project):
        try:
            removed += [asdict(item) for item in collect(store, name, dry_run=dry_run)]
        except RaycallError as error:
            failed[name] = error.detail
    if json:
        output.write_json({"dry_run": dry_run, "removed": removed, "failed": failed})
    else:
        word = "would remove" if dry_run else "removed"
        lines = [f"{word} {item['project']}  {item['name']}  {item['freed_bytes']} bytes" for item in removed]
        output.write_text("".join(f"{output.one_line(line)}\n" for line in lines))
        if not removed:
            output.note("there is nothing to remove")
    for name, detail in failed.items():
        output.note(f"{name}: {detail}")
    if failed:
        raise typer.Exit(1)


class _Gate:
    """Compares a new generation with the served one by recorded queries, and keeps the report."""

    def __init__(self, config: Config, queries: Path) -> None:
        from serve.query_log import read_queries

        self._config = config
        self._queries = read_queries(queries, config.account)
        self._report: GateReport | None = None

    def __call__(self, served: Manifest, new: Manifest) -> str | None:
        from serve.gate import bounds_of, check

        self._report = check(self._config, self._queries, served, new, bounds_of(self._config))
        return None if self._report.passed else "; ".join(self._report.reasons)

    def tell(self, json: bool, published: dict[str, Any] | None = None) -> None:
        """Writes the report to stdout; with what was published, where something was."""
        from serve.gate import as_text

        if json:
            output.write_json({"published": published, "gate": None if self._report is None else self._report.to_json()})
        elif self._report is not None:
            output.write_text(printable(as_text(self._report)))


def _store(config: Config) -> GenerationStore:
    from cluster.storage import GenerationStore
    from jobs.setup import generations_root

    return GenerationStore(generations_root(config))


def _faults(store: GenerationStore, project: str, generation: str | None) -> dict[str, list[str]]:
    """Faults by generation, and those of the pointer under its file's name."""
    from jobs.generations import faults

    if generation is not None:
        return {generation: faults(store, project, generation)}
    found = {name: faults(store, project, name) for name in store.finished(project)}
    try:
        served = store.pointer(project).generation
    except RaycallError as error:
        return {**found, "CURRENT": [error.detail]}
    if served is not None and served not in found:
        found["CURRENT"] = [f"the served generation {served} is not on disk"]
    return found


def _tell(swapped: Swapped, done: str, json: bool) -> None:
    if json:
        output.write_json(asdict(swapped))
    else:
        instead = f" instead of {swapped.replaced}" if swapped.replaced else ""
        output.write_text(f"{swapped.project}: {done} {swapped.generation}{instead}")


def _row(entry: Mapping[str, Any]) -> str:
    import time

    made = entry["created_at"]
    when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(made / 1000)) if made is not None else "-"
    counts = "-" if entry["rows"] is None else f"{entry['rows']} rows, {entry['vectors']} vectors, {entry['identity']}"
    told = f"; analyzer {entry['analyzer']}, watermark {entry['watermark']}" if entry["rows"] is not None else ""
    size = f"{entry['bytes']} bytes ({entry['own_bytes']} its own)"
    fault = f"; DAMAGED: {entry['fault']}" if entry["fault"] else ""
    head = f"{entry['project']}  {entry['generation']}  {entry['state']:11}  {when}"
    return output.one_line(f"{head}  {counts}  {size}{told}{fault}") + "\n"
