"""What is measured on: real source code that is on every machine that runs this, and questions cut out of it."""

from __future__ import annotations

import hashlib
import random
import re
import shutil
import sqlite3
import sysconfig
from collections.abc import Sequence
from pathlib import Path

#: Installed packages whose Python sources are the corpus; all are in the lock file, so it is the same everywhere.
PACKAGES = ("ray", "hypothesis", "aiohttp", "fastapi", "rich", "pydantic", "mypy", "google")
#: Smaller files are empty package markers.
LEAST_BYTES = 200
WORD = re.compile(r"[A-Za-z_][A-Za-z_0-9]{3,}")


def make_corpus(folder: Path, files: int, packages: Sequence[str] = PACKAGES) -> Path:
    """Copies `files` Python files of `packages` into `folder`, a mix of all of them; does nothing when it is there already."""
    if folder.is_dir():
        return folder
    part = folder.with_suffix(".part")
    shutil.rmtree(part, ignore_errors=True)
    root = Path(sysconfig.get_paths()["purelib"])
    for path in _sources(root, packages)[:files]:
        target = part / path.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    part.rename(folder)
    return folder


def _sources(root: Path, packages: Sequence[str]) -> list[Path]:
    """All candidates in an order that is the same everywhere and mixes the packages."""
    found = [path for package in packages for path in (root / package).rglob("*.py") if path.stat().st_size > LEAST_BYTES]
    return sorted(found, key=lambda path: hashlib.blake2b(path.relative_to(root).as_posix().encode()).digest())


def stored_texts(data_dir: Path) -> list[str]:
    """The content of every row that has one, in the order of the ids."""
    database = sqlite3.connect(f"file:{data_dir / 'graph.sqlite'}?mode=ro", uri=True)
    try:
        rows = database.execute("SELECT json_extract(text, '$.content') FROM nodes WHERE deleted_at IS NULL ORDER BY id")
        return [text for (text,) in rows if text]
    finally:
        database.close()


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
