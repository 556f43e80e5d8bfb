"""`python -m benchmarks.relevance FOLDER...`: ranking quality of the real index on judged collections.

A collection is a folder with `corpus.jsonl` (`_id`, `title`, `text`), `queries.jsonl` (`_id`, `text`) and a file of judgements
(`query-id`, `corpus-id`, `score`, tab-separated, with a header). It is indexed as the product indexes nodes, one a document,
and asked through the plain shards; the two lists are fused as an answer's are. Only queries with a relevant document count.

nDCG@10 is Järvelin and Kekäläinen's with the judged score as the gain; AP and P@30 are trec_eval's `map` (over DEPTH hits) and
`P_30`.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.indexes import configured, open_shards, publish
from cluster.config import Config
from cluster.model.guard import All
from cluster.model.nodes import Node, Store
from cluster.model.query import Fusion, LegAnswer, LexicalQuery, VectorQuery
from serve.fusion import fuse

#: Hits of each leg.
DEPTH = 1000
PROJECT = "judged"
_EVERYTHING = All(())

Judgements = Mapping[str, Mapping[str, float]]
Rankings = Mapping[str, Sequence[str]]


@dataclass(frozen=True, slots=True)
class Collection:
    """A judged collection in memory."""

    documents: Sequence[Mapping[str, str]]
    queries: Mapping[str, str]
    judgements: Judgements


def read_collection(folder: Path, judgements: str) -> Collection:
    """Reads a folder; queries without a relevant document are left out."""
    found: dict[str, dict[str, float]] = {}
    with (folder / judgements).open(newline="") as file:
        for query, document, score in list(csv.reader(file, delimiter="\t"))[1:]:
            found.setdefault(query, {})[document] = float(score)
    judged = {query: scores for query, scores in found.items() if max(scores.values()) > 0}
    queries = {line["_id"]: line["text"] for line in _lines(folder / "queries.jsonl") if line["_id"] in judged}
    return Collection(list(_lines(folder / "corpus.jsonl")), queries, {query: judged[query] for query in queries})


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8") as file:
        yield from (json.loads(line) for line in file if line.strip())


def nodes_of(collection: Collection, account: str) -> Iterator[Node]:
    """One node a document."""
    for document in collection.documents:
        texts = {"title": document.get("title", ""), "content": document["text"]}
        yield Node(
            id=document["_id"],
            account=account,
            project=PROJECT,
            store=Store.STRUCTURE,
            labels=("Document",),
            text={name: text for name, text in texts.items() if text.strip()},
        )


def rankings(collection: Collection, config: Config) -> dict[str, Rankings]:
    """Indexes the collection and returns the ranked ids of each leg and of their fusion, by query."""
    from jobs.setup import embedder_for

    manifest = publish(config, nodes_of(collection, config.account), PROJECT)
    lexical, vector = open_shards(config)
    pins = {PROJECT: manifest.generation}
    texts = list(collection.queries.values())
    vectors = embedder_for(config, config.embed.first, threads=2, timeout_s=30.0).embed_query(texts)
    words = lexical.search([LexicalQuery(text=text, guard=_EVERYTHING, pins=pins, k=DEPTH) for text in texts])
    asked = [VectorQuery(vector=row, identity=manifest.identity, guard=_EVERYTHING, pins=pins, k=DEPTH) for row in vectors]
    near = vector.search(asked)
    lexical.close()
    vector.close()
    failed = [failure for answer in (*words, *near) for failure in answer.failures]
    assert not failed, failed[:3]
    lists: dict[str, list[Sequence[str]]] = {"lexical": [a.ids for a in words], "vector": [a.ids for a in near]}
    lists |= {method.value: [_fused(*pair, method) for pair in zip(words, near, strict=True)] for method in Fusion}
    return {name: dict(zip(collection.queries, ranked, strict=True)) for name, ranked in lists.items()}


def _fused(words: LegAnswer, near: LegAnswer, method: Fusion) -> list[str]:
    return [candidate.id for candidate in fuse(words, near, method)]


def measures(found: Rankings, judgements: Judgements) -> dict[str, float]:
    """Means over the judged queries, each 0 to 1."""
    values = [_query_measures(found[query], scores) for query, scores in judgements.items()]
    return {name: round(sum(value[name] for value in values) / len(values), 4) for name in ("ndcg@10", "ap", "p@30")}


def _query_measures(ids: Sequence[str], scores: Mapping[str, float]) -> dict[str, float]:
    gains = [max(0.0, scores.get(node_id, 0.0)) for node_id in ids[:DEPTH]]
    relevant = sum(score > 0 for score in scores.values())
    hits, precisions = 0, 0.0
    for rank, gain in enumerate(gains, start=1):
        if gain > 0:
            hits += 1
            precisions += hits / rank
    best = sorted((score for score in scores.values() if score > 0), reverse=True)
    return {
        "ndcg@10": _discounted(gains[:10]) / _discounted(best[:10]),
        "ap": precisions / relevant,
        "p@30": sum(gain > 0 for gain in gains[:30]) / 30,
    }


def _discounted(gains: Iterable[float]) -> float:
    return sum(gain / math.log2(rank + 1) for rank, gain in enumerate(gains, start=1))


def main() -> int:
    """Prints one table a collection."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.relevance", description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path, help="folders of judged collections")
    parser.add_argument("--analyzer", default="text", help='how text is read: "text", or "english" with Anserini\'s settings')
    parser.add_argument("--model", default="static", help='"static" or "sentence" (20 to 50 ms a document)')
    parser.add_argument("--qrels", default="qrels.tsv", help="name of the file of judgements")
    options = parser.parse_args()
    for folder in options.folders:
        collection = read_collection(folder, options.qrels)
        with tempfile.TemporaryDirectory() as data_dir:
            config = configured(Path(data_dir), analyzer=options.analyzer, model=options.model)
            lists = rankings(collection, config)
        counts = f"{len(collection.documents)} documents, {len(collection.queries)} queries"
        sys.stdout.write(f"\n{folder.name}: {counts}, analyzer {options.analyzer}, model {options.model}\n")
        sys.stdout.write(f"{'':14} {'nDCG@10':>8} {'AP':>8} {'P@30':>8}\n")
        for name, found in lists.items():
            values = measures(found, collection.judgements)
            sys.stdout.write(f"{name:14} {values['ndcg@10']:8.4f} {values['ap']:8.4f} {values['p@30']:8.4f}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
