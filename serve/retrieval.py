"""The use case: a question and a principal in, guarded hits and their disclosure out. Knows no HTTP and no Ray."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from cluster.errors import ConflictError, DeadlineError
from cluster.guards import expansion_guard, search_guard
from cluster.model.access import Principal, Role
from cluster.model.guard import Guard
from cluster.model.manifest import Manifest
from cluster.model.nodes import Node
from cluster.model.query import Answer, Degradation, Disclosure, Hit, Score, SearchRequest
from cluster.ports import Clock, GraphStore
from serve import explanation
from serve.cursor import Cursor, read_cursor, start_after, write_cursor
from serve.fusion import Candidate, fuse
from serve.labels import unknown_labels
from serve.legs import LegOutcome, LegRunner, Legs
from serve.plan import Plan, make_plan
from serve.question import MAX_LIMIT
from serve.related import RELATED_CAP, Neighbourhood, expand
from serve.snippet import make_snippet, query_words

__all__ = ["WINDOW", "Legs", "Retrieval"]

logger = logging.getLogger(__name__)

#: Candidates of each leg. The same for every limit, so that a larger limit only makes the same list longer: BM25 is scaled
#: over these candidates.
WINDOW = 100
DEADLINE_S = 2.0
#: Parts of a request's time after which the legs are left as they are, and after which no further hop is begun: without them
#: one slow shard would leave no time to read the hits that the others found.
LEGS_SHARE, HOPS_SHARE = 0.75, 0.9
#: Hits and their hops, counted roughly, that are read from the store on the event loop itself: with 20,000 nodes in SQLite some
#: 2 ms, where a thread would cost more than it frees. More (100 hits with 3 hops: 0.3 s) is read in a thread, so that other
#: questions go on.
INLINE_ROWS = 20
#: Edges that are gone through on the event loop itself for one hop: each takes about 5 us, whether its end is shown or not. One
#: hit with 30,000 would keep all others waiting for 0.14 s.
INLINE_EDGES = 1_000

_Result = TypeVar("_Result")


@dataclass(slots=True)
class _Hydrated:
    """Candidates that passed the second look, in fused order, and what became of the others that were looked at."""

    nodes: list[tuple[Node, Score]] = field(default_factory=list)
    refused: int = 0
    gone: int = 0
    #: Candidates before the first and behind the last that was looked at: positions in the fused list.
    start: int = 0
    end: int = 0
    #: Whether there was time for every hop.
    expanded: bool = True
    #: Whether a hop was left to a thread.
    crowded: bool = False


class Retrieval:
    """Answers questions for one account."""

    def __init__(
        self,
        *,
        account: str,
        store: GraphStore,
        legs: Legs,
        clock: Clock,
        deadline_s: float = DEADLINE_S,
        related_cap: int = RELATED_CAP,
        new_id: Callable[[], str] = lambda: secrets.token_hex(8),
    ) -> None:
        self._account = account
        self._store = store
        self._legs = legs
        self._clock = clock
        #: Longest time that a request may have.
        self.deadline_s = deadline_s
        self._related_cap = related_cap
        self._new_id = new_id

    def deadline(self, timeout_s: float | None = None) -> float:
        """When a request that arrives now must be answered, on the clock: after `timeout_s`, but no later than they all."""
        return self._clock.monotonic() + min(self.deadline_s, self.deadline_s if timeout_s is None else timeout_s)

    def seconds_left(self, deadline: float) -> float:
        """Seconds until `deadline`, 0 or more."""
        return max(0.0, deadline - self._clock.monotonic())

    async def search(
        self,
        request: SearchRequest,
        principal: Principal,
        *,
        query_id: str | None = None,
        notices: Sequence[Degradation] = (),
        deadline: float | None = None,
    ) -> Answer:
        """The answer to `request` by its `deadline` (see there; None: it arrives now). What is not begun by then is left out.

        `notices`: what the front changed on the way in; they lead the disclosure's degradations. Raises NotFoundError for a
        project that the principal may not search, ForbiddenError for statistics it may not have, an UnavailableError when
        no leg is left, and DeadlineError when its hits could not be read in time; a store that cannot be read fails the call,
        since nothing may be shown unchecked.
        """
        query_id = query_id or self._new_id()
        phases = _Phases(self._clock, self.deadline() if deadline is None else deadline)
        phases.check()
        registered = [project.project for project in self._store.projects(self._account)]
        cursor = None if request.cursor is None else read_cursor(request.cursor, request, principal)
        plan = make_plan(request, principal, self._generations(cursor), registered, self._legs.unserved())
        guard = search_guard(principal, plan.pins, request.labels)
        phases.end("plan")
        outcomes = await self._runner(request, principal, plan, guard, phases.until(LEGS_SHARE), query_id).run()
        phases.end("legs")
        candidates = fuse(outcomes[0].answer, outcomes[1].answer, request.fusion)
        phases.end("fuse")
        start = 0 if cursor is None else start_after(candidates, cursor.last, request.fusion)
        finish = partial(self._finish, request, principal, guard, candidates, start, query_id, phases)
        rows = request.limit * (1 + request.expand_hops)
        hydrated, hits = finish(inline=True) if rows <= INLINE_ROWS else await phases.in_thread(finish)
        if hydrated.crowded:
            hydrated, hits = await phases.in_thread(finish)
        if request.labels:
            notices = (*notices, *await self._unknown_labels(request, principal, plan, hits, phases))
        disclosure = _disclosure(request, plan, outcomes, len(candidates), hydrated, hits, notices, phases)
        if disclosure.degradations:
            codes = [degradation.code for degradation in disclosure.degradations]
            logger.info("answered with less", extra={"action": "search_degraded", "query_id": query_id, "codes": codes})
        explain = explanation.explain(request, principal, plan, outcomes, hits) if request.explain else None
        following = None
        if hits and hydrated.end < len(candidates):
            # The last one that was shown, not the last that was looked at: what was refused must not be named.
            last = next(candidate for candidate in candidates[hydrated.start :] if candidate.id == hits[-1].node.id)
            following = write_cursor(request, principal, plan.pins, last)
        return Answer(query_id=query_id, hits=hits, disclosure=disclosure, explain=explain, next_cursor=following)

    async def _unknown_labels(
        self, request: SearchRequest, principal: Principal, plan: Plan, hits: Sequence[Hit], phases: _Phases
    ) -> tuple[Degradation, ...]:
        seen = {label for hit in hits for label in hit.node.labels}
        deadline = phases.until(LEGS_SHARE)
        return await unknown_labels(self._legs, request, principal, plan.pins, seen, deadline, self.seconds_left(deadline))

    def _generations(self, cursor: Cursor | None) -> Mapping[str, Manifest]:
        """The generations to ask: those that are served, or those that the page before was read from."""
        if cursor is None:
            return self._legs.served()
        pinned = {project: self._legs.manifest(project, generation) for project, generation in cursor.pins.items()}
        if None in pinned.values():
            raise ConflictError(
                "the index that these pages are read from was replaced; ask again from the start", field="cursor"
            )
        return {project: manifest for project, manifest in pinned.items() if manifest is not None}

    def _runner(
        self, request: SearchRequest, principal: Principal, plan: Plan, guard: Guard, deadline: float, query_id: str
    ) -> LegRunner:
        return LegRunner(
            legs=self._legs,
            clock=self._clock,
            request=request,
            plan=plan,
            guard=guard,
            window=WINDOW,
            deadline=deadline,
            query_id=query_id,
            caller=principal.key_id,
            reads_all=principal.role is Role.ADMIN and principal.agent is None,
        )

    def _finish(
        self,
        request: SearchRequest,
        principal: Principal,
        guard: Guard,
        candidates: Sequence[Candidate],
        start: int,
        query_id: str,
        phases: _Phases,
        *,
        inline: bool = False,
    ) -> tuple[_Hydrated, tuple[Hit, ...]]:
        """From candidates to hits: everything that reads the store. It may have waited for a thread.

        `inline`: on the event loop; a hop through too many edges for it is not begun then, and all is to be done in a thread.
        """
        phases.check()
        hydrated = self._hydrate(candidates, start, guard, request.limit, query_id)
        phases.end("hydrate")
        hit_ids = [node.id for node, _ in hydrated.nodes]
        readable, hops = expansion_guard(principal), request.expand_hops

        def may_go(asked: Sequence[str]) -> bool:
            hydrated.crowded = inline and self._store.crowded(asked, INLINE_EDGES)
            return not hydrated.crowded and phases.time_for_a_hop()

        around, hydrated.expanded = expand(self._store, hit_ids, readable, hops, self._related_cap, may_go)
        if hydrated.crowded:
            return hydrated, ()
        phases.end("expand")
        hits = _hits(request.query, hydrated, around)
        phases.end("snippets")
        return hydrated, hits

    def _hydrate(self, candidates: Sequence[Candidate], start: int, guard: Guard, limit: int, query_id: str) -> _Hydrated:
        """The best `limit` candidates from position `start` on that the store of record has and that `guard` allows there too.

        A candidate that fails here makes room for the next one. The indexes filter by the same guard, so a refusal means that
        an index is behind the store or wrong: it is logged as an alarm, and the candidate is never shown.
        """
        result = _Hydrated(start=start)
        at = start
        while at < len(candidates) and len(result.nodes) < limit:
            batch = candidates[at : at + limit - len(result.nodes)]
            at += len(batch)
            allowed = self._store.get_nodes([candidate.id for candidate in batch], guard)
            result.nodes += [(allowed[candidate.id], candidate.score) for candidate in batch if candidate.id in allowed]
            lost = [candidate.id for candidate in batch if candidate.id not in allowed]
            if lost:
                refused = sorted(self._store.get_nodes(lost))
                result.refused += len(refused)
                result.gone += len(lost) - len(refused)
                if refused:
                    extra = {"action": "guard_recheck_drop", "query_id": query_id, "node_ids": refused}
                    logger.error("candidates dropped by the second guard check", extra=extra)
        result.end = at
        return result


class _Phases:
    """A request's time: milliseconds by phase, and what remains until `deadline`."""

    def __init__(self, clock: Clock, deadline: float) -> None:
        self._clock = clock
        self._deadline = deadline
        self.started = self._last = clock.monotonic()
        self.ms: dict[str, float] = {}

    def until(self, share: float) -> float:
        """The time at which `share` of what was left at the start is over."""
        return self.started + share * (self._deadline - self.started)

    def check(self) -> None:
        """Raises DeadlineError when the time is over."""
        if self._clock.monotonic() >= self._deadline:
            raise DeadlineError("the time of this question was over before its hits were read; ask for less, or try again")

    def time_for_a_hop(self) -> bool:
        """Whether another hop may be begun."""
        return self._clock.monotonic() < self.until(HOPS_SHARE)

    async def in_thread(self, work: Callable[[], _Result]) -> _Result:
        """What `work` gives in a thread, waited for as long as there is time; what no thread has begun is not begun then."""
        try:
            async with asyncio.timeout(self._deadline - self._clock.monotonic()):
                return await asyncio.to_thread(work)
        except TimeoutError as error:
            raise DeadlineError("the hits of this question could not be read in time; ask for less, or try again") from error

    def end(self, phase: str) -> None:
        now = self._clock.monotonic()
        self.ms[phase] = round((now - self._last) * 1000, 3)
        self._last = now

    def total_ms(self) -> float:
        return round((self._clock.monotonic() - self.started) * 1000, 3)


def _hits(query: str, hydrated: _Hydrated, around: dict[str, Neighbourhood]) -> tuple[Hit, ...]:
    words = query_words(query)
    return tuple(
        Hit(
            node=node,
            score=score,
            snippet=make_snippet(node, words),
            related=tuple(around[node.id].related),
            related_omitted=around[node.id].omitted,
        )
        for node, score in hydrated.nodes
    )


def _disclosure(
    request: SearchRequest,
    plan: Plan,
    outcomes: tuple[LegOutcome, LegOutcome],
    candidates: int,
    hydrated: _Hydrated,
    hits: tuple[Hit, ...],
    notices: Sequence[Degradation],
    phases: _Phases,
) -> Disclosure:
    over_limit = candidates - hydrated.end
    omitted = {
        "earlier_pages": hydrated.start,
        "over_limit": over_limit,
        "guard_recheck": hydrated.refused,
        "gone": hydrated.gone,
        "related_over_cap": sum(hit.related_omitted for hit in hits),
    }
    leg_timings = {phase: ms for outcome in outcomes for phase, ms in outcome.timings_ms.items()}
    return Disclosure(
        legs=tuple(outcome.report for outcome in outcomes),
        fusion=request.fusion,
        generations=dict(plan.pins),
        candidates=candidates,
        returned=len(hits),
        omitted={reason: count for reason, count in omitted.items() if count},
        more=_more(request, over_limit, outcomes[0]),
        degradations=(
            *notices,
            *plan.notices,
            *outcomes[0].notices,
            *outcomes[1].notices,
            *(() if hydrated.expanded else (_NOT_EXPANDED,)),
        ),
        timings_ms={**phases.ms, **leg_timings, "total": phases.total_ms()},
    )


_NOT_EXPANDED = Degradation(
    code="expansion_cut", detail="there was no time to follow the graph as far as was asked: related nodes are missing"
)


def _more(request: SearchRequest, over_limit: int, lexical: LegOutcome) -> str | None:
    sentences = []
    if over_limit > 0:
        wanted = min(MAX_LIMIT, request.limit + over_limit)
        larger = f"limit {wanted} (at most {MAX_LIMIT}) or " if request.limit < MAX_LIMIT and request.cursor is None else ""
        sentences.append(f"repeat the call with {larger}next_cursor as cursor for up to {over_limit} more candidates")
    beyond = (lexical.report.matched or 0) - lexical.report.hits
    if beyond > 0:
        sentences.append(
            f"each leg proposes its best {WINDOW}: narrow the question with projects or labels to reach what lies below"
        )
    return "; ".join(sentences) or None
