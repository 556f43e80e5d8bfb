"""Shards as Ray actors over a live index: a Ray of the test's own, begun and ended with the body."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from actors.remote import (
    LexicalShardActor,
    RaySettings,
    ShardSettings,
    VectorShardActor,
    start_ray,
    start_shards,
    stop_ray,
)
from actors.source import Source
from cluster.ports import WriteBatch
from tests.support.factories import ACCOUNT, make_node
from tests.support.live import LiveIndex


@contextlib.contextmanager
def live_actors(folder: Path, lexical: Sequence[str], vector: Sequence[str], replicas: int = 1) -> Iterator[LiveIndex]:
    """A store with a published generation of several buckets in `folder`, and the named actors over it."""
    index = LiveIndex(folder, shards=1, target_rows=4)
    index.store.write(WriteBatch(nodes=tuple(make_node(f"n{n}", text={"content": f"pump number {n}"}) for n in range(12))))
    index.publish("main")
    run_dir = Path(tempfile.mkdtemp(prefix="ray"))  # pytest's folders are too long for a socket's name
    start_ray(RaySettings(num_cpus=2, object_store_bytes=100 * 2**20, temp_dir=run_dir, environment={}))
    settings = ShardSettings(
        root=index.generations.root,
        source=Source(graph=folder / "graph.sqlite", account=ACCOUNT),
        vectors=folder / "vectors.sqlite",
        shards=tuple(lexical),
        logs=folder,
        heap_mib=128,
    )
    try:
        start_shards(LexicalShardActor, lexical, settings, replicas=replicas)
        start_shards(VectorShardActor, vector, replace(settings, shards=tuple(vector)), replicas=replicas)
        yield index
    finally:
        stop_ray()
        shutil.rmtree(run_dir, ignore_errors=True)
        index.close()
