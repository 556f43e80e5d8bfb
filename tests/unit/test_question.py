"""The bounds that every front shares."""

from __future__ import annotations

from typing import Any

import pytest

from cluster.errors import (
    UsageError,
)
from serve.question import make_question

# --- the bounds that every front shares --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "query", ["", " ", "\t\n", "\u00a0", "\u200b", "\u3000", None, "\0", "\ufeff\u2060", "\u3164", "\u00ad\ufe0f"]
)
def test_a_blank_query_is_refused_in_the_same_words(query: str | None) -> None:
    with pytest.raises(UsageError) as caught:
        make_question(query=query)
    assert (caught.value.field, caught.value.detail) == (
        "query",
        "query is required, and must hold at least one visible character",
    )


@pytest.mark.parametrize("query", ["!", "a", "\u200ba", "检", "🚀", "ok \ufffd tail"])
def test_a_query_with_anything_to_see_is_kept(query: str) -> None:
    assert make_question(query=query).request.query == query


def test_control_characters_part_words_and_half_a_pair_is_replaced() -> None:
    assert make_question(query="a\0b\x1bc\x9bd\x7fe \ud83d f 🚀").request.query == "a b c d e \ufffd f 🚀"
    assert make_question(query="a\tb\r\nc").request.query == "a\tb\r\nc"


@pytest.mark.parametrize("field", ["projects", "labels"])
@pytest.mark.parametrize("name", ["odd\0", "\0odd", "a\nb", "a\x85b", "\x1b[2J", "\x7f"])
def test_a_name_with_a_control_character_is_refused_and_not_read_as_another(field: str, name: str) -> None:
    with pytest.raises(UsageError, match="control characters") as caught:
        make_question(query="x", **{field: ["main", name]})  # type: ignore[arg-type]
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("asked", "used", "noticed"),
    [(None, 10, False), (1, 1, False), (100, 100, False), (0, 1, True), (-1, 1, True), (101, 100, True), (2**63, 100, True)],
)
def test_an_integer_limit_outside_is_clamped_with_a_notice(asked: int | None, used: int, noticed: bool) -> None:
    question = make_question(query="x", limit=asked)
    assert question.request.limit == used
    assert [notice.code for notice in question.notices] == (["limit_clamped"] if noticed else [])


@pytest.mark.parametrize(("asked", "used"), [(None, 1), (0, 0), (3, 3), (4, 3), (-1, 0), (10**400, 3)])
def test_hops_are_clamped_too(asked: int | None, used: int) -> None:
    question = make_question(query="x", expand_hops=asked)
    assert question.request.expand_hops == used
    assert all(len(notice.detail) < 200 for notice in question.notices)


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"projects": []}, "projects"),
        ({"projects": ["p"] * 101}, "projects"),
        ({"labels": [""]}, "labels"),
        ({"labels": ["x" * 201]}, "labels"),
        ({"fusion": "sum"}, "fusion"),
        ({"statistics": "none"}, "statistics"),
    ],
)
def test_values_that_are_not_usable_name_their_field(values: dict[str, Any], field: str) -> None:
    with pytest.raises(UsageError) as caught:
        make_question(query="x", **values)
    assert caught.value.field == field
