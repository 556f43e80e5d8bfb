"""Bodies: malformed, mistyped, oversized, encoded, nested."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.requests import Request

from cluster.errors import MalformedError, MediaTypeError, RaycallError, TooLargeError
from serve.http import body as body_module
from serve.http.body import MAX_BODY_BYTES, MAX_VALUES, parse_json, read_json
from tests.support.http import Front, make_front

QUERY = b'{"query": "x"}'


@pytest.fixture(scope="module")
def front() -> Front:
    return make_front()


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"query":', 400),
        (b"", 400),
        (b" \n", 400),
        (b"nonsense", 400),
        (b'{"query": "x"} trailing', 400),
        (b"{'query': 'x'}", 400),
        (b'{"query": "x",}', 400),
        (b'{"query": "a\nb"}', 400),
        (b"[]", 422),
        (b'"x"', 422),
        (b"null", 422),
        (b"NaN", 422),
        (b"1", 422),
        ('{"query": "x"}'.encode("utf-16"), 400),
        ('{"query": "x"}'.encode("utf-32"), 400),
        (b'{"query": "\xff"}', 400),
        (b'{"query": "\xed\xa0\xbd"}', 400),
        (b'{"query": "x", "query": "y"}', 400),
        (b'{"query": "x", "nested": {"a": 1, "a": 2}}', 400),
        (b"[" * 10_000 + b"]" * 10_000, 400),
        (b'{"a":' * 65 + b"1" + b"}" * 65, 400),
        (b"[" * 70_000, 400),
        (b"\xef\xbb\xbf" + QUERY, 200),
        (b'{"query": "' + b"[" * 500 + b'\\"' + b"{" * 500 + b'"}', 200),
    ],
    ids=lambda value: str(value[:24]) if isinstance(value, bytes) else None,
)
def test_a_body_that_is_not_a_question_is_refused_with_a_problem(front: Front, body: bytes, status: int) -> None:
    response = front.search(body)
    assert response.status_code == status, response.text
    if status != 200:
        assert response.headers["content-type"] == "application/problem+json"
        assert response.json()["status"] == status


def test_a_body_nested_ten_thousand_deep_is_refused(front: Front) -> None:
    response = front.search(b"[" * 10_000 + b"]" * 10_000)
    assert "nested deeper than 64" in response.json()["detail"]


@pytest.mark.parametrize(
    "body",
    [
        b'{"query": "x"' + b"".join(b',"%x":0' % number for number in range(MAX_VALUES)) + b"}",
        b'{"query": "x", "labels": [' + b"0," * MAX_VALUES + b"0]}",
        b"[" + b"[]," * MAX_VALUES + b"[]]",
        b'{"x": [' + b'"' + b'","' * MAX_VALUES + b'"]}',
    ],
    ids=["keys", "elements", "arrays", "strings"],
)
def test_a_body_of_too_many_values_is_refused_before_it_is_read(
    front: Front, body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(body_module, "_DECODER", None)
    response = front.search(body)
    assert response.status_code == 400, response.text
    assert "more than 1,000 values" in response.json()["detail"]


def test_commas_in_a_query_are_no_values(front: Front) -> None:
    assert front.search(b'{"query": "' + b'x, \\",' * 10_000 + b'"}').status_code == 200
    assert len(parse_json(b"[" + b"0," * (MAX_VALUES - 1) + b"0]")) == MAX_VALUES


class _Name(str):
    """A key that counts how often it is compared."""

    __slots__ = ()
    compared = 0

    def __eq__(self, other: object) -> bool:
        type(self).compared += 1
        return str.__eq__(self, other)  # type: ignore[arg-type]

    __hash__ = str.__hash__


def test_keys_are_compared_in_one_pass_and_the_one_that_comes_twice_is_named() -> None:
    names = [f"name{number}" for number in range(5_000)]
    pairs = [(_Name(name), 0) for name in [*names, names[-1]]]
    with pytest.raises(MalformedError, match="'name4999' twice"):
        body_module._unique(pairs)
    assert _Name.compared < 2 * len(pairs)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"content-type": "application/json"}, 200),
        ({"content-type": "Application/JSON; Charset=UTF-8"}, 200),
        ({"content-type": 'application/json; charset="utf-8"'}, 200),
        ({"content-type": "application/json", "content-encoding": "identity"}, 200),
        ({"content-type": "application/json; charset=utf-16"}, 415),
        ({"content-type": "application/json; charset=latin-1"}, 415),
        ({"content-type": "text/plain"}, 415),
        ({"content-type": "application/x-www-form-urlencoded"}, 415),
        ({"content-type": "multipart/form-data; boundary=x"}, 415),
        ({"content-type": ""}, 415),
        ({"content-type": "application/jsonp"}, 415),
        ({"content-type": "application/json", "content-encoding": "gzip"}, 415),
    ],
    ids=str,
)
def test_the_form_of_the_body_is_checked(front: Front, headers: dict[str, str], status: int) -> None:
    assert front.search(QUERY, headers=headers).status_code == status


def test_a_missing_content_type_is_refused(front: Front) -> None:
    assert front.call("POST", "/v1/search", content=QUERY).status_code == 415


def test_a_compressed_body_is_refused(front: Front) -> None:
    assert front.search(gzip.compress(QUERY), headers={"content-encoding": "gzip"}).status_code == 415


@pytest.mark.parametrize(("size", "status"), [(MAX_BODY_BYTES, 200), (MAX_BODY_BYTES + 1, 413), (30 * 1024 * 1024, 413)])
def test_the_size_of_the_body_is_bounded(front: Front, size: int, status: int) -> None:
    body = b'{"query": "' + b"x" * (size - len(b'{"query": ""}')) + b'"}'
    assert len(body) == size
    assert front.search(body).status_code == status


def _request(chunks: AsyncIterator[bytes], headers: dict[str, str]) -> Request:
    async def receive() -> dict[str, Any]:
        try:
            return {"type": "http.request", "body": await anext(chunks), "more_body": True}
        except StopAsyncIteration:
            return {"type": "http.request", "body": b"", "more_body": False}

    raw = [(name.encode(), value.encode()) for name, value in {"content-type": "application/json", **headers}.items()]
    return Request({"type": "http", "method": "POST", "path": "/", "headers": raw, "query_string": b""}, receive)


def test_reading_stops_at_the_limit_when_no_length_was_announced() -> None:
    read = 0

    async def long() -> AsyncIterator[bytes]:
        nonlocal read
        for _ in range(1024):
            read += 1024
            yield b"x" * 1024

    with pytest.raises(TooLargeError):
        asyncio.run(read_json(_request(long(), {})))
    assert read <= MAX_BODY_BYTES + 2048


@pytest.mark.parametrize("length", ["131073", "9" * 30])
def test_an_announced_length_over_the_limit_is_refused_unread(length: str) -> None:
    async def unread() -> AsyncIterator[bytes]:
        pytest.fail("the body was read")
        yield b""

    with pytest.raises(TooLargeError):
        asyncio.run(read_json(_request(unread(), {"content-length": length})))


def test_a_client_that_goes_away_is_no_fault_of_the_server() -> None:
    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    headers = [(b"content-type", b"application/json")]
    request = Request({"type": "http", "method": "POST", "path": "/", "headers": headers, "query_string": b""}, receive)
    with pytest.raises(MalformedError):
        asyncio.run(read_json(request))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)


@settings(max_examples=50, deadline=None)
@given(JSON)
def test_json_is_read_as_it_was_written(value: Any) -> None:
    assert parse_json(json.dumps(value).encode()) == value
    assert parse_json(json.dumps(value, ensure_ascii=False).encode()) == value


@settings(max_examples=80, deadline=None)
@given(st.binary(max_size=60) | st.text('[]{}",:\\u d8z0e19-.NaNtrue ', max_size=60).map(str.encode))
def test_no_bytes_raise_anything_but_our_own_errors(raw: bytes) -> None:
    try:
        parse_json(raw)
    except RaycallError as error:
        assert isinstance(error, MalformedError | MediaTypeError)


@settings(max_examples=50, deadline=None)
@given(st.text(max_size=10).map(lambda text: text + "\ud83d"), st.integers(1, 62))
def test_half_pairs_are_replaced_at_any_depth(text: str, depth: int) -> None:
    value: Any = {text: text}
    for _ in range(depth):
        value = [value]
    found = parse_json(json.dumps(value).encode())
    json.dumps(found, ensure_ascii=False).encode()
    assert "\ufffd" in str(found)
