"""Qdrant's local mode: the client library alone, which keeps the points in SQLite and scans them with numpy."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.peers.data import Data, K

_BATCH = 1000


class Engine:
    """One collection with the project and the text as payload."""

    legs = ("vector",)

    def __init__(self) -> None:
        self._client: Any = None

    def build(self, data: Data, folder: Path) -> None:
        from qdrant_client import QdrantClient, models

        rows, vectors = data.rows(), data.vectors()
        warnings.simplefilter("ignore")  # of its advice not to keep more than 20,000 points in this mode
        client = QdrantClient(path=str(folder))
        size = models.VectorParams(size=vectors.shape[1], distance=models.Distance.COSINE)
        client.create_collection("rows", vectors_config=size)
        for start in range(0, len(rows), _BATCH):
            numbers = range(start, min(start + _BATCH, len(rows)))
            points = models.Batch(
                ids=list(numbers),
                vectors=vectors[start : start + _BATCH].tolist(),
                payloads=[{"project": rows[number].project, "text": rows[number].text} for number in numbers],
            )
            client.upsert("rows", points)
        client.close()

    def open(self, folder: Path) -> None:
        from qdrant_client import QdrantClient

        warnings.simplefilter("ignore")
        self._client = QdrantClient(path=str(folder), force_disable_check_same_thread=True)

    def ask(self, leg: str, text: str, vector: npt.NDArray[np.float32], project: str | None) -> list[int]:
        from qdrant_client import models

        del leg, text
        only = None
        if project is not None:
            only = models.Filter(must=[models.FieldCondition(key="project", match=models.MatchValue(value=project))])
        found = self._client.query_points("rows", query=vector, limit=K, query_filter=only, with_payload=True)
        return [point.id for point in found.points]
