"""What text is made of, one answer for ingest, indexes and answers: whole characters, blank texts, identifiers. Pure."""

from __future__ import annotations

import re
import unicodedata

_ZERO_WIDTH_JOINER = "\u200d"
_EXTENDING_CATEGORIES = frozenset({"Mn", "Mc", "Me"})
#: Drawn as nothing although Unicode counts them as letters, symbols or marks.
_INVISIBLE = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
_NOTHING_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zs", "Zl", "Zp"})
_WORDLESS_CATEGORIES = frozenset("ZCP")
#: Parts of an identifier, over its ASCII shape.
_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")


# --- characters as a reader counts them ---------------------------------------------------------------------------------------


def joins(text: str, offset: int, since: int = 0) -> bool:
    """Whether the characters on both sides of `offset` belong to one grapheme cluster (UAX 29, without prepended marks).

    `since`: an offset that is known to be a boundary; nothing before it is looked at.
    """
    if not 0 < offset < len(text):
        return False
    before, after = text[offset - 1], text[offset]
    if before.isascii() and after.isascii():
        return before == "\r" and after == "\n"
    if after == _ZERO_WIDTH_JOINER or before == _ZERO_WIDTH_JOINER or extends(after):
        return True
    if _is_regional(before) and _is_regional(after):
        return _regionals(text, since, offset) % 2 == 1
    return _is_jamo(before) and _is_jamo(after) and not "\u1100" <= after <= "\u115f"


def extends(char: str) -> bool:
    """Whether `char` belongs to the character before it, whatever that is: marks, skin tones, half-width voiced marks, ..."""
    return (
        unicodedata.category(char) in _EXTENDING_CATEGORIES
        or char in "\u200c\u0e33\u0eb3"
        or "\U0001f3fb" <= char <= "\U0001f3ff"  # skin tones
        or "\U000e0020" <= char <= "\U000e007f"  # tags of flag sequences
        or "\uff9e" <= char <= "\uff9f"  # half-width voiced marks
    )


def ends_syllable(char: str) -> bool:
    """Whether `char` is a vowel or final consonant of decomposed Hangul, which belongs to the letter before it."""
    return "\u1160" <= char <= "\u11ff" or "\ud7b0" <= char <= "\ud7fb"


def _is_regional(char: str) -> bool:
    return "\U0001f1e6" <= char <= "\U0001f1ff"


def _regionals(text: str, since: int, offset: int) -> int:
    count = 0
    while count < offset - since and _is_regional(text[offset - 1 - count]):
        count += 1
    return count


def _is_jamo(char: str) -> bool:
    """Conjoining Hangul letters, and precomposed syllables, which trailing letters may follow."""
    return "\u1100" <= char <= "\u11ff" or "\ua960" <= char <= "\ua97c" or "\uac00" <= char <= "\ud7fb"


# --- characters that steer what shows them ------------------------------------------------------------------------------------


def escaped_line(text: str) -> str:
    """`text` on one line: line breaks and whatever else steers a terminal as escapes such as \\n and \\x1b."""
    return text if text.isprintable() else "".join(map(_escaped, text))


def printable(text: str) -> str:
    """As `escaped_line`, with line breaks (\\n alone) and tabs as they are."""
    return text if text.isprintable() else "".join(char if char in "\n\t" else _escaped(char) for char in text)


def _escaped(char: str) -> str:
    # Joiners and other format characters are part of words and emoji in many scripts; only what steers a terminal goes.
    if char.isprintable() or (ord(char) >= 0xA0 and not 0xD800 <= ord(char) <= 0xDFFF and char not in "\u2028\u2029"):
        return char
    return char.encode("unicode_escape", "surrogatepass").decode("ascii")


# --- texts that say nothing ---------------------------------------------------------------------------------------------------


def is_blank(text: str) -> bool:
    """Whether nothing of `text` can be seen: white space, control and zero-width characters, half surrogate pairs."""
    return all(_is_nothing(char) for char in text)


def _is_nothing(char: str) -> bool:
    if char.isspace() or char in _INVISIBLE or unicodedata.category(char) in _NOTHING_CATEGORIES:
        return True
    return "\ufe00" <= char <= "\ufe0f" or "\U000e0100" <= char <= "\U000e01ef"  # variation selectors


def is_wordless(text: str) -> bool:
    """Whether `text` is only white space, punctuation and characters that are not assigned or not seen: wider than blank."""
    return all(unicodedata.category(char)[0] in _WORDLESS_CATEGORIES for char in text)


# --- identifiers --------------------------------------------------------------------------------------------------------------


def identifier_parts(word: str) -> list[str]:
    """The parts of an identifier in order, with their case: `parseHTMLResponse2` is parse, HTML, Response, 2."""
    shape = word if word.isascii() else "".join(map(_shape, word))
    return [word[part.start() : part.end()] for part in _PART.finditer(shape)]


def _shape(char: str) -> str:
    if char == "_":
        return char
    if char.isdecimal():
        return "0"
    return "A" if char.isupper() or char.istitle() else "a"
