"""The wire form of nodes and of what came of writing them: what OpenAPI shows, and how it is rendered."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from cluster.errors import RaycallError, StaleError
from cluster.model.access import Principal
from cluster.model.nodes import Node
from serve.writing import Outcome, Written
from serve.writing_fields import MAX_PROPERTIES, MAX_TEXT, fields_of
from serve.writing_rules import Result

_SCOPE = "Who may see it by scope; an agent writes only scopes of its own key."
_VISIBILITY = (
    "personal: the owner and shared_with; project (also null): members; team: the project's team. An agent's nodes are "
    "personal unless it says otherwise."
)


class TextFields(BaseModel):
    """What is searched. At least one must hold a visible character."""

    model_config = ConfigDict(extra="forbid")

    title: str | None = Field(default=None, max_length=MAX_TEXT)
    symbol: str | None = Field(default=None, max_length=MAX_TEXT)
    path: str | None = Field(default=None, max_length=MAX_TEXT)
    summary: str | None = Field(default=None, max_length=MAX_TEXT)
    content: str | None = Field(default=None, max_length=MAX_TEXT)


class SourceFields(BaseModel):
    """What the node is about, or was read from."""

    model_config = ConfigDict(extra="forbid")

    repository: str = Field(max_length=1000)
    path: str = Field(max_length=1000)
    start_line: int | None = Field(default=None, ge=1)
    end_line: int | None = Field(default=None, ge=1)
    commit: str | None = Field(default=None, pattern="^[0-9a-f]{40}$")


class NodePatch(BaseModel):
    """A merge patch (RFC 7396): what is left out stays, null removes, objects are merged member by member."""

    model_config = ConfigDict(extra="forbid")

    labels: list[str] | None = Field(default=None, description="1 to 20; default Note.")
    text: TextFields | None = None
    properties: dict[str, Any] | None = Field(default=None, description=f"Any JSON, at most {MAX_PROPERTIES:,} bytes.")
    keywords: list[str] | None = None
    status: str | None = Field(default=None, max_length=100)
    confidence: float | None = Field(default=None, ge=0, le=1)
    source: SourceFields | None = None
    scope: Literal["public", "shared", "admin"] | None = Field(default=None, description=_SCOPE)
    agents: list[str] | None = Field(
        default=None, description="Agents that find it. Of an agent's node: itself, and whom it names beside itself."
    )
    visibility: Literal["personal", "project", "team"] | None = Field(default=None, description=_VISIBILITY)
    shared_with: list[str] | None = Field(default=None, description="Agents that may read a personal node.")
    revision: int | None = Field(default=None, ge=0, description="The revision that the node must have; as If-Match.")


class NodeBody(NodePatch):
    """A node to create or, where its id is known, to replace. What an upsert leaves out of scope, agents, visibility and
    shared_with stays as it is."""

    id: str | None = Field(
        default=None,
        pattern="^[A-Za-z0-9_][A-Za-z0-9._:-]{0,199}$",
        description="Generated when left out. An agent's ids start with its name and a colon.",
    )
    project: str
    store: Literal["work", "conversation"] | None = Field(default=None, description="Default work.")
    text: TextFields


class NodeView(BaseModel):
    """A node."""

    id: str
    project: str
    store: str
    labels: list[str]
    text: dict[str, str]
    properties: dict[str, Any]
    keywords: list[str]
    status: str | None
    confidence: float | None
    source: SourceFields | None
    scope: str | None
    visibility: str | None
    owner_agent: str | None
    agents: list[str] | None = Field(default=None, description="For the owner and admins alone; null for others.")
    shared_with: list[str] | None = Field(default=None, description="For the owner and admins alone; null for others.")
    admission: str | None
    created_at: int
    last_confirmed_at: int | None
    revision: int


class WriteAnswer(BaseModel):
    """What came of a write. It is on the disk."""

    id: str
    project: str
    result: Literal["created", "updated", "unchanged", "deleted"]
    revision: int = Field(description="The node's revision; also in ETag.")
    visible: bool | None = Field(description="With wait_for=visible: whether every answer shows it from now on.")
    vectors: bool | None = Field(description="With wait_for=visible: whether it is compared by its vector, too.")


class RowError(BaseModel):
    """Why a row was refused; the fields are a problem's."""

    code: str
    detail: str
    field: str | None = None
    revision: int | None = Field(default=None, description="The present revision, of stale_revision.")


class RowResult(BaseModel):
    """What came of one line."""

    line: int = Field(description="Counted from 1, blank lines too.")
    op: str | None
    id: str | None
    status: int = Field(description="As the single request would have answered.")
    result: Literal["created", "updated", "unchanged", "deleted"] | None
    revision: int | None
    error: RowError | None


class BulkAnswer(BaseModel):
    """What came of many rows, in their order."""

    rows: int
    counts: dict[str, int] = Field(description="created, updated, unchanged, deleted, failed")
    visible: bool | None
    vectors: bool | None
    results: list[RowResult]


# --- rendering ---------------------------------------------------------------------------------------------------------------


def node_as_json(node: Node, principal: Principal) -> dict[str, Any]:
    """`node` for `principal`. Who else may read it is said to its owner and to admins alone."""
    fields = fields_of(node)
    if principal.agent is not None and node.owner_agent != principal.agent:
        fields["agents"] = fields["shared_with"] = None
    return {
        "id": node.id,
        "project": node.project,
        "store": node.store.value,
        **fields,
        "owner_agent": node.owner_agent,
        "admission": node.admission and node.admission.value,
        "created_at": node.created_at,
        "last_confirmed_at": node.last_confirmed_at,
        "revision": node.revision,
    }


def written_as_json(written: Written) -> dict[str, Any]:
    """The answer to a single write."""
    ((_, outcome),) = written.outcomes
    return {
        "id": outcome.id,
        "project": outcome.project,
        "result": outcome.result,
        "revision": outcome.revision,
        **_shown(written),
    }


def bulk_as_json(written: Written) -> dict[str, Any]:
    """The answer to many."""
    return {
        "rows": len(written.outcomes),
        "counts": written.counts,
        **_shown(written),
        "results": [_row(line, outcome) for line, outcome in written.outcomes],
    }


def status_of(outcome: Outcome) -> int:
    """The HTTP status of what came of a command."""
    if outcome.error is not None:
        return outcome.error.http_status
    return 201 if outcome.result is Result.CREATED else 200


def _shown(written: Written) -> dict[str, Any]:
    shown = written.shown
    return {"visible": None if shown is None else shown.visible, "vectors": None if shown is None else shown.vectors}


def _row(line: int, outcome: Outcome) -> dict[str, Any]:
    return {
        "line": line,
        "op": outcome.op,
        "id": outcome.id,
        "status": status_of(outcome),
        "result": outcome.result,
        "revision": outcome.revision,
        "error": None if outcome.error is None else _error(outcome.error),
    }


def _error(error: RaycallError) -> dict[str, Any]:
    # What a fault of the server says of itself is for its log.
    detail = "the row failed on the server" if error.http_status == 500 else error.detail
    found: dict[str, Any] = {"code": error.code, "detail": detail, "field": error.field}
    return {**found, "revision": error.revision} if isinstance(error, StaleError) else found


#: Lines of a bulk request, by example.
BULK_EXAMPLE = """{"op": "upsert", "id": "runbook-7", "project": "billing", "text": {"title": "Restarting the importer"}}
{"op": "patch", "id": "runbook-6", "revision": 41, "status": "superseded"}
{"op": "delete", "id": "runbook-5"}
"""
