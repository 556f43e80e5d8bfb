"""The whole stack on one machine: Ray, the shards, the HTTP application, the background work. Started, watched, ended."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from actors.remote import (
    LexicalShardActor,
    RaySettings,
    ShardSettings,
    VectorShardActor,
    start_ray,
    start_shards,
    stop_ray,
)
from actors.source import Source
from cluster.config import Config
from cluster.errors import UnavailableError
from jobs.remote import Task, start_task
from jobs.setup import generations_root, graph_path, log_file, vectors_path
from jobs.tasks import refine
from serve import machine
from serve.deployment import ha_proxy_problem, ingress_environment, start_serving
from serve.gate import make_gate
from serve.replica import build_app, lexical_names, vector_names
from serve.threads import cpus_of, shard_threads, thread_environment

#: Seconds that the application has to answer its health check after it was deployed.
READY_TIMEOUT_S = 60.0


@contextlib.contextmanager
def running_ray(config: Config, run_dir: Path, environment: dict[str, str]) -> Iterator[None]:
    """Ray for the body; when it is left, in whatever way, Ray and all that it started are gone, and so is the folder."""
    machine.end_leftovers(run_dir)
    machine.make_run_dir(run_dir)
    settings = RaySettings(
        num_cpus=cpus_of(config),
        object_store_bytes=config.ray.object_store_memory_bytes,
        temp_dir=Path(config.ray.temp_dir) if config.ray.temp_dir else run_dir / "ray",
        environment={
            "RAY_USAGE_STATS_ENABLED": "0",
            **thread_environment(config, os.environ),
            **machine.marked(run_dir),
            **environment,
        },
    )
    try:
        start_ray(settings)
        yield
    finally:
        # A second Ctrl-C must not leave half of it behind.
        with machine.undisturbed():
            stop_ray()
            machine.end_leftovers(run_dir)
            shutil.rmtree(run_dir, ignore_errors=True)


def start_all_shards(config: Config) -> None:
    """Starts the shard actors and waits until they are up."""
    lexical, vector = lexical_names(config), vector_names(config)
    common = ShardSettings(
        root=generations_root(config).resolve(),
        shards=lexical,
        source=Source(graph=graph_path(config).resolve(), account=config.account),
        vectors=vectors_path(config).resolve(),
        delta_rows=config.delta.max_rows,
        logs=log_file(config, "shard").parent,
        log_level=config.log.level,
        log_format=config.log.format,
        heap_mib=config.shards.jvm_heap_bytes // 1024**2,
        threads=shard_threads(config),
        analyzer=config.lexical.analyzer,
    )
    start_shards(LexicalShardActor, lexical, common, config.shards.replicas)
    start_shards(VectorShardActor, vector, replace(common, shards=vector), config.shards.replicas)


def planned_ingress(config: Config, ports: machine.Ports) -> machine.Ingress:
    """The ingress that this machine can give, on ports that are ours as long as `ports` holds them."""
    problem = ha_proxy_problem() if config.ingress.ha_proxy else None
    return machine.Ingress(
        host=config.http.host,
        port=ports.public(config.http.host, config.http.port),
        inner=ports.inner(),
        ha_proxy=config.ingress.ha_proxy and problem is None,
        fallback=problem,
    )


def environment_for(config: Config, ingress: machine.Ingress, run_dir: Path) -> dict[str, str]:
    """What Ray must be started with for `ingress`."""
    longest_s = max(config.search.deadline_s, config.ingress.bulk_deadline_s)
    return ingress_environment(run_dir, ingress.inner, ha_proxy=ingress.ha_proxy, longest_s=longest_s)


def start_application(config: Config, ingress: machine.Ingress) -> None:
    """Deploys the application and waits until it answers through the ingress; raises UnavailableError when it does not."""
    start_serving(config, ingress.port, build_app, {})
    until = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < until:
        if _healthy(ingress.url):
            return
        time.sleep(0.1)
    raise UnavailableError(f"the application does not answer on {ingress.url}")


def start_everything(config: Config, ingress: machine.Ingress) -> None:
    """The shards, then the application in front of them."""
    start_all_shards(config)
    start_application(config, ingress)


def _healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/healthz", timeout=2) as reply:  # noqa: S310
            return bool(reply.status == 200 and json.loads(reply.read()))
    except (OSError, ValueError):
        return False


def refine_in_background(config: Config, project: str) -> Task:
    """Starts the refinement of one project on Ray."""
    return start_task(refine, config, project, make_gate)
