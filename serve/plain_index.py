"""All partitions of some generations in this process: real Lucene and FAISS behind plain shards, without Ray and without the
actors that serve. For looking at generations before they are served, and at what an answer would be elsewhere.

Starts the JVM of this process; all calls come from one thread.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from actors.lexical_shard import LexicalShard
from actors.opening import open_lexical_shard, open_vector_shard
from actors.source import Source
from actors.vector_shard import VectorShard
from cluster.config import Config
from cluster.errors import EmbedderError
from cluster.model.manifest import Manifest, VectorIdentity
from cluster.model.query import LegAnswer, LexicalQuery, PartitionFailure, VectorQuery
from cluster.ports import Embedder, GraphStore
from jobs.setup import SystemClock, generations_root, graph_path, vectors_path
from serve.legs import LEXICAL, VECTOR, Legs
from serve.retrieval import Retrieval
from serve.threads import cpus_of

#: Seconds that an answer may take: nobody waits for it, and a deadline that is missed would look like a difference.
DEADLINE_S = 120.0
_NAME = "plain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Places:
    """Where an index is read from."""

    generations: Path
    graph: Path
    vectors: Path

    @classmethod
    def of(cls, config: Config) -> Places:
        """Those of the data folder."""
        return cls(generations=generations_root(config), graph=graph_path(config), vectors=vectors_path(config))


class PlainIndex:
    """The legs of `serve.legs.Legs` over generations that need not be the served ones."""

    def __init__(
        self, served: Mapping[str, Manifest], lexical: LexicalShard, vector: VectorShard, embedders: Iterable[Embedder]
    ) -> None:
        self._served = dict(served)
        self._lexical = lexical
        self._vector = vector
        self._embedders = {embedder.identity: embedder for embedder in embedders}
        #: What each leg answered last, by name, for whoever looks at more than the caller is shown.
        self.last: dict[str, LegAnswer] = {}

    def failures(self) -> tuple[PartitionFailure, ...]:
        """Opens everything, with all that was written since; returns what could not be opened."""
        pins = {project: manifest.generation for project, manifest in self._served.items()}
        return (*self._lexical.prepare(pins), *self._vector.prepare(pins))

    def served(self) -> Mapping[str, Manifest]:
        """See `Legs.served`."""
        return self._served

    def unserved(self) -> Mapping[str, str]:
        """Nothing: what cannot be opened has been an error by now."""
        return {}

    def manifest(self, project: str, generation: str) -> Manifest | None:
        """See `Legs.manifest`."""
        known = self._served.get(project)
        return known if known is not None and known.generation == generation else None

    async def lexical(self, query: LexicalQuery, deadline: float) -> LegAnswer:  # noqa: ARG002 - nobody waits
        """See `Legs.lexical`."""
        self.last[LEXICAL] = self._lexical.search([query])[0]
        return self.last[LEXICAL]

    async def vector(self, query: VectorQuery, deadline: float) -> LegAnswer:  # noqa: ARG002
        """See `Legs.vector`."""
        self.last[VECTOR] = self._vector.search([query])[0]
        return self.last[VECTOR]

    async def embed(
        self,
        text: str,
        identity: VectorIdentity,
        deadline: float,  # noqa: ARG002
        caller: str,  # noqa: ARG002 - nothing is remembered
    ) -> npt.NDArray[np.float32] | None:
        """See `Legs.embed`."""
        embedder = self._embedders.get(identity)
        if embedder is None:
            raise EmbedderError(f"no configured embedder makes vectors of {identity.key}")
        row: npt.NDArray[np.float32] = embedder.embed_query([text])[0]
        return row if np.isfinite(row).all() and row.any() else None

    def max_query_tokens(self, identity: VectorIdentity) -> int | None:
        """See `Legs.max_query_tokens`."""
        embedder = self._embedders.get(identity)
        return None if embedder is None else embedder.max_tokens

    def close(self) -> None:
        """Closes every partition."""
        self._lexical.close()
        self._vector.close()


@contextmanager
def opened(
    config: Config, served: Mapping[str, Manifest], embedders: Iterable[Embedder], places: Places | None = None
) -> Iterator[PlainIndex]:
    """The generations `served` of `places` (default: the data folder), until the body is left."""
    where = places or Places.of(config)
    source, rows = Source(graph=where.graph, account=config.account), config.delta.max_rows
    heap = config.shards.jvm_heap_bytes // 1024**2
    lexical = open_lexical_shard(_NAME, where.generations, [_NAME], heap, source, rows, config.lexical.analyzer)
    vector = open_vector_shard(_NAME, where.generations, [_NAME], cpus_of(config), source, where.vectors, rows)
    index = PlainIndex(served, lexical, vector, embedders)
    try:
        yield index
    finally:
        index.close()


def retrieval_over(config: Config, index: Legs, store: GraphStore) -> Retrieval:
    """The use case over a plain index and the store that it reads nodes from."""
    return Retrieval(
        account=config.account,
        store=store,
        legs=index,
        clock=SystemClock(),
        deadline_s=DEADLINE_S,
        related_cap=config.search.max_related,
    )


@contextmanager
def private_folder() -> Iterator[Path]:
    """A folder for this user alone, gone when the body is left."""
    with tempfile.TemporaryDirectory(prefix="raycall-") as name:
        yield Path(name)
