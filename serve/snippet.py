"""The passage of a node's text that answers a question best, with the places of the question's words. Pure.

Matching is for showing, not for finding: it ignores case, accents and common English endings, sees the parts of identifiers
(`parseConfig`, `parse_config`), and takes scripts that are written without spaces by pairs of characters. A passage is a piece
of the stored text as it is, cut at line or word borders and never inside a character that a reader sees as one.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from cluster.model.nodes import Node
from cluster.model.query import Snippet
from cluster.text import ends_syllable, extends, identifier_parts, joins

#: Longest passage, in code points.
WIDTH = 240
#: What is looked at to choose a passage: of a query, of a text, and how many places of one word. Beyond these a passage gets no
#: better, only later.
_QUERY_CHARACTERS = 2_000
_QUERY_WORDS = 48
_TEXT_CHARACTERS = 50_000
_PER_WORD = 12

#: Left out of a query that has other words: they are everywhere and would choose the passage by their number.
_COMMON_WORDS = """
a an and are as at be but by can do does for from how i if in into is it its my no not of on or s
such t that the their then there these they this to was what when where which who why will with you
your
"""
_COMMON = frozenset(_COMMON_WORDS.split())
_ENDINGS = ("ing", "ed", "es", "er", "e", "s")
#: Scripts that are written without spaces (or, Hangul, with endings glued on): matched anywhere, in pairs of characters.
_UNSPACED = re.compile(
    "[\u0e01-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uac00-\ud7a3\uf900-\ufaff\U00020000-\U0003134f]+"
)
#: What most words end at: looked up first, for speed.
_SEPARATORS = frozenset(chr(code) for code in range(128) if not chr(code).isalnum())
#: Stands, in folded text, for a character whose folded form is not one character.
_MAKESHIFT = "\0"
_AROUND_MAKESHIFT = re.compile(f"[^{_MAKESHIFT}]?{_MAKESHIFT}+")


class _Word(NamedTuple):
    """What is looked for in folded text."""

    text: str
    #: How much a passage gains by holding it.
    weight: int
    #: Written with spaces around it, so that it must start and end at a border.
    spaced: bool
    #: May go on with a common ending.
    open_ended: bool


#: A question, prepared once for the snippets of all its hits.
QueryWords: TypeAlias = tuple[_Word, ...]


def query_words(query: str) -> QueryWords:
    """The words of `query` (of its first 2,000 characters; at most 48 words)."""
    spaced: dict[str, int] = {}
    unspaced: dict[str, int] = {}
    for token in _tokens(_unaccented(query[:_QUERY_CHARACTERS])):
        for piece in _UNSPACED.findall(token):
            unspaced.update(dict.fromkeys(_pairs(piece), 2))
        for piece in _UNSPACED.split(token):
            _add_word(spaced, piece)
    telling = {word: weight for word, weight in spaced.items() if word not in _COMMON}
    if telling or unspaced:
        spaced = telling
    words = [_spaced_word(word, weight) for word, weight in spaced.items()]
    words += [_Word(pair, weight, spaced=False, open_ended=False) for pair, weight in unspaced.items()]
    return tuple(words[:_QUERY_WORDS])


def make_snippet(node: Node, words: QueryWords, width: int = WIDTH) -> Snippet:
    """The best passage of `node`'s content, or of its summary or title when only they hold a word of the question.

    `start_line` is known for content alone: it begins at the node's source line. The first `prefix_chars` characters of a
    chunk of a table, by its properties, repeat the table's header, which is in the `header_lines` of the source.
    """
    content = node.text.get("content", "")
    texts = [text for text in (content, node.text.get("summary", ""), node.text.get("title", "")) if text]
    for text in texts:
        folded = _fold(text[:_TEXT_CHARACTERS]) if words else None
        found = _find(folded, words) if folded else None
        if folded and found:
            start, end = _borders(text, *_best_run(found, words, width), width)
            matches = _merged(_inside(folded, words, found, start, end), start, end)
            return Snippet(
                text=text[start:end], matches=matches, start_line=_line(node, text, start) if text is content else None
            )
    text = texts[0] if texts else ""
    start, end = _borders(text, 0, 0, width)
    return Snippet(text=text[start:end], matches=(), start_line=_line(node, text, start) if text and text is content else None)


def _line(node: Node, content: str, start: int) -> int | None:
    if node.source is None:
        return None
    prefix, header = node.properties.get("prefix_chars", 0), node.properties.get("header_lines")
    prefix = prefix if isinstance(prefix, int) else 0
    if start < prefix and isinstance(header, Sequence) and header and isinstance(header[0], int):
        return header[0] + content.count("\n", 0, start)
    return (node.source.start_line or 1) + content.count("\n", prefix, max(prefix, start))


# --- the words of a question -------------------------------------------------------------------------------------------------


def _tokens(text: str) -> Iterator[str]:
    start = -1
    for at, char in enumerate(text):
        if _in_word(char):
            if start < 0:
                start = at
        elif start >= 0:
            yield text[start:at]
            start = -1
    if start >= 0:
        yield text[start:]


def _add_word(words: dict[str, int], token: str) -> None:
    if not token:
        return
    parts = [_caseless(part) for part in identifier_parts(token)]
    whole = _caseless(token)
    words.setdefault(whole, len(whole) * (2 if len(parts) > 1 else 1))
    if len(parts) > 1:
        for part in parts:
            if len(part) > 1:
                words.setdefault(part, len(part))


def _pairs(run: str) -> list[str]:
    folded = _caseless(run)
    return [folded[at : at + 2] for at in range(max(1, len(folded) - 1))]


def _spaced_word(word: str, weight: int) -> _Word:
    if len(word) < 4 or not (word.isascii() and word.isalpha()):
        return _Word(word, weight, spaced=True, open_ended=False)
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 4 and not word.endswith("ss"):
            return _Word(word.removesuffix(ending), weight, spaced=True, open_ended=True)
    return _Word(word, weight, spaced=True, open_ended=True)


# --- folding: text as it is compared, and the way back ------------------------------------------------------------------------


def _unaccented(text: str) -> str:
    """Compatibility forms unified and accents taken off; case kept. Marks that change the letter (か to が) stay."""
    if text.isascii():
        return text
    parts = unicodedata.normalize("NFKD", text)
    return unicodedata.normalize("NFC", "".join(char for char in parts if unicodedata.combining(char) < 10))


class _OneToOne(dict[int, str]):
    """Folded form by code point, one character each; a makeshift where the folded form has another length."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        folded = _caseless(_unaccented(char))
        alone = len(folded) == 1 and not _extends(char)
        return self.setdefault(code, folded if alone else _MAKESHIFT)


_ONE_TO_ONE = _OneToOne()
_NOT_ASCII = re.compile("[^\x00-\x7f]+")


def _caseless(text: str) -> str:
    # casefold alone turns Cherokee to upper case, which would differ from the folded texts.
    return text.casefold().lower()


class _Folded(NamedTuple):
    """A text, its folded form and, where places differ, start and end in `text` of what each folded character came from."""

    text: str
    folded: str
    starts: list[int] | None = None
    ends: list[int] | None = None


def _fold(text: str) -> _Folded:
    if text.isascii():
        return _Folded(text, text.lower())
    folded = _NOT_ASCII.sub(lambda run: run[0].translate(_ONE_TO_ONE), text).lower()
    if _MAKESHIFT not in folded:
        return _Folded(text, folded)
    pieces: list[str] = []
    starts: list[int] = []
    ends: list[int] = []
    done = 0
    for odd in _AROUND_MAKESHIFT.finditer(folded):
        pieces.append(folded[done : odd.start()])
        starts += range(done, odd.start())
        ends += range(done + 1, odd.start() + 1)
        for at, end in _characters(text, odd.start(), odd.end()):
            piece = _caseless(_unaccented(text[at:end]))
            pieces.append(piece)
            starts += [at] * len(piece)
            ends += [end] * len(piece)
        done = odd.end()
    pieces.append(folded[done:])
    starts += range(done, len(text))
    ends += range(done + 1, len(text) + 1)
    return _Folded(text, "".join(pieces), starts, ends)


def _characters(text: str, start: int, stop: int) -> Iterator[tuple[int, int]]:
    while start < stop:
        end = start + 1
        while end < stop and _extends(text[end]):
            end += 1
        yield start, end
        start = end


def _extends(char: str) -> bool:
    return extends(char) or ends_syllable(char)


#: (start in the text, end, number of the word)
_Found: TypeAlias = tuple[int, int, int]


# --- matches -----------------------------------------------------------------------------------------------------------------


def _find(folded: _Folded, words: QueryWords) -> list[_Found]:
    """The first `_PER_WORD` places of each of `words`, by start."""
    stop = len(folded.text)
    found = [place for number, word in enumerate(words) for place in _places(folded, word, number, (0, stop), _PER_WORD)]
    found.sort()
    return found


def _inside(folded: _Folded, words: QueryWords, found: Sequence[_Found], start: int, stop: int) -> list[_Found]:
    """Every place of `words` that begins in text[start:stop], by start. `found`: what `_find` gave."""
    counts = [0] * len(words)
    last = [0] * len(words)
    for at, _, number in found:
        counts[number] += 1
        last[number] = at
    # Of these words there may be more before `stop` than `_find` gives.
    open_words = {number for number, count in enumerate(counts) if count >= _PER_WORD and last[number] < stop}
    places = [place for place in found if start <= place[0] < stop and place[2] not in open_words]
    for number in open_words:
        places += _places(folded, words[number], number, (start, stop), stop - start)
    places.sort()
    return places


def _places(folded: _Folded, word: _Word, number: int, within: tuple[int, int], most: int) -> list[_Found]:
    """The first `most` places of `word`, the one with that number, that begin in text[within]. The hot loop of a passage."""
    text, haystack, starts, ends = folded
    start, stop = within if starts is None else (bisect_left(starts, within[0]), bisect_left(starts, within[1]))
    needle, spaced, separators, size = word.text, word.spaced, _SEPARATORS, len(text)
    length = len(needle)
    limit = stop - 1 + length
    places: list[_Found] = []
    at = haystack.find(needle, start, limit)
    while at >= 0 and len(places) < most:
        first = at if starts is None else starts[at]
        if not spaced or first == 0 or text[first - 1] in separators or _is_border(text[first - 1 : first + 2]):
            after = at + length
            end = after if ends is None else ends[after - 1]
            if spaced and end < size and text[end] not in separators and not _is_border(text[end - 1 : end + 2]):
                end = _ending(folded, after) if word.open_ended else 0
            if end:
                places.append((first, end, number))
        at = haystack.find(needle, at + 1, limit)
    return places


def _ending(folded: _Folded, at: int) -> int:
    """Where in the text the common ending ends that begins at folded[at]; 0 when what follows makes it another word."""
    text, haystack, _, ends = folded
    if haystack[at : at + 1] in "eis":
        for ending in _ENDINGS:
            if haystack.startswith(ending, at):
                end = at + len(ending) if ends is None else ends[at + len(ending) - 1]
                if end >= len(text) or _is_border(text[end - 1 : end + 2]):
                    return end
    return 0


@lru_cache(maxsize=16_384)
def _is_border(around: str) -> bool:
    """Whether a word, or a part of an identifier, starts or ends before the second character of `around`, which has 2 or 3.

    What was found out is kept: the same few characters meet again and again, and this is asked some hundred times a passage.
    """
    before, after = around[0], around[1]
    if before in _SEPARATORS or after in _SEPARATORS or not _in_word(before) or not _in_word(after):
        return True
    if before.isdigit() != after.isdigit():
        return True
    if after.isupper() and (not before.isupper() or around[2:].islower()):
        return True
    return not (before.isascii() and after.isascii()) and bool(_UNSPACED.match(before) or _UNSPACED.match(after))


def _in_word(char: str) -> bool:
    return char.isalnum() or (char > "\u02ff" and unicodedata.category(char)[0] == "M")


def _best_run(found: list[_Found], words: QueryWords, width: int) -> tuple[int, int]:
    """Start and end of the run of matches within `width` that holds the most telling words; the first of equals."""
    best = best_key = (0, 0)
    held = [0] * len(words)
    gain, right, count = 0, 0, len(found)
    for left, (start, _, number) in enumerate(found):
        while right < count and (found[right][1] - start <= width or right == left):
            taken = found[right][2]
            if not held[taken]:
                gain += words[taken].weight
            held[taken] += 1
            right += 1
        if gain >= best_key[0] and (gain, right - left) > best_key:
            best_key, best = (gain, right - left), (start, found[right - 1][1])
        held[number] -= 1
        if not held[number]:
            gain -= words[number].weight
    return best


def _merged(found: list[_Found], start: int, end: int) -> tuple[tuple[int, int], ...]:
    """The matches inside the passage, counted from its start; those that touch or overlap as one."""
    spans: list[tuple[int, int]] = []
    for found_start, found_end, _ in found:
        first, last = max(found_start, start) - start, min(found_end, end) - start
        if first >= last:
            continue
        if spans and first <= spans[-1][1]:
            spans[-1] = (spans[-1][0], max(spans[-1][1], last))
        else:
            spans.append((first, last))
    return tuple(spans)


# --- borders -----------------------------------------------------------------------------------------------------------------


def _borders(text: str, first: int, last: int, width: int) -> tuple[int, int]:
    """Start and end of a passage of at most `width` around text[first:last]."""
    room = min(max(0, width - (last - first)) // 3, 80)
    start = _unbroken(text, _start(text, first, room) if first else _head(text), first - width // 2)
    limit = start + width
    end = len(text) if limit >= len(text) else _unbroken(text, _end(text, max(last, start + 1), limit), start + 1)
    while end > start and text[end - 1].isspace():
        end -= 1
    return start, end


def _start(text: str, first: int, room: int) -> int:
    """At most `room` before `first`: after a line break, else after a space, else where the room ends."""
    start = max(0, first - room)
    if start > 0:
        line = text.find("\n", start - 1, first)
        if line >= 0:
            start = line + 1
        elif not text[start - 1].isspace():
            start = next((at + 1 for at in range(start, first) if text[at].isspace()), start)
    while start < first and text[start].isspace():
        # Blank lines go; the indentation of the first line that says something stays.
        line = text.find("\n", start, first)
        if line < 0 or text[start:line].strip():
            break
        start = line + 1
    return start


def _head(text: str) -> int:
    lead = len(text) - len(text.lstrip())
    return text.rfind("\n", 0, lead) + 1


def _end(text: str, last: int, limit: int) -> int:
    """At most `limit`, at least `last`: before a line break, else before a space, else `limit`."""
    if text[limit].isspace():
        return limit
    line = text.rfind("\n", max(last, limit - 80), limit)
    if line >= 0:
        return line
    return next((at for at in range(limit - 1, max(last, limit - 40) - 1, -1) if text[at].isspace()), limit)


def _unbroken(text: str, at: int, least: int) -> int:
    """The nearest place at or before `at` that is not inside a character of several code points; `at` if none from `least`."""
    place = at
    while place >= least and joins(text, place):
        place -= 1
    return place if place >= least else at
