import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cluster.graph.memory import MemoryGraphStore
from cluster.ports import WriteBatch
from jobs.ingest import IngestOptions
from jobs.refuse import Skip
from tests.support.factories import ACCOUNT
from tests.support.git_tree import commit, git, write
from tests.support.ingested import (
    fresh_store,
    live_nodes,
    run_ingest,
    stored_contents,
    stored_paths,
    stored_symbols,
    visible_state,
)


@pytest.fixture
def store() -> MemoryGraphStore:
    return MemoryGraphStore(account=ACCOUNT)


# --- what changed ------------------------------------------------------------------------------------------------------------


def test_only_what_changed_is_read_again(tmp_path: Path, store: MemoryGraphStore) -> None:
    write(tmp_path, {"a.md": "# A\n\none\n", "b.py": "def f():\n    return 1\n", "c.yaml": "key: 1\n"})
    first = run_ingest(store, tmp_path)
    assert (first.files_seen, first.indexed, first.unchanged, first.removed) == (3, 3, 0, 0)
    assert first.nodes == len(live_nodes(store)) == 7
    assert first.edges == len([*store.edges(ACCOUNT, "main")]) == 4
    before = store.revision()
    second = run_ingest(store, tmp_path, now=2_000)
    assert (second.indexed, second.unchanged, second.revision) == (0, 3, before)
    assert (second.nodes, second.edges) == (first.nodes, first.edges)
    write(tmp_path, {"a.md": "# A\n\ntwo\n"})
    third = run_ingest(store, tmp_path, now=3_000)
    assert (third.indexed, third.unchanged) == (1, 2)
    changed = {change.subject for change in store.changes(before)}
    assert {node.text.get("content") for node in live_nodes(store) if node.id in changed} >= {"two"}
    assert not changed & {node.id for node in live_nodes(store) if node.source and node.source.path != "a.md"}
    assert {node.created_at for node in live_nodes(store)} == {1_000}


def test_a_change_that_keeps_size_and_time_is_seen(tmp_path: Path, store: MemoryGraphStore) -> None:
    write(tmp_path, {"a.md": "one\n"})
    run_ingest(store, tmp_path)
    stamp = (tmp_path / "a.md").stat()
    write(tmp_path, {"a.md": "two\n"})
    os.utime(tmp_path / "a.md", ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert run_ingest(store, tmp_path).indexed == 1
    assert stored_contents(store, "a.md") == ["two"]


def test_another_extractor_another_limit_or_another_repository_name_reads_everything_again(
    tmp_path: Path, store: MemoryGraphStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, {"a.md": "one\n"})
    run_ingest(store, tmp_path)
    assert run_ingest(store, tmp_path, options=IngestOptions(max_chars=100)).indexed == 1
    assert run_ingest(store, tmp_path, options=IngestOptions(max_chars=100), repository="other").indexed == 1
    assert {node.source.repository for node in live_nodes(store) if node.source} == {"other"}
    monkeypatch.setattr("jobs.extract.VERSION", "next")
    assert run_ingest(store, tmp_path, options=IngestOptions(max_chars=100), repository="other").indexed == 1


def test_renamed_and_deleted_files_leave_nothing_behind(tmp_path: Path, store: MemoryGraphStore) -> None:
    source = "def alpha():\n    return 2\n\n\ndef beta():\n    return alpha()\n"
    commit(tmp_path, {"a.py": source, "gone.py": "def zeta_gone():\n    return 1\n"})
    run_ingest(store, tmp_path)
    git(tmp_path, "mv", "a.py", "b.py")
    git(tmp_path, "rm", "-q", "gone.py")
    head = commit(tmp_path, {"b.py": source + "# moved\n"})
    report = run_ingest(store, tmp_path)
    assert (report.indexed, report.removed, report.commit) == (1, 2, head)
    assert visible_state(store) == visible_state(fresh_store(tmp_path))
    assert stored_paths(store) == ["b.py"]
    assert set(store.files(ACCOUNT, "main")) == {"b.py"}


def test_links_between_files_follow_every_change(tmp_path: Path, store: MemoryGraphStore) -> None:
    write(
        tmp_path,
        {"lib.py": "def helper():\n    return 1\n", "app.py": "from lib import helper\n\n\ndef main():\n    helper()\n"},
    )
    run_ingest(store, tmp_path)
    kinds = {edge.type for edge in visible_state(store)[1].values()}
    assert {"IMPORTS", "CALLS", "DEFINES"} <= kinds
    write(tmp_path, {"app.py": "from lib import helper\n\n# The call is a line lower now.\n\n\ndef main():\n    helper()\n"})
    run_ingest(store, tmp_path)
    assert visible_state(store) == visible_state(fresh_store(tmp_path))
    write(tmp_path, {"lib.py": "def other():\n    return 1\n"})
    run_ingest(store, tmp_path)
    assert visible_state(store) == visible_state(fresh_store(tmp_path))
    assert "CALLS" not in {edge.type for edge in visible_state(store)[1].values()}
    write(tmp_path, {"lib.py": "X = 1\n\n\ndef helper():\n    return 1\n"})
    run_ingest(store, tmp_path)
    assert visible_state(store) == visible_state(fresh_store(tmp_path))
    (tmp_path / "lib.py").unlink()
    run_ingest(store, tmp_path)
    assert visible_state(store) == visible_state(fresh_store(tmp_path))
    assert [*store.edges(ACCOUNT, "main")] == [*fresh_store(tmp_path).edges(ACCOUNT, "main")]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("# A\n\n## B\n\ntext\n", "# A\n\nx\n\n# B\n\ntext\n"),
        ("# A\n\n##\n\ntext\n", "# A\n\n# A\n\ntext\n"),  # the second section keeps its id and gets another parent
    ],
)
def test_a_section_that_moves_leaves_no_edge_from_its_old_place(
    tmp_path: Path, store: MemoryGraphStore, before: str, after: str
) -> None:
    write(tmp_path, {"a.md": before})
    run_ingest(store, tmp_path)
    write(tmp_path, {"a.md": after})
    run_ingest(store, tmp_path)
    assert visible_state(store) == visible_state(fresh_store(tmp_path))


_FILES = ["a.md", "b.py", "dir/c.py", "d.txt", "e.json"]
_TEXTS = [
    "# A\n\none\n\n## B\n\ntwo\n",
    "# A\n\none\n",
    "# B\n\n" + "long text. " * 40,
    "def f():\n    return g()\n\n\ndef g():\n    return 1\n",
    "from b import f\n\n\nclass K:\n    def g(self):\n        return f()\n",
    "import dir.c\n\n\ndef g():\n    return dir.c.f()\n",
    "",
    "---\n",
    "\x00\x01\x02\xff" * 10,
]
_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.sampled_from(_FILES), st.sampled_from(_TEXTS)),
        st.tuples(st.just("delete"), st.sampled_from(_FILES), st.none()),
        st.tuples(st.just("rename"), st.sampled_from(_FILES), st.sampled_from(_FILES)),
        st.tuples(st.just("ingest"), st.none(), st.none()),
        st.tuples(st.just("interrupt"), st.integers(0, 3), st.none()),
    ),
    max_size=14,
)


@given(steps=_STEPS)
@settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_after_any_history_the_store_is_what_a_fresh_run_gives(
    steps: list[tuple[str, Any, Any]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("repo")
    store = MemoryGraphStore(account=ACCOUNT)
    options = IngestOptions(max_chars=200, batch_files=2)
    for kind, first, second in steps:
        if kind == "write":
            write(root, {first: second})
        elif kind == "delete":
            (root / first).unlink(missing_ok=True)
        elif kind == "rename" and (root / first).exists():
            write(root, {second: (root / first).read_bytes()})
            if second != first:
                (root / first).unlink()
        elif kind == "ingest":
            run_ingest(store, root, options=options)
        elif kind == "interrupt":
            _interrupted(store, root, first, options)
    run_ingest(store, root, options=options)
    assert visible_state(store) == visible_state(fresh_store(root, options=options))
    assert run_ingest(store, root, options=options).indexed == 0


def _interrupted(store: MemoryGraphStore, root: Path, at: int, options: IngestOptions) -> None:
    def stop(phase: str, done: int, total: int, path: str) -> None:
        if phase == "extract" and done >= at:
            raise KeyboardInterrupt

    with suppress(KeyboardInterrupt):
        run_ingest(store, root, options=options, progress=stop)


# --- git ---------------------------------------------------------------------------------------------------------------------


def test_the_run_after_the_first_commit_is_incremental(tmp_path: Path, store: MemoryGraphStore) -> None:
    git(tmp_path, "init", "-q")
    write(tmp_path, {"f.py": "def f():\n    return 1\n"})
    assert (run_ingest(store, tmp_path).commit, run_ingest(store, tmp_path).unchanged) == (None, 1)
    head = commit(tmp_path)
    report = run_ingest(store, tmp_path)
    assert (report.commit, report.indexed, report.unchanged, report.warnings) == (head, 0, 1, ())
    assert store.projects(ACCOUNT)[0].commit == head


def test_a_worktree_is_a_project_of_its_own(tmp_path: Path, store: MemoryGraphStore) -> None:
    commit(tmp_path / "repo", {"f.py": "def f():\n    return 1\n"})
    git(tmp_path / "repo", "worktree", "add", "-q", "-b", "feat", "../wt")
    head = commit(tmp_path / "wt", {"g.py": "def g():\n    return 2\n"})
    run_ingest(store, tmp_path / "repo")
    before = visible_state(store)
    run_ingest(store, tmp_path / "wt", project="wt")
    assert visible_state(store) == before
    assert stored_paths(store, "wt") == ["f.py", "g.py"]
    assert {node.source.commit for node in live_nodes(store, "wt") if node.source} == {head}


def test_replaced_history_is_noticed_and_ends_as_a_fresh_run(tmp_path: Path, store: MemoryGraphStore) -> None:
    old = commit(tmp_path, {"m.py": "def old_one():\n    return 1\n", "same.md": "# Same\n\ntext\n"})
    run_ingest(store, tmp_path)
    git(tmp_path, "checkout", "-q", "--orphan", "fresh")
    head = commit(tmp_path, {"m.py": "def new_one():\n    return 2\n"})
    git(tmp_path, "branch", "-qD", "main")
    git(tmp_path, "reflog", "expire", "--expire=now", "--all")
    git(tmp_path, "gc", "-q", "--prune=now")
    report = run_ingest(store, tmp_path)
    assert (report.indexed, report.unchanged) == (2, 0)
    assert "rewritten or shallow history" in report.warnings[0]
    assert visible_state(store) == visible_state(fresh_store(tmp_path))
    cited = {node.source.commit for node in live_nodes(store) if node.source}
    assert cited == {head} != {old}
    assert run_ingest(store, tmp_path).warnings == ()


def test_a_shallow_clone_is_read_like_any_other(tmp_path: Path, store: MemoryGraphStore) -> None:
    commit(tmp_path / "repo", {"a.md": "one\n"})
    head = commit(tmp_path / "repo", {"b.md": "two\n"})
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{tmp_path}/repo", "clone")
    report = run_ingest(store, tmp_path / "clone")
    assert (report.commit, report.indexed) == (head, 2)


def test_unchanged_parts_keep_the_commit_that_they_were_read_at(tmp_path: Path, store: MemoryGraphStore) -> None:
    first = commit(tmp_path, {"a.md": "# A\n\none\n\n# B\n\ntwo\n"})
    run_ingest(store, tmp_path)
    second = commit(tmp_path, {"a.md": "# A\n\none\n\n# B\n\nthree\n"})
    run_ingest(store, tmp_path)
    cited = {node.text.get("content") or node.text["title"]: node.source and node.source.commit for node in live_nodes(store)}
    assert (cited["one"], cited["three"]) == (first, second)
    assert visible_state(store, commits=False) == visible_state(fresh_store(tmp_path), commits=False)


@pytest.mark.parametrize("name", ["données café.py", "a b/x.py", "tab\tname.py", 'quote"q.py', "-rf.py"])
def test_files_with_awkward_names_are_updated(tmp_path: Path, store: MemoryGraphStore, name: str) -> None:
    commit(tmp_path, {name: "def f():\n    return 1\n"})
    run_ingest(store, tmp_path)
    commit(tmp_path, {name: "def f():\n    return 1\n\n\ndef g():\n    return 2\n"})
    assert run_ingest(store, tmp_path).indexed == 1
    assert stored_symbols(store, name) == {"f", "g"}


# --- bytes and text ----------------------------------------------------------------------------------------------------------


def test_encodings_are_read_and_guesses_counted(tmp_path: Path, store: MemoryGraphStore) -> None:
    body = "def café_total(x):\n    return x\n\n\ndef plain_one():\n    return café_total(1)\n"
    write(
        tmp_path,
        {
            "cookie.py": ("# -*- coding: latin-1 -*-\n" + body).encode("latin-1"),
            "latin.py": body.encode("latin-1"),
            "utf16.py": "def wide():\n    return 1\n".encode("utf-16"),
            "ok.py": "def ok():\n    return 1\n",
        },
    )
    report = run_ingest(store, tmp_path)
    assert (report.indexed, report.fallback_encodings, report.skipped) == (4, 1, ())
    assert stored_symbols(store, "cookie.py") == stored_symbols(store, "latin.py") == {"café_total", "plain_one"}
    assert (stored_symbols(store, "utf16.py"), stored_symbols(store, "ok.py")) == ({"wide"}, {"ok"})


def test_stored_text_and_ids_keep_the_original_normal_form(tmp_path: Path, store: MemoryGraphStore) -> None:
    composed, decomposed = "# résumé\n\n한국어\n", "# re\u0301sume\u0301\n\n\u1112\u1161\u11ab국어\n"
    write(tmp_path, {"é.md": composed, "e\u0301.md": decomposed})
    run_ingest(store, tmp_path)
    assert stored_paths(store) == ["e\u0301.md", "é.md"]
    assert stored_contents(store, "é.md") == ["한국어"]
    assert stored_contents(store, "e\u0301.md") == ["\u1112\u1161\u11ab국어"]
    assert {node.text["title"] for node in live_nodes(store) if "Section" in node.labels} == {"résumé", "re\u0301sume\u0301"}


def test_control_bytes_never_reach_the_store(tmp_path: Path, store: MemoryGraphStore) -> None:
    write(tmp_path, {"nul.txt": b"Invoice F\x0013 alpha\x00omega gamma\nsecond line\n"})
    assert run_ingest(store, tmp_path).control_characters_removed == 2
    assert stored_contents(store, "nul.txt") == ["Invoice F 13 alpha omega gamma\nsecond line\n"]


def test_a_word_too_long_for_the_index_is_counted_and_costs_nobody_else(tmp_path: Path, store: MemoryGraphStore) -> None:
    write(
        tmp_path,
        {
            "ok-1.md": "# One\nThe turbine is serviced in spring.\n",
            "blob.md": "# Blob\nThe gearbox drawing follows.\n\n" + "QUJDRGVm" * 5_000 + "\n",
            "ok-2.md": "# Two\nThe rotor is balanced in autumn.\n",
        },
    )
    report = run_ingest(store, tmp_path)
    assert (report.indexed, report.long_tokens_cut) == (3, 1)
    assert stored_contents(store, "blob.md")[0].startswith("The gearbox drawing follows.")
    assert stored_contents(store, "ok-2.md") == ["The rotor is balanced in autumn."]


def test_a_line_break_is_one_whatever_the_file_uses(tmp_path: Path, store: MemoryGraphStore) -> None:
    write(tmp_path, {"a.md": "\ufeff---\r\ntitle: Pump guide\r\ntags: [ops]\r\n---\r\n# Start\r\n\r\ntext\r\n"})
    run_ingest(store, tmp_path)
    everything = "".join(value for node in live_nodes(store) for value in node.text.values())
    assert "\r" not in everything
    assert "\ufeff" not in everything
    assert {node.text["title"] for node in live_nodes(store)} == {"Pump guide", "Start"}


# --- what is left out --------------------------------------------------------------------------------------------------------


def test_minified_and_huge_files_are_named_and_real_ones_are_not(tmp_path: Path, store: MemoryGraphStore) -> None:
    write(
        tmp_path,
        {
            "dist/app.min.js": "".join(f"function a{n}(b){{return b+{n}}};" for n in range(70_000)),
            "dist/bundle.js": "".join(f"function a{n}(b){{return b+{n}}};" for n in range(1_000)),
            "data.json": "[" + ",".join(f'{{"k":{n}}}' for n in range(30_000)) + "]",
            "big_but_real.py": "".join(
                f"def f_{n:04}(x):\n    # written by hand\n    return x + {n}\n\n\n" for n in range(800)
            ),
        },
    )
    report = run_ingest(store, tmp_path)
    assert [(skip.path, skip.reason.split(":")[0]) for skip in report.skipped] == [
        ("data.json", "oversized data"),
        ("dist/app.min.js", "minified"),
        ("dist/bundle.js", "minified"),
    ]
    assert report.skipped_by_reason == {"minified": 2, "oversized data": 1}
    assert "f_0799" in stored_symbols(store, "big_but_real.py")


def test_blank_documents_are_listed_as_skipped_and_cannot_be_found(tmp_path: Path, store: MemoryGraphStore) -> None:
    write(tmp_path, {"e1.md": "", "e2.md": "  \u200b ", "e3.md": "---\n", "pkg/__init__.py": "", "pkg/a.py": "import pkg\n"})
    for _ in range(2):
        report = run_ingest(store, tmp_path)
        assert [skip for skip in report.skipped if skip.reason == "empty"] == [
            Skip(path, "empty") for path in ("e1.md", "e2.md", "e3.md", "pkg/__init__.py")
        ]
        assert [node.source and node.source.path for node in live_nodes(store) if node.text] == ["pkg/a.py", "pkg/a.py"]
    assert len(live_nodes(store)) == 6
    assert "IMPORTS" in {edge.type for edge in visible_state(store)[1].values()}


@pytest.mark.parametrize("second", ["", "   \n", "---\ntitle: Empty now\n---\n"])
def test_a_version_without_text_takes_the_old_text_away(tmp_path: Path, store: MemoryGraphStore, second: str) -> None:
    write(tmp_path, {"d.md": "alpha secretword\n"})
    run_ingest(store, tmp_path)
    write(tmp_path, {"d.md": second})
    run_ingest(store, tmp_path)
    assert [node.labels for node in live_nodes(store)] == [("Document",)]
    assert "secretword" not in repr(live_nodes(store))


class _Watched(MemoryGraphStore):
    """Looks at the store after every write, as a reader would."""

    def __init__(self) -> None:
        super().__init__(account=ACCOUNT)
        self.batches: list[WriteBatch] = []
        self.chunks: list[int] = []

    def write(self, batch: WriteBatch) -> int:
        revision = super().write(batch)
        self.batches.append(batch)
        self.chunks.append(sum("Chunk" in node.labels for node in self._nodes.values()))
        return revision


def test_a_shorter_version_leaves_no_old_chunk_and_no_moment_without_any(tmp_path: Path) -> None:
    store = _Watched()
    parts = [f"# Part {n}\n" + "Stable text about pumps. " * 35 for n in range(1, 6)]
    write(tmp_path, {"d.md": "\n\n".join(parts) + "oldword\n"})
    run_ingest(store, tmp_path)
    assert store.chunks[-1] == 5
    store.chunks.clear()
    write(tmp_path, {"d.md": "# Part 1\nStable text about pumps.\n\n# Part 2\nShort now.\n"})
    run_ingest(store, tmp_path)
    assert set(store.chunks) == {2}
    assert "oldword" not in repr(live_nodes(store))


def test_a_file_is_never_known_before_its_nodes_are_stored(tmp_path: Path) -> None:
    store = _Watched()
    write(tmp_path, {f"{n:03}.md": f"# Number {n}\n\ntext {n}\n" for n in range(120)})
    run_ingest(store, tmp_path)
    stored = [batch for batch in store.batches if batch.files]
    assert [len(batch.files) for batch in stored] == [50, 50, 20]
    for batch in stored:
        assert {file.path for file in batch.files} == {node.source.path for node in batch.nodes if node.source}
        assert {path for _, _, path in batch.replace_paths} == {file.path for file in batch.files}


def test_batches_are_bounded_in_bytes_as_well(tmp_path: Path) -> None:
    store = _Watched()
    write(tmp_path, {f"{n}.md": "word " * 100 for n in range(6)})
    run_ingest(store, tmp_path, options=IngestOptions(batch_bytes=1_000))
    assert [len(batch.files) for batch in store.batches if batch.files] == [2, 2, 2]
