"""`raycall keys`: makes, lists and revokes API keys, directly in the store; no server needs to run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from cluster.errors import NotFoundError, UsageError
from serve.commands import options, output
from serve.commands.quick import QuickCommand, QuickGroup

if TYPE_CHECKING:
    from cluster.config import Config
    from cluster.model.access import ApiKey
    from serve.keys import Keys

app = typer.Typer(cls=QuickGroup, help="Make, list and revoke API keys.", rich_markup_mode=None)

#: As `cluster.model.nodes.Scope` has them; spelled out here because that module's neighbours load numpy.
SCOPES = ("public", "shared", "admin")


@app.command(cls=QuickCommand)
def create(
    context: typer.Context,
    name: Annotated[str, typer.Argument(metavar="NAME", help="What the key is for; shown in lists.")],
    agent: Annotated[
        str | None,
        typer.Option("--agent", metavar="SLUG", help="Slug of the agent that the key is for; without it, an admin's key."),
    ] = None,
    scope: Annotated[
        list[str] | None,
        typer.Option(
            "--scope",
            metavar="SCOPE",
            help="public, shared or admin: what the agent may read; may be repeated.  [default: public, shared]",
        ),
    ] = None,
    project: Annotated[
        list[str] | None,
        typer.Option("--project", "-p", metavar="NAME", help="Project of the key; may be repeated.  [default: all]"),
    ] = None,
    team: Annotated[
        list[str] | None, typer.Option("--team", metavar="NAME", help="Project whose team the agent is in; may be repeated.")
    ] = None,
    json: options.Json = False,
    config: options.ConfigFile = None,
    data_dir: options.DataDir = None,
) -> None:
    """Make a key. Its secret is printed this once; only its hash is kept."""
    for item in scope or ():
        if item not in SCOPES:
            raise UsageError(f"--scope must be one of {', '.join(SCOPES)}: {item!r}", field="scope")
    with _opened(options.load_config(context, config, data_dir), create=True) as keys:
        from cluster.model import access, nodes

        made = keys.create(
            name=name,
            role=access.Role.ADMIN if agent is None else access.Role.AGENT,
            agent=agent,
            scopes=[nodes.Scope(item) for item in scope] if scope else None,
            projects=project or None,
            teams=team or (),
        )
    if json:
        output.write_json({**_shown(made.key), "secret": made.secret})
        return
    output.note(f"{made.key.key_id} made for {name!r}; this is the only time that its secret is shown")
    output.write_text(made.secret)


@app.command(name="list", cls=QuickCommand)
def list_keys(
    context: typer.Context,
    json: options.Json = False,
    config: options.ConfigFile = None,
    data_dir: options.DataDir = None,
) -> None:
    """List all keys, revoked ones too, oldest first."""
    with _opened(options.load_config(context, config, data_dir)) as keys:
        found = [_shown(key) for key in keys.list()]
    if json:
        output.write_json({"keys": found})
    elif found:
        output.write_text("".join(_row(key) for key in found))
    else:
        output.note("there are no keys; make one with: raycall keys create NAME")


@app.command(cls=QuickCommand)
def revoke(
    context: typer.Context,
    key_id: Annotated[str, typer.Argument(metavar="ID", help="As 'raycall keys list' shows it: key_...")],
    json: options.Json = False,
    config: options.ConfigFile = None,
    data_dir: options.DataDir = None,
) -> None:
    """Revoke a key for good. A running server refuses it within a second."""
    with _opened(options.load_config(context, config, data_dir)) as keys:
        keys.revoke(key_id)
    if json:
        output.write_json({"revoked": key_id})
    else:
        output.note(f"{key_id} is revoked")


@contextmanager
def _opened(config: Config, *, create: bool = False) -> Iterator[Keys]:
    from jobs.setup import SystemClock, graph_path, open_store
    from serve.keys import Keys

    if not create and not graph_path(config).exists():
        raise NotFoundError(f"nothing is kept in {config.data_dir} yet; make a key with: raycall keys create NAME")
    store = open_store(config)
    try:
        yield Keys(account=config.account, store=store, clock=SystemClock())
    finally:
        store.close()


def _shown(key: ApiKey) -> dict[str, object]:
    principal = key.principal
    return {
        "id": key.key_id,
        "name": key.name,
        "role": principal.role.value,
        "agent": principal.agent,
        "scopes": None if principal.scopes is None else sorted(principal.scopes),
        "projects": None if principal.projects is None else sorted(principal.projects),
        "teams": sorted(principal.teams),
        "created_at": key.created_at,
        "revoked_at": key.revoked_at,
    }


def _row(key: dict[str, object]) -> str:
    projects = key["projects"]
    where = "all projects" if projects is None else ", ".join(projects)  # type: ignore[arg-type]
    who = f"agent {key['agent']}" if key["agent"] else str(key["role"])
    state = "revoked" if key["revoked_at"] is not None else "valid"
    return output.one_line(f"{key['id']}  {state:7}  {who}  {where}  {key['name']}") + "\n"
