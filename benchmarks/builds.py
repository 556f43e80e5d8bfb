"""Building the lexical index of a bucket, against a bare IndexWriter over the same rows, in a process of its own.

`python -m benchmarks.builds DATA_DIR` answers the commands "ours", "lucene" and "plain" (see `benchmarks.worker`): each builds
the first ROWS rows of DATA_DIR once, to one segment on disk, on one thread, and is told nothing of the build before.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import worker
from benchmarks.indexes import indexed_nodes
from cluster.index import jvm
from cluster.index.analysis import analysis
from cluster.index.analyzers import CODE, Chain, Part, build
from cluster.index.lexical import build_lexical
from cluster.index.lucene_query import TEXT, guard_terms
from cluster.model.nodes import Node

#: Each term as it is and once more stemmed: in Lucene's own parts the nearest to two readings in one field.
_TWICE: tuple[Part, ...] = (("keywordRepeat", {}), ("asciiFolding", {}), ("porterStem", {}))
#: Our own parts, all inside Lucene.
OURS_IN_LUCENE = Chain(CODE.tokenizer, (*CODE.filters, *_TWICE), CODE.char_filters)
_SPLIT: Mapping[str, str] = {
    "preserveOriginal": "1",
    "splitOnCaseChange": "1",
    "splitOnNumerics": "1",
    "generateNumberParts": "1",
}
#: What Lucene's users take for source code: no regular expressions, so it is much faster, and it reads less.
PLAIN = Chain(("whitespace", {}), (("wordDelimiterGraph", _SPLIT), ("flattenGraph", {}), ("lowercase", {}), *_TWICE))
#: Rows of a build, so that a round takes seconds.
ROWS = 10_000


class Builds:
    """The rows, and the three ways to build their index."""

    def __init__(self, nodes: Sequence[Node], folder: Path) -> None:
        self._nodes = nodes
        self._folder = folder

    def ours(self) -> dict[str, Any]:
        """As a build job does, exact lengths included. What was learnt of words before is forgotten first."""
        reading = replace(analysis(), _known={}, _questions={})
        return self._timed(lambda folder: int(build_lexical(folder, self._nodes, reading).sum()))

    def lucene(self) -> dict[str, Any]:
        """A bare IndexWriter with an analyzer of our own parts."""
        return self._timed(lambda folder: _bare_build(folder, self._nodes, OURS_IN_LUCENE))

    def plain(self) -> dict[str, Any]:
        """A bare IndexWriter with Lucene's word delimiter."""
        return self._timed(lambda folder: _bare_build(folder, self._nodes, PLAIN))

    def _timed(self, make: Callable[[Path], int]) -> dict[str, Any]:
        folder = self._folder / "index"
        shutil.rmtree(folder, ignore_errors=True)
        started, cpu = time.perf_counter(), time.process_time()
        terms = make(folder)
        seconds = time.perf_counter() - started
        size = sum(path.stat().st_size for path in folder.iterdir())
        return {
            "per_second": len(self._nodes) / seconds,
            "seconds": round(seconds, 2),
            "cpu_s": round(time.process_time() - cpu, 2),
            "terms": terms,
            "index_mb": round(size / 1e6, 1),
        }


def _bare_build(folder: Path, nodes: Sequence[Node], chain: Chain) -> int:
    """The loop that anyone would write; returns the terms of all rows, as Lucene counts them."""
    java, weighted = jvm.java(), analysis().weighted_text
    folder.mkdir()
    directory = java.FSDirectory.open(java.File(str(folder.absolute())).toPath(), java.NoLockFactory.INSTANCE)
    writer = _bare_writer(directory, build(chain))
    text, documents = _text_field(), dict[tuple[tuple[str, str], ...], Any]()
    for node in nodes:
        guards = guard_terms(node)
        document = documents.get(guards)
        if document is None:
            document = documents[guards] = _document(text, guards)
        text.setStringValue("\n".join(weighted(node)))
        writer.addDocument(document)
    writer.forceMerge(1)
    writer.commit()
    writer.close()
    reader = java.DirectoryReader.open(directory)
    terms = int(reader.getSumTotalTermFreq(TEXT))
    reader.close()
    directory.close()
    return terms


def _bare_writer(directory: Any, analyzer: Any) -> Any:
    """One thread, the same buffer and files as ours."""
    java = jvm.java()
    policy, scheduler = java.LogDocMergePolicy(), java.SerialMergeScheduler()
    config = java.IndexWriterConfig(analyzer)
    config.setMergePolicy(policy)
    config.setMergeScheduler(scheduler)
    config.setRAMBufferSizeMB(64.0)
    config.setUseCompoundFile(False)
    return java.IndexWriter(directory, config)


def _text_field() -> Any:
    java = jvm.java()
    kind = java.FieldType()
    kind.setIndexOptions(java.IndexOptions.DOCS_AND_FREQS)
    kind.freeze()
    return java.Field(TEXT, "", kind)


def _document(text: Any, guards: Sequence[tuple[str, str]]) -> Any:
    java = jvm.java()
    document = java.Document()
    document.add(text)
    for name, value in guards:
        guard = java.StringField(name, value, java.FieldStore.NO)
        document.add(guard)
    return document


def main() -> None:
    nodes = indexed_nodes(Path(sys.argv[1]))[:ROWS]
    jvm.start()
    with tempfile.TemporaryDirectory() as folder:
        builds = Builds(nodes, Path(folder))
        commands: Mapping[str, Callable[..., dict[str, Any]]]
        commands = {"ours": builds.ours, "lucene": builds.lucene, "plain": builds.plain}
        worker.serve({"rows": len(nodes)}, commands)


if __name__ == "__main__":
    main()
