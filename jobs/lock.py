"""One ingest at a time: a lock that ends with its process, however that ends."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cluster.errors import ConflictError

_held: set[tuple[str, ...]] = set()
_guard = threading.Lock()


@contextmanager
def exclusive(folder: Path | None, owner: object, *name: str) -> Iterator[None]:
    """Holds the lock called `name`; raises ConflictError, with who holds it, when it is taken.

    With a `folder` it is a file lock between all processes that use the folder; without, it is between the users of the object
    `owner` in this process alone.
    """
    detail = f"{'/'.join(name)} is being indexed already"
    if folder is not None:
        with _file_lock(folder / f"{'.'.join(name)}.lock", detail):
            yield
        return
    key = (str(id(owner)), *name)
    with _guard:
        if key in _held:
            raise ConflictError(f"{detail}, by this process")
        _held.add(key)
    try:
        yield
    finally:
        with _guard:
            _held.discard(key)


@contextmanager
def _file_lock(path: Path, detail: str) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.read(descriptor, 20).decode("ascii", "replace").strip()
            by = f", by process {holder}" if holder else ""
            raise ConflictError(f"{detail}{by}: wait for it, or end it") from error
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)
