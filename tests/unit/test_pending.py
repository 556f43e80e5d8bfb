import pytest

from cluster.graph.memory import MemoryGraphStore
from cluster.ports import WriteBatch
from jobs import pending
from jobs.pending import pending_changes
from tests.support.factories import ACCOUNT, make_edge, make_node


@pytest.fixture
def store() -> MemoryGraphStore:
    return MemoryGraphStore(account=ACCOUNT)


def test_nodes_count_once_each_and_edges_and_other_projects_do_not(
    store: MemoryGraphStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending, "PAGE", 3)
    store.write(WriteBatch(nodes=(make_node("old"),)))
    since = store.revision()
    assert pending_changes(store, "main", since, 100) == 0
    for content in ("one", "two", "three"):
        store.write(WriteBatch(nodes=(make_node("a", text={"content": content}),)))
    store.write(WriteBatch(nodes=(make_node("b"), make_node("x", project="NOT")), edges=(make_edge("a", "b"),)))
    store.write(WriteBatch(soft_delete=("old",), now=7))
    assert pending_changes(store, "main", since, 100) == 3
    assert pending_changes(store, "NOT", since, 100) == 1
    assert pending_changes(store, "main", store.revision(), 100) == 0


def test_what_is_gone_counts_and_counting_ends_above_the_bound(
    store: MemoryGraphStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending, "PAGE", 2)
    for number in range(9):
        store.write(WriteBatch(nodes=(make_node(f"n{number}"),)))
    assert 4 < pending_changes(store, "main", 0, 4) <= 6
    store.write(WriteBatch(purge=("n1",)))
    assert pending_changes(store, "main", 0, 100) == 9
