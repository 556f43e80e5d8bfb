"""What of the served generations the shards cannot open, for whoever looks after the server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from cluster.errors import RaycallError, ShardError
from cluster.model.query import PartitionFailure, Pins

#: How long a shard may take to say what it has open, in seconds.
ASK_TIMEOUT_S = 5.0


class Opening(Protocol):
    """A shard, as far as it opens generations."""

    async def prepare(self, pins: Pins) -> tuple[PartitionFailure, ...]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedPart:
    """A part of a served generation that a shard cannot ask."""

    shard: str
    #: "*": every one that the shard is to hold.
    bucket: str
    #: An error code of `cluster.errors`, and its words: file names among them, for an admin alone.
    code: str
    detail: str


async def closed_parts(
    shards: Mapping[str, Opening],
    pins: Pins,
    held: Mapping[str, Iterable[tuple[str, str]]],
    timeout_s: float = ASK_TIMEOUT_S,
) -> dict[str, list[ClosedPart]]:
    """project -> what of its pinned generation cannot be asked, for those projects of which there is something.

    `held`: shard -> the (project, bucket) that it is to hold. Each shard tries to open what is not open, as for a question; one
    that is down or late lacks all that it is to hold.
    """

    async def asked(name: str) -> list[tuple[str, ClosedPart]]:
        try:
            async with asyncio.timeout(timeout_s):
                failures = await shards[name].prepare(pins)
        except Exception as error:
            late = "the shard did not answer in time" if isinstance(error, TimeoutError) else "the shard failed"
            detail = error.detail if isinstance(error, RaycallError) else late
            lost = ClosedPart(shard=name, bucket="*", code=ShardError.code, detail=detail)
            return [(project, lost) for project in sorted({project for project, _ in held[name]})]
        return [(one.project, ClosedPart(shard=name, bucket=one.bucket, code=one.code, detail=one.detail)) for one in failures]

    found: dict[str, list[ClosedPart]] = {}
    for parts in await asyncio.gather(*map(asked, sorted(held))):
        for project, part in parts:
            found.setdefault(project, []).append(part)
    return found
