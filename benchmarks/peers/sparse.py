"""bm25s with its faster backend, a stemmer and its stop words, as its documentation shows it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.peers.data import Data, K


class Engine:
    """A saved index. A filter is its `weight_mask`: 1 for allowed rows, 0 for the others."""

    legs = ("lexical",)

    def __init__(self) -> None:
        import Stemmer

        self._stemmer = Stemmer.Stemmer("english")
        self._retriever: Any = None
        self._masks: dict[str, npt.NDArray[np.float32]] = {}
        self._texts: list[str] = []

    def build(self, data: Data, folder: Path) -> None:
        import bm25s

        rows = data.rows()
        tokens = bm25s.tokenize([row.text for row in rows], stopwords="en", stemmer=self._stemmer, show_progress=False)
        retriever = bm25s.BM25(backend="numba")
        retriever.index(tokens, show_progress=False)
        retriever.save(str(folder))
        kept = {"projects": [row.project for row in rows], "texts": [row.text for row in rows]}
        (folder / "rows.json").write_text(json.dumps(kept))

    def open(self, folder: Path) -> None:
        import bm25s

        self._retriever = bm25s.BM25.load(str(folder), mmap=False)
        kept = json.loads((folder / "rows.json").read_text())
        projects, self._texts = np.array(kept["projects"]), kept["texts"]
        self._masks = {name: (projects == name).astype(np.float32) for name in set(kept["projects"])}

    def ask(self, leg: str, text: str, vector: npt.NDArray[np.float32], project: str | None) -> list[int]:
        import bm25s

        del leg, vector
        tokens = bm25s.tokenize([text], stopwords="en", stemmer=self._stemmer, show_progress=False)
        mask = None if project is None else self._masks[project]
        rows, scores = self._retriever.retrieve(tokens, k=K, show_progress=False, weight_mask=mask)
        found = [int(row) for row, score in zip(rows[0], scores[0], strict=True) if score > 0]
        assert all(self._texts[row] for row in found)
        return found
