"""Characters, blank texts and identifiers: one answer for ingest, indexes and answers."""

from __future__ import annotations

import pytest

from cluster.text import ends_syllable, extends, identifier_parts, is_blank, is_wordless


@pytest.mark.parametrize(
    ("text", "blank", "wordless"),
    [
        ("", True, True),
        (" \n\t\u00a0\u3000", True, True),
        ("\u200b\x00\ufeff\u2060\u00ad", True, True),
        ("\ud83d", True, True),
        ("\u3164", True, False),
        ("a\ufe0f"[1:], True, False),
        ("\U000e0101", True, False),
        (" . ", False, True),
        ("--- !?", False, True),
        ("\ue000", False, True),
        ("\u200bx", False, False),
        ("+", False, False),
        ("检", False, False),
    ],
)
def test_blank_is_what_cannot_be_seen_and_wordless_what_says_nothing(text: str, blank: bool, wordless: bool) -> None:
    assert is_blank(text) is blank
    assert is_wordless(text) is wordless


@pytest.mark.parametrize(
    ("word", "parts"),
    [
        ("parseHTMLResponse2", ["parse", "HTML", "Response", "2"]),
        ("parse_config", ["parse", "config"]),
        ("HTTPServer", ["HTTP", "Server"]),
        ("größeMessen", ["größe", "Messen"]),
        ("ЗагрузитьФайл", ["Загрузить", "Файл"]),
        ("__", []),
        ("utf8", ["utf", "8"]),
    ],
)
def test_identifiers_fall_into_their_parts(word: str, parts: list[str]) -> None:
    assert identifier_parts(word) == parts


@pytest.mark.parametrize("char", ["\u0301", "\u093f", "\u20dd", "\U0001f3fd", "\uff9e", "\ufe0f"])
def test_what_belongs_to_the_character_before_it(char: str) -> None:
    assert extends(char)


def test_hangul_letters_that_end_a_syllable() -> None:
    assert [ends_syllable(char) for char in "\u1112\u1161\u11ab한a"] == [False, True, True, False, False]
