"""An answer as JSON values and as text. Pure. Internal fields (account, agents' tags, hashes, vectors) leave in neither."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from cluster.model.nodes import Node, Related
from cluster.model.query import Answer, Disclosure, Hit, LegReport
from cluster.text import escaped_line, printable
from serve.explanation import plain
from serve.served import generations_line, leg_line

#: Most characters of the text form; the first seed's, so that it fits into a tool result.
TEXT_BUDGET = 80_000
_TEXT_ORDER = ("title", "path", "symbol", "summary", "content")
#: What is a name or a place, and so one line.
_ONE_LINE = frozenset({"project", "title", "path", "symbol", "lines", "commit"})
_DIVIDER = "---"
#: Properties that describe the row to the program and not to the reader.
_INTERNAL = frozenset({"embedding", "accountId", "account_id", "account", "prefix_chars", "header_lines"})


# --- JSON --------------------------------------------------------------------------------------------------------------------


def to_json(answer: Answer) -> dict[str, Any]:
    """The body of POST /v1/search: JSON values only."""
    return {
        "query_id": answer.query_id,
        "hits": [_hit(hit) for hit in answer.hits],
        "disclosure": _disclosure(answer.disclosure),
        "explain": answer.explain,
        "next_cursor": answer.next_cursor,
    }


def _hit(hit: Hit) -> dict[str, Any]:
    node, source = hit.node, hit.node.source
    return {
        "id": node.id,
        "labels": list(node.labels),
        "project": node.project,
        "store": node.store.value,
        "score": hit.score.fused,
        "scores": {"vector": hit.score.vector, "bm25": hit.score.bm25, "bm25_scaled": hit.score.bm25_scaled},
        "title": node.text.get("title"),
        "symbol": node.text.get("symbol"),
        "path": _path(node),
        "start_line": source.start_line if source else None,
        "end_line": source.end_line if source else None,
        "commit": source.commit if source else None,
        "snippet": {
            "text": hit.snippet.text,
            "matches": [[start, end] for start, end in hit.snippet.matches],
            "start_line": hit.snippet.start_line,
        },
        "related": [_related(related, node.id) for related in hit.related],
        "related_omitted": hit.related_omitted,
    }


def _path(node: Node) -> str | None:
    return node.source.path if node.source else node.text.get("path")


def _related(related: Related, hit_id: str) -> dict[str, Any]:
    return {
        "type": related.edge.type,
        "direction": related.direction,
        "id": related.node.id,
        "labels": list(related.node.labels),
        "title": related.node.text.get("title"),
        "path": _path(related.node),
        "via": _via(related, hit_id),
    }


def _via(related: Related, hit_id: str) -> str | None:
    """The node that the edge was followed from, when that is not the hit itself."""
    start = related.edge.from_id if related.direction == "outgoing" else related.edge.to_id
    return None if start == hit_id else start


def _disclosure(disclosure: Disclosure) -> dict[str, Any]:
    return {
        "legs": [_leg(leg) for leg in disclosure.legs],
        "fusion": disclosure.fusion.value,
        "generations": dict(disclosure.generations),
        "candidates": disclosure.candidates,
        "returned": disclosure.returned,
        "omitted": dict(disclosure.omitted),
        "more": disclosure.more,
        "degradations": [{"code": item.code, "detail": item.detail} for item in disclosure.degradations],
        "timings_ms": dict(disclosure.timings_ms),
    }


def _leg(leg: LegReport) -> dict[str, Any]:
    return {
        "leg": leg.leg,
        "ran": leg.ran,
        "asked": leg.asked,
        "answered": leg.answered,
        "failed": [
            {
                "project": failure.project,
                "generation": failure.generation,
                "code": failure.code,
                "detail": failure.detail,
            }
            for failure in leg.failed
        ],
        "hits": leg.hits,
        "matched": leg.matched,
        "identity": leg.identity,
        "took_ms": leg.took_ms,
    }


# --- text --------------------------------------------------------------------------------------------------------------------


def to_text(answer: Answer, budget: int = TEXT_BUDGET) -> str:
    """Hits as `[Labels] (id: ...) (score: 0.xxx)` with their properties and related nodes, divided by `---`.

    At most `budget` characters (1,000 or more). What does not fit is made compact step by step, for all hits alike: fewer
    related nodes, none, the snippet instead of the whole text, and at last fewer hits; the last lines say which.
    """
    steps = (
        (None, True, ""),
        (5, True, "compact: at most 5 related nodes a hit are shown"),
        (0, True, "compact: related nodes are not shown"),
        (0, False, "compact: related nodes are not shown, and passages stand for whole texts"),
    )
    blocks: list[str] = []
    footer = ""
    for related, whole, note in steps:
        blocks = [_text_hit(hit, related, whole) for hit in answer.hits]
        footer = _footer(answer, note)
        if _length(blocks, footer) <= budget:
            return _join(blocks, footer)
    shown = len(blocks)
    while shown and _length(blocks[:shown], footer) > budget:
        shown -= 1
        footer = _footer(answer, f"{steps[-1][2]}; {len(blocks) - shown} more hits did not fit into {budget} characters")
    return _join(blocks[:shown], footer)[:budget]


def _join(blocks: list[str], footer: str) -> str:
    return f"\n{_DIVIDER}\n".join([*blocks, footer]) + "\n"


def _length(blocks: list[str], footer: str) -> int:
    return sum(len(block) + len(_DIVIDER) + 2 for block in blocks) + len(footer) + 1


def _text_hit(hit: Hit, most_related: int | None, whole: bool) -> str:
    node = hit.node
    lines = [f"[{', '.join(map(_one_line, node.labels))}] (id: {escaped_line(node.id)}) (score: {hit.score.fused:.3f})"]
    lines += [
        f"  {name}: {escaped_line(value) if name in _ONE_LINE else _indented(value)}" for name, value in _shown(hit, whole)
    ]
    related = hit.related if most_related is None else hit.related[:most_related]
    if related:
        lines.append("  Related:")
        lines += [f"    {_arrow(item, node.id)}" for item in related]
        hidden = len(hit.related) - len(related) + hit.related_omitted
        if hidden:
            lines.append(f"    ({hidden} more)")
    return "\n".join(lines)


def _shown(hit: Hit, whole: bool) -> Iterable[tuple[str, str]]:
    node = hit.node
    yield "project", node.project
    if not whole:
        yield from ((name, node.text[name][:300]) for name in ("title", "path", "symbol") if name in node.text)
        yield from _place(node)
        yield "passage", hit.snippet.text
        return
    yield from ((name, node.text[name]) for name in _TEXT_ORDER if name in node.text)
    yield from ((name, text) for name, text in sorted(node.text.items()) if name not in _TEXT_ORDER)
    yield from _place(node)
    for name, value in sorted(node.properties.items()):
        if name not in _INTERNAL and value is not None:
            yield _one_line(name), value if isinstance(value, str) else json.dumps(plain(value), ensure_ascii=False)


def _place(node: Node) -> Iterable[tuple[str, str]]:
    source = node.source
    if source is not None and source.start_line is not None:
        yield "lines", f"{source.start_line}-{source.end_line or source.start_line}"
    if source is not None and source.commit:
        yield "commit", source.commit


def _arrow(related: Related, hit_id: str) -> str:
    kind = _one_line(related.edge.type)
    arrow = f"--[{kind}]-->" if related.direction == "outgoing" else f"<--[{kind}]--"
    properties = {name: related.node.text[name] for name in ("title", "path", "symbol") if name in related.node.text}
    inside = ", ".join(f"{name}: {escaped_line(value[:200])}" for name, value in properties.items())
    via = _via(related, hit_id)
    labels = ", ".join(map(_one_line, related.node.labels))
    return f"{arrow} [{labels}] (id: {escaped_line(related.node.id)}) {{{inside}}}" + (
        f" via {escaped_line(via)}" if via else ""
    )


def _one_line(text: str) -> str:
    return escaped_line(" ".join(text.split()))


def _indented(text: str) -> str:
    # Stored text cannot imitate a divider, a header or a property: none of its lines starts as far to the left.
    return printable(text.replace("\r\n", "\n")).removesuffix("\n").replace("\n", "\n    ")


def _footer(answer: Answer, note: str) -> str:
    disclosure = answer.disclosure
    legs = ", ".join(leg_line(leg.leg, leg.ran, leg.identity) for leg in disclosure.legs)
    lines = [f"{disclosure.returned} of {disclosure.candidates} candidates; {legs}; query {answer.query_id}"]
    lines += [f"generations: {_one_line(generations_line(disclosure.generations))}"] if disclosure.generations else []
    lines += [f"omitted: {_counts(disclosure.omitted)}"] if disclosure.omitted else []
    lines += [f"more: {disclosure.more}"] if disclosure.more else []
    lines += [f"next_cursor: {answer.next_cursor}"] if answer.next_cursor else []
    lines += [f"degraded: {item.code}: {_one_line(item.detail)[:500]}" for item in disclosure.degradations]
    lines += ["explain: the explanation is part of the JSON form: ask with Accept: application/json"] if answer.explain else []
    lines += [note] if note else []
    return "\n".join(lines)


def _counts(omitted: Mapping[str, int]) -> str:
    return ", ".join(f"{reason} {count}" for reason, count in omitted.items())
