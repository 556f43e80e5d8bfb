"""What the long commands do: index a folder, and run the whole stack until it is interrupted."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from cluster.config import Config
from cluster.errors import RaycallError
from cluster.storage import GenerationStore
from jobs.setup import SystemClock, generations_root, open_store
from jobs.walk import default_project, walk
from serve import machine
from serve.indexing import HerePool, Indexed, RayPool, index_folder, ingest_options
from serve.keys import Keys
from serve.refiner import Refiner

#: phase, done, total
Progress = Callable[[str, int, int | None], None]

#: Files of a folder from which on starting a Ray for indexing pays: below it, its start alone takes longer than the work.
RAY_FROM_FILES = 400
#: Seconds between two looks after the background work.
TICK_S = 0.5
#: A question that any repository can answer something to.
FIRST_QUESTION = "where is the main entry point and what does it do"


def index_command(config: Config, folder: Path, project: str | None, progress: Progress) -> dict[str, Any]:
    """Indexes `folder` and says what came of it, as JSON values. A running server takes the new generation by itself.

    A folder of many new files is read on a Ray of this command's own, a small one in this process.
    """
    config = absolute(config)
    name = project or default_project(folder)
    if not _is_large(config, folder, name):
        return indexed_as_json(index_folder(config, folder, name, progress, HerePool()))
    from serve.stack import running_ray

    run_dir = machine.run_dir_of(config.data_dir).with_name(f"raycall-{os.getuid()}-i{os.getpid()}")
    with running_ray(config, run_dir, {}):
        return indexed_as_json(index_folder(config, folder, name, progress, RayPool(_cpus(config))))


def serve_command(config: Config, *, index: Path | None, project: str | None, json: bool, progress: Progress) -> None:
    """Runs the stack until SIGINT or SIGTERM; leaves no process behind. Raises what keeps it from starting."""
    config = absolute(config)
    with machine.sole_server(config.data_dir):
        _serve(config, index, project, json, progress)


def _serve(config: Config, index: Path | None, project: str | None, json: bool, progress: Progress) -> None:
    from serve import stack

    for number in machine.ENDING:
        # Set by hand, since a shell starts background jobs with SIGINT ignored.
        signal.signal(number, _interrupt)
    key_file = ensure_key(config)
    run_dir = machine.run_dir_of(config.data_dir)
    ports = machine.Ports()
    ingress = stack.planned_ingress(config, ports)
    name = None if index is None else project or default_project(index)
    say = _Say(quiet=json)
    say(f"starting Ray on {_cpus(config)} CPUs")
    try:
        with stack.running_ray(config, run_dir, stack.environment_for(ingress, run_dir)):
            say("starting the shards and the HTTP application")
            with ThreadPoolExecutor(1) as beside:
                # Much of it is waiting for processes to come up: indexing goes on meanwhile.
                started = beside.submit(stack.start_everything, config, ingress)
                if index is not None:
                    say(f"indexing {index} as project {name}")
                    say.report(index_folder(config, index, name, progress, RayPool(_cpus(config))))
                started.result()
            machine.write_state(config.data_dir, _state(ingress, run_dir))
            say.ready(config, ingress, key_file, json=json)
            if index is not None and not json:
                say.first_answer(config, name)
            _stay(config, stack)
    finally:
        ports.close()


def absolute(config: Config) -> Config:
    """`config` with an absolute data folder: workers need not share this process's working directory."""
    return replace(config, data_dir=config.data_dir.resolve())


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

    def ready(self, config: Config, ingress: Any, key_file: Path, *, json: bool) -> None:
        """Where the server is and how to ask it."""
        if json:
            import orjson

            state = {"url": ingress.url, "port": ingress.port, "key_file": str(key_file), "ha_proxy": ingress.ha_proxy}
            sys.stdout.write(orjson.dumps(state).decode() + "\n")
            sys.stdout.flush()
            return
        if ingress.port != config.http.port and config.http.port:
            self(f"port {config.http.port} is taken: listening on {ingress.port} instead")
        if ingress.fallback is not None:
            self(f"HAProxy is not used: {ingress.fallback}; requests go through Ray Serve's own proxy, which is slower")
        self(f"ready on {ingress.url}")
        body = '{"query": "' + FIRST_QUESTION + '", "limit": 3}'
        sys.stdout.write(
            f"\nkey file:  {key_file}\n"
            f"\n  curl -s {ingress.url}/v1/search -H \"Authorization: Bearer $(cat '{key_file}')\" \\\n"
            f"    -H 'Content-Type: application/json' -d '{body}'\n\n"
        )
        sys.stdout.flush()

    def first_answer(self, config: Config, project: str | None) -> None:
        """Asks one real question over HTTP and shows the answer."""
        from serve.client import connect

        sys.stdout.write(f'raycall search "{FIRST_QUESTION}"\n\n')
        try:
            client = connect(config.data_dir, None, None, {}, 30.0)
            question = {"query": FIRST_QUESTION, "limit": 3, "expand_hops": 0, "projects": [project] if project else None}
            sys.stdout.write(client.text("POST", "/v1/search", question))
        except RaycallError as error:
            self(f"the first question was not answered: {error.detail}")
        sys.stdout.write("\nCtrl-C stops everything.\n")
        sys.stdout.flush()


def _stay(config: Config, stack: Any) -> None:
    """Looks after the background work until the process is interrupted."""
    refiner = Refiner(
        generations=GenerationStore(generations_root(config)),
        start=lambda project: stack.refine_in_background(config, project),
        clock=SystemClock(),
    )
    try:
        while True:
            refiner.step()
            time.sleep(TICK_S)
    except KeyboardInterrupt:
        sys.stderr.write("raycall: stopping\n")
    finally:
        refiner.stop()


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


def _state(ingress: Any, run_dir: Path) -> machine.ServerState:
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
