"""`python -m benchmarks.soak`: whether shards that answer for long keep their memory.

One process holds a lexical and a vector shard over a small real index and asks both many different questions for changing
callers. Printed is the resident memory after a warm-up and at each step after it; the exit code is 1 when the last is more than
5 % above the first.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.corpus import make_corpus, questions
from benchmarks.indexes import AGENTS, configured, open_shards, principals, publish, tagged
from benchmarks.material import PROJECT
from cluster.guards import search_guard
from cluster.model.guard import Guard
from cluster.model.nodes import Node
from cluster.model.query import LexicalQuery, Statistics, VectorQuery

OUT = Path(__file__).parent / "out"
FILES = 170
#: Questions of one call to a shard.
BATCH = 50
LIMIT = 1.05
_LABELS = ("Chunk", "Symbol", "Document", "Function", "Class", "Method")


def extracted(folder: Path) -> list[Node]:
    """The nodes that the product's extractor gives for the files below `folder`."""
    from jobs.extract import extract_file
    from jobs.model import FileContext

    nodes: list[Node] = []
    for path in sorted(folder.rglob("*.py")):
        context = FileContext(
            account="local", project=PROJECT, repository=PROJECT, path=path.relative_to(folder).as_posix(), commit=None, now=0
        )
        nodes += extract_file(path.read_bytes(), context).nodes
    return nodes


def callers(account: str, rng: random.Random) -> Iterator[Guard]:
    """Guards without end: the same few callers, who ask for ever other labels, and callers who come once."""
    known = principals(account)
    for number in itertools.count():
        caller = rng.choice(known)
        if number % 3 == 0:
            yield search_guard(caller, {PROJECT: ""})
        elif number % 3 == 1:
            yield search_guard(caller, {PROJECT: ""}, rng.sample(_LABELS, rng.randint(1, 4)))
        else:
            yield search_guard(caller, [PROJECT, f"absent-{number}"], [*rng.sample(_LABELS, 2), f"label-{number}"])


def resident_mb() -> float:
    """Resident memory of this process, in MB."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, 1)


class Soak:
    """Both shards, and the questions to them."""

    def __init__(self, folder: Path, count: int) -> None:
        nodes = tagged(extracted(make_corpus(OUT / f"corpus-{FILES}", FILES)))
        config = configured(folder)
        manifest = publish(config, nodes)
        self.rows = manifest.rows
        self._lexical, self._vector = open_shards(config)
        self._pins, self._identity = {PROJECT: manifest.generation}, manifest.identity
        texts = [text for node in nodes if (text := node.text.get("content"))]
        self._questions = _batches(questions(texts, count))
        self._rng = random.Random(11)
        self._vectors = np.random.default_rng(11)
        self._guards = callers(config.account, self._rng)

    def ask(self) -> int:
        """One batch of questions to both shards; returns how many. An answer with a failure is an error."""
        texts = next(self._questions)
        guards = [next(self._guards) for _ in texts]
        k = self._rng.choice((1, 10, 100))
        lexical = [
            LexicalQuery(text=text, guard=guard, pins=self._pins, k=k, statistics_mode=self._rng.choice(tuple(Statistics)))
            for text, guard in zip(texts, guards, strict=True)
        ]
        rows = self._vectors.standard_normal((len(texts), self._identity.dimensions), dtype=np.float32)
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        vector = [
            VectorQuery(vector=row, identity=self._identity, guard=guard, pins=self._pins, k=k)
            for row, guard in zip(rows, guards, strict=True)
        ]
        answers: list[Any] = [*self._lexical.search(lexical), *self._vector.search(vector)]
        assert not any(answer.failures for answer in answers)
        return len(texts)


def _batches(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    return (texts[start : start + BATCH] for start in range(0, len(texts), BATCH))


def main() -> int:
    """Runs the soak; 1 when memory grew."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__)
    parser.add_argument("--queries", type=int, default=100_000, help="questions, each to both legs")
    parser.add_argument("--step", type=int, default=10_000, help="questions of the warm-up, and between two looks")
    options = parser.parse_args()
    OUT.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        soak = Soak(Path(folder), options.queries)
        sys.stdout.write(f"{soak.rows} rows, {len(AGENTS)} agents\n")
        sizes, asked, started = [], 0, time.monotonic()
        while asked < options.queries:
            asked += soak.ask()
            if asked % options.step == 0:
                sizes.append(resident_mb())
                sys.stdout.write(f"{asked:8d} questions  {sizes[-1]:8.1f} MB  {time.monotonic() - started:7.1f} s\n")
                sys.stdout.flush()
    growth = sizes[-1] / sizes[0]
    sys.stdout.write(f"resident memory grew to {growth:.4f} of what it was after the warm-up (at most {LIMIT} is allowed)\n")
    return 1 if growth > LIMIT else 0


if __name__ == "__main__":
    sys.exit(main())
