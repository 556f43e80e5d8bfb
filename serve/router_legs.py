"""The legs of a question over the router and the query embedders."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from actors.batcher import Batcher
from actors.router import Router
from cluster.errors import EmbedderError, ShardError, UnavailableError
from cluster.model.manifest import Manifest, VectorIdentity
from cluster.model.query import LegAnswer, LexicalQuery, VectorQuery
from cluster.ports import Clock, Embedder

#: Query vectors that are kept, by caller, identity and hash of the text: agents ask the same thing again and again.
CACHED_VECTORS = 2048

Vector = npt.NDArray[np.float32]


class RouterLegs:
    """Legs of one account. A query's text is embedded with the embedder of the identity that is asked for, and no other."""

    def __init__(
        self, router: Router, embedders: Iterable[Embedder], clock: Clock, *, max_batch: int, embed_timeout_s: float
    ) -> None:
        self._router = router
        self._clock = clock
        self._embed_timeout_s = embed_timeout_s
        embedders = tuple(embedders)
        self._max_tokens = {embedder.identity: embedder.max_tokens for embedder in embedders}
        self._batchers = {
            embedder.identity: Batcher(_in_thread(embedder), max_batch=max_batch, clock=clock.monotonic)
            for embedder in embedders
        }
        self._cache: OrderedDict[tuple[str, VectorIdentity, bytes], Vector | None] = OrderedDict()

    def served(self) -> Mapping[str, Manifest]:
        """See `Router.served`."""
        return self._router.served()

    def unserved(self) -> Mapping[str, str]:
        """See `Router.unserved`."""
        return self._router.unserved()

    def manifest(self, project: str, generation: str) -> Manifest | None:
        """See `Router.manifest`."""
        return self._router.manifest(project, generation)

    async def lexical(self, query: LexicalQuery, deadline: float) -> LegAnswer:
        """See `Router.lexical`."""
        return await self._router.lexical(replace(query, until_ms=self._until_ms(deadline)), deadline)

    async def vector(self, query: VectorQuery, deadline: float) -> LegAnswer:
        """See `Router.vector`."""
        return await self._router.vector(replace(query, until_ms=self._until_ms(deadline)), deadline)

    def max_query_tokens(self, identity: VectorIdentity) -> int | None:
        """Tokens that the embedder of `identity` reads; None where none is configured."""
        return self._max_tokens.get(identity)

    async def embed(self, text: str, identity: VectorIdentity, deadline: float, caller: str) -> Vector | None:
        """The vector of `text`, or None when the model has none for it; raises EmbedderError when it is late or down."""
        key = (caller, identity, hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest())
        if key in self._cache:
            self._cache.move_to_end(key)
            return self._cache[key]
        batcher = self._batchers.get(identity)
        if batcher is None:
            raise EmbedderError(f"no configured embedder makes vectors of {identity.key}")
        until = min(deadline, self._clock.monotonic() + self._embed_timeout_s)
        try:
            row = await batcher.ask(text, until)
        except ShardError as error:
            raise EmbedderError("the embedder did not answer in time") from error
        except UnavailableError:
            raise
        except Exception as error:
            raise EmbedderError("the embedder failed") from error
        vector = row if np.isfinite(row).all() and row.any() else None
        self._cache[key] = vector
        if len(self._cache) > CACHED_VECTORS:
            self._cache.popitem(last=False)
        return vector

    def _until_ms(self, deadline: float) -> int:
        """The deadline on the wall clock: a monotonic one means nothing to the shard's process."""
        return self._clock.now_ms() + int(1000 * (deadline - self._clock.monotonic()))


def _in_thread(embedder: Embedder) -> Callable[[Sequence[str]], Awaitable[Sequence[Vector]]]:
    # A thread of its own, as there is one batch at a time: it does not wait behind other questions' reading of the store.
    thread = ThreadPoolExecutor(1, "embed")

    async def send(texts: Sequence[str]) -> Sequence[Vector]:
        # The models release the interpreter while they compute, so the event loop goes on.
        loop = asyncio.get_running_loop()
        rows: npt.NDArray[np.float32] = await loop.run_in_executor(thread, embedder.embed_query, texts)
        return list(rows)

    return send
