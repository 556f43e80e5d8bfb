"""Real indexes over given nodes, made as the product makes them, and the plain shards over them: no Ray, no HTTP."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from actors.lexical_shard import LexicalShard
from actors.vector_shard import VectorShard
from benchmarks.material import PROJECT
from cluster.config import Config
from cluster.model.access import Principal, Role
from cluster.model.manifest import Manifest
from cluster.model.nodes import Node, Scope, Visibility
from cluster.ports import WriteBatch

#: Nodes of one transaction.
_BATCH = 2000
AGENTS = ("iris", "mira", "noor")


def configured(data_dir: Path, *, target_rows: int = 50_000, analyzer: str = "text", model: str = "static") -> Config:
    """The product's defaults over `data_dir`, with one embedding model alone."""
    config = Config()
    return replace(
        config,
        data_dir=data_dir,
        shards=replace(config.shards, target_rows_per_bucket=target_rows),
        lexical=replace(config.lexical, analyzer=analyzer),
        embed=replace(config.embed, first=model, then=""),
    )


def written(config: Config, nodes: Iterable[Node]) -> None:
    """Writes `nodes` into the configured store."""
    from jobs.setup import open_store

    store = open_store(config)
    try:
        for batch in _batches(nodes):
            store.write(WriteBatch(nodes=batch))
    finally:
        store.close()


def publish(config: Config, nodes: Iterable[Node], project: str = PROJECT) -> Manifest:
    """Writes `nodes` into the store, embeds, builds and publishes them. Starts a JVM in this process."""
    from jobs.setup import reindexer

    written(config, nodes)
    with reindexer(config) as indexer:
        return indexer.publish(config.account, project, lambda _phase, _done, _total: None)


def _batches(nodes: Iterable[Node]) -> Iterable[tuple[Node, ...]]:
    rest = iter(nodes)
    while batch := tuple(itertools.islice(rest, _BATCH)):
        yield batch


def indexed_nodes(data_dir: Path, project: str = PROJECT) -> list[Node]:
    """The rows of an indexed project as their nodes, in the order in which they are built."""
    from jobs.build import searchable
    from jobs.setup import open_store

    config = configured(data_dir)
    store = open_store(config)
    try:
        return searchable(store, config.account, project)
    finally:
        store.close()


def open_shards(config: Config) -> tuple[LexicalShard, VectorShard]:
    """One shard for each leg over all that is published in the configured folder, as an actor holds it."""
    from actors.opening import open_lexical_shard, open_vector_shard
    from actors.source import Source
    from jobs.setup import generations_root, graph_path, vectors_path

    root, source = generations_root(config), Source(graph=graph_path(config), account=config.account)
    changes, heap_mib = config.delta.max_rows, config.shards.jvm_heap_bytes // 1024**2
    lexical, vector = "lexical-0", "vector-0"
    return (
        open_lexical_shard(lexical, root, (lexical,), heap_mib, source, changes, config.lexical.analyzer),
        open_vector_shard(vector, root, (vector,), config.shards.vector_threads, source, vectors_path(config), changes),
    )


def tagged(nodes: Sequence[Node]) -> list[Node]:
    """The nodes with agents, scopes, owners and visibilities of all kinds, by a hash of their ids: guards then divide them."""
    return [_tagged(node) for node in nodes]


def _tagged(node: Node) -> Node:
    digest = hashlib.blake2b(node.id.encode(), digest_size=4).digest()
    agents = tuple(agent for agent, byte in zip(AGENTS, digest, strict=False) if byte < 128)
    return replace(
        node,
        agents=agents,
        scope=(None, None, Scope.PUBLIC, Scope.ADMIN)[digest[3] % 4],
        visibility=(None, None, None, Visibility.PERSONAL)[digest[2] % 4],
        owner_agent=AGENTS[digest[1] % 3],
        shared_with=(AGENTS[digest[0] % 3],),
    )


def principals(account: str, project: str = PROJECT) -> list[Principal]:
    """Callers who read different parts of `tagged` nodes: everything, or between a fifth and a half of them."""
    admin = Principal(account=account, key_id="admin", role=Role.ADMIN, projects=frozenset({project}))
    agents = [
        replace(admin, key_id=agent, role=Role.AGENT, agent=agent, scopes=scopes)
        for agent in AGENTS
        for scopes in (frozenset({Scope.PUBLIC}), frozenset(Scope))
    ]
    return [*agents, admin]
