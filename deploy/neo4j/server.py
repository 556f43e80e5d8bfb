"""A Neo4j Community server without Docker: fetched with Maven, started with Java, stopped with what started it.

python -m deploy.neo4j.server [--port PORT] [--folder FOLDER]     runs one in the foreground until Ctrl-C
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
POM = ROOT / "deploy" / "neo4j" / "pom.xml"
LAUNCHER = ROOT / "deploy" / "neo4j" / "Launcher.java"
TOOLS = ROOT / ".tools" / "neo4j"

#: Seconds until a start that says nothing is given up; a busy machine needs twenty.
START_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 60.0

#: Compiles quickly and not well: half of the processor's time until the server answers. For servers that live for minutes.
QUICK_START = ("-XX:TieredStopAtLevel=1",)

_JVM = (
    "-Xms64m",
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-XX:+ExitOnOutOfMemoryError",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/java.io=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.util.concurrent=ALL-UNNAMED",
    "-Dlog4j2.disableJmx=true",
)


class ServerError(Exception):
    """Neo4j could not be fetched or started; the text is one line for people."""


def fetch(tools: Path = TOOLS) -> Path:
    """The folder of the server's jars, fetched unless those of this version are there already."""
    version = _version()
    jars = tools / version
    if jars.is_dir():
        return jars
    maven = _program("mvn", "Maven fetches the Neo4j server (Debian and Ubuntu: sudo apt-get install maven)")
    tools.mkdir(parents=True, exist_ok=True)
    # Into a folder of its own first: another process may fetch at the same time, and half a server must not look whole.
    with tempfile.TemporaryDirectory(dir=tools) as folder:
        command = [maven, "-B", "-q", "-f", str(POM), "dependency:copy-dependencies", "-DincludeScope=runtime"]
        done = subprocess.run(
            [*command, f"-DoutputDirectory={folder}/jars"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise ServerError(f"Maven could not fetch Neo4j {version}: {_last_line(done.stdout + done.stderr)}")
        with contextlib.suppress(OSError):  # somebody else was faster
            Path(folder, "jars").rename(jars)
    return jars


def _version() -> str:
    found = re.search(r"<neo4j\.version>([\w.-]+)<", POM.read_text("utf-8"))
    if found is None:
        raise ServerError(f"{POM.name} names no version of Neo4j")
    return found[1]


def _program(name: str, why: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise ServerError(f"{name} was not found: {why}")
    return found


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith(("[ERROR]", "Caused by:", "error:"))]
    return ([*lines[-1:], *errors[:1]] or ["no reason was given"])[-1][:400]


class Neo4jServer:
    """One server in `folder`, which holds its data, its log and, in `password_file`, its password.

    `port` 0 takes any free one, and keeps it when the server is started again. As a context manager it is started and, whatever
    happens, stopped.
    """

    def __init__(self, folder: Path, *, port: int = 0, jvm: Sequence[str] = ()) -> None:
        self.folder = folder
        self.jvm = jvm
        self.port = port
        self.password_file = folder / "password"
        self.log = folder / "server.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def uri(self) -> str:
        return f"bolt://127.0.0.1:{self.port}"

    @property
    def password(self) -> str:
        return self.password_file.read_text("utf-8").strip()

    @property
    def process_id(self) -> int:
        return 0 if self._process is None else self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def __enter__(self) -> Neo4jServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Returns when the server answers. Raises ServerError with the reason when it does not come up."""
        java = _program(
            "java", "Neo4j 5.26 runs on a JDK, 17 or 21 (Debian and Ubuntu: sudo apt-get install openjdk-17-jdk-headless)"
        )
        jars = fetch()
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._make_password()
        arguments = [str(self.folder), str(self.port), str(self.password_file)]
        command = [java, *_JVM, *self.jvm, "-cp", f"{jars}/*", str(LAUNCHER), *arguments]
        with self.log.open("wb") as log:
            # In a session of its own: Ctrl-C is for the process that started it, which then stops it in order.
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True
            )
        try:
            self.port = self._wait_until_ready()
        except BaseException:
            self.kill()
            raise

    def _make_password(self) -> None:
        with contextlib.suppress(FileExistsError):
            handle = os.open(self.password_file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
            with os.fdopen(handle, "w") as file:
                file.write(secrets.token_urlsafe(24))

    def _wait_until_ready(self) -> int:
        process = self._process
        assert process is not None and process.stdout is not None
        late = threading.Timer(START_TIMEOUT_S, process.kill)
        late.daemon = True
        late.start()
        try:
            for line in process.stdout:
                if found := re.match(rb"ready bolt://127\.0\.0\.1:(\d+)", line):
                    return int(found[1])
        finally:
            late.cancel()
        process.wait()
        raise ServerError(f"Neo4j did not start: {_last_line(self.log.read_text('utf-8', 'replace'))} (see {self.log})")

    def wait(self) -> int:
        """Until the server ends by itself; its exit status."""
        return 0 if self._process is None else self._process.wait()

    def stop(self) -> None:
        """Ends the server in order: everything is on disk, and no process is left."""
        process = self._process
        if process is None:
            return
        assert process.stdin is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
        self._reap(process)

    def kill(self) -> None:
        """Ends the server as a power cut would."""
        if self._process is not None:
            self._process.kill()
            self._reap(self._process)

    def _reap(self, process: subprocess.Popen[bytes]) -> None:
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self._process = None


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="make neo4j", description="A Neo4j Community server on this machine.")
    parser.add_argument("--port", type=int, default=0, help="Bolt port; 0: any free one")
    parser.add_argument("--folder", type=Path, default=ROOT / ".raycall" / "neo4j", help="data, log and password")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        if not (TOOLS / _version()).is_dir():
            print(f"raycall: fetching Neo4j {_version()} with Maven, 125 MB, once", flush=True)
        with Neo4jServer(options.folder, port=options.port) as server:
            print(f"raycall: Neo4j answers at {server.uri}", flush=True)
            print(f"raycall: user neo4j, password in {server.password_file}; Ctrl-C stops it", flush=True)
            return server.wait()
    except ServerError as error:
        print(f"raycall: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
