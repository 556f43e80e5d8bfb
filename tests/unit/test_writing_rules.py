"""Who may write what, over a store in memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.errors import ConflictError, ForbiddenError, NotFoundError, RaycallError, StaleError, UsageError
from cluster.graph.memory import MemoryGraphStore
from cluster.guards import allows, search_guard
from cluster.model.access import Principal, Role
from cluster.model.nodes import Node, Scope, Store, Visibility
from cluster.ports import WriteBatch
from serve.writing_rules import Command, Op, Result, apply
from tests.support.factories import (
    ACCOUNT,
    AGENTS,
    PROJECTS,
    make_agent,
    make_edge,
    make_node,
    make_principal,
    nodes,
    principals,
)
from tests.support.writing import ADMIN, Desk, delete, patch, register, upsert

IRIS, MIRA = make_agent("iris"), make_agent("mira")
WORK: dict[str, Any] = {"store": Store.WORK}


@pytest.fixture
def desk() -> Desk:
    return Desk(MemoryGraphStore(account=ACCOUNT))


def refusal(desk: Desk, command: Command, principal: Principal = ADMIN) -> RaycallError:
    before = desk.store.revision()
    with pytest.raises(RaycallError) as refused:
        desk.do(command, principal)
    assert desk.store.revision() == before
    return refused.value


# --- what is made of a command -----------------------------------------------------------------------------------------------


def test_a_new_node_of_an_admin_is_everybodys(desk: Desk) -> None:
    outcome = desk.do(upsert("n1", properties={"a": 1}))
    assert (outcome.result, outcome.revision, outcome.project) == (Result.CREATED, 1, "main")
    node = desk.node()
    assert (node.account, node.project, node.store, node.labels) == (ACCOUNT, "main", Store.WORK, ("Note",))
    assert (node.owner_agent, node.agents, node.visibility, node.revision) == (None, None, None, 1)
    assert node.created_at == desk.clock.now_ms() and node.content_hash


def test_a_new_node_of_an_agent_is_its_own(desk: Desk) -> None:
    desk.do(upsert("iris:n1"), IRIS)
    node = desk.node("iris:n1")
    assert (node.owner_agent, node.agents, node.visibility) == ("iris", ("iris",), Visibility.PERSONAL)
    assert allows(search_guard(IRIS), node) and not allows(search_guard(MIRA), node) and not allows(search_guard(ADMIN), node)


def test_an_upsert_replaces_the_content_and_keeps_who_may_read(desk: Desk) -> None:
    desk.do(upsert("iris:n1", keywords=["k"], properties={"a": 1}, visibility="project", agents=["iris", "mira"]), IRIS)
    desk.clock.advance(60)
    assert desk.do(upsert("iris:n1", "beta"), IRIS).result is Result.UPDATED
    node = desk.node("iris:n1")
    assert (node.text, node.keywords, node.properties) == ({"content": "beta"}, (), {})
    assert (node.visibility, node.agents, node.created_at) == (
        Visibility.PROJECT,
        ("iris", "mira"),
        desk.clock.now_ms() - 60_000,
    )
    desk.do(upsert("iris:n1", "gamma", visibility=None), IRIS)
    assert desk.node("iris:n1").visibility is Visibility.PERSONAL, "null is the default, not what was there"


def test_what_changes_nothing_keeps_its_revision(desk: Desk) -> None:
    assert desk.do(upsert()).revision == 1
    for command in (upsert(), patch(text={"content": "alpha"}), patch(properties={"a": None}), patch()):
        outcome = desk.do(command)
        assert (outcome.result, outcome.revision) == (Result.UNCHANGED, 1)
    assert desk.store.revision() == 1


def test_a_patch_merges_and_null_removes(desk: Desk) -> None:
    desk.do(upsert(properties={"a": {"b": 1, "c": 2}, "d": 3}, status="open", labels=["Task"]))
    outcome = desk.do(patch(text={"title": "T"}, properties={"a": {"b": None}, "d": None}, status=None, labels=None))
    assert (outcome.result, outcome.revision) == (Result.UPDATED, 2)
    node = desk.node()
    assert (node.text, node.properties) == ({"content": "alpha", "title": "T"}, {"a": {"c": 2}})
    assert (node.status, node.labels) == (None, ("Note",))
    assert refusal(desk, patch(text={"title": None, "content": None})).field == "text"
    assert refusal(desk, patch(text=None)).field == "text"
    for index in range(4):
        command = patch(properties={str(index): "x" * 20_000})
        if index < 3:
            desk.do(command)
    assert refusal(desk, command).field == "properties", "patches add up to a bounded node"


def test_a_deletion_takes_the_parts_along_and_is_done_once(desk: Desk) -> None:
    parts = (make_node("n1", **WORK), make_node("part", **WORK))
    desk.store.write(WriteBatch(nodes=parts, edges=(make_edge("n1", "part", "HAS_CHUNK"),)))
    assert desk.do(delete()).result is Result.DELETED
    assert desk.node("part").deleted_at == desk.node().deleted_at == desk.clock.now_ms()
    desk.clock.advance(5)
    for command in (delete(), delete("part"), delete(expected=77)):
        assert desk.do(command).result is Result.UNCHANGED
    assert desk.store.revision() == 2
    assert isinstance(refusal(desk, patch(status="x")), NotFoundError), "what is deleted is gone"


def test_writing_what_was_deleted_makes_it_anew(desk: Desk) -> None:
    desk.do(upsert("iris:n1"), IRIS)
    desk.do(delete("iris:n1"), IRIS)
    desk.clock.advance(9)
    assert isinstance(refusal(desk, upsert("iris:n1", expected=2), IRIS), StaleError)
    assert desk.do(upsert("iris:n1", "beta", expected=0), IRIS).result is Result.CREATED
    node = desk.node("iris:n1")
    assert (node.deleted_at, node.created_at, node.owner_agent) == (None, desk.clock.now_ms(), "iris")


def test_a_wrong_revision_is_refused_and_the_present_one_named(desk: Desk) -> None:
    desk.do(upsert())
    for command in (upsert(content="x", expected=9), patch(expected=9, status="x"), delete(expected=9), upsert(expected=0)):
        error = refusal(desk, command)
        assert isinstance(error, StaleError) and error.revision == 1 and "revision 1" in error.detail
    absent = refusal(desk, upsert("n2", expected=3))
    assert isinstance(absent, StaleError) and absent.revision == 0
    assert isinstance(refusal(desk, replace(upsert("n2"), must_exist=True)), StaleError)
    assert desk.do(patch(expected=1, status="x")).revision == 2
    assert desk.do(delete(expected=2)).revision == 3


# --- who may -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("store", ["structure", "curated", "audit"])
@pytest.mark.parametrize("principal", [ADMIN, IRIS])
def test_stores_with_a_writer_of_their_own_are_refused(desk: Desk, store: str, principal: Principal) -> None:
    error = refusal(desk, upsert(None, store=store), principal)
    assert isinstance(error, ForbiddenError) and error.field == "store" and "alone" in error.detail
    owner = {"owner_agent": principal.agent, "agents": None}
    desk.store.write(WriteBatch(nodes=(make_node("s1", store=Store(store), **owner),)))
    for command in (patch("s1", status="x"), delete("s1"), upsert("s1"), upsert("s1", store=store)):
        assert isinstance(refusal(desk, command, principal), ForbiddenError)


def test_an_unknown_store_is_named(desk: Desk) -> None:
    error = refusal(desk, upsert(store="memory"))
    assert isinstance(error, UsageError) and error.field == "store"


def test_conversations_are_written_and_a_node_does_not_move(desk: Desk) -> None:
    register(desk.store, "other")
    desk.do(upsert(store="conversation"))
    for command, field in ((upsert(), "store"), (upsert(store="conversation", project="other"), "project")):
        error = refusal(desk, command)
        assert isinstance(error, ConflictError) and error.field == field


def test_unknown_and_foreign_projects_are_refused_in_the_same_words(desk: Desk) -> None:
    register(desk.store, "secret")
    member = make_principal(projects=frozenset({"main"}))
    told = {
        (type(error), error.field, error.detail.replace(name, "NAME"))
        for name in ("secret", "absent")
        for error in (refusal(desk, upsert(project=name), member),)
    }
    assert [(kind, field) for kind, field, _ in told] == [(NotFoundError, "project")]
    assert desk.do(upsert(project="secret")).result is Result.CREATED


HIDDEN: list[dict[str, Any]] = [
    {"visibility": Visibility.PERSONAL, "owner_agent": "mira"},
    {"visibility": Visibility.TEAM},
    {"scope": Scope.ADMIN},
    {"agents": ("mira",)},
    {"project": "secret"},
]


@pytest.mark.parametrize("hidden", HIDDEN)
def test_what_an_agent_may_not_read_does_not_exist_for_it(desk: Desk, hidden: dict[str, Any]) -> None:
    agent = make_agent("iris", projects=frozenset({"main"}))
    for deleted_at in (None, 5):
        node = make_node("x1", **{**WORK, "owner_agent": "iris", "deleted_at": deleted_at, **hidden})
        desk.store.write(WriteBatch(nodes=(node,)))
        told = set()
        for name in ("x1", "absent"):
            for command in (patch(name, status="x"), patch(name, zzz=1), patch(name, expected=1), delete(name), upsert(name)):
                error = refusal(desk, command, agent)
                told.add((command.op, type(error), error.field, error.detail.replace(name, "NAME")))
        assert len(told) == 3, told
        assert {kind for op, kind, *_ in told if op is not Op.UPSERT} == {NotFoundError}


def test_an_agent_changes_only_what_it_owns(desk: Desk) -> None:
    desk.do(upsert("mira:n1", visibility="project", agents=["mira", "iris"]), MIRA)
    desk.do(upsert("shared"))
    for name in ("mira:n1", "shared"):
        for command in (patch(name, status="x"), delete(name)):
            assert isinstance(refusal(desk, command, IRIS), ForbiddenError)
    assert isinstance(refusal(desk, upsert("mira:n1"), IRIS), ForbiddenError)
    personal = {"visibility": Visibility.PERSONAL, "owner_agent": "mira", "shared_with": ("iris",), "agents": ("iris", "mira")}
    desk.store.write(WriteBatch(nodes=(make_node("handoff", **WORK, **personal),)))
    assert isinstance(refusal(desk, delete("handoff"), IRIS), ForbiddenError), "who is shown something may not change it"
    assert desk.do(patch("mira:n1", status="done")).result is Result.UPDATED, "an admin changes what it sees"
    assert desk.node("mira:n1").owner_agent == "mira"


def test_an_agents_ids_are_its_own(desk: Desk) -> None:
    for name in ("plan", "mira:plan", "irisplan", "iris"):
        error = refusal(desk, upsert(name), IRIS)
        assert isinstance(error, UsageError) and error.field == "id"
    assert desk.do(upsert("iris:plan"), IRIS).result is Result.CREATED
    hidden = make_agent("iris", projects=frozenset({"other"}))
    register(desk.store, "other")
    error = refusal(desk, upsert("iris:plan", project="other"), hidden)
    assert isinstance(error, ConflictError) and "taken" in error.detail


def test_an_agent_writes_no_more_than_it_sees(desk: Desk) -> None:
    cases: list[tuple[dict[str, Any], type[RaycallError], str]] = [
        ({"scope": "admin"}, ForbiddenError, "scope"),
        ({"agents": ["mira"]}, UsageError, "agents"),
        ({"agents": []}, UsageError, "agents"),
        ({"visibility": "team"}, ForbiddenError, "visibility"),
    ]
    for fields, kind, field in cases:
        error = refusal(desk, upsert(None, **fields), IRIS)
        assert isinstance(error, kind) and error.field == field
    error = refusal(desk, upsert(visibility="personal"))
    assert isinstance(error, UsageError) and error.field == "visibility", "an admin's key has no agent to own it"
    member = make_agent("iris", teams=frozenset({"main"}))
    assert desk.do(upsert(None, visibility="team"), member).result is Result.CREATED


def test_fields_of_identity_are_refused_in_every_command(desk: Desk) -> None:
    desk.do(upsert())
    for name in ("account", "owner_agent", "reader", "created_at", "admission"):
        for command in (upsert("n2", **{name: "mira"}), patch(**{name: "mira"})):
            error = refusal(desk, command)
            assert isinstance(error, UsageError) and error.field == name


ACCESS = st.fixed_dictionaries(
    {},
    optional={
        "scope": st.none() | st.sampled_from([scope.value for scope in Scope]),
        "agents": st.none() | st.lists(st.sampled_from(AGENTS), max_size=3),
        "visibility": st.none() | st.sampled_from([visibility.value for visibility in Visibility]),
        "shared_with": st.none() | st.lists(st.sampled_from(AGENTS), max_size=2),
    },
)


def well_formed(principal: Principal) -> bool:
    """Whether `Keys` would make such a key."""
    return (principal.role is Role.AGENT) == (principal.agent is not None) == (principal.scopes is not None)


@given(principals().filter(well_formed), ACCESS, st.none() | nodes(), st.sampled_from(["upsert", "patch"]))
def test_whatever_is_written_is_found_by_its_writer(principal: Principal, access: Any, found: Node | None, op: str) -> None:
    if found is not None:
        found = replace(found, account=principal.account, revision=1)
    project = found.project if found is not None else PROJECTS[0]
    fields = {"text": {"content": "x"}, **access}
    name = found.id if found is not None else "new"
    command = Command(op=Op(op), id=name, named=found is not None, project=project, fields=fields)
    allowed = frozenset(PROJECTS) if principal.projects is None else principal.projects
    try:
        change = apply(command, principal, found, allowed, 1)
    except RaycallError:
        return
    assert change.node.store in {Store.WORK, Store.CONVERSATION}
    if change.writes:
        assert allows(search_guard(principal), change.node)
        assert principal.agent is None or change.node.owner_agent == principal.agent
