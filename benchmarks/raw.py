"""The libraries alone, in a process of their own: what the legs are compared with.

`python -m benchmarks.raw DATA_DIR` answers the commands "lexical" and "vector" (see `benchmarks.worker`), one round each. One
thread, no guard, no ids: terms and vectors in, row numbers and scores out.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks import worker
from benchmarks.material import BATCH, PROJECT, K, Material, make_material
from cluster.index.vector_plan import GRAPH_MIN_WIDTH, GRAPH_WIDTH


class RawLucene:
    """A searcher over the same index directory with the same BM25 parameters; questions as plain boolean term queries."""

    def __init__(self, directory: Path, texts: Sequence[str]) -> None:
        from cluster.index import jvm
        from cluster.index.analysis import analysis
        from cluster.index.lucene_query import hits

        self._java = java = jvm.java()
        self._read = hits
        reading = analysis()
        folder = java.FSDirectory.open(java.File(str(directory)).toPath(), java.NoLockFactory.INSTANCE)
        self._searcher = _searcher_class()(java.DirectoryReader.open(folder))
        self._searcher.setSimilarity(java.BM25Similarity(reading.k1, reading.b, False))
        self._questions: Iterator[list[str]] = itertools.cycle([list(reading.query_terms(text)) for text in texts])

    def round(self, seconds: float) -> dict[str, Any]:
        """Searches for `seconds` s."""
        count, started = 0, time.perf_counter()
        while time.perf_counter() < started + seconds:
            found = self._searcher.search(self._query(next(self._questions)), K)
            self._read(found)
            count += 1
        return {"per_second": count / (time.perf_counter() - started)}

    def _query(self, terms: Sequence[str]) -> Any:
        from cluster.index.lucene_query import TEXT

        java = self._java
        builder, should = java.BooleanQueryBuilder(), java.Occur.SHOULD
        for text in terms:
            term = java.Term(TEXT, text)
            query = java.TermQuery(term)
            builder.add(query, should)
        return builder.build()


def _searcher_class() -> Any:
    """IndexSearcher with `search(query, k)`, declared, since looking methods up by reflection would slow the raw side down."""
    import jnius

    lucene = "org/apache/lucene"
    body = {
        "__javaclass__": f"{lucene}/search/IndexSearcher",
        "__javaconstructor__": [(f"(L{lucene}/index/IndexReader;)V", False)],
        "search": jnius.JavaMethod(f"(L{lucene}/search/Query;I)L{lucene}/search/TopDocs;"),
        "setSimilarity": jnius.JavaMethod(f"(L{lucene}/search/similarities/Similarity;)V"),
    }
    return jnius.MetaJavaClass("RawSearcher", (jnius.JavaClass,), body)


class RawFaiss:
    """The same file, read and searched with FAISS alone."""

    def __init__(self, path: Path, material: Material) -> None:
        import faiss

        faiss.omp_set_num_threads(1)
        index: Any = faiss.read_index(str(path))
        self._index = index
        # Row numbers that are not simply 0 to n - 1 are an index around the index.
        inner = faiss.downcast_index(index.index) if hasattr(index, "index") else index
        self.kind = type(inner).__name__
        if hasattr(inner, "hnsw"):
            inner.hnsw.efSearch = max(GRAPH_MIN_WIDTH, GRAPH_WIDTH * K)  # as wide as ours
        vectors = material.vectors
        self._batches = itertools.cycle([vectors[at : at + BATCH] for at in range(0, len(vectors) - BATCH + 1, BATCH)])

    def round(self, seconds: float) -> dict[str, Any]:
        """Searches batches of BATCH queries for `seconds` s."""
        count, started = 0, time.perf_counter()
        while time.perf_counter() < started + seconds:
            batch = next(self._batches)
            self._index.search(batch, K)
            count += len(batch)
        return {"per_second": count / (time.perf_counter() - started), "kind": self.kind}


def main() -> None:
    data_dir = Path(sys.argv[1])
    material = make_material(data_dir)
    bucket = next((data_dir / "generations" / PROJECT / material.generation).glob("b*"))
    lucene = RawLucene(bucket / "lexical" / "lucene", material.texts)
    faiss = RawFaiss(bucket / "vector" / "vectors.faiss", material)
    worker.serve({}, {"lexical": lucene.round, "vector": faiss.round})


if __name__ == "__main__":
    main()
