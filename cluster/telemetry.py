"""Logging: one set-up for every process. A record is a sentence and an `action`, with what it is about beside it.

Code logs `log.info("generation published", extra={"action": "generation_published", "project": project})`; tests and alarms
match on `action`, people read the sentence. A record is always one line, whatever a message or a value contains.
"""

from __future__ import annotations

import json
import logging
import logging.handlers
import sys
import time
from pathlib import Path
from typing import TextIO

#: The packages whose records are ours. Others' are shown from warning up.
PACKAGES = ("cluster", "actors", "jobs", "serve")
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))} | {0x2028: "\\u2028", 0x2029: "\\u2029"}


#: Size from which a log file is put aside, in bytes, and how many such are kept.
FILE_BYTES = 10 * 1024 * 1024
FILES_KEPT = 3


def configure(level: str, form: str, stream: TextIO | None = None) -> None:
    """Sends records to `stream` (stderr by default), from `level` up, as `form`: "text" or "json". May be called again."""
    _install(_StderrHandler() if stream is None else logging.StreamHandler(stream), level, form)


def configure_file(level: str, form: str, path: Path) -> None:
    """As `configure`, into a file of this process's own: for processes whose stderr nobody reads. Bounded in size."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _install(
        logging.handlers.RotatingFileHandler(path, maxBytes=FILE_BYTES, backupCount=FILES_KEPT, encoding="utf-8"), level, form
    )


def _install(handler: logging.Handler, level: str, form: str) -> None:
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    root = logging.getLogger()
    for old in [old for old in root.handlers if getattr(old, "raycall", False)]:
        root.removeHandler(old)
    handler.raycall = True  # type: ignore[attr-defined]
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    for package in PACKAGES:
        logging.getLogger(package).setLevel(level.upper())


class _StderrHandler(logging.StreamHandler[TextIO]):
    """Writes to what `sys.stderr` is at the time: progress bars stand in for it while they are drawn."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:
        return sys.stderr

    @stream.setter
    def stream(self, _value: TextIO) -> None:
        raise AttributeError("the stream is always sys.stderr")


def fields_of(record: logging.LogRecord) -> dict[str, object]:
    """What `extra` added to a record: `action` first, then the rest by name. Libraries' own (`_name`) are left out."""
    found = {name: value for name, value in vars(record).items() if name not in _STANDARD and name[0] != "_"}
    return dict(sorted(found.items(), key=lambda item: (item[0] != "action", item[0])))


class TextFormatter(logging.Formatter):
    """`2026-11-30T20:10:11.123Z info cluster.storage: generation published action=generation_published project=web`."""

    def format(self, record: logging.LogRecord) -> str:
        parts = [f"{_time(record)} {record.levelname.lower()} {record.name}: {record.getMessage()}"]
        parts += [f"{name}={_text(value)}" for name, value in fields_of(record).items()]
        if record.exc_info:
            parts.append(f"error={json.dumps(self.formatException(record.exc_info))}")
        return " ".join(parts).translate(_ESCAPES)


class JsonFormatter(logging.Formatter):
    """One JSON object a record, in ASCII."""

    def format(self, record: logging.LogRecord) -> str:
        entry: dict[str, object] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **fields_of(record),
        }
        if record.exc_info:
            entry["error"] = self.formatException(record.exc_info)
        return json.dumps(entry, default=str)


def _time(record: logging.LogRecord) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z"


def _text(value: object) -> str:
    text = str(value)
    return json.dumps(text, ensure_ascii=False) if not text or any(char in ' "=' for char in text) else text
