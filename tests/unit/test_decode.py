import codecs

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.decode import decode


@pytest.mark.parametrize("mark", [b"", codecs.BOM_UTF8])
def test_utf8_with_and_without_a_mark(mark: bytes) -> None:
    decoded = decode(mark + "# Café\n".encode())
    assert (decoded.text, decoded.encoding, decoded.fallback, decoded.removed) == ("# Café\n", "utf-8", False, 0)


@pytest.mark.parametrize(
    ("mark", "encoding"),
    [
        (codecs.BOM_UTF16_LE, "utf-16-le"),
        (codecs.BOM_UTF16_BE, "utf-16-be"),
        (codecs.BOM_UTF32_LE, "utf-32-le"),
        (codecs.BOM_UTF32_BE, "utf-32-be"),
    ],
)
def test_wide_encodings_are_known_by_their_mark(mark: bytes, encoding: str) -> None:
    decoded = decode(mark + "def wide():\r\n    'é👍'\r\n".encode(encoding))
    assert (decoded.text, decoded.encoding, decoded.fallback) == ("def wide():\n    'é👍'\n", encoding, False)


def test_a_damaged_wide_file_is_read_and_called_a_guess() -> None:
    decoded = decode(codecs.BOM_UTF16_LE + "abc".encode("utf-16-le") + b"\x41")
    assert decoded.text.startswith("abc")
    assert decoded.fallback


def test_a_coding_line_names_the_encoding() -> None:
    source = "# -*- coding: latin-1 -*-\ndef café_total(): pass\n"
    decoded = decode(source.encode("latin-1"))
    assert (decoded.text, decoded.encoding, decoded.fallback) == (source, "iso8859-1", False)
    second = "#!/usr/bin/python\n# vim: set fileencoding=koi8-r :\nимя = 1\n"
    assert decode(second.encode("koi8-r")).text == second


@pytest.mark.parametrize("name", ["rot13", "unicode_escape", "idna", "base64", "no-such", "utf-8", "undefined", "utf-7"])
def test_a_coding_line_that_is_no_character_set_is_not_followed(name: str) -> None:
    source = f"# coding: {name}\ncafé = '\\u0041'\n"
    decoded = decode(source.encode("latin-1"))
    assert (decoded.text, decoded.encoding, decoded.fallback) == (source, "cp1252", True)


def test_other_bytes_keep_every_word_whole_and_count_as_a_guess() -> None:
    decoded = decode(b"def caf\xe9_total(x):\n    return '\x80 \x93q\x94'\n")
    assert decoded.text == "def café_total(x):\n    return '€ “q”'\n"
    assert decoded.fallback
    assert decode(b"caf\xe9 \x81").encoding == "latin-1"


def test_line_ends_become_one_kind_and_line_numbers_stay() -> None:
    assert decode(b"a\r\nb\rc\n\r\nd").text == "a\nb\nc\n\nd"


def test_control_characters_part_words_and_are_counted() -> None:
    decoded = decode(b"F\x0013 alpha\x00omega\tgamma\x1b[0m\x0c\x0bend\n")
    assert decoded.text == "F 13 alpha omega\tgamma [0m\x0c end\n"
    assert decoded.removed == 4


def test_byte_order_marks_inside_are_removed() -> None:
    assert decode("a\ufeffb\n\ufeff# c".encode()).text == "ab\n# c"


def test_normal_forms_are_kept() -> None:
    assert decode("re\u0301sume\u0301 résumé".encode()).text == "re\u0301sume\u0301 résumé"


@given(st.binary(max_size=200))
@settings(deadline=None, max_examples=100)
def test_any_bytes_become_storable_text(raw: bytes) -> None:
    decoded = decode(raw)
    decoded.text.encode("utf-8")
    assert not set(decoded.text) & {chr(code) for code in range(32) if chr(code) not in "\t\n\f"}
