import json
import unicodedata
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cluster.index.analysis import (
    FIELD_WEIGHTS,
    MAX_TERM,
    choose_terms,
    countable_terms,
    dropped_words,
    forms,
    weighted_text,
    words,
)
from cluster.model.query import TermStatistics
from tests.support.factories import make_node

GOLDEN = json.loads(Path(__file__, "..", "..", "golden", "analysis.json").resolve().read_text(encoding="utf-8"))

any_text = st.text(st.characters(), max_size=200) | st.text("aZ9_./:@-\\'+#|é한漢あ🚀\u0301\u200d \ud83d", max_size=60)


@pytest.mark.parametrize("case", GOLDEN, ids=[ascii(case["text"])[:40] for case in GOLDEN])
def test_words_are_as_recorded(case: dict[str, object]) -> None:
    assert words(str(case["text"])) == case["words"]


@given(any_text)
@example("C++" * 200)
@example("a/" * 400)
def test_any_text_gives_clean_words(text: str) -> None:
    for word in words(text):
        compounds, simple = forms(word)
        assert 0 < len(word) <= MAX_TERM
        assert all(compounds), word
        assert all(simple), word
        assert not set(compounds) & set(simple)
        for form in (*compounds, *simple):
            assert form == form.casefold() != "_"
            assert not any(char.isspace() or char in "|,\x00" for char in form)


@given(any_text)
def test_decomposed_and_composed_text_have_the_same_words(text: str) -> None:
    assert words(unicodedata.normalize("NFC", text)) == words(unicodedata.normalize("NFD", text))


@given(st.text("aB9_./:@-\\'+#é漢 ", max_size=60), st.text("aB9_./:@-\\'+#é漢 ", max_size=60))
def test_words_do_not_depend_on_what_stands_beside_them(left: str, right: str) -> None:
    assert words(f"{left} {right}") == words(left) + words(right)


@pytest.mark.parametrize(
    ("identifier", "parts"),
    [
        ("parseHTTPResponse2Json", ["parse", "http", "response", "2", "json"]),
        ("HTTPServer", ["http", "server"]),
        ("refresh_token_rotation", ["refresh", "token", "rotation"]),
        ("__init__", ["init"]),
        ("a__b", ["a", "b"]),
        ("apiV2Handler", ["api", "v", "2", "handler"]),
        ("HCA060T", ["hca", "060", "t"]),
        ("oauth2_Client", ["oauth", "2", "client"]),
        ("größeÄndern", ["grösse", "ändern"]),
        ("word", ["word"]),
    ],
)
def test_an_identifier_is_found_whole_and_by_its_parts(identifier: str, parts: list[str]) -> None:
    compounds, simple = forms(identifier)
    assert simple == parts
    assert compounds == ([] if parts == [identifier.casefold()] else [identifier.casefold()])


@pytest.mark.parametrize(
    "bare", ["word,", "(word)", '"word"', "'word'", "word.", "«word»", "word…", "[word]", "*word*", "word’s"]
)
def test_punctuation_around_a_word_leaves_no_trace(bare: str) -> None:
    assert words(bare) == ["word"]
    assert forms("word") == ([], ["word"])


@pytest.mark.parametrize(
    "text", ["", " ", "\t\n", "\u00a0", "\u200b", "\u3000", "\x00", "! * ~ -- && || ?", "***", "\ud83d", "{}[]()"]
)
def test_text_without_words_has_none(text: str) -> None:
    assert words(text) == []


def test_a_word_too_long_for_a_term_is_cut_at_its_punctuation_or_dropped() -> None:
    blob = "QUJDRGVm" * 5000
    assert words(f"The gearbox drawing {blob} follows") == ["The", "gearbox", "drawing", "follows"]
    assert dropped_words(f"The gearbox drawing {blob} follows {blob}/x") == 2
    long_path = "/".join(["segment"] * 100)
    assert words(long_path) == ["segment"] * 100
    assert dropped_words(long_path) == dropped_words("short " * 1000) == 0
    assert words("é" * MAX_TERM + " " + "é" * (MAX_TERM + 1)) == ["é" * MAX_TERM]


def test_a_field_weighs_by_repetition() -> None:
    node = make_node(text={"content": "c", "symbol": "s", "title": "t", "other": "o", "path": "", "summary": "u"})
    assert weighted_text(node) == ["s"] * FIELD_WEIGHTS["symbol"] + ["t"] * FIELD_WEIGHTS["title"] + ["u", "c"]
    assert weighted_text(make_node(text={})) == []


def statistics_of(**frequency: int) -> TermStatistics:
    return TermStatistics(documents=1000, tokens=9000, document_frequency=frequency)


def test_few_terms_are_all_kept_in_their_order() -> None:
    assert choose_terms(["b", "a", "b", "zero"], statistics_of(a=5, b=1)) == (("b", "a", "zero"), ())


def test_of_too_many_terms_the_rarest_that_occur_are_kept() -> None:
    terms = ["common", "absent", "rare", "tie2", "tie1", "rare"]
    found = statistics_of(common=900, rare=1, tie1=7, tie2=7)
    assert choose_terms(terms, found, limit=2) == (("rare", "tie1"), ("common", "absent", "tie2"))
    assert choose_terms(terms, found, limit=4) == (("common", "rare", "tie2", "tie1"), ("absent",))


def test_the_ends_of_a_question_and_its_longest_terms_are_counted() -> None:
    terms = ["q", "a", "bb", "cccc", "d", "eeee", "fff", "cccc", "g", "h"]
    assert countable_terms(terms, limit=4) == (["q", "cccc", "eeee", "h"], 5)
    assert countable_terms(terms, limit=5) == (["q", "cccc", "eeee", "fff", "h"], 4)
    assert countable_terms([*terms, *terms], limit=9) == (["q", "a", "bb", "cccc", "d", "eeee", "fff", "g", "h"], 0)


@given(st.lists(st.text("ab", max_size=4)), st.integers(4, 12))
def test_countable_terms_are_bounded_distinct_and_in_order(terms: list[str], limit: int) -> None:
    kept, cut = countable_terms(terms, limit)
    distinct = list(dict.fromkeys(terms))
    assert len(kept) == min(limit, len(distinct)) and len(kept) + cut == len(distinct)
    assert kept == [term for term in distinct if term in set(kept)]
    assert distinct[:1] == kept[:1] and distinct[-1:] == kept[-1:]
