"""Reading what is to be written: single bodies, preconditions and idempotency keys, and many commands as NDJSON."""

from __future__ import annotations

import hashlib
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import aclosing
from typing import IO, Any

from starlette.requests import Request

from cluster.errors import MalformedError, RaycallError, TooLargeError, UsageError
from cluster.model.nodes import Store
from serve.http.body import parse_json, read_chunks
from serve.writing import Once, Row, WaitFor
from serve.writing_fields import NODE_FIELDS, read_revision, refuse_unknown
from serve.writing_rules import Command, Op

NDJSON_TYPES = ("application/x-ndjson", "application/ndjson", "application/jsonl")
PATCH_TYPES = ("application/merge-patch+json", "application/json")
#: Largest body of many commands, in bytes, and most of its rows.
MAX_BULK_BYTES = 16 * 1024 * 1024
MAX_ROWS = 10_000
#: What of a body is kept in memory; the rest waits in a file without a name.
_SPOOL_BYTES = 1024 * 1024

_KEY = re.compile(r'"([\x20\x21\x23-\x5b\x5d-\x7e]{1,255})"|([\x21\x23-\x7e]{1,255})')
_TAG = re.compile(r'"([0-9]{1,18})"|([0-9]{1,18})')


def read_wait_for(request: Request) -> WaitFor:
    """The query parameter `wait_for`, the only one there is."""
    for name in request.query_params:
        if name != "wait_for":
            refuse_unknown([name], ("wait_for",))
    values = request.query_params.getlist("wait_for") or [WaitFor.DURABLE.value]
    try:
        return WaitFor(values[0] if len(values) == 1 else "")
    except ValueError as error:
        raise UsageError("wait_for must be durable or visible, once", field="wait_for") from error


def read_once(request: Request, body_hash: str) -> Once | None:
    """The Idempotency-Key header, quoted as a structured string or bare. What the request waits for does not tell two apart."""
    values = request.headers.getlist("idempotency-key")
    if not values:
        return None
    match = _KEY.fullmatch(values[0].strip(" "))
    if len(values) > 1 or match is None:
        raise UsageError("Idempotency-Key must be one string of 1 to 255 visible ASCII characters", field="Idempotency-Key")
    parts = (request.method, request.url.path, *(request.headers.get(name, "") for name in ("if-match", "if-none-match")))
    fingerprint = hashlib.sha256("\n".join((*parts, body_hash)).encode("utf-8", "surrogatepass"))
    return Once(key=match[1] or match[2], fingerprint=fingerprint.hexdigest())


def hash_of(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()


def upsert_of(body: Any, request: Request | None, new_id: Callable[[], str]) -> Command:
    """The upsert that an object asks for; `request` has headers that count, too. Raises UsageError naming the field."""
    fields = _object(body)
    refuse_unknown(fields, ("id", "project", "store", "revision", *NODE_FIELDS))
    node_id, project, store = (_string(fields, name) for name in ("id", "project", "store"))
    if project is None:
        raise UsageError("project must name the project that the node belongs to", field="project")
    expected, must_exist = _precondition(fields.get("revision"), request)
    if node_id is None and (expected or must_exist):
        raise UsageError("a node without an id is new and has no revision", field="revision")
    return Command(
        op=Op.UPSERT,
        id=new_id() if node_id is None else node_id,
        named=node_id is not None,
        project=project,
        store=store or Store.WORK.value,
        fields={name: value for name, value in fields.items() if name in NODE_FIELDS},
        expected=expected,
        must_exist=must_exist,
    )


def patch_of(node_id: str, body: Any, request: Request | None) -> Command:
    """The merge patch that an object asks for."""
    fields = _object(body)
    for name in ("project", "store", "id"):
        if name in fields:
            raise UsageError(f"{name} cannot be changed: remove it", field=name)
    refuse_unknown(fields, ("revision", *NODE_FIELDS))
    expected, must_exist = _precondition(fields.get("revision"), request)
    patch = {name: value for name, value in fields.items() if name != "revision"}
    return Command(op=Op.PATCH, id=node_id, fields=patch, expected=expected, must_exist=must_exist)


def delete_of(node_id: str, request: Request) -> Command:
    """The deletion that a request without a body asks for."""
    expected, must_exist = _precondition(None, request)
    return Command(op=Op.DELETE, id=node_id, expected=expected, must_exist=must_exist)


def _command_of(body: Any, new_id: Callable[[], str]) -> Command:
    """The command of one line: `op`, and beside it what the single request has in its address, headers and body."""
    fields = dict(_object(body))
    op = fields.pop("op", None)
    if op not in list(Op):
        raise UsageError(f"op must be one of {', '.join(Op)}", field="op")
    if op == Op.UPSERT:
        return upsert_of(fields, None, new_id)
    node_id = _string(fields, "id")
    if node_id is None:
        raise UsageError("id must name the node", field="id")
    del fields["id"]
    if op == Op.PATCH:
        return patch_of(node_id, fields, None)
    refuse_unknown(fields, ("revision",))
    expected, must_exist = _precondition(fields.get("revision"), None)
    return Command(op=Op.DELETE, id=node_id, expected=expected, must_exist=must_exist)


def _object(body: Any) -> Mapping[str, Any]:
    if not isinstance(body, dict):
        raise UsageError("it must be a JSON object")
    return body


def _string(fields: Mapping[str, Any], name: str) -> str | None:
    value = fields.get(name)
    if value is not None and not isinstance(value, str):
        raise UsageError(f"{name} must be a string", field=name)
    return value


def _precondition(revision: Any, request: Request | None) -> tuple[int | None, bool]:
    """The expected revision, and whether the node must exist."""
    expected = None if revision is None else read_revision(revision)
    if request is None:
        return expected, False
    match, none_match = request.headers.get("if-match"), request.headers.get("if-none-match")
    if none_match is not None:
        if none_match.strip() != "*" or match is not None or expected:
            raise UsageError("If-None-Match must be '*', alone: the node must not be there yet", field="If-None-Match")
        return 0, False
    if match is None:
        return expected, False
    if match.strip() == "*":
        return expected, True
    tag = _TAG.fullmatch(match.strip())
    if tag is None:
        raise UsageError("If-Match must be one revision in quotes, as ETag gives it, or '*'", field="If-Match")
    if expected is not None and expected != int(tag[1] or tag[2]):
        raise UsageError("revision and If-Match name two revisions", field="revision")
    return int(tag[1] or tag[2]), False


# --- many --------------------------------------------------------------------------------------------------------------------


class Spooled:
    """A body of many lines, whole and counted before its first row is written; closed by whoever has it."""

    def __init__(self, file: IO[bytes], body_hash: str, line_bytes: int) -> None:
        self._file = file
        self._line_bytes = line_bytes
        self.hash = body_hash

    def rows(self, new_id: Callable[[], str]) -> Iterator[Row]:
        """The rows in their order. A line that is no command is a row with an error."""
        self._file.seek(0)
        for number, line in enumerate(self._file, 1):
            if line.strip():
                yield _row(number, line, self._line_bytes, new_id)

    def close(self) -> None:
        self._file.close()


def _row(number: int, line: bytes, most_bytes: int, new_id: Callable[[], str]) -> Row:
    try:
        # What ends the line is no part of what a single request would have sent.
        if len(line.rstrip(b"\r\n")) > most_bytes:
            raise TooLargeError(f"a line must be at most {most_bytes:,} bytes")
        return Row(line=number, command=_command_of(parse_json(line), new_id))
    except MalformedError as error:
        return Row(line=number, error=MalformedError(error.detail.replace("the body", "the line", 1)))
    except RaycallError as error:
        return Row(line=number, error=error)


async def read_lines(request: Request, line_bytes: int, max_bytes: int = MAX_BULK_BYTES, max_rows: int = MAX_ROWS) -> Spooled:
    """The body of a bulk request; a line of more than `line_bytes` is a row that is refused.

    Raises MediaTypeError, and TooLargeError with nothing written.
    """
    file: IO[bytes] = tempfile.SpooledTemporaryFile(_SPOOL_BYTES)  # noqa: SIM115  (closed by `Spooled.close`)
    try:
        digest, lines, started = hashlib.sha256(), 0, False
        async with aclosing(read_chunks(request, max_bytes, NDJSON_TYPES)) as chunks:
            async for chunk in chunks:
                digest.update(chunk)
                file.write(chunk)
                *ended, rest = chunk.split(b"\n")
                for part in ended:
                    lines += started or bool(part.strip())
                    started = False
                started = started or bool(rest.strip())
                if lines + started > max_rows:
                    raise TooLargeError(f"a request must hold at most {max_rows:,} rows; nothing was written")
        if not lines + started:
            raise MalformedError("the body is empty; it must hold one JSON object a line")
    except BaseException:
        file.close()
        raise
    return Spooled(file, digest.hexdigest(), line_bytes)
