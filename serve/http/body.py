"""Reading a request's body: bounded, strict JSON. What is refused here never reaches a parser that could be hurt by it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request

from cluster.errors import DeadlineError, MalformedError, MediaTypeError, RaycallError, TooLargeError
from serve.question import clean_surrogates

#: Largest body, in bytes.
MAX_BODY_BYTES = 128 * 1024
#: Deepest nesting of arrays and objects. The questions that are asked here need 2.
MAX_DEPTH = 64
#: Most members and elements of all objects and arrays together. The fields of a question hold some 200 at most.
MAX_VALUES = 1_000
#: Longest number that is read: beyond it no bound of any field lies, and turning digits into a number takes quadratic time.
_MAX_DIGITS = 400
_WENT_AWAY = "the client went away before the body was complete"

_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
_STRING_OR_SIGN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[\[\]{},]', re.DOTALL)


#: Content types of JSON bodies.
JSON_TYPES = ("application/json",)


async def read_json(
    request: Request, max_bytes: int = MAX_BODY_BYTES, types: Sequence[str] = JSON_TYPES, within_s: float | None = None
) -> Any:
    """The body's value. Numbers that are not finite come as float NaN or infinity, for the field's own check to name.

    Raises MediaTypeError (415: another content type than `types`, a charset other than UTF-8, a content encoding),
    TooLargeError (413, without reading further), MalformedError (400: not UTF-8, not JSON, a key twice in one object, nested
    deeper than 64, more than 1,000 values), DeadlineError (504) when it is not complete after `within_s` seconds.
    """
    return parse_json(await read_bytes(request, max_bytes, types, within_s))


async def read_bytes(request: Request, max_bytes: int, types: Sequence[str], within_s: float | None = None) -> bytes:
    """The body as it is, with the refusals of `read_json` that need no look into it; the first of `types` is recommended."""
    async with in_time(within_s):
        chunks = [chunk async for chunk in read_chunks(request, max_bytes, types)]
    return b"".join(chunks)


async def read_nothing(request: Request, refusal: RaycallError, within_s: float | None = None) -> None:
    """Waits for the end of a request that must have no body. Raises `refusal` when there is one, else as `read_bytes`."""
    async with in_time(within_s):
        try:
            async for chunk in request.stream():
                if chunk:
                    raise refusal
        except ClientDisconnect as error:
            raise MalformedError(_WENT_AWAY) from error


@contextlib.asynccontextmanager
async def in_time(within_s: float | None) -> AsyncGenerator[None, None]:
    """Raises DeadlineError when the body that is read inside is not complete after `within_s` seconds."""
    try:
        async with asyncio.timeout(within_s):
            yield
    except TimeoutError as error:
        raise DeadlineError("the request's time was over before its body was complete") from error


def parse_json(raw: bytes) -> Any:
    """`raw` as strict JSON; see `read_json`."""
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise MalformedError(f"the body is not UTF-8 (byte {error.start})") from error
    if not text.strip():
        raise MalformedError("the body is empty; it must be a JSON object")
    if text.count("[") + text.count("{") > MAX_DEPTH or text.count(",") >= MAX_VALUES:
        _check_shape(text)
    try:
        value = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        raise MalformedError(f"the body is not JSON: {error.msg} (line {error.lineno}, column {error.colno})") from error
    except RecursionError as error:
        raise MalformedError("the body is nested too deep") from error
    return _repaired(value) if _SURROGATE_ESCAPE.search(text) else value


def _repaired(value: Any) -> Any:
    """U+FFFD for each half of a surrogate pair: nothing below can encode one. Pairs are whole characters by now."""
    if isinstance(value, str):
        return clean_surrogates(value)
    if isinstance(value, list):
        return [_repaired(item) for item in value]
    if isinstance(value, dict):
        return {clean_surrogates(name): _repaired(item) for name, item in value.items()}
    return value


def _check_media_type(headers: Headers, types: Sequence[str]) -> None:
    content_type, _, parameters = headers.get("content-type", "").partition(";")
    if content_type.strip().lower() not in types:
        raise MediaTypeError(f"the body must be sent as content type {types[0]}")
    for parameter in parameters.split(";"):
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset" and value.strip().strip('"').lower() not in ("utf-8", "utf8"):
            raise MediaTypeError("the body must be in UTF-8")
    if headers.get("content-encoding", "identity").strip().lower() not in ("", "identity"):
        raise MediaTypeError("the body must not be compressed")


async def read_chunks(request: Request, max_bytes: int, types: Sequence[str]) -> AsyncGenerator[bytes, None]:
    """The body as it arrives; see `read_bytes`."""
    _check_media_type(request.headers, types)
    too_large = TooLargeError(f"the body must be at most {max_bytes:,} bytes")
    announced = request.headers.get("content-length", "")
    if announced.isascii() and announced.isdigit() and (len(announced) > 18 or int(announced) > max_bytes):
        raise too_large
    size = 0
    try:
        async for chunk in request.stream():
            size += len(chunk)
            if size > max_bytes:
                raise too_large
            yield chunk
    except ClientDisconnect as error:
        raise MalformedError(_WENT_AWAY) from error


def _check_shape(text: str) -> None:
    """Refuses what is nested too deep or holds too much before anything is built from it. What is in strings does not count."""
    depth, values = 0, 1
    for found in _STRING_OR_SIGN.finditer(text):
        sign = found[0]
        if sign in ("[", "{"):
            depth += 1
            if depth > MAX_DEPTH:
                raise MalformedError(f"the body is nested deeper than {MAX_DEPTH} levels")
        elif sign in ("]", "}"):
            depth -= 1
        elif sign == ",":
            values += 1
            if values > MAX_VALUES:
                raise MalformedError(f"the body holds more than {MAX_VALUES:,} values")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise MalformedError(f"the body holds {clean_surrogates(name[:100])!r} twice in one object")
        found[name] = value
    return found


def _integer(digits: str) -> int | float:
    if len(digits) > _MAX_DIGITS:
        return float("-inf") if digits.startswith("-") else float("inf")
    return int(digits)


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_int=_integer)
