"""Which text of a node is embedded. What has none is in no index at all."""

from __future__ import annotations

from cluster.model.ids import content_hash
from cluster.model.nodes import Node

#: Text properties in the order in which they are embedded: what names the node first, since models cut long texts at the end.
EMBEDDED_PROPERTIES = ("title", "symbol", "path", "summary", "content")


def embedding_text(node: Node) -> str:
    """The node's text as the embedder reads it, one property a line."""
    return "\n".join(text for name in EMBEDDED_PROPERTIES if (text := node.text.get(name, "").strip()))


def embedding_hash(node: Node) -> str:
    """The content hash that the node's vector is cached by."""
    return content_hash(embedding_text(node))
