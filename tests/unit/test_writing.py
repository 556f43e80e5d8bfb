"""The use case of writing: many rows, one effect, waiting, and a store that fails."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.errors import (
    ConflictError,
    IntegrityError,
    MalformedError,
    NotFoundError,
    ReusedKeyError,
    StaleError,
    UnavailableError,
)
from cluster.graph.memory import MemoryGraphStore
from cluster.model.nodes import Store
from cluster.ports import Present, WriteBatch
from serve.writing import RECEIPT_MS, Shown, WaitFor, batched
from serve.writing_rules import Op
from tests.support.factories import ACCOUNT, make_agent, make_edge, make_node, make_principal
from tests.support.writing import Desk, delete, patch, results, rows, upsert


class FailingStore(MemoryGraphStore):
    """Raises the first of `failures` that is not None at each transaction, as long as there are some."""

    def __init__(self) -> None:
        super().__init__(account=ACCOUNT)
        self.failures: list[Exception | None] = []

    def transact(self, ids: Sequence[str], receipt: str, decide: Callable[[Present], WriteBatch | None]) -> int:
        failure = self.failures.pop(0) if self.failures else None
        if failure is not None:
            raise failure
        return super().transact(ids, receipt, decide)


@pytest.fixture
def desk() -> Desk:
    return Desk(FailingStore())


def failing(desk: Desk) -> FailingStore:
    assert isinstance(desk.store, FailingStore)
    return desk.store


# --- one ---------------------------------------------------------------------------------------------------------------------


def test_a_durable_write_is_shown_without_being_waited_for(desk: Desk) -> None:
    assert desk.one(upsert()).shown is None
    assert (desk.showing.started, desk.showing.waited) == ([1], [])


@pytest.mark.parametrize("shown", [Shown(visible=True, vectors=False), Shown(visible=False, vectors=False)])
def test_a_write_that_is_waited_for_says_how_far_it_is_shown(desk: Desk, shown: Shown) -> None:
    desk.showing.answer = shown
    assert desk.one(upsert(), wait=WaitFor.VISIBLE).shown == shown
    assert desk.showing.waited == [(1, ("main",), 2.0)]
    assert desk.node().revision == 1, "it stands"


def test_a_project_that_is_served_and_not_registered_is_written_to() -> None:
    desk = Desk(MemoryGraphStore(account=ACCOUNT))
    desk.showing._projects = ["served"]
    assert desk.do(upsert(project="served")).project == "served"


def test_reading_gives_what_may_be_seen_and_nothing_else(desk: Desk) -> None:
    iris = make_agent("iris")
    desk.do(upsert("untagged"))
    desk.do(upsert("mira:own"), make_agent("mira"))
    desk.do(upsert("gone"))
    desk.do(delete("gone"))
    assert asyncio.run(desk.writing.read("untagged", iris)).id == "untagged"
    told = set()
    for name in ("mira:own", "gone", "absent"):
        with pytest.raises(NotFoundError) as refused:
            asyncio.run(desk.writing.read(name, iris))
        told.add(refused.value.detail.replace(name, "NAME"))
    assert len(told) == 1


# --- one effect --------------------------------------------------------------------------------------------------------------


def test_a_repeated_request_has_one_effect_and_the_same_answer(desk: Desk) -> None:
    first = desk.one(upsert(None), key="k1")
    again = desk.one(upsert(None), key="k1")
    assert (first.outcomes, first.replayed, again.replayed) == (again.outcomes, False, True)
    assert desk.store.revision() == 1
    desk.do(patch(first.outcomes[0][1].id or "", status="later"))
    assert desk.one(upsert(None), key="k1").outcomes == first.outcomes, "whatever happened in between"
    assert desk.store.revision() == 2
    assert desk.one(upsert(None, "other"), key="k2").replayed is False


def test_a_key_with_another_request_is_refused(desk: Desk) -> None:
    desk.one(upsert(), key="k1", body="one")
    with pytest.raises(ReusedKeyError):
        desk.one(upsert("n2"), key="k1", body="two")
    assert desk.store.revision() == 1


def test_a_key_belongs_to_who_sends_it(desk: Desk) -> None:
    desk.one(upsert(), key="k1")
    other = make_principal(key_id="k2")
    assert desk.one(upsert("n2"), other, key="k1", body="other").replayed is False


def test_a_key_expires(desk: Desk) -> None:
    desk.one(upsert(), key="k1", body="one")
    desk.clock.advance(RECEIPT_MS / 1000 - 1)
    assert desk.one(upsert(), key="k1", body="one").replayed is True
    desk.clock.advance(2)
    assert desk.one(upsert(content="beta"), key="k1", body="two").replayed is False
    assert desk.node().text == {"content": "beta"}


def test_a_refusal_is_not_kept(desk: Desk) -> None:
    with pytest.raises(StaleError):
        desk.one(upsert(expected=4), key="k1")
    desk.one(upsert(), key="k2")
    assert desk.one(upsert(content="beta", expected=1), key="k1").replayed is False


# --- many --------------------------------------------------------------------------------------------------------------------


def test_each_row_is_answered_for_itself(desk: Desk) -> None:
    desk.do(upsert("old"))
    written = desk.many(
        upsert("a"),
        MalformedError("no JSON"),
        upsert("b", project="absent"),
        patch("old", status="x"),
        patch("absent", status="x"),
        upsert("c", store="structure"),
        patch("a", expected=9, status="x"),
        delete("a"),
        upsert(None, labels=[]),
    )
    assert results(written) == [
        *(
            "created",
            "malformed",
            "not_found",
            "updated",
            "not_found",
            "forbidden",
            "stale_revision",
            "deleted",
            "invalid_input",
        )
    ]
    assert [line for line, _ in written.outcomes] == list(range(1, 10))
    assert written.counts == {"created": 1, "updated": 1, "unchanged": 0, "deleted": 1, "failed": 6}
    stale = written.outcomes[6][1].error
    assert isinstance(stale, StaleError) and stale.revision == 2


def test_rows_that_touch_the_same_node_follow_each_other(desk: Desk) -> None:
    steps = (
        upsert("a"),
        patch("a", status="1"),
        patch("a", status="2"),
        delete("a"),
        upsert("a", "again"),
        patch("a", status="3"),
    )
    written = desk.many(*steps)
    assert results(written) == ["created", "updated", "updated", "deleted", "created", "updated"]
    assert [outcome.revision for _, outcome in written.outcomes] == [1, 2, 3, 4, 5, 6]
    assert (desk.node("a").status, desk.node("a").text, desk.node("a").deleted_at) == ("3", {"content": "again"}, None)


def test_a_part_that_was_deleted_with_its_whole_is_gone_for_the_next_row(desk: Desk) -> None:
    work: dict[str, Any] = {"store": Store.WORK}
    nodes = (make_node("whole", **work), make_node("part", **work))
    desk.store.write(WriteBatch(nodes=nodes, edges=(make_edge("whole", "part", "HAS_CHUNK"),)))
    assert results(desk.many(delete("whole"), patch("part", status="x"), delete("part"))) == [
        "deleted",
        "not_found",
        "unchanged",
    ]


def test_many_rows_are_some_transactions(desk: Desk) -> None:
    written = desk.many(*(upsert(f"n{number:04}") for number in range(1203)))
    assert written.counts["created"] == 1203
    assert desk.store.revision() == 3
    assert desk.showing.started == [1, 2, 3, 3], "what is committed is shown while the rest is written"


def test_when_the_store_fails_the_rest_is_not_tried(desk: Desk) -> None:
    failing(desk).failures = [None, UnavailableError("the disk is full")]
    written = desk.many(*(upsert(f"n{number:04}") for number in range(1100)), MalformedError("no JSON"))
    assert written.counts == {"created": 500, "updated": 0, "unchanged": 0, "deleted": 0, "failed": 601}
    assert set(results(written)[500:1100]) == {"unavailable"} and results(written)[-1] == "malformed"
    assert desk.store.revision() == 1


def test_a_transaction_that_is_refused_takes_no_other_along(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    failing(desk).failures = [None, IntegrityError("what no caller may read")]
    with caplog.at_level(logging.ERROR):
        written = desk.many(*(upsert(f"n{number:04}") for number in range(1100)))
    assert written.counts == {"created": 600, "updated": 0, "unchanged": 0, "deleted": 0, "failed": 500}
    assert caplog.records[-1].__dict__["action"] == "rows_not_written"


def test_many_rows_sent_twice_have_one_effect(desk: Desk) -> None:
    steps = [upsert(None, str(number)) for number in range(3)]
    commands = (*steps, patch("absent", status="x"), MalformedError("no JSON"), delete("absent"))
    first = desk.many(*commands, key="k1")
    desk.do(upsert("absent"))
    again = desk.many(*commands, key="k1")
    assert (first.outcomes, again.replayed) == (again.outcomes, True)
    assert desk.store.revision() == 2 and desk.node("absent").deleted_at is None
    with pytest.raises(ReusedKeyError):
        desk.many(upsert("other"), key="k1", body="another")
    assert desk.store.revision() == 2


@pytest.mark.parametrize("first", [MalformedError("no JSON"), upsert("n", project="absent")])
def test_a_key_is_recognised_though_nothing_was_written_at_first(desk: Desk, first: Any) -> None:
    desk.many(first, key="k1", body="one")
    with pytest.raises(ReusedKeyError):
        desk.many(upsert("other"), key="k1", body="two")
    assert desk.store.revision() == 0


def test_many_rows_that_were_cut_off_are_finished_by_sending_them_again(desk: Desk) -> None:
    commands = [upsert(None, str(number)) for number in range(1100)]
    failing(desk).failures = [None, UnavailableError("killed")]
    first = desk.many(*commands, key="k1")
    again = desk.many(*commands, key="k1")
    assert again.counts["created"] == 1100 and not again.replayed
    assert [outcome.id for _, outcome in again.outcomes[:500]] == [outcome.id for _, outcome in first.outcomes[:500]]
    assert len([change for change in desk.store.changes(0) if change.kind == "node_written"]) == 1100
    assert desk.many(*commands, key="k1").outcomes == again.outcomes


def test_an_error_that_is_kept_is_the_same_error(desk: Desk) -> None:
    desk.do(upsert("a"))
    commands = (patch("a", expected=9, status="x"), upsert("a", project="absent"), upsert("a", store="conversation"))
    first = desk.many(*commands, key="k1")
    again = desk.many(*commands, key="k1")
    assert [outcome.error for _, outcome in again.outcomes] == [outcome.error for _, outcome in first.outcomes]
    kinds = [type(outcome.error) for _, outcome in again.outcomes]
    assert kinds == [StaleError, NotFoundError, ConflictError]


OPS = st.tuples(st.sampled_from(Op), st.sampled_from("abcde"))


@given(st.lists(OPS, max_size=30), st.integers(1, 4))
def test_a_part_names_no_node_twice_and_ends_with_its_deletions(steps: list[tuple[Op, str]], most: int) -> None:
    made = {Op.UPSERT: upsert, Op.PATCH: patch, Op.DELETE: delete}
    wanted = list(rows(*(made[op](name) for op, name in steps)))
    parts = list(batched(wanted, most))
    assert [row for part in parts for row in part] == wanted
    for part in parts:
        commands = [row.command for row in part if row.command is not None]
        deleting = [command.op is Op.DELETE for command in commands]
        assert 0 < len(part) <= most
        assert len({command.id for command in commands}) == len(commands)
        assert deleting == sorted(deleting)


@given(st.lists(OPS, max_size=25))
def test_many_rows_are_as_one_after_the_other(steps: list[tuple[Op, str]]) -> None:
    def command(number: int, op: Op, name: str) -> Any:
        # Contents come back, so that some rows undo others.
        return {
            Op.UPSERT: upsert(name, str(number % 3)),
            Op.PATCH: patch(name, status=str(number % 2)),
            Op.DELETE: delete(name),
        }[op]

    commands = [command(number, *step) for number, step in enumerate(steps)]
    together, single = (Desk(MemoryGraphStore(account=ACCOUNT)) for _ in range(2))
    for desk in (together, single):
        desk.store.write(WriteBatch(edges=(make_edge("a", "b", "HAS_CHUNK"),)))
    at_once = together.many(*commands)
    apart = [single.many(item).outcomes[0][1] for item in commands]
    seen = [str(one.result) if one.error is None else one.error.code for one in apart]
    # A part that is deleted beside its whole was there when that transaction began; one after the other, it was gone.
    gone = {"deleted", "unchanged"}
    for (operation, name), left, right in zip(steps, results(at_once), seen, strict=True):
        assert left == right or (operation is Op.DELETE and name == "b" and {left, right} == gone)

    def state(desk: Desk) -> dict[str, Any]:
        found = desk.store.get_nodes(list("abcde"))
        return {key: (node.text, node.status, node.deleted_at) for key, node in found.items()}

    assert state(together) == state(single)
    for desk, outcomes in ((together, [outcome for _, outcome in at_once.outcomes]), (single, apart)):
        latest = {outcome.id: outcome.revision for outcome in outcomes if outcome.revision is not None}
        for name, revision in latest.items():
            # A part is also changed by its whole's deletion.
            assert desk.node(name or "").revision >= (revision or 0)
            assert name == "b" or desk.node(name or "").revision == revision
