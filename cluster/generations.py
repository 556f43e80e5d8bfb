"""The life of a generation, as pure functions on immutable values: which one is served, and what may replace it."""

from __future__ import annotations

from dataclasses import dataclass

from cluster.errors import ConflictError, CorruptIndexError
from cluster.model.manifest import Manifest


@dataclass(frozen=True, slots=True, kw_only=True)
class Pointer:
    """Which generation of a project is served. The one mutable thing of the index, replaced by compare-and-swap."""

    generation: str | None = None
    #: The one before, kept on disk for rollback.
    previous: str | None = None
    #: Counts the swaps, so that going back to an older generation is still a change.
    sequence: int = 0


def generation_id(now_ms: int, token: str) -> str:
    """An id that sorts by time of creation: `g<13 digits of ms>-<8 hex digits>`."""
    return f"g{now_ms:013d}-{token[:8]}"


def advance(current: Pointer, *, required: str | None, manifest: Manifest) -> Pointer:
    """The pointer after publishing `manifest` over the generation `required`.

    Publishing what is already served changes nothing: a repeated attempt whose first outcome was lost lands once. Raises
    ConflictError when something else was published meanwhile.
    """
    if current.generation == manifest.generation:
        return current
    if current.generation != required:
        raise ConflictError(f"generation {required} was to be replaced, but {current.generation} is served")
    check_manifest(manifest)
    return Pointer(generation=manifest.generation, previous=current.generation, sequence=current.sequence + 1)


def roll_back(current: Pointer) -> Pointer:
    """The pointer after going back to the previous generation. Raises ConflictError when there is none."""
    if current.previous is None:
        raise ConflictError("there is no previous generation to go back to")
    return Pointer(generation=current.previous, previous=current.generation, sequence=current.sequence + 1)


def retained(current: Pointer) -> frozenset[str]:
    """The generations that must stay on disk: the served one and the one before it."""
    return frozenset(name for name in (current.generation, current.previous) if name is not None)


def check_manifest(manifest: Manifest) -> None:
    """Post-condition of a build: raises CorruptIndexError when the manifest contradicts itself."""
    names = [bucket.name for bucket in manifest.buckets]
    if len(set(names)) != len(names):
        raise CorruptIndexError(f"generation {manifest.generation} names a bucket twice")
    for bucket in manifest.buckets:
        if not 0 <= bucket.vectors <= bucket.rows:
            raise CorruptIndexError(f"bucket {bucket.name} has {bucket.vectors} vectors for {bucket.rows} rows")
        if not any(path.endswith("rows.parquet") for path in bucket.checksums):
            raise CorruptIndexError(f"bucket {bucket.name} lists no rows")
