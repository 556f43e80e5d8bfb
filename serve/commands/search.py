"""`raycall search`: asks the running server."""

from __future__ import annotations

import os
from typing import Annotated, Any, Literal

import typer

from cluster.errors import UsageError
from serve.commands import options, output

#: Added to the server's own deadline: connecting, rendering, a busy machine.
_GRACE_S = 30.0

Fusion = Literal["weighted", "weighted_max", "rrf"]
Statistics = Literal["visible", "all"]


def search(
    context: typer.Context,
    query: Annotated[
        str,
        typer.Argument(
            metavar="TEXT", help="Plain text; no character of it is syntax. Put -- before one that starts with '-'."
        ),
    ],
    project: Annotated[
        list[str] | None, typer.Option("--project", "-p", metavar="NAME", help="Search this project; may be repeated.")
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", "-n", metavar="NUMBER", help="Hits wanted, 1 to 100.  [default: 10]")
    ] = None,
    label: Annotated[
        list[str] | None, typer.Option("--label", "-l", metavar="NAME", help="Only nodes with this label; may be repeated.")
    ] = None,
    fusion: Annotated[Fusion | None, typer.Option("--fusion", help="How words and vectors become one list.")] = None,
    expand_hops: Annotated[
        int | None, typer.Option("--expand-hops", metavar="NUMBER", help="Hops to related nodes; 0 shows none.")
    ] = None,
    statistics: Annotated[
        Statistics | None, typer.Option("--statistics", help="Rows that BM25 takes its statistics from.")
    ] = None,
    cursor: Annotated[
        str | None, typer.Option("--cursor", metavar="TEXT", help="The next_cursor of the page before, for the page after it.")
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Say how the answer came about.")] = False,
    json: options.Json = False,
    url: options.Url = None,
    key_file: options.KeyFile = None,
    config: options.ConfigFile = None,
    data_dir: options.DataDir = None,
) -> None:
    """Search the running server.

    Text that starts with '-' comes after two dashes: raycall search -- "-x".
    """
    from serve.client import connect

    settings = options.load_config(context, config, data_dir)
    body = _body(
        query=_text(query, "query"),
        projects=[_text(name, "project") for name in project or ()] or None,
        limit=limit,
        labels=[_text(name, "label") for name in label or ()] or None,
        fusion=fusion,
        expand_hops=expand_hops,
        statistics=statistics,
        cursor=None if cursor is None else _text(cursor, "cursor"),
        explain=explain or None,
    )
    client = connect(settings.data_dir, url, key_file, os.environ, settings.search.deadline_s + _GRACE_S)
    if json:
        output.write_json(client.json("POST", "/v1/search", body))
    elif output.is_terminal():
        from serve.commands.pretty import show_answer

        show_answer(client.json("POST", "/v1/search", body))
    elif explain:
        # The text form has no place for it, so the answer is followed by the explanation.
        _write_explained(client.json("POST", "/v1/search", body))
    else:
        output.write_text(client.text("POST", "/v1/search", body))


def _write_explained(answer: dict[str, Any]) -> None:
    from serve.commands.pretty import plain_answer

    output.write_text(plain_answer(answer))


def _body(**fields: object) -> dict[str, object]:
    return {name: value for name, value in fields.items() if value is not None}


def _text(argument: str, field: str) -> str:
    try:
        argument.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UsageError(f"{field} is not valid text in this terminal's encoding", field=field) from error
    return argument
