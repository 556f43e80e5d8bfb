"""Nodes that are kept decoded, and the store that keeps them."""

from __future__ import annotations

import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from cluster.graph.node_cache import LARGEST_BYTES, NodeCache
from cluster.graph.sqlite import SqliteGraphStore
from cluster.graph.sqlite_rows import node_bytes, node_row, to_node
from cluster.guards import expansion_guard, search_guard
from cluster.model.nodes import Node, Source
from cluster.ports import WriteBatch
from tests.support.factories import ACCOUNT, make_agent, make_edge, make_node, make_principal


def test_a_node_is_given_for_its_own_revision_alone() -> None:
    cache = NodeCache(4)
    node = make_node("a", revision=3)
    cache.put([(node, 9)])
    assert cache.get({"a": 3, "b": 3}) == {"a": node}
    assert cache.get({"a": 2}) == cache.get({"a": 4}) == {}


def test_a_slow_reader_does_not_put_an_older_revision_over_a_newer_one() -> None:
    cache = NodeCache(4)
    cache.put([(make_node("a", revision=5), 9)])
    cache.put([(make_node("a", revision=4), 9)])
    assert list(cache.get({"a": 5})) == ["a"]
    cache.put([(make_node("a", revision=6), 9)])
    assert (cache.get({"a": 5}), list(cache.get({"a": 6}))) == ({}, ["a"])


def test_what_was_asked_for_longest_ago_goes_first() -> None:
    cache = NodeCache(2)
    cache.put([(make_node("a", revision=1), 9), (make_node("b", revision=1), 9)])
    cache.get({"a": 1})
    cache.put([(make_node("c", revision=1), 9)])
    assert list(cache.get({"a": 1, "b": 1, "c": 1})) == ["a", "c"]


def test_what_is_kept_is_bounded_by_its_bytes() -> None:
    cache = NodeCache(9, most_bytes=100)
    cache.put([(make_node(name, revision=1), 40) for name in "ab"])
    cache.put([(make_node("b", revision=2), 60)])
    assert (list(cache.get({"a": 1, "b": 2})), cache.bytes) == (["a", "b"], 100)
    cache.put([(make_node("c", revision=1), 10)])
    assert (list(cache.get({"a": 1, "b": 2, "c": 1})), cache.bytes) == (["b", "c"], 70)
    cache.put([(make_node("d", revision=1), LARGEST_BYTES + 1), (make_node("b", revision=3), LARGEST_BYTES + 1)])
    assert (list(cache.get({"b": 2, "c": 1, "d": 1})), cache.bytes) == (["c"], 10), "too large to be kept"


def memory(value: Any) -> int:
    """Bytes of `value` and all that it holds."""
    size = sys.getsizeof(value)
    if isinstance(value, dict):
        return size + sum(memory(key) + memory(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return size + sum(map(memory, value))
    if isinstance(value, Node | Source):
        return size + sum(memory(getattr(value, each.name)) for each in fields(value))
    return size


VALUES = st.recursive(
    st.none() | st.booleans() | st.floats(allow_nan=False) | st.integers(-(2**60), 2**60) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=9) | st.dictionaries(st.text(max_size=9), inner, max_size=9),
    max_leaves=60,
)
STRINGS = st.lists(st.text(max_size=9), max_size=20).map(tuple)


@settings(max_examples=50)
@given(
    text=st.dictionaries(st.text(max_size=9), st.text(), max_size=9),
    properties=st.dictionaries(st.text(max_size=9), VALUES, max_size=20),
    keywords=STRINGS,
    shared_with=STRINGS,
)
@example(text={"content": "\N{CJK UNIFIED IDEOGRAPH-4E2D}" * 4000}, properties={}, keywords=(), shared_with=())
@example(text={"content": "x" * 4000 + "\N{GRINNING FACE}"}, properties={}, keywords=(), shared_with=())
@example(text={f"{n}": "" for n in range(900)}, properties={}, keywords=(), shared_with=())
@example(text={}, properties={"p": [[]] * 4_000}, keywords=(), shared_with=())
@example(text={}, properties={"p": [{}] * 4_000}, keywords=(), shared_with=())
@example(text={}, properties={"p": [{"a": 0}] * 2_000}, keywords=(), shared_with=())
@example(text={}, properties={f"{n}": n + 1000 for n in range(2_000)}, keywords=(), shared_with=())
@example(text={}, properties={"p": [1.5] * 4_000}, keywords=("\N{GRINNING FACE}",) * 900, shared_with=("x",) * 2_000)
def test_a_node_takes_no_more_memory_than_is_counted(**contents: Any) -> None:
    row = node_row(make_node("a", **contents), 7)
    assert memory(to_node(row)) <= node_bytes(row)


def test_large_properties_are_counted_and_not_kept(tmp_path: Path) -> None:
    store = SqliteGraphStore(tmp_path / "graph.sqlite", account=ACCOUNT, cached_nodes=9)
    store.write(WriteBatch(nodes=(make_node("small"), make_node("large", properties={"p": [[]] * 4_000}))))
    first, second = (store.get_nodes(["small", "large"]) for _ in range(2))
    assert first == second
    assert first["small"] is second["small"] and first["large"] is not second["large"]
    store.close()


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
