"""What a question addresses: which projects, in which generations, with which vectors. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from cluster.checks import ADVICE
from cluster.errors import ForbiddenError, NotFoundError, UnreadableIndexError
from cluster.model.access import Principal, Role
from cluster.model.manifest import Manifest, VectorIdentity
from cluster.model.query import Degradation, Pins, SearchRequest, Statistics


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Where one question goes."""

    #: Every addressed project that has a generation, and that generation: the lexical leg's pins.
    pins: Pins
    #: Those of them whose vectors are of `identity`: the vector leg's pins.
    vector_pins: Pins
    #: None when no addressed project has a generation.
    identity: VectorIdentity | None
    notices: tuple[Degradation, ...] = ()


def make_plan(
    request: SearchRequest,
    principal: Principal,
    served: Mapping[str, Manifest],
    registered: Collection[str],
    unserved: Mapping[str, str] = MappingProxyType({}),
) -> Plan:
    """The plan for `request`.

    `served`: the generations that can be asked, by project; `registered`: projects that the store knows; `unserved`: the error
    codes of projects that were indexed and cannot be asked. Raises NotFoundError for a requested project that does not exist,
    or that the principal may not know, in the same words; ForbiddenError for statistics over documents that the principal may
    not read; UnreadableIndexError when no project is left to ask and the index of one is damaged.
    """
    if request.statistics is Statistics.ALL and principal.role is not Role.ADMIN:
        raise ForbiddenError(
            "statistics 'all' would count documents that this key may not read; leave it out or say 'visible'",
            field="statistics",
        )
    known = {name for name in {*served, *registered} if principal.projects is None or name in principal.projects}
    for name in request.projects or ():
        if name not in known:
            raise NotFoundError(f"no project of that name that this key may search: {name[:100]!r}", field="projects")
    addressed = sorted(known if request.projects is None else request.projects)
    manifests = {name: served[name] for name in addressed if name in served}
    damaged = [name for name in addressed if name not in served and unserved.get(name) == UnreadableIndexError.code]
    if damaged and not manifests:
        raise UnreadableIndexError(_damaged(damaged))
    identity = _leading_identity(manifests.values())
    return Plan(
        pins={name: manifest.generation for name, manifest in manifests.items()},
        vector_pins={name: manifest.generation for name, manifest in manifests.items() if manifest.identity == identity},
        identity=identity,
        notices=tuple(_notices(addressed, manifests, identity, unserved)),
    )


def _leading_identity(manifests: Iterable[Manifest]) -> VectorIdentity | None:
    """The identity of most projects; of equals, the first by its key. Numbers of rows do not count: the caller may not read
    all of them, and which model served must not tell how many there are."""
    projects = Counter(manifest.identity for manifest in manifests)
    return min(projects, key=lambda identity: (-projects[identity], identity.key), default=None)


def _damaged(names: Iterable[str]) -> str:
    return f"indexed, but the index is damaged and nothing of it can be searched: {', '.join(names)}; {ADVICE}"


def _notices(
    addressed: Collection[str],
    manifests: Mapping[str, Manifest],
    identity: VectorIdentity | None,
    unserved: Mapping[str, str],
) -> Iterable[Degradation]:
    # Numbers of rows stay out of these sentences and of what decides on them: they count rows that the caller may not read.
    if not addressed:
        yield Degradation(code="no_projects", detail="there is no project yet that this key may search")
    missing = [name for name in addressed if name not in manifests]
    damaged = [name for name in missing if unserved.get(name) == UnreadableIndexError.code]
    if damaged:
        yield Degradation(code=UnreadableIndexError.code, detail=_damaged(damaged))
    closed = [name for name in missing if name in unserved and name not in damaged]
    if closed:
        yield Degradation(code="not_opened_yet", detail=f"indexed, but not opened by the shards yet: {', '.join(closed)}")
    waiting = [name for name in missing if name not in unserved]
    if waiting:
        yield Degradation(code="not_indexed_yet", detail=f"registered, but not searchable until indexed: {', '.join(waiting)}")
    others = [name for name, manifest in manifests.items() if manifest.identity != identity]
    if identity is not None and others:
        detail = f"vectors are compared within one model only ({identity.key}); by their words alone: {', '.join(others)}"
        yield Degradation(code="identity_mismatch", detail=detail)
