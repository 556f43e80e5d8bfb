"""From a caller's values to a question that may be asked: the bounds, defaults and refusals that every front shares. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from cluster.errors import UsageError
from cluster.model.query import Degradation, Fusion, SearchRequest, Statistics
from cluster.text import is_blank

MIN_LIMIT, DEFAULT_LIMIT, MAX_LIMIT = 1, 10, 100
MIN_HOPS, DEFAULT_HOPS, MAX_HOPS = 0, 1, 3
#: Most projects, and most labels, of one question; and the longest label.
MAX_NAMES = 100
MAX_LABEL = 200

_SURROGATE = re.compile("[\ud800-\udfff]")
#: What a keyboard does not write and a terminal obeys, without tabs and line breaks.
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f]")
_ANY_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A request within all bounds, and what was changed to bring it there."""

    request: SearchRequest
    notices: tuple[Degradation, ...] = ()


def make_question(
    *,
    query: str | None,
    projects: Sequence[str] | None = None,
    limit: int | None = None,
    labels: Sequence[str] | None = None,
    fusion: str | None = None,
    expand_hops: int | None = None,
    explain: bool | None = None,
    statistics: str | None = None,
    cursor: str | None = None,
) -> Question:
    """The question that these values ask; None is the default of each but `query`, which must be there.

    `limit` outside 1..100 and `expand_hops` outside 0..3 are clamped, with a notice. Raises UsageError naming the field: for a
    missing or blank query (nothing that can be seen), an empty or overlong list, a name with a control character, or an
    unknown fusion or statistics.
    """
    notices: list[Degradation] = []
    request = SearchRequest(
        query=_query(query),
        projects=None if projects is None else _projects(projects),
        limit=_clamped("limit", limit, DEFAULT_LIMIT, MIN_LIMIT, MAX_LIMIT, notices),
        labels=_labels(labels or ()),
        fusion=_choice("fusion", fusion, Fusion.WEIGHTED),
        expand_hops=_clamped("expand_hops", expand_hops, DEFAULT_HOPS, MIN_HOPS, MAX_HOPS, notices),
        explain=bool(explain),
        statistics=_choice("statistics", statistics, Statistics.VISIBLE),
        cursor=cursor,
    )
    return Question(request=request, notices=tuple(notices))


def clean_text(text: str) -> str:
    """`text` with a space for each NUL, and with U+FFFD for each half of a surrogate pair: what every engine below can take."""
    return clean_surrogates(text).replace("\0", " ")


def clean_surrogates(text: str) -> str:
    """`text` with U+FFFD for each half of a surrogate pair, so that it can be encoded."""
    return _SURROGATE.sub("\ufffd", text)


def refuse_controls(field: str, name: str) -> None:
    """Raises UsageError for a name that holds a control character: two names that look alike would be one, or two."""
    if _ANY_CONTROL.search(name):
        raise UsageError(f"{field} must not hold control characters: {name[:100]!r}", field=field)


def _query(query: str | None) -> str:
    # A control character parts words, as it does in what is indexed.
    text = _CONTROL.sub(" ", clean_surrogates(query or ""))
    if is_blank(text):
        raise UsageError("query is required, and must hold at least one visible character", field="query")
    return text


def _projects(names: Sequence[str]) -> tuple[str, ...]:
    if not names:
        raise UsageError("projects must name at least one project; leave it out to search all of yours", field="projects")
    return _names("projects", names)


def _labels(names: Sequence[str]) -> tuple[str, ...]:
    if any(not name or len(name) > MAX_LABEL for name in names):
        raise UsageError(f"labels must be of 1 to {MAX_LABEL} characters each", field="labels")
    return _names("labels", names)


def _names(field: str, names: Sequence[str]) -> tuple[str, ...]:
    if len(names) > MAX_NAMES:
        raise UsageError(f"{field} must hold at most {MAX_NAMES} names, not {len(names)}", field=field)
    for name in names:
        refuse_controls(field, name)
    return tuple(dict.fromkeys(clean_surrogates(name) for name in names))


def _clamped(field: str, value: int | None, default: int, low: int, high: int, notices: list[Degradation]) -> int:
    if value is None:
        return default
    bounded = min(max(value, low), high)
    if bounded != value:
        asked = str(value) if abs(value) < 10**18 else "a larger number" if value > 0 else "a smaller number"
        detail = f"{field} must be from {low} to {high}: {bounded} was used instead of {asked}"
        notices.append(Degradation(code=f"{field}_clamped", detail=detail))
    return bounded


_Choice = TypeVar("_Choice", Fusion, Statistics)


def _choice(field: str, value: str | None, default: _Choice) -> _Choice:
    if value is None:
        return default
    kind = type(default)
    try:
        return kind(value)
    except ValueError as error:
        known = ", ".join(member.value for member in kind)
        raise UsageError(f"{field} must be one of {known}", field=field) from error
