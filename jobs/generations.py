"""What an operator does with generations: look at them, check them, change which one is served, remove the rest."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cluster import checks
from cluster.errors import ConflictError, CorruptIndexError, NotFoundError, RaycallError
from cluster.generations import Pointer
from cluster.model.manifest import Manifest
from cluster.storage import GenerationStore
from jobs.reindex import Gate

log = logging.getLogger(__name__)

SERVED, PREVIOUS, UNPUBLISHED, UNFINISHED = "served", "previous", "unpublished", "unfinished"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One generation on disk. Without a readable manifest, what is told by it is None, and `fault` says why."""

    project: str
    generation: str
    #: SERVED, PREVIOUS (kept for rollback), UNPUBLISHED, or UNFINISHED: a build that runs or was killed.
    state: str
    #: Milliseconds since the epoch, UTC.
    created_at: int | None = None
    rows: int | None = None
    vectors: int | None = None
    identity: str | None = None
    analyzer: str | None = None
    watermark: int | None = None
    #: Bytes of its files, and of those that no other generation shares: what removing it would free.
    bytes: int = 0
    own_bytes: int = 0
    fault: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Swapped:
    """A change of what is served."""

    project: str
    generation: str
    #: What was served until now; None for the first.
    replaced: str | None
    sequence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """A folder that nothing points to."""

    project: str
    name: str
    #: Bytes that no other generation shares.
    freed_bytes: int


def projects_of(generations: GenerationStore, project: str | None) -> list[str]:
    """The projects meant by `project`: itself, or all that there are. Raises NotFoundError for one that has no generation."""
    known = generations.known()
    if project is None:
        return known
    if project not in known:
        raise NotFoundError(f"project {project[:100]!r} has no generation", field="project")
    return [project]


def entries(generations: GenerationStore, project: str) -> list[Entry]:
    """Every generation of a project, oldest first. A damaged pointer is told by an entry of its own."""
    found = []
    try:
        pointer = generations.pointer(project)
    except CorruptIndexError as error:
        pointer = Pointer()
        found.append(Entry(project=project, generation="CURRENT", state="damaged", fault=error.detail))
    for name in generations.finished(project):
        state = {pointer.generation: SERVED, pointer.previous: PREVIOUS}.get(name, UNPUBLISHED)
        found.append(_entry(generations, project, name, state))
    for named, state in ((pointer.generation, SERVED), (pointer.previous, PREVIOUS)):
        if state == SERVED and named is not None and named not in generations.finished(project):
            found.append(Entry(project=project, generation=named, state=state, fault="it is not on disk"))
    for path in generations.unfinished(project):
        total, own = _bytes(path)
        found.append(Entry(project=project, generation=path.name, state=UNFINISHED, bytes=total, own_bytes=own))
    return found


def faults(generations: GenerationStore, project: str, generation: str) -> list[str]:
    """What is wrong with a generation, a sentence a file; reads every file. Raises NotFoundError when there is none such."""
    if generation not in generations.finished(project):
        raise NotFoundError(f"project {project} has no generation {generation[:100]!r}", field="generation")
    try:
        manifest = generations.manifest(project, generation)
    except NotFoundError:
        return [f"manifest.json of generation {generation} is missing"]
    except CorruptIndexError as error:
        return [error.detail]
    if (manifest.project, manifest.generation) != (project, generation):
        return [f"manifest.json of generation {generation} is that of {manifest.project}/{manifest.generation}"]
    return checks.faults(generations.folder(project, generation), manifest)


def publish(
    generations: GenerationStore, account: str, project: str, generation: str | None = None, gate: Gate | None = None
) -> Swapped:
    """Serves `generation`, or the newest one that was never served, instead of what is served now.

    Raises NotFoundError when there is none, CorruptIndexError when a file of it is damaged, ConflictError when it is another
    account's, when `gate` says so, or when something else was published meanwhile; what is served stays then.
    """
    pointer = generations.pointer(project)
    generation = generation or _newest_unpublished(generations, project, pointer)
    manifest = _whole(generations, account, project, generation)
    served = None if gate is None else _served(generations, project, pointer)
    reason = gate(served, manifest) if gate is not None and served is not None else None
    if reason is not None:
        raise ConflictError(f"not published: {reason}")
    following = generations.publish(manifest, required=pointer.generation)
    extra = {"action": "generation_published", "project": project, "generation": generation}
    log.info("generation published by hand", extra=extra)
    return Swapped(project=project, generation=generation, replaced=pointer.generation, sequence=following.sequence)


def roll_back(generations: GenerationStore, account: str, project: str) -> Swapped:
    """Serves the previous generation again. Raises ConflictError when there is none, CorruptIndexError when it is damaged."""
    pointer = generations.pointer(project)
    if pointer.previous is None:
        raise ConflictError(f"project {project} has no previous generation to go back to")
    if pointer.previous not in generations.finished(project):
        raise ConflictError(f"the previous generation {pointer.previous} of project {project} is not on disk any more")
    _whole(generations, account, project, pointer.previous)
    following = generations.roll_back(project, required=pointer.previous)
    extra = {"action": "generation_rolled_back", "project": project, "generation": pointer.previous}
    log.info("rolled back to the previous generation", extra=extra)
    return Swapped(project=project, generation=pointer.previous, replaced=pointer.generation, sequence=following.sequence)


def collect(generations: GenerationStore, project: str, *, dry_run: bool = False) -> list[Removed]:
    """Removes what nothing points to and no running build owns; see `GenerationStore.collect`."""
    measured = {path: _bytes(path)[1] for path in generations.collect(project, dry_run=True)}
    gone: Sequence[Path] = list(measured) if dry_run else generations.collect(project)
    return [Removed(project=project, name=path.name, freed_bytes=measured.get(path, 0)) for path in gone]


def _newest_unpublished(generations: GenerationStore, project: str, pointer: Pointer) -> str:
    known = {pointer.generation, pointer.previous}
    waiting = [name for name in generations.finished(project) if name not in known]
    if not waiting:
        raise NotFoundError(f"project {project} has no unpublished generation; name the one to publish", field="generation")
    return waiting[-1]


def _whole(generations: GenerationStore, account: str, project: str, generation: str) -> Manifest:
    """The manifest of a generation of this account of which no file is damaged."""
    found = faults(generations, project, generation)
    if found:
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise CorruptIndexError(f"not published: {found[0]}{more}")
    manifest = generations.manifest(project, generation)
    if manifest.account != account:
        raise ConflictError(f"generation {generation} belongs to account {manifest.account}, not to {account}")
    return manifest


def _served(generations: GenerationStore, project: str, pointer: Pointer) -> Manifest | None:
    """The served generation's manifest; None when there is none that could be read, so that it can be replaced."""
    if pointer.generation is None:
        return None
    try:
        return generations.manifest(project, pointer.generation)
    except RaycallError as error:
        log.error(error.detail, extra={"action": "manifest_damaged", "project": project})  # noqa: TRY400
        return None


def _entry(generations: GenerationStore, project: str, name: str, state: str) -> Entry:
    total, own = _bytes(generations.folder(project, name))
    try:
        manifest = generations.manifest(project, name)
    except RaycallError as error:
        return Entry(project=project, generation=name, state=state, bytes=total, own_bytes=own, fault=error.detail)
    return Entry(
        project=project,
        generation=name,
        state=state,
        created_at=manifest.created_at,
        rows=manifest.rows,
        vectors=manifest.vectors,
        identity=manifest.identity.key,
        analyzer=manifest.analyzer,
        watermark=manifest.watermark,
        bytes=total,
        own_bytes=own,
    )


def _bytes(folder: Path) -> tuple[int, int]:
    """Bytes of all files below `folder`, and of those that have no other name. A file that goes meanwhile counts as nothing."""
    total = own = 0
    for path in folder.rglob("*"):
        try:
            status = path.lstat()
        except FileNotFoundError:
            continue
        if path.is_file():
            total += status.st_size
            own += status.st_size if status.st_nlink == 1 else 0
    return total, own
