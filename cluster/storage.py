"""Generations on disk: written beside the served one, verified, and made current by one atomic pointer swap.

<root>/<project>/CURRENT             the pointer: generation, previous, sequence
<root>/<project>/<generation>/       manifest.json and one folder a bucket; never changed once it has this name
<root>/<project>/<generation>.part/  a build that is not finished; swept once its builder is gone
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from cluster.errors import CorruptIndexError, NotFoundError
from cluster.generations import Pointer, advance, check_manifest, retained, roll_back
from cluster.model.ids import NAME_PATTERN
from cluster.model.manifest import Manifest

_POINTER = "CURRENT"
_MANIFEST = "manifest.json"
_PART = ".part"


class GenerationStore:
    """The generations of one account's projects below one folder. Several processes may use the same folder."""

    def __init__(self, root: Path) -> None:
        self.root = Path(root)

    def projects(self) -> list[str]:
        """Projects that have a served generation, sorted."""
        if not self.root.is_dir():
            return []
        return sorted(path.name for path in self.root.iterdir() if (path / _POINTER).is_file())

    def pointer(self, project: str) -> Pointer:
        """The project's pointer; an empty one before the first publish. Raises CorruptIndexError when it is not readable."""
        try:
            raw = (self._project(project) / _POINTER).read_bytes()
        except FileNotFoundError:
            return Pointer()
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
        except ValueError as error:
            raise CorruptIndexError(f"manifest of {project}/{generation} is not readable: {error}") from error
        if not isinstance(raw, dict):
            raise CorruptIndexError(f"manifest of {project}/{generation} is no object")
        return Manifest.from_json(raw)

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
        for path in part.rglob("*"):
            _fsync(path)
        _fsync(part)
        final = part.with_name(manifest.generation)
        part.rename(final)
        _fsync(final.parent)
        return final

    def publish(self, manifest: Manifest, *, required: str | None) -> Pointer:
        """Makes `manifest` the served generation if `required` still is; raises ConflictError otherwise.

        An OSError leaves the outcome unknown: nothing is deleted then, and publishing again is safe.
        """
        with self._locked(manifest.project):
            current = self.pointer(manifest.project)
            following = advance(current, required=required, manifest=manifest)
            if following != current:
                self._swap(manifest.project, following)
            return following

    def set_aside_pointer(self, project: str) -> None:
        """Takes a damaged pointer out of the way, so that the next publish starts anew; the file is kept as evidence."""
        with self._locked(project):
            path = self._project(project) / _POINTER
            path.rename(path.with_name(f"{_POINTER}.damaged"))

    def roll_back(self, project: str) -> Pointer:
        """Serves the previous generation again; raises ConflictError when there is none."""
        with self._locked(project):
            following = roll_back(self.pointer(project))
            self._swap(project, following)
            return following

    def sweep(self, project: str, *, in_use: frozenset[str] = frozenset()) -> list[str]:
        """Removes generations that the pointer no longer names and builds that no live process owns; returns their names."""
        with self._locked(project):
            keep = retained(self.pointer(project)) | in_use
            doomed = [
                path
                for path in sorted(self._project(project).iterdir())
                if path.is_dir() and path.name not in keep and not path.name.endswith(_PART)
            ]
            newest = max(keep, default="")
            for path in doomed:
                # A finished generation that is newer than the served one belongs to a builder that is about to publish it.
                if path.name < newest:
                    shutil.rmtree(path, ignore_errors=True)
            return [path.name for path in doomed if path.name < newest]

    def discard_unfinished(self, project: str) -> list[str]:
        """Removes what a killed build left behind. Only for the holder of the project's build lock."""
        folder = self._project(project)
        if not folder.is_dir():
            return []
        left = [path for path in folder.iterdir() if path.name.endswith(_PART)]
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
        _write_durably(self._project(project) / _POINTER, json.dumps(asdict(pointer)).encode())


def read_pointer(raw: object) -> Pointer:
    """The pointer that a JSON value says; raises ValueError or TypeError for anything else."""
    if not isinstance(raw, dict):
        raise TypeError("a pointer is an object")
    pointer = Pointer(**raw)
    for name in (pointer.generation, pointer.previous):
        if name is not None and not (isinstance(name, str) and NAME_PATTERN.fullmatch(name)):
            raise ValueError("a pointer names a generation")
    if type(pointer.sequence) is not int:
        raise TypeError("a pointer counts in whole numbers")
    return pointer


def checksums(folder: Path, prefix: str = "") -> dict[str, str]:
    """BLAKE2b-128 of every file below `folder`, by `prefix` and the path relative to it, with "/" between segments."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            found[(Path(prefix) / path.relative_to(folder)).as_posix()] = file_checksum(path)
    return found


def file_checksum(path: Path) -> str:
    """BLAKE2b-128 of the file's bytes, 32 hex digits."""
    digest = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def verify(folder: Path, manifest: Manifest) -> None:
    """Compares every file of a generation with its manifest; raises CorruptIndexError naming the first that differs."""
    for bucket in manifest.buckets:
        for relative, expected in bucket.checksums.items():
            path = folder / bucket.name / relative
            if not path.is_file():
                raise CorruptIndexError(f"{bucket.name}/{relative} of generation {manifest.generation} is missing")
            if file_checksum(path) != expected:
                raise CorruptIndexError(f"{bucket.name}/{relative} of generation {manifest.generation} was changed")


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


def _write_durably(path: Path, data: bytes) -> None:
    """Temporary file, fsync, rename, fsync of the folder: the old content or the new, never a mix."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(path)
    _fsync(path.parent)


def _fsync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
