"""Legs without shards: brute force over a store, or scores by script, with failures on demand."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from cluster.guards import allows
from cluster.model.guard import All
from cluster.model.manifest import Bucket, Manifest, VectorIdentity
from cluster.model.nodes import Node
from cluster.model.query import LegAnswer, LexicalQuery, PartitionFailure, VectorQuery
from cluster.ports import GraphStore

IDENTITY = VectorIdentity(provider="test", model="letters", dimensions=26)
OTHER_IDENTITY = VectorIdentity(provider="test", model="other", dimensions=26)


def make_manifest(
    project: str = "main",
    *,
    account: str = "acme",
    rows: int = 10,
    vectors: int | None = None,
    identity: VectorIdentity = IDENTITY,
    buckets: int = 1,
    generation: str = "",
) -> Manifest:
    """A generation whose rows are all in the first of its buckets; nothing stands behind it."""
    bucket = Bucket(
        name="b0000",
        rows=rows,
        vectors=rows if vectors is None else vectors,
        checksums={},
        lexical_fingerprint="f",
        vector_fingerprint="f",
    )
    return Manifest(
        generation=generation or f"g-{project}",
        account=account,
        project=project,
        created_at=0,
        watermark=1,
        analyzer="test",
        identity=identity,
        buckets=(bucket, *(replace(bucket, name=f"b{number:04}", rows=0, vectors=0) for number in range(1, buckets))),
    )


def failure(project: str = "main", **changes: str) -> PartitionFailure:
    values = {"bucket": "b0000", "code": "shard_unavailable", "detail": "the shard is restarting", **changes}
    return PartitionFailure(project=project, generation=f"g-{project}", **values)


@dataclass
class FakeLegs:
    """A leg's hits come from its script (`*_scores`) if there is one, else from counting over `store`, always guarded.

    An entry of `errors` ("lexical", "vector", "embed") is raised by that call; a name in `hanging` never answers.
    """

    store: GraphStore
    manifests: dict[str, Manifest] = field(default_factory=lambda: {"main": make_manifest()})
    #: project -> why nothing is served of it.
    not_served: dict[str, str] = field(default_factory=dict)
    #: Generations that are served no more but can still be asked.
    replaced: list[Manifest] = field(default_factory=list)
    lexical_scores: Mapping[str, float] | None = None
    vector_scores: Mapping[str, float] | None = None
    #: Scripted ids pass without a look at the guard: an index that is behind the store.
    unguarded: bool = False
    errors: dict[str, Exception] = field(default_factory=dict)
    hanging: set[str] = field(default_factory=set)
    failures: dict[str, tuple[PartitionFailure, ...]] = field(default_factory=dict)
    #: More fields of both legs' answers.
    extra: dict[str, Any] = field(default_factory=dict)
    without_vector: bool = False
    query_tokens: int | None = None
    #: Every query that arrived, by leg.
    lexical_queries: list[LexicalQuery] = field(default_factory=list)
    vector_queries: list[VectorQuery] = field(default_factory=list)
    embedded: list[str] = field(default_factory=list)

    def served(self) -> Mapping[str, Manifest]:
        return self.manifests

    def unserved(self) -> Mapping[str, str]:
        return self.not_served

    def manifest(self, project: str, generation: str) -> Manifest | None:
        known = [*self.manifests.values(), *self.replaced]
        return next((item for item in known if (item.project, item.generation) == (project, generation)), None)

    async def lexical(self, query: LexicalQuery, deadline: float) -> LegAnswer:
        self.lexical_queries.append(query)
        await self._fate("lexical")
        terms = _words(query.text)
        scores = self.lexical_scores
        if scores is None:
            found = {node.id: _matches(node, terms) for node in self._rows(query)}
            scores = {node_id: float(count) for node_id, count in found.items() if count}
        explain = {"terms": dict.fromkeys(terms, 1), "terms_cut": 0, "documents": len(self._rows(query))}
        return self._answer("lexical", query, scores, explain)

    async def vector(self, query: VectorQuery, deadline: float) -> LegAnswer:
        self.vector_queries.append(query)
        await self._fate("vector")
        scores = self.vector_scores
        if scores is None:
            scores = {node.id: float(query.vector @ letters(" ".join(node.text.values()))) for node in self._rows(query)}
        return self._answer("vector", query, scores, {})

    async def embed(self, text: str, identity: VectorIdentity, deadline: float, caller: str) -> npt.NDArray[np.float32] | None:
        self.embedded.append(text)
        await self._fate("embed")
        return None if self.without_vector else letters(text)

    def max_query_tokens(self, identity: VectorIdentity) -> int | None:
        return self.query_tokens

    async def _fate(self, leg: str) -> None:
        if leg in self.hanging:
            await asyncio.Event().wait()
        if leg in self.errors:
            raise self.errors[leg]

    def _rows(self, query: LexicalQuery | VectorQuery) -> list[Node]:
        return [node for node in self.store.scan(All(())) if allows(query.guard, node) and node.project in query.pins]

    def _answer(
        self, leg: str, query: LexicalQuery | VectorQuery, scores: Mapping[str, float], explain: Mapping[str, object]
    ) -> LegAnswer:
        if not self.unguarded:
            visible = {node.id for node in self._rows(query)}
            scores = {node_id: score for node_id, score in scores.items() if node_id in visible}
        hits = sorted(scores.items(), key=lambda hit: (-hit[1], hit[0]))[: query.k]
        failures = self.failures.get(leg, ())
        asked = sum(len(self.manifests[project].buckets) for project in query.pins)
        return LegAnswer(
            ids=tuple(node_id for node_id, _ in hits),
            scores=np.array([score for _, score in hits], dtype=np.float64),
            matched=len(scores) if leg == "lexical" else None,
            asked=asked,
            answered=asked - len(failures),
            failures=failures,
            explain=explain,
            **self.extra,
        )


def letters(text: str) -> npt.NDArray[np.float32]:
    """How often each letter occurs, as a unit vector of float32; for a text without any, the first axis."""
    counts = np.array([text.lower().count(chr(code)) for code in range(97, 123)], dtype=np.float32)
    norm = float(np.linalg.norm(counts))
    return counts / np.float32(norm) if norm else np.eye(1, 26, dtype=np.float32)[0]


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def _matches(node: Node, terms: list[str]) -> int:
    words = _words(" ".join(node.text.values()))
    return sum(words.count(term) for term in terms)
