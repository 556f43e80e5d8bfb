"""From text to terms: one definition for documents and questions.

A row is a bag of terms without positions. Its fields are joined before they are counted, each as often as it weighs: the
original simple form of BM25F (Robertson, Zaragoza, Taylor 2004, "Simple BM25 extension to multiple weighted fields"). A row
then has one length and one frequency a term, which is what keeps distributed scores exact; a score for each field would need
statistics for each, and would count a term that is in two of them twice over.

Lucene's analyzers (see `analyzers`) make the terms. This module does what they cannot: Unicode normalisation (NFKC, and full
case folding; the jar has no ICU), leaving invisible characters and half surrogate pairs out, and cutting or dropping what is
too long for a term. It hands Lucene runs of characters between which no token can reach, so that each run, which follows Zipf's
law as words do, is analysed once and then remembered. None of the steps has a syntax: any text is legal input.

K1 and B are BM25's usual 1.2 and 0.75, at two readings a word. nDCG@10, one row a document, on Cranfield, CACM and CoSQA:
.375/.457/.393; with `prose` alone .383/.436/.386, with `code` alone .371/.412/.344.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from cluster.errors import UsageError
from cluster.index.analyzers import analyzer, tokens
from cluster.model.nodes import Node
from cluster.model.query import TermStatistics

#: Longest run in code points that is analysed as it is. A longer one (base64, minified code) is cut at its punctuation, and
#: what is then still longer is dropped. Lucene's limit is 32,766 bytes a term.
MAX_TERM = 255
#: Most distinct terms that are searched for: below Lucene's limit of clauses, and enough for a pasted page.
MAX_QUERY_TERMS = 256
#: Most distinct terms whose rows are counted to find the rarest, each about 40 us of a shard's time; 1,000 words or so.
MAX_COUNTED_TERMS = 2048

#: Runs remembered, twice: those met lately, and those met before them. About 200 bytes each.
_MEMORY = 100_000
#: Runs that are analysed in one call.
_AT_ONCE = 500
#: Questions remembered, if they are short.
_QUESTIONS, _SHORT = 4096, 1000

#: Soft hyphen, joiners, direction marks, variation selectors, byte-order mark: they part no words and are not seen.
_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u180b-\u180f\u200c-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff\U000e0000-\U000e0fff]"
)
#: Zero-width spaces and half surrogate pairs are spaces.
_SPACE = re.compile("[\u200b\ud800-\udfff]")
#: All that a token may hold, or that decides where one ends. What follows the last letter or digit decides nothing.
_RUN = re.compile(r"[./:@\\'\-]*(?:[A-Za-z0-9_+#]|[^\x00-\x7f\s])+(?:[./:@\\'\-]+(?:[A-Za-z0-9_+#]|[^\x00-\x7f\s])+)*")
_PUNCTUATION = re.compile(r"[./:@\\'\-]+")
#: Between a term and its count; no term holds it.
DELIMITER = "|"
#: Stands between two runs that are analysed in one call; a letter, so that it is a token of its own in every analyzer.
_BETWEEN = "\ua66e\ua66e\ua66e"


def normalised(text: str) -> str:
    """NFKC, without invisible characters and half surrogate pairs."""
    if text.isascii():
        return text
    return unicodedata.normalize("NFKC", _INVISIBLE.sub("", _SPACE.sub(" ", text)))


def runs(text: str) -> list[str]:
    """The pieces of `text` that can be analysed one by one, in order and with repeats."""
    found: list[str] = _RUN.findall(normalised(text))
    return found


def spaced(text: str) -> list[str]:
    """As `runs`, of the text as it is, cut at white space alone: for analyzers of others."""
    return _SPACE.sub(" ", text).split()


def fitting(found: list[str]) -> tuple[list[str], int]:
    """The runs that are short enough for a term, longer ones cut at their punctuation, and how many pieces are dropped."""
    if max(map(len, found), default=0) <= MAX_TERM:
        return found, 0
    pieces = [piece for run in found for piece in ([run] if len(run) <= MAX_TERM else _PUNCTUATION.split(run)) if piece]
    kept = [piece for piece in pieces if len(piece) <= MAX_TERM]
    return kept, len(pieces) - len(kept)


@dataclass(frozen=True, slots=True)
class RowText:
    """What a row is indexed with."""

    #: "term|count" separated by spaces. A term may be named more than once: its counts add up.
    text: str
    #: The sum of all counts: the row's length.
    length: int
    #: Pieces of the row that are not indexed because they are longer than MAX_TERM.
    dropped: int


@dataclass(frozen=True, slots=True, eq=False)
class Analysis:
    """How an index reads text and weighs terms. One for each name; it belongs to one thread, as the JVM does."""

    #: Stands in the manifest and changes whenever the same text could give other terms, weights or scores: an index of
    #: another version must be rebuilt.
    version: str
    #: Each reading is a sequence of analyzers, of which each reads the terms of the one before; all readings' terms count.
    readings: tuple[tuple[str, ...], ...]
    #: How often the terms of a text property count.
    weights: Mapping[str, int]
    #: BM25's parameters, part of the definition.
    k1: float
    b: float
    #: What makes pieces of a text that can be analysed one by one.
    cut: Callable[[str], list[str]] = runs
    #: Whether a term that a question repeats counts as often; else its terms are a set.
    repeats: bool = False
    #: run -> its terms as RowText.text, and their number.
    _known: dict[str, tuple[str, int]] = field(default_factory=dict, repr=False)
    _older: dict[str, tuple[str, int]] = field(default_factory=dict, repr=False)
    _questions: dict[str, Mapping[str, int]] = field(default_factory=dict, repr=False)

    def row_text(self, node: Node) -> RowText:
        """What `node` is indexed with; of length 0 for a row without words."""
        found, dropped = fitting([run for text in self.weighted_text(node) for run in self.cut(text)])
        counted = Counter(found)
        known = self._knowing(counted)
        texts: list[str] = []
        length = 0
        for run, times in counted.items():
            text, count = known[run]
            texts.append(text if times == 1 else " ".join([text] * times))
            length += count * times
        return RowText(" ".join(filter(None, texts)), length, dropped)

    def row_terms(self, node: Node) -> dict[str, int]:
        """The terms of `node`'s row and how often each counts."""
        return _counts(self.row_text(node).text)

    def query_terms(self, text: str) -> Mapping[str, int]:
        """The terms of a question in order, and the weight of each; empty when it holds no word."""
        known = self._questions.get(text)
        if known is None:
            counted = Counter(fitting(self.cut(text))[0])
            pieces = self._knowing(counted)
            known = _counts(" ".join(pieces[run][0] for run, times in counted.items() for _ in range(times)))
            if not self.repeats:
                known = dict.fromkeys(known, 1)
            if len(text) <= _SHORT:
                if len(self._questions) >= _QUESTIONS:
                    self._questions.clear()
                self._questions[text] = known
        return known

    def weighted_text(self, node: Node) -> list[str]:
        """The texts of `node` that are searched, each as often as its field weighs."""
        return [text for name, weight in self.weights.items() if (text := node.text.get(name)) for _ in range(weight)]

    def _knowing(self, wanted: Mapping[str, int]) -> Mapping[str, tuple[str, int]]:
        """What is known of runs, those of `wanted` among them."""
        known, older = self._known, self._older
        missing = [run for run in wanted if run not in known]
        if missing and len(known) + len(missing) > _MEMORY:
            # What is met again before the next time that memory is full stays; the rest goes then.
            older.clear()
            older.update(known)
            known.clear()
            missing = list(wanted)
        if older:
            known.update((run, older.pop(run)) for run in missing if run in older)
            missing = [run for run in missing if run not in known]
        for start in range(0, len(missing), _AT_ONCE):
            self._learn(missing[start : start + _AT_ONCE])
        return known

    def _learn(self, missing: Sequence[str]) -> None:
        read: list[list[str]] = [[] for _ in missing]
        done: dict[tuple[str, ...], list[list[str]]] = {}
        for reading in self.readings:
            terms = done.get(reading[:-1]) or [[run] for run in missing]
            done[reading] = [list(found) for found in _analysed(terms, reading[-1])]
            for all_terms, found in zip(read, done[reading], strict=True):
                all_terms.extend(found)
        for run, found in zip(missing, read, strict=True):
            self._known[run] = " ".join([f"{term}{DELIMITER}{times}" for term, times in Counter(found).items()]), len(found)


def _counts(text: str) -> dict[str, int]:
    counts: dict[str, int] = {}
    for pair in text.split():
        term, _, times = pair.rpartition(DELIMITER)
        counts[term] = counts.get(term, 0) + int(times)
    return counts


def _analysed(texts: Sequence[Sequence[str]], name: str) -> list[list[str]]:
    """The terms of each of `texts`, which are words, by the analyzer called `name`; in one call of Java."""
    lists: list[list[str]] = []
    at = 0
    found = tokens(f" {_BETWEEN} ".join([" ".join(words) for words in texts]), analyzer(name))
    for _ in range(found.count(_BETWEEN)):
        end = found.index(_BETWEEN, at)
        lists.append(found[at:end])
        at = end + 1
    lists.append(found[at:])
    if len(lists) != len(texts):
        # A text is itself what should stand between two.
        lists = [tokens(" ".join(words), analyzer(name)) for words in texts]
    # What Lucene's lower case leaves: a final sigma, a sharp s.
    return [words if "".join(words).isascii() else [word.casefold() for word in words] for words in lists]


#: Ours, for code and prose, with a title that counts twice and a symbol three times.
DEFAULT = "text"
_ANALYSES: Mapping[str, Analysis] = {
    "text": Analysis(
        version="text-2",
        readings=(("code",), ("code", "normal")),
        weights={"symbol": 3, "title": 2, "path": 1, "summary": 1, "content": 1},
        k1=2.4,
        b=0.75,
    ),
    "english": Analysis(
        version="english-1",
        readings=(("english",),),
        weights={"symbol": 1, "title": 1, "path": 1, "summary": 1, "content": 1},
        k1=0.9,
        b=0.4,
        cut=spaced,
        repeats=True,
    ),
}
NAMES = tuple(_ANALYSES)


def analysis(name: str = DEFAULT) -> Analysis:
    """The analysis called `name`: "text", or "english" with Anserini's settings. UsageError for another name."""
    try:
        return _ANALYSES[name]
    except KeyError:
        raise UsageError(f"there is no analyzer {name!r}; choose one of {', '.join(NAMES)}") from None


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
