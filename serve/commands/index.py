"""`raycall index`: reads a folder into the store and builds its index."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from serve.commands import options

#: Skipped files that the text form lists.
MAX_LISTED = 20


def index(
    context: typer.Context,
    path: Annotated[str, typer.Argument(metavar="PATH", help="Folder to index. Put -- before one that starts with '-'.")],
    project: Annotated[
        str | None, typer.Option("--project", "-p", metavar="NAME", help="Name of the project.  [default: the folder's]")
    ] = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Fill the project from PATH although it holds another folder.")
    ] = False,
    json: options.Json = False,
    config: options.ConfigFile = None,
    data_dir: options.DataDir = None,
) -> None:
    """Index a folder: only what changed since the last time is read again."""
    folder = options.folder_argument(path)
    settings = options.load_config(context, config, data_dir)
    if project is not None:
        from cluster.model.ids import parse_name

        parse_name(project, "project")
    from cluster.telemetry import configure
    from serve.bootstrap import index_command
    from serve.commands import output
    from serve.commands.progress import log_level, make_progress

    configure(log_level(settings.log.level), settings.log.format)
    with make_progress() as progress:
        report = index_command(settings, folder, project, progress, replace_root=replace)
    if json:
        output.write_json(report)
    else:
        output.write_text(output.tree(_shortened(report)))


def _shortened(report: Mapping[str, Any]) -> dict[str, Any]:
    """The report for a person: a long list of skipped files is cut, and says so."""
    skipped = [f"{item['path']}: {item['reason']}" for item in report["skipped_files"]]
    if len(skipped) > MAX_LISTED:
        skipped[MAX_LISTED:] = [f"and {len(skipped) - MAX_LISTED} more; all of them with --json"]
    return {**report, "skipped_files": skipped}
