"""Questions and answers, as the shards, the router and the retrieval use case hand them to each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
import numpy.typing as npt

from cluster.model.guard import Guard
from cluster.model.manifest import VectorIdentity
from cluster.model.nodes import Node, Related

#: project -> generation id: which immutable generation of each project a query is answered from. Both legs of one query
#: carry the same pins, so a swap between them cannot mix two generations.
Pins = Mapping[str, str]


class Fusion(StrEnum):
    """How the two ranked lists become one."""

    WEIGHTED = "weighted"
    WEIGHTED_MAX = "weighted_max"
    RRF = "rrf"


class Statistics(StrEnum):
    """Over which documents BM25 takes its statistics."""

    #: Exactly those that the caller may read in the addressed partitions.
    VISIBLE = "visible"
    #: All of the addressed partitions.
    ALL = "all"


@dataclass(frozen=True, slots=True, kw_only=True)
class TermStatistics:
    """BM25's corpus statistics for one query, summed over partitions. Sums of these are these: `+` is associative."""

    #: Documents with at least one token in the field.
    documents: int
    #: Tokens of all those documents.
    tokens: int
    #: term -> documents that contain it.
    document_frequency: Mapping[str, int]

    def __add__(self, other: TermStatistics) -> TermStatistics:
        merged = dict(self.document_frequency)
        for term, count in other.document_frequency.items():
            merged[term] = merged.get(term, 0) + count
        return TermStatistics(
            documents=self.documents + other.documents,
            tokens=self.tokens + other.tokens,
            document_frequency=merged,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LexicalQuery:
    """One question to a lexical shard. `text` is plain text: no character of it is syntax."""

    text: str
    guard: Guard
    pins: Pins
    #: Hits wanted, 1 or more.
    k: int
    #: Statistics over all addressed partitions. None: this shard holds all of them and takes its own.
    statistics: TermStatistics | None = None
    #: What the asked shard itself gave as its part of `statistics`, so that it sees when its rows have changed since.
    own_statistics: TermStatistics | None = None
    statistics_mode: Statistics = Statistics.VISIBLE
    #: Milliseconds since the epoch after which nobody waits for the answer: a shard does not begin with it then.
    until_ms: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorQuery:
    """One question to a vector shard."""

    #: float32, shape (identity.dimensions,), unit length.
    vector: npt.NDArray[np.float32]
    identity: VectorIdentity
    guard: Guard
    pins: Pins
    k: int
    #: See `LexicalQuery.until_ms`.
    until_ms: int | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFailure:
    """A partition that could not answer, as data: the rest of the answer stands."""

    project: str
    generation: str
    bucket: str
    #: An error code of `cluster.errors`.
    code: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LegAnswer:
    """One shard's, or one whole leg's, ranked list: score descending, then id ascending; no id twice."""

    ids: tuple[str, ...]
    #: float64, shape (len(ids),): BM25 (0 or more) or cosine (-1 to 1).
    scores: npt.NDArray[np.float64]
    #: Rows that match and that the guard allows; None when the leg did not count (vectors match everything).
    matched: int | None = None
    asked: int = 0
    answered: int = 0
    failures: tuple[PartitionFailure, ...] = ()
    #: Projects of which a partition holds more changes in memory than its bound: a build is due.
    over_bound: tuple[str, ...] = ()
    #: Projects of which a partition holds so many that the newest rows are left out, until a build.
    left_out: tuple[str, ...] = ()
    #: Whether a write came between the statistics and the scores, so that the scores are not those of one index.
    moved: bool = False
    #: What a leg has to say for `explain`: terms and their statistics, the scan policy, cut terms.
    explain: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchRequest:
    """A validated question. Every bound has been checked at the edge."""

    query: str
    #: None: every project that the principal is a member of.
    projects: tuple[str, ...] | None = None
    limit: int = 10
    labels: tuple[str, ...] = ()
    fusion: Fusion = Fusion.WEIGHTED
    expand_hops: int = 1
    explain: bool = False
    statistics: Statistics = Statistics.VISIBLE
    #: Where the page before ended (see `serve.cursor`); None for the first.
    cursor: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """A hit's fused score and what it was made of; a part is None when that leg did not find the node."""

    fused: float
    #: Cosine as the index gave it, -1 to 1.
    vector: float | None
    #: BM25 as the index gave it, 0 or more.
    bm25: float | None
    #: BM25 after the fusion's scaling, 0 to 1; None where the fusion does not scale.
    bm25_scaled: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Snippet:
    """A passage of a hit. Offsets and lengths count code points of `text`."""

    text: str
    #: (start, end) of each match in `text`, end exclusive, ascending, not overlapping.
    matches: tuple[tuple[int, int], ...]
    #: Line in the source file of the snippet's first character, from 1; None without a source.
    start_line: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """One result."""

    node: Node
    score: Score
    snippet: Snippet
    related: tuple[Related, ...] = ()
    #: Related nodes that exist and may be read but were cut by the cap.
    related_omitted: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectFailure:
    """A project of which a part could not answer, as a caller is told: nothing in it depends on how many rows there are."""

    project: str
    generation: str
    #: An error code of `cluster.errors`.
    code: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LegReport:
    """What one leg did for this answer. Counted in projects: the number of a project's partitions follows from its rows, of
    which the caller may not read all."""

    #: "lexical" or "vector".
    leg: str
    ran: bool
    #: Projects that the leg was asked about, and those of them that answered whole.
    asked: int = 0
    answered: int = 0
    #: The others, by name.
    failed: tuple[ProjectFailure, ...] = ()
    hits: int = 0
    matched: int | None = None
    identity: str | None = None
    took_ms: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Degradation:
    """Something that made this answer less than it could be."""

    #: A stable code, for example "vector_leg_unavailable".
    code: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Disclosure:
    """The plain statement of what this answer is made of and what was left out."""

    legs: tuple[LegReport, ...]
    fusion: Fusion
    #: project -> generation that served.
    generations: Pins
    #: Distinct nodes that the legs proposed, before the cut to `limit`.
    candidates: int
    returned: int
    #: reason -> how many candidates or related nodes were left out for it.
    omitted: Mapping[str, int]
    #: How to get what was left out, in words a client can act on; None when nothing was.
    more: str | None
    degradations: tuple[Degradation, ...]
    #: phase -> milliseconds.
    timings_ms: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Hits, best first, and their disclosure."""

    query_id: str
    hits: tuple[Hit, ...]
    disclosure: Disclosure
    explain: Mapping[str, Any] | None = None
    #: For the next page; None when there is none.
    next_cursor: str | None = None
