"""Options that several commands take, and the configuration that they add up to."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from cluster import config
from cluster.errors import UsageError

ConfigFile = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="Configuration file (YAML); RAYCALL_CONFIG otherwise.")
]
DataDir = Annotated[
    Path | None, typer.Option("--data-dir", metavar="FOLDER", help="Folder of everything that is kept.  [default: .raycall]")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
Url = Annotated[
    str | None, typer.Option("--url", metavar="URL", help="Server to ask; by default the one that runs on the data directory.")
]
KeyFile = Annotated[
    Path | None,
    typer.Option(
        "--key-file", metavar="FILE", help="File with the API key; by default RAYCALL_KEY, then the data directory's."
    ),
]


def load_config(
    context: typer.Context, config_file: Path | None, data_dir: Path | None, overrides: dict[str, object] | None = None
) -> config.Config:
    """The configuration of this run: an option after the command wins over the same one before it."""
    common: dict[str, Path | None] = context.find_root().obj or {}
    path = config_file or common.get("config")
    if path is None and os.environ.get("RAYCALL_CONFIG"):
        path = Path(os.environ["RAYCALL_CONFIG"])
    folder = data_dir or common.get("data_dir")
    given: dict[str, object] = dict(overrides or {})
    if folder is not None:
        given["data_dir"] = folder
    return config.load(path, os.environ, given)


def folder_argument(path: str) -> Path:
    """The folder that `path` names, absolute and with its links resolved: one folder has one name, however it is spelled.

    Raises UsageError unless it is a folder that can be read.
    """
    if not path.strip():
        raise UsageError("the folder's path is empty; the working directory is '.'", field="path")
    try:
        found = Path(path).expanduser().resolve(strict=True)
    except (OSError, RuntimeError, ValueError) as error:
        raise UsageError(f"no such folder: {path!r}", field="path") from error
    if not found.is_dir():
        raise UsageError(f"not a folder: {path!r}", field="path")
    if not os.access(found, os.R_OK | os.X_OK):
        raise UsageError(f"folder cannot be read: {path!r}", field="path")
    return found
