"""Merging ranked lists: any split of the same hits gives the same list."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from cluster.model.query import LegAnswer


def merge_hits(parts: Iterable[Iterable[tuple[str, float]]], k: int) -> list[tuple[str, float]]:
    """The k best of all (id, score) parts: score descending, then id ascending; an id met twice keeps its best score."""
    best: dict[str, float] = {}
    for part in parts:
        for node_id, score in part:
            if node_id not in best or score > best[node_id]:
                best[node_id] = score
    return sorted(best.items(), key=lambda hit: (-hit[1], hit[0]))[:k]


def merge_answers(answers: Iterable[LegAnswer], k: int) -> LegAnswer:
    """One leg's answer from its shards' answers. Counts and failures add up; `matched` is None unless every shard counted."""
    parts = list(answers)
    if len(parts) == 1:
        return parts[0]
    hits = merge_hits((zip(part.ids, part.scores.tolist(), strict=True) for part in parts), k)
    counts = [part.matched for part in parts]
    return LegAnswer(
        ids=tuple(node_id for node_id, _ in hits),
        scores=np.array([score for _, score in hits], dtype=np.float64),
        matched=None if any(count is None for count in counts) else sum(count or 0 for count in counts),
        asked=sum(part.asked for part in parts),
        answered=sum(part.answered for part in parts),
        failures=tuple(failure for part in parts for failure in part.failures),
        over_bound=tuple(sorted({project for part in parts for project in part.over_bound})),
        left_out=tuple(sorted({project for part in parts for project in part.left_out})),
        moved=any(part.moved for part in parts),
        explain=next((part.explain for part in parts if part.explain), {}),
    )
