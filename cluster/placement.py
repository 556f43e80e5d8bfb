"""Where things go: rows into buckets, buckets onto shards. Pure, and the same on every machine and in every run."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence


def bucket_count(rows: int, target_rows: int) -> int:
    """Buckets for `rows` rows: ceil(rows / target_rows), at least 1."""
    return max(1, -(-rows // target_rows))


def bucket_of(row_id: str, buckets: int) -> int:
    """The bucket of a row, 0 to buckets - 1, by a hash of its id."""
    return _hash(row_id) % buckets


def shard_of(project: str, bucket: str, shards: Sequence[str]) -> str:
    """The shard that holds a bucket, by rendezvous (highest random weight) hashing.

    Adding a shard moves only the buckets that the new shard wins; removing one moves only its own. Thaler and Ravishankar,
    "Using name-based mappings to increase hit rates", 1998.
    """
    if not shards:
        raise ValueError("no shard to place on")
    return max(shards, key=lambda shard: (_hash(f"{shard}\x1f{project}\x1f{bucket}"), shard))


def replica_name(shard: str, number: int) -> str:
    """The name of a shard's replica `number`, from 0. All replicas of a shard hold what is placed on the shard."""
    return f"{shard}.{number}" if number else shard


def _hash(value: str) -> int:
    return int.from_bytes(hashlib.blake2b(value.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")
