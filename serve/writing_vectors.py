"""Vectors of what was written since the served generations were built.

One rule serves every case: what the store's feed holds since a generation, and the cache has no vector of yet, is embedded
under that generation's identity. So a node gets its vector whether this process wrote it or another one, whether the server was
killed before it came to it or the embedder was down, and again when a generation of another identity is served.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cluster.embed.batching import embed_cached
from cluster.embed.node_text import embedding_text
from cluster.errors import EmbedderError, RaycallError
from cluster.model.guard import All, In, IsNull
from cluster.model.ids import content_hash
from cluster.model.manifest import Manifest, VectorIdentity
from cluster.model.nodes import Node
from cluster.ports import Clock, Embedder, GraphStore, VectorCache

log = logging.getLogger(__name__)

#: Entries of the feed that are read at once.
PAGE = 500
#: Texts of one call to the model: few, so that questions get their turn.
TEXTS = 16
#: Seconds until an embedder that was down is asked again.
RETRY_S = 5.0


@dataclass(slots=True)
class VectorFiller:
    """Fills the cache. To be called by one thread at a time."""

    account: str
    store: GraphStore
    cache: VectorCache
    embedders: Sequence[Embedder]
    clock: Clock
    #: project -> (identity, revision up to which everything has been looked at under it).
    _seen: dict[str, tuple[VectorIdentity, int]] = field(default_factory=dict)
    #: Identities whose embedder was down, and when it is asked again.
    _down: dict[VectorIdentity, float] = field(default_factory=dict)

    def fill(self, served: Mapping[str, Manifest]) -> tuple[int, frozenset[str]]:
        """Embeds what is missing in the `served` projects; how many vectors are new, and the projects that still wait for some.

        A text that has no vector (no token that the model knows) is not missing. Never raises for an embedder that is down: its
        texts are looked at again when it is called next, after RETRY_S.
        """
        embedders = {embedder.identity: embedder for embedder in self.embedders}
        now = self.clock.monotonic()
        waiting = {identity for identity, until in self._down.items() if now < until}
        since: dict[str, int] = {}
        for project, manifest in served.items():
            identity, revision = self._seen.get(project, (None, 0))
            since[project] = max(revision if identity == manifest.identity else 0, manifest.watermark)
        usable = {
            project: embedders[manifest.identity]
            for project, manifest in served.items()
            if manifest.identity in embedders and manifest.identity not in waiting
        }
        fresh = self._follow(usable, since) if usable else 0
        now = self.clock.monotonic()
        able = embedders.keys() - {identity for identity, until in self._down.items() if now < until}
        return fresh, frozenset(project for project, manifest in served.items() if manifest.identity not in able)

    def _follow(self, usable: dict[str, Embedder], since: dict[str, int]) -> int:
        """Goes through the feed from the oldest of `since` on; a project whose embedder fails is left where it was."""
        fresh = 0
        at = min(since[project] for project in usable)
        live = All((IsNull("deleted_at"), In("account", (self.account,)), In("project", tuple(sorted(usable)))))
        while usable and (entries := self.store.changes(at, PAGE)):
            at = entries[-1].revision
            ids = dict.fromkeys(entry.subject for entry in entries if entry.kind == "node_written")
            nodes = self.store.get_nodes(list(ids), live) if ids else {}
            for embedder in dict.fromkeys(usable.values()):
                mine = [
                    node
                    for node in nodes.values()
                    if usable.get(node.project) is embedder and node.revision > since[node.project]
                ]
                try:
                    fresh += self._embed(embedder, mine)
                except RaycallError as error:
                    self._down[embedder.identity] = self.clock.monotonic() + RETRY_S
                    extra = {"action": "vectors_late", "identity": embedder.identity.key, "texts": len(mine)}
                    log.warning("written nodes wait for their vectors: %s", error.detail, extra=extra)
                    usable = {project: other for project, other in usable.items() if other is not embedder}
                else:
                    self._down.pop(embedder.identity, None)
            for project, embedder in usable.items():
                self._seen[project] = (embedder.identity, max(at, since[project]))
        return fresh

    def _embed(self, embedder: Embedder, nodes: Sequence[Node]) -> int:
        texts = {content_hash(text): text for node in nodes if (text := embedding_text(node))}
        known = self.cache.get(embedder.identity, list(texts))
        missing = [key for key in texts if key not in known]
        fresh = 0
        for start in range(0, len(missing), TEXTS):
            block = {key: texts[key] for key in missing[start : start + TEXTS]}
            try:
                fresh += len(embed_cached(embedder, self.cache, block).vectors)
            except RaycallError:
                raise
            except Exception as error:
                raise EmbedderError("the embedder failed") from error
        return fresh
