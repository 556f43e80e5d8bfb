import pickle
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cluster.errors import ConflictError, UsageError
from cluster.graph.memory import MemoryGraphStore
from cluster.model.nodes import Scope, Store
from cluster.ports import WriteBatch
from jobs import lock
from jobs.extract import ExtractResult, ExtractTask, extract_file, extract_locally, run_extract
from jobs.ingest import IngestOptions
from jobs.model import FileContext
from jobs.refuse import Limits, Skip
from tests.support.factories import ACCOUNT, make_edge, make_node
from tests.support.git_tree import commit, write
from tests.support.ingested import (
    fresh_store,
    live_nodes,
    run_ingest,
    stored_contents,
    stored_paths,
    visible_state,
)

FAMILY = "👩\u200d👩\u200d👧\u200d👦"


@pytest.fixture
def store() -> MemoryGraphStore:
    return MemoryGraphStore(account=ACCOUNT)


# --- failures ----------------------------------------------------------------------------------------------------------------


def _failing(path: str, how: str) -> Any:
    def extract_many(tasks: Sequence[ExtractTask]) -> Iterator[ExtractResult]:
        for task in tasks:
            if task.context.path != path:
                yield run_extract(task)
            elif how == "failed":
                yield ExtractResult(path=path, refused="failed: ValueError: no", broken=True)

    return extract_many


_FAILURES = [("failed", "failed: ValueError: no"), ("lost", "failed: the worker gave no answer")]


@pytest.mark.parametrize(("how", "reason"), _FAILURES)
def test_one_file_that_fails_stops_nothing_and_is_read_by_the_next_run(
    tmp_path: Path, store: MemoryGraphStore, how: str, reason: str
) -> None:
    write(tmp_path, {"a.md": "one\n", "d.md": "two\n", "z.md": "three\n"})
    report = run_ingest(store, tmp_path, extract_many=_failing("d.md", how))
    assert (report.indexed, report.skipped) == (2, (Skip("d.md", reason),))
    assert stored_paths(store) == ["a.md", "z.md"]
    again = run_ingest(store, tmp_path)
    assert (again.indexed, again.unchanged, again.skipped) == (1, 2, ())
    assert visible_state(store) == visible_state(fresh_store(tmp_path))


def test_what_is_known_of_a_file_outlives_a_failure_to_read_it(tmp_path: Path, store: MemoryGraphStore) -> None:
    write(tmp_path, {"d.md": "two\n"})
    run_ingest(store, tmp_path)
    write(tmp_path, {"d.md": "three\n"})
    report = run_ingest(store, tmp_path, extract_many=_failing("d.md", "failed"))
    assert report.warnings == ("d.md: failed: ValueError: no; what an earlier run stored of it is kept",)
    assert stored_contents(store, "d.md") == ["two"]
    assert run_ingest(store, tmp_path).indexed == 1
    assert stored_contents(store, "d.md") == ["three"]


def test_any_exception_of_a_reader_is_that_files_reason(
    tmp_path: Path, store: MemoryGraphStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(text: str, context: FileContext) -> None:
        if "bad" in context.path:
            raise MemoryError("too much")
        return original(text, context)

    import jobs.extract

    original: Any = jobs.extract.extract_markdown
    monkeypatch.setattr("jobs.extract.extract_markdown", broken)
    write(tmp_path, {"bad.md": "x\n", "good.md": "y\n"})
    report = run_ingest(store, tmp_path)
    assert (report.indexed, report.skipped) == (1, (Skip("bad.md", "failed: MemoryError: too much"),))


def test_a_file_that_cannot_be_opened_is_named(
    tmp_path: Path, store: MemoryGraphStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, {"a.md": "one\n", "b.md": "two\n", "c.md": "three\n"})
    (tmp_path / "target.md").write_text("x")

    def swapped(tasks: Sequence[ExtractTask]) -> Iterator[ExtractResult]:
        (tmp_path / "a.md").unlink()
        (tmp_path / "b.md").unlink()
        (tmp_path / "b.md").symlink_to("target.md")
        (tmp_path / "c.md").unlink()
        subprocess.run(["mkfifo", tmp_path / "c.md"], check=True)
        return extract_locally(tasks)

    report = run_ingest(store, tmp_path, extract_many=swapped)
    assert report.skipped == (
        Skip("a.md", "gone while it was read"),
        Skip("b.md", "symlink"),
        Skip("c.md", "unreadable: not a regular file"),
    )
    assert stored_paths(store) == ["target.md"]


def test_an_interrupted_run_resumes_and_ends_as_a_fresh_one(tmp_path: Path, store: MemoryGraphStore) -> None:
    write(tmp_path, {f"{n:03}.md": f"# Number {n}\n\ntext {n}\n" for n in range(130)})
    with pytest.raises(KeyboardInterrupt):
        _stop_at(store, tmp_path, 100)
    report = run_ingest(store, tmp_path)
    assert (report.indexed, report.unchanged) == (30, 100)
    assert visible_state(store) == visible_state(fresh_store(tmp_path))


def _stop_at(store: MemoryGraphStore, root: Path, at: int) -> None:
    def stop(phase: str, done: int, total: int, path: str) -> None:
        if phase == "extract" and done == at:
            raise KeyboardInterrupt

    run_ingest(store, root, progress=stop)


def test_progress_counts_up_to_the_total_in_every_phase(tmp_path: Path, store: MemoryGraphStore) -> None:
    write(tmp_path, {"a.md": "one\n", "b.md": "two\n"})
    seen: list[tuple[str, int, int, str]] = []
    run_ingest(store, tmp_path, progress=lambda *step: seen.append(step))
    assert seen == [
        ("walk", 0, 2, "a.md"),
        ("walk", 1, 2, "b.md"),
        ("walk", 2, 2, ""),
        ("extract", 0, 2, "a.md"),
        ("extract", 1, 2, "b.md"),
        ("extract", 2, 2, ""),
        ("link", 0, 1, ""),
        ("link", 1, 1, ""),
    ]


def test_tasks_and_results_can_go_to_another_process_and_come_in_any_order(tmp_path: Path, store: MemoryGraphStore) -> None:
    write(tmp_path, {"a.md": "# A\n\none\n", "b.py": "def f():\n    return 1\n"})

    def elsewhere(tasks: Sequence[ExtractTask]) -> Iterator[ExtractResult]:
        for task in reversed(tasks):
            result = pickle.loads(pickle.dumps(run_extract(pickle.loads(pickle.dumps(task)))))
            assert isinstance(result, ExtractResult)
            yield result

    run_ingest(store, tmp_path, extract_many=elsewhere)
    assert visible_state(store) == visible_state(fresh_store(tmp_path))


# --- together with others ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("in_files", [True, False])
def test_two_runs_at_one_project_do_not_meet(tmp_path: Path, store: MemoryGraphStore, in_files: bool) -> None:
    root = tmp_path / "repo"
    write(root, {"a.md": "one\n"})
    options = IngestOptions(lock_folder=tmp_path / "locks" if in_files else None)
    refused: list[ConflictError] = []

    def meanwhile(phase: str, done: int, total: int, path: str) -> None:
        if phase == "link" and done == 0:
            run_ingest(store, root, project="other", options=options)
            with pytest.raises(ConflictError) as caught:
                run_ingest(store, root, options=options)
            refused.append(caught.value)

    run_ingest(store, root, options=options, progress=meanwhile)
    assert "is being indexed already" in refused[0].detail
    assert run_ingest(store, root, options=options).unchanged == 1


def test_the_lock_is_free_after_a_failure(tmp_path: Path) -> None:
    for folder in (tmp_path, None):
        with pytest.raises(RuntimeError), lock.exclusive(folder, tmp_path, "ingest", "p"):
            raise RuntimeError
        with lock.exclusive(folder, tmp_path, "ingest", "p"):
            pass


def test_a_project_is_not_replaced_by_another_folder_of_the_same_name(tmp_path: Path, store: MemoryGraphStore) -> None:
    write(tmp_path, {"one/api/a.md": "one\n", "two/api/b.md": "two\n"})
    run_ingest(store, tmp_path / "one/api")
    with pytest.raises(ConflictError) as caught:
        run_ingest(store, tmp_path / "two/api")
    assert caught.value.field == "project"
    assert "raycall index --replace" in caught.value.detail
    assert stored_paths(store) == ["a.md"]
    run_ingest(store, tmp_path / "two/api", options=IngestOptions(replace_root=True))
    assert stored_paths(store) == ["b.md"]
    (tmp_path / "two").rename(tmp_path / "moved")
    assert run_ingest(store, tmp_path / "moved/api").unchanged == 1


def test_tags_and_deletions_outlive_a_new_version_of_the_file(tmp_path: Path, store: MemoryGraphStore) -> None:
    write(tmp_path, {"a.md": "# A\n\none\n\n# B\n\ntwo\n"})
    run_ingest(store, tmp_path)
    chunks = {node.text["content"]: node for node in live_nodes(store) if "Chunk" in node.labels}
    tagged = replace(chunks["one"], scope=Scope.ADMIN, agents=("iris",))
    store.write(WriteBatch(nodes=(tagged,), soft_delete=(chunks["two"].id,), now=5))
    write(tmp_path, {"a.md": "# A\n\none more\n\n# B\n\ntwo\n\n# C\n\nthree\n"})
    run_ingest(store, tmp_path)
    found = store.get_nodes([chunks["one"].id, chunks["two"].id])
    assert found[tagged.id].text["content"] == "one more"
    assert (found[tagged.id].scope, found[tagged.id].agents) == (Scope.ADMIN, ("iris",))
    assert found[chunks["two"].id].deleted_at == 5


def test_what_agents_wrote_is_left_alone(tmp_path: Path, store: MemoryGraphStore) -> None:
    write(tmp_path, {"a.py": "def f():\n    return 1\n"})
    run_ingest(store, tmp_path)
    symbol = next(node for node in live_nodes(store) if "Symbol" in node.labels)
    note = make_node("note", store=Store.WORK, path="a.py")
    store.write(
        WriteBatch(nodes=(note,), edges=(make_edge("note", symbol.id, "REFERENCES"), make_edge("note", symbol.id, "ABOUT")))
    )
    write(tmp_path, {"a.py": "def f():\n    return 2\n"})
    run_ingest(store, tmp_path)
    assert {(edge.type, edge.to_id) for edge in store.edges(ACCOUNT, "main") if edge.from_id == "note"} == {
        ("REFERENCES", symbol.id),
        ("ABOUT", symbol.id),
    }
    assert "note" in store.get_nodes(["note"])


def test_bad_input_is_refused_before_anything_is_written(tmp_path: Path, store: MemoryGraphStore) -> None:
    with pytest.raises(UsageError) as caught:
        run_ingest(store, tmp_path, project="../x")
    assert caught.value.field == "project"
    with pytest.raises(UsageError):
        run_ingest(store, tmp_path / "missing")
    assert store.projects(ACCOUNT) == []


def test_the_project_is_recorded_with_root_commit_and_time(tmp_path: Path, store: MemoryGraphStore) -> None:
    head = commit(tmp_path, {"a.md": "one\n"})
    run_ingest(store, tmp_path, now=77)
    project = store.projects(ACCOUNT)[0]
    assert (project.root, project.commit, project.indexed_at) == (str(tmp_path.resolve()), head, 77)


def test_one_file_alone_can_be_extracted() -> None:
    context = FileContext(ACCOUNT, "main", "repo", "notes/é.txt", None, 1, max_chars=512)
    extracted = extract_file(("a" * 511 + FAMILY + " words\n").encode(), context)
    assert [node.text["content"] for node in extracted.nodes[1:]] == ["a" * 511, FAMILY + " words\n"]
    task = ExtractTask("/nowhere", b"x.md", context, Limits())
    assert run_extract(task).refused == "gone while it was read"
