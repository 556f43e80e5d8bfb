"""Lexical indexes over given nodes, searched together as a router searches its partitions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from operator import add
from pathlib import Path

import numpy as np
import numpy.typing as npt

from cluster.index.analysis import Analysis, analysis, choose_terms, countable_terms
from cluster.index.lexical import LexicalIndex, build_lexical
from cluster.index.rows import rows_table
from cluster.model.guard import All, Guard
from cluster.model.nodes import Node
from cluster.model.query import TermStatistics

EVERYTHING = All(())
K1, B = analysis().k1, analysis().b


def analyse(text: str) -> list[str]:
    """The distinct terms of a question."""
    return list(analysis().query_terms(text))


def row_terms(node: Node) -> dict[str, int]:
    """The terms of a row and how often each counts."""
    return analysis().row_terms(node)


@dataclass(frozen=True, slots=True)
class Partition:
    """An open index and the nodes that are its rows."""

    index: LexicalIndex
    nodes: Sequence[Node]
    tokens: npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Ranked:
    """Merged hits, best first (score descending, id ascending), and the matches in all partitions."""

    ids: tuple[str, ...]
    scores: tuple[float, ...]
    matched: int

    def as_map(self) -> dict[str, float]:
        """id -> score."""
        return dict(zip(self.ids, self.scores, strict=True))


@contextmanager
def opened(folder: Path, *corpora: Sequence[Node], reading: Analysis | None = None) -> Iterator[list[Partition]]:
    """Builds and opens one index for each list of nodes, in new folders below `folder`."""
    partitions: list[Partition] = []
    try:
        for number, nodes in enumerate(corpora):
            place = folder / f"{len(list(folder.iterdir()))}-{number}"
            tokens = build_lexical(place, nodes, reading)
            partitions.append(Partition(LexicalIndex(place, rows_table(nodes, tokens), reading), nodes, tokens))
        yield partitions
    finally:
        for partition in partitions:
            partition.index.close()


def statistics(partitions: Sequence[Partition], terms: Sequence[str], guard: Guard) -> TermStatistics:
    """Summed over the partitions."""
    return reduce(add, (partition.index.statistics(terms, guard) for partition in partitions))


def search(partitions: Sequence[Partition], text: str, guard: Guard = EVERYTHING, k: int = 10_000) -> Ranked:
    """As a router does it: analyse, sum the statistics, search each partition with the sum, merge."""
    terms, _ = countable_terms(analyse(text))
    total = statistics(partitions, terms, guard)
    chosen, _ = choose_terms(terms, total)
    merged: list[tuple[float, str]] = []
    matched = 0
    for partition in partitions:
        rows, scores, count = partition.index.search(chosen, guard, total, k)
        assert rows.dtype == np.int64
        assert scores.dtype == np.float64
        assert len(rows) == len(scores) == min(k, count)
        assert [(-score, row) for score, row in zip(scores, rows, strict=True)] == sorted(zip(-scores, rows, strict=True))
        merged += [(-score, partition.nodes[row].id) for score, row in zip(scores.tolist(), rows.tolist(), strict=True)]
        matched += count
    merged = sorted(merged)[:k]
    return Ranked(tuple(node_id for _, node_id in merged), tuple(-score for score, _ in merged), matched)
