"""A new generation is held against the served one by recorded questions, over real Lucene, FAISS and models."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cluster.config import Config, load
from cluster.embed.cache import SqliteVectorCache
from cluster.embed.node_text import embedding_hash
from cluster.embed.static import StaticEmbedder
from cluster.graph.sqlite import SqliteGraphStore
from cluster.model.guard import All
from cluster.ports import WriteBatch
from cluster.storage import GenerationStore
from jobs import tasks
from jobs.setup import generations_root, graph_path, reindexer, vectors_path
from serve import cli
from serve.gate import Bounds, check, make_gate
from serve.query_log import read_queries
from tests.support.factories import make_node
from tests.support.files import flip

ACCOUNT = "local"
GENTLE = Bounds(max_latency_ratio=1000.0)
TOPICS = ("pump", "valve", "sensor", "boiler", "turbine", "relay")


class World:
    """A data folder with a project of two topics' notes for each of some, and recorded questions about them."""

    def __init__(self, folder: Path) -> None:
        self.config: Config = load(None, {"RAYCALL_EMBED_THEN": ""}, {"data_dir": folder / "data"})
        self.queries = folder / "queries.jsonl"
        lines = [{"query": topic, "judged": [f"{topic}-0", f"{topic}-1"]} for topic in TOPICS]
        lines[0]["principal"] = {"agent": "iris"}
        self.queries.write_text("".join(json.dumps(line) + "\n" for line in lines))
        (folder / "data").mkdir()
        self.store = SqliteGraphStore(graph_path(self.config), account=ACCOUNT)
        self.generations = GenerationStore(generations_root(self.config))
        self.write({topic: topic for topic in TOPICS})
        self.served = tasks.publish(self.config, "main").generation

    def write(self, words: dict[str, str]) -> None:
        nodes = [
            make_node(f"{topic}-{n}", account=ACCOUNT, agents=("iris",), text={"content": f"the {word} of hall {n} runs"})
            for topic, word in words.items()
            for n in range(4)
        ]
        self.store.write(WriteBatch(nodes=tuple(nodes)))

    def build(self, *, spoilt: bool = False) -> str:
        """A finished generation that is not published; `spoilt`: whole, and each vector points the opposite way."""
        with reindexer(self.config) as jobs:
            builder, served = jobs.builder, self.generations.current("main")
            if spoilt:
                self.spoil_vectors()
                # Another form of the vectors, so that they are not linked from the served generation.
                builder = replace(builder, precision="sq8")
            return builder.build(ACCOUNT, "main", jobs.first.identity, jobs.clock.now_ms(), served).generation

    def spoil_vectors(self) -> None:
        cache, identity = SqliteVectorCache(vectors_path(self.config)), StaticEmbedder().identity
        hashes = [embedding_hash(node) for node in self.store.scan(All(()))]
        cache.put(identity, {key: -vector for key, vector in cache.get(identity, hashes).items()})
        cache.close()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.store.close()


@pytest.fixture
def run(world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    monkeypatch.setenv("RAYCALL_DATA_DIR", str(world.config.data_dir))
    monkeypatch.setenv("RAYCALL_EMBED_THEN", "")

    def call(*arguments: str) -> tuple[int, str, str]:
        code = cli.run_command(["generations", "publish", "main", "--gate", str(world.queries), *arguments])
        written = capsys.readouterr()
        return code, written.out, written.err

    return call


def test_a_generation_that_answers_alike_is_published_and_one_that_does_not_is_not(world: World, run: Any) -> None:
    alike = world.build()
    code, out, err = run("--max-latency-ratio", "1000", "--json")
    assert code == 0, err
    told = json.loads(out)
    assert told["published"]["replaced"] == world.served
    assert told["gate"]["passed"] and told["gate"]["queries"] == 6 and told["gate"]["changed"] == []
    assert told["gate"]["score_after"] > 0.9
    assert world.generations.pointer("main").generation == alike
    spoilt = world.build(spoilt=True)
    code, out, err = run("--max-latency-ratio", "1000")
    assert (code, err.count("\n")) == (1, 1), err
    assert "overlap@10" in err and "FAILED" in out and "6 answers changed" in out and "(agent iris)" in out
    assert world.generations.pointer("main").generation == alike
    assert run("--max-latency-ratio", "1000", "--min-overlap", "0", "--min-score", "0")[0] == 0
    assert world.generations.pointer("main").generation == spoilt


def test_a_latency_that_is_too_long_keeps_a_generation_out(world: World, run: Any) -> None:
    world.build()
    code, _, err = run("--max-latency-ratio", "0.1")
    assert code == 1 and "times as long" in err
    assert world.generations.pointer("main").generation == world.served


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--gate", "/nonexistent"], "cannot be read"),
        (["--min-overlap", "2"], "publish.min_overlap must be 0.0 to 1.0"),
        (["--min-overlap", "much"], "valid number"),
    ],
)
def test_wrong_usage_of_the_gate_is_one_line(world: World, run: Any, arguments: list[str], words: str) -> None:
    world.build()
    code, out, err = run(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1) and words in err
    assert world.generations.pointer("main").generation == world.served


def test_a_generation_that_cannot_be_opened_fails_and_one_that_replaces_a_damaged_one_does_not(world: World) -> None:
    new = world.generations.manifest("main", world.build())
    served = world.generations.manifest("main", world.served)
    queries = read_queries(world.queries, ACCOUNT)
    flip(world.generations.folder("main", new.generation) / "b0000" / "vector" / "vectors.faiss")
    report = check(world.config, queries, served, new, GENTLE)
    assert not report.passed and "cannot be opened: b0000/vector/vectors.faiss" in report.reasons[0]
    assert check(world.config, queries, new, served, GENTLE).passed


def test_builds_are_held_to_the_gate_and_say_so(world: World) -> None:
    publish = replace(world.config.publish, gate=str(world.queries), max_latency_ratio=1000.0)
    config = replace(world.config, publish=publish)
    world.spoil_vectors()
    config = replace(config, shards=replace(config.shards, vector_precision="sq8"))
    assert tasks.publish(config, "main", make_gate).generation == world.served
    kept_out = world.generations.refused("main")
    assert kept_out is not None and "overlap@10" in kept_out["reason"]
    # Another build takes its place: what is kept out does not pile up.
    assert tasks.publish(config, "main", make_gate).generation == world.served
    again = world.generations.refused("main")
    assert again is not None and again["generation"] > kept_out["generation"]
    assert world.generations.finished("main") == [world.served, again["generation"]]
    gentle = replace(config, publish=replace(publish, min_overlap=0.0, min_score=0.0))
    published = tasks.publish(gentle, "main", make_gate)
    assert published.generation == world.generations.pointer("main").generation > again["generation"]
    assert world.generations.refused("main") is None
    assert world.generations.finished("main") == [world.served, published.generation]


def test_a_project_that_nobody_asked_about_is_published(world: World) -> None:
    world.queries.write_text('{"query": "pump", "projects": ["other"]}\n')
    config = replace(world.config, publish=replace(world.config.publish, gate=str(world.queries)))
    world.write({"pump": "dredger"})
    assert tasks.publish(config, "main", make_gate).generation != world.served
