"""What another process writes to the store is in the answers of a running server, without a new generation."""

from __future__ import annotations

from pathlib import Path

from cluster.graph.sqlite import SqliteGraphStore
from cluster.model.nodes import Node, Store
from cluster.ports import WriteBatch
from tests.support.server import Server


def note(content: str) -> Node:
    return Node(
        id="live-note",
        account="local",
        project="pump-controller",
        store=Store.WORK,
        labels=("Note",),
        text={"content": content},
    )


def found(server: Server, query: str) -> list[str]:
    return [hit["id"] for hit in server.search(query, limit=100, expand_hops=0)["hits"] if hit["scores"]["bm25"]]


def test_a_note_is_found_changed_and_gone_as_it_is_written(server: Server) -> None:
    generation = server.search("pump")["disclosure"]["generations"]
    store = SqliteGraphStore(Path(server.data_dir) / "graph.sqlite", account="local")
    try:
        store.write(WriteBatch(nodes=(note("the quillwort gauge was recalibrated"),)))
        server.until("the note is found", lambda: "live-note" in found(server, "quillwort"))
        before = server.search("quillwort", expand_hops=0)["hits"][0]
        store.write(WriteBatch(nodes=(note("the bladderwort gauge was replaced"),)))
        server.until("the new text is found", lambda: "live-note" in found(server, "bladderwort"))
        assert "live-note" not in found(server, "quillwort")
        assert before["snippet"]["text"] == "the quillwort gauge was recalibrated"
        store.write(WriteBatch(soft_delete=("live-note",), now=7))
        server.until("the note is gone", lambda: "live-note" not in found(server, "bladderwort"))
    finally:
        store.write(WriteBatch(purge=("live-note",)))
        store.close()
    assert server.search("pump")["disclosure"]["generations"] == generation
