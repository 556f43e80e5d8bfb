"""Who may write what, and what a command makes of the node that is there. Pure.

Whatever an agent has written, it finds: its key's search guard allows each node that these rules let through.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from cluster import guards
from cluster.embed.node_text import embedding_text
from cluster.errors import ConflictError, ForbiddenError, NotFoundError, StaleError, UsageError
from cluster.graph.batches import clean_node, same_node
from cluster.model.access import Principal
from cluster.model.ids import content_hash
from cluster.model.nodes import Node, Store, Visibility
from serve.writing_fields import (
    ACCESS_FIELDS,
    NODE_FIELDS,
    Draft,
    fields_of,
    merge_patch,
    read_draft,
    read_new_id,
    refuse_unknown,
)

#: Stores that are written by asking for it.
OPEN_STORES = frozenset({Store.WORK, Store.CONVERSATION})
_WRITERS = {
    Store.STRUCTURE: "it is what indexing finds in files, and indexing alone writes it",
    Store.CURATED: "promotion alone writes it",
    Store.AUDIT: "the server alone writes it",
}


class Op(StrEnum):
    """What is done to a node."""

    UPSERT = "upsert"
    PATCH = "patch"
    DELETE = "delete"


class Result(StrEnum):
    """What came of it."""

    CREATED = "created"
    UPDATED = "updated"
    UNCHANGED = "unchanged"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One wish of a caller. The fields are as the caller sent them."""

    op: Op
    #: Of an upsert without an id: a new one.
    id: str
    #: Whether the caller named the id.
    named: bool = True
    #: Upserts alone.
    project: str = ""
    store: str = Store.WORK.value
    #: Of an upsert the node's fields, of a patch the merge patch.
    fields: Mapping[str, Any] = field(default_factory=dict)
    #: The revision that the node must have; 0: it must not be there. None: any.
    expected: int | None = None
    #: Whether there must be a node, of whatever revision.
    must_exist: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What a command makes of a node."""

    result: Result
    #: The node before or, where it is written, after.
    node: Node

    @property
    def writes(self) -> bool:
        """Whether `node` is to be stored."""
        return self.result in (Result.CREATED, Result.UPDATED)


def may_read(principal: Principal, node: Node) -> bool:
    """Whether `principal` may see `node`, deleted or not, by its id: as a related node, so that untagged ones pass."""
    return guards.allows(guards.expansion_guard(principal), replace(node, deleted_at=None))


def apply(command: Command, principal: Principal, found: Node | None, projects: Collection[str], now: int) -> Change:
    """What `command` of `principal` does where `found` is stored under its id.

    `projects`: those that the principal may use. Raises NotFoundError for what the principal may not know to exist, in the same
    words as for what does not exist; ForbiddenError for what it sees and may not write; StaleError, ConflictError, UsageError.
    """
    match command.op:
        case Op.UPSERT:
            return _upsert(command, principal, found, projects, now)
        case Op.PATCH:
            return _patch(command, principal, found)
        case Op.DELETE:
            return _delete(command, principal, found)


# --- the three commands ------------------------------------------------------------------------------------------------------


def _upsert(command: Command, principal: Principal, found: Node | None, projects: Collection[str], now: int) -> Change:
    if command.project not in projects:
        name = _shown(command.project)
        raise NotFoundError(f"no project of that name that this key may write to: {name!r}", field="project")
    store = _open_store(command.store)
    refuse_unknown(command.fields, NODE_FIELDS)
    if found is None:
        _check_new_id(command, principal)
    else:
        _check_same_place(command, principal, found, store)
    fresh = found is None or found.deleted_at is not None
    _check_revision(command, found, fresh=fresh)
    kept = {} if found is None else {name: value for name, value in fields_of(found).items() if name in ACCESS_FIELDS}
    draft = read_draft({**kept, **command.fields})
    if found is None:
        base = Node(
            id=command.id,
            account=principal.account,
            project=command.project,
            store=store,
            labels=draft.labels,
            owner_agent=principal.agent,
            created_at=now,
        )
        return Change(result=Result.CREATED, node=_composed(base, draft, principal))
    if fresh:
        base = replace(found, created_at=now, deleted_at=None, admission=None, last_confirmed_at=None)
        return Change(result=Result.CREATED, node=_composed(base, draft, principal))
    return _changed(found, _composed(found, draft, principal))


def _patch(command: Command, principal: Principal, found: Node | None) -> Change:
    node = _writable(command, principal, found)
    if node.deleted_at is not None:
        raise _not_found(command.id)
    _check_revision(command, node, fresh=False)
    refuse_unknown(command.fields, NODE_FIELDS)
    draft = read_draft(merge_patch(fields_of(node), command.fields))
    return _changed(node, _composed(node, draft, principal))


def _delete(command: Command, principal: Principal, found: Node | None) -> Change:
    node = _writable(command, principal, found)
    if node.deleted_at is not None:
        return Change(result=Result.UNCHANGED, node=node)
    _check_revision(command, node, fresh=False)
    return Change(result=Result.DELETED, node=node)


def _changed(before: Node, after: Node) -> Change:
    return (
        Change(result=Result.UNCHANGED, node=before) if same_node(before, after) else Change(result=Result.UPDATED, node=after)
    )


# --- who may -----------------------------------------------------------------------------------------------------------------


def _writable(command: Command, principal: Principal, found: Node | None) -> Node:
    if found is None or not may_read(principal, found):
        raise _not_found(command.id)
    _check_writer(principal, found)
    return found


def _check_writer(principal: Principal, node: Node) -> None:
    if node.store not in OPEN_STORES:
        raise ForbiddenError(f"the node is of store {node.store.value!r}: {_WRITERS[node.store]}")
    if principal.agent is not None and node.owner_agent != principal.agent:
        raise ForbiddenError("the node belongs to somebody else: an agent changes and deletes only what it has written")


def _not_found(node_id: str) -> NotFoundError:
    return NotFoundError(f"no node of that id that this key may read: {_shown(node_id)!r}", field="id")


def _open_store(name: str) -> Store:
    try:
        store = Store(name)
    except ValueError as error:
        known = ", ".join(sorted(OPEN_STORES))
        raise UsageError(f"store must be one of {known}", field="store") from error
    if store not in OPEN_STORES:
        raise ForbiddenError(f"store {store.value!r} is not written like this: {_WRITERS[store]}", field="store")
    return store


def _check_new_id(command: Command, principal: Principal) -> None:
    if not command.named:
        return
    read_new_id(command.id)
    if principal.agent is not None and not command.id.startswith(f"{principal.agent}:"):
        # An agent that could name any id would learn from a refusal that somebody else's node has it.
        raise UsageError(f"an agent's ids start with its name: {principal.agent}:{command.id[:100]}", field="id")


def _check_same_place(command: Command, principal: Principal, found: Node, store: Store) -> None:
    if not may_read(principal, found):
        _check_new_id(command, principal)
        raise ConflictError("the id is taken: choose another one, or leave it out", field="id")
    _check_writer(principal, found)
    for name, value, wanted in (("project", found.project, command.project), ("store", found.store.value, store.value)):
        if value != wanted:
            raise ConflictError(f"the node is in {name} {value!r}: a node does not move", field=name)


def _check_revision(command: Command, found: Node | None, *, fresh: bool) -> None:
    """`fresh`: there is nothing for a reader, or nothing any more."""
    present = 0 if fresh or found is None else found.revision
    if command.must_exist and not present:
        raise StaleError("there is no such node", field="revision", revision=0)
    if command.expected is not None and command.expected != present:
        state = f"the node is at revision {present}" if present else "there is no such node"
        raise StaleError(f"{state}, not at {command.expected}", field="revision", revision=present)


def _shown(name: str) -> str:
    """What of `name` may be in a sentence."""
    return name[:100]


# --- the node ----------------------------------------------------------------------------------------------------------------


def _composed(base: Node, draft: Draft, principal: Principal) -> Node:
    node = replace(
        base,
        labels=draft.labels,
        text=draft.text,
        properties=draft.properties,
        keywords=draft.keywords,
        status=draft.status,
        confidence=draft.confidence,
        source=draft.source,
        scope=draft.scope,
        agents=_agents(draft, principal),
        visibility=_visibility(draft, base, principal),
        shared_with=draft.shared_with,
    )
    if principal.scopes is not None and node.scope is not None and node.scope not in principal.scopes:
        raise ForbiddenError(f"this key does not see scope {node.scope.value!r}, so it does not write it", field="scope")
    return clean_node(replace(node, content_hash=content_hash(embedding_text(node))))


def _agents(draft: Draft, principal: Principal) -> tuple[str, ...] | None:
    if principal.agent is None:
        return draft.agents
    if draft.agents is None:
        return (principal.agent,)
    if principal.agent not in draft.agents:
        detail = f"agents must hold {principal.agent!r} itself: an agent finds only what is tagged for it"
        raise UsageError(detail, field="agents")
    return draft.agents


def _visibility(draft: Draft, base: Node, principal: Principal) -> Visibility | None:
    wanted = draft.visibility
    if wanted is None and principal.agent is not None:
        return Visibility.PERSONAL
    if wanted is Visibility.PERSONAL and principal.agent is None:
        raise UsageError("visibility 'personal' is for an agent's own nodes; an admin's key has no agent", field="visibility")
    if wanted is Visibility.TEAM and base.project not in principal.teams:
        raise ForbiddenError("this key is in no team of that project, so it does not write for one", field="visibility")
    return wanted
