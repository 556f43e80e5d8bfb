"""What every graph store promises of decisions inside a transaction, and of receipts."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from cluster.errors import ConflictError, ForbiddenError, UsageError
from cluster.ports import GraphStore, Present, Receipt, WriteBatch
from tests.support.factories import ACCOUNT, make_node
from tests.support.graph_stores import AnyStore, feed

DAY = 86_400_000


def receipt(key: str = "r1", **changes: Any) -> Receipt:
    fields: dict[str, Any] = {
        "account": ACCOUNT,
        "key": key,
        "fingerprint": "f",
        "answer": '{"ü": "\\ud83d"}',
        "expires_at": DAY,
    }
    return Receipt(**(fields | changes))


def seen(store: GraphStore, *ids: str, receipt: str = "") -> Present:
    """What a transaction sees; it writes nothing."""
    found: list[Present] = []

    def look(present: Present) -> None:
        found.append(present)

    assert store.transact(ids, receipt, look) == store.revision()
    return found[-1]


def test_a_decision_sees_what_there_is_and_is_stored_as_one_write(store: GraphStore) -> None:
    store.write(WriteBatch(nodes=(make_node("a"), make_node("gone"))))
    store.write(WriteBatch(soft_delete=("gone",), now=7))

    def decide(present: Present) -> WriteBatch:
        assert (present.revision, present.receipt) == (2, None)
        assert {key: (node.revision, node.deleted_at) for key, node in present.nodes.items()} == {
            "a": (1, None),
            "gone": (2, 7),
        }
        return WriteBatch(nodes=(replace(present.nodes["a"], status="new"), make_node("b")))

    assert store.transact(["a", "gone", "b", "a", "\ud800"], "", decide) == 3
    assert {key: (node.status, node.revision) for key, node in store.get_nodes(["a", "b"]).items()} == {
        "a": ("new", 3),
        "b": (None, 3),
    }
    assert feed(store, 2) == [(3, "node_written", "a"), (3, "node_written", "b")]


def test_a_decision_for_nothing_or_against_it_writes_nothing(store: AnyStore) -> None:
    store.write(WriteBatch(nodes=(make_node("a"),)))
    assert store.transact(["a"], "r1", lambda _present: None) == 1
    same = WriteBatch(nodes=(make_node("a"),), receipts=(receipt(),))
    assert store.transact(["a"], "r1", lambda _present: same) == 1, "the same content is no change, with a receipt or without"

    def refuse(_present: Present) -> WriteBatch:
        raise ConflictError("no")

    with pytest.raises(ConflictError):
        store.transact(["a"], "r1", refuse)
    for bad, error in (
        (WriteBatch(nodes=(make_node("b"), make_node("x", account="zenith"))), ForbiddenError),
        (WriteBatch(nodes=(make_node("b", confidence=2.0),), receipts=(receipt("r2"),)), UsageError),
        (WriteBatch(nodes=(make_node("b"),), receipts=(receipt("r2", account="zenith"),)), ForbiddenError),
    ):
        with pytest.raises(error):
            store.transact([], "", lambda _present, bad=bad: bad)
    assert (store.revision(), list(store.get_nodes(["a", "b"]))) == (1, ["a"])
    assert seen(store, receipt="r2").receipt is None
    assert store.write(WriteBatch(nodes=(make_node("c"),))) == 2, "a refused transaction holds no lock"


def test_nobody_writes_between_what_is_seen_and_what_is_written(store: GraphStore) -> None:
    store.write(WriteBatch(nodes=(make_node("a", properties={"count": 0}),)))
    start = threading.Barrier(4)

    def count(_worker: int) -> None:
        def decide(present: Present) -> WriteBatch:
            node = present.nodes["a"]
            return WriteBatch(nodes=(replace(node, properties={"count": node.properties["count"] + 1}),))  # type: ignore[operator]

        start.wait()
        for _ in range(10):
            store.transact(["a"], "", decide)

    with ThreadPoolExecutor(4) as workers:
        list(workers.map(count, range(4)))
    assert store.get_nodes(["a"])["a"].properties == {"count": 40}
    assert store.revision() == 41


def test_of_two_requests_of_one_name_one_has_an_effect(store: GraphStore) -> None:
    start = threading.Barrier(4)

    def send(worker: int) -> str:
        found: list[str] = []

        def decide(present: Present) -> WriteBatch | None:
            if present.receipt is not None:
                found.append(present.receipt.answer)
                return None
            found.append(f"worker {worker}")
            return WriteBatch(nodes=(make_node(f"n{worker}"),), receipts=(receipt(answer=f"worker {worker}"),), now=1)

        start.wait()
        store.transact([], "r1", decide)
        return found[-1]

    with ThreadPoolExecutor(4) as workers:
        answers = list(workers.map(send, range(4)))
    assert len(set(answers)) == 1
    assert store.revision() == 1
    assert list(store.get_nodes([f"n{worker}" for worker in range(4)])) == [answers[0].replace("worker ", "n")]


def test_a_receipt_is_kept_until_it_expires_and_replaced_by_one_of_its_name(store: GraphStore) -> None:
    store.write(WriteBatch(nodes=(make_node("a"),), receipts=(receipt(), receipt("r2", expires_at=2 * DAY)), now=1))
    assert seen(store, receipt="r1").receipt == receipt()
    for wrong in ("", "R1", "r", "\ud800", "\0"):
        assert seen(store, receipt=wrong).receipt is None
    store.write(WriteBatch(nodes=(make_node("b"),), now=9 * DAY))
    assert seen(store, receipt="r1").receipt == receipt(), "only a batch with a receipt clears up"
    assert store.write(WriteBatch(receipts=(receipt("r3", expires_at=9 * DAY),), now=DAY)) == 2, (
        "receipts are no part of the graph"
    )
    assert seen(store, receipt="r1").receipt is None
    renewed = receipt("r2", fingerprint="g", answer="x" * 300_000, expires_at=3 * DAY)
    store.write(WriteBatch(receipts=(renewed,), now=DAY))
    assert seen(store, receipt="r2").receipt == renewed
