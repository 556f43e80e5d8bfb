"""The command line as a process: streams, encodings, signals and what it loads, against a small HTTP server."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

RAYCALL = Path(sys.executable).with_name("raycall")
KEY = "rk_" + "k" * 43
TEXT = "[Document] (id: café 停止) (score: 0.500)\n" * 5000


class Answers(BaseHTTPRequestHandler):
    """Echoes the body as JSON, or a long text; holds the answer back while `held` is set."""

    held = threading.Event()
    asked = threading.Event()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        type(self).asked.set()
        if body["query"] == "hold":
            type(self).held.wait(30)
        text = self.headers["Accept"] == "text/plain"
        raw = (
            TEXT.encode()
            if text
            else json.dumps({"echo": body, "key": self.headers["Authorization"]}, ensure_ascii=False).encode()
        )
        self.send_response(200)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *_arguments: Any) -> None:
        pass


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    Answers.held.set()
    server.shutdown()
    server.server_close()


def environment(url: str, **more: str) -> dict[str, str]:
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("RAYCALL_", "LC_", "LANG", "PYTHON", "TERM"))
    }
    return {**kept, "RAYCALL_URL": url, "RAYCALL_KEY": KEY, **more}


ENCODINGS = [
    {},
    {"LC_ALL": "C"},
    {"PYTHONIOENCODING": "ascii"},
    {"PYTHONIOENCODING": "cp1252"},
    {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "TERM": "dumb"},
]


@pytest.mark.parametrize("encoding", ENCODINGS, ids=str)
def test_json_is_valid_in_every_encoding(url: str, encoding: dict[str, str]) -> None:
    done = subprocess.run(
        [RAYCALL, "search", "--json", "café 停止 \U0001f469"],
        env=environment(url, **encoding),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr, done.stdout.count(b"\n")) == (0, b"", 1)
    charset = "cp1252" if "cp1252" in encoding.values() else "utf-8"
    assert json.loads(done.stdout.decode(charset))["echo"] == {"query": "café 停止 \U0001f469"}


@pytest.mark.parametrize("encoding", ENCODINGS, ids=str)
def test_text_is_written_in_every_encoding(url: str, encoding: dict[str, str]) -> None:
    done = subprocess.run(
        [RAYCALL, "search", "x"], env=environment(url, **encoding), stdin=subprocess.DEVNULL, capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.count(b"\n") == 5000 and b"(score: 0.500)" in done.stdout


@pytest.mark.parametrize("arguments", [["search", "x"], ["search", "x", "--json"], ["--help"], ["--version"]], ids=str)
def test_a_reader_that_goes_away_is_no_crash(url: str, arguments: list[str]) -> None:
    read_end, write_end = os.pipe()
    process = subprocess.Popen(
        [RAYCALL, *arguments], env=environment(url), stdin=subprocess.DEVNULL, stdout=write_end, stderr=subprocess.PIPE
    )
    os.close(write_end)
    os.close(read_end)
    _out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (141, b"")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-", ">/dev/full"])
def test_closed_and_full_streams_are_no_crash(url: str, closed: str) -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", f'exec "$0" search x {closed}', RAYCALL],
        env=environment(url),
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert b"Traceback" not in done.stderr and b"Exception" not in done.stderr
    assert done.returncode == (1 if "full" in closed else 0)
    if "full" in closed:
        assert done.stderr.count(b"\n") == 1 and b"No space left" in done.stderr


def test_an_interrupt_ends_quietly_with_130(url: str) -> None:
    Answers.asked.clear()
    process = subprocess.Popen(
        [RAYCALL, "search", "hold"],
        env=environment(url),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert Answers.asked.wait(60)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, b"", b"")


def test_bytes_that_are_no_text_are_refused(url: str) -> None:
    done = subprocess.run(
        [RAYCALL, "search", b"caf\xe9"], env=environment(url, LC_ALL="C.UTF-8"), capture_output=True, check=False
    )
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr == b"raycall: query is not valid text in this terminal's encoding\n"


def test_a_query_is_passed_on_whatever_it_looks_like(url: str) -> None:
    for query in ("-x", "--", "--help", "$(id)", "a;b", " spaces ", 'q"uote', "*"):
        done = subprocess.run(
            [RAYCALL, "search", "--json", "--", query], env=environment(url), capture_output=True, check=False
        )
        assert json.loads(done.stdout)["echo"] == {"query": query}


def test_a_search_loads_nothing_heavy(url: str) -> None:
    program = (
        "import sys\nfrom serve.cli import run_command\n"
        "assert run_command(['search', '--json', '-n', '3', '-p', 'a', 'x']) == 0\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], env=environment(url), capture_output=True, text=True, check=True)
    heavy = {
        "numpy",
        "pyarrow",
        "pydantic",
        "ray",
        "rich",
        "yaml",
        "httpx",
        "fastapi",
        "orjson",
        "importlib.metadata",
        "asyncio",
    }
    assert not heavy & set(done.stderr.split())
