"""What an operator does with generations, on files of a few bytes; and the commands over it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from cluster.checks import FileChecks, faults, sizes
from cluster.errors import ConflictError, CorruptIndexError, NotFoundError
from cluster.model.manifest import Bucket, Manifest
from cluster.storage import GenerationStore
from jobs import generations as jobs
from serve import cli
from tests.support.files import flip
from tests.unit.test_generations import bucket, make_manifest


def built(store: GenerationStore, generation: str, account: str = "acme") -> Manifest:
    """A finished generation of two files that was not published."""
    with store.building("demo", generation) as part:
        folder = part / "b0000"
        (folder / "lexical").mkdir(parents=True)
        (folder / "vector").mkdir()
        (folder / "lexical" / "rows.parquet").write_bytes(generation.encode())
        (folder / "vector" / "vectors.faiss").write_bytes(b"0123456789")
        one = bucket(folder, 1)
        one = Bucket(**{name: getattr(one, name) for name in one.__slots__} | {"sizes": sizes(folder)})
        manifest = make_manifest(generation, buckets=(one,))
        manifest = Manifest.from_json({**manifest.to_json(), "account": account})
        store.finish(part, manifest)
    return manifest


@pytest.fixture
def store(tmp_path: Path) -> GenerationStore:
    """g1 is kept, g2 is served, g3 was never published."""
    found = GenerationStore(tmp_path / "generations")
    found.publish(built(found, "g1"), required=None)
    found.publish(built(found, "g2"), required="g1")
    built(found, "g3")
    return found


def states(store: GenerationStore) -> dict[str, str]:
    return {entry.generation: entry.state for entry in jobs.entries(store, "demo")}


def test_a_list_says_what_each_generation_is(store: GenerationStore) -> None:
    (store.root / "demo" / "g4.part").mkdir()
    assert states(store) == {"g1": "previous", "g2": "served", "g3": "unpublished", "g4.part": "unfinished"}
    entry = next(entry for entry in jobs.entries(store, "demo") if entry.generation == "g2")
    assert (entry.rows, entry.watermark, entry.analyzer, entry.fault) == (1, 3, "a1", None)
    assert entry.bytes == entry.own_bytes > 12


def test_files_that_two_generations_share_are_nobodys_own(store: GenerationStore) -> None:
    shared = store.folder("demo", "g2") / "b0000" / "vector" / "vectors.faiss"
    os.link(shared, store.folder("demo", "g3") / "linked")
    entry = next(entry for entry in jobs.entries(store, "demo") if entry.generation == "g2")
    assert entry.bytes - entry.own_bytes == 10


@pytest.mark.parametrize("text", ["", "{", "[]", "5", '{"format_version": 99}', '{"format_version": 1}'])
def test_a_manifest_that_cannot_be_read_is_a_fault_and_no_crash(store: GenerationStore, text: str) -> None:
    (store.folder("demo", "g3") / "manifest.json").write_text(text)
    (fault,) = jobs.faults(store, "demo", "g3")
    assert "manifest" in fault
    assert next(entry for entry in jobs.entries(store, "demo") if entry.generation == "g3").fault is not None
    with pytest.raises(CorruptIndexError):
        jobs.publish(store, "acme", "demo")
    assert store.pointer("demo").generation == "g2"


def test_every_damaged_file_is_named(store: GenerationStore) -> None:
    folder = store.folder("demo", "g3") / "b0000"
    flip(folder / "lexical" / "rows.parquet")
    (folder / "vector" / "vectors.faiss").unlink()
    first, second = jobs.faults(store, "demo", "g3")
    assert "b0000/lexical/rows.parquet" in first and "checksum" in first
    assert "b0000/vector/vectors.faiss" in second and "missing" in second


def test_a_file_that_was_cut_is_told_by_its_size_without_reading_it(
    store: GenerationStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cluster.checks.file_checksum", lambda path: pytest.fail("read"))
    path = store.folder("demo", "g2") / "b0000" / "vector" / "vectors.faiss"
    path.write_bytes(b"012345678")
    one = store.manifest("demo", "g2").buckets[0]
    with pytest.raises(CorruptIndexError, match="9 bytes instead of 10"):
        FileChecks().check(path.parents[1], one, "g2", ("vector/",))


def test_a_file_is_read_once_a_process_until_it_changes(store: GenerationStore, monkeypatch: pytest.MonkeyPatch) -> None:
    from cluster import checks as module

    read: list[str] = []
    real = module.file_checksum
    monkeypatch.setattr(module, "file_checksum", lambda path: read.append(path.name) or real(path))
    folder, one = store.folder("demo", "g2") / "b0000", store.manifest("demo", "g2").buckets[0]
    checks = FileChecks()
    for _ in range(3):
        checks.check(folder, one, "g2")
    assert sorted(read) == ["rows.parquet", "vectors.faiss"]
    flip(folder / "vector" / "vectors.faiss")
    os.utime(folder / "vector" / "vectors.faiss", ns=(7, 7))
    with pytest.raises(CorruptIndexError, match=r"vectors\.faiss"):
        checks.check(folder, one, "g2")
    checks.check(folder, one, "g2", ("lexical/",))


def test_a_generation_from_before_sizes_were_noted_is_checked_all_the_same(store: GenerationStore) -> None:
    raw = store.manifest("demo", "g2").to_json()
    for one in raw["buckets"]:
        del one["sizes"]
    old = Manifest.from_json(raw)
    assert faults(store.folder("demo", "g2"), old) == []
    flip(store.folder("demo", "g2") / "b0000" / "vector" / "vectors.faiss")
    assert len(faults(store.folder("demo", "g2"), old)) == 1


def test_publishing_takes_the_newest_unpublished_one_and_says_what_it_replaced(store: GenerationStore) -> None:
    swapped = jobs.publish(store, "acme", "demo")
    assert (swapped.generation, swapped.replaced) == ("g3", "g2")
    assert states(store) == {"g1": "unpublished", "g2": "previous", "g3": "served"}
    assert jobs.publish(store, "acme", "demo", "g1").replaced == "g3"
    assert store.pointer("demo").generation == "g1"


def test_what_is_damaged_foreign_or_not_there_is_not_published(store: GenerationStore) -> None:
    flip(store.folder("demo", "g3") / "b0000" / "vector" / "vectors.faiss")
    with pytest.raises(CorruptIndexError, match=r"vectors\.faiss"):
        jobs.publish(store, "acme", "demo", "g3")
    built(store, "g4", account="zenith")
    with pytest.raises(ConflictError, match="zenith"):
        jobs.publish(store, "acme", "demo", "g4")
    for name in ("g9", "../demo", "", ".", "g1.part"):
        with pytest.raises((NotFoundError, ConflictError)):
            jobs.publish(store, "acme", "demo", name or "..")
    assert store.pointer("demo").generation == "g2"


def test_of_two_publishers_one_is_told_that_it_lost(store: GenerationStore) -> None:
    def meanwhile(_old: Manifest, _new: Manifest) -> None:
        store.publish(store.manifest("demo", "g1"), required="g2")

    with pytest.raises(ConflictError, match="g1 is served"):
        jobs.publish(store, "acme", "demo", "g3", gate=meanwhile)
    assert store.pointer("demo").generation == "g1"


def test_rolling_back_goes_to_a_whole_previous_generation_or_nowhere(store: GenerationStore) -> None:
    assert jobs.roll_back(store, "acme", "demo").generation == "g1"
    assert jobs.roll_back(store, "acme", "demo").generation == "g2"
    flip(store.folder("demo", "g1") / "b0000" / "vector" / "vectors.faiss")
    with pytest.raises(CorruptIndexError, match=r"vectors\.faiss"):
        jobs.roll_back(store, "acme", "demo")
    assert store.pointer("demo").generation == "g2"


def test_gc_removes_what_nothing_points_to(store: GenerationStore) -> None:
    (store.root / "demo" / "g4.part").mkdir()
    assert [item.name for item in jobs.collect(store, "demo", dry_run=True)] == ["g3", "g4.part"]
    assert len(states(store)) == 4
    removed = jobs.collect(store, "demo")
    assert [item.name for item in removed] == ["g3", "g4.part"]
    assert removed[0].freed_bytes > 12
    assert states(store) == {"g1": "previous", "g2": "served"}
    assert jobs.collect(store, "demo") == []


def test_gc_leaves_a_running_build_its_own(store: GenerationStore) -> None:
    (store.root / "demo" / "g4.part").mkdir()
    built(store, "g0")
    with store.build_lock("demo"):
        assert [item.name for item in jobs.collect(store, "demo")] == ["g0"]
    assert set(states(store)) == {"g1", "g2", "g3", "g4.part"}


def test_gc_does_nothing_where_nobody_knows_what_to_keep(store: GenerationStore) -> None:
    (store.root / "demo" / "CURRENT").write_text("{")
    with pytest.raises(CorruptIndexError):
        jobs.collect(store, "demo")
    assert len(store.finished("demo")) == 3


# --- the commands ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def run(store: GenerationStore, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    monkeypatch.setenv("RAYCALL_DATA_DIR", str(store.root.parent))
    monkeypatch.setenv("RAYCALL_ACCOUNT", "acme")

    def call(*arguments: str) -> tuple[int, str, str]:
        code = cli.run_command(["generations", *arguments])
        written = capsys.readouterr()
        return code, written.out, written.err

    return call


def test_the_commands_do_what_they_say(run, store: GenerationStore) -> None:  # type: ignore[no-untyped-def]
    code, out, _ = run("list", "--json")
    listed = json.loads(out)["generations"]
    assert code == 0 and [item["state"] for item in listed] == ["previous", "served", "unpublished"]
    assert run("verify")[0] == 0
    assert run("publish", "demo")[:2] == (0, "demo: published g3 instead of g2\n")
    assert json.loads(run("rollback", "demo", "--json")[1])["generation"] == "g2"
    assert "would remove demo  g1" in run("gc", "--dry-run")[1]
    assert json.loads(run("gc", "demo", "--json")[1])["removed"][0]["name"] == "g1"
    assert states(store) == {"g2": "served", "g3": "previous"}


def test_a_damaged_file_is_named_with_exit_code_1(run, store: GenerationStore) -> None:  # type: ignore[no-untyped-def]
    flip(store.folder("demo", "g3") / "b0000" / "vector" / "vectors.faiss")
    code, out, err = run("verify")
    assert code == 1 and err.count("\n") == 1
    assert "demo  g2  intact" in out and "b0000/vector/vectors.faiss" in out
    code, out, _ = run("verify", "demo", "g3", "--json")
    assert code == 1 and not json.loads(out)["intact"]
    code, out, err = run("publish", "demo")
    assert (code, out, err.count("\n")) == (1, "", 1) and "vectors.faiss" in err
    (store.root / "demo" / "CURRENT").write_text("{")
    code, out, _ = run("verify")
    assert code == 1 and "demo  CURRENT  the pointer of project demo is damaged" in out
    assert "CURRENT" in run("list")[1]
    assert run("gc")[0] == 1


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["publish"], 2),
        (["verify", "nowhere"], 1),
        (["publish", "demo", "g9"], 1),
        (["verify", "../x"], 1),
        (["gc", "--force"], 2),
        ([], 2),
    ],
)
def test_what_cannot_be_done_is_one_line(run, arguments: list[str], code: int) -> None:  # type: ignore[no-untyped-def]
    found, out, err = run(*arguments)
    assert (found, out, err.count("\n")) == (code, "", 1)
