"""Whether what a principal may not read can be told from its answers: each question is asked twice, of the data folder as it
is, and of a private index that holds nothing but what that principal may read. Both must say the same.

Hits: the same ids in the same order up to ties, and scores within SCORE_TOLERANCE. Everything else (counts, related nodes,
snippets, disclosure, explanation, error texts, both output forms) must be equal to the last byte, but for timings, ids of
queries and of generations. The next page of each answer is compared too.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cluster.config import Config
from cluster.errors import CorruptIndexError, RaycallError
from cluster.graph.sqlite import SqliteGraphStore
from cluster.guards import expansion_guard, search_guard
from cluster.model.access import Principal
from cluster.model.guard import All, Guard, In, IsNull
from cluster.model.manifest import Manifest, VectorIdentity
from cluster.model.nodes import Node
from cluster.model.query import Answer, LegAnswer, LexicalQuery, SearchRequest, VectorQuery
from cluster.ports import Embedder, GraphStore, WriteBatch
from cluster.storage import GenerationStore
from jobs.setup import SystemClock, first_and_target, generations_root, open_store, reindexer, threads_for
from serve.legs import LEXICAL, VECTOR
from serve.plain_index import Places, PlainIndex, opened, private_folder, retrieval_over
from serve.render import to_json, to_text
from serve.retrieval import Retrieval

Vector = npt.NDArray[np.float32]

#: How far the same score may differ: sums over other partitions round otherwise.
SCORE_TOLERANCE = 1e-6
#: Nodes or edges of one write into the private store.
BATCH = 2_000
#: Names of values that are scores, wherever they stand.
_SCORES = frozenset({"score", "fused", "vector", "bm25", "bm25_scaled"})
_TEXT_SCORE = re.compile(r"\(score: -?[0-9.]+\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """The first place at which two answers to a question say something else."""

    #: Place of the question in the log, from 1, and of the page, from 1.
    number: int
    page: int
    query: str
    #: Path into the answer, such as "disclosure.legs[0].matched".
    place: str
    #: As the data folder answers, and as an index of what may be read does.
    found: Any
    private: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class IsolationReport:
    """What the comparison came to."""

    queries: int
    pages: int
    #: Rows that the principal may find, and all live nodes of the account: what the comparison is worth.
    readable: int
    nodes: int
    difference: Difference | None

    @property
    def isolated(self) -> bool:
        """Whether nothing of what may not be read could be told."""
        return self.difference is None


def verify_isolation(config: Config, principal: Principal, requests: Sequence[SearchRequest]) -> IsolationReport:
    """Replays `requests` as `principal`, on the data folder and on a private copy of what it may read; stops at a difference.

    Raises CorruptIndexError when a served generation cannot be opened: nothing could be said then.
    """
    served = _served(config)
    embedders = tuple(dict.fromkeys(first_and_target(config, threads_for(config), config.embed.timeout_s)))
    with ExitStack() as stack:
        store = open_store(config)
        stack.callback(store.close)
        index = stack.enter_context(opened(config, served, embedders))
        _require_whole(index)
        private, seen = stack.enter_context(_private(config, store, principal, served, embedders))
        # The private side is asked after the other one, each time.
        sides = (retrieval_over(config, index, store), retrieval_over(config, _Aligned(private, index), seen))
        return asyncio.run(_compared(sides, store, principal, requests))


def _served(config: Config) -> dict[str, Manifest]:
    generations = GenerationStore(generations_root(config))
    found = {project: generations.current(project) for project in generations.projects()}
    return {name: manifest for name, manifest in found.items() if manifest is not None and manifest.account == config.account}


def _require_whole(index: PlainIndex) -> None:
    for failure in index.failures():
        raise CorruptIndexError(f"{failure.project}/{failure.bucket} cannot be searched: {failure.detail}")


class _Aligned:
    """A plain index whose scores are those of another where they differ by rounding alone.

    Ranks, scaled scores and the fusion by ranks follow from the order of a leg's hits, and the order of two that tie from the
    last bit of their scores, which sums over other partitions round otherwise. What differs by more stays as it is.
    """

    def __init__(self, own: PlainIndex, reference: PlainIndex) -> None:
        self._own = own
        self._reference = reference

    def served(self) -> Mapping[str, Manifest]:
        """See `Legs.served`."""
        return self._own.served()

    def unserved(self) -> Mapping[str, str]:
        """Nothing: what cannot be opened has been an error by now."""
        return {}

    def manifest(self, project: str, generation: str) -> Manifest | None:
        """See `Legs.manifest`."""
        return self._own.manifest(project, generation)

    async def lexical(self, query: LexicalQuery, deadline: float) -> LegAnswer:
        """See `Legs.lexical`."""
        return aligned(await self._own.lexical(query, deadline), self._reference.last.get(LEXICAL))

    async def vector(self, query: VectorQuery, deadline: float) -> LegAnswer:
        """See `Legs.vector`."""
        return aligned(await self._own.vector(query, deadline), self._reference.last.get(VECTOR))

    async def embed(self, text: str, identity: VectorIdentity, deadline: float, caller: str) -> Vector | None:
        """See `Legs.embed`."""
        return await self._own.embed(text, identity, deadline, caller)

    def max_query_tokens(self, identity: VectorIdentity) -> int | None:
        """See `Legs.max_query_tokens`."""
        return self._own.max_query_tokens(identity)


async def _compared(
    sides: tuple[Retrieval, Retrieval], store: GraphStore, principal: Principal, requests: Sequence[SearchRequest]
) -> IsolationReport:
    pages, difference = 0, None
    for number, request in enumerate(requests, 1):
        asked: tuple[SearchRequest, SearchRequest] | None = (replace(request, explain=True, cursor=None),) * 2
        for page in (1, 2):
            if asked is None or difference is not None:
                break
            pages += 1
            answers = [await _answered(side, each, principal) for side, each in zip(sides, asked, strict=True)]
            place = first_difference(answers[0].value, answers[1].value)
            if place is not None:
                difference = Difference(number=number, page=page, query=request.query, **place)
            cursors = [answer.cursor for answer in answers]
            left, right = cursors
            asked = None if left is None or right is None else (replace(asked[0], cursor=left), replace(asked[1], cursor=right))
        if difference is not None:
            break
    return IsolationReport(
        queries=len(requests),
        pages=pages,
        readable=store.count(search_guard(principal)),
        nodes=sum(1 for _ in _live(store, principal)),
        difference=difference,
    )


def _live(store: GraphStore, principal: Principal) -> Iterator[Node]:
    return store.scan(All((IsNull("deleted_at"), In("account", (principal.account,)))))


@dataclass(frozen=True, slots=True)
class _Told:
    """All that a caller is told, as JSON values, and the cursor of the next page."""

    value: Any
    cursor: str | None = None


async def _answered(side: Retrieval, request: SearchRequest, principal: Principal) -> _Told:
    try:
        answer = await side.search(request, principal, query_id="query")
    except RaycallError as error:
        return _Told({"error": {"code": error.code, "detail": error.detail, "field": error.field}})
    return _Told(normalised(answer), answer.next_cursor)


# --- comparing; pure ---------------------------------------------------------------------------------------------------------


def normalised(answer: Answer) -> dict[str, Any]:
    """Both forms of an answer without what differs between any two runs: timings, ids of generations, and what holds them."""
    plain = replace(
        answer,
        next_cursor=None if answer.next_cursor is None else "cursor",
        disclosure=replace(
            answer.disclosure,
            generations=dict.fromkeys(answer.disclosure.generations, "generation"),
            timings_ms=dict.fromkeys(answer.disclosure.timings_ms, 0.0),
            legs=tuple(
                replace(leg, took_ms=0.0, failed=tuple(replace(failure, generation="generation") for failure in leg.failed))
                for leg in answer.disclosure.legs
            ),
        ),
    )
    # The text form rounds scores; those are compared where they are whole.
    return {**json.loads(json.dumps(to_json(plain))), "text": _TEXT_SCORE.sub("(score)", to_text(plain))}


def aligned(answer: LegAnswer, reference: LegAnswer | None) -> LegAnswer:
    """`answer` with the scores of `reference` for the ids whose own are within SCORE_TOLERANCE of them, in their order."""
    if reference is None:
        return answer
    known = dict(zip(reference.ids, reference.scores.tolist(), strict=True))
    hits = list(zip(answer.ids, answer.scores.tolist(), strict=True))
    taken = [(key, known[key] if abs(known.get(key, math.inf) - score) <= SCORE_TOLERANCE else score) for key, score in hits]
    taken.sort(key=lambda hit: (-hit[1], hit[0]))
    return replace(answer, ids=tuple(key for key, _ in taken), scores=np.array([score for _, score in taken], dtype=np.float64))


def first_difference(found: Any, private: Any) -> dict[str, Any] | None:
    """Where two told values differ, as {"place", "found", "private"}; None when they say the same."""
    if not isinstance(found, dict) or not isinstance(private, dict) or "hits" not in found or "hits" not in private:
        return _difference("", found, private)
    wrong = _hits_difference(found["hits"], private["hits"])
    if wrong is not None:
        return wrong
    # Ties may stand in another order; from here on they stand in the same one.
    order = {hit["id"]: place for place, hit in enumerate(found["hits"])}
    return _difference("", found, _reordered(private, order))


def _hits_difference(found: Sequence[Mapping[str, Any]], private: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    if len(found) != len(private):
        return _told("hits", [hit["id"] for hit in found], [hit["id"] for hit in private])
    for place, (left, right) in enumerate(zip(found, private, strict=True)):
        if abs(left["score"] - right["score"]) > SCORE_TOLERANCE:
            return _told(f"hits[{place}].score", left["score"], right["score"])
    for group in _ties([hit["score"] for hit in private]):
        left_ids, right_ids = ({hit["id"] for hit in hits[group]} for hits in (found, private))
        # A tie that the limit cuts may show any of its members.
        if left_ids != right_ids:
            return _told(f"hits[{group.start}:{group.stop}].id", sorted(left_ids), sorted(right_ids))
    return None


def _ties(scores: Sequence[float]) -> Iterator[slice]:
    """The runs of equal scores, of scores that descend."""
    start = 0
    for place in range(1, len(scores) + 1):
        if place == len(scores) or abs(scores[place] - scores[place - 1]) > SCORE_TOLERANCE:
            yield slice(start, place)
            start = place


def _reordered(told: dict[str, Any], order: Mapping[str, int]) -> dict[str, Any]:
    def sort(hits: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        return sorted(hits, key=lambda hit: order[hit["id"]])

    same = [hit["id"] for hit in told["hits"]] == list(order)
    explain = told["explain"]
    if same or explain is None:
        return told
    # The text form repeats the order; where ties moved it says nothing more.
    return {**told, "hits": sort(told["hits"]), "explain": {**explain, "hits": sort(explain["hits"])}, "text": None}


def _difference(place: str, found: Any, private: Any) -> dict[str, Any] | None:
    if place.endswith("text") and (found is None or private is None):
        return None
    if isinstance(found, dict) and isinstance(private, dict) and list(found) == list(private):
        return _first(_difference(f"{place}.{name}" if place else name, found[name], private[name]) for name in found)
    if isinstance(found, list) and isinstance(private, list) and len(found) == len(private):
        both = zip(found, private, strict=True)
        return _first(_difference(f"{place}[{number}]", left, right) for number, (left, right) in enumerate(both))
    if place.rpartition(".")[2] in _SCORES and isinstance(found, float) and isinstance(private, float):
        return None if abs(found - private) <= SCORE_TOLERANCE else _told(place, found, private)
    return None if type(found) is type(private) and found == private else _told(place, found, private)


def _first(found: Iterable[dict[str, Any] | None]) -> dict[str, Any] | None:
    return next((item for item in found if item is not None), None)


def _told(place: str, found: Any, private: Any) -> dict[str, Any]:
    return {"place": place, "found": found, "private": private}


# --- the private copy --------------------------------------------------------------------------------------------------------


@contextmanager
def _private(
    config: Config, store: GraphStore, principal: Principal, served: Mapping[str, Manifest], embedders: Sequence[Embedder]
) -> Iterator[tuple[PlainIndex, GraphStore]]:
    """A fresh index of what `principal` may find, and a store of that and of what it may see as related beside it."""
    with private_folder() as folder, ExitStack() as stack:
        rows = _copied(config, store, search_guard(principal), principal, folder / "rows.sqlite", edges=False)
        stack.callback(rows.close)
        seen = _copied(config, store, expansion_guard(principal), principal, folder / "seen.sqlite", edges=True)
        stack.callback(seen.close)
        known = {name: item for name, item in served.items() if principal.projects is None or name in principal.projects}
        places = Places(generations=folder / "generations", graph=folder / "rows.sqlite", vectors=Places.of(config).vectors)
        built = _built(config, rows, places.generations, known)
        index = stack.enter_context(opened(config, built, embedders, places))
        _require_whole(index)
        yield index, seen


def _copied(
    config: Config, store: GraphStore, guard: Guard, principal: Principal, path: Path, *, edges: bool
) -> SqliteGraphStore:
    """A new store of the nodes that `guard` selects, with the edges between them, and the projects that are known."""
    copy = SqliteGraphStore(path, account=config.account)
    projects = store.projects(config.account)
    known = [item for item in projects if principal.projects is None or item.project in principal.projects]
    copy.write(WriteBatch(projects=tuple(known)))
    ids: set[str] = set()
    nodes = store.scan(guard)
    while batch := tuple(islice(nodes, BATCH)):
        copy.write(WriteBatch(nodes=batch))
        ids.update(node.id for node in batch)
    names = sorted({item.project for item in projects} | {node.project for node in _live(store, principal)}) if edges else []
    for name in names:
        between = (edge for edge in store.edges(config.account, name) if edge.from_id in ids and edge.to_id in ids)
        while some := tuple(islice(between, BATCH)):
            copy.write(WriteBatch(edges=some))
    return copy


def _built(config: Config, rows: SqliteGraphStore, root: Path, served: Mapping[str, Manifest]) -> dict[str, Manifest]:
    """A fresh generation of each served project, with vectors of the same identity out of the cache."""
    generations, clock = GenerationStore(root), SystemClock()
    with reindexer(config) as jobs:
        builder = replace(jobs.builder, store=rows, generations=generations)
        return {
            project: builder.build(config.account, project, manifest.identity, clock.now_ms(), None)
            for project, manifest in served.items()
        }
