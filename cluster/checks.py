"""Whether the files of a generation still are what its manifest says: their sizes and their checksums."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

from cluster.errors import CorruptIndexError
from cluster.model.manifest import Bucket, Manifest

#: What to do about an index that is damaged.
ADVICE = "'raycall generations verify' names the damaged files, and indexing again ('raycall index') rebuilds them"


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


def sizes(folder: Path) -> dict[str, int]:
    """Bytes of every file below `folder`, by its path relative to it, with "/" between segments."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.relative_to(folder).as_posix(): path.stat().st_size for path in files}


def faults(folder: Path, manifest: Manifest) -> list[str]:
    """Compares every file of a generation with its manifest, and says in words what is wrong with each that differs."""
    checks = FileChecks()
    return [fault for bucket in manifest.buckets for fault in checks.faults(folder / bucket.name, bucket, manifest.generation)]


def verify(folder: Path, manifest: Manifest) -> None:
    """Raises CorruptIndexError naming the first file of a generation that is not what its manifest says."""
    for fault in faults(folder, manifest):
        raise CorruptIndexError(fault)


#: Files that a process remembers as whole; beyond it all are forgotten and read again.
REMEMBERED_FILES = 20_000


class FileChecks:
    """Compares files with their manifests. A file that this process has read before is known by its inode, size and time of
    change, and is not read again: of a new generation that shares most of its files with the last, only the others are."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int, int, int], str] = {}

    def check(self, folder: Path, bucket: Bucket, generation: str, parts: tuple[str, ...] = ("",)) -> None:
        """Raises CorruptIndexError naming the first file that differs, of those whose path starts with one of `parts`."""
        for fault in self.faults(folder, bucket, generation, parts):
            raise CorruptIndexError(fault)

    def faults(self, folder: Path, bucket: Bucket, generation: str, parts: tuple[str, ...] = ("",)) -> Iterator[str]:
        """What is wrong with each file of `bucket`, which lies in `folder`, in words."""
        for relative, expected in bucket.checksums.items():
            if relative.startswith(parts):
                fault = self._fault(folder / relative, bucket.sizes.get(relative), expected)
                if fault:
                    yield f"{bucket.name}/{relative} of generation {generation} {fault}"

    def _fault(self, path: Path, size: int | None, expected: str) -> str | None:
        try:
            status = path.stat()
            if size is not None and status.st_size != size:
                return f"was changed: it has {status.st_size} bytes instead of {size}"
            key = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
            if key not in self._known:
                if len(self._known) >= REMEMBERED_FILES:
                    self._known.clear()
                self._known[key] = file_checksum(path)
        except FileNotFoundError:
            return "is missing"
        except OSError as error:
            return f"cannot be read: {error.strerror}"
        return None if self._known[key] == expected else "was changed: its checksum differs"
