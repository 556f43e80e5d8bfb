"""How good answers are: the vectors' recall against an exact scan, and where known rows stand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.peers.data import Data, K

#: Cosines closer than this are the same: many rows of real code hold the same text.
_SAME = 1e-5


class Quality:
    """Judges lists of row numbers."""

    def __init__(self, data: Data) -> None:
        self._vectors = np.ascontiguousarray(data.vectors())
        self._asked = data.question_vectors()
        self._projects = np.array([row.project for row in data.rows()])
        self.questions = data.questions()

    def of(self, leg: str, found: Sequence[Sequence[int]], filtered: bool) -> dict[str, Any]:
        """`recall` for vectors; `ndcg` for words and both together; and how many rows came that the filter excludes."""
        wrong = sum(
            self._projects[row] != question.project
            for rows, question in zip(found, self.questions, strict=False)
            for row in rows
            if filtered
        )
        name, values = ("recall", self._recalls) if leg == "vector" else ("ndcg", self._gains)
        return {
            f"{name}@{K}": round(float(np.mean(values(found, filtered))), 4),
            "excluded_rows": int(wrong),
            "judged": len(found),
        }

    def _recalls(self, found: Sequence[Sequence[int]], filtered: bool) -> list[float]:
        """A hit counts when its cosine, computed exactly, is not below that of the K-th best row."""
        recalls = []
        for number, rows in enumerate(found):
            cosines = self._vectors @ self._asked[number]
            if filtered:
                cosines = np.where(self._projects == self.questions[number].project, cosines, -2.0)
            kth = np.partition(cosines, -K)[-K]
            recalls.append(sum(bool(cosines[row] >= kth - _SAME) for row in dict.fromkeys(rows)) / K)
        return recalls

    def _gains(self, found: Sequence[Sequence[int]], filtered: bool) -> list[float]:
        """nDCG, where each row that holds the question's words in their order is relevant, and no other."""
        values = []
        for rows, question in zip(found, self.questions, strict=False):
            relevant = set(question.relevant)
            if filtered:
                relevant = {row for row in relevant if self._projects[row] == question.project}
            gain = sum(1 / math.log2(rank + 2) for rank, row in enumerate(rows[:K]) if row in relevant)
            values.append(gain / sum(1 / math.log2(rank + 2) for rank in range(min(K, len(relevant)))))
        return values
