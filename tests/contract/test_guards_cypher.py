"""Neo4j selects by a compiled guard exactly what plain Python does."""

from collections.abc import Sequence
from dataclasses import replace

import neo4j
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cluster import guards
from cluster.graph.neo4j_rows import node_record
from cluster.model.access import Principal
from cluster.model.guard import All, AnyOf, Guard, Has, In, IsNull
from cluster.model.nodes import Node, Scope
from tests.support import factories, neo4j_server
from tests.support.factories import make_node

pytestmark = pytest.mark.neo4j
profile = settings(max_examples=40, deadline=None)


def by_cypher(guard: Guard, nodes: Sequence[Node]) -> list[bool]:
    """As Neo4j selects among real nodes, which are gone again afterwards."""
    expression, parameters = guards.to_cypher(guard, "held")
    records = [node_record(replace(node, id=str(place)), 1) for place, node in enumerate(nodes)]
    driver = neo4j_server.shared_driver(neo4j_server.shared_server())
    with driver.session(database="neo4j", default_access_mode=neo4j.WRITE_ACCESS) as session, session.begin_transaction() as tx:
        tx.run("UNWIND $records AS record CREATE (n:Sample) SET n = record", records=records).consume()
        found = {int(row["id"]) for row in tx.run(f"MATCH (held:Sample) WHERE {expression} RETURN held.id AS id", parameters)}
        tx.rollback()
    return [place in found for place in range(len(nodes))]


def assert_equal(guard: Guard, nodes: Sequence[Node]) -> None:
    assert by_cypher(guard, nodes) == [guards.allows(guard, node) for node in nodes]


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
@example([make_node(deleted_at=7)], In("deleted_at", ("7",)))
@example([make_node(agents=()), make_node(agents=None)], IsNull("agents"))
@example([make_node(agents=()), make_node(agents=None)], Has("agents", ()))
@example([make_node(scope=Scope.PUBLIC)], All(()))
@example([make_node(scope=Scope.PUBLIC)], AnyOf(()))
@example([make_node(labels=('a","b', "c\\"))], Has("labels", ("b", '"b"', "c")))
@example([make_node(project="MAIN")], In("project", ("main",)))
def test_all_expressions_agree(nodes: list[Node], guard: Guard) -> None:
    assert_equal(guard, nodes)


def test_no_value_is_part_of_the_expression() -> None:
    hostile = ("x') OR true //", "$guard0", "`} RETURN 1 //", "\\u0027")
    guard = All((In("project", hostile), AnyOf((Has("labels", hostile), IsNull("scope"))), In("deleted_at", hostile)))
    expression, parameters = guards.to_cypher(guard)
    assert expression == (
        "(n.project IN $guard0 AND (any(item IN n.labels WHERE item IN $guard1) OR n.scope IS NULL)"
        " AND toString(n.deleted_at) IN $guard2)"
    )
    assert parameters == {f"guard{place}": list(hostile) for place in range(3)}
    assert_equal(guard, [make_node(labels=hostile, project=hostile[0], deleted_at=7)])
    with pytest.raises(ValueError, match="no guard column"):
        guards.to_cypher(IsNull("id) OR (true"))
