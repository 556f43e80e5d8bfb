"""A search answer for a terminal: the same form as the server's plain text, with the matches of each passage marked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.text import Text

from cluster.text import escaped_line, printable
from serve.commands.output import one_line, tree
from serve.served import generations_line, leg_line


def show_answer(answer: Mapping[str, Any]) -> None:
    """Prints `answer`, the body of POST /v1/search, in colour where the terminal has it (NO_COLOR is heeded)."""
    Console(highlight=False, soft_wrap=True).print(render(answer))


def plain_answer(answer: Mapping[str, Any]) -> str:
    """The same without colour."""
    return render(answer).plain


def render(answer: Mapping[str, Any]) -> Text:
    """Hits divided by `---`, then what the answer discloses and, where asked for, the explanation."""
    text = Text()
    for hit in answer.get("hits", ()):
        _hit(text, hit)
        text.append("---\n", "dim")
    _footer(text, answer)
    if answer.get("explain"):
        text.append("explain:\n", "bold")
        text.append(tree(answer["explain"], 1))
    return text


def _hit(text: Text, hit: Mapping[str, Any]) -> None:
    text.append(f"[{', '.join(map(_line, hit['labels']))}]", "bold cyan")
    text.append(f" (id: {escaped_line(hit['id'])})", "dim")
    text.append(f" (score: {hit['score']:.3f})\n", "bold green")
    place = hit.get("path")
    if place and hit.get("start_line"):
        place = f"{place}:{hit['start_line']}-{hit.get('end_line') or hit['start_line']}"
    for name, value in (
        ("project", hit.get("project")),
        ("title", hit.get("title")),
        ("symbol", hit.get("symbol")),
        ("path", place),
    ):
        if value:
            text.append(f"  {name}: ", "dim")
            text.append(f"{escaped_line(value)}\n", "magenta" if name == "path" else "")
    _passage(text, hit["snippet"])
    if hit.get("related"):
        text.append("  Related:\n", "dim")
        for related in hit["related"]:
            text.append(f"    {_related(related)}\n", "dim")
        if hit.get("related_omitted"):
            text.append(f"    ({hit['related_omitted']} more)\n", "dim")


def _passage(text: Text, snippet: Mapping[str, Any]) -> None:
    # Offsets count characters, so none may go.
    raw = snippet["text"].replace("\r\n", " \n")
    if not raw.strip():
        return
    passage = Text()
    done = 0
    for start, end in snippet["matches"]:
        passage.append(printable(raw[done:start]))
        passage.append(printable(raw[start:end]), "bold yellow")
        done = end
    passage.append(printable(raw[done:]))
    text.append("  passage:\n", "dim")
    for line in passage.split("\n"):
        text.append("    ").append_text(line).append("\n")


def _related(related: Mapping[str, Any]) -> str:
    kind = _line(related["type"])
    arrow = f"--[{kind}]-->" if related["direction"] == "outgoing" else f"<--[{kind}]--"
    named = ", ".join(f"{name}: {escaped_line(related[name])}" for name in ("title", "path") if related.get(name))
    return f"{arrow} [{', '.join(map(_line, related['labels']))}] {{{named}}}"


def _footer(text: Text, answer: Mapping[str, Any]) -> None:
    disclosure = answer["disclosure"]
    legs = ", ".join(leg_line(leg["leg"], leg["ran"], leg.get("identity")) for leg in disclosure["legs"])
    head = f"{disclosure['returned']} of {disclosure['candidates']} candidates; {legs}; query {answer['query_id']}\n"
    text.append(_line(head.rstrip()) + "\n", "dim")
    if disclosure.get("generations"):
        text.append(f"generations: {_line(generations_line(disclosure['generations']))}\n", "dim")
    if disclosure.get("omitted"):
        counts = ", ".join(f"{reason} {count}" for reason, count in disclosure["omitted"].items())
        text.append(f"omitted: {_line(counts)}\n", "dim")
    if disclosure.get("more"):
        text.append(f"more: {_line(disclosure['more'])}\n", "dim")
    if answer.get("next_cursor"):
        text.append(f"next_cursor: {_line(answer['next_cursor'])}\n", "dim")
    for item in disclosure["degradations"]:
        text.append(f"degraded: {_line(item['code'])}: {_line(item['detail'])}\n", "yellow")


def _line(value: object) -> str:
    return one_line(" ".join(str(value).split()))
