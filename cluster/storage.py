"""Generations on disk: written beside the served one, verified, and made current by one atomic pointer swap.

<root>/<project>/CURRENT             the pointer: generation, previous, sequence
<root>/<project>/REFUSED             why the newest build was not published, where it was not
<root>/<project>/<generation>/       manifest.json and one folder a bucket; never changed once it has this name
<root>/<project>/<generation>.part/  a build that is not finished; swept once its builder is gone
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path

from cluster import faults
from cluster.errors import ConflictError, CorruptIndexError, NotFoundError
from cluster.generations import Pointer, advance, check_manifest, retained, roll_back
from cluster.model.ids import NAME_PATTERN
from cluster.model.manifest import Manifest

_POINTER = "CURRENT"
_MANIFEST = "manifest.json"
_PART = ".part"
_REFUSED = "REFUSED"


class GenerationStore:
    """The generations of one account's projects below one folder. Several processes may use the same folder."""

    def __init__(self, root: Path) -> None:
        self.root = Path(root)

    def projects(self) -> list[str]:
        """Projects that have a served generation, sorted."""
        if not self.root.is_dir():
            return []
        return sorted(
            path.name for path in self.root.iterdir() if (path / _POINTER).exists() and NAME_PATTERN.fullmatch(path.name)
        )

    def known(self) -> list[str]:
        """Projects that have a folder here, served or not, sorted."""
        if not self.root.is_dir():
            return []
        return sorted(path.name for path in self.root.iterdir() if path.is_dir() and NAME_PATTERN.fullmatch(path.name))

    def finished(self, project: str) -> list[str]:
        """The generations of a project that have their final name, by id ascending: served, kept or never published."""
        return [path.name for path in self._folders(project) if not path.name.endswith(_PART)]

    def unfinished(self, project: str) -> list[Path]:
        """The folders of builds that run, or that were killed, and of removals that were."""
        return [path for path in self._folders(project) if path.name.endswith(_PART)]

    def pointer(self, project: str) -> Pointer:
        """The project's pointer; an empty one before the first publish. Raises CorruptIndexError when it is not readable."""
        try:
            raw = (self._project(project) / _POINTER).read_bytes()
        except FileNotFoundError:
            return Pointer()
        except OSError as error:
            raise CorruptIndexError(f"the pointer of project {project} cannot be read: {error.strerror}") from error
        try:
            return read_pointer(json.loads(raw))
        except (ValueError, TypeError) as error:
            raise CorruptIndexError(f"the pointer of project {project} is damaged; index the project again") from error

    def pointer_stamp(self, project: str) -> tuple[int, int] | None:
        """A cheap value that changes with every swap: (inode, mtime in ns) of the pointer file."""
        try:
            status = (self._project(project) / _POINTER).stat()
        except FileNotFoundError:
            return None
        return status.st_ino, status.st_mtime_ns

    def folder(self, project: str, generation: str) -> Path:
        """Where a finished generation lies."""
        return self._project(project) / generation

    def manifest(self, project: str, generation: str) -> Manifest:
        """The manifest of a finished generation; raises NotFoundError or CorruptIndexError."""
        path = self.folder(project, generation) / _MANIFEST
        try:
            raw = json.loads(path.read_bytes())
        except FileNotFoundError as error:
            raise NotFoundError(f"project {project} has no generation {generation}") from error
        except OSError as error:
            raise CorruptIndexError(f"manifest of {project}/{generation} cannot be read: {error.strerror}") from error
        except ValueError as error:
            raise CorruptIndexError(f"manifest of {project}/{generation} is not readable: {error}") from error
        if not isinstance(raw, dict):
            raise CorruptIndexError(f"manifest of {project}/{generation} is no object")
        manifest = Manifest.from_json(raw)
        if (manifest.project, manifest.generation) != (project, generation):
            # A folder that somebody copied would have its rows counted and answered twice.
            found = f"{manifest.project}/{manifest.generation}"
            raise CorruptIndexError(f"manifest of {project}/{generation} is that of {found}: the folder was copied or renamed")
        return manifest

    def current(self, project: str) -> Manifest | None:
        """The served generation's manifest, or None before the first publish."""
        pointer = self.pointer(project)
        return None if pointer.generation is None else self.manifest(project, pointer.generation)

    @contextmanager
    def build_lock(self, project: str) -> Iterator[None]:
        """Waits until no other process builds this project, and keeps others out. Freed by the kernel when a holder dies."""
        folder = self._project(project)
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / ".build.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    @contextmanager
    def build_lock_if_free(self, project: str) -> Iterator[bool]:
        """As `build_lock`, without waiting: whether it was free and is held now, so that nobody builds meanwhile."""
        folder = self._project(project)
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / ".build.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True

    @contextmanager
    def building(self, project: str, generation: str) -> Iterator[Path]:
        """A folder to build `generation` in. Removed when the body raises; becomes the generation by `finish`."""
        part = self._project(project) / (generation + _PART)
        part.mkdir(parents=True)
        try:
            yield part
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise

    def finish(self, part: Path, manifest: Manifest) -> Path:
        """Writes the manifest, makes the whole folder durable and gives it its final name."""
        check_manifest(manifest)
        _write_durably(part / _MANIFEST, json.dumps(manifest.to_json(), sort_keys=True).encode())
        faults.reach("finish.manifest_written")
        for path in part.rglob("*"):
            _fsync(path)
        _fsync(part)
        faults.reach("finish.synced")
        final = part.with_name(manifest.generation)
        part.rename(final)
        faults.reach("finish.renamed")
        _fsync(final.parent)
        return final

    def publish(self, manifest: Manifest, *, required: str | None) -> Pointer:
        """Makes `manifest` the served generation if `required` still is; raises ConflictError otherwise.

        An OSError leaves the outcome unknown: nothing is deleted then, and publishing again is safe.
        """
        with self._locked(manifest.project):
            current = self.pointer(manifest.project)
            faults.reach("publish.locked")
            following = advance(current, required=required, manifest=manifest)
            if following != current:
                self._swap(manifest.project, following)
            faults.reach("publish.swapped")
            return following

    def refuse(self, manifest: Manifest, reason: str) -> None:
        """Notes why a finished generation was not published."""
        note = {"generation": manifest.generation, "reason": reason}
        _write_durably(self._project(manifest.project) / _REFUSED, json.dumps(note).encode())

    def refused(self, project: str) -> dict[str, str] | None:
        """The newest build that was kept out, as {"generation", "reason"}, while it can still be published."""
        try:
            note = json.loads((self._project(project) / _REFUSED).read_bytes())
            name, reason = str(note["generation"]), str(note["reason"])
            waiting = name in self.finished(project) and name > (self.pointer(project).generation or "")
        except (OSError, ValueError, TypeError, KeyError, CorruptIndexError):
            return None
        return {"generation": name, "reason": reason} if waiting else None

    def set_aside_pointer(self, project: str) -> None:
        """Takes a damaged pointer out of the way, so that the next publish starts anew; the file is kept as evidence."""
        with self._locked(project):
            path = self._project(project) / _POINTER
            path.rename(path.with_name(f"{_POINTER}.damaged"))

    def roll_back(self, project: str, *, required: str | None = None) -> Pointer:
        """Serves the previous generation again; raises ConflictError when there is none, or when it is not `required`, where
        that is given."""
        with self._locked(project):
            faults.reach("rollback.locked")
            following = roll_back(self.pointer(project))
            if required is not None and following.generation != required:
                raise ConflictError(f"the previous generation was {required}, and is {following.generation} now")
            self._swap(project, following)
            return following

    def sweep(self, project: str, *, in_use: frozenset[str] = frozenset()) -> list[str]:
        """Removes generations that the pointer no longer names and builds that no live process owns; returns their names."""
        with self._locked(project):
            keep = retained(self.pointer(project)) | in_use
            newest = max(keep, default="")
            # A finished generation that is newer than the served one belongs to a builder that is about to publish it.
            doomed = [name for name in self.finished(project) if name not in keep and name < newest]
            for name in doomed:
                self._remove(self.folder(project, name))
            return doomed

    def collect(self, project: str, *, dry_run: bool = False, keep: frozenset[str] = frozenset()) -> list[Path]:
        """Removes everything that the pointer does not name, generations that were never published and leftovers among it;
        returns their folders.

        What a build that runs now may own stays: unfinished folders, and generations newer than the served one. With
        `dry_run` nothing is removed. Raises CorruptIndexError when the pointer is damaged: nobody knows what to keep then.
        """
        with self.build_lock_if_free(project) as nobody_builds, self._locked(project):
            faults.reach("gc.locked")
            return self._collect(project, keep, nobody_builds=nobody_builds, dry_run=dry_run)

    def discard_refused(self, project: str, keep: frozenset[str]) -> list[Path]:
        """As `collect`, for the holder of the project's build lock."""
        with self._locked(project):
            return self._collect(project, keep, nobody_builds=True, dry_run=False)

    def _collect(self, project: str, keep: frozenset[str], *, nobody_builds: bool, dry_run: bool) -> list[Path]:
        named = retained(self.pointer(project)) | keep
        newest = max(named, default="")
        doomed = [
            path
            for path in self._folders(project)
            if path.name not in named and (nobody_builds or (not path.name.endswith(_PART) and path.name < newest))
        ]
        if not dry_run:
            for path in doomed:
                self._remove(path)
        return doomed

    def _remove(self, path: Path) -> None:
        """Removes a folder. It loses its name first: one that is half gone, since its remover was killed, is no generation."""
        doomed = path if path.name.endswith(_PART) else path.with_name(path.name + _PART)
        if doomed != path:
            path.rename(doomed)
            faults.reach("sweep.renamed")
        shutil.rmtree(doomed, ignore_errors=True)
        faults.reach("sweep.removed")

    def _folders(self, project: str) -> list[Path]:
        folder = self._project(project)
        return sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []

    def discard_unfinished(self, project: str) -> list[str]:
        """Removes what a killed build left behind. Only for the holder of the project's build lock."""
        left = self.unfinished(project)
        for path in left:
            shutil.rmtree(path, ignore_errors=True)
        return [path.name for path in left]

    def _project(self, project: str) -> Path:
        if not NAME_PATTERN.fullmatch(project):
            raise NotFoundError(f"no project {project[:100]!r}")
        return self.root / project

    @contextmanager
    def _locked(self, project: str) -> Iterator[None]:
        folder = self._project(project)
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _swap(self, project: str, pointer: Pointer) -> None:
        _write_durably(self._project(project) / _POINTER, json.dumps(asdict(pointer)).encode(), "swap.written")
        faults.reach("swap.renamed")


def read_pointer(raw: object) -> Pointer:
    """The pointer that a JSON value says; raises ValueError or TypeError for anything else."""
    if not isinstance(raw, dict):
        raise TypeError("a pointer is an object")
    # A later version may have added members that this one can do without.
    pointer = Pointer(**{item.name: raw[item.name] for item in fields(Pointer) if item.name in raw})
    previous = () if pointer.previous is None else (pointer.previous,)
    for name in (pointer.generation, *previous):
        if not (isinstance(name, str) and NAME_PATTERN.fullmatch(name)):
            raise ValueError("a pointer names a generation")
    if type(pointer.sequence) is not int:
        raise TypeError("a pointer counts in whole numbers")
    return pointer


def link_tree(source: Path, target: Path) -> None:
    """The files of `source` under `target`, as hard links where the file system has them, else as copies."""
    for path in source.rglob("*"):
        goal = target / path.relative_to(source)
        if path.is_dir():
            goal.mkdir(parents=True, exist_ok=True)
            continue
        goal.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(path, goal)
        except OSError:
            shutil.copy2(path, goal)


def _write_durably(path: Path, data: bytes, after_write: str = "") -> None:
    """Temporary file, fsync, rename, fsync of the folder: the old content or the new, never a mix."""
    # One name: whoever writes holds the lock of it, and what a killed writer left is written over and not added to.
    temporary = path.with_name(f".{path.name}.new")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    if after_write:
        faults.reach(after_write)
    temporary.rename(path)
    _fsync(path.parent)


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
