"""What is asked of git: which files, which commit. Read-only, no shell, nothing of the repository is executed."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cluster.errors import UsageError

#: Seconds for one call; the longest lists a work tree.
_TIMEOUT = 300.0
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_SUBMODULE_MODE = b"160000"


@dataclass(frozen=True, slots=True)
class WorkTree:
    """Whether git can list a folder."""

    usable: bool
    commit: str | None = None
    #: Why git could not be asked although it looks like a repository.
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Listed:
    """Paths inside the folder. A file that ends with "/" is a repository of its own."""

    files: tuple[bytes, ...]
    submodules: tuple[bytes, ...]
    #: What git said it could not read.
    warnings: tuple[str, ...] = ()


def work_tree(root: Path) -> WorkTree:
    """How git sees the folder `root`. Raises UsageError for a bare repository, and for a folder inside .git."""
    if not _may_be_repository(root):
        return WorkTree(usable=False)
    try:
        kind = _git(root, "rev-parse", "--is-inside-work-tree", "--is-bare-repository", "--show-prefix")
    except FileNotFoundError:
        looks = (root / ".git").exists()
        return WorkTree(usable=False, problem="git is not installed; read as a plain folder" if looks else None)
    if kind.returncode != 0:
        return WorkTree(usable=False, problem=_problem(root, kind.stderr))
    answers = os.fsdecode(kind.stdout).split("\n")
    if answers[1] == "true" and answers[0] != "true":
        raise UsageError("this is a bare repository, which has no files to index: give a clone or a work tree", field="path")
    if answers[0] != "true":
        raise UsageError("this folder is inside a .git folder: give the repository's own folder", field="path")
    if answers[2] and _git(root, "check-ignore", "-q", "--", ".").returncode == 0:
        return WorkTree(usable=False)  # the repository around it does not want it, the caller does
    return WorkTree(usable=True, commit=_head(root))


def list_files(root: Path) -> Listed:
    """Tracked files and untracked files that are not ignored, below `root`; a file may be gone from the disk."""
    tracked = _must(root, "ls-files", "-z", "--cached", "--stage", "--")
    files: dict[bytes, None] = {}
    submodules = []
    for line in tracked.stdout.split(b"\0"):
        mode, _, path = line.partition(b"\t")
        if mode.startswith(_SUBMODULE_MODE):
            submodules.append(path)
        elif path:
            files[path] = None
    others = _must(root, "ls-files", "-z", "--others", "--exclude-standard", "--")
    files |= dict.fromkeys(path for path in others.stdout.split(b"\0") if path)
    return Listed(files=tuple(sorted(files)), submodules=tuple(submodules), warnings=tuple(_lines(others.stderr)))


def lost_commits(root: Path, commits: Iterable[str]) -> set[str]:
    """Those of `commits` that the repository of `root` does not hold (any more); all of them where there is none."""
    asked = sorted(set(commits))
    sound = [commit for commit in asked if _COMMIT.fullmatch(commit)]
    if not sound:
        return set(asked)
    try:
        answer = _git(root, "cat-file", "--batch-check=%(objectname) %(objecttype)", stdin="\n".join(sound).encode() + b"\n")
    except FileNotFoundError:
        return set(asked)
    present = {line.split(" ")[0] for line in answer.stdout.decode("ascii", "replace").split("\n") if line.endswith(" commit")}
    return set(asked) - present


def _may_be_repository(root: Path) -> bool:
    """Whether asking git is worth starting a process: something around `root` looks like a repository, bare or not."""
    return any((folder / ".git").exists() or (folder / "HEAD").exists() for folder in (root, *root.parents))


def _head(root: Path) -> str | None:
    answer = _git(root, "rev-parse", "--verify", "--quiet", "HEAD^{commit}")
    commit = answer.stdout.decode("ascii", "replace").strip()
    return commit if answer.returncode == 0 and _COMMIT.fullmatch(commit) else None


def _problem(root: Path, stderr: bytes) -> str | None:
    first = next(iter(_lines(stderr)), "no reason given")
    if "not a git repository" in first and not (root / ".git").exists():
        return None
    return f"git does not read this folder ({first}); read as a plain folder"


def _must(root: Path, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    answer = _git(root, *arguments)
    if answer.returncode != 0:
        raise UsageError(f"git could not list the files: {'; '.join(_lines(answer.stderr))}", field="path")
    return answer


def _lines(stderr: bytes) -> list[str]:
    return [line for line in stderr.decode("utf-8", "backslashreplace").split("\n") if line.strip()]


def _git(root: Path, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    # A repository may configure a program as its file system monitor; indexing must not run it. The caller's own GIT_*
    # variables (set inside a hook, for example) would point git at another repository.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment |= {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0", "GIT_NO_LAZY_FETCH": "1", "LC_ALL": "C"}
    command = ["git", "-c", "core.fsmonitor=false", "-c", "core.untrackedCache=false", *arguments]
    try:
        return subprocess.run(
            command, cwd=root, env=environment, input=stdin, capture_output=True, check=False, timeout=_TIMEOUT
        )
    except subprocess.TimeoutExpired as error:
        raise UsageError(f"git {arguments[0]} did not answer within {_TIMEOUT:.0f} s", field="path") from error
