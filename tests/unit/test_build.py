from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from cluster.checks import verify
from cluster.embed.node_text import embedding_hash
from cluster.errors import ConflictError, EmbedderError, UnavailableError
from cluster.graph.memory import MemoryGraphStore
from cluster.index import vector_file
from cluster.index.rows import read_rows
from cluster.index.vector_file import Precision
from cluster.model.manifest import Manifest, VectorIdentity
from cluster.model.nodes import Node, Scope, Store
from cluster.ports import WriteBatch
from cluster.storage import GenerationStore
from jobs.build import Builder
from jobs.reindex import INLINE_TEXTS, Reindexer

FIRST = VectorIdentity(provider="test", model="first", dimensions=4)
TARGET = VectorIdentity(provider="test", model="target", dimensions=4)


class Cache:
    """The vector cache in memory."""

    def __init__(self) -> None:
        self.vectors: dict[tuple[str, str], npt.NDArray[np.float32]] = {}

    def get(self, identity: VectorIdentity, hashes: Sequence[str]) -> dict[str, npt.NDArray[np.float32]]:
        return {key: self.vectors[identity.key, key] for key in hashes if (identity.key, key) in self.vectors}

    def put(self, identity: VectorIdentity, vectors: dict[str, npt.NDArray[np.float32]]) -> None:
        self.vectors.update({(identity.key, key): vector for key, vector in vectors.items()})

    def close(self) -> None: ...


class Embedder:
    """Gives every text but "unknown" a vector, and remembers what it was asked for."""

    max_tokens = 100

    def __init__(self, identity: VectorIdentity) -> None:
        self.identity = identity
        self.calls = 0
        self.asked: list[str] = []
        self.fails_at = -1

    def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        self.calls += 1
        if 0 <= self.fails_at <= len(self.asked):
            raise EmbedderError("refused")
        self.asked.extend(texts)
        width = self.identity.dimensions
        rows = [[np.nan] * width if "unknown" in text else [1.0] + [0.0] * (width - 1) for text in texts]
        return np.array(rows, dtype=np.float32).reshape(-1, width)

    embed_query = embed


class Clock:
    """Goes one millisecond a look."""

    now = 1_000

    def now_ms(self) -> int:
        self.now += 1
        return self.now

    def monotonic(self) -> float:
        return self.now / 1000


class World:
    """A reindexer over real files and fakes for Lucene, FAISS and the models."""

    def __init__(self, folder: Path) -> None:
        self.store = MemoryGraphStore(account="acme")
        self.generations = GenerationStore(folder)
        self.cache = Cache()
        self.lexical_builds: list[list[str]] = []
        self.vector_writes: list[tuple[list[int], str]] = []
        self.first, self.target = Embedder(FIRST), Embedder(TARGET)
        builder = Builder(
            store=self.store,
            generations=self.generations,
            vectors=self.cache,
            build_lexical=self._build_lexical,
            write_vectors=self._write_vectors,
            analyzer="a1",
            target_rows=40,
        )
        self.jobs = Reindexer(builder=builder, first=self.first, target=self.target, clock=Clock())

    def _build_lexical(self, folder: Path, nodes: Sequence[Node]) -> npt.NDArray[np.int32]:
        folder.mkdir()
        (folder / "segment").write_text("\n".join(node.id for node in nodes))
        self.lexical_builds.append([node.id for node in nodes])
        return np.array([len(node.text["content"].split()) for node in nodes], dtype=np.int32)

    def _write_vectors(
        self,
        path: Path,
        vectors: npt.NDArray[np.float32],
        rows: npt.NDArray[np.int64],
        identity: VectorIdentity,
        *,
        precision: Precision,
    ) -> None:
        path.write_text(f"{identity.key} {rows.tolist()} {precision}")
        self.vector_writes.append((rows.tolist(), identity.key))

    def add(self, *names: str, scope: Scope | None = None) -> None:
        nodes = tuple(
            Node(
                id=name,
                account="acme",
                project="demo",
                store=Store.STRUCTURE,
                labels=("Chunk",),
                text={"content": f"about {name}"},
                scope=scope,
            )
            for name in names
        )
        self.store.write(WriteBatch(nodes=nodes))

    def publish(self) -> Manifest:
        return self.jobs.publish("acme", "demo", lambda *_: None)

    def refine(self) -> Manifest:
        return self.jobs.refine("acme", "demo", lambda *_: None)

    def ids(self, manifest: Manifest) -> list[str]:
        folder = self.generations.folder("demo", manifest.generation)
        found = []
        for bucket in manifest.buckets:
            found += read_rows(folder / bucket.name / "lexical" / "rows.parquet", bucket.rows)["id"].to_pylist()
        return sorted(found)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_the_first_generation_is_the_fast_models_and_the_next_the_better_ones(world: World) -> None:
    world.add("a", "b")
    first = world.publish()
    assert (first.identity, first.rows, first.vectors) == (FIRST, 2, 2)
    assert world.jobs.needs_refining("acme", "demo")
    second = world.refine()
    assert (second.identity, second.previous) == (TARGET, first.generation)
    assert world.generations.current("demo") == second
    assert not world.jobs.needs_refining("acme", "demo")
    # The words did not change: the Lucene directory was linked, not built again.
    assert len(world.lexical_builds) == 1
    verify(world.generations.folder("demo", second.generation), second)


def test_publishing_without_a_change_keeps_the_served_generation(world: World) -> None:
    world.add("a")
    assert world.publish() == world.publish()


def test_progress_of_embedding_ends_at_its_total_when_rows_share_a_text(world: World) -> None:
    world.add("a", "b")
    shared = (replace(node, id=f"{node.id}2") for node in world.store.get_nodes(["a", "b"]).values())
    world.store.write(WriteBatch(nodes=tuple(shared)))
    seen: list[tuple[str, int, int]] = []
    world.jobs.publish("acme", "demo", lambda *step: seen.append(step))
    world.jobs.refine("acme", "demo", lambda *step: seen.append(step))
    assert [step for step in seen if step[0] == "embed"] == [("embed", 2, 2)] * 2


def test_a_change_of_a_guard_column_alone_is_a_new_generation(world: World) -> None:
    world.add("a", "b")
    first = world.publish()
    world.add("a", scope=Scope.ADMIN)
    second = world.publish()
    assert second.generation != first.generation
    folder = world.generations.folder("demo", second.generation)
    assert read_rows(folder / "b0000" / "lexical" / "rows.parquet", 2)["scope"].to_pylist() == ["admin", None]


def test_after_refining_a_small_change_is_embedded_at_once_and_a_large_one_later(world: World) -> None:
    world.add("a")
    world.publish()
    world.refine()
    world.add("b")
    small = world.publish()
    assert (small.identity, small.vectors) == (TARGET, 2)
    world.add(*(f"n{number}" for number in range(INLINE_TEXTS + 1)))
    large = world.publish()
    assert (large.identity, large.rows, large.vectors) == (TARGET, INLINE_TEXTS + 3, 2)
    assert world.jobs.needs_refining("acme", "demo")
    assert world.refine().vectors == INLINE_TEXTS + 3


def test_only_the_buckets_that_changed_are_built_again(world: World) -> None:
    world.add(*(f"n{number:03d}" for number in range(100)))
    first = world.publish()
    assert len(first.buckets) == 3
    world.lexical_builds.clear()
    world.store.write(WriteBatch(purge=("n000",)))
    second = world.publish()
    assert len(world.lexical_builds) == 1
    assert world.ids(second) == [f"n{number:03d}" for number in range(1, 100)]


def test_what_has_no_vector_is_left_to_its_words(world: World) -> None:
    world.add("a", "unknown")
    manifest = world.publish()
    assert (manifest.rows, manifest.vectors) == (2, 1)
    assert world.vector_writes == [([0], FIRST.key)]


def test_an_embedder_that_fails_half_way_is_gone_on_with_from_there(world: World) -> None:
    world.add(*(f"n{number:04d}" for number in range(600)))
    world.first.fails_at = 512
    with pytest.raises(EmbedderError):
        world.publish()
    assert world.generations.current("demo") is None
    world.first.fails_at = -1
    world.publish()
    assert len(world.first.asked) == 600


def test_deleted_and_wordless_nodes_are_not_indexed(world: World) -> None:
    world.add("a", "b")
    empty = Node(id="c", account="acme", project="demo", store=Store.STRUCTURE, labels=("Chunk",), text={"content": "  "})
    world.store.write(WriteBatch(nodes=(empty,), soft_delete=("a",), now=5))
    assert world.ids(world.publish()) == ["b"]


def test_an_empty_project_has_a_generation_without_rows(world: World) -> None:
    manifest = world.publish()
    assert (manifest.rows, len(manifest.buckets)) == (0, 1)
    world.refine()
    assert world.first.calls == world.target.calls == 0, "no text, no call"


@pytest.mark.parametrize("dimensions", [4, 8], ids=["same-size", "other-size"])
@pytest.mark.parametrize("names", [("a", "b"), ()], ids=["filled", "empty"])
def test_another_model_replaces_all_vectors_at_once_and_drops_nothing_before(
    world: World, names: tuple[str, ...], dimensions: int
) -> None:
    world.add(*names)
    world.publish()
    served = world.refine()
    other = Embedder(VectorIdentity(provider="test", model="other", dimensions=dimensions))
    world.jobs = replace(world.jobs, first=other, target=other)
    assert world.generations.current("demo") == served, "what is served stays until it is replaced as a whole"
    assert world.jobs.needs_refining("acme", "demo")
    world.add("c")
    changed = world.publish()
    assert (changed.identity, changed.rows, changed.vectors) == (other.identity, len(names) + 1, len(names) + 1)
    assert sorted(other.asked) == sorted(f"about {name}" for name in (*names, "c")), "each text is embedded anew"
    assert {key for _, key in world.vector_writes[-1:]} == {other.identity.key}
    assert not world.jobs.needs_refining("acme", "demo")
    world.jobs = replace(world.jobs, first=world.first, target=world.target)
    world.first.asked.clear()
    world.target.asked.clear()
    assert world.refine().identity == TARGET
    assert world.target.asked == ["about c"], "the vectors of the model before are still known"


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ([1, 1, 1], "3 dimensions"),
        ([np.nan, 0, 0, 0], "NaN"),
        ([np.inf, 0, 0, 0], "infinity"),
        ([0, 0, 0, 0], "zeros"),
        ([2, 0, 0, 0], "length 2"),
    ],
)
def test_an_unusable_vector_is_refused_with_the_nodes_id_and_costs_that_node_alone(
    fault: list[float], words: str, world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.add("a", "b", "c")
    node = world.store.get_nodes(["b"])["b"]
    world.cache.put(FIRST, {embedding_hash(node): np.array(fault, dtype=np.float32)})
    manifest = world.publish()
    assert (manifest.rows, manifest.vectors) == (3, 2)
    assert world.vector_writes == [([0, 2], FIRST.key)]
    assert world.ids(manifest) == ["a", "b", "c"]
    (record,) = [record for record in caplog.records if getattr(record, "action", "") == "vectors_refused"]
    assert list(record.nodes) == ["b"]  # type: ignore[attr-defined]
    assert words in record.nodes["b"]  # type: ignore[attr-defined]
    assert world.publish() == manifest, "what is left out is no change"


def test_a_text_without_a_vector_is_reported_by_its_node(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.add("a", "unknown")
    world.publish()
    (record,) = [record for record in caplog.records if getattr(record, "action", "") == "texts_without_vector"]
    assert list(record.nodes) == ["unknown"]  # type: ignore[attr-defined]


def test_another_precision_rebuilds_the_vectors_and_nothing_else(world: World) -> None:
    world.add("a", "b")
    first = world.publish()
    for precision in ("float32", "sq8"):
        world.jobs = replace(world.jobs, builder=replace(world.jobs.builder, precision=precision))
        second = world.publish()
        # "auto" is float32 for so few rows.
        assert (second.generation != first.generation) == (precision == "sq8")
    assert len(world.vector_writes) == 2
    assert len(world.lexical_builds) == 1
    folder = world.generations.folder("demo", second.generation)
    assert (folder / "b0000" / "vector" / "vectors.faiss").read_text().endswith("sq8")
    verify(folder, second)


def test_a_project_that_outgrows_a_precision_gets_the_next(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector_file, "SQ8_ABOVE", 2)
    used = []
    for names in (["a", "b"], [f"n{number:03d}" for number in range(100)]):
        world.add(*names)
        manifest = world.publish()
        folder = world.generations.folder("demo", manifest.generation)
        used.append({(folder / b.name / "vector" / "vectors.faiss").read_text().split()[-1] for b in manifest.buckets})
    assert used == [{"float32"}, {"sq8"}], "one for all buckets of a project"


def test_another_analyzer_rebuilds_everything(world: World) -> None:
    world.add("a")
    first = world.publish()
    world.jobs = replace(world.jobs, builder=replace(world.jobs.builder, analyzer="a2"))
    second = world.publish()
    assert second.generation != first.generation
    assert len(world.lexical_builds) == 2


def test_a_damaged_part_is_built_again_and_not_linked(world: World) -> None:
    world.add("a")
    first = world.publish()
    damaged = world.generations.folder("demo", first.generation) / "b0000" / "lexical" / "lucene" / "segment"
    damaged.write_text("rot")
    second = world.refine()
    assert len(world.lexical_builds) == 2
    verify(world.generations.folder("demo", second.generation), second)


def test_a_refinement_published_during_an_index_run_is_not_undone(world: World) -> None:
    world.add("a")
    world.publish()
    embed = world.first.embed

    def meanwhile(texts: Sequence[str]) -> npt.NDArray[np.float32]:
        world.refine()
        return embed(texts)

    world.add("b")
    world.first.embed = meanwhile  # type: ignore[method-assign]
    assert world.publish().identity == TARGET


@pytest.mark.parametrize("text", ["", "[]", '{"generation": 5}', '{"generation": "../.."}', '{"generation": "g1-gone"}', "{"])
def test_a_damaged_pointer_is_built_over_from_the_store(world: World, text: str) -> None:
    world.add("a")
    first = world.publish()
    (world.generations.root / "demo" / "CURRENT").write_text(text)
    second = world.publish()
    assert second.generation != first.generation
    assert world.ids(second) == ["a"]
    assert world.generations.current("demo") == second


@pytest.mark.parametrize("text", ["", "[]", "{}", "5"])
def test_a_damaged_manifest_is_built_over_from_the_store(world: World, text: str) -> None:
    world.add("a")
    first = world.publish()
    (world.generations.folder("demo", first.generation) / "manifest.json").write_text(text)
    assert world.ids(world.publish()) == ["a"]


def test_indexing_again_repairs_a_damaged_file_although_nothing_changed(world: World) -> None:
    world.add("a")
    first = world.publish()
    (world.generations.folder("demo", first.generation) / "b0000" / "vector" / "vectors.faiss").write_text("rot")
    second = world.publish()
    assert second.generation != first.generation
    verify(world.generations.folder("demo", second.generation), second)


def test_a_generation_that_could_not_be_judged_or_published_is_not_left_behind(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.add("a", "b")
    served = world.publish()

    def failing(_served: Manifest, _new: Manifest) -> str | None:
        raise UnavailableError("the store is locked")

    def overtaken(old: Manifest, new: Manifest) -> str | None:
        # Somebody swaps while this build is being judged.
        other = replace(new, generation=f"{new.generation[:-8]}ffffffff")
        with world.generations.building("demo", other.generation) as part:
            world.generations.finish(part, replace(other, buckets=()))
        world.generations.publish(replace(other, buckets=()), required=old.generation)
        return None

    for number, (gate, error) in enumerate([(failing, UnavailableError), (overtaken, ConflictError)]):
        world.add(f"new{number}")
        with pytest.raises(error):
            replace(world.jobs, gate=gate).publish("acme", "demo", lambda *_: None)
        pointer = world.generations.pointer("demo")
        assert set(world.generations.finished("demo")) == {pointer.generation, pointer.previous} - {None}
    assert served.generation in world.generations.finished("demo")
