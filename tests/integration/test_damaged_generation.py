"""A generation with a damaged file, of any kind, is never swapped in: the one before keeps serving, and the file is named."""

from __future__ import annotations

from pathlib import Path

from cluster.ports import WriteBatch
from tests.support.factories import make_node, make_principal
from tests.support.files import flip
from tests.support.live import LiveIndex

READER = make_principal()


async def test_a_flipped_byte_in_any_file_keeps_a_generation_out(tmp_path: Path) -> None:
    live = LiveIndex(tmp_path, shards=1, target_rows=100)
    live.store.write(WriteBatch(nodes=tuple(make_node(f"n{n}", text={"content": f"pump number{n}"}) for n in range(6))))
    live.publish("main")
    await live.router.refresh()
    served = live.pins()
    live.store.write(WriteBatch(nodes=(make_node("n9", text={"content": "pump number9"}),)))
    live.publish("main")
    manifest = live.generations.current("main")
    assert manifest is not None
    folder = live.generations.folder("main", manifest.generation) / "b0000"
    files = sorted(manifest.buckets[0].checksums)
    kinds = {Path(name).suffix or Path(name).name.split("_")[0] for name in files}
    assert {".parquet", ".faiss", "segments"} <= kinds
    try:
        for name in files:
            path = folder / name
            whole = path.read_bytes()
            if not whole:
                continue
            flip(path)
            assert await live.router.refresh() == []
            assert live.pins() == served, name
            assert f"{name} of generation {manifest.generation} was changed" in live.router.refused()["main"]
            await live.catch_up()
            answer = await live.lexical(READER, "pump", 9)
            assert (len(answer.ids), answer.failures) == (7, ()), "what was written since is in the answers all the same"
            assert (await live.vector(READER, "pump", 9)).failures == ()
            path.write_bytes(whole)
            look_again(live)
        await live.router.refresh()
        assert live.pins() == {"main": manifest.generation}
    finally:
        live.close()


async def test_where_nothing_else_is_there_the_whole_leg_answers_and_the_other_names_its_project(tmp_path: Path) -> None:
    live = LiveIndex(tmp_path, shards=1, target_rows=100)
    live.store.write(WriteBatch(nodes=(make_node("n1", text={"content": "pump"}),)))
    live.publish("main")
    flip(live.generations.folder("main", live.generations.finished("main")[0]) / "b0000" / "vector" / "vectors.faiss")
    try:
        await live.router.refresh()
        answer = await live.lexical(READER, "pump", 9)
        assert (answer.ids, answer.failures) == (("n1",), ())
        (shard,) = [client.shard for name, client in live.clients.items() if name.startswith("vector")]
        (failure,) = shard.prepare(live.pins())
        assert (failure.code, "vectors.faiss" in failure.detail) == ("corrupt_index", True)
    finally:
        live.close()


def look_again(live: LiveIndex) -> None:
    """Touches the pointer and replaces the shards, so that what was refused is not waited for."""
    pointer = live.generations.root / "main" / "CURRENT"
    pointer.write_bytes(pointer.read_bytes())
    for name in list(live.clients):
        live.restart(name)
