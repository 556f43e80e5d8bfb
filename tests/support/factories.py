"""Nodes, edges, keys and principals with one line each, and Hypothesis strategies for them.

The strategies draw names from a few, so that random nodes and random principals often meet.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from cluster.model.access import ApiKey, Principal, Role
from cluster.model.guard import All, AnyOf, Guard, Has, In, IsNull
from cluster.model.ids import derived_id
from cluster.model.nodes import Admission, Edge, Node, Scope, Source, Store, Visibility

ACCOUNT = "acme"
ACCOUNTS = (ACCOUNT, "zenith")
PROJECTS = ("ap-erp", "main", "NOT", "00000000-0000-0000-0000-000000000001")
AGENTS = ("iris", "mira", "noor")
LABELS = ("Document", "Section", "Chunk", "Symbol")


def make_node(node_id: str = "n1", **changes: Any) -> Node:
    """A live, untagged structure node of ACCOUNT and project "main"; `path="a.md"` is short for a source."""
    path = changes.pop("path", None)
    if path is not None:
        changes["source"] = Source(repository="repo", path=path, start_line=1, end_line=2)
    fields: dict[str, Any] = {
        "id": node_id,
        "account": ACCOUNT,
        "project": "main",
        "store": Store.STRUCTURE,
        "labels": ("Chunk",),
        "text": {"content": f"content of {node_id}"},
        "created_at": 1_700_000_000_000,
    }
    return Node(**(fields | changes))


def make_edge(from_id: str = "n1", to_id: str = "n2", kind: str = "CALLS", **changes: Any) -> Edge:
    """An edge of ACCOUNT and project "main"."""
    fields: dict[str, Any] = {"from_id": from_id, "type": kind, "to_id": to_id, "account": ACCOUNT, "project": "main"}
    return Edge(**(fields | changes))


def make_principal(**changes: Any) -> Principal:
    """An admin of ACCOUNT, who sees all of its projects and scopes."""
    fields: dict[str, Any] = {"account": ACCOUNT, "key_id": "k1", "role": Role.ADMIN}
    return Principal(**(fields | changes))


def make_agent(agent: str = "iris", **changes: Any) -> Principal:
    """A public agent of ACCOUNT: scopes public and shared, every project, no team."""
    scopes = frozenset({Scope.PUBLIC, Scope.SHARED})
    return make_principal(**({"role": Role.AGENT, "agent": agent, "scopes": scopes} | changes))


def make_key(key_id: str = "k1", **changes: Any) -> ApiKey:
    """A live API key of an admin of ACCOUNT; its hash follows from `key_id`."""
    fields: dict[str, Any] = {
        "key_id": key_id,
        "name": f"key {key_id}",
        "secret_hash": derived_id(key_id) * 2,
        "principal": make_principal(key_id=key_id),
        "created_at": 1_700_000_000_000,
    }
    return ApiKey(**(fields | changes))


def subsets(names: tuple[str, ...]) -> st.SearchStrategy[tuple[str, ...]]:
    return st.lists(st.sampled_from(names), max_size=len(names)).map(tuple)


def accounts() -> st.SearchStrategy[str]:
    return st.sampled_from(ACCOUNTS)


def projects() -> st.SearchStrategy[str]:
    return st.sampled_from(PROJECTS)


def labels() -> st.SearchStrategy[tuple[str, ...]]:
    return subsets(LABELS)


def nodes() -> st.SearchStrategy[Node]:
    """Nodes that differ in what guards look at; their ids may repeat."""
    return st.builds(
        Node,
        id=st.integers(0, 999).map(str),
        account=accounts(),
        project=projects(),
        store=st.sampled_from(Store),
        labels=labels(),
        text=st.just({"content": "text"}),
        scope=st.none() | st.sampled_from(Scope),
        agents=st.none() | subsets(AGENTS),
        visibility=st.none() | st.sampled_from(Visibility),
        owner_agent=st.none() | st.sampled_from(AGENTS),
        shared_with=subsets(AGENTS),
        admission=st.none() | st.sampled_from(Admission),
        deleted_at=st.none() | st.sampled_from((0, 7)),
    )


def principals() -> st.SearchStrategy[Principal]:
    """Every combination of role, agent, scopes, membership and teams, the odd ones too."""
    return st.builds(
        Principal,
        account=accounts(),
        key_id=st.just("k1"),
        role=st.sampled_from(Role),
        agent=st.none() | st.sampled_from(AGENTS),
        scopes=st.none() | st.frozensets(st.sampled_from(Scope)),
        projects=st.none() | st.frozensets(projects()),
        teams=st.frozensets(projects()),
    )


def guard_expressions() -> st.SearchStrategy[Guard]:
    """Any expression, of columns and values that nodes have, and some that they do not."""
    values = subsets((*PROJECTS, *AGENTS, *LABELS, *ACCOUNTS, "structure", "public", "team", "7", "07", "", "é'\"\\", "%"))
    scalars = st.sampled_from(("account", "project", "store", "scope", "visibility", "owner_agent", "deleted_at"))
    lists = st.sampled_from(("labels", "agents", "shared_with"))
    leaves = st.builds(IsNull, scalars | lists) | st.builds(In, scalars, values) | st.builds(Has, lists, values)
    return st.recursive(
        leaves,
        lambda part: (
            st.builds(All, st.lists(part, max_size=3).map(tuple)) | st.builds(AnyOf, st.lists(part, max_size=3).map(tuple))
        ),
        max_leaves=8,
    )
