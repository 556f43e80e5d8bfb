"""The corpus of the comparison, made by the product: real code in ten projects, its rows, their vectors, and questions.

Runs in the product's environment. What the peers need of it is written as JSON lines and .npy (see `benchmarks.peers.data`).
"""

from __future__ import annotations

import json
import random
import shutil
import sysconfig
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.corpus import WORD, make_corpus
from benchmarks.indexes import configured, indexed_nodes
from benchmarks.peers.data import Data
from cluster.embed.node_text import embedding_hash, embedding_text
from cluster.model.nodes import Node
from tests.support.server import raycall

PROJECTS = tuple(f"p{number}" for number in range(10))
QUESTIONS = 4096
WORDS = 5


@dataclass(frozen=True, slots=True)
class Prepared:
    """Where everything is."""

    data: Data
    #: The product's data folder, indexed, and a key for all projects.
    data_dir: Path
    key: str
    rows: int
    dimensions: int
    files: int
    #: Of `raycall index` for all projects together: start of Python, reading, extraction, embedding, building.
    index_seconds: float


def prepare(folder: Path, chunks: int) -> Prepared:
    """Makes `folder` anew with about `chunks` rows."""
    shutil.rmtree(folder, ignore_errors=True)
    corpus, data_dir, data = folder / "corpus", folder / "raycall", Data(folder / "data")
    files = _lay_out(folder, corpus, chunks)
    started = time.perf_counter()
    for project in PROJECTS:
        _raycall(data_dir, "index", "--json", "--project", project, str(corpus / project))
    seconds = time.perf_counter() - started
    made = _raycall(data_dir, "keys", "create", "bench", "--json", *(part for name in PROJECTS for part in ("--project", name)))
    nodes = [node for project in PROJECTS for node in indexed_nodes(data_dir, project)]
    data.folder.mkdir()
    _write_rows(data, data_dir, nodes)
    _write_questions(data, nodes)
    return Prepared(data, data_dir, made["secret"], len(nodes), data.vectors().shape[1], files, round(seconds, 1))


def _raycall(data_dir: Path, *arguments: str) -> Any:
    done = raycall(data_dir, *arguments, timeout=3600.0)
    if done.returncode:
        raise RuntimeError(f"raycall {arguments[0]} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout)


def _lay_out(folder: Path, corpus: Path, chunks: int) -> int:
    """Copies as many files as give `chunks` rows, dealt out to the projects; returns how many."""
    everything = make_corpus(folder / "everything", files=10**6, packages=_all_packages())
    rows, files = 0, 0
    for path in sorted(everything.rglob("*.py"), key=lambda path: (hash_of(path, everything), path)):
        if rows >= chunks:
            break
        target = corpus / PROJECTS[files % len(PROJECTS)] / path.relative_to(everything)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(path, target)
        rows += rows_of(target, corpus)
        files += 1
    shutil.rmtree(everything)
    return files


def _all_packages() -> tuple[str, ...]:
    root = Path(sysconfig.get_paths()["purelib"])
    return tuple(sorted(path.name for path in root.iterdir() if path.is_dir() and "-" not in path.name))


def hash_of(path: Path, root: Path) -> bytes:
    """An order that mixes the packages and is the same everywhere."""
    import hashlib

    return hashlib.blake2b(path.relative_to(root).as_posix().encode()).digest()


def rows_of(path: Path, root: Path) -> int:
    """Rows that the product makes of a file."""
    from jobs.extract import extract_file
    from jobs.model import FileContext

    context = FileContext(
        account="local", project="p", repository="p", path=path.relative_to(root).as_posix(), commit=None, now=0
    )
    return sum(bool(embedding_text(node)) for node in extract_file(path.read_bytes(), context).nodes)


def _write_rows(data: Data, data_dir: Path, nodes: Sequence[Node]) -> None:
    from jobs.setup import reindexer

    hashes = [embedding_hash(node) for node in nodes]
    with reindexer(configured(data_dir)) as indexer:
        known = indexer.builder.vectors.get(indexer.first.identity, sorted(set(hashes)))
        vectors = np.stack([known[key] for key in hashes])
    np.save(data.folder / "rows.npy", vectors)
    lines = ({"id": node.id, "project": node.project, "text": embedding_text(node)} for node in nodes)
    _write_lines(data.folder / "rows.jsonl", lines)


def _write_questions(data: Data, nodes: Sequence[Node]) -> None:
    """Runs of words out of rows; relevant is every row that holds the run."""
    from jobs.setup import embedder_for

    words = [WORD.findall(embedding_text(node)) for node in nodes]
    rng = random.Random(7)
    asked: dict[tuple[str, ...], str] = {}
    while len(asked) < QUESTIONS:
        number = rng.randrange(len(nodes))
        if len(words[number]) >= WORDS:
            start = rng.randrange(len(words[number]) - WORDS + 1)
            asked.setdefault(tuple(words[number][start : start + WORDS]), nodes[number].project)
    relevant: dict[tuple[str, ...], dict[int, None]] = {run: {} for run in asked}
    for number, found in enumerate(words):
        for start in range(len(found) - WORDS + 1):
            run = tuple(found[start : start + WORDS])
            if run in relevant:
                relevant[run][number] = None
    lines = ({"text": " ".join(run), "project": project, "relevant": list(relevant[run])} for run, project in asked.items())
    _write_lines(data.folder / "questions.jsonl", lines)
    embedder = embedder_for(configured(data.folder), "static", threads=2, timeout_s=30.0)
    np.save(data.folder / "questions.npy", embedder.embed_query([" ".join(run) for run in asked]).astype(np.float32))


def _write_lines(path: Path, lines: Iterable[dict[str, Any]]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
