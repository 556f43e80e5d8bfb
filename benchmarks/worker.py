"""A measurement in a process of its own, which does one round each time it is told to: JSON lines over its standard streams."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.rounds import Rate

STOP_TIMEOUT_S = 60


class Worker:
    """The parent's side of `python -m MODULE ARGUMENTS`."""

    def __init__(
        self,
        module: str,
        *arguments: str,
        log: Path,
        environment: Mapping[str, str] | None = None,
        python: str = sys.executable,
    ) -> None:
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                [python, "-m", module, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                env={**os.environ, **(environment or {})},
            )
        self._log = log
        self.hello: dict[str, Any] = self._read()

    @property
    def pid(self) -> int:
        """The worker's process."""
        return self._process.pid

    def ask(self, what: str, **arguments: Any) -> dict[str, Any]:
        """The worker's answer to one command."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"what": what, **arguments}) + "\n")
        self._process.stdin.flush()
        return self._read()

    def rate(self, what: str, **arguments: Any) -> Rate:
        """The same as a rate."""
        answer = self.ask(what, **arguments)
        return Rate(answer.pop("per_second"), answer)

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        while line and not line.startswith("{"):  # libraries print too
            line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            raise RuntimeError(f"a worker ended with {code}:\n{self._log.read_text()[-3000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def stop(self) -> None:
        """Ends the worker: it stops when nothing more can come."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        finally:
            self._process.stdout.close()


def serve(hello: Mapping[str, Any], commands: Mapping[str, Callable[..., dict[str, Any]]]) -> None:
    """The worker's side: says `hello`, then answers commands until its input ends."""
    _say(hello)
    for line in sys.stdin:
        arguments = json.loads(line)
        _say(commands[arguments.pop("what")](**arguments))


def _say(value: Mapping[str, Any]) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()
