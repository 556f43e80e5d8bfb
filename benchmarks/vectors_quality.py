"""What a precision costs in the answers: nDCG@10 of BM25 and vectors, fused as the product does it, on judged collections.

A collection is a folder with corpus.jsonl (`_id`, `title`, `text`), queries.jsonl (`_id`, `text`) and qrels.tsv (query, row,
grade, under a header). Every vector index has a graph here, however small it is.
"""

from __future__ import annotations

import csv
import json
import math
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.vectors_material import OUT, Floats
from cluster.embed.batching import embed_cached
from cluster.embed.cache import SqliteVectorCache
from cluster.embed.node_text import embedding_hash, embedding_text
from cluster.embed.sentence import SentenceEmbedder
from cluster.index.vector import VectorIndex, write_vectors
from cluster.index.vector_file import Precision
from cluster.model.nodes import Node, Store
from cluster.model.query import LegAnswer
from serve.fusion import fuse

#: Hits of each leg, and the cut of the measure.
CANDIDATES = 100
CUT = 10


@dataclass(frozen=True, slots=True)
class Collection:
    """Documents as nodes, queries, and grades by query and document."""

    nodes: list[Node]
    queries: dict[str, str]
    grades: dict[str, dict[str, int]]


def measure_quality(folders: Sequence[Path]) -> list[dict[str, Any]]:
    """One entry a collection: nDCG@10 by precision, of the vectors alone and fused with BM25."""
    return [{"collection": folder.name, **_quality(read_collection(folder))} for folder in folders]


def read_collection(folder: Path) -> Collection:
    """Reads a collection. Queries without a grade above 0 are left out."""
    grades: dict[str, dict[str, int]] = {}
    with (folder / "qrels.tsv").open() as file:
        for row in csv.DictReader(file, delimiter="\t"):
            if int(row["score"]) > 0:
                grades.setdefault(row["query-id"], {})[row["corpus-id"]] = int(row["score"])
    nodes = [_node(json.loads(line)) for line in (folder / "corpus.jsonl").read_text().splitlines()]
    queries = map(json.loads, (folder / "queries.jsonl").read_text().splitlines())
    return Collection(
        nodes=sorted((node for node in nodes if embedding_text(node)), key=lambda node: node.id),
        queries={str(query["_id"]): query["text"] for query in queries if str(query["_id"]) in grades},
        grades=grades,
    )


def _node(row: dict[str, Any]) -> Node:
    text = {"title": row.get("title") or "", "content": row["text"]}
    return Node(id=str(row["_id"]), account="bench", project="bench", store=Store.STRUCTURE, labels=("Chunk",), text=text)


def _quality(collection: Collection) -> dict[str, Any]:
    vectors, asked = _embedded(collection)
    words = _lexical_answers(collection)
    found: dict[str, Any] = {"documents": len(collection.nodes), "queries": len(collection.queries)}
    for precision in Precision:
        with _vector_index(vectors, precision) as index:
            near = [_answer(collection, *index.search(query[None], [None], CANDIDATES)[0]) for query in asked]
        fused = [[item.id for item in fuse(*legs)] for legs in zip(words, near, strict=True)]
        found[precision.value] = {
            "vectors": _mean(collection, [answer.ids for answer in near]),
            "fused": _mean(collection, fused),
        }
    return found


def _embedded(collection: Collection) -> tuple[Floats, Floats]:
    """The documents' and the queries' vectors under the sentence model; the documents' are kept between runs."""
    embedder = SentenceEmbedder(threads=2)
    cache = SqliteVectorCache(OUT / "judged-vectors.sqlite")
    try:
        texts = {embedding_hash(node): embedding_text(node) for node in collection.nodes}
        known = embed_cached(embedder, cache, texts).vectors
    finally:
        cache.close()
    vectors = np.stack([known[embedding_hash(node)] for node in collection.nodes])
    return vectors, embedder.embed_query(list(collection.queries.values()))


@contextmanager
def _vector_index(vectors: Floats, precision: Precision) -> Iterator[VectorIndex]:
    with tempfile.TemporaryDirectory() as folder:
        path, identity = Path(folder) / "vectors.faiss", SentenceEmbedder.identity
        write_vectors(path, vectors, np.arange(len(vectors)), identity, precision=precision, graph_threshold=0)
        yield VectorIndex(path, len(vectors), identity)


def _answer(collection: Collection, rows: Any, scores: Any) -> LegAnswer:
    return LegAnswer(ids=tuple(collection.nodes[row].id for row in rows), scores=scores, asked=1, answered=1)


def _lexical_answers(collection: Collection) -> list[LegAnswer]:
    from tests.support.lexical import opened, search

    with tempfile.TemporaryDirectory() as folder, opened(Path(folder), collection.nodes) as partitions:
        ranked = [search(partitions, text, k=CANDIDATES) for text in collection.queries.values()]
    return [LegAnswer(ids=one.ids, scores=np.array(one.scores), asked=1, answered=1) for one in ranked]


def _mean(collection: Collection, rankings: Sequence[Sequence[str]]) -> float:
    values = [ndcg(ids, collection.grades[query]) for query, ids in zip(collection.queries, rankings, strict=True)]
    return round(sum(values) / len(values), 4)


def ndcg(ids: Sequence[str], grades: dict[str, int]) -> float:
    """nDCG@CUT with the grade as the gain and log2(rank + 1) as the discount (Järvelin and Kekäläinen 2002)."""
    gains = [grades.get(one, 0) for one in ids[:CUT]]
    best = sorted(grades.values(), reverse=True)[:CUT]
    return _discounted(gains) / _discounted(best)


def _discounted(gains: Sequence[int]) -> float:
    return sum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains, start=1))
