"""What every graph store promises of nodes, of the revision feed and of several writers."""

import json
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster import guards
from cluster.graph.sqlite import CHUNK, SqliteGraphStore
from cluster.model.guard import In, IsNull
from cluster.model.nodes import Admission, Node, Scope, Source, Store, Visibility
from cluster.ports import Change, GraphStore, WriteBatch
from tests.support import factories
from tests.support.factories import ACCOUNT, make_edge, make_node, make_principal
from tests.support.graph_stores import (
    EVERYTHING,
    GRAPH_STORES,
    feed,
    ids,
    make_memory_store,
    make_neo4j_store,
    make_sqlite_store,
)

FULL = Node(
    id="full",
    account=ACCOUNT,
    project="ap-erp",
    store=Store.CURATED,
    labels=("Symbol", "Function", 'odd "label", [1]'),
    text={"title": "def f()", "path": "src/a b/ä.py", "content": "line\r\n\ttab \U0001f680 e\u0301 \u200d \\ \" '"},
    properties={"b": [1, 2.5, {"deep": None}], "a": True, "big": 2**63 - 1, "neg": -0.0, "text": "ü", "": {}},
    scope=Scope.SHARED,
    agents=("iris", "mira"),
    keywords=("one", "zwei", "三"),
    visibility=Visibility.PERSONAL,
    owner_agent="iris",
    shared_with=("mira",),
    admission=Admission.CANDIDATE,
    status="active",
    confidence=0.1,
    created_at=1_700_000_000_123,
    last_confirmed_at=1_700_000_000_456,
    deleted_at=1_700_000_000_789,
    source=Source(repository="repo", path="src/a b/ä.py", start_line=3, end_line=9, commit="c" * 40),
    content_hash="h" * 32,
)

# --- nodes ---


def test_an_empty_store(store: GraphStore) -> None:
    assert store.revision() == 0
    assert store.changes(0) == []
    assert store.get_nodes(["n1"]) == {}
    assert store.get_nodes([]) == {}
    assert list(store.scan(EVERYTHING)) == []
    assert store.count(EVERYTHING) == 0
    assert store.neighbours([], EVERYTHING, 5) == ({}, {})


@pytest.mark.parametrize(
    "node",
    [
        FULL,
        make_node("bare", text={}),
        make_node("tagged for nobody", agents=()),
        make_node("whole file", source=Source(repository="", path="a.md")),
        make_node("empty path", source=Source(repository="r", path="")),
        make_node("unscoped", confidence=1.0, keywords=("",)),
    ],
    ids=lambda node: node.id,
)
def test_a_node_comes_back_as_it_was_written(store: GraphStore, node: Node) -> None:
    assert store.write(WriteBatch(nodes=(node,))) == 1
    found = store.get_nodes([node.id])[node.id]
    assert found == replace(node, revision=1)
    assert list(store.scan(EVERYTHING)) == [found]
    assert json.dumps(dict(found.properties), sort_keys=True) == json.dumps(dict(node.properties), sort_keys=True)
    assert [type(value) for value in (found.store, found.scope, found.visibility, found.admission)] == [
        type(value) for value in (node.store, node.scope, node.visibility, node.admission)
    ]
    assert pickle.loads(pickle.dumps(found)) == found


def test_get_nodes_answers_in_the_order_asked(store: GraphStore) -> None:
    names = [f"n{place:04}" for place in range(CHUNK * 2 + 7)]
    store.write(WriteBatch(nodes=tuple(make_node(name) for name in names)))
    asked = [*reversed(names), "missing", names[0]]
    assert list(store.get_nodes(asked)) == list(reversed(names))
    assert list(store.get_nodes(["n0007", "missing", "n0003"])) == ["n0007", "n0003"]
    guarded = store.get_nodes(asked, In("project", ("elsewhere",)))
    assert guarded == {}


def test_get_nodes_knows_deleted_nodes_and_leaves_them_to_the_guard(store: GraphStore) -> None:
    store.write(WriteBatch(nodes=(make_node("a"), make_node("b", deleted_at=5))))
    assert set(store.get_nodes(["a", "b"])) == {"a", "b"}
    assert set(store.get_nodes(["a", "b"], guards.search_guard(make_principal()))) == {"a"}


def test_scan_is_ordered_by_id_and_sees_one_snapshot(store: GraphStore) -> None:
    names = ["b", "a", "C", "ä", "10", "9", "\U0001f680", "\ufffc"]
    store.write(WriteBatch(nodes=tuple(make_node(name) for name in names)))
    scan = store.scan(EVERYTHING)
    seen = [next(scan).id]
    store.write(WriteBatch(nodes=(make_node("zz"), make_node("ä", labels=("Changed",))), purge=("b",)))
    rest = list(scan)
    assert [*seen, *ids(rest)] == sorted(names)
    assert all(node.labels == ("Chunk",) for node in rest)
    assert ids(store.scan(EVERYTHING)) == sorted([*set(names) - {"b"}, "zz"])


def test_a_scan_that_is_left_early_holds_nothing_up(store: GraphStore) -> None:
    store.write(WriteBatch(nodes=tuple(make_node(f"n{place}") for place in range(20))))
    for node in store.scan(EVERYTHING):
        assert node.id == "n0"
        break
    assert store.write(WriteBatch(nodes=(make_node("more"),))) == 2
    assert store.count(EVERYTHING) == 21


@settings(max_examples=30, deadline=None)
@given(st.lists(factories.nodes(), max_size=25), st.lists(factories.guard_expressions(), min_size=1, max_size=4), st.data())
def test_every_read_selects_what_the_guard_allows(
    tmp_path_factory: pytest.TempPathFactory, nodes: list[Node], some: list[Any], data: st.DataObject
) -> None:
    written = {node.id: replace(node, account=ACCOUNT) for node in nodes}
    for make in GRAPH_STORES.values():
        store = make(tmp_path_factory.mktemp("graph"))
        store.write(WriteBatch(nodes=tuple(written.values())))
        for guard in some:
            expected = sorted(key for key, node in written.items() if guards.allows(guard, node))
            assert ids(store.scan(guard)) == expected
            assert store.count(guard) == len(expected)
            assert sorted(store.get_nodes(list(written), guard)) == expected
        store.close()


# --- revisions and the feed ---


def test_writing_the_same_again_is_no_change(store: GraphStore) -> None:
    batch = WriteBatch(nodes=(FULL, make_node("n1")), edges=(make_edge("n1", "full", properties={"line": 3}),))
    assert store.write(batch) == 1
    before = feed(store)
    assert store.write(batch) == 1
    assert store.write(replace(batch, nodes=(replace(FULL, revision=77, text=dict(reversed(FULL.text.items()))),))) == 1
    assert store.revision() == 1
    assert feed(store) == before
    assert store.get_nodes(["full"])["full"].revision == 1


def test_only_what_changed_gets_the_new_revision(store: GraphStore) -> None:
    store.write(WriteBatch(nodes=(make_node("a"), make_node("b"))))
    assert store.write(WriteBatch(nodes=(make_node("a"), make_node("b", labels=("Other",))))) == 2
    assert {key: node.revision for key, node in store.get_nodes(["a", "b"]).items()} == {"a": 1, "b": 2}
    assert feed(store, 1) == [(2, "node_written", "b")]


@pytest.mark.parametrize(("old", "new"), [(1, True), (1, 1.0), (0, False), ([], {}), ("1", 1)])
def test_another_type_is_another_value(store: GraphStore, old: Any, new: Any) -> None:
    store.write(WriteBatch(nodes=(make_node("a", properties={"x": old}),), edges=(make_edge(properties={"x": old}),)))
    changed = WriteBatch(nodes=(make_node("a", properties={"x": new}),), edges=(make_edge(properties={"x": new}),))
    assert store.write(changed) == 2
    assert json.dumps(store.get_nodes(["a"])["a"].properties["x"]) == json.dumps(new)
    assert len(feed(store, 1)) == 2


def test_the_feed_tells_every_kind_of_change(store: GraphStore) -> None:
    store.write(WriteBatch(nodes=(make_node("b"), make_node("a")), edges=(make_edge("a", "b"),)))
    store.write(WriteBatch(soft_delete=("a",), now=9))
    store.write(WriteBatch(restore=("a",)))
    store.write(WriteBatch(remove_edges=(("a", "CALLS", "b"),)))
    store.write(WriteBatch(edges=(make_edge("b", "a"),), nodes=(make_node("c", deleted_at=3),)))
    store.write(WriteBatch(purge=("b",)))
    assert feed(store) == [
        (1, "node_written", "a"),
        (1, "node_written", "b"),
        (1, "edge_written", "a\x1fCALLS\x1fb"),
        (2, "node_deleted", "a"),
        (3, "node_written", "a"),
        (4, "edge_removed", "a\x1fCALLS\x1fb"),
        (5, "node_deleted", "c"),
        (5, "edge_written", "b\x1fCALLS\x1fa"),
        (6, "node_removed", "b"),
        (6, "edge_removed", "b\x1fCALLS\x1fa"),
    ]
    assert store.changes(4, limit=99)[0] == Change(revision=5, kind="node_deleted", subject="c")
    assert feed(store, 6) == []


def test_what_a_batch_undoes_itself_is_no_change(store: GraphStore) -> None:
    store.write(WriteBatch(nodes=(make_node("a"),)))
    undone = WriteBatch(
        nodes=(make_node("new"),), edges=(make_edge("new", "a"),), soft_delete=("a",), restore=("a",), purge=("new",), now=5
    )
    assert store.write(undone) == 1
    assert feed(store, 1) == []
    assert ids(store.scan(EVERYTHING)) == ["a"]
    assert list(store.edges(ACCOUNT, "main")) == []


def test_the_last_of_two_writes_to_one_node_counts(store: GraphStore) -> None:
    store.write(WriteBatch(nodes=(make_node("a", status="first"), make_node("a", status="last"))))
    assert store.get_nodes(["a"])["a"].status == "last"
    assert feed(store) == [(1, "node_written", "a")]


def test_the_feed_never_cuts_a_revision_in_two(store: GraphStore) -> None:
    for size, name in ((2, "a"), (3, "b"), (1, "c")):
        store.write(WriteBatch(nodes=tuple(make_node(f"{name}{place}") for place in range(size))))

    def sizes(since: int, limit: int) -> list[int]:
        return [change.revision for change in store.changes(since, limit)]

    assert sizes(0, 6) == [1, 1, 2, 2, 2, 3]
    assert sizes(0, 5) == [1, 1, 2, 2, 2]
    assert sizes(0, 4) == [1, 1]
    assert sizes(0, 2) == [1, 1]
    assert sizes(1, 4) == [2, 2, 2, 3]
    # A revision that alone is over the limit comes whole: a reader that goes on from it has lost nothing.
    assert sizes(0, 1) == [1, 1]
    assert sizes(1, 2) == [2, 2, 2]
    assert sizes(0, 0) == [1, 1]
    assert sizes(2, 1) == [3]


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
def test_reading_the_feed_in_pieces_loses_nothing(store: GraphStore, limit: int) -> None:
    for place in range(7):
        store.write(WriteBatch(nodes=tuple(make_node(f"{place}-{item}") for item in range(place % 4 + 1))))
    pieces: list[Change] = []
    while piece := store.changes(pieces[-1].revision if pieces else 0, limit):
        pieces += piece
    assert pieces == store.changes(0)
    assert len(pieces) == 16


# --- many at once ---


def test_many_writers_of_the_same_things_make_each_once(store: GraphStore) -> None:
    nodes = tuple(make_node(f"n{place:02}", path=f"{place}.py") for place in range(50))
    edges = tuple(make_edge(f"n{place:02}", f"n{(place * 7 + 1) % 50:02}") for place in range(50))

    def write(worker: int) -> None:
        order = range(50) if worker % 2 else range(49, -1, -1)
        for place in order:
            store.write(WriteBatch(nodes=(nodes[place],), edges=(edges[place],)))

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    assert ids(store.scan(EVERYTHING)) == [node.id for node in nodes]
    assert list(store.edges(ACCOUNT, "main")) == sorted(edges, key=lambda edge: edge.from_id)
    entries = feed(store)
    assert len(entries) == 100, "each node and each edge was written once; the seven repetitions changed nothing"
    assert len({subject for _, _, subject in entries}) == 100
    assert store.revision() == 50
    assert [revision for revision, _, _ in entries] == sorted(revision for revision, _, _ in entries)


def test_no_update_of_several_threads_is_lost(store: GraphStore) -> None:
    def write(worker: int) -> list[int]:
        return [store.write(WriteBatch(nodes=(make_node(f"w{worker}", status=str(step)),))) for step in range(25)]

    with ThreadPoolExecutor(4) as pool:
        revisions = [revision for result in pool.map(write, range(4)) for revision in result]
    assert sorted(revisions) == list(range(1, 101))
    assert {node.status for node in store.scan(EVERYTHING)} == {"24"}


# --- all do the same ---

_names = st.sampled_from(["a", "b", "c", "d"])
_paths = st.sampled_from(["p.md", "q.md"])
_nodes = st.builds(
    lambda name, path, status, deleted, kind: make_node(name, path=path, status=status, deleted_at=deleted, store=kind),
    _names,
    st.none() | _paths,
    st.sampled_from(["x", "y"]),
    st.none() | st.just(3),
    st.sampled_from([Store.STRUCTURE, Store.STRUCTURE, Store.WORK]),
)
_edge_keys = st.tuples(_names, st.sampled_from(["CALLS", "HAS_CHUNK"]), _names)
_edges = st.builds(
    lambda key, line: make_edge(key[0], key[2], key[1], properties={"line": line}), _edge_keys, st.integers(0, 1)
)


def _some(items: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(items, max_size=3).map(tuple)


_batches = st.builds(
    WriteBatch,
    replace_paths=_some(_paths.map(lambda path: (ACCOUNT, "main", path))),
    nodes=_some(_nodes),
    remove_edges=_some(_edge_keys),
    edges=_some(_edges),
    soft_delete=_some(_names),
    restore=_some(_names),
    purge=_some(_names),
    now=st.integers(1, 2),
)


def _assert_same_of_any_batches(folder: Path, batches: list[WriteBatch], make: Callable[[Path], GraphStore]) -> None:
    memory, other = make_memory_store(Path()), make(folder)
    try:
        for batch in batches:
            before = memory.revision()
            assert memory.write(batch) == other.write(batch) == memory.revision() == other.revision()
            assert memory.revision() - before in (0, 1)
            assert (memory.revision() > before) == bool(memory.changes(before))
            assert memory.changes(0) == other.changes(0)
            assert list(memory.scan(EVERYTHING)) == list(other.scan(EVERYTHING))
            assert list(memory.edges(ACCOUNT, "main")) == list(other.edges(ACCOUNT, "main"))
            asked = ["a", "b", "c", "d", "a"]
            for guard in (None, IsNull("deleted_at")):
                assert memory.get_nodes(asked, guard) == other.get_nodes(asked, guard)
            for limit in (0, 1, 9):
                assert memory.neighbours(asked, EVERYTHING, limit) == other.neighbours(asked, EVERYTHING, limit)
        assert _replayed(memory.changes(0)) == {node.id for node in memory.scan(EVERYTHING) if node.deleted_at is None}
    finally:
        other.close()


@settings(max_examples=50, deadline=None)
@given(st.lists(_batches, min_size=1, max_size=6))
def test_sqlite_makes_the_same_of_any_batches(tmp_path_factory: pytest.TempPathFactory, batches: list[WriteBatch]) -> None:
    _assert_same_of_any_batches(tmp_path_factory.mktemp("graph"), batches, make_sqlite_store)


@settings(max_examples=30, deadline=None)
@given(st.lists(_batches, min_size=2, max_size=6), st.integers(1, 5))
def test_sqlite_that_keeps_nodes_makes_the_same_of_any_batches(
    tmp_path_factory: pytest.TempPathFactory, batches: list[WriteBatch], kept: int
) -> None:
    def make(folder: Path) -> GraphStore:
        return SqliteGraphStore(folder / "graph.sqlite", account=ACCOUNT, cached_nodes=kept)

    _assert_same_of_any_batches(tmp_path_factory.mktemp("graph"), batches, make)


@pytest.mark.neo4j
@settings(max_examples=20, deadline=None)
@given(st.lists(_batches, min_size=1, max_size=4))
def test_neo4j_makes_the_same_of_any_batches(batches: list[WriteBatch]) -> None:
    _assert_same_of_any_batches(Path(), batches, make_neo4j_store)


def _replayed(changes: list[Change]) -> set[str]:
    """The live nodes as somebody knows them who has only read the feed."""
    live: set[str] = set()
    for change in changes:
        if change.kind == "node_written":
            live.add(change.subject)
        elif change.kind in ("node_deleted", "node_removed"):
            live.discard(change.subject)
    return live
