"""Indexes searched together answer as each by itself and merged; what happens to one of them happens to the union."""

import os
import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from actors.lexical_group import LexicalGroups
from actors.lexical_part import LexicalPart
from cluster.index.analysis import analysis
from cluster.index.lexical_union import LexicalUnion
from cluster.index.rows import rows_table, write_rows
from cluster.model.manifest import Bucket, Manifest
from cluster.model.nodes import Node
from tests.integration.test_lexical_exact import WORDS, random_guard, random_nodes, uneven_split
from tests.support.factories import make_node
from tests.support.legs import make_manifest
from tests.support.lexical import EVERYTHING, Partition, analyse, build_lexical, opened, search, statistics


def united(partitions: list[Partition], union: LexicalUnion, text: str, guard: object, k: int) -> dict[str, float]:
    terms = analyse(text)
    total = union.statistics(terms, guard)  # type: ignore[arg-type]
    assert total == statistics(partitions, terms, guard)  # type: ignore[arg-type]
    rows, scores, _ = union.search(terms, guard, total, k)  # type: ignore[arg-type]
    order = np.argsort(rows)
    sorted_ids = [
        partition.nodes[row].id
        for partition, own in zip(partitions, union.by_part(rows[order]), strict=True)
        for row in own.tolist()
    ]
    ids = [sorted_ids[place] for place in np.argsort(order).tolist()]
    assert all(first >= second for first, second in pairwise(scores))
    return dict(zip(ids, scores.tolist(), strict=True))


@pytest.mark.parametrize("parts", [2, 5])
def test_a_union_finds_counts_and_scores_as_its_parts_do(tmp_path: Path, parts: int) -> None:
    pick = random.Random(parts)
    nodes = random_nodes(pick, 200)
    with opened(tmp_path, *uneven_split(pick, nodes, parts)) as partitions:
        union = LexicalUnion([partition.index for partition in partitions])
        for step in range(30):
            guard = random_guard(pick)
            text = " ".join(pick.choices([*WORDS, "nowhere"], k=pick.randint(1, 5)))
            right = search(partitions, text, guard)
            for k in (1, 7, 1000):
                found = united(partitions, union, text, guard, k)
                best = sorted(found.items(), key=lambda hit: (-hit[1], hit[0]))[:k]
                assert [score for _, score in best] == pytest.approx(list(right.scores[:k]), rel=1e-6)
                assert {name: right.as_map()[name] for name, _ in best} == pytest.approx(dict(best), rel=1e-6)
            if step % 3 == 0:
                partition = pick.choice([partition for partition in partitions if partition.nodes])
                partition.index.bury([pick.randrange(len(partition.nodes))])
        union.close()


def test_rows_that_tie_at_the_cut_are_all_there(tmp_path: Path) -> None:
    """The lowest ids are in the last part, where Lucene looks last."""
    corpora = [[make_node(f"{name}{n:03}", text={"content": "pump"}) for n in range(60)] for name in "cba"]
    with opened(tmp_path, *corpora) as partitions:
        union = LexicalUnion([partition.index for partition in partitions])
        found = united(partitions, union, "pump", EVERYTHING, 5)
        assert len(found) == 180
        assert sorted(found)[:5] == [f"a{n:03}" for n in range(5)]
        union.close()


def part(folder: Path, nodes: list[Node]) -> LexicalPart:
    (folder / "lexical").mkdir(parents=True)
    tokens = build_lexical(folder / "lexical" / "lucene", nodes)
    write_rows(folder / "lexical" / "rows.parquet", rows_table(nodes, tokens))
    bucket = Bucket(name=folder.name, rows=len(nodes), vectors=0, checksums={}, lexical_fingerprint="f", vector_fingerprint="f")
    manifest: Manifest = replace(make_manifest(), analyzer=analysis().version)
    return LexicalPart(folder, bucket, manifest, analysis(), 100)


def open_files(folder: Path) -> int:
    return sum(str(folder) in line for line in Path(f"/proc/{os.getpid()}/maps").read_text().splitlines())


def test_groups_follow_deltas_and_let_closed_partitions_go(tmp_path: Path) -> None:
    texts = {"a": "pump one", "b": "pump two two", "c": "valve three"}
    parts = [part(tmp_path / name, [make_node(name, text={"content": text})]) for name, text in texts.items()]
    groups = LexicalGroups()
    group = groups(parts)
    assert groups(parts) is group
    terms = analyse("pump")

    def found() -> list[str]:
        total = group.statistics(terms, EVERYTHING)
        ids, scores, matched = group.search(terms, EVERYTHING, total, 10)
        assert len(ids) == matched == total.document_frequency["pump"]
        return [ids[place] for place in np.argsort(-scores, kind="stable")]

    assert sorted(found()) == ["a", "b"]
    parts[0].apply({"a": make_node("a", text={"content": "nothing any more"})})
    parts[2].apply({"d": make_node("d", text={"content": "pump pump pump"})})
    assert sorted(found()) == ["b", "d"]
    parts[1].apply({"b": None})
    assert found() == ["d"]
    others = [parts[0], parts[2]]
    parts[1].close()
    assert groups(others) is not group
    assert open_files(tmp_path / "b") == 0, "nothing maps the files of a partition that was closed"
    groups.close()
    for left in others:
        left.close()
    assert open_files(tmp_path) == 0


def test_the_groups_that_are_kept_are_bounded(tmp_path: Path) -> None:
    parts = [part(tmp_path / name, [make_node(name, text={"content": name})]) for name in "abcd"]
    groups = LexicalGroups(most=2)
    first = groups(parts[:2])
    groups(parts[1:])
    assert groups(parts[:2]) is first
    groups(parts)
    assert groups(parts[1:]) is not None
    assert groups(parts[:2]) is not first
    bounded = LexicalGroups(most_rows=5)
    bounded(parts)
    bounded(parts[:2])
    assert len(bounded._known) == 1
    for closing in (groups, bounded, *parts):
        closing.close()


@pytest.mark.parametrize("buried", [0, 30, 100])
def test_the_living_are_found_behind_any_number_of_better_dead(tmp_path: Path, buried: int) -> None:
    better = [make_node(f"a{number:03}", text={"content": "pump"}) for number in range(100)]
    living = [make_node(f"b{number}", text={"content": "pump and its valves"}) for number in range(3)]
    with opened(tmp_path, better + living) as (partition,):
        partition.index.bury(range(buried))
        total = partition.index.statistics(analyse("pump"), EVERYTHING)
        for k in (1, 2, 50, 200):
            rows, _, matched = partition.index.search(analyse("pump"), EVERYTHING, total, k)
            assert rows.tolist() == list(range(buried, 103))[:k]
            assert matched == 103 - buried
