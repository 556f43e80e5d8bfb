"""`raycall verify-isolation`: whether what a key may not read can be told from its answers."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cluster.errors import NotFoundError, UsageError
from serve.commands import options, output

if TYPE_CHECKING:
    from cluster.config import Config
    from cluster.model.access import Principal
    from serve.isolation import IsolationReport


def verify_isolation(
    context: typer.Context,
    queries: Annotated[Path, typer.Argument(metavar="FILE", help="Recorded queries, one JSON object a line.")],
    key_id: Annotated[
        str | None, typer.Option("--key-id", metavar="ID", help="Ask as this key, as 'raycall keys list' shows it.")
    ] = None,
    agent: Annotated[
        str | None, typer.Option("--agent", metavar="SLUG", help="Ask as this agent, with the scopes that agents have.")
    ] = None,
    scope: Annotated[
        list[str] | None, typer.Option("--scope", metavar="SCOPE", help="Scope of the agent; may be repeated.")
    ] = None,
    project: Annotated[
        list[str] | None, typer.Option("--project", "-p", metavar="NAME", help="Project of the reader; may be repeated.")
    ] = None,
    team: Annotated[
        list[str] | None, typer.Option("--team", metavar="NAME", help="Project whose team the reader is in; may be repeated.")
    ] = None,
    json: options.Json = False,
    config: options.ConfigFile = None,
    data_dir: options.DataDir = None,
) -> None:
    """Ask recorded queries twice: of all that is indexed, and of a fresh index of what the key may read. Exits with 1 when an
    answer differs, and shows the first difference."""
    from serve.bootstrap import absolute
    from serve.isolation import verify_isolation as verify
    from serve.query_log import read_queries

    settings = absolute(options.load_config(context, config, data_dir))
    given = {"agent": agent, "scopes": scope or None, "projects": project or None, "teams": team or None}
    principal = _principal(settings, key_id, {name: value for name, value in given.items() if value is not None})
    recorded = read_queries(queries, settings.account)
    if not recorded:
        raise UsageError(f"{queries} holds no query", field="queries")
    report = verify(settings, principal, [query.request for query in recorded])
    if json:
        output.write_json({"isolated": report.isolated, **asdict(report)})
    else:
        output.write_text(output.tree(_shown(report)))
    if not report.isolated:
        raise typer.Exit(1)


def _principal(config: Config, key_id: str | None, given: dict[str, Any]) -> Principal:
    from jobs.setup import graph_path, open_store
    from serve.query_log import principal_from

    if (key_id is None) == (not given):
        raise UsageError("say whose answers are meant: --key-id ID, or --agent, --scope, --project, --team", field="key_id")
    if not graph_path(config).exists():
        raise NotFoundError(f"nothing is kept in {config.data_dir} yet")
    if key_id is None:
        try:
            return principal_from(given, config.account)
        except ValueError as error:
            raise UsageError(str(error)) from error
    store = open_store(config)
    try:
        found = [key.principal for key in store.keys(config.account) if key.key_id == key_id]
    finally:
        store.close()
    if not found:
        raise NotFoundError(f"no key {key_id[:100]!r}", field="key_id")
    return found[0]


def _shown(report: IsolationReport) -> dict[str, Any]:
    told: dict[str, Any] = {
        "isolated": report.isolated,
        "queries": report.queries,
        "pages compared": report.pages,
        "readable rows": f"{report.readable} of {report.nodes}",
    }
    return told if report.difference is None else {**told, "first difference": asdict(report.difference)}
