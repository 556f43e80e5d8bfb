"""From text to terms: one definition for documents and questions.

Three steps, none of which has a syntax, so that any text is legal input:

1. `words` normalises (NFKC, invisible characters out) and cuts text into words. A word keeps the punctuation inside it
   (`src/lib/util.py`, `node.js`, `std::vector`, `user@example.org`, `v2.1.0`) and loses what surrounds it, except in names such
   as `C++`, `C#` and `.NET`. Runs of Chinese, Japanese and Korean become overlapping pairs, as in Lucene's CJK analyzer.
2. `forms` spells a word out: whole, by segments (`scripts/deploy.sh`: `deploy.sh`, `scripts`, `deploy`, `sh`) and by the parts
   of identifiers (`parseHTMLResponse2`: `parse`, `html`, `response`, `2`), all case-folded. Cutting precedes the folding.
3. A Lucene chain (ASCII folding, then Porter stemming) gives each simple form a second, normal form, which makes `cafe` find
   `café` and `flow` find `flows`. Folding precedes stemming, or `Manutenção` and `Manutencao` would be stemmed apart.

A word counts two, one for its exact and one for its normal form (both for the same term where they are equal), so an exact
spelling ranks first without stemmed words weighing more than others; a compound form counts two as well. No stop words.
Steps 1 and 2 are plain Python because Lucene's own parts cannot do them: the jar has no ICU, and its word delimiter leaves
`HTTPServer` in one piece. Words follow Zipf's law, so what a word spells is remembered and the JVM sees each word once.

Terms are a bag: no positions. Field weights are replication, the original simple form of BM25F (Robertson, Zaragoza, Taylor
2004, "Simple BM25 extension to multiple weighted fields"): a row has one length and one frequency a term, which is what keeps
distributed scores exact.

Measured on plain BM25, one row a document, nDCG@10 on Cranfield, CACM and CoSQA: stems alone .359/.433/.363 (k1 0.9, b 0.4, as
Anserini), exact and normal form for one each .347/.422/.360, the halves used here .367/.445/.364; with k1 1.2 a word and b 0.6
.378/.449/.383.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any

from cluster.index import jvm
from cluster.model.nodes import Node
from cluster.model.query import TermStatistics
from cluster.text import identifier_parts

#: Changes whenever the same text could give other terms or weights; an index of another version must be rebuilt.
ANALYZER_VERSION = "text-1"

#: How often the terms of a text property count.
FIELD_WEIGHTS = {"symbol": 3, "title": 2, "path": 1, "summary": 1, "content": 1}

#: Longest term in code points. A longer word (base64, minified code) is cut at its punctuation; a longer piece is dropped.
MAX_TERM = 255
#: Most distinct terms that are searched for: below Lucene's limit of clauses, and enough for a pasted page.
MAX_QUERY_TERMS = 256
#: Most distinct terms whose rows are counted to find the rarest, each about 40 us of a shard's time; 1,000 words or so.
MAX_COUNTED_TERMS = 2048

#: BM25's parameters, part of the definition: with a word counting two, K1 is 1.2 a word.
K1 = 2.4
B = 0.6

#: Words remembered; when full, all are forgotten. About 500 bytes each.
_MEMORY = 50_000

_CJK = (
    "\u1100-\u11ff\u3005-\u3007\u3021-\u3029\u3031-\u3035\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\U0001b000-\U0001b16f\U00020000-\U000323af"
)
_EMOJI = "\u2600-\u27bf\U0001f1e6-\U0001f1ff\U0001f300-\U0001faff"
#: Punctuation that holds a word together where it has a word character on both sides.
_JOINT = r"(?:::|:[\\/]{1,3}|[./@:\\-])"
#: Possessives and clitics say nothing about a text: they are read and left out.
_CLITIC = "(?:['\u2019](?:s|t|re|ve|ll|d|m|S|T|RE|VE|LL|D|M)(?!CHAR))?"
#: Soft hyphen, joiners, direction marks, variation selectors, byte-order mark: they part no words and are not seen.
_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u180b-\u180f\u200c-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff\U000e0000-\U000e0fff]"
)
_MARK = re.compile("[\u0300-\u036f]")
_SURROGATE = re.compile("[\ud800-\udfff]")

#: Levels at which a word is cut further, outermost first.
_JOINTS = re.compile(r"[./@:\\-]+")
_OVERLONG = re.compile(rf"\S{{{MAX_TERM + 1}}}")
_LEVELS = (re.compile(r"[/:@]+"), re.compile(r"\.+"), re.compile(r"-+"))


def words(text: str) -> list[str]:
    """The words of `text` in order, with their case. Any text is legal, lone surrogates and control characters too."""
    found = _cut(text)
    if max(map(len, found), default=0) <= MAX_TERM:
        return found
    return [piece for word in found for piece in _pieces(word) if len(piece) <= MAX_TERM]


def dropped_words(text: str) -> int:
    """How many pieces of `text` are no word because they are longer than MAX_TERM."""
    if _OVERLONG.search(text) is None:
        return 0
    return sum(len(piece) > MAX_TERM for word in _cut(text) for piece in _pieces(word))


def _pieces(word: str) -> list[str]:
    return [word] if len(word) <= MAX_TERM else [piece for piece in _JOINTS.split(word) if piece]


def _cut(text: str) -> list[str]:
    if text.isascii():
        return [name or plain for name, plain in _ascii_pattern().findall(text)]
    text = unicodedata.normalize("NFKC", _INVISIBLE.sub("", _SURROGATE.sub(" ", text)))
    found: list[str] = []
    for name, plain, run, symbol in _unicode_pattern().findall(text):
        if run:
            found.extend([run[at : at + 2] for at in range(len(run) - 1)] or [run])
        else:
            found.append(name or plain or symbol)
    return found


@cache
def _ascii_pattern() -> re.Pattern[str]:
    return re.compile(_word("[A-Za-z0-9_]"))


@cache
def _unicode_pattern() -> re.Pattern[str]:
    # `\w` leaves combining marks out, which would cut the words of Indic and other scripts at their vowels.
    marks = "".join(chr(code) for code in range(0x300, 0x20000) if unicodedata.category(chr(code))[0] == "M")
    char = rf"(?:[^\W{_CJK}]|[{marks}])"
    return re.compile(f"{_word(char)}|([{_CJK}]+)|([{_EMOJI}])")


def _word(char: str) -> str:
    name = rf"([A-Za-z](?:\+\+|\#)(?![A-Za-z_+\#])|\.NET(?!{char}))"
    return rf"{name}|({char}+(?:{_JOINT}{char}+)*){_CLITIC.replace('CHAR', char)}"


def forms(word: str) -> tuple[list[str], list[str]]:
    """How `word` is spelt out, case-folded and without repeats: (compound forms, simple forms).

    A compound form is searched for as it is; a simple one also by its normal form.
    """
    compounds: dict[str, None] = {}
    simple: dict[str, None] = {}
    _spell(word.replace("\\", "/"), 0, compounds, simple)
    return [form for form in compounds if form not in simple], list(simple)


def _spell(word: str, level: int, compounds: dict[str, None], simple: dict[str, None]) -> None:
    if word.strip("_"):
        compounds[word.casefold()] = None
    for at in range(level, len(_LEVELS)):
        pieces = [piece for piece in _LEVELS[at].split(word) if piece]
        if len(pieces) > 1:
            for piece in pieces:
                _spell(piece, at + 1, compounds, simple)
            return
    for part in identifier_parts(word):
        simple[part.casefold()] = None


def _spelling(found: Iterable[str]) -> dict[str, dict[str, int]]:
    """word -> its terms and how often each counts, for at least the words `found`."""
    missing = [word for word in found if word not in _known]
    if missing:
        if len(_known) + len(missing) > _MEMORY:
            _known.clear()
            missing = list(found)
        _learn(missing)
    return _known


_known: dict[str, dict[str, int]] = {}


def _learn(missing: Sequence[str]) -> None:
    spelt = {word: forms(word) for word in missing}
    simple = list(dict.fromkeys(form for _, parts in spelt.values() for form in parts))
    normal = dict(zip(simple, _normal_forms(simple), strict=True))
    for word, (compounds, parts) in spelt.items():
        terms = dict.fromkeys(compounds, 2)
        for form in (form for part in parts for form in (part, normal[part])):
            terms[form] = terms.get(form, 0) + 1
        _known[word] = terms


def _normal_forms(simple: Sequence[str]) -> list[str]:
    """Folded to ASCII where possible, then stemmed; one for each of `simple`, none of which holds a space."""
    if not simple:
        return []
    java = jvm.java()
    # Folding handles composed letters; marks that no letter took up (as in a folded "İ") go first.
    bare = [_MARK.sub("", form) or form for form in simple]
    # The list prints as "[a, b]", one call instead of one for each element; no token can hold a comma or a space.
    return str(java.AnalyzerUtils.analyze(_normalizer(), " ".join(bare)).toString())[1:-1].split(", ")


@cache
def _normalizer() -> Any:
    return chain("whitespace", {"maxTokenLen": str(4 * MAX_TERM)}, ("asciiFolding", {}), ("porterStem", {}))


def chain(tokenizer: str, options: Mapping[str, str], *filters: tuple[str, Mapping[str, str]]) -> Any:
    """A Lucene analyzer from the names of its parts, as in Lucene's CustomAnalyzer."""
    java = jvm.java()

    def java_map(values: Mapping[str, str]) -> Any:
        converted = java.HashMap()
        for key, value in values.items():
            converted.put(key, value)
        return converted

    builder = java.CustomAnalyzer.builder()
    tokenizer_options = java_map(options)
    builder.withTokenizer(tokenizer, tokenizer_options)
    for name, values in filters:
        filter_options = java_map(values)
        builder.addTokenFilter(name, filter_options)
    return builder.build()


def analyse(text: str) -> list[str]:
    """The distinct terms of a question, in order; empty when it holds no word. Starts the JVM if a word is new."""
    if len(text) <= 1000:
        return list(_analyse_short(text))
    return _distinct_terms(text)


@lru_cache(maxsize=4096)
def _analyse_short(text: str) -> tuple[str, ...]:
    return tuple(_distinct_terms(text))


def _distinct_terms(text: str) -> list[str]:
    found = dict.fromkeys(words(text))
    known = _spelling(found)
    return list(dict.fromkeys(term for word in found for term in known[word]))


def row_terms(node: Node) -> dict[str, int]:
    """The terms of `node`'s row and how often each counts. Their sum is the row's length; empty for a row without words."""
    found = Counter(word for text in weighted_text(node) for word in words(text))
    known = _spelling(found)
    terms: dict[str, int] = {}
    for word, times in found.items():
        for term, count in known[word].items():
            terms[term] = terms.get(term, 0) + times * count
    return terms


def weighted_text(node: Node) -> list[str]:
    """The texts of `node` that are searched, each as often as its field weighs."""
    return [text for name, weight in FIELD_WEIGHTS.items() if (text := node.text.get(name)) for _ in range(weight)]


def countable_terms(terms: Iterable[str], limit: int = MAX_COUNTED_TERMS) -> tuple[list[str], int]:
    """The distinct `terms` that are worth counting, at most `limit`, in their order, and how many are left out.

    The text alone decides, so that each shard takes the same and no hidden row has a say: kept are the first and the last
    quarter of `limit` (what is asked stands before or behind what was pasted) and the longest of those between, which are the
    rarest as a rule (G. K. Zipf's law of abbreviation).
    """
    distinct = list(dict.fromkeys(terms))
    if len(distinct) <= limit:
        return distinct, 0
    ends = limit // 4
    between = range(ends, len(distinct) - ends)
    longest = sorted(between, key=lambda at: (-len(distinct[at]), at))[: limit - 2 * ends]
    kept = [*distinct[:ends], *(distinct[at] for at in sorted(longest)), *distinct[len(distinct) - ends :]]
    return kept, len(distinct) - len(kept)


def choose_terms(
    terms: Iterable[str], statistics: TermStatistics, limit: int = MAX_QUERY_TERMS
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The distinct `terms` to search for, in their order, and those left out.

    Kept are the `limit` rarest that occur at all (ties by term); terms that occur nowhere come last.
    """
    distinct = list(dict.fromkeys(terms))
    if len(distinct) <= limit:
        return tuple(distinct), ()
    frequency = statistics.document_frequency

    def rarity(term: str) -> tuple[bool, int, str]:
        count = frequency.get(term, 0)
        return count == 0, count, term

    kept = set(sorted(distinct, key=rarity)[:limit])
    return tuple(term for term in distinct if term in kept), tuple(term for term in distinct if term not in kept)
