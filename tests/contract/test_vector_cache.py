"""One suite over both vector caches, and what only a file on disk can go through."""

from __future__ import annotations

import multiprocessing
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from cluster.embed.cache import MemoryVectorCache, SqliteVectorCache
from cluster.errors import UnavailableError, VectorError
from cluster.model.manifest import VectorIdentity
from cluster.ports import VectorCache

ONE = VectorIdentity(provider="test", model="m1", dimensions=4)
TWO = VectorIdentity(provider="test", model="m2", dimensions=4)


@pytest.fixture(params=["memory", "sqlite"])
def cache(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[VectorCache]:
    opened = MemoryVectorCache() if request.param == "memory" else SqliteVectorCache(tmp_path / "vectors.sqlite")
    yield opened
    opened.close()


def vector(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(4).astype(np.float32)


def test_what_was_put_comes_back_bit_for_bit(cache: VectorCache) -> None:
    vectors = {f"hash{number}": vector(number) for number in range(2_000)}
    cache.put(ONE, vectors)
    found = cache.get(ONE, [*vectors, "absent", "hash1"])
    assert set(found) == set(vectors)
    for key, value in found.items():
        assert value.dtype == np.float32
        np.testing.assert_array_equal(value, vectors[key])


def test_vectors_of_two_identities_never_meet(cache: VectorCache) -> None:
    cache.put(ONE, {"a": vector(1)})
    assert cache.get(TWO, ["a"]) == {}
    cache.put(TWO, {"a": vector(2)})
    np.testing.assert_array_equal(cache.get(ONE, ["a"])["a"], vector(1))
    np.testing.assert_array_equal(cache.get(TWO, ["a"])["a"], vector(2))


def test_the_last_one_put_counts(cache: VectorCache) -> None:
    cache.put(ONE, {"a": vector(1)})
    cache.put(ONE, {"a": vector(2)})
    np.testing.assert_array_equal(cache.get(ONE, ["a"])["a"], vector(2))


def test_nothing_is_nothing(cache: VectorCache) -> None:
    cache.put(ONE, {})
    assert cache.get(ONE, []) == {}
    assert cache.get(ONE, ["a"]) == {}


@pytest.mark.parametrize("bad", [[0, 0, 0, 0], [np.nan, 1, 1, 1], [np.inf, 1, 1, 1], [1, 1, 1]])
def test_a_vector_that_is_none_is_refused_by_name_with_all_beside_it(bad: list[float], cache: VectorCache) -> None:
    with pytest.raises(VectorError, match="culprit"):
        cache.put(ONE, {"a": vector(1), "culprit": np.array(bad, np.float32)})
    assert cache.get(ONE, ["a", "culprit"]) == {}


def test_inputs_are_not_kept_by_reference(cache: VectorCache) -> None:
    given = vector(1)
    cache.put(ONE, {"a": given})
    given[:] = 9
    np.testing.assert_array_equal(cache.get(ONE, ["a"])["a"], vector(1))


def test_threads_may_share_a_cache(cache: VectorCache) -> None:
    def work(number: int) -> None:
        cache.put(ONE, {f"{number}.{step}": vector(step) for step in range(20)})
        assert len(cache.get(ONE, [f"{number}.{step}" for step in range(20)])) == 20

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(8)))
    assert len(cache.get(ONE, [f"{number}.{step}" for number in range(8) for step in range(20)])) == 160


def _fill(path: Path, number: int) -> None:
    cache = SqliteVectorCache(path)
    for step in range(20):
        cache.put(ONE, {f"{number}.{step}": vector(step)})
    cache.close()


def test_processes_may_share_a_file(tmp_path: Path) -> None:
    path = tmp_path / "vectors.sqlite"
    context = multiprocessing.get_context("spawn")
    workers = [context.Process(target=_fill, args=(path, number)) for number in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [worker.exitcode for worker in workers] == [0, 0, 0]
    cache = SqliteVectorCache(path)
    assert len(cache.get(ONE, [f"{number}.{step}" for number in range(3) for step in range(20)])) == 60
    cache.close()


def test_a_file_is_there_after_reopening(tmp_path: Path) -> None:
    for _ in range(2):
        cache = SqliteVectorCache(tmp_path / "deep" / "vectors.sqlite")
        cache.put(ONE, {"a": vector(1)})
        cache.close()
        cache.close()
    cache = SqliteVectorCache(tmp_path / "deep" / "vectors.sqlite")
    assert list(cache.get(ONE, ["a"])) == ["a"]
    cache.close()
    with pytest.raises(UnavailableError):
        cache.get(ONE, ["a"])


def test_a_file_that_is_no_database_is_put_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "vectors.sqlite"
    path.write_bytes(b"this is not a database at all, not even a short one" * 100)
    cache = SqliteVectorCache(path)
    cache.put(ONE, {"a": vector(1)})
    assert list(cache.get(ONE, ["a"])) == ["a"]
    cache.close()
    assert (tmp_path / "vectors.sqlite.damaged").read_bytes().startswith(b"this is not")
    assert [getattr(record, "action", "") for record in caplog.records] == ["vector_cache_replaced"]


def test_a_vector_of_the_wrong_length_in_the_file_is_absent(tmp_path: Path) -> None:
    path = tmp_path / "vectors.sqlite"
    cache = SqliteVectorCache(path)
    cache.put(ONE, {"a": vector(1), "b": vector(2)})
    other = sqlite3.connect(path)
    with other:
        other.execute("UPDATE vectors SET vector = x'00' WHERE hash = 'a'")
    other.close()
    assert list(cache.get(ONE, ["a", "b"])) == ["b"]
    cache.close()


def test_vectors_of_another_version_of_the_file_are_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "vectors.sqlite"
    cache = SqliteVectorCache(path)
    cache.put(ONE, {"a": vector(1)})
    cache.close()
    other = sqlite3.connect(path)
    other.execute("PRAGMA user_version = 99")
    other.close()
    cache = SqliteVectorCache(path)
    assert cache.get(ONE, ["a"]) == {}
    cache.put(ONE, {"a": vector(2)})
    assert list(cache.get(ONE, ["a"])) == ["a"]
    cache.close()


def test_a_path_that_cannot_be_opened_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "vectors.sqlite").mkdir()
    with pytest.raises(UnavailableError):
        SqliteVectorCache(tmp_path / "vectors.sqlite")


@pytest.mark.parametrize("raw", [[np.nan, 1, 1, 1], [np.inf, 0, 0, 0], [0, 0, 0, 0]])
def test_a_damaged_vector_is_as_good_as_absent(raw: list[float], tmp_path: Path) -> None:
    path = tmp_path / "vectors.sqlite"
    cache = SqliteVectorCache(path)
    cache.put(ONE, {"a": vector(1), "b": vector(2)})
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("UPDATE vectors SET vector = ? WHERE hash = 'a'", (np.array(raw, "<f4").tobytes(),))
    connection.close()
    assert list(cache.get(ONE, ["a", "b"])) == ["b"]
    cache.put(ONE, {"a": vector(3)})
    assert sorted(cache.get(ONE, ["a", "b"])) == ["a", "b"]
    cache.close()
