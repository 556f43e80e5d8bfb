"""Recorded questions: one JSON object a line, written by a server where it is asked to, read by what replays them.

    {"query": "...", "projects": [...], "labels": [...], "limit": 10, "fusion": "...", "expand_hops": 1, "statistics": "...",
     "principal": {"role": "agent", "agent": "...", "scopes": [...], "projects": [...], "teams": [...], "key_id": "..."},
     "judged": {"<node id>": 2}}

All but `query` may be missing. A list of `judged` ids grades each with 1. Written lines hold no key and no answer; questions
may be private all the same, so the file is its owner's alone.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cluster.errors import UsageError
from cluster.model.access import Principal, Role
from cluster.model.nodes import Scope
from cluster.model.query import Answer, Degradation, SearchRequest
from serve.keys import AGENT_SCOPES
from serve.question import make_question
from serve.retrieval import Retrieval

log = logging.getLogger(__name__)

#: Bytes of a log from which on nothing more is written to it.
MOST_BYTES = 64 * 1024 * 1024
_QUESTION = ("query", "projects", "labels", "limit", "fusion", "expand_hops", "statistics")
_PRINCIPAL = ("role", "agent", "scopes", "projects", "teams", "key_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedQuery:
    """A question, who asked it, and what is known of right answers."""

    request: SearchRequest
    principal: Principal
    #: Node id -> grade, 0 or more; empty where nobody judged.
    judged: Mapping[str, float] = field(default_factory=dict)


def read_queries(path: Path, account: str) -> list[RecordedQuery]:
    """The questions of a file, in its order; blank lines are skipped. Raises UsageError naming the line that is wrong."""
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise UsageError(f"recorded queries {path} cannot be read: {reason}", field="queries") from error
    found = []
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                found.append(_parsed(json.loads(line), account))
            except (ValueError, TypeError, AttributeError, RecursionError) as error:
                raise UsageError(f"{path}, line {number}: {error}", field="queries") from error
            except UsageError as error:
                raise UsageError(f"{path}, line {number}: {error.detail}", field="queries") from error
    return found


def _parsed(raw: Any, account: str) -> RecordedQuery:
    if not isinstance(raw, dict):
        raise TypeError("a recorded query is a JSON object")
    unknown = sorted(raw.keys() - {*_QUESTION, "principal", "judged"})
    if unknown:
        raise ValueError(f"unknown field {unknown[0][:100]!r}")
    given = {name: raw[name] for name in _QUESTION if raw.get(name) is not None}
    _check_types(given)
    judged = raw.get("judged") or {}
    grades = dict.fromkeys(judged, 1) if isinstance(judged, list) else judged
    if not all(isinstance(key, str) and isinstance(grade, int | float) and grade >= 0 for key, grade in grades.items()):
        raise ValueError("judged must be node ids, or an object of node id and grade (0 or more)")
    return RecordedQuery(
        request=make_question(**{"query": None, **given}).request,
        principal=principal_from(raw.get("principal") or {}, account),
        judged={key: float(grade) for key, grade in grades.items()},
    )


def _check_types(given: Mapping[str, Any]) -> None:
    kinds: dict[str, type] = {"query": str, "projects": list, "labels": list, "limit": int, "expand_hops": int}
    for name, kind in kinds.items():
        if name in given and type(given[name]) is not kind:
            raise ValueError(f"{name} is not of its type")
    for name in ("projects", "labels"):
        if not all(isinstance(item, str) for item in given.get(name, ())):
            raise ValueError(f"{name} must be a list of names")


def principal_from(raw: Mapping[str, Any], account: str) -> Principal:
    """Who `raw` says: an admin of every project where it says nothing. Raises ValueError or TypeError."""
    unknown = sorted(raw.keys() - set(_PRINCIPAL))
    if unknown:
        raise ValueError(f"unknown field {unknown[0][:100]!r} of principal")
    agent = raw.get("agent")
    scopes, projects = raw.get("scopes"), raw.get("projects")
    role = Role(raw.get("role") or (Role.ADMIN if agent is None else Role.AGENT))
    allowed = AGENT_SCOPES if scopes is None and role is Role.AGENT else scopes
    return Principal(
        account=account,
        key_id=str(raw.get("key_id") or "replayed"),
        role=role,
        agent=agent,
        scopes=None if allowed is None else frozenset(Scope(scope) for scope in allowed),
        projects=None if projects is None else frozenset(projects),
        teams=frozenset(raw.get("teams") or ()),
    )


def as_line(request: SearchRequest, principal: Principal) -> str:
    """What `read_queries` reads as the same question of the same principal."""
    asked = {
        "query": request.query,
        "projects": None if request.projects is None else list(request.projects),
        "labels": list(request.labels),
        "limit": request.limit,
        "fusion": request.fusion.value,
        "expand_hops": request.expand_hops,
        "statistics": request.statistics.value,
        "principal": {
            "role": principal.role.value,
            "agent": principal.agent,
            "scopes": None if principal.scopes is None else sorted(principal.scopes),
            "projects": None if principal.projects is None else sorted(principal.projects),
            "teams": sorted(principal.teams),
            "key_id": principal.key_id,
        },
    }
    return json.dumps(asked, ensure_ascii=False)


class QueryLog:
    """Appends questions to a file, a line each; several processes may append to the same one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stopped = False

    def record(self, request: SearchRequest, principal: Principal) -> None:
        """Writes one question down. Never raises: a log that cannot be written is reported once and fails no search."""
        if self._stopped or request.cursor is not None:
            return
        try:
            line = as_line(request, principal).encode("utf-8", "replace") + b"\n"
            descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            try:
                if os.fstat(descriptor).st_size < MOST_BYTES:
                    os.write(descriptor, line)
                    return
            finally:
                os.close(descriptor)
            reason = f"it has {MOST_BYTES} bytes"
        except OSError as error:
            reason = error.strerror or str(error)
        self._stopped = True
        log.warning("questions are not recorded any more: %s", reason, extra={"action": "query_log_stopped"})


class RecordingRetrieval(Retrieval):
    """The use case, which writes each question down before it answers, where there is a log."""

    def __init__(self, *, log: QueryLog | None, **parts: Any) -> None:
        super().__init__(**parts)
        self._log = log

    async def search(
        self,
        request: SearchRequest,
        principal: Principal,
        *,
        query_id: str | None = None,
        notices: Sequence[Degradation] = (),
        deadline: float | None = None,
    ) -> Answer:
        """See `Retrieval.search`."""
        if self._log is not None:
            self._log.record(request, principal)
        return await super().search(request, principal, query_id=query_id, notices=notices, deadline=deadline)
