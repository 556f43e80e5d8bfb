"""The ports: what the inside needs of the outside. Each has more than one implementation, and one contract suite over all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from cluster.model.access import ApiKey
from cluster.model.guard import Guard
from cluster.model.manifest import VectorIdentity
from cluster.model.nodes import Edge, Node, Related


@dataclass(frozen=True, slots=True, kw_only=True)
class FileState:
    """What the store remembers of an ingested file, so that a later run does only what changed."""

    account: str
    project: str
    path: str
    #: Hash of the file's bytes.
    content_hash: str
    #: Version of the extractor that read it; another version means reading it again.
    extractor: str
    #: What linking needs of this file (definitions, imports, calls), as the extractor gave it.
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    """A registered project."""

    account: str
    project: str
    #: Where it was indexed from; "" for one without a folder.
    root: str
    commit: str | None
    indexed_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What was answered to a request that has one effect however often it is sent. Stored together with that effect."""

    account: str
    #: Names the request; unique in the account.
    key: str
    #: Tells apart two requests of the same name.
    fingerprint: str
    #: The answer, as text that the store does not look into.
    answer: str
    #: Milliseconds since the epoch; a later batch with a receipt removes what has expired at its `now`.
    expires_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteBatch:
    """Changes that become visible together or not at all. Applied in the order of the fields."""

    #: Paths of (account, project) whose derived nodes are replaced: a `structure` node whose source is one of them and that is
    #: not in `nodes` is removed with the edges that leave it, in the same transaction, so that no reader sees none or both.
    replace_paths: tuple[tuple[str, str, str], ...] = ()
    nodes: tuple[Node, ...] = ()
    #: (from, type, to)
    remove_edges: tuple[tuple[str, str, str], ...] = ()
    edges: tuple[Edge, ...] = ()
    #: Ids to mark deleted at `now`, each with all that it contains (HAS_SECTION, HAS_CHUNK, DEFINES) in its project and store;
    #: `restore` takes the marks of that deletion away again, and leaves those that were there before.
    soft_delete: tuple[str, ...] = ()
    restore: tuple[str, ...] = ()
    #: Ids to remove for good, with the edges that leave them.
    purge: tuple[str, ...] = ()
    forget_files: tuple[tuple[str, str, str], ...] = ()
    files: tuple[FileState, ...] = ()
    projects: tuple[Project, ...] = ()
    #: Each takes the place of the one with its key.
    receipts: tuple[Receipt, ...] = ()
    #: Milliseconds since the epoch.
    now: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Present:
    """What a transaction sees before it changes anything."""

    #: The store's revision; a batch that changes a node or an edge makes the next one of it.
    revision: int
    #: The asked nodes that exist, soft-deleted ones and another account's too.
    nodes: Mapping[str, Node]
    #: The asked receipt, expired or not.
    receipt: Receipt | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One entry of the revision feed."""

    revision: int
    #: "node_written", "node_deleted" (soft), "node_removed", "edge_written", "edge_removed".
    kind: str
    #: The node's id, or "from\x1ftype\x1fto" for an edge.
    subject: str


class GraphStore(Protocol):
    """The system of record."""

    def write(self, batch: WriteBatch) -> int:
        """Applies `batch` in one transaction and returns the new revision (the old one when no node or edge changed).

        A node or edge that is already stored with the same content is no change: it keeps its revision and enters no feed.
        """
        ...

    def transact(self, ids: Sequence[str], receipt: str, decide: Callable[[Present], WriteBatch | None]) -> int:
        """As `write`, of what `decide` makes of the nodes `ids` and the receipt of that key: nobody writes in between.

        None writes nothing. `decide` may be called again when the store tries the transaction again; other writers wait for it.
        What it raises is raised, and nothing is written.
        """
        ...

    def revision(self) -> int: ...
    def changes(self, since: int, limit: int = 10_000) -> list[Change]:
        """Entries with revision > `since`, ascending; never cuts one revision in two.

        A revision that alone is over `limit` comes whole.
        """
        ...

    def get_nodes(self, ids: Sequence[str], guard: Guard | None = None) -> dict[str, Node]:
        """The nodes among `ids` that exist (soft-deleted ones too) and that `guard` selects."""
        ...

    def scan(self, guard: Guard) -> Iterator[Node]:
        """Every node that `guard` selects, by id ascending, from one consistent snapshot."""
        ...

    def count(self, guard: Guard) -> int: ...
    def neighbours(self, ids: Sequence[str], guard: Guard, limit: int) -> tuple[dict[str, list[Related]], dict[str, int]]:
        """Both directions, at most `limit` a node, ordered by (type, direction, id of the neighbour).

        Also returns, by asked id, how many more the guard allows.
        """
        ...

    def crowded(self, ids: Sequence[str], most: int) -> bool:
        """Whether this process has to go through more than `most` edges to answer `neighbours` of `ids`; found out soon."""
        ...

    def edges(self, account: str, project: str) -> Iterator[Edge]: ...
    def files(self, account: str, project: str) -> dict[str, FileState]: ...
    def projects(self, account: str) -> list[Project]: ...
    def put_key(self, key: ApiKey) -> None: ...
    def find_key(self, secret_hash: str) -> ApiKey | None:
        """The key with that hash, revoked or not."""
        ...

    def keys(self, account: str) -> list[ApiKey]: ...
    def revoke_key(self, account: str, key_id: str, now: int) -> bool:
        """Whether there was such a key that was not revoked yet."""
        ...

    def close(self) -> None: ...


class Embedder(Protocol):
    """Turns text into vectors of one identity."""

    @property
    def identity(self) -> VectorIdentity: ...

    @property
    def max_tokens(self) -> int:
        """Tokens of one text that the model reads; what is longer is cut there."""
        ...

    def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """float32, shape (len(texts), dimensions), unit rows in the order of `texts`.

        A text that has no vector (no token the model knows) gives a row of NaN: the caller keeps it without a vector.
        Raises EmbedderError, with the reason, when the model cannot be asked or its reply is not usable.
        """
        ...

    def embed_query(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """As `embed`, with the model's query side."""
        ...


class VectorCache(Protocol):
    """Vectors by (identity, content hash), kept between runs."""

    def get(self, identity: VectorIdentity, hashes: Sequence[str]) -> dict[str, npt.NDArray[np.float32]]: ...
    def put(self, identity: VectorIdentity, vectors: Mapping[str, npt.NDArray[np.float32]]) -> None: ...
    def close(self) -> None: ...


class Clock(Protocol):
    """The time, as a parameter."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch, UTC."""
        ...

    def monotonic(self) -> float:
        """Seconds from an arbitrary start; never goes back."""
        ...
