"""Bytes of a file to text: never a failure, never a silent loss."""

from __future__ import annotations

import codecs
import re
from dataclasses import dataclass

#: PEP 263, applied to any file with "#" comments: it is what editors go by as well.
_COOKIE = re.compile(rb"^[ \t\f]*#.*?coding[:=][ \t]*([-\w.]+)")
#: The longer mark first: the UTF-16 one is the beginning of the UTF-32 one.
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
#: C0 control characters that carry nothing in text: all but tab, line feed and form feed ("\r" is gone by then).
_CONTROLS = re.compile("[\x00-\x08\x0b\x0e-\x1f]")
_BYTE_ORDER_MARK = "\ufeff"
_LINE_END = re.compile("\r\n?")


@dataclass(frozen=True, slots=True)
class Decoded:
    """A file's text: lines end with "\\n"; no byte order mark, no control character but tab, line feed and form feed."""

    text: str
    #: Codec that read it.
    encoding: str
    #: Whether `encoding` is a guess, because nothing in the file says it and UTF-8 does not fit; or some bytes did not fit.
    fallback: bool
    #: Control characters that were taken out, each for a space.
    removed: int


def decode(raw: bytes) -> Decoded:
    """`raw` as text, by byte order mark, else UTF-8, else coding line, else Windows-1252 or Latin-1.

    The normal form of the text is kept as it is: composed and decomposed letters stay different. Line numbers are kept.
    """
    text, encoding, fallback = _characters(raw)
    text = _LINE_END.sub("\n", text).replace(_BYTE_ORDER_MARK, "")
    # A space, not nothing: a NUL often stands where a glyph had no character, and the words around it are two words.
    text, removed = _CONTROLS.subn(" ", text)
    return Decoded(text=text, encoding=encoding, fallback=fallback, removed=removed)


def _characters(raw: bytes) -> tuple[str, str, bool]:
    for mark, encoding in _MARKS:
        if raw.startswith(mark):
            return _marked(raw[len(mark) :], encoding)
    try:
        return raw.decode("utf-8"), "utf-8", False
    except UnicodeDecodeError:
        pass
    declared = _declared(raw)
    if declared is not None:
        try:
            return raw.decode(declared), declared, False
        except (UnicodeError, ValueError):
            pass
    try:
        return raw.decode("cp1252"), "cp1252", True
    except UnicodeDecodeError:  # five bytes have no character there; each byte has one in Latin-1
        return raw.decode("latin-1"), "latin-1", True


def _marked(body: bytes, encoding: str) -> tuple[str, str, bool]:
    try:
        return body.decode(encoding), encoding, False
    except UnicodeDecodeError:
        return body.decode(encoding, "replace"), encoding, True


def _declared(raw: bytes) -> str | None:
    """The codec named in one of the first two lines, if it is one that turns bytes into characters of a script."""
    for line in raw.split(b"\n", 2)[:2]:
        match = _COOKIE.match(line)
        if match:
            return _script_codec(match[1].decode("ascii", "replace"))
    return None


def _script_codec(name: str) -> str | None:
    """None for an unknown name, and for codecs that are no character sets: rot13, idna, unicode_escape..."""
    try:
        found = codecs.lookup(name).name
        plain = b"az09".decode(found) == "az09"
    except (LookupError, UnicodeError, ValueError):
        return None
    escapes = {"unicode_escape", "raw_unicode_escape", "unicode-escape", "raw-unicode-escape", "idna", "punycode", "utf-7"}
    return found if plain and found not in escapes else None
