"""The fields of a node that a caller may write: their bounds, their cleaning, and a node as a caller sees it. Pure."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from cluster.embed.node_text import EMBEDDED_PROPERTIES
from cluster.errors import UsageError
from cluster.graph.batches import clean_json
from cluster.model.ids import parse_name
from cluster.model.nodes import Node, Scope, Source, Visibility
from cluster.text import is_blank
from serve.question import clean_surrogates, clean_text, refuse_controls

#: Ids that a caller may give to a new node.
ID_PATTERN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._:-]{0,199}")
#: Ids that are derived from content belong to the jobs, so that nobody learns by trying whether something is indexed.
_DERIVED_ID = re.compile(r"[0-9a-f]{32}")
_RESERVED_IDS = frozenset({"bulk"})
_COMMIT = re.compile(r"[0-9a-f]{40}")

DEFAULT_LABELS = ("Note",)
MAX_LABELS, MAX_LABEL = 20, 200
MAX_KEYWORDS, MAX_KEYWORD = 100, 200
#: Most agents of a list.
MAX_AGENTS = 100
MAX_STATUS = 100
#: Code points of one text property.
MAX_TEXT = 100_000
#: Bytes of all properties as JSON.
MAX_PROPERTIES = 64 * 1024
MAX_PATH = 1000
_MAX_LINE = 2**31 - 1

#: What a caller says of a node's content, and of who may read it.
CONTENT_FIELDS = ("labels", "text", "properties", "keywords", "status", "confidence", "source")
ACCESS_FIELDS = ("scope", "agents", "visibility", "shared_with")
NODE_FIELDS = (*CONTENT_FIELDS, *ACCESS_FIELDS)

_IDENTITY_NAMES = """
account accountid tenant tenantid agent agentid agentslug scopes allowedscopes reader readerid principal role roles user userid
owner ownerid owneragent team teams teamid key keyid apikey
"""
_IDENTITY_FIELDS = frozenset(_IDENTITY_NAMES.split())
_SERVER_FIELDS = frozenset({"created_at", "deleted_at", "last_confirmed_at", "admission", "content_hash", "updated_at"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """What a caller may say of a node, checked and cleaned."""

    labels: tuple[str, ...]
    text: Mapping[str, str]
    properties: Mapping[str, Any]
    keywords: tuple[str, ...]
    status: str | None
    confidence: float | None
    source: Source | None
    scope: Scope | None
    agents: tuple[str, ...] | None
    visibility: Visibility | None
    shared_with: tuple[str, ...]


def read_draft(fields: Mapping[str, Any]) -> Draft:
    """The draft of the JSON values `fields`, of which each may be absent or null. Raises UsageError naming the field."""
    return Draft(**{name: read(name, fields.get(name)) for name, read in _READERS.items()})


def fields_of(node: Node) -> dict[str, Any]:
    """The JSON values of `node` that `read_draft` reads: what a merge patch is applied to."""
    source = node.source
    return {
        "labels": list(node.labels),
        "text": dict(node.text),
        "properties": dict(node.properties),
        "keywords": list(node.keywords),
        "status": node.status,
        "confidence": node.confidence,
        "source": source
        and {
            "repository": source.repository,
            "path": source.path,
            "start_line": source.start_line,
            "end_line": source.end_line,
            "commit": source.commit,
        },
        "scope": node.scope and node.scope.value,
        "agents": None if node.agents is None else list(node.agents),
        "visibility": node.visibility and node.visibility.value,
        "shared_with": list(node.shared_with),
    }


def merge_patch(target: Any, patch: Any) -> Any:
    """RFC 7396, section 2: members of `patch` replace those of `target`, objects recursively, null removes."""
    if not isinstance(patch, Mapping):
        return patch
    merged = dict(target) if isinstance(target, Mapping) else {}
    for name, value in patch.items():
        if value is None:
            merged.pop(name, None)
        else:
            merged[name] = merge_patch(merged.get(name), value)
    return merged


def refuse_unknown(names: Iterable[str], known: tuple[str, ...]) -> None:
    """Raises UsageError for a name that is not one of `known`, saying what is meant or who writes it."""
    for name in names:
        if name in known:
            continue
        shown = repr(name[:100])
        plain = re.sub("[-_ ]", "", name).lower()
        if plain in _IDENTITY_FIELDS:
            raise UsageError(f"remove {shown}: who is writing comes from the API key alone", field=name[:100])
        if name in _SERVER_FIELDS:
            raise UsageError(f"remove {shown}: the server alone writes it", field=name[:100])
        nearest = difflib.get_close_matches(name[:100].lower(), known, n=1, cutoff=0.6)
        hint = f"did you mean {nearest[0]!r}?" if nearest else f"known fields: {', '.join(known)}"
        raise UsageError(f"unknown field {shown}; {hint}", field=name[:100])


def read_new_id(value: Any) -> str:
    """An id that a caller may give. Raises UsageError."""
    if not isinstance(value, str) or not ID_PATTERN.fullmatch(value):
        raise UsageError(
            "id must be 1 to 200 letters, digits, '.', '_', ':' or '-', not starting with '.', ':' or '-'", field="id"
        )
    if _DERIVED_ID.fullmatch(value) or value in _RESERVED_IDS:
        raise UsageError("id must not be 32 hexadecimal digits or 'bulk': those are the server's own", field="id")
    return value


def read_revision(value: Any, name: str = "revision") -> int:
    """A revision as a precondition; 0 = there must be nothing. Raises UsageError naming the field."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise UsageError(f"{name} must be a whole number of at least 0", field=name)
    return value


# --- one reader a field ------------------------------------------------------------------------------------------------------


def _labels(name: str, value: Any) -> tuple[str, ...]:
    if value is None:
        return DEFAULT_LABELS
    labels = _names(name, value, MAX_LABELS, MAX_LABEL)
    if not labels:
        raise UsageError(f"{name} must hold at least one label; leave it out for {DEFAULT_LABELS[0]!r}", field=name)
    return labels


def _keywords(name: str, value: Any) -> tuple[str, ...]:
    return () if value is None else _names(name, value, MAX_KEYWORDS, MAX_KEYWORD)


def _names(name: str, value: Any, most: int, longest: int) -> tuple[str, ...]:
    expected = f"{name} must be a list of at most {most} strings of 1 to {longest} characters, one of them visible"
    if not isinstance(value, list) or len(value) > most:
        raise UsageError(expected, field=name)
    texts = [clean_surrogates(item) if isinstance(item, str) else "" for item in value]
    if any(is_blank(item) or len(item) > longest for item in texts):
        raise UsageError(expected, field=name)
    for text in texts:
        refuse_controls(name, text)
    return tuple(dict.fromkeys(texts))


def _text(name: str, value: Any) -> dict[str, str]:
    names = ", ".join(EMBEDDED_PROPERTIES)
    if not isinstance(value, Mapping):
        raise UsageError(f"{name} must be an object with at least one of {names}", field=name)
    texts: dict[str, str] = {}
    for part, text in value.items():
        place = f"{name}.{part[:100]}"
        if part not in EMBEDDED_PROPERTIES:
            raise UsageError(f"{place} is not searched; {name} holds {names}, everything else is in properties", field=place)
        if not isinstance(text, str) or len(text) > MAX_TEXT:
            raise UsageError(f"{place} must be a string of at most {MAX_TEXT:,} characters", field=place)
        texts[part] = clean_text(text)
    if all(map(is_blank, texts.values())):
        raise UsageError(f"{name} must hold at least one visible character in one of {names}", field=name)
    return texts


def _properties(name: str, value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise UsageError(f"{name} must be an object", field=name)
    cleaned = clean_json(_without_nul(value), name)
    if len(orjson.dumps(cleaned)) > MAX_PROPERTIES:
        raise UsageError(f"{name} must be at most {MAX_PROPERTIES:,} bytes as JSON", field=name)
    return cleaned


def _without_nul(value: Any) -> Any:
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, Mapping):
        return {clean_text(name): _without_nul(item) for name, item in value.items()}
    return [_without_nul(item) for item in value] if isinstance(value, list) else value


def _agents(name: str, value: Any) -> tuple[str, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list) or len(value) > MAX_AGENTS or not all(isinstance(item, str) for item in value):
        raise UsageError(f"{name} must be a list of at most {MAX_AGENTS} names of agents", field=name)
    return tuple(dict.fromkeys(parse_name(item, name) for item in value))


def _shared_with(name: str, value: Any) -> tuple[str, ...]:
    return _agents(name, value) or ()


def _scope(name: str, value: Any) -> Scope | None:
    return None if value is None else Scope(_one_of(name, value, [member.value for member in Scope]))


def _visibility(name: str, value: Any) -> Visibility | None:
    return None if value is None else Visibility(_one_of(name, value, [member.value for member in Visibility]))


def _one_of(name: str, value: Any, known: list[str]) -> str:
    if value not in known:
        raise UsageError(f"{name} must be one of {', '.join(known)}", field=name)
    return str(value)


def _status(name: str, value: Any) -> str | None:
    return None if value is None else _line(name, value, MAX_STATUS)


def _line(name: str, value: Any, longest: int) -> str:
    text = clean_text(value) if isinstance(value, str) else ""
    if is_blank(text) or len(text) > longest:
        raise UsageError(f"{name} must be a string of 1 to {longest} characters, one of them visible", field=name)
    return text


def _confidence(name: str, value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:  # also false for NaN
        raise UsageError(f"{name} must be a number from 0 to 1", field=name)
    return float(value)


_SOURCE_FIELDS = ("repository", "path", "start_line", "end_line", "commit")


def _source(name: str, value: Any) -> Source | None:
    if value is None:
        return None
    if not isinstance(value, Mapping) or not value.keys() <= set(_SOURCE_FIELDS):
        raise UsageError(f"{name} must be an object with {', '.join(_SOURCE_FIELDS)}; the first two are required", field=name)
    commit = value.get("commit")
    if commit is not None and not (isinstance(commit, str) and _COMMIT.fullmatch(commit)):
        raise UsageError(f"{name}.commit must be 40 lower-case hexadecimal digits", field=f"{name}.commit")
    start, end = _line_number(f"{name}.start_line", value), _line_number(f"{name}.end_line", value)
    if end is not None and (start is None or end < start):
        raise UsageError(f"{name}.end_line must not be before {name}.start_line", field=f"{name}.end_line")
    return Source(
        repository=_line(f"{name}.repository", value.get("repository"), MAX_PATH),
        path=_line(f"{name}.path", value.get("path"), MAX_PATH),
        start_line=start,
        end_line=end,
        commit=commit,
    )


def _line_number(name: str, value: Mapping[str, Any]) -> int | None:
    number = value.get(name.partition(".")[2])
    if number is None:
        return None
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= _MAX_LINE:
        raise UsageError(f"{name} must be a line number, counted from 1", field=name)
    return number


_READERS: dict[str, Callable[[str, Any], Any]] = {
    "labels": _labels,
    "text": _text,
    "properties": _properties,
    "keywords": _keywords,
    "status": _status,
    "confidence": _confidence,
    "source": _source,
    "scope": _scope,
    "agents": _agents,
    "visibility": _visibility,
    "shared_with": _shared_with,
}
