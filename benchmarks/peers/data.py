"""What every system is given: rows with their vectors, and questions with theirs. Needs numpy alone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

#: Hits of every question.
K = 10


@dataclass(frozen=True, slots=True)
class Row:
    """One row; its number is its place in the corpus."""

    id: str
    project: str
    text: str


@dataclass(frozen=True, slots=True)
class Question:
    """Five neighbouring words of a row, the project of that row, and all rows that hold those words in that order."""

    text: str
    project: str
    relevant: Sequence[int]


@dataclass(frozen=True, slots=True)
class Data:
    """A folder that the product's environment wrote."""

    folder: Path

    def rows(self) -> list[Row]:
        """In their order."""
        return [Row(**line) for line in self._lines("rows.jsonl")]

    def questions(self) -> list[Question]:
        """In their order."""
        return [Question(**line) for line in self._lines("questions.jsonl")]

    def vectors(self) -> npt.NDArray[np.float32]:
        """Unit vectors of the rows, shape (rows, dimensions), mapped."""
        found: npt.NDArray[np.float32] = np.load(self.folder / "rows.npy", mmap_mode="r")
        return found

    def question_vectors(self) -> npt.NDArray[np.float32]:
        """Unit vectors of the questions, shape (questions, dimensions)."""
        found: npt.NDArray[np.float32] = np.load(self.folder / "questions.npy")
        return found

    def _lines(self, name: str) -> Iterator[dict[str, Any]]:
        with (self.folder / name).open(encoding="utf-8") as file:
            yield from map(json.loads, file)
