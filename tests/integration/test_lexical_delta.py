"""Dead rows and rows in memory, on real Lucene: counted and scored as a fresh index of the living rows would."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import reduce
from operator import add
from pathlib import Path

import pytest

from cluster.guards import allows
from cluster.index import lexical_delta, lexical_search
from cluster.index.analysis import analysis
from cluster.index.lexical_delta import LexicalDelta
from cluster.model.guard import Guard, In
from cluster.model.nodes import Node
from cluster.model.query import TermStatistics
from tests.integration.test_lexical_exact import WORDS, assert_same_ranking, random_guard, random_nodes, uneven_split
from tests.support.factories import make_node
from tests.support.lexical import EVERYTHING, Partition, Ranked, analyse, opened, search


def ranked(partitions: Sequence[Partition], delta: LexicalDelta, text: str, guard: Guard, k: int) -> Ranked:
    """Bases and a delta searched as one."""
    terms = analyse(text)
    total = reduce(add, (part.index.statistics(terms, guard) for part in partitions), delta.statistics(terms, guard))
    found: list[tuple[float, str]] = []
    matched = 0
    for part in partitions:
        rows, scores, count = part.index.search(terms, guard, total, k)
        found += [(-score, part.nodes[row].id) for row, score in zip(rows.tolist(), scores.tolist(), strict=True)]
        matched += count
    rows, scores, count = delta.search(terms, guard, total, k)
    found += [(-score, node_id) for node_id, score in zip(delta.ids(rows), scores.tolist(), strict=True)]
    found = sorted(found)[:k]
    return Ranked(tuple(node_id for _, node_id in found), tuple(-score for score, _ in found), matched + count)


@pytest.fixture
def delta() -> LexicalDelta:
    return LexicalDelta(analysis())


@pytest.mark.parametrize("many", [3, 256])
def test_dead_rows_and_new_ones_leave_the_scores_of_the_living(
    tmp_path: Path, delta: LexicalDelta, many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows die one by one and many at once, before and after a guard is first met; some are written anew."""
    monkeypatch.setattr(lexical_search, "_MANY_DEATHS", many)
    pick = random.Random(many)
    nodes = random_nodes(pick, 150)
    guards = [EVERYTHING, In("project", ("nowhere",)), *(random_guard(pick) for _ in range(3))]
    living = {node.id: node for node in nodes}
    with opened(tmp_path, *uneven_split(pick, nodes, 3)) as partitions:
        for _ in range(6):
            changed = pick.sample(nodes, pick.choice([1, 2, 20]))
            rewritten = [random_nodes(pick, 1)[0] for _ in changed[::2]]
            written = [make_node(old.id, text=new.text) for old, new in zip(changed[::2], rewritten, strict=True)]
            gone = [node.id for node in changed[1::2]]
            delta.apply(written, gone)
            for part in partitions:
                part.index.bury(row for row, node in enumerate(part.nodes) if node in changed)
            living.update((node.id, node) for node in written)
            for node_id in gone:
                living.pop(node_id, None)
            for guard in guards:
                visible = sorted((node for node in living.values() if allows(guard, node)), key=lambda node: node.id)
                with opened(tmp_path, visible) as fresh:
                    text = " ".join(pick.choices([*WORDS, "nowhere"], k=3))
                    k = pick.choice([2, 1000])
                    assert_same_ranking(ranked(partitions, delta, text, guard, k), search(fresh, text), k)
    delta.close()


def test_an_index_of_dead_rows_alone_says_nothing(tmp_path: Path) -> None:
    nodes = [make_node(f"n{number}", text={"content": "pump"}) for number in range(5)]
    with opened(tmp_path, nodes) as partitions:
        index = partitions[0].index
        index.bury(range(5))
        index.bury([3])
        assert list(index.deaths) == [0, 1, 2, 3, 4]
        assert index.statistics(["pump"], EVERYTHING) == TermStatistics(documents=0, tokens=0, document_frequency={"pump": 0})
        elsewhere = TermStatistics(documents=9, tokens=90, document_frequency={"pump": 4})
        rows, scores, matched = index.search(["pump"], EVERYTHING, elsewhere, 10)
        assert (rows.tolist(), scores.tolist(), matched) == ([], [], 0)


def test_the_best_rows_are_found_however_many_better_ones_are_dead(tmp_path: Path) -> None:
    nodes = [make_node(f"n{number:03}", text={"content": "pump " * (120 - number)}) for number in range(100)]
    with opened(tmp_path, nodes) as partitions:
        index = partitions[0].index
        index.bury(range(97))
        statistics = index.statistics(["pump"], EVERYTHING)
        rows, _, matched = index.search(["pump"], EVERYTHING, statistics, 2)
    assert sorted(rows.tolist()) <= [97, 98, 99]
    assert (len(rows), matched) == (2, 3)


def test_rows_keep_their_numbers_through_many_small_writes(delta: LexicalDelta) -> None:
    """Lucene merges the segments of small writes; a row must stay the document that it was."""
    for number in range(60):
        delta.apply([make_node(f"n{number}", text={"content": f"pump word{number}"})])
    for number in range(60):
        terms = [f"word{number}"]
        rows, _, matched = delta.search(terms, EVERYTHING, delta.statistics(terms, EVERYTHING), 5)
        assert (delta.ids(rows), matched) == ([f"n{number}"], 1)
    delta.close()


def test_old_readers_are_closed(delta: LexicalDelta) -> None:
    """A reader that stays open keeps the files of its segments, merged away or not."""
    most = 0
    for number in range(120):
        delta.apply([make_node(f"n{number}", text={"content": "pump"})])
        most = max(most, delta.files)
    assert most < 200, "about ten segments of nine files"
    delta.close()
    assert delta.files == 0


def test_many_updates_of_few_rows_take_no_room(delta: LexicalDelta, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lexical_delta, "_DEAD_ROWS", 20)
    last: dict[str, Node] = {}
    for step in range(100):
        node = make_node(f"n{step % 7}", text={"content": f"pump word{step}"})
        last[node.id] = node
        delta.apply([node])
        assert delta.rows <= 7 + 20 + 1
    counts = delta.statistics(["pump", "word98", "word3"], EVERYTHING)
    assert (counts.documents, dict(counts.document_frequency)) == (7, {"pump": 7, "word98": 1, "word3": 0})
    delta.apply([], list(last))
    assert len(delta) == 0
    assert delta.statistics(["pump"], EVERYTHING).documents == 0
    delta.apply([make_node("again", text={"content": "pump"})])
    rows, _, _ = delta.search(["pump"], EVERYTHING, delta.statistics(["pump"], EVERYTHING), 5)
    assert delta.ids(rows) == ["again"]
    delta.close()
