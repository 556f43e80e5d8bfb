import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.text import joins
from jobs.chunk import LineIndex, Span, split_text

FAMILY = "👩\u200d👩\u200d👧\u200d👦"


def _parts(text: str, limit: int) -> list[str]:
    return [text[start:end] for start, end in split_text(text, limit)]


def test_cuts_at_the_best_place_that_fills_the_chunk() -> None:
    assert _parts("aa bb\n\ncc dd\nee", 12) == ["aa bb\n\n", "cc dd\nee"]
    assert _parts("aaaa bb\ncc dd ee", 12) == ["aaaa bb\n", "cc dd ee"]
    assert _parts("One two. Three four five", 20) == ["One two. ", "Three four five"]
    assert _parts("one two three four", 10) == ["one two ", "three four"]
    assert _parts("混合检索系统。使用倒排索引", 10) == ["混合检索系统。", "使用倒排索引"]


def test_an_early_blank_line_does_not_make_a_tiny_chunk() -> None:
    assert _parts("a\n\n" + "word " * 20, 50)[0] == "a\n\n" + "word " * 9


def test_one_enormous_line_ends_and_stays_under_the_limit() -> None:
    text = " " + "a" * 20_000 + "b" + "lorem ipsum " * 2_500 + "zuletzt"
    parts = _parts(text, 1200)
    assert "".join(parts) == text
    assert max(map(len, parts)) <= 1200
    assert min(map(len, parts[:-1])) > 300
    assert parts[-1].endswith("zuletzt")


@pytest.mark.parametrize("char", ["\u0301", "🇩", "a", "\n"])
def test_a_long_text_of_one_awkward_character_is_cut_at_every_limit(char: str) -> None:
    assert [end - start for start, end in split_text(char * 200_000, 1000)] == [1000] * 200


@pytest.mark.parametrize("whole", [FAMILY, "e\u0301", "🇩🇪", "👍🏽", "한", "กำ", "❤\ufe0f", "न\u093f"])
@pytest.mark.parametrize("pad", range(8))
def test_a_character_of_many_code_points_stays_whole(whole: str, pad: int) -> None:
    text = "a" * (10 - pad) + whole + " and some words"
    parts = _parts(text, 10)
    assert "".join(parts) == text
    assert any(whole in part for part in parts)


def test_flags_are_cut_between_pairs() -> None:
    assert _parts("🇩🇪🇫🇷🇮🇹", 3) == ["🇩🇪", "🇫🇷", "🇮🇹"]


def test_a_mark_after_a_space_or_a_line_end_does_not_start_a_chunk() -> None:
    for text in ("abcdef \u0301ghi", "abcdef\n\u0301ghi"):
        assert all(part[0] != "\u0301" for part in _parts(text, 7))


def test_a_cluster_longer_than_the_limit_is_cut_rather_than_endless() -> None:
    text = "z" + "\u0301" * 25
    assert "".join(_parts(text, 10)) == text
    assert max(map(len, _parts(text, 10))) == 10


def test_a_limit_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="max_chars"):
        split_text("a", 0)


_ALPHABET = st.sampled_from(["a", "b", " ", "\n", ".", "。", "\u0301", "\u200d", "👩", "🇩", "ᄒ", "ᅡ", "한", "\r", "\f"])


@given(st.text(_ALPHABET, max_size=120), st.integers(1, 30))
@settings(deadline=None, max_examples=100)
def test_chunks_join_to_the_text_within_the_limit_and_cut_no_character(text: str, limit: int) -> None:
    spans = split_text(text, limit)
    assert "".join(text[start:end] for start, end in spans) == text
    assert all(0 < end - start <= limit for start, end in spans)
    for start, _end in spans[1:]:
        if joins(text, start):
            previous = next(span for span in spans if span.end == start)
            assert all(joins(text, offset) for offset in range(previous.start + 1, start))
            assert previous.end - previous.start == limit


def test_line_numbers_count_line_feeds_only() -> None:
    text = "one\ftwo\u2028three\nfour\n\nfive\n"
    index = LineIndex(text)
    assert [index.line_of(text.index(word)) for word in ("one", "three", "four", "five")] == [1, 1, 2, 4]
    assert index.lines_of(text, Span(0, len(text))) == (1, 4)
    assert index.lines_of(text, Span(text.index("four"), text.index("five"))) == (2, 2)
    assert index.lines_of("\n\n", Span(0, 2)) == (1, 1)


def test_nothing_has_no_chunk() -> None:
    assert split_text("", 10) == []
