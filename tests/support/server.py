"""The whole stack as a user starts it: the `raycall` command in a process of its own."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RAYCALL = Path(sys.executable).with_name("raycall")
START_TIMEOUT_S = 240.0


def clean_env(data_dir: Path, **settings: str) -> dict[str, str]:
    """The environment of a command: ours, without settings of whoever runs the tests, and with `settings`.

    One model only, so that nothing is embedded in the background, and a deadline that a busy machine keeps.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAYCALL_")}
    return {**kept, "RAYCALL_DATA_DIR": str(data_dir), "RAYCALL_EMBED_THEN": "", "RAYCALL_SEARCH_DEADLINE_S": "20", **settings}


def raycall(data_dir: Path, *arguments: str, timeout: float = 240, **settings: str) -> subprocess.CompletedProcess[str]:
    """One command, to its end."""
    return subprocess.run(
        [RAYCALL, *arguments],
        env=clean_env(data_dir, **settings),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        stdin=subprocess.DEVNULL,
    )


@dataclass
class Reply:
    """An HTTP answer, whatever its status."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Server:
    """A running `raycall serve`."""

    def __init__(self, data_dir: Path, *arguments: str, **settings: str) -> None:
        self.data_dir = data_dir
        self.log = data_dir.with_name(data_dir.name + ".log")
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [RAYCALL, "serve", "--json", "--port", "0", *arguments],
                env=clean_env(data_dir, **settings),
                stdout=subprocess.PIPE,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        try:
            self.state = json.loads(self._first_line())
        except BaseException:
            self.stop()
            raise
        self.url: str = self.state["url"]
        self.key = Path(self.state["key_file"]).read_text().strip()

    def _first_line(self) -> bytes:
        assert self.process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            if not selector.select(START_TIMEOUT_S):
                raise TimeoutError(f"the server did not start:\n{self.log.read_text()[-4000:]}")
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the server ended with {self.process.wait()}:\n{self.log.read_text()[-4000:]}")
        return line

    def request(
        self, method: str, path: str, body: Any = None, *, key: str | None = None, raw: bytes | None = None, **headers: str
    ) -> Reply:
        """One request; `body` is sent as JSON, `raw` as it is."""
        data = raw if raw is not None else None if body is None else json.dumps(body).encode()
        sent = {"authorization": f"Bearer {self.key if key is None else key}"}
        if data is not None:
            sent["content-type"] = "application/json"
        sent.update({name.replace("_", "-"): value for name, value in headers.items()})
        request = urllib.request.Request(self.url + path, data=data, method=method, headers=sent)
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                return Reply(reply.status, {k.lower(): v for k, v in reply.headers.items()}, reply.read())
        except urllib.error.HTTPError as error:
            with error:
                return Reply(error.code, {k.lower(): v for k, v in error.headers.items()}, error.read())

    def search(self, query: str, **fields: Any) -> Any:
        """The answer to a question that must succeed."""
        reply = self.request("POST", "/v1/search", {"query": query, **fields})
        assert reply.status == 200, reply.body
        return reply.json

    def until(self, what: str, condition: Any, timeout: float = 120) -> Any:
        """Polls until `condition()` is true and returns it."""
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            result = condition()
            if result:
                return result
            time.sleep(0.1)
        raise TimeoutError(f"{what} did not happen; log:\n{self.log.read_text()[-3000:]}")

    def stop(self, number: int = signal.SIGINT, timeout: float = 60) -> int:
        """Ends the server as a user would and returns its exit code; kills it when it does not end."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            raise
        finally:
            if self.process.stdout is not None:
                self.process.stdout.close()


def processes_naming(text: str) -> list[str]:
    """Command lines of live processes whose command line, environment or output file names `text`, without this one."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            line = (entry / "cmdline").read_bytes()
            outputs = " ".join(str((entry / "fd" / number).readlink()) for number in ("1", "2"))
            if line and (text.encode() in line or text.encode() in (entry / "environ").read_bytes() or text in outputs):
                found.append(line.replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return found
