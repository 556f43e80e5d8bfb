"""Batch work on a real Ray: what a worker that dies takes with it, and where workers' logs are."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import ray

from actors.remote import RaySettings, start_ray, stop_ray
from cluster.config import Config, load
from cluster.errors import UnavailableError
from cluster.graph.memory import MemoryGraphStore
from jobs.extract import lost_result
from jobs.ingest import ingest
from jobs.remote import BATCH, map_tasks, run_task, start_task
from jobs.setup import log_file
from jobs.tasks import log_to_file
from serve.indexing import RayPool
from tests.support import batch_jobs

pytestmark = pytest.mark.ray_in_process("first")


#: What a Ray that is gone leaves behind: nobody listens there.
GONE = "127.0.0.1:9"
STORE_BYTES = 100 * 2**20


@pytest.fixture(scope="module", autouse=True)
def ray_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="ray"))  # pytest's folders are too long for a socket's name
    (folder / "ray_current_cluster").write_text(GONE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ADDRESS", GONE)
        start_ray(RaySettings(num_cpus=2, object_store_bytes=STORE_BYTES, temp_dir=folder, environment={}))
        yield folder
        stop_ray()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return replace(load(), data_dir=tmp_path / "data")


def nothing() -> None:
    """Prepares nothing."""


def test_an_item_that_ends_its_worker_costs_no_other_item_its_result(tmp_path: Path) -> None:
    numbers = list(range(3 * BATCH))
    numbers[BATCH + 3] = -1
    function = partial(batch_jobs.note_call, tmp_path)
    results = map_tasks(function, numbers, in_flight=2, on_lost=lambda number: f"lost {number}", prepare=nothing)
    expected: list[object] = [2 * number for number in numbers]
    expected[BATCH + 3] = "lost -1"
    assert list(results) == expected
    # Only the batch that was lost was done again, and the culprit was given a second chance alone.
    calls = [int(path.name.rpartition("-")[0]) for path in tmp_path.iterdir()]
    assert {number: calls.count(number) for number in (0, BATCH, BATCH + 4, 2 * BATCH, -1)} == {
        0: 1,
        BATCH: 2,
        BATCH + 4: 1,
        2 * BATCH: 1,
        -1: 3,
    }


def test_a_ray_of_our_own_runs_whatever_another_one_left(ray_folder: Path) -> None:
    assert ray.get_runtime_context().gcs_address != GONE
    assert (ray_folder / "session_latest").is_dir(), "in the folder that was named"


def test_more_than_the_object_store_holds_passes_through_it(ray_folder: Path) -> None:
    """Nothing is kept of a batch whose results were taken: the store neither fills up nor spills to the disk."""
    numbers = range(10 * BATCH)
    results = map_tasks(batch_jobs.megabyte, numbers, in_flight=2, on_lost=lambda _: b"", prepare=nothing)
    assert sum(len(result) for result in results) == len(numbers) * 2**20 > 1.5 * STORE_BYTES
    spilled = [path for folder in ray_folder.rglob("ray_spilled_objects*") for path in folder.rglob("*") if path.is_file()]
    assert spilled == []


def test_what_a_function_raises_is_an_error_and_no_lost_worker() -> None:
    results = map_tasks(batch_jobs.fail, [1], in_flight=2, on_lost=lambda number: number, prepare=nothing)
    with pytest.raises(UnavailableError, match="a batch task failed: a bug"):
        list(results)


def test_a_file_that_ends_its_worker_is_skipped_in_this_run_and_the_next(tmp_path: Path) -> None:
    names = [f"{number:02}.md" for number in range(20)]
    for name in names:
        (tmp_path / name).write_text(f"# Title of {name}\n\nSome words.\n")
    store = MemoryGraphStore(account="acme")

    def index() -> dict[str, str]:
        report = ingest(
            store,
            tmp_path,
            account="acme",
            project="demo",
            repository="demo",
            now=1,
            extract_many=lambda tasks: RayPool(2).map(batch_jobs.extract, tasks, on_lost=lost_result, prepare=nothing),
        )
        assert report.indexed + report.unchanged + len(report.skipped) == report.files_seen
        return {skip.path: skip.reason for skip in report.skipped}

    assert index() == {}
    known = store.files("acme", "demo")
    assert sorted(known) == names
    (tmp_path / "07.md").rename(tmp_path / "fatal.md")
    assert index() == {"fatal.md": "failed: worker lost"}
    assert sorted(store.files("acme", "demo")) == [name for name in names if name != "07.md"]
    assert index() == {"fatal.md": "failed: worker lost"}, "a later run goes on as well"


def test_logs_of_workers_are_in_the_data_folder(config: Config) -> None:
    assert run_task(batch_jobs.log_and_return, config, "one", poll=nothing) == "local one"
    assert start_task(batch_jobs.log_and_return, config, "two").result() == "local two"
    text = log_file(config, "jobs").read_text()
    assert [line.partition("action=")[2] for line in text.splitlines()] == ["job_ran word=one", "job_ran word=two"]


def test_logs_of_extracting_workers_are_there_too(config: Config) -> None:
    prepare = partial(log_to_file, config)
    log = partial(batch_jobs.log_and_return, config)
    results = list(map_tasks(log, ["x", "y"], in_flight=1, on_lost=lambda word: word, prepare=prepare))
    assert results == ["local x", "local y"]
    assert log_file(config, "jobs").read_text().count("action=job_ran") == 2
