"""Opens shards over the real indexes and the real store: the one place where a shard meets them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from actors.lexical_group import LexicalGroups
from actors.lexical_part import LexicalPart
from actors.lexical_shard import LexicalShard
from actors.partitions import PartitionHolder
from actors.source import Source
from actors.vector_part import VectorPart
from actors.vector_shard import VectorShard
from cluster.checks import FileChecks
from cluster.index.analysis import DEFAULT, analysis, choose_terms
from cluster.model.manifest import Bucket, Manifest
from cluster.storage import GenerationStore

#: Files of a bucket that each kind of shard opens, by how their paths start: it checks them, and no others.
LEXICAL_FILES = ("lexical/",)
VECTOR_FILES = ("lexical/rows.parquet", "vector/")


def open_lexical_shard(
    name: str,
    root: Path,
    shards: Sequence[str],
    heap_mib: int,
    source: Source,
    delta_rows: int,
    analyzer: str = DEFAULT,
) -> LexicalShard:
    """The shard `name` of `shards` over the generations below `root` and what `source` says was written since; starts the JVM
    of this process. From `delta_rows` changes of one bucket on a build is due."""
    from cluster.index import jvm

    jvm.start(heap_mb=heap_mib)
    reading, checks = analysis(analyzer), FileChecks()

    def opener(folder: Path, bucket: Bucket, manifest: Manifest) -> LexicalPart:
        checks.check(folder, bucket, manifest.generation, LEXICAL_FILES)
        return LexicalPart(folder, bucket, manifest, reading, delta_rows)

    feed = source.feed()
    holder = PartitionHolder(GenerationStore(root), name, shards, opener, feed)
    groups = LexicalGroups()
    return LexicalShard(holder, reading.query_terms, choose_terms, (groups, feed), groups)


def open_vector_shard(
    name: str, root: Path, shards: Sequence[str], threads: int, source: Source, vectors: Path, delta_rows: int
) -> VectorShard:
    """The shard `name` of `shards` over the generations below `root` and what `source` says was written since, with vectors
    from the cache `vectors`. From `delta_rows` changes of one bucket on a build is due."""
    from cluster.embed.cache import SqliteVectorCache

    cache, feed, checks = SqliteVectorCache(vectors), source.feed(), FileChecks()

    def opener(folder: Path, bucket: Bucket, manifest: Manifest) -> VectorPart:
        checks.check(folder, bucket, manifest.generation, VECTOR_FILES)
        return VectorPart(folder, bucket, manifest, threads, cache.get, delta_rows)

    return VectorShard(PartitionHolder(GenerationStore(root), name, shards, opener, feed), (feed, cache))
