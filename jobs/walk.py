"""Which files of a folder are to be indexed, and for each other one the reason why not.

In a git work tree the list is git's own: tracked files and untracked ones that are not ignored. Elsewhere the folder is walked
and its .gitignore files are honoured. Links are never followed. Submodules, nested repositories and nested work trees are
left out by name: each is a project of its own. Paths are bytes until they have been made printable here.
"""

# ruff: noqa: PTH114, PTH118, PTH119, PTH120 - paths are bytes here, which pathlib does not take
from __future__ import annotations

import os
import re
import stat
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cluster.errors import UsageError
from cluster.model.ids import NAME_PATTERN, derived_id
from jobs import git, refuse
from jobs.ignore import IgnoreRules
from jobs.refuse import Limits, Skip


@dataclass(frozen=True, slots=True)
class WalkedFile:
    """A regular file that may be indexed, by its name and size."""

    #: Path inside the root, "/" between segments, as the file system spells it.
    relative: bytes
    #: The same as text; bytes that are not UTF-8 are written as \\xNN.
    path: str
    #: Bytes.
    size: int


@dataclass(frozen=True, slots=True)
class Walk:
    """What is in a folder. Files and skips are sorted by path."""

    root: Path
    files: tuple[WalkedFile, ...]
    skipped: tuple[Skip, ...]
    #: Checked-out commit; None outside git and before the first commit.
    commit: str | None
    warnings: tuple[str, ...] = ()


def walk(root: Path, limits: Limits = Limits(), exclude: tuple[Path, ...] = ()) -> Walk:  # noqa: B008 - frozen
    """Lists `root`, without the folders in `exclude`.

    Raises UsageError for a root that is no readable folder, and for a bare repository, which has no files to read.
    """
    root = resolved_root(root)
    tree = git.work_tree(root)
    listing = _Listing(root, limits, exclude)
    warnings = [tree.problem] if tree.problem else []
    if tree.usable:
        listed = git.list_files(root)
        warnings += listed.warnings
        listing.take_git(listed)
    else:
        listing.take_folder()
    odd = sum(1 for file in listing.files.values() if file.path.encode() != file.relative)
    if odd:
        warnings.append(f"{odd} file name(s) are not UTF-8 and are shown with \\xNN in place of those bytes")
    return Walk(
        root=root,
        files=tuple(file for _, file in sorted(listing.files.items())),
        skipped=tuple(sorted(listing.skipped.values(), key=lambda skip: (skip.path, skip.reason))),
        commit=tree.commit if tree.usable else None,
        warnings=tuple(warnings),
    )


def resolved_root(root: Path) -> Path:
    """The one spelling of a folder: absolute, without links. Raises UsageError if it is no readable folder."""
    try:
        found = root.expanduser().resolve(strict=True)
        if not found.is_dir():
            raise UsageError(f"not a folder: {printable(os.fsencode(root))}", field="path")
        os.scandir(found).close()
    except (OSError, RuntimeError, ValueError) as error:  # RuntimeError: a loop of links, or an unknown ~user
        raise UsageError(f"cannot read the folder {printable(os.fsencode(root))}: {error}", field="path") from error
    return found


def default_project(root: Path) -> str:
    """The project's name when none is given: the folder's own name, whatever way the folder is spelled.

    A name that is not legal for a project is made so, with a hash behind it, so that "a b" and "a;b" stay different.
    """
    name = os.fsencode(resolved_root(root).name)
    plain = name.decode("ascii", "replace")
    if NAME_PATTERN.fullmatch(plain):
        return plain
    folded = unicodedata.normalize("NFKD", printable(name)).encode("ascii", "ignore").decode()
    words = re.sub(r"[^A-Za-z0-9_]+", "-", folded).strip("-")[:80]
    return f"{words or 'project'}-{derived_id(printable(name))[:8]}"


def printable(name: bytes) -> str:
    """`name` as text that can be stored and shown; bytes that are not UTF-8 are written as \\xNN."""
    return name.decode("utf-8", "backslashreplace")


class _Listing:
    def __init__(self, root: Path, limits: Limits, exclude: tuple[Path, ...]) -> None:
        self.files: dict[bytes, WalkedFile] = {}
        self.skipped: dict[bytes, Skip] = {}
        self._root = os.fsencode(root)
        self._limits = limits
        self._excluded = {os.fsencode(path.expanduser().resolve()) for path in exclude}
        self._folders: dict[bytes, tuple[bytes, str] | None] = {b"": None}
        self._paths: set[str] = set()

    # --- git -------------------------------------------------------------------------------------------------------------

    def take_git(self, listed: git.Listed) -> None:
        for gitlink in listed.submodules:
            self._skip(gitlink, "submodule")
        for relative in listed.files:
            inner = relative.endswith(b"/")
            name = relative.rstrip(b"/")
            refused = self._folder_refusal(name if inner else os.path.dirname(name))
            if refused is not None:
                self._skip(*refused)
            elif inner:
                self._skip(name, "nested repository")
            else:
                self._take(name)

    def _folder_refusal(self, folder: bytes) -> tuple[bytes, str] | None:
        """The outermost folder on the way to `folder` that is not entered, and why."""
        todo = []
        while folder not in self._folders:
            todo.append(folder)
            folder = os.path.dirname(folder)
        refused = self._folders[folder]
        for inner in reversed(todo):
            if refused is None:
                reason = self._refuse_folder(inner)
                refused = (inner, reason) if reason else None
            self._folders[inner] = refused
        return refused

    # --- plain folder ----------------------------------------------------------------------------------------------------

    def take_folder(self) -> None:
        rules = IgnoreRules(self._root)
        folders = [b""]
        while folders:
            folder = folders.pop()
            try:
                entries = sorted(os.scandir(os.path.join(self._root, folder)), key=lambda entry: entry.name)
            except OSError as error:
                self._skip(folder, f"unreadable: {error.strerror}")
                continue
            rules.enter(folder)
            folders.extend(reversed([*self._entries(folder, entries, rules)]))

    def _entries(self, folder: bytes, entries: list[os.DirEntry[bytes]], rules: IgnoreRules) -> Iterator[bytes]:
        """Takes the files of `folder`, and yields its folders that are to be entered."""
        for entry in entries:
            relative = os.path.join(folder, entry.name)
            inner = entry.is_dir(follow_symlinks=False)
            if entry.name == b".git" or rules.ignored(relative, inner):
                continue
            if not inner:
                self._take(relative)
            elif reason := self._refuse_folder(relative):
                self._skip(relative, reason)
            else:
                yield relative

    # --- both ------------------------------------------------------------------------------------------------------------

    def _refuse_folder(self, relative: bytes) -> str | None:
        full = os.path.join(self._root, relative)
        if os.path.islink(full):
            return "symlink"
        if full in self._excluded:
            return "data folder"
        if os.path.basename(relative) in refuse.FOLDERS or os.path.lexists(os.path.join(full, b"pyvenv.cfg")):
            return "dependencies or cache"
        return "nested repository" if os.path.lexists(os.path.join(full, b".git")) else None

    def _take(self, relative: bytes) -> None:
        try:
            found = os.lstat(os.path.join(self._root, relative))
        except (FileNotFoundError, NotADirectoryError):
            return  # tracked by git, gone from the folder
        except OSError as error:
            self._skip(relative, f"unreadable: {error.strerror}")
            return
        path = printable(relative)
        reason = _refuse_kind(found.st_mode) or refuse.by_name_and_size(path, found.st_size, self._limits)
        if reason is None and path in self._paths:
            reason = "another file has the same printable name"
        if reason is not None:
            self._skip(relative, reason)
            return
        self._paths.add(path)
        self.files[relative] = WalkedFile(relative=relative, path=path, size=found.st_size)

    def _skip(self, relative: bytes, reason: str) -> None:
        self.skipped.setdefault(relative, Skip(path=printable(relative) or ".", reason=reason))


def _refuse_kind(mode: int) -> str | None:
    if stat.S_ISLNK(mode):
        return "symlink"
    if stat.S_ISDIR(mode):
        return "submodule"  # git tracks it as one thing
    return None if stat.S_ISREG(mode) else "not a regular file"
