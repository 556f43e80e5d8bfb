"""Pages of an answer join to the list that one large answer would be."""

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.errors import ConflictError, UsageError
from cluster.model.access import Principal
from cluster.model.query import Answer, Fusion, SearchRequest
from serve.cursor import MAX_CURSOR, fingerprint, read_cursor
from tests.support.factories import make_principal
from tests.support.legs import make_manifest
from tests.support.retrieval import ADMIN, Bench, doc, ids

METHODS = list(Fusion)


def pages(bench: Bench, size: Callable[[int], int], between: Callable[[], None] = lambda: None, **request: Any) -> list[Answer]:
    found: list[Answer] = []
    cursor = None
    while not found or cursor is not None:
        found.append(bench.ask(limit=size(len(found)), cursor=cursor, **request))
        cursor = found[-1].next_cursor
        between()
    return found


def joined(found: list[Answer]) -> list[str]:
    return [node_id for answer in found for node_id in ids(answer)]


@pytest.mark.parametrize("method", METHODS)
def test_pages_of_equal_documents_hold_each_once_in_the_order_of_their_ids(method: Fusion) -> None:
    bench = Bench(*(doc(f"n{number:02}") for number in range(25)))
    for _ in range(3):
        found = pages(bench, lambda _: 4, fusion=method)
        assert joined(found) == [f"n{number:02}" for number in range(25)]
        assert [len(answer.hits) for answer in found] == [4] * 6 + [1]


@settings(max_examples=40)
@given(
    st.dictionaries(st.sampled_from("abcdefghijklmnop"), st.sampled_from([0.0, 0.5, 1.0, 7.25]), max_size=16),
    st.dictionaries(st.sampled_from("abcdefghijklmnop"), st.sampled_from([-0.5, 0.0, 0.25, 0.9]), max_size=16),
    st.sampled_from(METHODS),
    st.lists(st.integers(1, 5), min_size=20, max_size=20),
)
def test_pages_of_any_sizes_join_to_one_list(
    lexical: dict[str, float], vector: dict[str, float], method: Fusion, sizes: list[int]
) -> None:
    bench = Bench(*(doc(name) for name in "abcdefghijklmnop"), lexical_scores=lexical, vector_scores=vector)
    whole = bench.ask(limit=100, fusion=method)
    assert whole.next_cursor is None
    found = pages(bench, lambda number: sizes[number], fusion=method)
    assert joined(found) == ids(whole)
    for answer in found:
        disclosure = answer.disclosure
        assert disclosure.candidates == disclosure.returned + sum(disclosure.omitted.values())


def test_after_a_mass_deletion_every_page_but_the_last_is_full() -> None:
    bench = Bench(*(doc(f"n{number:03}") for number in range(90)), unguarded=True)
    bench.legs.vector_scores = {f"n{number:03}": 0.5 for number in range(90)}
    bench.write(nodes=tuple(doc(f"n{number:03}", deleted_at=7) for number in range(90) if number % 5))
    found = pages(bench, lambda _: 4)
    assert [len(answer.hits) for answer in found] == [4, 4, 4, 4, 2]
    for answer in found[:-1]:
        assert answer.next_cursor is not None
        assert read_cursor(answer.next_cursor, REQUEST, ADMIN).last[2] == ids(answer)[-1], "what was dropped is not named"
    assert joined(found) == [f"n{number:03}" for number in range(0, 90, 5)]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("noise", [1e-7, -1e-7])
def test_pages_join_although_each_is_answered_by_a_replica_that_rounds_otherwise(method: Fusion, noise: float) -> None:
    """Ties that move together stay together: none is on two pages or on none."""
    names = [f"n{number:02}" for number in range(20)]
    scores = {name: 9.0 if name < "n05" else 4.0 if name < "n15" else 1.0 for name in names}
    bench = Bench(*(doc(name) for name in names), lexical_scores=scores, vector_scores=dict.fromkeys(names, 0.5))

    def other_replica() -> None:
        moved = bench.legs.lexical_scores is scores
        bench.legs.lexical_scores = (
            {name: score * (1 + noise * (score == 4.0)) for name, score in scores.items()} if moved else scores
        )

    assert joined(pages(bench, lambda _: 3, other_replica, fusion=method)) == names


def test_a_last_hit_that_a_write_moved_far_is_not_followed() -> None:
    bench = Bench(
        *(doc(f"n{number}") for number in range(6)), vector_scores={f"n{number}": 0.9 - number / 10 for number in range(6)}
    )
    first = bench.ask("zzz", limit=2)
    bench.legs.vector_scores = {**(bench.legs.vector_scores or {}), "n1": -0.5}
    assert (ids(first), ids(bench.ask("zzz", limit=9, cursor=first.next_cursor))) == (
        ["n0", "n1"],
        ["n2", "n3", "n4", "n5", "n1"],
    )


def test_a_page_is_read_from_the_generation_of_the_page_before() -> None:
    bench = Bench(*(doc(f"n{number}") for number in range(6)))
    first = bench.ask(limit=2)
    old = bench.legs.manifests["main"]
    bench.legs.replaced.append(old)
    bench.legs.manifests["main"] = make_manifest("main", generation="g-newer")
    second = bench.ask(limit=2, cursor=first.next_cursor)
    assert second.disclosure.generations == first.disclosure.generations == {"main": old.generation}
    assert bench.legs.lexical_queries[-1].pins == {"main": old.generation}
    assert ids(second) == ["n2", "n3"]
    bench.legs.replaced.clear()
    with pytest.raises(ConflictError, match="from the start") as failure:
        bench.ask(limit=2, cursor=first.next_cursor)
    assert failure.value.field == "cursor"


@pytest.mark.parametrize("change", [{"query": "beta"}, {"labels": ("Chunk",)}, {"fusion": Fusion.RRF}, {"projects": ("main",)}])
def test_a_cursor_is_good_for_its_own_question_alone(change: dict[str, Any]) -> None:
    bench = Bench(*(doc(f"n{number}") for number in range(6)))
    cursor = bench.ask(limit=2).next_cursor
    assert cursor is not None
    with pytest.raises(UsageError, match="another question"):
        bench.ask(cursor=cursor, **change)
    with pytest.raises(UsageError, match="another question"):
        bench.ask(cursor=cursor, principal=make_principal(key_id="other"))


def forged(*values: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(values).encode()).decode().rstrip("=")


REQUEST = SearchRequest(query="alpha")


def asked(principal: Principal = ADMIN) -> str:
    return fingerprint(REQUEST, principal)


@pytest.mark.parametrize(
    "cursor",
    [
        "",
        "x",
        "é",
        "!!!!",
        "A" * (MAX_CURSOR + 1),
        base64.urlsafe_b64encode(b"\xff\xfe").decode(),
        forged(),
        forged(2, {}, asked(), -0.5, False, "a"),
        forged(1, [], asked(), -0.5, False, "a"),
        forged(1, {"main": 7}, asked(), -0.5, False, "a"),
        forged(1, {"../x": "g"}, asked(), -0.5, False, "a"),
        forged(1, {"main": "../../etc"}, asked(), -0.5, False, "a"),
        forged(1, {}, asked(), "0.5", False, "a"),
        forged(1, {}, asked(), float("nan"), False, "a"),
        forged(1, {}, asked(), -0.5, 0, "a"),
        forged(1, {}, asked(), -0.5, False, None),
        base64.urlsafe_b64encode(b"[" * 30_000).decode(),
    ],
)
def test_what_is_no_cursor_is_refused_by_field(cursor: str) -> None:
    with pytest.raises(UsageError, match="cursor") as failure:
        read_cursor(cursor, REQUEST, ADMIN)
    assert failure.value.field == "cursor"


def test_a_forged_cursor_reaches_no_project_beyond_the_key() -> None:
    bench = Bench(doc("mine"), doc("theirs", project="secret"))
    bench.legs.manifests["secret"] = make_manifest("secret")
    reader = make_principal(projects=frozenset({"main"}))
    pins = {"main": "g-main", "secret": "g-secret"}
    answer = bench.ask(cursor=forged(1, pins, fingerprint(REQUEST, reader), -99.0, False, ""), principal=reader)
    assert ids(answer) == ["mine"]
    assert answer.disclosure.generations == {"main": "g-main"}
