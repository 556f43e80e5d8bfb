"""What OpenAPI says beyond the routes themselves: bodies, examples, problems, the key."""

from __future__ import annotations

from typing import Any

from pydantic.json_schema import models_json_schema

from serve.http.errors import PROBLEM_TYPE
from serve.http.nodes_schemas import BulkAnswer, NodeBody, NodePatch, NodeView, WriteAnswer
from serve.http.schemas import Problem, SearchAnswer, SearchBody
from serve.http.timing import TIMEOUT_PARAMETER

TITLE = "Raycall"
DESCRIPTION = """Guarded hybrid retrieval: BM25 and vectors, fused, with a statement of what was left out.

Send `Authorization: Bearer rk_...`. Who is asking comes from the key alone. Failures are `application/problem+json`."""

_REFERENCE = "#/components/schemas/{model}"

_BODY_EXAMPLES: dict[str, dict[str, Any]] = {
    "plain": {"summary": "A question over all projects of the key", "value": {"query": "where are expired sessions removed"}},
    "narrow": {
        "summary": "Symbols of one project, with neighbours two hops away, and an explanation",
        "value": {
            "query": "parse_config",
            "projects": ["billing"],
            "labels": ["Symbol"],
            "limit": 5,
            "expand_hops": 2,
            "explain": True,
        },
    },
}

#: An answer as it may look; `tests/unit/test_http_app.py` holds it to the schema.
ANSWER_EXAMPLE: dict[str, Any] = {
    "query_id": "5f2b9c3d41a7e680",
    "hits": [
        {
            "id": "20bc21949b3617ec337bf35d9398daae",
            "labels": ["Symbol", "Function"],
            "project": "billing",
            "store": "structure",
            "score": 0.861,
            "scores": {"vector": 0.802, "bm25": 11.37, "bm25_scaled": 1.0},
            "title": "def remove_expired(now: int) -> int:",
            "symbol": "sessions.remove_expired",
            "path": "src/sessions.py",
            "start_line": 41,
            "end_line": 58,
            "commit": "9f1c0a7be6d2435f8a0b1c2d3e4f5a6b7c8d9e0f",
            "snippet": {"text": "Removes expired sessions.", "matches": [[8, 15], [16, 24]], "start_line": 42},
            "related": [
                {
                    "type": "DEFINES",
                    "direction": "incoming",
                    "id": "b7e23ec29af22b0b4e41da31e868d572",
                    "labels": ["Document", "File"],
                    "title": "sessions.py",
                    "path": "src/sessions.py",
                    "via": None,
                }
            ],
            "related_omitted": 0,
        }
    ],
    "disclosure": {
        "legs": [
            {
                "leg": "lexical",
                "ran": True,
                "asked": 1,
                "answered": 1,
                "failed": [],
                "hits": 1,
                "matched": 1,
                "identity": None,
                "took_ms": 2.1,
            },
            {
                "leg": "vector",
                "ran": True,
                "asked": 1,
                "answered": 1,
                "failed": [],
                "hits": 1,
                "matched": None,
                "identity": "wordllama/l2_supercat/256/text/symmetric/l2",
                "took_ms": 1.4,
            },
        ],
        "fusion": "weighted",
        "generations": {"billing": "g-000003"},
        "candidates": 1,
        "returned": 1,
        "omitted": {},
        "more": None,
        "degradations": [],
        "timings_ms": {"total": 4.2},
    },
    "explain": None,
    "next_cursor": None,
}

_PROBLEMS = {
    400: "The body is not JSON, not UTF-8, holds a key twice, or too many values",
    401: "No key, or one that is not valid",
    403: "The key may not do this",
    404: "No project of that name that the key may search",
    413: "The body is too large",
    415: "Another content type than application/json, a charset other than UTF-8, or a compressed body",
    422: "A field is unknown, of the wrong type, or not usable; `field` names it",
    429: "Too many requests are waiting",
    500: "A fault of the server; its log names it by `query_id`",
    503: "A needed part is down; try again",
    504: "The question's time was over before its hits were read",
}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The problem responses of a route."""
    content = {PROBLEM_TYPE: {"schema": {"$ref": _REFERENCE.format(model="Problem")}}}
    return {status: {"description": _PROBLEMS[status], "content": content} for status in statuses}


def example(value: dict[str, Any], description: str) -> dict[int | str, dict[str, Any]]:
    """A route's 200 response, by example."""
    return {200: {"description": description, "content": {"application/json": {"example": value}}}}


def search_documentation() -> dict[str, Any]:
    """Arguments of the route POST /v1/search."""
    answer = {
        "application/json": {"schema": {"$ref": _REFERENCE.format(model="SearchAnswer")}, "example": ANSWER_EXAMPLE},
        "text/plain": {"schema": {"type": "string"}},
    }
    body = {
        "required": True,
        "content": {
            "application/json": {"schema": {"$ref": _REFERENCE.format(model="SearchBody")}, "examples": _BODY_EXAMPLES}
        },
    }
    return {
        "tags": ["search"],
        "summary": "Ask a question",
        "description": "Hits, best first, with a disclosure. `Accept: text/plain` gives the text form for agents.",
        "openapi_extra": {"requestBody": body, "parameters": [TIMEOUT_PARAMETER]},
        "responses": {
            200: {"description": "Hits and their disclosure, possibly none", "content": answer},
            **problems(*_PROBLEMS),
        },
    }


def with_components(schema: dict[str, Any]) -> dict[str, Any]:
    """`schema` with the models that the routes refer to, and the key scheme that they demand."""
    _, models = models_json_schema(
        [
            *((model, "validation") for model in (SearchBody, NodeBody, NodePatch)),
            *((model, "serialization") for model in (SearchAnswer, Problem, NodeView, WriteAnswer, BulkAnswer)),
        ],
        ref_template=_REFERENCE,
    )
    components = schema.setdefault("components", {})
    components["schemas"] = {**components.get("schemas", {}), **models["$defs"]}
    components["securitySchemes"] = {"apiKey": {"type": "http", "scheme": "bearer", "description": "An API key, rk_..."}}
    return schema
