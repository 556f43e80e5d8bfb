"""From the store to an answer on real Lucene, FAISS and SQLite: each leg finds what brute force over the store finds."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from actors.opening import open_lexical_shard, open_vector_shard
from actors.replicas import RouterSettings
from actors.router import Router
from actors.source import Source
from cluster.embed.cache import SqliteVectorCache
from cluster.embed.node_text import embedding_text
from cluster.embed.static import StaticEmbedder
from cluster.graph.sqlite import SqliteGraphStore
from cluster.guards import allows, search_guard
from cluster.index.analysis import analysis
from cluster.index.lexical import build_lexical
from cluster.index.vector import write_vectors
from cluster.model.access import Principal
from cluster.model.nodes import Node, Scope, Visibility
from cluster.model.query import LegAnswer, LexicalQuery, VectorQuery
from cluster.ports import WriteBatch
from cluster.storage import GenerationStore
from jobs.build import Builder, searchable
from jobs.reindex import Reindexer
from jobs.setup import SystemClock
from tests.support.factories import ACCOUNT, AGENTS, PROJECTS, make_node, principals
from tests.support.lexical import analyse
from tests.support.live import InProcess

WORDS = [
    *("pump", "valve", "flow", "pressure", "sensor", "index", "shard", "token"),
    *("parse", "request", "water", "table", "retry", "cache"),
]
EMBEDDER = StaticEmbedder()


class Deployed:
    """A store with random nodes, its published generations, and a router over `shards` shards a leg."""

    def __init__(self, folder: Path, nodes: Sequence[Node], shards: int, target_rows: int) -> None:
        self.nodes = nodes
        store = SqliteGraphStore(folder / "graph.sqlite", account=ACCOUNT)
        store.write(WriteBatch(nodes=tuple(nodes)))
        generations = GenerationStore(folder / "generations")
        cache = SqliteVectorCache(folder / "vectors.sqlite")
        builder = Builder(
            store=store,
            generations=generations,
            vectors=cache,
            build_lexical=build_lexical,
            write_vectors=write_vectors,
            analyzer=analysis().version,
            target_rows=target_rows,
        )
        jobs = Reindexer(builder=builder, first=EMBEDDER, target=EMBEDDER, clock=SystemClock())
        for project in PROJECTS:
            jobs.publish(ACCOUNT, project, lambda *_: None)
            # The build reads the same rows that brute force does.
            assert {node.id for node in searchable(store, ACCOUNT, project)} <= {node.id for node in nodes}
        lexical = tuple(f"lexical-{number}" for number in range(shards))
        vector = tuple(f"vector-{number}" for number in range(shards))
        source, cached = Source(graph=folder / "graph.sqlite", account=ACCOUNT), folder / "vectors.sqlite"
        self._shards = [open_lexical_shard(name, generations.root, lexical, 256, source, 100) for name in lexical]
        self._vector_shards = [open_vector_shard(name, generations.root, vector, 1, source, cached, 100) for name in vector]
        self.router = Router(
            generations,
            ACCOUNT,
            {name: [InProcess(shard)] for name, shard in zip(lexical, self._shards, strict=True)},  # type: ignore[arg-type]
            {name: [InProcess(shard)] for name, shard in zip(vector, self._vector_shards, strict=True)},  # type: ignore[arg-type]
            RouterSettings(),
        )
        cache.close()
        store.close()

    def close(self) -> None:
        for shard in [*self._shards, *self._vector_shards]:
            shard.close()

    async def ask(self, principal: Principal, text: str) -> tuple[LegAnswer, LegAnswer]:
        await self.router.refresh()
        guard = search_guard(principal)
        pins = {project: manifest.generation for project, manifest in self.router.served().items()}
        vector = EMBEDDER.embed_query([text])[0]
        deadline = time.monotonic() + 60
        k = len(self.nodes) + 1
        return (
            await self.router.lexical(LexicalQuery(text=text, guard=guard, pins=pins, k=k), deadline),
            await self.router.vector(
                VectorQuery(vector=vector, identity=EMBEDDER.identity, guard=guard, pins=pins, k=k), deadline
            ),
        )

    def visible(self, principal: Principal) -> list[Node]:
        """Brute force: what the principal may find, by the reference reading of the guard."""
        guard = search_guard(principal)
        return [node for node in self.nodes if allows(guard, node) and embedding_text(node)]


def random_nodes(seed: int, count: int) -> list[Node]:
    pick = random.Random(seed)
    return [
        make_node(
            f"n{number:03d}",
            project=pick.choice(PROJECTS),
            text={"content": " ".join(pick.choices(WORDS, k=pick.choice([0, 1, 3, 12])))},
            scope=pick.choice([None, *Scope]),
            agents=pick.choice([None, (), *((agent,) for agent in AGENTS)]),
            visibility=pick.choice([None, *Visibility]),
            owner_agent=pick.choice([None, *AGENTS]),
            shared_with=pick.choice([(), (AGENTS[0],)]),
            deleted_at=pick.choice([None, None, 5]),
        )
        for number in range(count)
    ]


def cosines(nodes: Sequence[Node], text: str) -> dict[str, float]:
    if not nodes:
        return {}
    rows: npt.NDArray[np.float32] = EMBEDDER.embed([embedding_text(node) for node in nodes])
    query = EMBEDDER.embed_query([text])[0]
    return {node.id: float(row @ query) for node, row in zip(nodes, rows, strict=True)}


@pytest.mark.parametrize(("shards", "target_rows"), [(1, 1000), (1, 7), (3, 7)])
# No shrinking: an example builds whole indexes, and a smaller one would say no more.
@settings(max_examples=6, phases=[Phase.generate])
@given(seed=st.integers(0, 10**6), readers=st.lists(principals(), min_size=4, max_size=8), data=st.data())
def test_each_leg_finds_what_brute_force_finds(
    shards: int, target_rows: int, seed: int, readers: list[Principal], data: st.DataObject
) -> None:
    import anyio

    with TemporaryDirectory() as folder:
        deployed = Deployed(Path(folder), random_nodes(seed, 60), shards, target_rows)
        try:
            for reader in readers:
                text = " ".join(data.draw(st.lists(st.sampled_from(WORDS), min_size=1, max_size=3)))
                lexical, vector = anyio.run(deployed.ask, reader, text)
                visible = deployed.visible(reader)
                matching = {node.id for node in visible if set(analyse(text)) & set(analyse(embedding_text(node)))}
                assert set(lexical.ids) == matching
                assert lexical.matched == len(matching) or (not matching and not lexical.matched)
                expected = cosines(visible, text)
                assert dict(zip(vector.ids, vector.scores, strict=True)) == pytest.approx(expected, abs=1e-5)
                assert list(vector.scores) == sorted(vector.scores, reverse=True)
        finally:
            deployed.close()


def test_one_or_many_shards_and_buckets_score_alike(tmp_path: Path) -> None:
    import anyio

    from tests.support.factories import make_agent

    nodes = random_nodes(3, 120)
    answers = []
    for number, (shards, target_rows) in enumerate([(1, 1000), (1, 11), (4, 11)]):
        (tmp_path / str(number)).mkdir()
        deployed = Deployed(tmp_path / str(number), nodes, shards, target_rows)
        try:
            answers.append(anyio.run(deployed.ask, make_agent("iris"), "pump pressure retry"))
        finally:
            deployed.close()
    first_lexical, first_vector = answers[0]
    for lexical, vector in answers[1:]:
        assert dict(zip(lexical.ids, lexical.scores, strict=True)) == pytest.approx(
            dict(zip(first_lexical.ids, first_lexical.scores, strict=True)), rel=1e-6
        )
        assert vector.ids == first_vector.ids
