from __future__ import annotations

from actors.bounds import HARD_FACTOR, Bound
from cluster.model.nodes import Node
from tests.support.factories import make_node


def nodes(*ids: str) -> dict[str, Node | None]:
    return {node_id: make_node(node_id) for node_id in ids}


def test_beyond_the_bound_a_build_is_due_and_beyond_the_hard_one_new_rows_are_left_out() -> None:
    bound, held = Bound(2), {f"n{number}" for number in range(HARD_FACTOR * 2 - 1)}
    assert not bound.exceeded(2)
    assert bound.exceeded(3)
    written, gone = bound.admit(nodes("n0", "new", "newer"), held)
    assert [node.id for node in written] == ["n0", "new"], "a new version of a row that is there needs no room"
    assert gone == []
    assert bound.left_out
    assert bound.exceeded(0)


def test_what_is_deleted_makes_room_and_what_was_left_out_may_come_back() -> None:
    bound, held = Bound(1), {"a", "b", "c", "d"}
    assert bound.admit(nodes("e"), held) == ([], [])
    assert bound.left_out
    written, gone = bound.admit({"a": None, **nodes("e")}, held)
    assert ([node.id for node in written], gone) == (["e"], ["a"])
    assert not bound.left_out


def test_a_row_that_was_left_out_and_is_deleted_is_missing_no_more() -> None:
    bound, held = Bound(1), {"a", "b", "c", "d"}
    bound.admit(nodes("e"), held)
    bound.admit({"e": None}, held)
    assert not bound.left_out
