"""The routes. Each reads, calls the use case and renders; every one but /healthz answers to an API key alone."""

from __future__ import annotations

import inspect
import secrets
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import orjson
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from cluster.errors import UsageError
from cluster.model.access import Principal
from cluster.model.query import Answer
from serve.admission import Lane
from serve.explanation import plain
from serve.http.body import MAX_BODY_BYTES, read_json
from serve.http.errors import QUERY_ID_HEADER, problem_of
from serve.http.schemas import read_question, refuse_unknown
from serve.http.timing import clamped_notice, read_timeout
from serve.keys import Keys
from serve.question import clean_surrogates
from serve.render import TEXT_BUDGET, to_json, to_text
from serve.retrieval import Retrieval
from serve.writing import Writing

_ORJSON_OPTIONS = orjson.OPT_NON_STR_KEYS


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What the HTTP front takes and gives at most."""

    body_bytes: int = MAX_BODY_BYTES
    text_characters: int = TEXT_BUDGET


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """What the HTTP front serves. The same object may serve several fronts."""

    retrieval: Retrieval
    keys: Keys
    #: What GET /v1/status says to a principal: JSON values. May be a coroutine function.
    status: Callable[[Principal], dict[str, Any] | Awaitable[dict[str, Any]]]
    limits: Limits = field(default_factory=Limits)
    #: Through which questions go; None: as many at once as come.
    questions: Lane | None = None
    #: Seconds that a request waited before it was seen.
    lag_s: Callable[[], float] = float
    #: None: nothing is written here, and there are no routes of nodes.
    writing: Writing | None = None


#: A handler of a keyed route: the request, who is asking, and the id of the request.
Handler = Callable[[Request, Principal, str], Awaitable[Response]]


def keyed_route(keys: Keys, handler: Handler) -> type[APIRoute]:
    """A route class that authenticates first, then calls `handler`, and turns every failure into a problem.

    It stands in for the framework's own call path, which would solve dependencies and validate parameters that these routes do
    not have; the endpoint that a route of this class is declared with serves OpenAPI alone.
    """

    async def answer(request: Request) -> Response:
        query_id = secrets.token_hex(8)
        try:
            principal = keys.authenticate(request.headers.get("authorization"))
            response = await handler(request, principal, query_id)
        except Exception as error:
            return problem_of(error, query_id)
        response.headers[QUERY_ID_HEADER] = query_id
        return response

    class KeyedRoute(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            return answer

    return KeyedRoute


def search_handler(service: Service) -> Handler:
    """POST /v1/search."""

    async def search(request: Request, principal: Principal, query_id: str) -> Response:
        timeout_s = read_timeout(request)
        deadline = service.retrieval.deadline(timeout_s) - service.lag_s()
        _refuse_parameters(request)
        question = read_question(
            await read_json(request, service.limits.body_bytes, within_s=service.retrieval.seconds_left(deadline))
        )
        notices = (*clamped_notice(timeout_s, service.retrieval.deadline_s), *question.notices)

        def answering() -> Awaitable[Answer]:
            return service.retrieval.search(question.request, principal, query_id=query_id, notices=notices, deadline=deadline)

        answer = await (answering() if service.questions is None else service.questions.run(deadline, answering))
        if prefers_text(request.headers.get("accept", "")):
            text = to_text(answer, service.limits.text_characters)
            return Response(text.encode("utf-8", "replace"), media_type="text/plain; charset=utf-8", headers=_VARY)
        return json_response(to_json(answer), _VARY)

    return search


def status_handler(service: Service) -> Handler:
    """GET /v1/status."""

    async def status(_request: Request, principal: Principal, _query_id: str) -> Response:
        found = service.status(principal)
        return json_response(await found if inspect.isawaitable(found) else found)

    return status


async def noop(_request: Request, _principal: Principal, _query_id: str) -> Response:
    """POST /v1/noop: authenticated, and nothing else."""
    return Response(b'{"ok":true}', media_type="application/json")


async def healthz(_request: Request) -> Response:
    """GET /healthz."""
    return Response(b'{"ok":true}', media_type="application/json")


_VARY = {"vary": "accept"}


def json_response(value: dict[str, Any], headers: dict[str, str] | None = None) -> Response:
    """`value` as JSON. What orjson refuses (half surrogate pairs from odd file names, foreign objects) is made plain first."""
    try:
        body = orjson.dumps(value, option=_ORJSON_OPTIONS)
    except TypeError:
        body = orjson.dumps(_encodable(plain(value)), option=_ORJSON_OPTIONS)
    return Response(body, media_type="application/json", headers=headers)


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return clean_surrogates(value)
    if isinstance(value, dict):
        return {clean_surrogates(name): _encodable(item) for name, item in value.items()}
    return [_encodable(item) for item in value] if isinstance(value, list) else value


def prefers_text(accept: str) -> bool:
    """Whether an Accept header wants text/plain more than JSON. Nothing that is wanted at all means JSON."""
    accept = accept.lower()
    if "text/" not in accept:
        return False
    plain_text = json = 0.0
    for part in accept.split(","):
        kind, *parameters = (piece.strip() for piece in part.split(";"))
        weight = next((_weight(piece[2:]) for piece in parameters if piece.startswith("q=")), 1.0)
        # A named type counts before a range: "text/plain, */*" asks for text.
        plain_text = max(plain_text, weight * {"text/plain": 1.0, "text/*": 0.99, "*/*": 0.98}.get(kind, 0.0))
        json = max(json, weight * {"application/json": 1.0, "application/*": 0.99, "*/*": 0.98}.get(kind, 0.0))
    return plain_text > json


def _weight(text: str) -> float:
    try:
        return min(1.0, max(0.0, float(text)))
    except ValueError:
        return 0.0


def _refuse_parameters(request: Request) -> None:
    if request.query_params:
        refuse_unknown(dict.fromkeys(request.query_params))
        raise UsageError("the question belongs into the body; this address takes no query parameters")
