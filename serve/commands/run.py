"""`raycall serve`: starts everything and stays up until it is interrupted."""

from __future__ import annotations

from typing import Annotated

import typer

from serve.commands import options


def serve(
    context: typer.Context,
    index: Annotated[
        str | None, typer.Option("--index", metavar="PATH", help="Index this folder first, and show one answer from it.")
    ] = None,
    project: Annotated[
        str | None, typer.Option("--project", "-p", metavar="NAME", help="Name of its project.  [default: the folder's]")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port", metavar="NUMBER", help="Port to listen on; the next free one if taken. 0 takes any.  [default: 8000]"
        ),
    ] = None,
    host: Annotated[
        str | None, typer.Option("--host", metavar="ADDRESS", help="Address to listen on.  [default: 127.0.0.1]")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON line once the server answers.")] = False,
    config: options.ConfigFile = None,
    data_dir: options.DataDir = None,
) -> None:
    """Start the server; Ctrl-C stops it with everything that it started."""
    folder = None if index is None else options.folder_argument(index)
    given = {"http.port": port, "http.host": host}
    settings = options.load_config(context, config, data_dir, {key: value for key, value in given.items() if value is not None})
    if project is not None:
        from cluster.model.ids import parse_name

        parse_name(project, "project")
    from cluster.telemetry import configure
    from serve.bootstrap import serve_command
    from serve.commands.progress import log_level, make_progress

    configure(log_level(settings.log.level), settings.log.format)
    with make_progress() as progress:
        serve_command(settings, index=folder, project=project, json=json, progress=progress)
