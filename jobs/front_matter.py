"""The YAML block at the top of a Markdown file."""

from __future__ import annotations

import re
from dataclasses import dataclass

import yaml
from markdown_it.token import Token

#: YAML beyond this is not read: it is no front matter that a person wrote.
_MAX_CHARS = 32_768
_KEY_LINE = re.compile(r"\s*['\"]?[\w.-]+['\"]?\s*:(\s|$)")
_TITLE_LINE = re.compile(r"^title\s*:[ \t]*(.+)$", re.MULTILINE)
_MAX_TAGS = 100


@dataclass(frozen=True, slots=True)
class FrontMatter:
    """What is used of it."""

    title: str = ""
    tags: tuple[str, ...] = ()
    summary: str = ""
    warnings: tuple[str, ...] = ()

    def end_line(self, tokens: list[Token]) -> int:
        """The line, from 0, at which the text after it begins; 0 if there is none."""
        first = tokens[0] if tokens else None
        return first.map[1] if first is not None and first.type == "front_matter" and first.map else 0


def parse_front_matter(content: str) -> FrontMatter | None:
    """`content` is the text between the two rules. None if it is prose between two rules and no front matter."""
    if len(content) > _MAX_CHARS:
        return _unreadable(content)
    try:
        data = yaml.safe_load(content)
    except (yaml.YAMLError, ValueError, TypeError, OverflowError, RecursionError, AttributeError):
        return _unreadable(content)
    if not isinstance(data, dict):
        # Lines with "#" alone are comments in YAML, and headings between two rules in Markdown: their text is kept.
        return None if content.strip() else FrontMatter()
    tags = data.get("tags", data.get("keywords"))
    return FrontMatter(
        title=_line(data.get("title")),
        tags=tuple(dict.fromkeys(_tags(tags)))[:_MAX_TAGS],
        summary=_line(data.get("description") or data.get("summary")),
    )


def _unreadable(content: str) -> FrontMatter | None:
    """Broken YAML that was meant as such: its title line is still worth having."""
    if not _KEY_LINE.match(content):
        return None
    title = _TITLE_LINE.search(content)
    return FrontMatter(
        title=title[1].strip().strip("'\"") if title else "",
        warnings=("the front matter is no readable YAML; only its title was read",),
    )


def _line(value: object) -> str:
    """A scalar as one line of text; nothing for anything else."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return ""
    return " ".join(str(value).split())[:300]


def _tags(value: object) -> list[str]:
    if isinstance(value, str):
        value = value.split(",")
    if not isinstance(value, list):
        return []
    return [tag for tag in map(_line, value) if tag]
