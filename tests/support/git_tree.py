"""A git repository in a temporary folder, driven by the real git."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

_IDENTITY = (
    "-c",
    "user.name=t",
    "-c",
    "user.email=t@example.org",
    "-c",
    "commit.gpgsign=false",
    "-c",
    "init.defaultBranch=main",
)


def git(folder: Path, *arguments: str) -> str:
    """Runs git in `folder`, untouched by the caller's own configuration; returns what it said."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment |= {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}
    command = ["git", *_IDENTITY, "-c", "protocol.file.allow=always", *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, check=True)
    return done.stdout.decode()


def write(folder: Path, files: dict[str, str | bytes]) -> None:
    """Writes each file below `folder`."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)


def commit(folder: Path, files: dict[str, str | bytes] | None = None) -> str:
    """Writes `files`, commits everything, and returns the new commit; makes the repository if there is none."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / ".git").exists():
        git(folder, "init", "-q")
    write(folder, files or {})
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "c", "--allow-empty")
    return git(folder, "rev-parse", "HEAD").strip()
