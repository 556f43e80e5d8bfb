"""Nodes and edges: what the graph store records and everything else is derived from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeAlias

#: A value that JSON can hold. `Any` inside the containers: mypy's recursive aliases do not survive dataclass plugins.
Json: TypeAlias = bool | int | float | str | list[Any] | dict[str, Any] | None


class Store(StrEnum):
    """The epistemic store that a node belongs to; each has one kind of writer."""

    STRUCTURE = "structure"
    WORK = "work"
    CURATED = "curated"
    CONVERSATION = "conversation"
    AUDIT = "audit"


class Scope(StrEnum):
    """Who may see a node by scope; a node without one passes the scope layer."""

    PUBLIC = "public"
    SHARED = "shared"
    ADMIN = "admin"


class Visibility(StrEnum):
    """Which reader may see a node; a missing value means `project`."""

    PERSONAL = "personal"
    PROJECT = "project"
    TEAM = "team"


class Admission(StrEnum):
    """How far an automatically captured memory has been admitted."""

    EPHEMERAL = "ephemeral"
    CANDIDATE = "candidate"
    QUALIFIED = "qualified"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a node was read from."""

    #: Repository root's name or remote, as given at ingest.
    repository: str
    #: Path inside the repository, with "/" between segments and the file system's own characters.
    path: str
    #: First and last line, counted from 1, both inclusive; None for a whole file.
    start_line: int | None = None
    end_line: int | None = None
    #: Commit that was checked out, 40 hex digits; None outside git or before the first commit.
    commit: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One record of the graph.

    `id` is stable, and derived from the content for what a job extracts. Times are milliseconds since the epoch, UTC.
    """

    id: str
    account: str
    project: str
    store: Store
    labels: tuple[str, ...]
    #: Searchable text by property name. The names that the indexes know: title, path, symbol, summary, content.
    text: Mapping[str, str] = field(default_factory=dict)
    properties: Mapping[str, Json] = field(default_factory=dict)
    scope: Scope | None = None
    #: Slugs of the agents that this node is tagged for. None = untagged; () = tagged for nobody. The guards tell them apart.
    agents: tuple[str, ...] | None = None
    keywords: tuple[str, ...] = ()
    visibility: Visibility | None = None
    owner_agent: str | None = None
    shared_with: tuple[str, ...] = ()
    admission: Admission | None = None
    status: str | None = None
    #: 0 to 1.
    confidence: float | None = None
    created_at: int = 0
    last_confirmed_at: int | None = None
    deleted_at: int | None = None
    source: Source | None = None
    content_hash: str = ""
    #: Written by the store alone: the revision of the transaction that last changed this node; 0 before the first write.
    revision: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """A directed, typed relation. (from_id, type, to_id) is unique; a dangling end is kept and never shown."""

    from_id: str
    type: str
    to_id: str
    account: str
    project: str
    properties: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Related:
    """A neighbour of a node, and the edge that leads there."""

    edge: Edge
    #: "outgoing" when the edge leads from the asked node to `node`.
    direction: str
    node: Node
