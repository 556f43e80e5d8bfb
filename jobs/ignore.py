"""The .gitignore files of a folder that git does not look after."""

# ruff: noqa: PTH118, PTH120 - paths are bytes here, which pathlib does not take
from __future__ import annotations

import os
from pathlib import Path

import pathspec


class IgnoreRules:
    """What the .gitignore files of the entered folders say; a deeper file wins over the ones above it."""

    def __init__(self, root: bytes) -> None:
        self._root = root
        self._specs: dict[bytes, pathspec.GitIgnoreSpec] = {}

    def enter(self, folder: bytes) -> None:
        """Reads the rules of `folder` (relative to the root), if it has any."""
        path = Path(os.fsdecode(os.path.join(self._root, folder, b".gitignore")))
        if not path.is_file() or path.is_symlink():  # git does not follow a link here either
            return
        try:
            lines = path.read_bytes().decode("utf-8", "surrogateescape").splitlines()
        except OSError:
            return
        self._specs[folder] = pathspec.GitIgnoreSpec.from_lines(_usable(lines))

    def ignored(self, relative: bytes, is_folder: bool) -> bool:
        if not self._specs:
            return False
        name = os.fsdecode(relative) + ("/" if is_folder else "")
        base = relative
        while base:
            base = os.path.dirname(base)
            spec = self._specs.get(base)
            if spec is not None:
                said = spec.check_file(name[len(os.fsdecode(base)) + 1 :] if base else name).include
                if said is not None:
                    return bool(said)
        return False


def _usable(lines: list[str]) -> list[str]:
    """The lines that are patterns: one bad line must not cost the others."""
    usable = []
    for line in lines:
        try:
            pathspec.GitIgnoreSpec.from_lines([line])
        except ValueError:
            continue
        usable.append(line)
    return usable
