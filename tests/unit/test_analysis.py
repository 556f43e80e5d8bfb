import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cluster.config import SETTINGS
from cluster.errors import UsageError
from cluster.index.analysis import (
    DEFAULT,
    MAX_TERM,
    NAMES,
    analysis,
    choose_terms,
    countable_terms,
    fitting,
    runs,
    spaced,
)
from cluster.model.query import TermStatistics
from tests.support.factories import make_node

any_text = st.text(st.characters(), max_size=200) | st.text("aZ9_./:@-\\'+#|é한漢あ🚀\u0301\u200d \ud83d", max_size=60)


@given(any_text)
@example("C++" * 200)
@example("a/" * 400)
def test_any_text_is_cut_into_runs_without_spaces(text: str) -> None:
    for cut in (runs, spaced):
        found, _ = fitting(cut(text))
        assert all(0 < len(run) <= MAX_TERM for run in found)
        assert not any(char.isspace() or "\ud800" <= char <= "\udfff" for run in found for char in run)
    assert not any(char in "|,\x00" for run in runs(text) for char in run)


@given(any_text)
def test_decomposed_and_composed_text_have_the_same_runs(text: str) -> None:
    assert runs(unicodedata.normalize("NFC", text)) == runs(unicodedata.normalize("NFD", text))


@pytest.mark.parametrize("bare", ["word,", "(word)", '"word"', "[word]", "*word*", "word…"[:-1] + ".", "word --", "{word;"])
def test_punctuation_around_a_run_is_cut_off(bare: str) -> None:
    assert [run.strip("./:@\\'-") for run in runs(bare)] == ["word"]


@pytest.mark.parametrize(
    "text", ["", " ", "\t\n", "\u00a0", "\u200b", "\u3000", "\x00", "! * ~ -- && || ?", "\ud83d", "{}[]()"]
)
def test_text_without_words_has_no_run(text: str) -> None:
    assert runs(text) == []


def test_a_run_too_long_for_a_term_is_cut_at_its_punctuation_or_dropped() -> None:
    blob = "QUJDRGVm" * 5000
    assert fitting(runs(f"The gearbox drawing {blob} follows")) == (["The", "gearbox", "drawing", "follows"], 1)
    assert fitting(runs(f"follows {blob}/x")) == (["follows", "x"], 1)
    assert fitting(runs("/".join(["segment"] * 100))) == (["segment"] * 100, 0)
    assert fitting(runs("short " * 1000)) == (["short"] * 1000, 0)
    assert fitting(runs("é" * MAX_TERM + " " + "é" * (MAX_TERM + 1))) == (["é" * MAX_TERM], 1)


def test_a_field_weighs_by_repetition() -> None:
    node = make_node(text={"content": "c", "symbol": "s", "title": "t", "other": "o", "path": "", "summary": "u"})
    assert analysis().weighted_text(node) == ["s", "s", "s", "t", "t", "u", "c"]
    assert analysis("english").weighted_text(node) == ["s", "t", "u", "c"]
    assert analysis().weighted_text(make_node(text={})) == []


def test_the_analyzers_of_the_configuration_are_those_that_exist() -> None:
    (setting,) = [setting for setting in SETTINGS if setting.key == "lexical.analyzer"]
    assert (setting.choices, setting.default) == (NAMES, DEFAULT)
    assert len({analysis(name).version for name in NAMES}) == len(NAMES)
    with pytest.raises(UsageError, match="text, english"):
        analysis("german")


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
