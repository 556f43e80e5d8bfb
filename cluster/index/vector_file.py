"""The files of a bucket's vectors, as far as FAISS has no part in them. Pure Python and numpy.

    vectors.faiss       <FAISS index> <trailer>
    vectors.faiss.f32   <float32, little-endian, row after row from byte 0> <trailer>    beside quantised indexes alone

    trailer: <JSON of a Header> <length of the JSON, 8 bytes> <magic, 8 bytes>

FAISS stops reading where its index ends, so its file stays readable by FAISS alone, and what the vectors are cannot be
separated from them by a crash between two renames. Both files name the same digest of the float32 vectors: one that was left
behind by another write is seen. What is inside the files is for the generation's checksums to guard.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cluster.errors import CorruptIndexError
from cluster.model.manifest import VectorIdentity

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]

#: Raised when what is written changes. 1 had float32 alone, and always listed its row numbers; it is still read.
FORMAT = 2
_MAGIC = b"RAYCVEC\x01"
_RAW = "<f4"

#: Rows of a project above which `auto` takes one byte a number. At 384 dimensions float32 has 0.15 GB there. float16 is never
#: chosen: twice the memory, and it finds no more than bytes do once the rows are scored. It is quicker only where all allowed
#: rows are far from the question, since less must be scored for its smaller error (benchmarks/vectors.py).
SQ8_ABOVE = 100_000

#: Bytes of the mapped file that one index keeps in its process at most, beyond what one search touches.
MAPPED_BYTES = 2 << 20
#: What touching a row maps: Linux maps the pages around one that it has in its cache (fault_around_bytes, 64 KiB by default).
_TOUCH_BYTES = 64 << 10


class Precision(StrEnum):
    """How the numbers of the vectors that are searched are kept in memory. Scores are float32's, whatever it is."""

    FLOAT32 = "float32"
    FLOAT16 = "float16"
    SQ8 = "sq8"


def choose_precision(setting: str, rows: int) -> Precision:
    """What `setting` ("auto" or a Precision) means for a project of `rows` rows."""
    if setting != "auto":
        return Precision(setting)
    return Precision.SQ8 if rows > SQ8_ABOVE else Precision.FLOAT32


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What a file of vectors holds."""

    identity: VectorIdentity
    count: int
    #: Whether a graph lies over the vectors.
    graph: bool
    precision: Precision = Precision.FLOAT32
    #: Whether the file lists the row numbers; else they are 0 to count - 1.
    listed: bool = False
    #: No vector differs from its quantised form by a longer vector than this; 0 for float32.
    error: float = 0.0
    #: BLAKE2b-128 of the float32 vectors in the file beside; "" where there is none.
    digest: str = ""

    def to_bytes(self) -> bytes:
        """The trailer."""
        text = json.dumps({"format": FORMAT, **asdict(self)}, sort_keys=True).encode()
        return text + len(text).to_bytes(8, "little") + _MAGIC


def raw_path(path: Path) -> Path:
    """Where the float32 vectors of the FAISS file at `path` lie, if it has such."""
    return path.with_name(f"{path.name}.f32")


def digest_of(vectors: Floats) -> str:
    """What a Header calls `vectors` (float32, C order)."""
    return hashlib.blake2b(vectors.astype(_RAW, copy=False).data, digest_size=16).hexdigest()


def write_raw(path: Path, vectors: Floats, header: Header) -> None:
    """Writes the float32 vectors, whole or not at all and durable; raises CorruptIndexError when that fails."""
    write_whole(path, lambda part: vectors.astype(_RAW, copy=False).tofile(part), header)


def write_whole(path: Path, write: Callable[[Path], None], header: Header) -> None:
    """Has `write` make a file, puts the trailer behind it and moves it to `path`; raises CorruptIndexError when that fails."""
    part = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.part")
    try:
        write(part)
        with part.open("ab") as file:
            file.write(header.to_bytes())
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except (OSError, RuntimeError) as error:
        raise CorruptIndexError(f"{path.name} could not be written: {error}") from error
    finally:
        part.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read_header(path: Path) -> Header:
    """The trailer of a file; raises CorruptIndexError when it is missing, cut off or of a format that is not known."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 16))
            tail = file.read(16)
            length = int.from_bytes(tail[:8], "little")
            if tail[8:] != _MAGIC or length > size - 16:
                raise CorruptIndexError(f"{path.name} is not a vector file, or was cut off")
            file.seek(size - 16 - length)
            found: dict[str, Any] = json.loads(file.read(length))
    except OSError as error:
        raise CorruptIndexError(f"{path.name} cannot be opened: {error.strerror}") from error
    except ValueError as error:
        raise CorruptIndexError(f"{path.name} has an unreadable trailer") from error
    version = found.pop("format", None)
    if version not in (1, FORMAT):
        raise CorruptIndexError(f"{path.name} has format {version!r}, this program reads {FORMAT}")
    try:
        return _first_format(found) if version == 1 else _header(found)
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptIndexError(f"{path.name} has an unreadable trailer") from error


def _header(found: Mapping[str, Any]) -> Header:
    # A later version may have added fields that this one can do without.
    known = {item.name: found[item.name] for item in fields(Header) if item.name in found}
    return Header(**{**known, "identity": _identity(found), "precision": Precision(found["precision"])})


def _identity(found: Mapping[str, Any]) -> VectorIdentity:
    raw = found["identity"]
    return VectorIdentity(**{item.name: raw[item.name] for item in fields(VectorIdentity) if item.name in raw})


def _first_format(found: Mapping[str, Any]) -> Header:
    return Header(identity=_identity(found), count=found["count"], graph=found["kind"] == "graph", listed=True)


class RawVectors:
    """The float32 vectors of one index, read from a mapped file. Several threads may read.

    Pages that were read stay in the kernel's cache, but count as this process's memory for as long as they are mapped, and
    Linux maps many around each that is touched: some hundred queries would make the whole file resident. So they are unmapped
    once MAPPED_BYTES of them may have been touched; touching one again costs about 2 µs.
    """

    def __init__(self, path: Path, header: Header) -> None:
        """Maps the file at `path`; raises CorruptIndexError when it is not the one that `header` calls for."""
        if read_header(path) != header:
            raise CorruptIndexError(f"{path.name} belongs to another index")
        dimensions = header.identity.dimensions
        try:
            with path.open("rb") as file:
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except OSError as error:
            raise CorruptIndexError(f"{path.name} cannot be mapped: {error.strerror}") from error
        size = header.count * dimensions
        if len(self._map) != size * 4 + len(header.to_bytes()):
            raise CorruptIndexError(f"{path.name} does not hold what its trailer says")
        # Rows are read one by one, all over the file: what the kernel would read ahead is not what comes next.
        self._map.madvise(mmap.MADV_RANDOM)
        self._vectors = np.frombuffer(self._map, dtype=_RAW, count=size).reshape(header.count, dimensions)
        self._touched = 0

    def take(self, positions: Ints) -> Floats:
        """float32 of shape (len(positions), dimensions): a copy of those rows."""
        taken: Floats = self._vectors[positions].astype(np.float32, copy=False)
        # Two threads may count at once and lose a count: a trim comes a little later then.
        self._touched += len(positions) * _TOUCH_BYTES
        if self._touched > MAPPED_BYTES:
            self._touched = 0
            # Safe beside readers: a page of a read-only shared mapping comes back from the file.
            self._map.madvise(mmap.MADV_DONTNEED)
        return taken
