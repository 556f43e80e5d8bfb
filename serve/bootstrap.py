"""What the long commands do: index a folder, and run the whole stack until it is interrupted."""

from __future__ import annotations

import itertools
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from cluster.config import Config
from cluster.errors import RaycallError, UnavailableError
from cluster.model.manifest import Manifest
from cluster.storage import GenerationStore
from jobs.model import CALLS
from jobs.pending import pending_changes
from jobs.setup import SystemClock, first_and_target, generations_root, open_store
from jobs.walk import default_project, walk
from serve import machine
from serve.client import connect
from serve.indexing import HerePool, Indexed, RayPool, index_folder, ingest_options
from serve.keys import Keys
from serve.machine import Ingress
from serve.refiner import Refiner

#: phase, done, total
Progress = Callable[[str, int, int | None], None]

#: Files of a folder from which on starting a Ray for indexing pays: below it, its start alone takes longer than the work.
RAY_FROM_FILES = 400
#: Seconds between two looks after the background work.
TICK_S = 0.5
#: Calls that are looked at for the first question.
FIRST_CALLS = 50_000
#: Seconds that the application has to serve what was indexed while it started.
SERVED_TIMEOUT_S = 60.0


def index_command(
    config: Config, folder: Path, project: str | None, progress: Progress, *, replace_root: bool = False
) -> dict[str, Any]:
    """Indexes `folder` and says what came of it, as JSON values. A running server takes the new generation by itself.

    A folder of many new files is read on a Ray of this command's own, a small one in this process. `replace_root` allows a
    project that holds another folder to be filled from this one instead.
    """
    config = absolute(config)
    name = project or default_project(folder)
    if not _is_large(config, folder, name):
        return indexed_as_json(index_folder(config, folder, name, progress, HerePool(), replace_root=replace_root))
    machine.secure_ray(os.environ)
    from serve.stack import running_ray

    run_dir = machine.run_dir_of(config.data_dir).with_name(f"raycall-{os.getuid()}-i{os.getpid()}")
    with running_ray(config, run_dir, {}):
        pool = RayPool(_cpus(config))
        return indexed_as_json(index_folder(config, folder, name, progress, pool, replace_root=replace_root))


def serve_command(config: Config, *, index: Path | None, project: str | None, json: bool, progress: Progress) -> None:
    """Runs the stack until SIGINT or SIGTERM; leaves no process behind. Raises what keeps it from starting."""
    config = absolute(config)
    with machine.sole_server(config.data_dir):
        _serve(config, index, project, json, progress)


def _serve(config: Config, index: Path | None, project: str | None, json: bool, progress: Progress) -> None:
    machine.secure_ray(os.environ)
    from serve import stack

    for number in machine.ENDING:
        # Set by hand, since a shell starts background jobs with SIGINT ignored.
        signal.signal(number, _interrupt)
    key_file = ensure_key(config)
    run_dir = machine.run_dir_of(config.data_dir)
    ports = machine.Ports()
    ingress = stack.planned_ingress(config, ports)
    # From here on the configuration says what is, so that the status does.
    config = replace(config, ingress=replace(config.ingress, ha_proxy=ingress.ha_proxy))
    say = _Say(quiet=json)
    say(f"starting Ray on {_cpus(config)} CPUs")
    try:
        with stack.running_ray(config, run_dir, stack.environment_for(config, ingress, run_dir)):
            indexed = _start(config, ingress, index, project, progress, say)
            machine.write_state(config.data_dir, _state(ingress, run_dir))
            asked_project = indexed.report.project if indexed is not None else ""
            question = _first_question(config, asked_project) if asked_project else "where are errors handled"
            say.ready(config, ingress, key_file, question, asked_project, json=json)
            if indexed is not None:
                _until_served(config, indexed.manifest)
                if not json:
                    say.first_answer(config, indexed.report.project, question)
            _stay(config, stack)
    except KeyboardInterrupt:
        say("stopping")
    finally:
        ports.close()


def _start(
    config: Config, ingress: Ingress, index: Path | None, project: str | None, progress: Progress, say: _Say
) -> Indexed | None:
    """Brings the stack up and indexes meanwhile: much of a start is waiting for processes."""
    from serve import stack

    say("starting the shards and the HTTP application")
    indexed = None
    beside = ThreadPoolExecutor(1)
    started = beside.submit(stack.start_everything, config, ingress)
    try:
        if index is not None:
            say(f"indexing {index}")
            indexed = index_folder(config, index, project, progress, RayPool(_cpus(config)))
            say.report(indexed)
        started.result()
    finally:
        # Not waited for: if indexing failed or was interrupted, Ray is stopped under it next.
        beside.shutdown(wait=False)
    return indexed


def first_body(question: str, project: str) -> dict[str, Any]:
    """The question that a new user is shown, as a body of POST /v1/search; "" asks in every project."""
    body: dict[str, Any] = {"query": question, "limit": 3, "expand_hops": 0}
    return {**body, "projects": [project]} if project else body


def _until_served(config: Config, manifest: Manifest) -> None:
    """Waits until the application serves what was indexed while it started."""
    client = connect(config.data_dir, None, None, {}, 30.0)
    until = time.monotonic() + SERVED_TIMEOUT_S
    while time.monotonic() < until:
        projects = client.json("GET", "/v1/status")["projects"]
        if any(entry["project"] == manifest.project and entry["generation"] == manifest.generation for entry in projects):
            return
        time.sleep(0.1)
    raise UnavailableError(f"generation {manifest.generation} of project {manifest.project} is not served")


def _first_question(config: Config, project: str) -> str:
    """Asks for the documented symbol of the project that is called most; without calls, for what the project is."""
    store = open_store(config)
    try:
        edges = itertools.islice(store.edges(config.account, project), FIRST_CALLS)
        called = [node_id for node_id, _ in Counter(edge.to_id for edge in edges if edge.type == CALLS).most_common(50)]
        nodes = store.get_nodes(called)
    finally:
        store.close()
    documented = [nodes[node_id].text for node_id in called if node_id in nodes]
    # What tests call most says little about a project.
    documented.sort(key=lambda text: "test" in text.get("path", "").lower())
    symbol = next((text["symbol"] for text in documented if text.get("symbol") and text.get("summary")), None)
    return f"what does {symbol} do" if symbol else f"what is {project}"


def absolute(config: Config) -> Config:
    """`config` with absolute paths: workers need not share this process's working directory."""
    gate, log = config.publish.gate, config.search.query_log
    return replace(
        config,
        data_dir=config.data_dir.resolve(),
        publish=replace(config.publish, gate=gate and str(Path(gate).expanduser().resolve())),
        search=replace(config.search, query_log=log and str(Path(log).expanduser().resolve())),
    )


def ensure_key(config: Config) -> Path:
    """The file of the operator's key; an admin key is made and written there, readable by its owner alone, if there is none."""
    path = config.data_dir / "key"
    store = open_store(config)
    try:
        keys = Keys(account=config.account, store=store, clock=SystemClock())
        if path.is_file() and _works(keys, path.read_text().strip()):
            return path
        secret = keys.create(name="operator").secret
    finally:
        store.close()
    temporary = path.with_name(f".key.{os.getpid()}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(secret + "\n")
    temporary.rename(path)
    return path


def indexed_as_json(indexed: Indexed) -> dict[str, Any]:
    """What indexing came to, as JSON values."""
    report, manifest = indexed.report, indexed.manifest
    return {
        "project": report.project,
        "commit": report.commit,
        "files": {
            "seen": report.files_seen,
            "indexed": report.indexed,
            "unchanged": report.unchanged,
            "removed": report.removed,
            "skipped": len(report.skipped),
        },
        "skipped": report.skipped_by_reason,
        "skipped_files": [{"path": skip.path, "reason": skip.reason} for skip in report.skipped],
        "warnings": list(report.warnings),
        "nodes": report.nodes,
        "edges": report.edges,
        "long_tokens_cut": report.long_tokens_cut,
        "fallback_encodings": report.fallback_encodings,
        "control_characters_removed": report.control_characters_removed,
        "generation": manifest.generation,
        "rows": manifest.rows,
        "vectors": manifest.vectors,
        "identity": manifest.identity.key,
        "kept_out": indexed.kept_out,
    }


class _Say:
    """What `raycall serve` tells the person who started it: on stderr until it is ready, then on stdout."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._started = time.monotonic()

    def __call__(self, text: str) -> None:
        if not self._quiet:
            sys.stderr.write(f"raycall: [{time.monotonic() - self._started:5.1f} s] {text}\n")
            sys.stderr.flush()

    def report(self, indexed: Indexed) -> None:
        """The counts of an indexing run, with the reasons for what was left out."""
        report, manifest = indexed.report, indexed.manifest
        skipped = ", ".join(f"{count} {reason}" for reason, count in report.skipped_by_reason.items())
        self(
            f"{report.indexed} files read, {report.unchanged} unchanged, {report.removed} removed, "
            f"{len(report.skipped)} skipped{f' ({skipped})' if skipped else ''}; {manifest.rows} rows are searchable"
        )

    def ready(self, config: Config, ingress: Ingress, key_file: Path, question: str, project: str, *, json: bool) -> None:
        """Where the server is and how to ask it."""
        import orjson

        if json:
            state = {"url": ingress.url, "port": ingress.port, "key_file": str(key_file), "ha_proxy": ingress.ha_proxy}
            state["ha_proxy_problem"] = ingress.fallback
            sys.stdout.write(orjson.dumps(state).decode() + "\n")
            sys.stdout.flush()
            return
        if ingress.port != config.http.port and config.http.port:
            self(f"port {config.http.port} is taken: listening on {ingress.port} instead")
        if ingress.fallback is not None:
            self(f"HAProxy is not used: {ingress.fallback}; requests go through Ray Serve's own proxy, which is slower")
        self(f"ready on {ingress.url}")
        asked = orjson.dumps(first_body(question, project)).decode().replace("'", "\\u0027")
        sys.stdout.write(
            f"\nkey file:  {key_file}\n"
            f"\n  curl -s {ingress.url}/v1/search -H \"Authorization: Bearer $(cat '{key_file}')\" \\\n"
            f"    -H 'Content-Type: application/json' -d '{asked}'\n\n"
        )
        sys.stdout.flush()

    def first_answer(self, config: Config, project: str, question: str) -> None:
        """Asks one real question over HTTP and shows the answer."""
        sys.stdout.write(f'  raycall search "{question}" --project {project} --limit 3 --expand-hops 0\n\n')
        try:
            client = connect(config.data_dir, None, None, {}, 30.0)
            sys.stdout.write(client.text("POST", "/v1/search", first_body(question, project)))
        except RaycallError as error:
            self(f"the first question was not answered: {error.detail}")
        sys.stdout.write("\nCtrl-C stops everything.\n")
        sys.stdout.flush()


def _stay(config: Config, stack: Any) -> None:
    """Looks after the background work until the process is interrupted."""
    store = open_store(config)
    refiner = Refiner(
        generations=GenerationStore(generations_root(config)),
        start=lambda project: stack.refine_in_background(config, project),
        clock=SystemClock(),
        target=first_and_target(config, threads=1, timeout_s=config.embed.timeout_s)[1].identity,
        pending=partial(pending_changes, store),
        revision=store.revision,
        most_changes=config.delta.max_rows,
    )
    try:
        while True:
            refiner.step()
            time.sleep(TICK_S)
    finally:
        refiner.stop()
        store.close()


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


def _state(ingress: Ingress, run_dir: Path) -> machine.ServerState:
    return machine.ServerState(
        pid=os.getpid(),
        host=ingress.host,
        port=ingress.port,
        url=ingress.url,
        started_at=SystemClock().now_ms(),
        run_dir=str(run_dir),
    )


def _works(keys: Keys, secret: str) -> bool:
    try:
        keys.authenticate(f"Bearer {secret}")
    except RaycallError:
        return False
    return True


def _is_large(config: Config, folder: Path, project: str) -> bool:
    """Whether enough files are new to the store that a Ray is worth its start."""
    options = ingest_options(config)
    store = open_store(config)
    try:
        known = len(store.files(config.account, project))
    finally:
        store.close()
    return len(walk(folder, options.limits, options.exclude).files) - known >= RAY_FROM_FILES


def _cpus(config: Config) -> int:
    return config.ray.num_cpus or os.cpu_count() or 1
