"""What one replica of the HTTP application is made of. Built inside the replica's own process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from actors.remote import clients
from actors.replicas import RouterSettings
from actors.router import BeforeSwap, Router
from cluster.config import Config
from cluster.model.access import Principal
from cluster.model.manifest import Manifest, VectorIdentity
from cluster.ports import Embedder, GraphStore
from cluster.storage import GenerationStore
from cluster.telemetry import configure_file
from jobs.progress import all_progress
from jobs.setup import (
    SystemClock,
    first_and_target,
    generations_root,
    log_file,
    open_store,
    progress_folder,
    vectors_path,
)
from jobs.tasks import REFINE
from serve.admission import WAITING_SHARE, Lane, LoopLag
from serve.follower import Follower
from serve.router_legs import RouterLegs
from serve.writing import Writing
from serve.writing_shown import LiveShowing
from serve.writing_vectors import VectorFiller

log = logging.getLogger(__name__)

#: Seconds between two looks for newly published generations, and for what was written.
REFRESH_S = 0.5
#: Providers whose models are asked over the network.
REMOTE_PROVIDERS = frozenset({"ollama", "openai"})
#: Nodes that are kept decoded; of source code, 2 KB each.
CACHED_NODES = 8192
#: Questions in work at once however long they take: a slow model must not have them asked one by one.
LEAST_QUESTIONS = 4
#: Batches in flight to one shard when micro-batching is off: in effect, no bound.
NO_BATCHING_LANES = 10_000


def lexical_names(config: Config) -> tuple[str, ...]:
    """The names of the lexical shards."""
    return tuple(f"lexical-{number}" for number in range(config.shards.lexical_actors))


def vector_names(config: Config) -> tuple[str, ...]:
    """The names of the vector shards."""
    return tuple(f"vector-{number}" for number in range(config.shards.vector_actors))


def build_app(config: Config) -> Any:
    """The ASGI application over the shards, the store and the models that `config` names."""
    from serve.deployment import refreshing
    from serve.http.app import Limits, Service, create_app
    from serve.keys import Keys
    from serve.query_log import QueryLog, RecordingRetrieval

    configure_file(config.log.level, config.log.format, log_file(config, "http"))
    clock = SystemClock()
    store = open_store(config, cached_nodes=CACHED_NODES)
    # One query is a few milliseconds of one core; more threads would only fight over the cores with the shards.
    embedders = tuple(dict.fromkeys(first_and_target(config, threads=1, timeout_s=config.embed.query_timeout_s)))
    router = make_router(config, Warmer(embedders))
    legs = RouterLegs(
        router,
        embedders,
        clock,
        max_batch=config.search.max_batch,
        embed_timeout_s=config.embed.query_timeout_s,
    )
    retrieval = RecordingRetrieval(
        log=QueryLog(Path(config.search.query_log)) if config.search.query_log else None,
        account=config.account,
        store=store,
        legs=legs,
        clock=clock,
        deadline_s=config.search.deadline_s,
        related_cap=config.search.max_related,
    )
    status = Status(config, router, store)
    showing = make_showing(config, store, router, embedders)
    lag = LoopLag()
    app = create_app(
        Service(
            retrieval=retrieval,
            keys=Keys(account=config.account, store=store, clock=clock),
            status=status,
            limits=Limits(body_bytes=config.http.max_body_bytes),
            questions=make_questions(config, clock.monotonic),
            lag_s=lag,
            writing=Writing(
                account=config.account,
                store=store,
                clock=clock,
                showing=showing,
                deadline_s=config.search.deadline_s,
                bulk_deadline_s=config.ingress.bulk_deadline_s,
            ),
        )
    )
    follower = Follower(router, store)

    async def refresh() -> None:
        await follower()
        showing.fill_soon()

    app.router.lifespan_context = refreshing(refresh, REFRESH_S, lag.watch)
    return app


def make_questions(config: Config, clock: Callable[[], float]) -> Lane:
    """What questions wait in: half of their time is for waiting, and as much for the work."""
    return Lane(
        "questions",
        clock,
        most=config.ingress.max_ongoing_requests,
        least=LEAST_QUESTIONS,
        target_s=WAITING_SHARE * config.search.deadline_s,
        most_waiting=config.ingress.max_waiting_requests,
    )


def make_showing(config: Config, store: GraphStore, router: Router, embedders: tuple[Embedder, ...]) -> LiveShowing:
    """What shows writes in `router`'s answers, with the models of `embedders`."""
    from cluster.embed.cache import SqliteVectorCache

    # A remote model has as long as in a build; a local one is not loaded twice.
    patient = dict.fromkeys(first_and_target(config, threads=1, timeout_s=config.embed.timeout_s))
    remote = {embedder.identity: embedder for embedder in patient if embedder.identity.provider in REMOTE_PROVIDERS}
    filler = VectorFiller(
        account=config.account,
        store=store,
        cache=SqliteVectorCache(vectors_path(config)),
        embedders=[remote.get(embedder.identity, embedder) for embedder in embedders],
        clock=SystemClock(),
    )
    return LiveShowing(router, filler)


def make_router(config: Config, before_swap: BeforeSwap) -> Router:
    """The router over the named shard actors."""
    batching = config.ingress.micro_batching
    settings = RouterSettings(
        max_batch=config.search.max_batch if batching else 1,
        lanes=1 if batching else NO_BATCHING_LANES,
        hung_s=config.shards.hung_s,
    )
    return Router(
        GenerationStore(generations_root(config)),
        config.account,
        clients(lexical_names(config), config.shards.replicas),
        clients(vector_names(config), config.shards.replicas),
        settings,
        before_swap,
    )


class Warmer:
    """Has the model of a new generation loaded before its first query, so that no caller waits for it."""

    def __init__(self, embedders: tuple[Embedder, ...]) -> None:
        self._embedders = {embedder.identity: embedder for embedder in embedders}
        self._warm: set[VectorIdentity] = set()

    async def __call__(self, manifest: Manifest) -> None:
        """Asks the generation's model once; one that does not answer is no reason to keep the generation out."""
        embedder = self._embedders.get(manifest.identity)
        if embedder is None or manifest.identity in self._warm:
            return
        try:
            await asyncio.to_thread(embedder.embed_query, ["warm up"])
        except Exception as error:
            # Its queries will say so; the words answer meanwhile.
            log.warning("embedder does not answer yet: %s", error, extra={"action": "embedder_cold"})
        else:
            self._warm.add(manifest.identity)


class Status:
    """GET /v1/status: what is served, as far as the principal may know."""

    def __init__(self, config: Config, router: Router, store: GraphStore) -> None:
        self._config = config
        self._router = router
        self._store = store
        self._generations = GenerationStore(generations_root(config))

    async def __call__(self, principal: Principal) -> dict[str, Any]:
        """The state as JSON values. Row counts of a project count what an agent may not read: an admin alone sees them, and
        what of an index the shards cannot open, in words that name files."""
        counts = principal.agent is None
        refined = refinement_progress(self._config)
        refused = self._router.refused()
        projects = []
        registered = {project.project: project for project in self._store.projects(self._config.account)}
        served = self._router.served()
        closed = await self._router.closed() if counts else {}
        for name in sorted({*registered, *served}):
            if principal.projects is not None and name not in principal.projects:
                continue
            manifest = served.get(name)
            record = registered.get(name)
            entry: dict[str, Any] = {
                "project": name,
                "indexed_at": record.indexed_at if record else None,
                "commit": record.commit if record else None,
                "generation": manifest.generation if manifest else None,
                "identity": manifest.identity.key if manifest else None,
            }
            if counts:
                entry["rows"] = manifest.rows if manifest else 0
                entry["vectors"] = manifest.vectors if manifest else 0
                entry["refinement"] = refined.get(name)
                entry["newer_generation_refused"] = refused.get(name)
                entry["not_answering"] = [asdict(part) for part in closed.get(name, ())]
                entry["generation_kept_out"] = self._generations.refused(name)
            projects.append(entry)
        return {
            "account": principal.account,
            "key_id": principal.key_id,
            "projects": projects,
            # How far shards are is how much is written: for who runs the server alone.
            **({"shards": [asdict(replica) for replica in self._router.replicas()]} if counts else {}),
            "ingress": {"ha_proxy": self._config.ingress.ha_proxy, "micro_batching": self._config.ingress.micro_batching},
        }


def refinement_progress(config: Config) -> dict[str, dict[str, Any]]:
    """project -> how far its refinement is; finished ones too."""
    return {
        progress.project: {
            "phase": progress.phase if progress.running or progress.phase in {"done", "failed"} else "stopped",
            "done": progress.done,
            "total": progress.total,
            "detail": progress.detail,
        }
        for progress in all_progress(Path(progress_folder(config)), REFINE)
    }
