"""Which text of a node is embedded, and filling the vector cache with it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from cluster.model.ids import content_hash
from cluster.model.nodes import Node
from cluster.ports import Embedder, VectorCache

#: Text properties in the order in which they are embedded: what names the node first, since models cut long texts at the end.
EMBEDDED_PROPERTIES = ("title", "symbol", "path", "summary", "content")

#: Nodes whose vectors are looked up, computed and stored together; a killed job loses at most this many.
CHECKPOINT = 256


def embedding_text(node: Node) -> str:
    """The node's text as the embedder reads it, one property a line."""
    return "\n".join(text for name in EMBEDDED_PROPERTIES if (text := node.text.get(name, "").strip()))


def embedding_hash(node: Node) -> str:
    """The content hash that the node's vector is cached by."""
    return content_hash(embedding_text(node))


def fill_cache(
    nodes: Iterable[Node],
    embedder: Embedder,
    cache: VectorCache,
    progress: Callable[[int], None] = lambda _done: None,
) -> int:
    """Embeds what the cache lacks, in checkpoints, and returns how many texts have no vector.

    `progress` is told the number of nodes done so far. Raises EmbedderError when the embedder is gone; what was embedded
    until then is kept, so a later run goes on from there.
    """
    done = 0
    missing = 0
    for block in _blocks(nodes, CHECKPOINT):
        missing += _embed_block(block, embedder, cache)
        done += len(block)
        progress(done)
    return missing


def _embed_block(block: Sequence[Node], embedder: Embedder, cache: VectorCache) -> int:
    texts = {content_hash(text): text for node in block if (text := embedding_text(node))}
    known = cache.get(embedder.identity, list(texts))
    wanted = [(key, text) for key, text in texts.items() if key not in known]
    if not wanted:
        return 0
    vectors = embedder.embed([text for _, text in wanted])
    # A row of NaN says that the text has no vector: it stays out of the cache and of the index, and is found by its words.
    usable = {key: vector for (key, _), vector in zip(wanted, vectors, strict=True) if vector[0] == vector[0]}
    cache.put(embedder.identity, usable)
    return len(wanted) - len(usable)


def _blocks(nodes: Iterable[Node], size: int) -> Iterable[list[Node]]:
    block: list[Node] = []
    for node in nodes:
        block.append(node)
        if len(block) == size:
            yield block
            block = []
    if block:
        yield block
