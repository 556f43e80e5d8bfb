"""What served an answer, in one line each, for every text form. Pure, and light to import."""

from __future__ import annotations

from collections.abc import Mapping

#: Generations that a line names; the JSON form has all.
MOST_GENERATIONS = 20


def leg_line(leg: str, ran: bool, identity: str | None) -> str:
    """What a leg did, and with which vectors."""
    if not ran:
        return f"{leg} did not run"
    return f"{leg} ran ({identity})" if identity else f"{leg} ran"


def generations_line(generations: Mapping[str, str]) -> str:
    """The generation that served of each project, for the first 20."""
    shown = [f"{project} {generation}" for project, generation in list(generations.items())[:MOST_GENERATIONS]]
    hidden = len(generations) - len(shown)
    return ", ".join(shown) + (f" and {hidden} more" if hidden else "")
