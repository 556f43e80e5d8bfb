"""What every graph store promises of replacing, deleting and following edges."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

from cluster import guards
from cluster.graph.neo4j_store import Neo4jGraphStore
from cluster.graph.sqlite import CHUNK
from cluster.model.guard import AnyOf, Has, In
from cluster.model.nodes import Scope, Store
from cluster.ports import GraphStore, WriteBatch
from tests.support.factories import ACCOUNT, make_agent, make_edge, make_node, make_principal
from tests.support.graph_stores import EVERYTHING, feed, ids

# --- replacing what a path gave ---


def test_replacing_a_path_removes_what_it_no_longer_gives(store: GraphStore) -> None:
    one, two, three = (make_node(name, path="a.md") for name in ("one", "two", "three"))
    edges = (make_edge("one", "two"), make_edge("two", "three"), make_edge("three", "one"))
    store.write(WriteBatch(nodes=(one, two, three), edges=edges))
    changed = replace(one, text={"content": "new"})
    new = make_node("four", path="a.md")
    assert store.write(WriteBatch(replace_paths=((ACCOUNT, "main", "a.md"),), nodes=(changed, two, new))) == 2
    assert ids(store.scan(EVERYTHING)) == ["four", "one", "two"]
    assert feed(store, 1) == [
        (2, "node_written", "four"),
        (2, "node_written", "one"),
        (2, "node_removed", "three"),
        (2, "edge_removed", "three\x1fCALLS\x1fone"),
    ]
    # "two" still calls "three": the edge waits, unseen, for a node of that id.
    assert [(edge.from_id, edge.to_id) for edge in store.edges(ACCOUNT, "main")] == [("one", "two"), ("two", "three")]


def test_replacing_a_path_spares_everything_else(store: GraphStore) -> None:
    others = (
        make_node("other path", path="b.md"),
        make_node("same path, other project", path="a.md", project="NOT"),
        make_node("longer path", path="a.md/x"),
        make_node("other case", path="A.md"),
        make_node("no source"),
        make_node("what an agent wrote about it", path="a.md", store=Store.WORK),
    )
    store.write(WriteBatch(nodes=(*others, make_node("gone", path="a.md"), make_node("gone too", path="a.md", deleted_at=1))))
    store.write(WriteBatch(replace_paths=((ACCOUNT, "main", "a.md"),)))
    assert ids(store.scan(EVERYTHING)) == sorted(node.id for node in others)


def test_a_moved_node_follows_its_new_path(store: GraphStore) -> None:
    store.write(WriteBatch(nodes=(make_node("n", path="old.md"),)))
    paths = ((ACCOUNT, "main", "old.md"), (ACCOUNT, "main", "new.md"))
    store.write(WriteBatch(replace_paths=paths, nodes=(make_node("n", path="new.md"),)))
    found = store.get_nodes(["n"])["n"].source
    assert found is not None
    assert found.path == "new.md"


def test_replacing_a_path_with_the_same_is_no_change(store: GraphStore) -> None:
    batch = WriteBatch(
        replace_paths=((ACCOUNT, "main", "a.md"),), nodes=(make_node("n", path="a.md"),), edges=(make_edge("n", "n"),)
    )
    assert [store.write(batch), store.write(batch)] == [1, 1]


def test_no_reader_sees_a_path_without_its_nodes(store: GraphStore) -> None:
    def batch(step: int) -> WriteBatch:
        nodes = tuple(make_node(f"{step}-{place}", path="a.md", status=str(step)) for place in range(5))
        return WriteBatch(replace_paths=((ACCOUNT, "main", "a.md"),), nodes=nodes)

    store.write(batch(0))
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(lambda: [store.write(batch(step)) for step in range(1, 40)])
        seen: list[tuple[int, set[str | None]]] = []
        while not seen or not writing.done():
            found = list(store.scan(EVERYTHING))
            seen.append((len(found), {node.status for node in found}))
        writing.result()
    assert {(count, len(steps)) for count, steps in seen} == {(5, 1)}
    assert store.revision() == 40


# --- deleting ---


def test_soft_delete_and_restore(store: GraphStore) -> None:
    store.write(WriteBatch(nodes=(make_node("a"), make_node("b"))))
    assert store.write(WriteBatch(soft_delete=("a", "missing"), now=50)) == 2
    assert store.get_nodes(["a"])["a"].deleted_at == 50
    assert store.write(WriteBatch(soft_delete=("a",), now=60)) == 2, "the time of the first deletion stays"
    assert store.get_nodes(["a"])["a"].deleted_at == 50
    assert store.write(WriteBatch(restore=("a", "b", "missing"))) == 3
    assert store.get_nodes(["a"])["a"].deleted_at is None
    assert feed(store, 2) == [(3, "node_written", "a")]


def deleted(store: GraphStore) -> dict[str, int]:
    """When each deleted node was deleted."""
    return {node.id: node.deleted_at for node in store.scan(EVERYTHING) if node.deleted_at is not None}


def write_document(store: GraphStore) -> None:
    """doc > section > subsection > chunk, doc > class > method > rest; and what the document only refers to."""
    names = ("doc", "section", "subsection", "chunk", "class", "method", "rest", "other", "other chunk")
    edges = (
        make_edge("doc", "section", "HAS_SECTION"),
        make_edge("section", "subsection", "HAS_SECTION"),
        make_edge("subsection", "chunk", "HAS_CHUNK"),
        make_edge("doc", "class", "DEFINES"),
        make_edge("class", "method", "DEFINES"),
        make_edge("method", "rest", "HAS_CHUNK"),
        make_edge("doc", "other", "IMPORTS"),
        make_edge("method", "other", "CALLS"),
        make_edge("other", "other chunk", "HAS_CHUNK"),
        make_edge("section", "missing", "HAS_CHUNK"),
    )
    store.write(WriteBatch(nodes=tuple(make_node(name) for name in names), edges=edges))


PARTS = ("chunk", "class", "doc", "method", "rest", "section", "subsection")


def test_a_deletion_takes_all_that_a_document_contains_and_nothing_else(store: GraphStore) -> None:
    write_document(store)
    assert store.write(WriteBatch(soft_delete=("doc",), now=50)) == 2
    assert deleted(store) == dict.fromkeys(PARTS, 50)
    assert feed(store, 1) == [(2, "node_deleted", name) for name in PARTS], "one revision, so that nobody sees half of it"
    assert ids(store.scan(guards.search_guard(make_principal()))) == ["other", "other chunk"]
    assert store.write(WriteBatch(restore=("doc",))) == 3
    assert deleted(store) == {}
    assert feed(store, 2) == [(3, "node_written", name) for name in PARTS]


def test_a_part_is_deleted_with_what_is_below_it_alone(store: GraphStore) -> None:
    write_document(store)
    store.write(WriteBatch(soft_delete=("subsection",), now=8))
    assert deleted(store) == {"subsection": 8, "chunk": 8}


def test_parts_in_a_circle_are_each_taken_once(store: GraphStore) -> None:
    write_document(store)
    store.write(WriteBatch(edges=(make_edge("chunk", "doc", "DEFINES"), make_edge("doc", "doc", "DEFINES"))))
    store.write(WriteBatch(soft_delete=("subsection",), now=8))
    assert deleted(store) == dict.fromkeys(PARTS, 8)


def test_restoring_brings_back_what_that_deletion_took(store: GraphStore) -> None:
    write_document(store)
    store.write(WriteBatch(soft_delete=("class",), now=10))
    store.write(WriteBatch(soft_delete=("doc",), now=20))
    assert deleted(store) == {name: 10 if name in {"class", "method", "rest"} else 20 for name in PARTS}
    store.write(WriteBatch(restore=("doc",)))
    assert deleted(store) == {"class": 10, "method": 10, "rest": 10}
    store.write(WriteBatch(restore=("class",)))
    assert deleted(store) == {}


def test_what_came_to_a_deleted_document_later_is_taken_by_deleting_it_again(store: GraphStore) -> None:
    write_document(store)
    store.write(WriteBatch(soft_delete=("doc",), now=50))
    late = WriteBatch(nodes=(make_node("late"),), edges=(make_edge("section", "late", "HAS_CHUNK"),))
    store.write(late)
    assert "late" not in deleted(store)
    store.write(WriteBatch(soft_delete=("doc",), now=60))
    assert deleted(store) == dict.fromkeys((*PARTS, "late"), 50), "under the mark of the document, to come back with it"


def test_a_deletion_counts_the_edges_of_its_own_batch(store: GraphStore) -> None:
    store.write(WriteBatch(nodes=(make_node("stored"), make_node("left"))))
    store.write(WriteBatch(edges=(make_edge("doc", "left", "HAS_CHUNK"),)))
    batch = WriteBatch(
        nodes=(make_node("doc"), make_node("new")),
        remove_edges=(("doc", "HAS_CHUNK", "left"),),
        edges=(make_edge("doc", "stored", "HAS_CHUNK"), make_edge("doc", "new", "HAS_SECTION")),
        soft_delete=("doc",),
        now=5,
    )
    store.write(batch)
    assert deleted(store) == {"doc": 5, "new": 5, "stored": 5}


def test_nobody_deletes_anothers_node_by_an_edge_to_it(store: GraphStore) -> None:
    mine = make_node("mine", store=Store.WORK)
    others = (make_node("derived"), make_node("elsewhere", project="elsewhere", store=Store.WORK))
    edges = (make_edge("mine", "derived", "HAS_CHUNK"), make_edge("mine", "elsewhere", "HAS_CHUNK"))
    store.write(WriteBatch(nodes=(mine, *others), edges=edges))
    store.write(WriteBatch(soft_delete=("mine",), now=5))
    assert deleted(store) == {"mine": 5}


def test_only_a_set_mark_hides_a_node(store: GraphStore) -> None:
    """Never deleted, restored, and written without a mark: found. Marked, at whatever time: not found, and still listed."""
    store.write(WriteBatch(nodes=(make_node("t"), make_node("f"), make_node("n", deleted_at=None), make_node("m"))))
    store.write(WriteBatch(soft_delete=("t", "f")))
    store.write(WriteBatch(restore=("f",)))
    assert ids(store.scan(guards.search_guard(make_principal()))) == ["f", "m", "n"]
    assert [node.id for node in store.scan(EVERYTHING) if node.deleted_at is not None] == ["t"]


def test_writing_a_deleted_node_again_brings_it_back(store: GraphStore) -> None:
    node = make_node("a")
    store.write(WriteBatch(nodes=(node,)))
    store.write(WriteBatch(soft_delete=("a",), now=5))
    assert store.write(WriteBatch(nodes=(node,))) == 3
    assert store.count(guards.search_guard(make_principal())) == 1


def test_deleting_nothing_deletes_nothing(store: GraphStore) -> None:
    nodes = (make_node("mira's", owner_agent="mira"), make_node("noor's", owner_agent="noor"), make_node("nobody's"))
    store.write(WriteBatch(nodes=nodes, edges=(make_edge("mira's", "noor's"),)))
    for empty in (
        WriteBatch(),
        WriteBatch(purge=(), soft_delete=(), remove_edges=(), replace_paths=(), now=9),
        WriteBatch(purge=("",), soft_delete=("", "missing"), replace_paths=((ACCOUNT, "main", ""),), now=9),
        WriteBatch(purge=("%", "*", "mira"), soft_delete=("mira''s",), now=9),
    ):
        assert store.write(empty) == 1
    mine = [node.id for node in store.scan(In("owner_agent", ("mira",)))]
    store.write(WriteBatch(purge=tuple(mine)))
    assert ids(store.scan(EVERYTHING)) == ["nobody's", "noor's"]
    assert ids(store.scan(In("owner_agent", ()))) == ids(store.scan(Has("agents", ()))) == ids(store.scan(AnyOf(()))) == []


def test_purging_takes_the_edges_that_leave_and_spares_those_that_arrive(store: GraphStore) -> None:
    store.write(WriteBatch(nodes=(make_node("a"), make_node("b"))))
    store.write(
        WriteBatch(edges=(make_edge("a", "b"), make_edge("b", "a"), make_edge("b", "b", "SELF"), make_edge("b", "gone")))
    )
    store.write(WriteBatch(purge=("b",)))
    assert store.get_nodes(["b"]) == {}
    assert [(edge.from_id, edge.to_id) for edge in store.edges(ACCOUNT, "main")] == [("a", "b")]
    assert store.neighbours(["a"], EVERYTHING, 9) == ({"a": []}, {"a": 0})
    store.write(WriteBatch(nodes=(make_node("b"),)))
    shown, _ = store.neighbours(["a"], EVERYTHING, 9)
    assert [related.node.id for related in shown["a"]] == ["b"]


# --- edges ---


def test_an_edge_comes_back_as_it_was_written(store: GraphStore) -> None:
    edge = make_edge("x", "y", "IMPORTS", project="NOT", properties={"line": 3, "confidence": 0.5, "to": ["ä", None]})
    store.write(WriteBatch(edges=(edge, make_edge("x", "y", "CALLS", project="NOT"), make_edge("a", "b"))))
    assert list(store.edges(ACCOUNT, "NOT")) == [make_edge("x", "y", "CALLS", project="NOT"), edge]
    assert list(store.edges("zenith", "NOT")) == []
    store.write(WriteBatch(edges=(replace(edge, properties={"line": 4}),)))
    assert list(store.edges(ACCOUNT, "NOT"))[1].properties == {"line": 4}
    store.write(WriteBatch(remove_edges=(("x", "CALLS", "y"), ("missing", "CALLS", "y"))))
    assert [found.type for found in store.edges(ACCOUNT, "NOT")] == ["IMPORTS"]


def test_an_edge_removed_and_written_in_one_batch_is_there(store: GraphStore) -> None:
    store.write(WriteBatch(edges=(make_edge("a", "b"),)))
    again = WriteBatch(remove_edges=(("a", "CALLS", "b"),), edges=(make_edge("a", "b", properties={"line": 1}),))
    assert store.write(again) == 2
    assert feed(store, 1) == [(2, "edge_written", "a\x1fCALLS\x1fb")]


def test_neighbours_are_ordered_capped_and_counted(store: GraphStore) -> None:
    store.write(WriteBatch(nodes=tuple(make_node(name) for name in ("hub", "a", "b", "c", "d", "alone"))))
    edges = (
        make_edge("hub", "c", "CALLS", properties={"line": 1}),
        make_edge("hub", "a", "CALLS"),
        make_edge("b", "hub", "CALLS"),
        make_edge("a", "hub", "CALLS"),
        make_edge("hub", "d", "AAA"),
        make_edge("hub", "hub", "SELF"),
        make_edge("hub", "nowhere", "CALLS"),
        make_edge("nowhere", "hub", "CALLS"),
    )
    store.write(WriteBatch(edges=edges))
    full, omitted = store.neighbours(["hub", "alone", "missing", "hub"], EVERYTHING, 20)
    assert list(full) == ["hub", "alone", "missing"]
    listed = [(related.edge.type, related.direction, related.node.id) for related in full["hub"]]
    assert listed == [
        ("AAA", "outgoing", "d"),
        ("CALLS", "incoming", "a"),
        ("CALLS", "incoming", "b"),
        ("CALLS", "outgoing", "a"),
        ("CALLS", "outgoing", "c"),
        ("SELF", "outgoing", "hub"),
    ]
    assert full["hub"][4].edge == make_edge("hub", "c", "CALLS", properties={"line": 1})
    assert full["hub"][4].node == store.get_nodes(["c"])["c"]
    assert full["hub"][1].edge == make_edge("a", "hub", "CALLS")
    assert (full["alone"], full["missing"]) == ([], [])
    assert omitted == {"hub": 0, "alone": 0, "missing": 0}
    for limit in range(7):
        cut, left = store.neighbours(["hub", "alone"], EVERYTHING, limit)
        assert cut["hub"] == full["hub"][:limit]
        assert left == {"hub": 6 - limit, "alone": 0}


def test_neighbours_count_only_what_the_guard_allows(store: GraphStore) -> None:
    tags: dict[str, dict[str, Any]] = {
        "untagged": {},
        "mine": {"agents": ("iris",)},
        "nobody's": {"agents": ()},
        "mira's": {"agents": ("mira",)},
        "admin": {"scope": Scope.ADMIN},
        "deleted": {"deleted_at": 4},
    }
    nodes = (make_node("hub"), *(make_node(name, **fields) for name, fields in tags.items()))
    store.write(WriteBatch(nodes=nodes, edges=tuple(make_edge("hub", name) for name in tags)))
    shown, omitted = store.neighbours(["hub"], guards.expansion_guard(make_agent()), 1)
    assert [related.node.id for related in shown["hub"]] == ["mine"]
    assert omitted == {"hub": 1}
    shown, omitted = store.neighbours(["hub"], guards.expansion_guard(make_principal()), 9)
    assert [related.node.id for related in shown["hub"]] == ["admin", "mine", "mira's", "nobody's", "untagged"]
    assert omitted == {"hub": 0}


def test_neighbours_of_many_nodes(store: GraphStore) -> None:
    names = [f"n{place:04}" for place in range(CHUNK + 20)]
    ring = tuple(make_edge(first, second) for first, second in zip(names, [*names[1:], names[0]], strict=True))
    store.write(WriteBatch(nodes=tuple(map(make_node, names)), edges=ring))
    shown, omitted = store.neighbours(names, EVERYTHING, 1)
    assert {key: related[0].node.id for key, related in shown.items()} == {
        second: first for first, second in zip(names, [*names[1:], names[0]], strict=True)
    }
    assert set(omitted.values()) == {1}


def test_a_crowd_is_told_by_its_edges_in_both_directions(store: GraphStore) -> None:
    names = [f"n{number}" for number in range(6)]
    edges = (*(make_edge("hub", name) for name in names[:3]), *(make_edge(name, "hub") for name in names[3:]))
    store.write(WriteBatch(nodes=tuple(make_node(name) for name in ("hub", *names)), edges=edges))
    assert [store.crowded(asked, 6) for asked in ([], ["hub"], ["hub", "hub"], ["n0", "n5", "none"])] == [False] * 4
    # A store whose server goes through them is never crowded.
    if not isinstance(store, Neo4jGraphStore):
        assert store.crowded(["hub"], 5) and store.crowded(["n0", "hub"], 6)
