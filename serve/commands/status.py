"""`raycall status`: what the running server says of itself; without one, what is on disk."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from cluster.errors import RaycallError, UnavailableError
from serve.commands import options, output

if TYPE_CHECKING:
    from cluster.config import Config

_TIMEOUT_S = 15.0


def status(
    context: typer.Context,
    json: options.Json = False,
    url: options.Url = None,
    key_file: options.KeyFile = None,
    config: options.ConfigFile = None,
    data_dir: options.DataDir = None,
) -> None:
    """Show what runs, what is indexed and how far it is. Exits with 1 when no server answers."""
    from serve.client import connect
    from serve.machine import read_state

    settings = options.load_config(context, config, data_dir)
    try:
        client = connect(settings.data_dir, url, key_file, os.environ, _TIMEOUT_S)
        answer = client.json("GET", "/v1/status")
    except UnavailableError as error:
        if url is not None or "RAYCALL_URL" in os.environ:
            raise
        report = {"server": None, "reason": error.detail, "disk": disk_report(settings)}
        if json:
            output.write_json(report)
        else:
            output.write_text(output.tree(readable(report)))
        raise typer.Exit(1) from error
    here = None if url is not None or "RAYCALL_URL" in os.environ else read_state(settings.data_dir)
    report = {"server": {"url": client.url, "pid": here.pid if here else None}, **answer}
    if json:
        output.write_json(report)
    else:
        output.write_text(output.tree(readable(report)))


def readable(value: Any, name: str = "") -> Any:
    """`value` for people: times as such instead of milliseconds, and nothing that says nothing."""
    if isinstance(value, dict):
        return {key: readable(item, key) for key, item in value.items() if item not in (None, "", [])}
    if isinstance(value, list):
        return [readable(item) for item in value]
    if name.endswith("_at") and isinstance(value, int):
        return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(value / 1000))
    return value


def disk_report(config: Config) -> dict[str, Any]:
    """What the data directory holds: JSON values. A part that cannot be read says so in place of its value."""
    folder = config.data_dir
    if not folder.is_dir():
        return {"data_dir": str(folder), "exists": False}
    report: dict[str, Any] = {"data_dir": str(folder), "exists": True}
    report["bytes"] = {name: _size(folder / name) for name in ("graph.sqlite", "vectors.sqlite", "generations")}
    try:
        report["projects"] = _projects(config)
    except RaycallError as error:
        report["projects"] = f"not readable: {error.detail}"
    return report


def _projects(config: Config) -> list[dict[str, Any]]:
    from cluster.storage import GenerationStore
    from jobs.setup import generations_root, graph_path, open_store

    if not graph_path(config).exists():
        return []
    store = open_store(config)
    try:
        projects = store.projects(config.account)
    finally:
        store.close()
    generations = GenerationStore(generations_root(config))
    return [
        {"project": item.project, "root": item.root, "indexed_at": item.indexed_at, **_generation(generations, item.project)}
        for item in projects
    ]


def _generation(generations: Any, project: str) -> dict[str, Any]:
    try:
        manifest = generations.current(project)
    except RaycallError as error:
        return {"generation": f"not readable: {error.detail}"}
    if manifest is None:
        return {"generation": None}
    return {
        "generation": manifest.generation,
        "rows": manifest.rows,
        "vectors": manifest.vectors,
        "identity": manifest.identity.key,
        "kept_out": generations.refused(project),
    }


def _size(path: Path) -> int:
    """Bytes of a file or of everything below a folder. A file that disappears meanwhile counts as nothing."""
    total = 0
    for part in path.rglob("*") if path.is_dir() else [path]:
        try:
            status = part.lstat()
        except FileNotFoundError:
            continue
        # Unchanged files of two generations are one file with two names.
        total += status.st_size // max(1, status.st_nlink) if part.is_file() else 0
    return total
