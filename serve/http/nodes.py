"""The routes of nodes: reading one, writing one, writing many."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import closing
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from cluster.errors import OverloadedError, UsageError
from cluster.model.access import Principal
from serve.http.body import in_time, parse_json, read_bytes, read_nothing
from serve.http.errors import PROBLEM_TYPE
from serve.http.nodes_body import (
    NDJSON_TYPES,
    PATCH_TYPES,
    delete_of,
    hash_of,
    patch_of,
    read_lines,
    read_once,
    read_wait_for,
    upsert_of,
)
from serve.http.nodes_schemas import BULK_EXAMPLE, bulk_as_json, node_as_json, status_of, written_as_json
from serve.http.routes import Handler, json_response
from serve.http.timing import TIMEOUT_HEADER, TIMEOUT_PARAMETER, read_timeout
from serve.writing import Writing, Written
from serve.writing_fields import refuse_unknown
from serve.writing_rules import Command

REPLAYED_HEADER = "idempotency-replayed"
#: Requests with many rows at once; each holds a file and a transaction's worth of rows.
MAX_BULK_REQUESTS = 4
_JSON_TYPES = ("application/json",)

NODES, NODE, BULK = "/v1/nodes", "/v1/nodes/{id}", "/v1/nodes/bulk"


class NodeRoutes:
    """The handlers over one `Writing`."""

    def __init__(self, writing: Writing, body_bytes: int, lag_s: Callable[[], float]) -> None:
        self._writing = writing
        self._body_bytes = body_bytes
        self._lag_s = lag_s
        self._bulk = 0

    def all(self) -> Iterable[tuple[str, str, Handler, dict[str, Any]]]:
        """(method, path, handler, documentation) of each."""
        yield "POST", BULK, self.bulk, _documentation("Write many nodes", "BulkAnswer", 200, BULK_REQUEST, "400 413")
        yield "POST", NODES, self.create, _documentation("Create or replace a node", "WriteAnswer", 201, _json("NodeBody"))
        yield "GET", NODE, self.read, _documentation("Read a node", "NodeView", 200, None)
        yield "PATCH", NODE, self.patch, _documentation("Change a node", "WriteAnswer", 200, _json("NodePatch", PATCH_TYPES))
        yield "DELETE", NODE, self.delete, _documentation("Delete a node", "WriteAnswer", 200, None)

    async def create(self, request: Request, principal: Principal, _query_id: str) -> Response:
        """POST /v1/nodes."""
        deadline = self._deadline(request)
        raw = await read_bytes(request, self._body_bytes, _JSON_TYPES, self._writing.seconds_left(deadline))
        command = upsert_of(parse_json(raw), request, self._writing.new_id)
        return await self._write(command, raw, request, principal, deadline)

    async def read(self, request: Request, principal: Principal, _query_id: str) -> Response:
        """GET /v1/nodes/{id}."""
        refuse_unknown(request.query_params, ())
        node = await self._writing.read(_id(request), principal, self._deadline(request))
        return json_response(node_as_json(node, principal), _tag(node.revision))

    async def patch(self, request: Request, principal: Principal, _query_id: str) -> Response:
        """PATCH /v1/nodes/{id}."""
        deadline = self._deadline(request)
        raw = await read_bytes(request, self._body_bytes, PATCH_TYPES, self._writing.seconds_left(deadline))
        return await self._write(patch_of(_id(request), parse_json(raw), request), raw, request, principal, deadline)

    async def delete(self, request: Request, principal: Principal, _query_id: str) -> Response:
        """DELETE /v1/nodes/{id}."""
        deadline = self._deadline(request)
        refusal = UsageError("a deletion has no body; the revision is in If-Match")
        await read_nothing(request, refusal, self._writing.seconds_left(deadline))
        return await self._write(delete_of(_id(request), request), b"", request, principal, deadline)

    async def bulk(self, request: Request, principal: Principal, _query_id: str) -> Response:
        """POST /v1/nodes/bulk."""
        deadline = self._deadline(request, many=True)
        wait_for = read_wait_for(request)
        for name in ("if-match", "if-none-match"):
            if name in request.headers:
                raise UsageError(f"{name} is for one node; a row has its own revision", field=name)
        if self._bulk >= MAX_BULK_REQUESTS:
            raise OverloadedError(f"{MAX_BULK_REQUESTS} requests with many rows are being written; try again")
        self._bulk += 1
        try:
            async with in_time(self._writing.seconds_left(deadline)):
                lines = await read_lines(request, self._body_bytes)
            with closing(lines) as spooled:
                once = read_once(request, spooled.hash)
                rows = spooled.rows(self._writing.new_id)
                written = await self._writing.many(rows, principal, wait_for, once, deadline)
        finally:
            self._bulk -= 1
        return json_response(await asyncio.to_thread(bulk_as_json, written), _replayed(written))

    def _deadline(self, request: Request, *, many: bool = False) -> float:
        return self._writing.deadline(read_timeout(request), many=many) - self._lag_s()

    async def _write(self, command: Command, raw: bytes, request: Request, principal: Principal, deadline: float) -> Response:
        once = read_once(request, hash_of(raw))
        written = await self._writing.one(command, principal, read_wait_for(request), once, deadline)
        ((_, outcome),) = written.outcomes
        response = json_response(written_as_json(written), {**_tag(outcome.revision), **_replayed(written)})
        response.status_code = status_of(outcome)
        if response.status_code == 201:
            response.headers["location"] = f"{NODES}/{outcome.id}"
        return response


def _id(request: Request) -> str:
    return str(request.path_params["id"])


def _tag(revision: int | None) -> dict[str, str]:
    return {"etag": f'"{revision}"'}


def _replayed(written: Written) -> dict[str, str]:
    return {REPLAYED_HEADER: "true"} if written.replayed else {}


# --- what OpenAPI says -------------------------------------------------------------------------------------------------------

_REFERENCE = "#/components/schemas/{}"
_EXAMPLE = {"project": "billing", "text": {"title": "Importer", "content": "It is restarted by `systemctl restart importer`."}}

BULK_REQUEST = {
    "required": True,
    "content": {NDJSON_TYPES[0]: {"schema": {"type": "string"}, "example": BULK_EXAMPLE}},
}
_DESCRIPTIONS = {
    "Write many nodes": "One JSON object a line, at most 10,000 and 16 MiB: `op` (upsert, patch, delete) beside the fields of "
    "the single request. Each row is answered for itself; a row that is refused takes no other along.",
    "Create or replace a node": "An `id` that is there already is replaced (200); `If-None-Match: *` allows creating alone. "
    "Stores structure, curated and audit have writers of their own: 403.",
    "Read a node": "What the key may not read is 404, like what does not exist. ETag is the revision.",
    "Change a node": "A merge patch (RFC 7396). `If-Match` or `revision`: 409 with the present one when it is another.",
    "Delete a node": "With all that it contains. Deleting what is deleted is `unchanged`.",
}
_PARAMETERS: dict[str, dict[str, Any]] = {
    "id": {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}},
    "wait_for": {
        "name": "wait_for",
        "in": "query",
        "schema": {"type": "string", "enum": ["durable", "visible"], "default": "durable"},
        "description": "durable: answered when it is on the disk. visible: when every answer shows it, or the time is over.",
    },
    "If-Match": {"name": "If-Match", "in": "header", "schema": {"type": "string"}, "example": '"41"'},
    TIMEOUT_HEADER: TIMEOUT_PARAMETER,
    "Idempotency-Key": {
        "name": "Idempotency-Key",
        "in": "header",
        "schema": {"type": "string", "maxLength": 255},
        "description": "The same key and request have one effect and the same answer for 24 hours; the key with another "
        "request is 422.",
    },
}
_STATUSES = {
    400: "The body is not JSON, not UTF-8, holds a key twice, or too many values",
    401: "No key, or one that is not valid",
    403: "The key sees the node, or the store, and may not write it",
    404: "No node or project that this key may read",
    409: "The revision is another one, named in `revision`; or the id is taken, or in another project or store",
    413: "The body is too large",
    415: "Another content type",
    422: "A field is unknown, of the wrong type, or not usable; or the idempotency key was sent with another request",
    429: "Too many requests are waiting",
    500: "A fault of the server; its log names it by `query_id`",
    503: "The store is down; try again",
    504: "The request's time was over before it was begun: nothing was written",
}


def _json(model: str, types: Iterable[str] = _JSON_TYPES) -> dict[str, Any]:
    schema: dict[str, Any] = {"schema": {"$ref": _REFERENCE.format(model)}, "example": _EXAMPLE}
    if model == "NodePatch":
        schema["example"] = {"text": {"summary": "Superseded by systemd units."}, "confidence": None}
    return {"required": True, "content": dict.fromkeys(types, schema)}


def _documentation(
    summary: str, model: str, status: int, body: dict[str, Any] | None, more: str = "400 403 409 413 415 422"
) -> dict[str, Any]:
    reads, many = model == "NodeView", model == "BulkAnswer"
    names = ([] if many or status == 201 else ["id"]) + ([] if reads else ["wait_for", "Idempotency-Key"]) + [TIMEOUT_HEADER]
    names += [] if reads or many else ["If-Match"]
    statuses = {401, 429, 500, 503, 504, *([404] if not many else [415, 422]), *(map(int, more.split()) if not reads else [])}
    problem = {PROBLEM_TYPE: {"schema": {"$ref": _REFERENCE.format("Problem")}}}
    answers: dict[int | str, dict[str, Any]] = {
        code: {"description": _STATUSES[code], "content": problem} for code in sorted(statuses)
    }
    answer = {"description": summary, "content": {"application/json": {"schema": {"$ref": _REFERENCE.format(model)}}}}
    answers |= dict.fromkeys((200, status), answer)
    extra: dict[str, Any] = {"parameters": [_PARAMETERS[name] for name in names]}
    if body is not None:
        extra["requestBody"] = body
    return {
        "tags": ["nodes"],
        "summary": summary,
        "description": _DESCRIPTIONS[summary],
        "responses": answers,
        "openapi_extra": extra,
    }
