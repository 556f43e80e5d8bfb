from __future__ import annotations

from collections.abc import Sequence

from cluster.feed import CHASED_PAGES, Feed
from cluster.graph.memory import MemoryGraphStore
from cluster.model.guard import Guard
from cluster.model.nodes import Node
from cluster.ports import WriteBatch
from tests.support.factories import ACCOUNT, make_edge, make_node


def everything(_node_id: str) -> bool:
    return True


class BusyStore(MemoryGraphStore):
    """One that somebody writes into whenever it is read."""

    def __init__(self, writes: int) -> None:
        super().__init__(account=ACCOUNT)
        self.left = writes

    def get_nodes(self, ids: Sequence[str], guard: Guard | None = None) -> dict[str, Node]:
        if self.left:
            self.left -= 1
            pair = tuple(make_node(name, text={"content": f"write {self.left}"}) for name in ("x", "y"))
            self.write(WriteBatch(nodes=pair))
        return super().get_nodes(ids, guard)


def test_pages_end_where_the_store_is_and_name_each_node_as_it_is() -> None:
    store = MemoryGraphStore(account=ACCOUNT)
    for number in range(5):
        store.write(WriteBatch(nodes=(make_node("a", text={"content": f"{number}"}), make_node(f"n{number}"))))
    store.write(WriteBatch(edges=(make_edge(),)))
    pages = list(Feed(store, ACCOUNT, page=3)(1, lambda node_id: node_id != "n2"))
    assert pages[-1].revision == store.revision()
    assert [page.revision for page in pages] == sorted({page.revision for page in pages})
    shown = {key: node for page in pages for key, node in page.nodes.items()}
    assert set(shown) == {"a", "n1", "n3", "n4"}
    assert shown["a"] is not None and shown["a"].text == {"content": "4"}
    assert list(Feed(store, ACCOUNT)(store.revision(), everything)) == []


def test_applied_all_pages_show_one_state_however_writes_come_between() -> None:
    store = BusyStore(writes=7)
    store.write(WriteBatch(nodes=(make_node("x"), make_node("y"))))
    shown: dict[str, Node | None] = {}
    for page in Feed(store, ACCOUNT)(0, everything):
        shown.update(page.nodes)
    x, y = shown["x"], shown["y"]
    assert x is not None and y is not None
    assert x.text == y.text == {"content": "write 0"}, "written together, seen together"
    assert page.revision == store.revision()


def test_a_writer_that_never_pauses_does_not_hold_a_reader() -> None:
    store = BusyStore(writes=10_000)
    store.write(WriteBatch(nodes=(make_node("x"),)))
    assert sum(1 for _ in Feed(store, ACCOUNT)(0, everything)) == CHASED_PAGES + 1
