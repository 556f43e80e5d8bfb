from __future__ import annotations

from dataclasses import replace

import pytest

from cluster.config import Config
from serve.threads import THREAD_VARIABLES, cpus_of, shard_threads, thread_environment


def config(cpus: int, lexical: int, vector: int, threads: int = 0) -> Config:
    base = Config()
    shards = replace(base.shards, lexical_actors=lexical, vector_actors=vector, vector_threads=threads)
    return replace(base, ray=replace(base.ray, num_cpus=cpus), shards=shards)


@pytest.mark.parametrize(
    ("cpus", "lexical", "vector", "threads", "expected"),
    [(2, 1, 1, 0, 1), (8, 1, 1, 0, 4), (2, 4, 4, 0, 1), (16, 4, 4, 0, 2), (2, 1, 1, 3, 3)],
)
def test_shards_share_the_cpus_out(cpus: int, lexical: int, vector: int, threads: int, expected: int) -> None:
    assert shard_threads(config(cpus, lexical, vector, threads)) == expected


def test_without_a_number_the_cpus_are_those_of_this_process() -> None:
    assert cpus_of(config(0, 1, 1)) >= 1


def test_the_libraries_are_told_unless_the_user_has_told_them() -> None:
    settings = config(8, 2, 2)
    assert thread_environment(settings, {}) == dict.fromkeys(THREAD_VARIABLES, "2")
    assert "OMP_NUM_THREADS" not in thread_environment(settings, {"OMP_NUM_THREADS": "7"})
