"""The fields that a caller may write: their bounds, and merge patches."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.errors import UsageError
from cluster.model.nodes import Scope, Source, Visibility
from serve import writing_fields as fields
from serve.writing_fields import fields_of, merge_patch, read_draft, read_new_id, refuse_unknown
from tests.support.factories import make_node

TEXT = {"text": {"content": "x"}}
SOURCE = {"repository": "r", "path": "a.md"}


def test_what_is_left_out_has_a_default() -> None:
    draft = read_draft(TEXT)
    assert (draft.labels, draft.text, draft.properties, draft.keywords) == (("Note",), {"content": "x"}, {}, ())
    assert (draft.scope, draft.agents, draft.visibility, draft.shared_with) == (None, None, None, ())
    assert (draft.status, draft.confidence, draft.source) == (None, None, None)
    assert read_draft({**TEXT, **dict.fromkeys(name for name in fields.NODE_FIELDS if name != "text")}) == draft


def test_all_fields_are_read_and_cleaned() -> None:
    draft = read_draft(
        {
            "labels": ["Note", "Decision", "Note"],
            "text": {"title": "a\0b\ud83d", "summary": " "},
            "properties": {"k\0": ["v\0", {"n": 1}], "half": "\udc00"},
            "keywords": ["auth"],
            "status": "open",
            "confidence": 1,
            "source": {**SOURCE, "start_line": 3, "end_line": 3, "commit": "a" * 40},
            "scope": "shared",
            "agents": ["iris", "iris", "mira"],
            "visibility": "team",
            "shared_with": ["mira"],
        }
    )
    assert draft.labels == ("Note", "Decision")
    assert draft.text == {"title": "a b\ufffd", "summary": " "}
    assert draft.properties == {"k ": ["v ", {"n": 1}], "half": "\ufffd"}
    assert (draft.keywords, draft.status, draft.confidence) == (("auth",), "open", 1.0)
    assert draft.source == Source(repository="r", path="a.md", start_line=3, end_line=3, commit="a" * 40)
    assert (draft.scope, draft.agents, draft.visibility, draft.shared_with) == (
        Scope.SHARED,
        ("iris", "mira"),
        Visibility.TEAM,
        ("mira",),
    )


@pytest.mark.parametrize(
    ("name", "value", "field"),
    [
        ("text", None, "text"),
        ("text", "x", "text"),
        ("text", {}, "text"),
        ("text", {"content": " \u200b", "title": "\0"}, "text"),
        ("text", {"content": 1}, "text.content"),
        ("text", {"content": None}, "text.content"),
        ("text", {"content": "x" * (fields.MAX_TEXT + 1)}, "text.content"),
        ("text", {"body": "x"}, "text.body"),
        ("labels", [], "labels"),
        ("labels", "Note", "labels"),
        ("labels", [""], "labels"),
        ("labels", ["\u200b"], "labels"),
        ("labels", [1], "labels"),
        ("labels", ["x" * 201], "labels"),
        ("labels", [str(number) for number in range(21)], "labels"),
        ("properties", [], "properties"),
        ("properties", {"n": float("nan")}, "properties"),
        ("properties", {"n": 2**63}, "properties"),
        ("properties", {"n": "x" * (64 * 1024)}, "properties"),
        ("keywords", ["x"] * 101, "keywords"),
        ("keywords", [None], "keywords"),
        ("status", "", "status"),
        ("status", "x" * 101, "status"),
        ("status", 1, "status"),
        ("confidence", 1.01, "confidence"),
        ("confidence", -1, "confidence"),
        ("confidence", True, "confidence"),
        ("confidence", float("nan"), "confidence"),
        ("confidence", "0.5", "confidence"),
        ("source", "a.md", "source"),
        ("source", {"repository": "r"}, "source.path"),
        ("source", {**SOURCE, "line": 1}, "source"),
        ("source", {**SOURCE, "commit": "HEAD"}, "source.commit"),
        ("source", {**SOURCE, "start_line": 0}, "source.start_line"),
        ("source", {**SOURCE, "start_line": 2, "end_line": 1}, "source.end_line"),
        ("source", {**SOURCE, "end_line": 1}, "source.end_line"),
        ("scope", "secret", "scope"),
        ("scope", ["public"], "scope"),
        ("agents", "iris", "agents"),
        ("agents", ["a b"], "agents"),
        ("agents", ["iris\0x"], "agents"),
        ("agents", [1], "agents"),
        ("agents", ["a"] * 101, "agents"),
        ("visibility", "public", "visibility"),
        ("visibility", 1, "visibility"),
        ("shared_with", [""], "shared_with"),
    ],
)
def test_what_cannot_be_used_names_its_field(name: str, value: Any, field: str) -> None:
    with pytest.raises(UsageError) as refused:
        read_draft({**TEXT, name: value})
    assert refused.value.field == field


def test_the_largest_values_pass() -> None:
    assert len(read_draft({"text": {"content": "x" * fields.MAX_TEXT}}).text["content"]) == fields.MAX_TEXT
    assert read_draft({**TEXT, "labels": [str(number) for number in range(20)], "confidence": 0}).confidence == 0.0


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("account", "comes from the API key"),
        ("owner_agent", "comes from the API key"),
        ("Owner-Agent", "comes from the API key"),
        ("reader", "comes from the API key"),
        ("deleted_at", "the server alone writes it"),
        ("admission", "the server alone writes it"),
        ("label", "did you mean 'labels'?"),
        ("zzz", "known fields: labels"),
    ],
)
def test_other_fields_are_refused_with_the_reason(name: str, words: str) -> None:
    with pytest.raises(UsageError, match=r"remove|unknown field") as refused:
        refuse_unknown([name], fields.NODE_FIELDS)
    assert words in refused.value.detail and refused.value.field == name


@pytest.mark.parametrize(
    "value", ["", "-a", ".", "a b", "a/b", "é", "x" * 201, "bulk", "0123456789abcdef" * 2, 7, "a\n", "a\0"]
)
def test_ids_that_nobody_may_give(value: Any) -> None:
    with pytest.raises(UsageError) as refused:
        read_new_id(value)
    assert refused.value.field == "id"


def test_ids_that_may_be_given() -> None:
    for value in ("a", "iris:plan-1", "A.b_c", "x" * 200, "0123456789ABCDEF" * 2):
        assert read_new_id(value) == value


# RFC 7396, appendix A.
@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"a": "b"}, ["c"], ["c"]),
        ({"a": "foo"}, None, None),
        ({"a": "foo"}, "bar", "bar"),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_a_merge_patch_is_that_of_the_rfc(target: Any, patch: Any, result: Any) -> None:
    before = repr(target)
    assert merge_patch(target, patch) == result
    assert repr(target) == before


#: Few names, so that a patch and what it is laid over meet.
KEYS = st.sampled_from("abc")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda part: st.lists(part, max_size=3) | st.dictionaries(KEYS, part, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(KEYS, JSON))
def test_a_patch_twice_is_the_patch_once(patch: Any) -> None:
    once = merge_patch({"a": {"b": 1}}, patch)
    assert merge_patch(once, patch) == once


def test_a_node_is_read_back_from_its_fields() -> None:
    node = make_node(
        text={"title": "t"}, properties={"a": [1]}, agents=(), scope=Scope.PUBLIC, path="a.md", visibility=Visibility.TEAM
    )
    draft = read_draft(fields_of(node))
    assert (draft.labels, draft.text, draft.properties, draft.agents) == (node.labels, node.text, node.properties, ())
    assert (draft.scope, draft.source, draft.visibility) == (node.scope, node.source, node.visibility)
