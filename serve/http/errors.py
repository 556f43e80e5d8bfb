"""Every failure as `application/problem+json` (RFC 9457): a stable code, a sentence, and nothing of the server's inside."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Any

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from cluster.errors import AnalyzerError, OverloadedError, RaycallError, StaleError, UnreadableIndexError
from serve.question import clean_surrogates

logger = logging.getLogger(__name__)

PROBLEM_TYPE = "application/problem+json"
QUERY_ID_HEADER = "x-raycall-query-id"
#: Seconds after which a client may try again, for 503, and for 429 where nothing is known of the queue.
RETRY_AFTER_S = 1

#: What does not pass by itself: nobody is told to try again.
_LASTING = frozenset({UnreadableIndexError.code, AnalyzerError.code})

_ROUTING = {
    404: ("no_such_route", "there is nothing at this address"),
    405: ("method_not_allowed", "this address does not take that method"),
}


def problem(
    *,
    status: int,
    code: str,
    title: str,
    detail: str,
    field: str | None = None,
    query_id: str | None = None,
    revision: int | None = None,
    retry_after_s: int = RETRY_AFTER_S,
) -> Response:
    """A problem+json response; `field`, `query_id` and `revision` appear when they are given, and a time where one may help."""
    body: dict[str, Any] = {
        "type": f"urn:raycall:error:{code}",
        "title": title,
        "status": status,
        "detail": clean_surrogates(detail),
        "code": code,
    }
    headers = {}
    if revision is not None:
        body["revision"] = revision
    if field is not None:
        body["field"] = clean_surrogates(field)
    if query_id is not None:
        body["query_id"] = headers[QUERY_ID_HEADER] = query_id
    if status == HTTPStatus.UNAUTHORIZED:
        headers["www-authenticate"] = 'Bearer realm="raycall"'
    if status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE) and code not in _LASTING:
        headers["retry-after"] = str(retry_after_s)
    return Response(orjson.dumps(body), status_code=status, media_type=PROBLEM_TYPE, headers=headers)


def problem_of(error: Exception, query_id: str | None = None) -> Response:
    """The response to any exception. One that is not Raycall's own is logged with its trace and answered without details.

    The same goes for what Raycall itself calls a fault of the server (status 500).
    """
    if isinstance(error, RaycallError) and error.http_status != HTTPStatus.INTERNAL_SERVER_ERROR:
        kind = type(error)
        return problem(
            status=error.http_status,
            code=error.code,
            title=(kind.__doc__ or kind.__name__).splitlines()[0].rstrip("."),
            detail=error.detail,
            field=error.field,
            query_id=query_id,
            revision=error.revision if isinstance(error, StaleError) else None,
            retry_after_s=error.retry_after_s if isinstance(error, OverloadedError) else RETRY_AFTER_S,
        )
    logger.error("request failed", exc_info=error, extra={"action": "request_failed", "query_id": query_id})
    return problem(
        status=500,
        code=error.code if isinstance(error, RaycallError) else "internal",
        title="Internal error",
        detail="the request failed on the server; its log holds the reason under this query_id",
        query_id=query_id,
    )


async def on_http_exception(_request: Request, error: Exception) -> Response:
    """For the framework's own refusals: no route, another method."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    code, detail = _ROUTING.get(status, ("http_error", HTTPStatus(status).phrase.lower()))
    response = problem(status=status, code=code, title=HTTPStatus(status).phrase, detail=detail)
    allow = (getattr(error, "headers", None) or {}).get("Allow")
    if allow:
        response.headers["allow"] = allow
    return response


async def on_exception(_request: Request, error: Exception) -> Response:
    """For what went wrong outside of a route."""
    return problem_of(error)
