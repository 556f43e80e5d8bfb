"""What writing promises on every graph store: one winner a revision, one effect a key, rows in their order."""

from __future__ import annotations

import asyncio
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cluster.errors import NotFoundError, ReusedKeyError, StaleError
from cluster.graph.sqlite import SqliteGraphStore
from cluster.model.nodes import Node
from cluster.ports import GraphStore
from serve.writing import Once, WaitFor, Written
from serve.writing_fields import fields_of
from tests.support.clock import ManualClock
from tests.support.factories import ACCOUNT, make_agent
from tests.support.writing import ADMIN, Desk, FakeShowing, delete, make_writing, patch, results, upsert

WRITERS = 4
IRIS = make_agent("iris")


def at_once(store: GraphStore, do: Any) -> list[Any]:
    """What `do` of (writing, number) gives or raises, in WRITERS threads that start together."""
    start = threading.Barrier(WRITERS)

    def run(number: int) -> Any:
        writing = make_writing(store, ManualClock(), FakeShowing())
        start.wait()
        try:
            return asyncio.run(do(writing, number))
        except (StaleError, ReusedKeyError) as error:
            return error

    with ThreadPoolExecutor(WRITERS) as workers:
        return list(workers.map(run, range(WRITERS)))


def test_of_writers_that_expect_one_revision_one_wins(store: GraphStore) -> None:
    desk = Desk(store)
    desk.do(upsert())
    for revision in range(1, 6):
        found = at_once(
            store, lambda writing, n, r=revision: writing.one(patch(expected=r, status=f"{r}-{n}"), ADMIN, WaitFor.DURABLE)
        )
        lost = [error for error in found if isinstance(error, StaleError)]
        assert [error.revision for error in lost] == [revision + 1] * (WRITERS - 1)
        (winner,) = (number for number, item in enumerate(found) if isinstance(item, Written))
        assert (desk.node().status, desk.node().revision) == (f"{revision}-{winner}", revision + 1)


def test_of_writers_that_create_one_node_one_does(store: GraphStore) -> None:
    desk = Desk(store)
    found = at_once(store, lambda writing, n: writing.one(upsert("n1", str(n), expected=0), ADMIN, WaitFor.DURABLE))
    assert len([item for item in found if isinstance(item, StaleError)]) == WRITERS - 1
    assert store.revision() == 1 and isinstance(found[int(str(desk.node().text["content"]))], Written)


def test_patches_of_different_members_are_all_kept(store: GraphStore) -> None:
    desk = Desk(store)
    desk.do(upsert())
    at_once(store, lambda writing, n: writing.one(patch(properties={f"p{n}": n}), ADMIN, WaitFor.DURABLE))
    assert desk.node().properties == {f"p{number}": number for number in range(WRITERS)}


def test_of_requests_with_one_key_one_has_an_effect(store: GraphStore) -> None:
    Desk(store)
    once = Once(key="k1", fingerprint="f")
    found = at_once(store, lambda writing, _n: writing.one(upsert(None), ADMIN, WaitFor.DURABLE, once))
    assert len({item.outcomes for item in found}) == 1
    assert sorted(item.replayed for item in found) == [False, *[True] * (WRITERS - 1)]
    assert store.revision() == 1
    other = Once(key="k1", fingerprint="g")
    refused = at_once(store, lambda writing, _n: writing.one(upsert(None), ADMIN, WaitFor.DURABLE, other))
    assert {type(item) for item in refused} == {ReusedKeyError} and store.revision() == 1


def test_a_node_comes_back_as_it_was_written(store: GraphStore) -> None:
    fields: dict[str, Any] = {
        "labels": ["Decision", "Note"],
        "text": {"title": "T\u00fc\ud83d\ude80", "summary": "s", "content": "c\nd"},
        "properties": {"a": [1, 1.5, None, True, {"\u00fc": "x"}], "n": -(2**63)},
        "keywords": ["auth"],
        "status": "open",
        "confidence": 0.5,
        "source": {"repository": "r", "path": "a b/\u00fc.md", "start_line": 1, "end_line": 2, "commit": "a" * 40},
        "scope": "shared",
        "agents": ["iris", "mira"],
        "visibility": "personal",
        "shared_with": ["mira"],
    }
    fields = json.loads(json.dumps(fields))
    desk = Desk(store)
    desk.do(upsert("iris:n1", **fields), IRIS)
    found = asyncio.run(desk.writing.read("iris:n1", IRIS))
    assert fields_of(found) == fields
    assert json.dumps(fields_of(found)["properties"]) == json.dumps(fields["properties"])
    assert (found.owner_agent, found.account, found.created_at) == ("iris", ACCOUNT, desk.clock.now_ms())
    assert desk.do(upsert("iris:n1", **fields), IRIS).revision == 1
    for stranger in (ADMIN, make_agent("noor")):
        with pytest.raises(NotFoundError):
            asyncio.run(desk.writing.read("iris:n1", stranger))


def test_many_rows_in_order(store: GraphStore) -> None:
    desk = Desk(store)
    many = [upsert(f"n{number:03}") for number in range(520)]
    steps = (
        *many,
        patch("n000", status="1"),
        patch("n000", expected=1, status="2"),
        delete("n001"),
        delete("n001"),
        upsert("n001"),
    )
    first = desk.many(*steps, key="k1")
    assert results(first)[520:] == ["updated", "stale_revision", "deleted", "unchanged", "created"]
    assert desk.many(*steps, key="k1").outcomes == first.outcomes
    assert {outcome.revision for _, outcome in first.outcomes if outcome.error is None} == {1, 2, 3, 4}
    found: dict[str, Node] = store.get_nodes(["n000", "n001"])
    assert (found["n000"].status, found["n001"].deleted_at, found["n001"].revision) == ("1", None, 4)
    assert len(store.changes(0)) == 520 + 3


def test_a_key_is_known_after_a_restart(tmp_path: Path) -> None:
    first = SqliteGraphStore(tmp_path / "graph.sqlite", account=ACCOUNT)
    written = Desk(first).one(upsert(None), key="k1")
    first.close()
    second = SqliteGraphStore(tmp_path / "graph.sqlite", account=ACCOUNT)
    try:
        again = Desk(second).one(upsert(None), key="k1")
        assert (again.outcomes, again.replayed, second.revision()) == (written.outcomes, True, 1)
    finally:
        second.close()
