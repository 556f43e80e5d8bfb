"""What a server needs of the machine that it runs on: a free port, a folder for sockets, and no leftovers of a dead one."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import secrets
import shutil
import signal
import socket
import stat
import tempfile
import threading
import time
from collections.abc import Iterator, MutableMapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from cluster.errors import ConflictError, UnavailableError, UsageError

#: Ports after the wished one that are tried before any free one is taken.
NEXT_PORTS = 20
#: Where the ports lie that are not for clients (below those that the kernel gives to outgoing connections), and how many one
#: server takes: HAProxy's, the fallback proxy's, and one for each replica that is up or being replaced.
INNER_FIRST, INNER_LAST, INNER_PORTS = 20_000, 30_000, 50
#: Signals by which a server is asked to end: from the terminal, from a supervisor, and because the terminal is gone.
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: The variable whose value marks the processes of one server.
MARK = "_RAYCALL_RUN_DIR"
#: Seconds that a leftover process has to end after SIGTERM.
GRACE_S = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerState:
    """The running server, as other processes find it."""

    pid: int
    host: str
    port: int
    url: str
    #: Milliseconds since the epoch.
    started_at: int
    #: Folder of the server's sockets and of Ray's logs.
    run_dir: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingress:
    """How requests reach the application, once it is up."""

    host: str
    port: int
    #: Ports on the loopback address for what stands behind the ingress.
    inner: range
    ha_proxy: bool
    #: Why HAProxy is not in front although the configuration wants it; None where it is, or is not wanted.
    fallback: str | None = None

    @property
    def url(self) -> str:
        """The address for clients on this machine."""
        host = "127.0.0.1" if self.host in {"0.0.0.0", "::", ""} else self.host  # noqa: S104
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"


def secure_ray(environ: MutableMapping[str, str]) -> None:
    """Gives the Ray that is started next a token of its own: its ports are open to whoever reaches the machine.

    Must come before the first import of ray, which reads it then.
    """
    environ["RAY_AUTH_MODE"] = "token"
    environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    environ.setdefault("RAY_SERVE_LOG_TO_STDERR", "0")


def state_path(data_dir: Path) -> Path:
    """The file that names the running server."""
    return data_dir / "server.json"


def read_state(data_dir: Path) -> ServerState | None:
    """The server that was last started on `data_dir`, running or not; None when there is no readable record."""
    try:
        return ServerState(**json.loads(state_path(data_dir).read_bytes()))
    except (OSError, ValueError, TypeError):
        return None


def write_state(data_dir: Path, state: ServerState) -> None:
    """Records the running server."""
    path = state_path(data_dir)
    temporary = path.with_suffix(f".{os.getpid()}.part")
    temporary.write_text(json.dumps(asdict(state)))
    temporary.rename(path)


@contextlib.contextmanager
def sole_server(data_dir: Path) -> Iterator[None]:
    """Holds `data_dir` for one server; raises ConflictError while another one has it, from its very start to its end.

    The kernel frees the lock when its holder dies, so nothing is ever left over.
    """
    data_dir.mkdir(parents=True, exist_ok=True)
    with (data_dir / "server.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            state = read_state(data_dir)
            where = f"at {state.url} (process {state.pid})" if state is not None else "(it is starting)"
            raise ConflictError(f"a server with this data folder runs already {where}") from error
        state_path(data_dir).unlink(missing_ok=True)
        try:
            yield
        finally:
            state_path(data_dir).unlink(missing_ok=True)


def run_dir_of(data_dir: Path) -> Path:
    """The folder of sockets for `data_dir`: always the same one, and short: a Unix socket's name has at most 107 bytes."""
    token = hashlib.blake2b(os.fsencode(data_dir.resolve()), digest_size=5).hexdigest()
    return Path(tempfile.gettempdir()) / f"raycall-{os.getuid()}-{token}"


class Ports:
    """The ports of one server, held against other servers of this user until `close`.

    HAProxy and Ray Serve bind with SO_REUSEPORT: two servers that chose the same port would both get it, without an error, and
    answer each other's requests. So a port is only taken together with the lock on its name, which the kernel frees when the
    holder dies; and a port on which anything listens already, such as what a killed server left, is passed over.
    """

    def __init__(self) -> None:
        self._locks: list[IO[str]] = []

    def public(self, host: str, wished: int) -> int:
        """`wished` if it is free on `host`, else one of the next, else any; UsageError when `host` is no address of ours."""
        candidates = range(wished, min(wished + NEXT_PORTS, 65_536)) if wished else ()
        for port in (*candidates, *(0 for _ in range(NEXT_PORTS))):
            found = _bindable(host, port)
            if found is not None and self._lock(f"port-{found}"):
                return found
        raise UsageError(f"no free port on {host}", field="http.port")

    def inner(self) -> range:
        """INNER_PORTS ports on the loopback address for what is not meant for clients. UnavailableError when there are none."""
        for first in range(INNER_FIRST, INNER_LAST, INNER_PORTS):
            ports = range(first, first + INNER_PORTS)
            if self._lock(f"ports-{first}"):
                if all(_bindable("127.0.0.1", port) is not None for port in ports):
                    return ports
                self._locks.pop().close()
        raise UnavailableError("no free ports on the loopback address")

    def close(self) -> None:
        """Lets the ports go."""
        while self._locks:
            self._locks.pop().close()

    def _lock(self, name: str) -> bool:
        # Anybody may make a folder of this name in the shared one: only our own is used, and nothing in it is truncated.
        folder = _own_folder(Path(tempfile.gettempdir()) / f"raycall-{os.getuid()}-locks")
        file = os.fdopen(os.open(folder / name, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600), "r+")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            return False
        self._locks.append(file)
        return True


def _own_folder(folder: Path) -> Path:
    """`folder`, made if it is not there; UnavailableError unless it is a folder of this user that nobody else can write to."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise UnavailableError(f"{folder} belongs to somebody else or is open to others; remove it")
    return folder


def make_run_dir(run_dir: Path) -> Path:
    """Makes the folder of sockets anew, for this user alone."""
    shutil.rmtree(run_dir, ignore_errors=True)
    return _own_folder(run_dir)


def _bindable(host: str, port: int) -> int | None:
    """The port (the one that the kernel chose for 0) if nothing listens on it; raises UsageError when `host` is not ours."""
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            return int(probe.getsockname()[1])
    except socket.gaierror as error:
        raise UsageError(f"cannot listen on {host}:{port}: no such address", field="http.host") from error
    except OSError as error:
        if error.errno in _TAKEN:
            return None
        raise UsageError(f"cannot listen on {host}:{port}: {error.strerror}", field="http.host") from error


_TAKEN = {errno.EADDRINUSE}


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Signals that ask to end are not heard during the body. Only in the main thread; elsewhere it does nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, signal.SIG_IGN) for number in ENDING}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def marked(run_dir: Path) -> dict[str, str]:
    """The environment by which `end_leftovers` knows the processes of `run_dir`; every child inherits it."""
    return {MARK: str(run_dir)}


def end_leftovers(run_dir: Path, grace_s: float = GRACE_S) -> list[int]:
    """Ends all processes that carry the mark of `run_dir` or write their output there, waits for their end, returns their ids.

    A server that was killed could not take its helpers along. The caller holds the folder: no live server has that mark.
    """
    found: set[int] = set()
    # Asked, then killed; one that a helper starts while it ends is asked or killed with the next look.
    for number, wait_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, GRACE_S)):
        asked: set[int] = set()
        until = time.monotonic() + wait_s
        while (left := set(_marked_processes(run_dir))) and time.monotonic() < until:
            for pid in left - asked:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
            asked |= left
            time.sleep(0.02)
        found |= asked
    return sorted(found)


def _marked_processes(run_dir: Path) -> list[int]:
    entry_of_mark = os.fsencode(f"{MARK}={run_dir}")
    found = []
    for entry in Path("/proc").iterdir() if Path("/proc").is_dir() else ():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            marked_one = entry_of_mark in (entry / "environ").read_bytes().split(b"\0") or _writes_below(entry, run_dir)
            if marked_one and _state(entry) != "Z":
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def _writes_below(entry: Path, folder: Path) -> bool:
    """Whether the process of `entry` has its standard output or errors in a file below `folder`, be that deleted by now.

    A process that changes its title, as Ray's do, may write it over its environment, and the mark with it.
    """
    return any(folder in (entry / "fd" / number).readlink().parents for number in ("1", "2"))


def _state(entry: Path) -> str:
    return (entry / "stat").read_text().rpartition(")")[2].split()[0]
