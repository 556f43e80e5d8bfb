"""Wires the batch jobs to the real store, cache, models and indexes that a configuration names."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from cluster.config import Config
from cluster.embed.factory import make_embedder
from cluster.embed.settings import EmbedSettings
from cluster.errors import ConfigError
from cluster.ports import Embedder, GraphStore
from cluster.storage import GenerationStore
from jobs.reindex import Gate, Reindexer


class SystemClock:
    """The machine's clock."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch, UTC."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Seconds from an arbitrary start; never goes back."""
        return time.monotonic()


def graph_path(config: Config) -> Path:
    """The graph store's file."""
    return config.data_dir / "graph.sqlite"


def generations_root(config: Config) -> Path:
    """The folder of the generations."""
    return config.data_dir / "generations"


def vectors_path(config: Config) -> Path:
    """The file of the vector cache."""
    return config.data_dir / "vectors.sqlite"


def progress_folder(config: Config) -> Path:
    """The folder of the jobs' progress files."""
    return config.data_dir / "progress"


def log_file(config: Config, process: str) -> Path:
    """The log file of a process whose stderr nobody reads; `process` names its kind, for example "http" or "lexical-0"."""
    return config.data_dir / "logs" / f"{process}.log"


def open_store(config: Config, *, cached_nodes: int = 0) -> GraphStore:
    """The graph store of the configured account; made if it is not there yet, in a folder for this user alone.

    `cached_nodes`: nodes that are kept decoded, for who reads many and changes none.

    Raises ConfigError when the data folder belongs to another account: keys and generations are one account's.
    """
    from cluster.graph.sqlite import SqliteGraphStore

    config.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    claim_account(config)
    return SqliteGraphStore(graph_path(config), account=config.account, cached_nodes=cached_nodes)


def claim_account(config: Config) -> None:
    """Notes the account that the data folder belongs to; raises ConfigError when it is not the configured one."""
    path = config.data_dir / "account"
    try:
        with path.open("x") as file:
            file.write(config.account + "\n")
    except FileExistsError:
        owner = path.read_text().strip()
        # A first start that was killed in between may have left the file empty.
        if not owner:
            path.write_text(config.account + "\n")
        elif owner != config.account:
            detail = f"{config.data_dir} belongs to account {owner}, the configuration says {config.account}"
            raise ConfigError(detail, field="account") from None


def threads_for(config: Config) -> int:
    """Threads of a local model while indexing."""
    return config.embed.threads or os.cpu_count() or 1


def embedder_for(
    config: Config, provider: str, threads: int, timeout_s: float, environ: Mapping[str, str] | None = None
) -> Embedder:
    """The embedder that `provider` names, with the configured model behind it; one call to it may take `timeout_s`."""
    embed = config.embed
    environ = os.environ if environ is None else environ
    url = {"ollama": embed.ollama_url, "openai": embed.openai_url}.get(provider, "")
    api_key = environ.get(embed.openai_api_key_env, "") if provider == "openai" and embed.openai_api_key_env else ""
    remote = provider in {"ollama", "openai"}
    return make_embedder(
        EmbedSettings(
            provider=provider,
            model=embed.model if remote else "",
            dimensions=embed.dimensions if remote else 0,
            url=url,
            api_key=api_key,
            threads=threads,
            timeout_s=timeout_s,
        )
    )


def first_and_target(config: Config, threads: int, timeout_s: float) -> tuple[Embedder, Embedder]:
    """The embedder of a project's first generation and the one of those after it; the same object where they are the same."""
    first = embedder_for(config, config.embed.first, threads, timeout_s)
    if config.embed.then in {"", config.embed.first}:
        return first, first
    return first, embedder_for(config, config.embed.then, threads, timeout_s)


@contextmanager
def reindexer(config: Config, gate: Gate | None = None) -> Iterator[Reindexer]:
    """A reindexer over the real parts. Building starts a JVM in this process: only where Ray has not been started from."""
    from cluster.embed.cache import SqliteVectorCache
    from cluster.index.analysis import analysis
    from cluster.index.lexical import build_lexical
    from cluster.index.vector import write_vectors
    from jobs.build import Builder

    reading = analysis(config.lexical.analyzer)
    store = open_store(config)
    cache = SqliteVectorCache(vectors_path(config))
    try:
        first, target = first_and_target(config, threads_for(config), config.embed.timeout_s)
        builder = Builder(
            store=store,
            generations=GenerationStore(generations_root(config)),
            vectors=cache,
            build_lexical=partial(build_lexical, reading=reading),
            write_vectors=write_vectors,
            analyzer=reading.version,
            target_rows=config.shards.target_rows_per_bucket,
            precision=config.shards.vector_precision,
        )
        yield Reindexer(builder=builder, first=first, target=target, clock=SystemClock(), gate=gate)
    finally:
        cache.close()
        store.close()
