"""Our ranking with Anserini's settings against pyserini's LuceneSearcher.

`python -m benchmarks.conformance.run PYTHON FOLDER...`

PYTHON is the interpreter of the environment that has pyserini with all that it depends on (`make bench-conformance` makes it).
Each FOLDER holds corpus.jsonl (_id, title, text), queries.jsonl (_id, text) and qrels.tsv (query, document, grade; a header).
Prints one JSON object; exits with 1 when a ranking differs by more than ties.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

K = 1000
#: Anserini rounds scores to four places, and sets ties apart by a millionth each.
ROUNDED = 1.5e-3

Ranking = Sequence[tuple[str, float]]


def our_rankings(folder: Path, work: Path) -> dict[str, Ranking]:
    """query id -> (document id, score), best first, through our own build and search."""
    from cluster.index import jvm
    from cluster.index.analysis import analysis
    from cluster.index.lexical import LexicalIndex, build_lexical
    from cluster.index.rows import rows_table
    from cluster.model.guard import All
    from tests.support.factories import make_node

    jvm.start(heap_mb=1024)
    reading = analysis("english")
    nodes = [
        make_node(entry["_id"], text={"title": entry.get("title") or "", "content": entry.get("text") or ""})
        for entry in _lines(folder / "corpus.jsonl")
    ]
    tokens = build_lexical(work / "ours", nodes, reading)
    index = LexicalIndex(work / "ours", rows_table(nodes, tokens), reading)
    rankings: dict[str, Ranking] = {}
    for query in _lines(folder / "queries.jsonl"):
        weights = reading.query_terms(query["text"])
        total = index.statistics(list(weights), All(()))
        rows, scores, _ = index.search([term for term in weights for _ in range(weights[term])], All(()), total, K)
        rankings[query["_id"]] = [(nodes[row].id, float(score)) for row, score in zip(rows, scores, strict=True)]
    index.close()
    return rankings


def reference_rankings(python: str, folder: Path, work: Path) -> dict[str, Ranking]:
    """The same from pyserini."""
    script = Path(__file__).with_name("reference.py")
    command = [python, str(script), str(folder), str(work / "theirs"), str(K)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"pyserini failed:\n{done.stderr[-3000:]}")
    found = json.loads(done.stdout.strip().splitlines()[-1])["rankings"]
    return {query: [(name, score) for name, score in ranking] for query, ranking in found.items()}


def differences(ours: Mapping[str, Ranking], theirs: Mapping[str, Ranking]) -> list[str]:
    """What differs by more than ties: scores by rank, and documents whose score is not that of the last."""
    found = []
    for query, right in theirs.items():
        left = ours[query]
        if len(left) != len(right):
            found.append(f"{query}: {len(left)} hits, not {len(right)}")
            continue
        worst = max((abs(a[1] - b[1]) for a, b in zip(left, right, strict=True)), default=0.0)
        if worst > ROUNDED:
            found.append(f"{query}: scores differ by {worst:.5f}")
        last = min((score for _, score in left), default=0.0)
        mine, other = dict(left), dict(right)
        for name in mine.keys() ^ other.keys():
            if abs(mine.get(name, other.get(name, 0.0)) - last) > ROUNDED:
                found.append(f"{query}: {name} is in one ranking only")
    return found


def average_precision(ranking: Ranking, grades: Mapping[str, int]) -> float:
    """AP over all relevant documents (grade 1 or more), as trec_eval computes it."""
    relevant = sum(grade > 0 for grade in grades.values())
    hits, total = 0, 0.0
    for rank, (name, _) in enumerate(ranking, 1):
        if grades.get(name, 0) > 0:
            hits += 1
            total += hits / rank
    return total / relevant if relevant else 0.0


def precision_at_30(ranking: Ranking, grades: Mapping[str, int]) -> float:
    """The share of relevant documents among the first 30."""
    return sum(grades.get(name, 0) > 0 for name, _ in ranking[:30]) / 30


def _figures(rankings: Mapping[str, Ranking], qrels: Mapping[str, Mapping[str, int]]) -> dict[str, float]:
    judged = [query for query in rankings if any(grade > 0 for grade in qrels.get(query, {}).values())]
    count = len(judged) or 1
    return {
        "queries": len(judged),
        "AP": round(sum(average_precision(rankings[query], qrels[query]) for query in judged) / count, 4),
        "P@30": round(sum(precision_at_30(rankings[query], qrels[query]) for query in judged) / count, 4),
    }


def _qrels(path: Path) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for line in path.read_text("utf-8").splitlines()[1:]:
        query, document, grade = line.split("\t")
        found.setdefault(query, {})[document] = int(float(grade))
    return found


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]


def main(python: str, folders: Sequence[Path]) -> int:
    """Compares each folder; 1 when one differs."""
    report: dict[str, Any] = {}
    failed = False
    for folder in folders:
        with tempfile.TemporaryDirectory() as work:
            ours = our_rankings(folder, Path(work))
            theirs = reference_rankings(python, folder, Path(work))
        found = differences(ours, theirs)
        failed = failed or bool(found)
        qrels = _qrels(folder / "qrels.tsv")
        report[folder.name] = {
            "compared_hits": sum(map(len, theirs.values())),
            "same_order_share": round(
                sum([a for a, _ in ours[query]] == [b for b, _ in theirs[query]] for query in theirs) / max(len(theirs), 1), 4
            ),
            "differences": found[:20],
            "ours": _figures(ours, qrels),
            "pyserini": _figures(theirs, qrels),
        }
    print(json.dumps(report, indent=1))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], [Path(name) for name in sys.argv[2:]]))
