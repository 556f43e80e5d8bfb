"""What is measured on: real source code that is on every machine that runs this, and questions cut out of it."""

from __future__ import annotations

import random
import re
import shutil
import sysconfig
from collections.abc import Iterator
from pathlib import Path

#: Installed packages whose Python sources are the corpus; all are in the lock file, so it is the same everywhere.
PACKAGES = ("ray", "hypothesis", "aiohttp", "fastapi", "rich", "pydantic", "networkx", "mypy", "google")
WORD = re.compile(r"[A-Za-z_][A-Za-z_0-9]{3,}")


def make_corpus(folder: Path, files: int) -> Path:
    """Copies the first `files` Python files of PACKAGES, by name, into `folder`; does nothing when it is there already."""
    if folder.is_dir():
        return folder
    part = folder.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    root = Path(sysconfig.get_paths()["purelib"])
    for number, path in enumerate(_sources(root)):
        if number == files:
            break
        target = part / path.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    part.rename(folder)
    return folder


def _sources(root: Path) -> Iterator[Path]:
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            if path.stat().st_size > 200:
                yield path


def questions(texts: list[str], count: int, words: int = 5) -> list[str]:
    """`count` different questions of `words` words, each out of one text; the same for the same texts."""
    rng = random.Random(7)
    found: dict[str, None] = {}
    while len(found) < count:
        known = WORD.findall(rng.choice(texts))
        if len(known) >= words:
            start = rng.randrange(len(known) - words + 1)
            found[" ".join(known[start : start + words])] = None
    return list(found)
