"""Chroma: `python -m benchmarks.peers.chroma DATA URL` loads the corpus into a running server, with its own client.

Questions then go over HTTP from the same bare client as those to Raycall, and their bodies hold the vectors.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from benchmarks import worker
from benchmarks.peers.data import Data, K

COLLECTION = "rows"


def load(data: Data, url: str) -> dict[str, Any]:
    """Adds everything in the largest batches that the server takes."""
    import chromadb

    rows, vectors = data.rows(), data.vectors()
    parts = urlsplit(url)
    client = chromadb.HttpClient(host=parts.hostname or "", port=parts.port or 0)
    started = time.perf_counter()
    collection = client.create_collection(COLLECTION, configuration={"hnsw": {"space": "cosine"}}, embedding_function=None)
    size = client.get_max_batch_size()
    for start in range(0, len(rows), size):
        batch = rows[start : start + size]
        collection.add(
            ids=[str(number) for number in range(start, start + len(batch))],
            embeddings=vectors[start : start + size],
            documents=[row.text for row in batch],
            metadatas=[{"project": row.project} for row in batch],
        )
    found = collection.count()
    assert found == len(rows), found
    path = f"/api/v2/tenants/{client.tenant}/databases/{client.database}/collections/{collection.id}/query"
    return {"seconds": round(time.perf_counter() - started, 2), "path": path}


def body(vector: list[float], project: str | None) -> Mapping[str, Any]:
    """A question; documents come back with the hits, as they do from the others."""
    asked = {"query_embeddings": [vector], "n_results": K, "include": ["documents", "distances"]}
    return asked if project is None else {**asked, "where": {"project": project}}


def main() -> None:
    data, url = Data(Path(sys.argv[1])), sys.argv[2]
    worker.serve({}, {"load": lambda: load(data, url)})


if __name__ == "__main__":
    main()
