"""How many threads each process may use, so that all of a machine's together are about as many as it has CPUs."""

from __future__ import annotations

import os
from collections.abc import Mapping

from cluster.config import Config

#: What OpenMP and the BLAS libraries in the wheels of numpy and FAISS read when they are loaded.
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def cpus_of(config: Config) -> int:
    """The CPUs that are to be used, 1 or more: as configured, or those that this process may run on."""
    return config.ray.num_cpus or len(os.sched_getaffinity(0))


def shard_threads(config: Config) -> int:
    """Threads of one vector actor: as configured, or its part of the CPUs among all actors of shards, at least 1."""
    actors = (config.shards.lexical_actors + config.shards.vector_actors) * config.shards.replicas
    return config.shards.vector_threads or max(1, cpus_of(config) // actors)


def thread_environment(config: Config, environ: Mapping[str, str]) -> dict[str, str]:
    """How many threads the numeric libraries start in each of Ray's processes, where `environ` does not say so.

    Each would take all CPUs of the machine, in every process. FAISS's own number is set again before each search.
    """
    return {name: str(shard_threads(config)) for name in THREAD_VARIABLES if name not in environ}
