"""The analyzers: how text becomes terms, in the names of Lucene's own parts (CustomAnalyzer's factories).

A text is read twice, and both readings go into one bag of terms:

- `code` keeps the spelling, but for case. An identifier gives itself, the segments of a path or a qualified name, and its
  parts: `src/lib/httpServer.py` gives `src/lib/httpserver.py`, `src`, `lib`, `httpserver.py`, `httpserver`, `http`, `server`,
  `py`.
- `prose` goes on from there: accents are folded, then English endings are stemmed, which makes `cafe` find `café` and `flow`
  find `flows`. Folding precedes stemming, or `Manutenção` and `Manutencao` would be stemmed apart.

So a plain word counts two, one for each reading (both for one term where they agree), and an exact spelling ranks before
another form of the same word. There are no stop words.

The tokenizer is a pattern, since no other part of Lucene's knows both kinds of text: the standard tokenizer makes `c` of `C++`
and cuts paths, and the word delimiter filter leaves `HTTPServer` in one piece and knows no segments. A token is a word with the
punctuation inside it (`user@example.org`, `v2.1.0`, `std::vector`) and without what surrounds it, a name such as `C++`, `C#`
and `.NET`, an emoji, or a pair of neighbouring Chinese, Japanese or Korean characters, as in Lucene's CJK analyzer.

`english` is Anserini's DefaultEnglishAnalyzer, for rankings that compare with published ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from cluster.index import jvm

#: A part of an analyzer: Lucene's name for it, and its options.
Part = tuple[str, Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class Chain:
    """An analyzer as Lucene's CustomAnalyzer puts it together."""

    tokenizer: Part
    filters: tuple[Part, ...] = ()
    char_filters: tuple[Part, ...] = field(default=())


_CJK = (
    r"\u1100-\u11ff\u3005-\u3007\u3021-\u3029\u3031-\u3035\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff"
    r"\u3400-\u4dbf\u4e00-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\x{1b000}-\x{1b16f}\x{20000}-\x{323af}"
)
_EMOJI = r"[\u2600-\u27bf\x{1f1e6}-\x{1f1ff}\x{1f300}-\x{1faff}]"
#: Letters, digits, marks (without which Indic words would be cut at their vowels) and the underscore.
_CHAR = rf"[\p{{L}}\p{{M}}\p{{N}}_&&[^{_CJK}]]"
#: After underscores something that can stand alone: folding may leave nothing of a mark.
_SOME = rf"(?=_*+[\p{{L}}\p{{N}}&&[^{_CJK}]])"
#: Punctuation that holds a word together where it has a word character on both sides.
_JOINT = "(?:::|:/{1,3}|[./@:-])"
_WORD = f"{_SOME}{_CHAR}+(?:{_JOINT}{_CHAR}+)*"
_NAME = rf"[A-Za-z](?:\+\+|\#)(?![A-Za-z_+\#])|\.NET(?!{_CHAR})"
_PAIR = f"[{_CJK}]{{2}}|(?<![{_CJK}])[{_CJK}](?![{_CJK}])"
#: Possessives and clitics say nothing about a text: they are read and left out.
_CLITIC = rf"(?:['\u2019](?i:s|t|re|ve|ll|d|m)(?!{_CHAR}))?"
#: Group 1 is the token. A pair is read on from its second character, so that pairs overlap.
_TOKEN = rf"(?=({_PAIR}|{_NAME}|{_WORD}|{_EMOJI}))(?:[{_CJK}]|\1{_CLITIC})"

_UPPER, _LOWER = r"[\p{Lu}\p{Lt}]", r"[\p{L}\p{M}&&[^\p{Lu}\p{Lt}]]"
#: A run of capitals leaves its last one to the small letters that follow: `HTTPServer` is `HTTP` and `Server`.
_IDENTIFIER_PART = rf"{_UPPER}+(?!{_LOWER})|{_UPPER}?{_LOWER}+|\p{{N}}+"


def _segment(separators: str) -> str:
    """At the start of a segment, the whole of it, if it has a letter or digit: it stays to be read."""
    other = f"[^{separators}]"
    return rf"(?:(?<!{other})(?=({other}*?[\p{{L}}\p{{N}}]{other}*)))?"


#: At the start of each identifier part: the segments that start there, outermost first, and the part. Names have none.
_SPELT_OUT = (
    rf"(?<!^\.[A-Z]{{0,2}})(?![A-Za-z][+\#])"
    rf"{_segment('/:@')}{_segment('/:@.')}{_segment('/:@.-')}_*({_IDENTIFIER_PART})"
)

_BACKSLASHES: Part = ("patternReplace", {"pattern": r"\\+", "replacement": "/"})
_TOKENIZER: Part = ("pattern", {"pattern": _TOKEN, "group": "1"})
_PARTS: Part = ("patternCaptureGroup", {"pattern": _SPELT_OUT, "preserve_original": "true"})
#: Marks that no letter took up; what is left of them after folding would keep a word from being found bare.
_MARKS: Part = ("patternReplace", {"pattern": r"(?<=.)[\u0300-\u036f]+", "replacement": ""})

CODE = Chain(_TOKENIZER, (_PARTS, ("lowercase", {}), ("removeDuplicates", {})), (_BACKSLASHES,))
#: From the terms of `code` to those of `prose`.
NORMAL = Chain(("whitespace", {"maxTokenLen": "1024"}), (_MARKS, ("asciiFolding", {}), ("porterStem", {})))
PROSE = Chain(CODE.tokenizer, CODE.filters + NORMAL.filters, CODE.char_filters)


@cache
def analyzer(name: str) -> Any:
    """Lucene's Analyzer called `name`: "code", "normal", "prose" (which is both, one after the other) or "english"."""
    return _ANALYZERS[name]()


def build(chain: Chain) -> Any:
    """Lucene's Analyzer made of the parts of `chain`."""
    builder = jvm.java().CustomAnalyzer.builder()
    name, options = chain.tokenizer[0], _java_map(chain.tokenizer[1])
    builder.withTokenizer(name, options)
    for name, values in chain.char_filters:
        options = _java_map(values)
        builder.addCharFilter(name, options)
    for name, values in chain.filters:
        options = _java_map(values)
        builder.addTokenFilter(name, options)
    return builder.build()


def _java_map(values: Mapping[str, str]) -> Any:
    converted = jvm.java().HashMap()
    for key, value in values.items():
        converted.put(key, value)
    return converted


def _english() -> Any:
    return jvm.java().DefaultEnglishAnalyzer.newDefaultInstance()


_ANALYZERS: Mapping[str, Callable[[], Any]] = {
    "code": lambda: build(CODE),
    "normal": lambda: build(NORMAL),
    "prose": lambda: build(PROSE),
    "english": _english,
}


def tokens(text: str, analyzer_of: Any) -> list[str]:
    """The tokens of `text`, in one call of Java.

    The list prints as "[a, b]", one call instead of one for each element: no token may hold a space.
    """
    printed = str(jvm.java().AnalyzerUtils.analyze(analyzer_of, text).toString())[1:-1]
    return printed.split(", ") if printed else []
