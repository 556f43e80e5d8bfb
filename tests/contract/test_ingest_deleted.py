"""What the ingest job makes of documents that somebody has deleted, over every graph store."""

from __future__ import annotations

from pathlib import Path

from cluster.model.guard import All
from cluster.model.nodes import Node
from cluster.ports import GraphStore, WriteBatch
from jobs.ingest import IngestOptions
from tests.support.git_tree import write
from tests.support.ingested import run_ingest, stored_contents, stored_paths

TEXT = "# A\n\none\n\n# B\n\ntwo\n"
CODE = "class Tap:\n    def turn(self):\n        return 1\n"


def every_node(store: GraphStore, path: str) -> list[Node]:
    return [node for node in store.scan(All(())) if node.source is not None and node.source.path == path]


def delete(store: GraphStore, path: str, now: int) -> None:
    document = next(node.id for node in every_node(store, path) if "Document" in node.labels)
    store.write(WriteBatch(soft_delete=(document,), now=now))


def test_a_deleted_document_stays_deleted_until_its_file_changes(store: GraphStore, tmp_path: Path) -> None:
    write(tmp_path, {"a.md": TEXT, "b.py": CODE, "c.md": "three\n"})
    run_ingest(store, tmp_path)
    for path in ("a.md", "b.py"):
        delete(store, path, now=50)
        assert {node.deleted_at for node in every_node(store, path)} == {50}, "all of its parts"
    assert run_ingest(store, tmp_path).unchanged == 3
    assert stored_paths(store) == ["c.md"]

    write(tmp_path, {"a.md": TEXT.replace("one", "one more"), "b.py": CODE + "\n    def shut(self):\n        return 2\n"})
    run_ingest(store, tmp_path)
    assert stored_paths(store) == ["a.md", "b.py", "c.md"]
    assert stored_contents(store, "a.md") == ["one more", "two"]
    for path in ("a.md", "b.py"):
        assert {node.deleted_at for node in every_node(store, path)} == {None}


def test_reading_the_same_bytes_in_another_way_brings_nothing_back(store: GraphStore, tmp_path: Path) -> None:
    write(tmp_path, {"a.md": "# A\n\n" + "word " * 100 + "\n"})
    run_ingest(store, tmp_path)
    before = {node.id for node in every_node(store, "a.md")}
    delete(store, "a.md", now=50)
    run_ingest(store, tmp_path, options=IngestOptions(max_chars=100))
    after = every_node(store, "a.md")
    assert {node.id for node in after} - before, "there are new parts"
    assert {node.deleted_at for node in after} == {50}
    assert stored_paths(store) == []


def test_a_part_that_was_deleted_by_itself_stays_deleted(store: GraphStore, tmp_path: Path) -> None:
    write(tmp_path, {"a.md": TEXT})
    run_ingest(store, tmp_path)
    two = next(node.id for node in every_node(store, "a.md") if node.text.get("content") == "two")
    store.write(WriteBatch(soft_delete=(two,), now=40))
    delete(store, "a.md", now=50)
    write(tmp_path, {"a.md": TEXT + "\n# C\n\nthree\n"})
    run_ingest(store, tmp_path)
    assert stored_contents(store, "a.md") == ["one", "three"]
    assert store.get_nodes([two])[two].deleted_at == 40
