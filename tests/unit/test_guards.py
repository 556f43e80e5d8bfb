"""What each guard layer lets through, and that every compiler lets through the same."""

import os
import pickle
import random
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cluster import guards
from cluster.graph.sqlite_rows import NODE_COLUMNS, node_row
from cluster.graph.sqlite_schema import MIGRATIONS, statements
from cluster.model.access import Principal
from cluster.model.guard import LIST_COLUMNS, SCALAR_COLUMNS, All, AnyOf, Guard, Has, In, IsNull
from cluster.model.nodes import Node, Scope, Visibility
from tests.support import factories
from tests.support.factories import make_agent, make_node, make_principal

TEXT = pa.string()
(NODES_TABLE,) = (statement for statement in statements(MIGRATIONS[0]) if "CREATE TABLE nodes" in statement)
profile = settings(max_examples=50, deadline=None)


def by_python(guard: Guard, nodes: Sequence[Node]) -> list[bool]:
    return [guards.allows(guard, node) for node in nodes]


def by_sql(guard: Guard, nodes: Sequence[Node]) -> list[bool]:
    """As SQLite selects, in the store's own schema."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    try:
        connection.execute(NODES_TABLE)
        places = ", ".join("?" * len(NODE_COLUMNS))
        rows = (node_row(replace(node, id=str(place)), 1) for place, node in enumerate(nodes))
        connection.executemany(f"INSERT INTO nodes ({', '.join(NODE_COLUMNS)}) VALUES ({places})", rows)
        where, values = guards.to_sql(guard)
        found = {int(key) for (key,) in connection.execute(f"SELECT id FROM nodes WHERE {where}", values)}
    finally:
        connection.close()
    return [place in found for place in range(len(nodes))]


def as_table(nodes: Sequence[Node], text: pa.DataType = TEXT) -> pa.Table:
    columns = {}
    for name in SCALAR_COLUMNS:
        values = [getattr(node, name) for node in nodes]
        kind = pa.int64() if name == "deleted_at" else text
        columns[name] = pa.array([value if value is None or name == "deleted_at" else str(value) for value in values], kind)
    for name in LIST_COLUMNS:
        values = [getattr(node, name) for node in nodes]
        columns[name] = pa.array([None if value is None else list(value) for value in values], pa.list_(text))
    return pa.table(columns)


def by_arrow(guard: Guard, rows: pa.Table) -> list[bool]:
    mask = guards.to_mask(guard, rows)
    assert isinstance(mask, pa.BooleanArray)
    assert mask.null_count == 0
    return mask.to_pylist()


def assert_equal(guard: Guard, nodes: Sequence[Node]) -> None:
    expected = by_python(guard, nodes)
    assert by_sql(guard, nodes) == expected
    assert by_arrow(guard, as_table(nodes)) == expected


# --- every compiler lets the same through ---


@profile
@given(
    st.lists(factories.nodes(), max_size=15),
    factories.principals(),
    st.none() | st.lists(factories.projects() | st.just("elsewhere"), max_size=3),
    factories.labels(),
)
def test_search_guards_agree(
    nodes: list[Node], principal: Principal, projects: list[str] | None, labels: tuple[str, ...]
) -> None:
    assert_equal(guards.search_guard(principal, projects, labels), nodes)


@profile
@given(st.lists(factories.nodes(), max_size=15), factories.principals())
def test_expansion_guards_agree(nodes: list[Node], principal: Principal) -> None:
    assert_equal(guards.expansion_guard(principal), nodes)


@profile
@given(st.lists(factories.nodes(), max_size=15), factories.guard_expressions())
@example([make_node(deleted_at=7)], In("deleted_at", ("07",)))
@example([make_node(agents=()), make_node(agents=None)], IsNull("agents"))
@example([make_node(agents=()), make_node(agents=None)], Has("agents", ()))
@example([make_node(scope=Scope.PUBLIC)], All(()))
@example([make_node(scope=Scope.PUBLIC)], AnyOf(()))
@example([make_node(labels=('a","b', "c\\"))], Has("labels", ("b", '"b"', "c")))
@example([make_node(project="MAIN")], In("project", ("main",)))
def test_all_expressions_agree(nodes: list[Node], guard: Guard) -> None:
    assert_equal(guard, nodes)


@profile
@given(factories.principals(), st.integers(0, 2**32), st.integers(0, 40), st.integers(0, 40))
def test_a_mask_reads_slices_and_chunks(principal: Principal, seed: int, start: int, length: int) -> None:
    nodes = _random_nodes(40, seed)
    guard = guards.search_guard(principal, None, ("Chunk", "Symbol"))
    whole, cut = as_table(nodes), as_table(nodes).slice(start, length)
    assert by_arrow(guard, cut) == by_python(guard, nodes[start : start + length])
    assert by_arrow(guard, pa.concat_tables([cut, whole])) == by_python(guard, [*nodes[start : start + length], *nodes])


def _random_nodes(count: int, seed: int) -> list[Node]:
    pick = random.Random(seed)
    tags: list[tuple[str, ...] | None] = [None, (), ("iris",), ("mira", "iris"), ("noor",)]
    return [
        make_node(
            str(place),
            project=pick.choice(factories.PROJECTS),
            scope=pick.choice([None, *Scope]),
            agents=pick.choice(tags),
            labels=pick.choice([("Chunk",), ("Document", "Symbol"), ()]),
            visibility=pick.choice([None, *Visibility]),
            owner_agent=pick.choice([None, "iris", "mira"]),
            shared_with=pick.choice([(), ("iris",)]),
            deleted_at=pick.choice([None, None, 7]),
        )
        for place in range(count)
    ]


def test_a_mask_reads_other_string_types() -> None:
    nodes = _random_nodes(400, seed=3)
    guard = guards.search_guard(make_agent(), ["ap-erp", "main", "NOT", "x"], ["Chunk"])
    assert any(by_python(guard, nodes))
    for text in (pa.large_string(), pa.dictionary(pa.int32(), pa.string())):
        assert by_arrow(guard, as_table(nodes, text)) == by_python(guard, nodes)


def test_a_mask_ignores_the_items_that_a_null_list_spans() -> None:
    items = pa.array(["iris", "iris", "mira"])
    lists = pa.ListArray.from_arrays(pa.array([0, 1, 3], pa.int32()), items, mask=pa.array([True, False]))
    assert lists.values.to_pylist() == ["iris", "iris", "mira"]
    assert by_arrow(Has("agents", ("iris",)), pa.table({"agents": lists})) == [False, True]


@pytest.mark.parametrize("guard", [guards.search_guard(make_agent(), ["main"], ["Chunk"]), All(()), AnyOf(())])
def test_a_mask_of_no_rows_is_empty(guard: Guard) -> None:
    table = as_table([])
    assert by_arrow(guard, table) == []
    assert by_arrow(guard, table.schema.empty_table()) == []
    assert by_arrow(guard, pa.Table.from_batches([], table.schema)) == []


def test_a_column_that_is_no_guard_column_never_reaches_sql() -> None:
    with pytest.raises(ValueError, match="no guard column"):
        guards.to_sql(In("id = '' OR 1=1 --", ("x",)))


def test_equal_guards_are_one_key_in_every_process() -> None:
    first = guards.search_guard(make_agent(), ["main", "NOT"], ["Chunk", "Symbol"])
    again = guards.search_guard(make_agent(), ["NOT", "main", "main"], ["Symbol", "Chunk"])
    other = guards.search_guard(make_agent("mira"), ["main", "NOT"], ["Chunk", "Symbol"])
    assert {first: "known"}[again] == "known"
    assert other not in {first: "known"}
    program = "import pickle, sys; from tests.unit.test_guards import known_in; known_in(sys.stdin.buffer.read())"
    subprocess.run(
        [sys.executable, "-c", program], input=pickle.dumps(first), env={**os.environ, "PYTHONHASHSEED": "7"}, check=True
    )


def known_in(pickled: bytes) -> None:
    """Another process, in which texts have other hashes, finds its own guard under the one that was sent."""
    own = guards.search_guard(make_agent(), ["main", "NOT"], ["Chunk", "Symbol"])
    assert {own: "known"}[pickle.loads(pickled)] == "known"


# --- what each layer lets through ---


def finds(principal: Principal, node: Node, projects: Sequence[str] | None = None, labels: Sequence[str] = ()) -> bool:
    guard = guards.search_guard(principal, projects, labels)
    assert_equal(guard, [node])
    return guards.allows(guard, node)


def expands_to(principal: Principal, node: Node) -> bool:
    guard = guards.expansion_guard(principal)
    assert_equal(guard, [node])
    return guards.allows(guard, node)


admin = make_principal()
iris = make_agent("iris")
tagged = make_node(agents=("mira", "iris"))


def test_layer_1_what_is_deleted_is_gone_for_everybody() -> None:
    gone, at_zero = replace(tagged, deleted_at=7), replace(tagged, deleted_at=0)
    for reader in (admin, iris):
        assert (finds(reader, tagged), expands_to(reader, tagged)) == (True, True)
        assert (finds(reader, gone), expands_to(reader, gone)) == (False, False)
        assert (finds(reader, at_zero), expands_to(reader, at_zero)) == (False, False)


@pytest.mark.parametrize(
    ("scope", "to_agent", "to_admin"),
    [(None, True, True), (Scope.PUBLIC, True, True), (Scope.SHARED, True, True), (Scope.ADMIN, False, True)],
)
def test_layer_2_scope(scope: Scope | None, to_agent: bool, to_admin: bool) -> None:
    node = replace(tagged, scope=scope)
    assert (finds(iris, node), expands_to(iris, node)) == (to_agent, to_agent)
    assert (finds(admin, node), expands_to(admin, node)) == (to_admin, to_admin)


def test_layer_2_an_empty_scope_list_leaves_what_has_no_scope() -> None:
    nobody = make_agent(scopes=frozenset())
    assert finds(nobody, tagged)
    assert not finds(nobody, replace(tagged, scope=Scope.PUBLIC))


@pytest.mark.parametrize(
    ("agents", "found", "expanded"),
    [
        (None, False, True),
        ((), False, False),
        (("iris",), True, True),
        (("mira", "iris"), True, True),
        (("mira",), False, False),
        (("iris2", "IRIS", "iri"), False, False),
    ],
)
def test_layers_3_and_4_agent_tags(agents: tuple[str, ...] | None, found: bool, expanded: bool) -> None:
    node = make_node(agents=agents)
    assert (finds(iris, node), expands_to(iris, node)) == (found, expanded)
    assert (finds(admin, node), expands_to(admin, node)) == (True, True)


def test_scope_and_agent_tag_must_both_pass() -> None:
    assert not finds(iris, make_node(agents=("iris",), scope=Scope.ADMIN))
    assert not expands_to(iris, make_node(agents=("iris",), scope=Scope.ADMIN))


def test_layer_5_another_account_is_never_seen() -> None:
    alien = replace(tagged, account="zenith")
    assert not any((finds(admin, alien), expands_to(admin, alien), finds(iris, alien), expands_to(iris, alien)))


def test_membership_narrows_and_a_request_never_widens_it() -> None:
    member = make_principal(projects=frozenset({"main", "NOT"}))
    here, foreign = make_node(project="main"), make_node(project="ap-erp")
    assert finds(member, here)
    assert not finds(member, foreign)
    assert finds(member, here, projects=["main", "ap-erp"])
    assert not finds(member, here, projects=["NOT"])
    assert not finds(member, foreign, projects=["ap-erp"])
    assert not finds(member, here, projects=["ap-erp"])
    assert not finds(member, here, projects=[])
    assert not expands_to(member, foreign)
    assert not finds(make_principal(projects=frozenset()), here)


def test_a_request_narrows_a_key_of_all_projects() -> None:
    assert finds(admin, make_node(project="ap-erp"), projects=["ap-erp"])
    assert not finds(admin, make_node(project="main"), projects=["ap-erp"])


def test_labels_narrow() -> None:
    node = make_node(labels=("Chunk", "Code"))
    assert finds(admin, node, labels=["Code"])
    assert finds(admin, node, labels=["Section", "Chunk"])
    assert not finds(admin, node, labels=["Section"])
    assert not finds(admin, node, labels=["code"])


@pytest.mark.parametrize("visibility", [None, Visibility.PROJECT])
def test_project_visibility_is_for_every_reader(visibility: Visibility | None) -> None:
    node = replace(tagged, visibility=visibility, owner_agent="mira")
    assert finds(iris, node)
    assert finds(admin, node)


def test_personal_visibility_is_for_the_owner_and_the_listed_readers() -> None:
    mine = replace(tagged, visibility=Visibility.PERSONAL, owner_agent="iris")
    shared = replace(tagged, visibility=Visibility.PERSONAL, owner_agent="mira", shared_with=("noor", "iris"))
    others = replace(tagged, visibility=Visibility.PERSONAL, owner_agent="mira", shared_with=("noor",))
    nobodys = replace(tagged, visibility=Visibility.PERSONAL)
    assert [finds(iris, node) for node in (mine, shared, others, nobodys)] == [True, True, False, False]
    assert [expands_to(iris, node) for node in (mine, shared, others, nobodys)] == [True, True, False, False]


def test_team_visibility_is_for_members_of_the_projects_team() -> None:
    node = replace(tagged, visibility=Visibility.TEAM)
    assert finds(make_agent(teams=frozenset({"main"})), node)
    assert finds(make_principal(teams=frozenset({"main"})), node)
    assert not finds(make_agent(teams=frozenset({"ap-erp"})), node)
    assert not finds(iris, node)


@pytest.mark.parametrize("visibility", [Visibility.PERSONAL, Visibility.TEAM])
def test_without_a_reader_nothing_widens(visibility: Visibility) -> None:
    """A key that names no agent and no team owns nothing personal and is in no team, admin or not."""
    node = make_node(agents=("iris",), visibility=visibility, owner_agent=None, shared_with=())
    assert not finds(admin, node)
    assert not finds(admin, replace(node, owner_agent="iris", shared_with=("iris",)))
    assert not expands_to(admin, replace(node, owner_agent="iris", shared_with=("iris",)))


@pytest.mark.parametrize("project", factories.PROJECTS)
def test_every_legal_project_name_selects_exactly_its_own_nodes(project: str) -> None:
    nodes = [make_node(name, project=name) for name in factories.PROJECTS]
    guard = guards.search_guard(admin, [project])
    assert_equal(guard, nodes)
    assert [node.id for node in nodes if guards.allows(guard, node)] == [project]
