"""The wire form of questions, answers and problems: what OpenAPI shows, and the strict reading of a question's body."""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, StrictStr, ValidationError

from cluster.errors import UsageError
from serve.question import DEFAULT_HOPS, DEFAULT_LIMIT, MAX_HOPS, MAX_LIMIT, MIN_HOPS, MIN_LIMIT, Question, make_question

#: Names under which a body might try to say who is asking, without case, "_" and "-".
_IDENTITY_NAMES = """
account accountid tenant tenantid agent agentid agents agentslug scope scopes allowedscopes reader readerid principal role roles
user userid owner owneragent team teams teamid key keyid apikey visibility sharedwith
"""
_IDENTITY_FIELDS = frozenset(_IDENTITY_NAMES.split())


class SearchBody(BaseModel):
    """A question. Types are strict: "10" is no number and 1 is no boolean. null means the default."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"required": ["query"]})

    query: StrictStr | None = Field(
        default=None,
        description="Plain text, required: no character of it is syntax. As long as the body may be; cuts are disclosed.",
        examples=["where are expired sessions removed"],
    )
    projects: list[StrictStr] | None = Field(
        default=None, description="Projects to search; every project of the key when left out. 1 to 100 names."
    )
    limit: StrictInt | None = Field(
        default=None,
        description=f"Hits wanted, {MIN_LIMIT} to {MAX_LIMIT}, default {DEFAULT_LIMIT}. Outside: clamped, with a notice.",
    )
    labels: list[StrictStr] | None = Field(
        default=None, description="Only nodes with one of these labels, such as Symbol, Chunk or Document."
    )
    fusion: Literal["weighted", "weighted_max", "rrf"] | None = Field(
        default=None, description="How the two legs become one list; default weighted: 0.7 * cosine + 0.3 * min-max BM25."
    )
    expand_hops: StrictInt | None = Field(
        default=None,
        description=f"Hops along the graph, {MIN_HOPS} to {MAX_HOPS}, default {DEFAULT_HOPS}. Outside: clamped, with a notice.",
    )
    explain: StrictBool | None = Field(default=None, description="Add terms, statistics, raw scores and fusion parameters.")
    cursor: StrictStr | None = Field(
        default=None, description="next_cursor of the page before; all other fields but limit must be the same."
    )
    statistics: Literal["visible", "all"] | None = Field(
        default=None,
        description="What BM25 takes its statistics over; default visible: what the key may read. all: admin keys only.",
    )


#: What each field takes, for the detail of a refusal.
_EXPECTED = {
    "query": "must be a string with at least one visible character",
    "projects": "must be a list of 1 to 100 project names",
    "limit": f"must be an integer from {MIN_LIMIT} to {MAX_LIMIT}",
    "labels": "must be a list of label names",
    "fusion": "must be one of weighted, weighted_max, rrf",
    "expand_hops": f"must be an integer from {MIN_HOPS} to {MAX_HOPS}",
    "explain": "must be true or false",
    "cursor": "must be the next_cursor of an answer",
    "statistics": "must be visible or all",
}


def read_question(raw: Any) -> Question:
    """The question in a parsed body. Raises UsageError (422) naming the field at fault."""
    if not isinstance(raw, dict):
        raise UsageError("the body must be a JSON object with at least a query", field="query")
    refuse_unknown(raw)
    try:
        body = SearchBody.model_validate(raw)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        name = str(first["loc"][0])
        raise UsageError(f"{name} {_EXPECTED[name]}, not {_kind(_at(raw, first['loc']))}", field=name) from None
    return make_question(
        query=body.query,
        projects=body.projects,
        limit=body.limit,
        labels=body.labels,
        fusion=body.fusion,
        expand_hops=body.expand_hops,
        explain=body.explain,
        statistics=body.statistics,
        cursor=body.cursor,
    )


def refuse_unknown(raw: Mapping[str, Any]) -> None:
    """Raises UsageError for a field that is not a question's; for one that names an identity, saying where that comes from."""
    for name in raw:
        if name in _EXPECTED:
            continue
        shown = repr(name[:100])
        if re.sub("[-_ ]", "", name).lower() in _IDENTITY_FIELDS:
            raise UsageError(f"remove {shown}: who is asking comes from the API key alone", field=name[:100])
        nearest = difflib.get_close_matches(name[:100].lower(), _EXPECTED, n=1, cutoff=0.5)
        hint = f"did you mean {nearest[0]!r}?" if nearest else f"known fields: {', '.join(_EXPECTED)}"
        raise UsageError(f"unknown field {shown}; {hint}", field=name[:100])


def _at(raw: Any, place: tuple[int | str, ...]) -> Any:
    for step in place:
        try:
            raw = raw[step]
        except (KeyError, IndexError, TypeError):
            return raw
    return raw


def _kind(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return "a number that is not finite"
    if isinstance(value, str):
        return "that string"
    names = {bool: "a boolean", int: "that integer", float: "a fraction", list: "a list", dict: "an object", type(None): "null"}
    return names.get(type(value), "that")


# --- what answers look like --------------------------------------------------------------------------------------------------


class Problem(BaseModel):
    """Any failure, as RFC 9457 has it (application/problem+json)."""

    type: str = Field(examples=["urn:raycall:error:invalid_input"])
    title: str = Field(examples=["The input is not usable"])
    status: int = Field(examples=[422])
    detail: str = Field(examples=["limit must be an integer from 1 to 100, not that string"])
    code: str = Field(description="Stable; clients may match on it.", examples=["invalid_input"])
    field: str | None = Field(default=None, description="The input field at fault.", examples=["limit"])
    revision: int | None = Field(default=None, description="The node's present revision, of stale_revision; 0: no node.")
    query_id: str | None = Field(default=None, description="What the server's log names this request by.")


class ScoreParts(BaseModel):
    """What a score was made of; null where that leg did not find the node, or where the fusion does not scale."""

    vector: float | None
    bm25: float | None
    bm25_scaled: float | None


class SnippetView(BaseModel):
    """The passage that answers best. Offsets count code points of `text`."""

    text: str
    matches: list[Annotated[list[int], Field(min_length=2, max_length=2)]]
    start_line: int | None


class RelatedView(BaseModel):
    """A neighbour of a hit."""

    type: str
    direction: Literal["outgoing", "incoming"]
    id: str
    labels: list[str]
    title: str | None
    path: str | None
    via: str | None = Field(description="The node that it was reached from, when that is not the hit itself.")


class HitView(BaseModel):
    """One result."""

    id: str
    labels: list[str]
    project: str
    store: str
    score: float
    scores: ScoreParts
    title: str | None
    symbol: str | None
    path: str | None
    start_line: int | None
    end_line: int | None
    commit: str | None
    snippet: SnippetView
    related: list[RelatedView]
    related_omitted: int


class FailureView(BaseModel):
    """A project of which a part did not answer."""

    project: str
    generation: str
    code: str
    detail: str


class LegView(BaseModel):
    """What one leg did. `asked` and `answered` count projects: those addressed, and those of them that answered whole."""

    leg: Literal["lexical", "vector"]
    ran: bool
    asked: int
    answered: int
    failed: list[FailureView]
    hits: int
    matched: int | None
    identity: str | None
    took_ms: float


class DegradationView(BaseModel):
    """Something that made this answer less than it could be, or that was changed on the way in."""

    code: str
    detail: str


class DisclosureView(BaseModel):
    """What the answer is made of, and what was left out of it."""

    legs: list[LegView]
    fusion: Literal["weighted", "weighted_max", "rrf"]
    generations: dict[str, str]
    candidates: int
    returned: int
    omitted: dict[str, int]
    more: str | None
    degradations: list[DegradationView]
    timings_ms: dict[str, float]


class SearchAnswer(BaseModel):
    """Hits, best first, and their disclosure."""

    query_id: str
    hits: list[HitView]
    disclosure: DisclosureView
    explain: dict[str, Any] | None
    next_cursor: str | None = Field(description="For the next page of the same list; null on the last one.")
