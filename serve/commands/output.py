"""How commands write: the answer alone on stdout, everything else on stderr, and no stream or encoding that makes them fail."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import IO, Any

from cluster.text import escaped_line

#: As a shell reports a process that SIGPIPE ended.
EXIT_PIPE = 141


def prepare_streams() -> None:
    """Makes stdout and stderr take any text: what their encoding lacks is written as an escape. A closed stream is dropped."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123 (it lives as long as the process)
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def is_terminal(stream: IO[str] | None = None) -> bool:
    """Whether a person reads `stream` (stdout by default) and it can show colours and be redrawn."""
    stream = stream or sys.stdout
    return stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"


def write_text(text: str) -> None:
    """Writes lines to stdout."""
    sys.stdout.write(text if text.endswith("\n") or not text else text + "\n")


def write_json(value: object) -> None:
    """Writes one JSON document to stdout: on one line, or indented for a person; in ASCII where the encoding needs it."""
    indent = 2 if is_terminal() else None
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    try:
        text.encode(sys.stdout.encoding or "ascii")
    except UnicodeError:
        text = json.dumps(value, ensure_ascii=True, indent=indent)
    write_text(text)


def note(detail: str) -> None:
    """Writes one line to stderr, with control characters escaped: a detail may quote what somebody else wrote."""
    sys.stderr.write(f"raycall: {one_line(detail)}\n")
    sys.stderr.flush()


def one_line(text: str) -> str:
    """`text` on one line, with spaces for line breaks; control characters as escapes."""
    return escaped_line(text.replace("\n", " "))


def tree(value: object, depth: int = 0) -> str:
    """A JSON value as indented `name: value` lines, for people."""
    pad = "  " * depth
    if isinstance(value, Mapping):
        return "".join(_entry(f"{pad}{one_line(str(name))}:", inner, depth) for name, inner in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "".join(_entry(f"{pad}-", inner, depth) for inner in value)
    return f"{pad}{_scalar(value)}\n"


def _entry(head: str, value: object, depth: int) -> str:
    nested = isinstance(value, (Mapping, list, tuple)) and bool(value)
    return f"{head}\n{tree(value, depth + 1)}" if nested else f"{head} {_scalar(value)}\n"


def _scalar(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or value in ({}, [], ()):
        return "none"
    return one_line(str(value))
