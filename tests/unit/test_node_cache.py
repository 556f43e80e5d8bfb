"""Nodes that are kept decoded, and the store that keeps them."""

from __future__ import annotations

from pathlib import Path

from cluster.graph.node_cache import LONG_TEXT, NodeCache
from cluster.graph.sqlite import SqliteGraphStore
from cluster.guards import expansion_guard, search_guard
from cluster.ports import WriteBatch
from tests.support.factories import ACCOUNT, make_agent, make_edge, make_node, make_principal


def test_a_node_is_given_for_its_own_revision_alone() -> None:
    cache = NodeCache(4)
    node = make_node("a", revision=3)
    cache.put([node])
    assert cache.get({"a": 3, "b": 3}) == {"a": node}
    assert cache.get({"a": 2}) == cache.get({"a": 4}) == {}


def test_a_slow_reader_does_not_put_an_older_revision_over_a_newer_one() -> None:
    cache = NodeCache(4)
    cache.put([make_node("a", revision=5)])
    cache.put([make_node("a", revision=4)])
    assert list(cache.get({"a": 5})) == ["a"]
    cache.put([make_node("a", revision=6)])
    assert (cache.get({"a": 5}), list(cache.get({"a": 6}))) == ({}, ["a"])


def test_what_was_asked_for_longest_ago_goes_first() -> None:
    cache = NodeCache(2)
    cache.put([make_node("a", revision=1), make_node("b", revision=1)])
    cache.get({"a": 1})
    cache.put([make_node("c", revision=1)])
    assert list(cache.get({"a": 1, "b": 1, "c": 1})) == ["a", "c"]


def test_long_texts_are_not_kept() -> None:
    cache = NodeCache(2)
    cache.put([make_node("long", revision=1, text={"content": "x" * LONG_TEXT}), make_node("short", revision=1)])
    assert list(cache.get({"long": 1, "short": 1})) == ["short"]


def test_each_reader_sees_its_own_of_what_is_kept(tmp_path: Path) -> None:
    store = SqliteGraphStore(tmp_path / "graph.sqlite", account=ACCOUNT, cached_nodes=9)
    nodes = (make_node("hub", agents=("iris",)), make_node("hers", agents=("iris",)), make_node("theirs", agents=("mira",)))
    store.write(WriteBatch(nodes=nodes, edges=(make_edge("hub", "hers"), make_edge("hub", "theirs"))))
    admin, agent = make_principal(), make_agent()
    names = ["hub", "hers", "theirs"]
    for _ in range(2):
        assert list(store.get_nodes(names, search_guard(admin))) == names
        assert list(store.get_nodes(names, search_guard(agent))) == ["hub", "hers"]
        shown, omitted = store.neighbours(["hub"], expansion_guard(admin), 9)
        assert ([item.node.id for item in shown["hub"]], omitted) == (["hers", "theirs"], {"hub": 0})
        shown, omitted = store.neighbours(["hub"], expansion_guard(agent), 9)
        assert ([item.node.id for item in shown["hub"]], omitted) == (["hers"], {"hub": 0})
    store.close()


def test_what_another_process_writes_is_seen_at_once(tmp_path: Path) -> None:
    store = SqliteGraphStore(tmp_path / "graph.sqlite", account=ACCOUNT, cached_nodes=9)
    other = SqliteGraphStore(tmp_path / "graph.sqlite", account=ACCOUNT)
    guard = search_guard(make_principal())
    for step in range(3):
        content = f"text {step}"
        edge = make_edge("a", "b", properties={"step": step})
        other.write(WriteBatch(nodes=(make_node("a"), make_node("b", text={"content": content})), edges=(edge,)))
        assert store.get_nodes(["b"], guard)["b"].text["content"] == content
        (found,) = store.neighbours(["a"], guard, 9)[0]["a"]
        assert (found.node.text["content"], found.edge.properties) == (content, {"step": step})
    other.write(WriteBatch(soft_delete=("b",), now=7))
    assert store.get_nodes(["a", "b"], guard).keys() == {"a"}
    assert store.get_nodes(["b"])["b"].deleted_at == 7
    assert store.neighbours(["a"], guard, 9) == ({"a": []}, {"a": 0})
    other.write(WriteBatch(purge=("b",)))
    assert store.get_nodes(["b"]) == {}
    other.close()
    store.close()
