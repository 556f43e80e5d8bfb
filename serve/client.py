"""The HTTP client of the command line: finds the running server and its key, asks, and raises what the server says.

On `http.client` alone: it loads in a few hundredths of a second, and a search from the command line is a whole process.
"""

from __future__ import annotations

import http.client
import ipaddress
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

from cluster.errors import AuthenticationError, RaycallError, UnavailableError, UsageError
from jobs.progress import is_alive
from serve.machine import ServerState, read_state

KEY_FILE = "key"
#: Largest answer that is read. A search answer has at most 100 hits; anything near this is not Raycall.
MAX_ANSWER_BYTES = 64 * 1024 * 1024
_KEY = re.compile(r"rk_[A-Za-z0-9_-]{43}")


def connect(data_dir: Path, url: str | None, key_file: Path | None, environ: Mapping[str, str], timeout_s: float) -> Client:
    """A client for the server at `url`, RAYCALL_URL or, by default, the one of the data directory `data_dir`.

    The key is that of `key_file`, RAYCALL_KEY or the data directory. The last is offered only to a server of this machine: a
    key never goes to an address that it was not given for. Raises UnavailableError when no server runs, with how to start one.
    """
    address = url if url is not None else environ.get("RAYCALL_URL")
    if address is None:
        address = running_server(data_dir).url
    parts = _parsed(address)
    return Client(address, _key(data_dir, key_file, environ, parts), timeout_s)


def running_server(data_dir: Path) -> ServerState:
    """The server that runs on `data_dir`. Raises UnavailableError, with how to start one, when none does."""
    found = read_state(data_dir)
    if found is None:
        raise UnavailableError(f"no server runs on {data_dir}; start one with: raycall serve --index PATH")
    if not is_alive(found.pid):
        raise UnavailableError(
            f"the server on {data_dir} (process {found.pid}) has ended; start it again with: raycall serve --index PATH"
        )
    return found


def _parsed(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        # Reading the port checks it.
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and parts.username is None
    except ValueError:
        usable = False
    if not usable or not url.isascii() or not url.isprintable() or " " in url:
        raise UsageError(f"the server's URL must look like http://127.0.0.1:8000: {url[:200]!r}", field="url")
    return parts


def _key(data_dir: Path, key_file: Path | None, environ: Mapping[str, str], server: SplitResult) -> str:
    if key_file is not None:
        return _checked_key(_read_key(key_file), str(key_file))
    if "RAYCALL_KEY" in environ:
        return _checked_key(environ["RAYCALL_KEY"], "RAYCALL_KEY")
    if not _is_local(server.hostname or ""):
        raise AuthenticationError("a server on another machine needs its key: give --key-file or RAYCALL_KEY")
    path = data_dir / KEY_FILE
    if not path.exists():
        raise AuthenticationError(
            f"there is no key in {path}: give --key-file or RAYCALL_KEY, or create one: raycall keys create"
        )
    return _checked_key(_read_key(path), str(path))


def _read_key(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(4096).decode("ascii", "replace")
    except OSError as error:
        raise UsageError(f"key file {path} cannot be read: {error.strerror}", field="key-file") from error


def _checked_key(text: str, place: str) -> str:
    if not _KEY.fullmatch(text.strip()):
        # The text itself is not shown: it may be a secret of another kind.
        raise UsageError(f"{place} holds no Raycall key (rk_ and 43 letters, digits, '-' or '_')", field="key")
    return text.strip()


def _is_local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Client:
    """Asks one server. Each call is one connection."""

    def __init__(self, url: str, key: str, timeout_s: float) -> None:
        self.url = url.rstrip("/")
        self._parts = _parsed(self.url)
        self._key = key
        self._timeout_s = timeout_s

    def json(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The JSON object that the server answers with. Raises the server's error as one of `cluster.errors`."""
        raw = self._ask(method, path, body, "application/json")
        try:
            found = json.loads(raw)
        except ValueError as error:
            raise UnavailableError(f"{self.url} did not answer with JSON; is it a Raycall server?") from error
        if not isinstance(found, dict):
            raise UnavailableError(f"{self.url} did not answer with a JSON object; is it a Raycall server?")
        return found

    def text(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> str:
        """The plain text that the server answers with."""
        return self._ask(method, path, body, "text/plain").decode("utf-8", "replace")

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None, accept: str) -> bytes:
        headers = {"Authorization": f"Bearer {self._key}", "Accept": accept, "User-Agent": "raycall-cli"}
        payload = None
        if body is not None:
            payload = _encoded(body)
            headers["Content-Type"] = "application/json"
        connection = self._connection()
        try:
            # A server that refuses a large body answers before it has read all of it, and closes.
            with suppress(BrokenPipeError):
                connection.request(method, self._parts.path.rstrip("/") + path, payload, headers)
            response = connection.getresponse()
            raw = response.read(MAX_ANSWER_BYTES + 1)
        except TimeoutError as error:
            raise UnavailableError(f"{self.url} did not answer within {self._timeout_s:g} s") from error
        except ConnectionRefusedError as error:
            raise UnavailableError(f"no server listens on {self.url}; start one with: raycall serve --index PATH") from error
        except OSError as error:
            raise UnavailableError(f"{self.url} cannot be reached: {error.strerror or error}") from error
        except http.client.HTTPException as error:
            raise UnavailableError(f"{self.url} does not speak HTTP as expected: {type(error).__name__}") from error
        finally:
            connection.close()
        if len(raw) > MAX_ANSWER_BYTES:
            raise UnavailableError(f"{self.url} sent more than {MAX_ANSWER_BYTES} bytes; is it a Raycall server?")
        if response.status != 200:
            raise error_of(response.status, raw, self.url)
        return raw

    def _connection(self) -> http.client.HTTPConnection:
        kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
        return kind(self._parts.hostname or "", self._parts.port, timeout=self._timeout_s)


def _encoded(body: Mapping[str, Any]) -> bytes:
    # UTF-8 and no escapes: the server counts bytes. Half a surrogate pair has no UTF-8 form and stays an escape.
    try:
        return json.dumps(body, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        return json.dumps(body).encode("ascii")


def error_of(status: int, raw: bytes, url: str) -> RaycallError:
    """The error that a problem+json body of `status` tells of; one by the status alone when the body is something else."""
    try:
        problem = json.loads(raw)
    except ValueError:
        problem = {}
    if not isinstance(problem, dict):
        problem = {}
    detail = problem.get("detail")
    if not isinstance(detail, str) or not detail:
        detail = f"{url} answered {status} {http.client.responses.get(status, '')}".rstrip()
    field = problem.get("field")
    kind = _by_code().get(str(problem.get("code"))) or _by_status(status)
    return kind(detail, field=field if isinstance(field, str) else None)


def _by_status(status: int) -> type[RaycallError]:
    if status in (400, 404, 405) or status >= 500:
        # Without a code the answer is not the application's: a proxy's, or another program's.
        return UnavailableError
    known = {kind.http_status: kind for kind in reversed(list(_kinds(RaycallError)))}
    return known.get(status, UnavailableError)


def _by_code() -> dict[str, type[RaycallError]]:
    return {kind.code: kind for kind in _kinds(RaycallError)}


def _kinds(kind: type[RaycallError]) -> Iterator[type[RaycallError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from _kinds(below)
