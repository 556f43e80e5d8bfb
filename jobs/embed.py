"""Filling the vector cache with the texts of nodes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

from cluster.embed.batching import embed_cached
from cluster.embed.node_text import embedding_text
from cluster.model.ids import content_hash
from cluster.model.nodes import Node
from cluster.ports import Embedder, VectorCache

log = logging.getLogger(__name__)

#: Texts that are embedded before their vectors are let go.
BLOCK = 4096
#: Nodes without a vector that one record of the log names, one for each text.
NAMED_NODES = 20


def fill_cache(
    nodes: Iterable[Node],
    embedder: Embedder,
    cache: VectorCache,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Mapping[str, str]:
    """Embeds what the cache lacks; returns why each text that has no vector has none, by content hash. The log names the nodes.

    `progress` is told how many distinct texts are done, and of how many. Raises EmbedderError when the embedder is gone; what
    was embedded until then is kept, so a later run goes on from there.
    """
    texts: dict[str, str] = {}
    owners: dict[str, str] = {}
    for node in nodes:
        if text := embedding_text(node):
            key = content_hash(text)
            texts[key] = text
            owners.setdefault(key, node.id)
    failures: dict[str, str] = {}
    hashes = list(texts)
    for start in range(0, len(hashes), BLOCK):
        # In blocks, since the vectors themselves are not wanted here and would fill the memory.
        block = {key: texts[key] for key in hashes[start : start + BLOCK]}
        failures |= embed_cached(embedder, cache, block, _after(start, len(hashes), progress)).failures
    if failures:
        named = {owners[key]: reason for key, reason in list(failures.items())[:NAMED_NODES]}
        extra = {"action": "texts_without_vector", "texts": len(failures), "nodes": named}
        log.warning("some texts have no vector; they are found by their words alone", extra=extra)
    return failures


def _after(start: int, total: int, progress: Callable[[int, int], None]) -> Callable[[int], None]:
    return lambda done: progress(start + done, total)
