"""The jobs that run in a process of their own, as plain functions of a configuration and a project."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

from cluster.config import Config
from cluster.errors import RaycallError
from cluster.model.manifest import Manifest
from cluster.telemetry import configure_file
from jobs.pending import outgrown
from jobs.progress import ProgressFile
from jobs.reindex import Gate
from jobs.setup import log_file, progress_folder, reindexer

#: Kinds of progress files.
INDEX, REFINE = "index", "refine"


#: Makes the gate that new generations are held to, in the process that builds them; see `Reindexer.gate`.
MakeGate = Callable[[Config], Gate | None]


def publish(config: Config, project: str, make_gate: MakeGate | None = None) -> Manifest:
    """Makes the store's state of `project` searchable; see `Reindexer.publish`."""
    gate = None if make_gate is None else make_gate(config)
    progress = ProgressFile(progress_folder(config), INDEX, project)
    with reindexer(config, gate) as jobs:
        return jobs.publish(config.account, project, progress.report)


def refine(config: Config, project: str, make_gate: MakeGate | None = None) -> Manifest | None:
    """Brings `project` under the better embedder, with all that was written; see `Reindexer.refine`.

    None when there was nothing to do: everything is embedded, and what was written since fits into the shards' memory.

    The progress file says how far it is, and why it failed if it does; a later call goes on where this one stopped.
    """
    progress = ProgressFile(progress_folder(config), REFINE, project)
    try:
        with reindexer(config, None if make_gate is None else make_gate(config)) as jobs:
            builder, most = jobs.builder, config.delta.max_rows
            grown = outgrown(builder.store, builder.generations, project, most)
            if not grown and not jobs.needs_refining(config.account, project):
                return None
            manifest = jobs.refine(config.account, project, progress.report)
    except RaycallError as error:
        progress.report("failed", 0, 0, error.detail)
        raise
    progress.report("done", manifest.vectors, manifest.rows, manifest.identity.key)
    return manifest


def log_to_file(config: Config) -> None:
    """Sends this process's records to the jobs' log file: for the workers, whose stderr nobody reads. Cheap when repeated."""
    _log_to(config.log.level, config.log.format, log_file(config, "jobs"))


@cache
def _log_to(level: str, form: str, path: Path) -> None:
    configure_file(level, form, path)
