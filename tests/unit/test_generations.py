from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.checks import checksums, verify
from cluster.errors import ConflictError, CorruptIndexError, NotFoundError
from cluster.generations import Pointer, advance, roll_back
from cluster.model.manifest import Bucket, Manifest, VectorIdentity
from cluster.placement import bucket_count, bucket_of, shard_of
from cluster.storage import GenerationStore, read_pointer

IDENTITY = VectorIdentity(provider="test", model="m", dimensions=4)


def make_manifest(generation: str, *, rows: int = 0, buckets: tuple[Bucket, ...] = ()) -> Manifest:
    return Manifest(
        generation=generation,
        account="acme",
        project="demo",
        created_at=1,
        watermark=3,
        analyzer="a1",
        identity=IDENTITY,
        buckets=buckets,
    )


def bucket(folder: Path, rows: int, vectors: int = 0) -> Bucket:
    return Bucket(
        name=folder.name,
        rows=rows,
        vectors=vectors,
        checksums=checksums(folder),
        lexical_fingerprint="l",
        vector_fingerprint="v",
    )


def publish(store: GenerationStore, generation: str, required: str | None) -> Pointer:
    with store.building("demo", generation) as part:
        (part / "b0000").mkdir()
        (part / "b0000" / "rows.parquet").write_bytes(generation.encode())
        manifest = make_manifest(generation, buckets=(bucket(part / "b0000", 1),))
        store.finish(part, manifest)
    return store.publish(manifest, required=required)


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.text(min_size=1, max_size=8))
def test_a_manifest_survives_json(rows: int, watermark: int, name: str) -> None:
    one = Bucket(
        name=name, rows=rows, vectors=0, checksums={"rows.parquet": name}, lexical_fingerprint=name, vector_fingerprint="v"
    )
    manifest = make_manifest("g1", buckets=(one,))
    assert Manifest.from_json(manifest.to_json()) == manifest


def test_a_manifest_of_another_format_is_refused() -> None:
    with pytest.raises(CorruptIndexError, match="format version 99"):
        Manifest.from_json({**make_manifest("g1").to_json(), "format_version": 99})


def test_publishing_over_another_generation_than_required_is_refused() -> None:
    with pytest.raises(ConflictError):
        advance(Pointer(generation="g2"), required="g1", manifest=make_manifest("g3"))


def test_publishing_again_what_is_served_lands_once() -> None:
    pointer = advance(Pointer(), required=None, manifest=make_manifest("g1"))
    assert advance(pointer, required=None, manifest=make_manifest("g1")) == pointer


def test_rolling_back_twice_comes_back() -> None:
    pointer = Pointer(generation="g2", previous="g1", sequence=2)
    assert roll_back(pointer).generation == "g1"
    assert roll_back(roll_back(pointer)) == Pointer(generation="g2", previous="g1", sequence=4)
    with pytest.raises(ConflictError):
        roll_back(Pointer(generation="g1"))


def test_the_store_serves_what_was_published_last_and_keeps_one_before(tmp_path: Path) -> None:
    store = GenerationStore(tmp_path)
    assert (store.projects(), store.current("demo")) == ([], None)
    publish(store, "g1", None)
    publish(store, "g2", "g1")
    first_stamp = store.pointer_stamp("demo")
    publish(store, "g3", "g2")
    assert store.pointer_stamp("demo") != first_stamp
    current = store.current("demo")
    assert current is not None
    assert current.generation == "g3"
    assert store.sweep("demo") == ["g1"]
    assert store.roll_back("demo").generation == "g2"
    assert store.manifest("demo", "g2").generation == "g2"


def test_a_build_that_fails_leaves_nothing_and_changes_nothing(tmp_path: Path) -> None:
    store = GenerationStore(tmp_path)
    publish(store, "g1", None)
    with pytest.raises(RuntimeError), store.building("demo", "g2") as part:
        (part / "x").write_text("half")
        raise RuntimeError
    assert sorted(path.name for path in (tmp_path / "demo").iterdir() if path.is_dir()) == ["g1"]
    assert store.pointer("demo").generation == "g1"


def test_what_a_killed_build_left_is_never_served_and_can_be_discarded(tmp_path: Path) -> None:
    store = GenerationStore(tmp_path)
    publish(store, "g1", None)
    (tmp_path / "demo" / "g2.part" / "b0000").mkdir(parents=True)
    assert store.pointer("demo").generation == "g1"
    assert store.discard_unfinished("demo") == ["g2.part"]


def test_a_changed_or_missing_file_is_named(tmp_path: Path) -> None:
    store = GenerationStore(tmp_path)
    publish(store, "g1", None)
    manifest = store.manifest("demo", "g1")
    folder = store.folder("demo", "g1")
    verify(folder, manifest)
    (folder / "b0000" / "rows.parquet").write_bytes(b"other")
    with pytest.raises(CorruptIndexError, match=r"b0000/rows\.parquet .* was changed"):
        verify(folder, manifest)
    (folder / "b0000" / "rows.parquet").unlink()
    with pytest.raises(CorruptIndexError, match="is missing"):
        verify(folder, manifest)


def test_an_unreadable_pointer_is_an_error_and_not_an_empty_project(tmp_path: Path) -> None:
    store = GenerationStore(tmp_path)
    publish(store, "g1", None)
    (tmp_path / "demo" / "CURRENT").write_text("{")
    with pytest.raises(CorruptIndexError):
        store.pointer("demo")


@pytest.mark.parametrize("project", ["../demo", "", "a/b", ".", ".."])
def test_a_project_name_is_never_a_path(tmp_path: Path, project: str) -> None:
    with pytest.raises(NotFoundError):
        GenerationStore(tmp_path).pointer(project)


@given(st.integers(0, 10_000), st.integers(1, 500))
def test_buckets_are_as_many_as_the_rows_need(rows: int, target: int) -> None:
    count = bucket_count(rows, target)
    assert count >= 1
    assert count * target >= rows
    assert (count - 1) * target < max(rows, 1)


@given(st.lists(st.text(max_size=12), unique=True, max_size=60), st.integers(1, 9))
def test_a_row_has_one_bucket_that_depends_on_its_id_alone(ids: list[str], count: int) -> None:
    assert [bucket_of(row, count) for row in ids] == [bucket_of(row, count) for row in list(ids)]
    assert all(0 <= bucket_of(row, count) < count for row in ids)


@given(st.lists(st.sampled_from([f"s{n}" for n in range(8)]), min_size=2, unique=True))
def test_losing_a_shard_moves_only_its_own_buckets(shards: list[str]) -> None:
    places = {f"b{number:04d}": shard_of("demo", f"b{number:04d}", shards) for number in range(40)}
    after = {name: shard_of("demo", name, shards[1:]) for name in places}
    assert all(after[name] == shard for name, shard in places.items() if shard != shards[0])
    assert places == {name: shard_of("demo", name, list(reversed(shards))) for name in places}


def test_buckets_spread_over_the_shards() -> None:
    counts = Counter(shard_of("demo", f"b{number:04d}", ["s0", "s1", "s2", "s3"]) for number in range(400))
    assert min(counts.values()) > 60


def test_what_a_later_version_adds_to_a_manifest_is_left_out_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    one = Bucket(name="b0000", rows=1, vectors=0, checksums={}, lexical_fingerprint="l", vector_fingerprint="v")
    manifest = make_manifest("g1", buckets=(one,))
    raw = manifest.to_json() | {"region": "north"}
    raw["identity"] = {**raw["identity"], "pooling": "mean"}
    raw["buckets"] = [{**item, "tier": 2} for item in raw["buckets"]]
    assert Manifest.from_json(raw) == manifest
    told = [(record.place, record.fields) for record in caplog.records]  # type: ignore[attr-defined]
    assert told == [("manifest", ["region"]), ("identity", ["pooling"]), ("bucket", ["tier"])]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format_version": 2}, "a newer version of Raycall built it; index the project again, or run the version"),
        ({"format_version": None}, "it is damaged"),
        ({"format_version": "1"}, "it is damaged"),
        ({"identity": {"provider": "static"}}, "a field is missing or of another type"),
        ({"identity": 5}, "a field is missing or of another type"),
        ({"buckets": [5]}, "a field is missing or of another type"),
        ({"buckets": [{"name": "b0000"}]}, "a field is missing or of another type"),
    ],
)
def test_a_manifest_that_cannot_be_read_says_why_in_words_and_not_in_those_of_a_constructor(
    change: dict[str, Any], words: str
) -> None:
    with pytest.raises(CorruptIndexError) as caught:
        Manifest.from_json({**make_manifest("g1").to_json(), **change})
    assert words in caught.value.detail and "__init__" not in caught.value.detail


def test_a_pointer_may_hold_what_a_later_version_adds() -> None:
    raw = {"generation": "g2", "previous": None, "sequence": 4, "pinned": True}
    assert read_pointer(raw) == Pointer(generation="g2", sequence=4)
