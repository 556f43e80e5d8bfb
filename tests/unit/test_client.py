import http.client
import json
import os
from pathlib import Path
from typing import Any

import pytest

from cluster import errors
from serve import client, machine
from tests.support.http_connection import FakeConnection

KEY = "rk_" + "k" * 43
OTHER_KEY = "rk_" + "o" * 43
DEAD_PID = 2**22 + 1


def data_dir_with(tmp_path: Path, *, pid: int | None = None, key: str | None = KEY) -> Path:
    if pid is not None:
        state = machine.ServerState(
            pid=pid, host="127.0.0.1", port=8000, url="http://127.0.0.1:8000", started_at=1, run_dir="/tmp/x"
        )
        machine.write_state(tmp_path, state)
    if key is not None:
        (tmp_path / "key").write_text(key + "\n")
    return tmp_path


def connected(tmp_path: Path, url: str | None = None, key_file: Path | None = None, **environ: str) -> client.Client:
    return client.connect(tmp_path, url, key_file, environ, 1.0)


def answered_by(monkeypatch: pytest.MonkeyPatch, *answers: Any) -> FakeConnection:
    connection = FakeConnection(list(answers))
    monkeypatch.setattr(client.Client, "_connection", lambda _self: connection)
    return connection


# --- finding the server and the key ------------------------------------------------------------------------------------------


def test_the_running_server_is_found_with_its_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = connected(data_dir_with(tmp_path, pid=os.getpid()))
    connection = answered_by(monkeypatch, (200, {"ok": True}))
    assert found.json("GET", "/v1/status") == {"ok": True}
    assert connection.requests[0]["headers"]["Authorization"] == f"Bearer {KEY}"
    assert connection.closed == 1


@pytest.mark.parametrize("content", [None, "{", "[]", '{"pid": 1}', "\xff"])
def test_without_a_server_the_error_says_how_to_start_one(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "server.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(errors.UnavailableError, match=r"no server runs .* start one with: raycall serve --index PATH"):
        connected(data_dir_with(tmp_path))


def test_a_server_that_was_killed_is_named(tmp_path: Path) -> None:
    with pytest.raises(errors.UnavailableError, match=f"process {DEAD_PID}. has ended; start it again"):
        connected(data_dir_with(tmp_path, pid=DEAD_PID))


def test_an_option_wins_over_a_variable_over_the_data_directory(tmp_path: Path) -> None:
    folder = data_dir_with(tmp_path, pid=os.getpid())
    assert connected(folder).url == "http://127.0.0.1:8000"
    assert connected(folder, RAYCALL_URL="http://localhost:1").url == "http://localhost:1"
    assert connected(folder, "http://[::1]:2/", RAYCALL_URL="http://localhost:1").url == "http://[::1]:2"


def test_the_key_of_the_data_directory_is_not_sent_to_another_machine(tmp_path: Path) -> None:
    folder = data_dir_with(tmp_path, pid=os.getpid())
    for url in ("http://example.com", "https://10.0.0.1", "http://127.0.0.1.example.com", "http://localhost.example.com"):
        with pytest.raises(errors.AuthenticationError, match="give --key-file or RAYCALL_KEY"):
            connected(folder, url)
    assert connected(folder, "http://example.com", RAYCALL_KEY=OTHER_KEY)._key == OTHER_KEY


def test_a_key_file_wins_over_the_variable(tmp_path: Path) -> None:
    own = tmp_path / "own.key"
    own.write_text(OTHER_KEY)
    assert connected(data_dir_with(tmp_path, pid=os.getpid()), None, own, RAYCALL_KEY=KEY)._key == OTHER_KEY


@pytest.mark.parametrize("text", ["", "rk_short", KEY + "x", KEY + "\r\nX-Admin: 1", "Bearer " + KEY, "rk_" + "é" * 43])
def test_what_is_no_key_is_refused_without_showing_it(tmp_path: Path, text: str) -> None:
    with pytest.raises(errors.UsageError) as caught:
        connected(data_dir_with(tmp_path, pid=os.getpid()), RAYCALL_KEY=text)
    assert caught.value.detail.startswith("RAYCALL_KEY holds no Raycall key")
    assert not text or text not in caught.value.detail


def test_a_missing_key_says_where_one_is_looked_for(tmp_path: Path) -> None:
    with pytest.raises(errors.AuthenticationError, match="raycall keys create"):
        connected(data_dir_with(tmp_path, pid=os.getpid(), key=None))
    with pytest.raises(errors.UsageError, match=r"key file .*none cannot be read"):
        connected(tmp_path, "http://localhost", tmp_path / "none")


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:8000",
        "ftp://x",
        "http://",
        "http://x:99999",
        "http://a b",
        "http://x\r\nY: 1",
        "http://u:p@x",
        "http://ü",
    ],
)
def test_what_is_no_url_is_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(errors.UsageError) as caught:
        connected(data_dir_with(tmp_path), url)
    assert caught.value.field == "url"


# --- asking ------------------------------------------------------------------------------------------------------------------


def asked(monkeypatch: pytest.MonkeyPatch, answer: Any) -> client.Client:
    answered_by(monkeypatch, answer)
    return client.Client("http://127.0.0.1:8000/prefix/", KEY, 1.0)


def test_a_body_is_sent_as_json_below_the_urls_path(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = answered_by(monkeypatch, (200, b"plain \xe2\x9c\x93"))
    text = client.Client("http://127.0.0.1:8000/prefix/", KEY, 1.0).text("POST", "/v1/search", {"query": "café \ud83d"})
    assert text == "plain ✓"
    (request,) = connection.requests
    assert (request["method"], request["path"]) == ("POST", "/prefix/v1/search")
    assert request["body"] == {"query": "café \ud83d"}
    assert request["headers"]["Accept"] == "text/plain"


def test_a_refusal_that_comes_before_the_whole_body_was_sent_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    answered_by(monkeypatch, BrokenPipeError(32, "Broken pipe"), (413, {"code": "too_large", "detail": "at most 131072 bytes"}))
    with pytest.raises(errors.TooLargeError, match="at most 131072 bytes"):
        client.Client("http://127.0.0.1:8000", KEY, 1.0).json("POST", "/v1/search", {"query": "x"})


def _tree(kind: type[errors.RaycallError]) -> list[type[errors.RaycallError]]:
    return [kind, *(below for child in kind.__subclasses__() for below in _tree(child))]


@pytest.mark.parametrize("kind", _tree(errors.RaycallError))
def test_each_error_of_the_server_arrives_as_itself(monkeypatch: pytest.MonkeyPatch, kind: type[errors.RaycallError]) -> None:
    problem = {"code": kind.code, "detail": "what went wrong", "field": "limit", "status": kind.http_status}
    with pytest.raises(errors.RaycallError) as caught:
        asked(monkeypatch, (kind.http_status, problem)).json("GET", "/v1/status")
    assert caught.value == kind("what went wrong", field="limit")


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (502, b"<html>bad gateway</html>", errors.UnavailableError),
        (500, b"", errors.UnavailableError),
        (404, b"Not Found", errors.UnavailableError),
        (401, b"{}", errors.AuthenticationError),
        (403, b"[]", errors.ForbiddenError),
        (422, b'{"detail": [{"loc": 1}]}', errors.UsageError),
        (413, b"null", errors.TooLargeError),
        (301, b"", errors.UnavailableError),
        (204, b"", errors.UnavailableError),
    ],
)
def test_an_answer_of_something_else_is_told_by_its_status(
    monkeypatch: pytest.MonkeyPatch, status: int, body: bytes, kind: type[errors.RaycallError]
) -> None:
    with pytest.raises(errors.RaycallError) as caught:
        asked(monkeypatch, (status, body)).json("GET", "/v1/status")
    assert type(caught.value) is kind
    assert str(status) in caught.value.detail


@pytest.mark.parametrize("body", [b"", b"hello", b"[1]", b"\xff", b'{"a": 1'])
def test_an_answer_that_is_no_json_object_is_refused(monkeypatch: pytest.MonkeyPatch, body: bytes) -> None:
    with pytest.raises(errors.UnavailableError, match="is it a Raycall server"):
        asked(monkeypatch, (200, body)).json("GET", "/v1/status")


def test_an_endless_answer_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "MAX_ANSWER_BYTES", 10)
    assert json.loads(asked(monkeypatch, (200, b'"12345678"')).text("GET", "/")) == "12345678"
    with pytest.raises(errors.UnavailableError, match="more than 10 bytes"):
        asked(monkeypatch, (200, b'"123456789"')).text("GET", "/")


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (ConnectionRefusedError(111, "Connection refused"), "no server listens on .*; start one with: raycall serve"),
        (TimeoutError("timed out"), "did not answer within 1 s"),
        (ConnectionResetError(104, "Connection reset by peer"), "cannot be reached: Connection reset by peer"),
        (OSError("odd"), "cannot be reached: odd"),
        (http.client.BadStatusLine("\0\1"), "does not speak HTTP as expected: BadStatusLine"),
        (http.client.RemoteDisconnected("gone"), "cannot be reached: gone"),
        (http.client.IncompleteRead(b""), "IncompleteRead"),
    ],
)
def test_a_connection_that_fails_is_unavailable(monkeypatch: pytest.MonkeyPatch, failure: Exception, words: str) -> None:
    with pytest.raises(errors.UnavailableError, match=words):
        asked(monkeypatch, failure).json("GET", "/v1/status")
