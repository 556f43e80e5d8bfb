"""The two legs of a question, run side by side; whatever happens to one of them is data, not an exception."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from cluster.checks import ADVICE
from cluster.embed.batching import estimate_tokens
from cluster.errors import (
    AnalyzerError,
    DeadlineError,
    EmbedderError,
    OverloadedError,
    RaycallError,
    ShardError,
    UnavailableError,
    UnreadableIndexError,
)
from cluster.model.guard import Guard
from cluster.model.manifest import Manifest, VectorIdentity
from cluster.model.query import (
    Degradation,
    LegAnswer,
    LegReport,
    LexicalQuery,
    PartitionFailure,
    Pins,
    ProjectFailure,
    SearchRequest,
    VectorQuery,
)
from cluster.ports import Clock
from serve.plan import Plan

logger = logging.getLogger(__name__)

LEXICAL, VECTOR = "lexical", "vector"
_Result = TypeVar("_Result")
#: Failures whose own words a caller may read. What is damaged says how, with row numbers and file names: for the log alone.
_OPEN_CODES = frozenset({UnavailableError.code, ShardError.code, OverloadedError.code, DeadlineError.code, AnalyzerError.code})


class Legs(Protocol):
    """The retrieval legs as the use case reaches them. `deadline`: absolute, in seconds of the same `Clock.monotonic`."""

    def served(self) -> Mapping[str, Manifest]:
        """project -> manifest of the generation that is served now; of the process's account alone."""
        ...

    def unserved(self) -> Mapping[str, str]:
        """project -> an error code, for those that were indexed and that nothing is served of."""
        ...

    def manifest(self, project: str, generation: str) -> Manifest | None:
        """The manifest of a generation that can still be asked, served or not; None when it is gone or another account's."""
        ...

    async def lexical(self, query: LexicalQuery, deadline: float) -> LegAnswer:
        """Raises UnavailableError when nothing answered."""
        ...

    async def vector(self, query: VectorQuery, deadline: float) -> LegAnswer:
        """Raises UnavailableError when nothing answered."""
        ...

    async def embed(self, text: str, identity: VectorIdentity, deadline: float, caller: str) -> npt.NDArray[np.float32] | None:
        """The query's vector, shape (identity.dimensions,), unit length; None when the text has none.

        Raises EmbedderError when the model did not answer.
        """
        ...

    def max_query_tokens(self, identity: VectorIdentity) -> int | None:
        """Tokens of a query that the model of `identity` reads; None when that is not known."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LegOutcome:
    """What one leg came to."""

    report: LegReport
    #: None when the leg is missing from the answer.
    answer: LegAnswer | None = None
    notices: tuple[Degradation, ...] = ()
    #: Why it is missing, if something failed.
    error: RaycallError | None = None
    timings_ms: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LegRunner:
    """Asks the legs about one question."""

    legs: Legs
    clock: Clock
    request: SearchRequest
    plan: Plan
    guard: Guard
    #: Candidates wanted of each leg.
    window: int
    #: Absolute, in seconds of `clock.monotonic`.
    deadline: float
    #: For log lines.
    query_id: str
    #: Who asks: what is remembered for one caller is not used for another, whose timings would tell of it.
    caller: str
    #: Whether the caller may read every row, and so may be told how many there are.
    reads_all: bool = False

    async def run(self) -> tuple[LegOutcome, LegOutcome]:
        """The lexical and the vector outcome. Raises an UnavailableError when a leg failed and the other one is missing too."""
        if not self.plan.pins:
            return _not_run(LEXICAL), _not_run(VECTOR)
        lexical, vector = await asyncio.gather(self._lexical(), self._vector())
        vector = _without_vectors(lexical, vector)
        errors = [outcome.error for outcome in (lexical, vector) if outcome.error is not None]
        if errors and lexical.answer is None and vector.answer is None:
            raise _nothing_left(errors) from errors[0]
        return replace(lexical, notices=(*lexical.notices, *self._delta_notices(lexical, vector))), vector

    def _delta_notices(self, *outcomes: LegOutcome) -> Iterator[Degradation]:
        """What is to be said of rows that were written since the index was built, once for both legs."""
        answers = [outcome.answer for outcome in outcomes if outcome.answer is not None]
        left_out = sorted({project for answer in answers for project in answer.left_out})
        if left_out:
            detail = "more was written since the index was built than the shards may hold; until the build that runs now is"
            yield Degradation(
                code="changes_left_out", detail=f"{detail} done, the newest rows are missing from: {', '.join(left_out)}"
            )
        over_bound = sorted({project for answer in answers for project in answer.over_bound} - set(left_out))
        # How much was written counts rows that not everybody may read; nothing is missing yet, so nobody else needs to know.
        if over_bound and self.reads_all:
            detail = f"much was written since the index was built, and a build is due: {', '.join(over_bound)}"
            yield Degradation(code="build_due", detail=detail)
        if any(answer.moved for answer in answers):
            detail = "rows were written while this question was answered: BM25 scores may mix two moments"
            yield Degradation(code="statistics_moved", detail=detail)

    async def _lexical(self) -> LegOutcome:
        query = LexicalQuery(
            text=self.request.query,
            guard=self.guard,
            pins=self.plan.pins,
            k=self.window,
            statistics_mode=self.request.statistics,
        )
        outcome = await self._asked(LEXICAL, self.plan.pins, lambda: self.legs.lexical(query, self.deadline))
        return replace(outcome, notices=(*outcome.notices, *_lexical_notices(outcome)))

    def _embedded(self, identity: VectorIdentity) -> Awaitable[npt.NDArray[np.float32] | None]:
        return self.legs.embed(self.request.query, identity, self.deadline, self.caller)

    async def _vector(self) -> LegOutcome:
        identity = self.plan.identity
        if identity is None:
            return _not_run(VECTOR)
        start = self.clock.monotonic()
        try:
            vector = await self._in_time(lambda: self._embedded(identity), EmbedderError)
        except RaycallError as error:
            self._log_failure(VECTOR, error)
            return _missing(VECTOR, error, "embedder_unavailable", self._since(start))
        took = {"embed": self._since(start)}
        if vector is None or not np.isfinite(vector).all():
            detail = "the embedding model knows nothing in this query: rows were found by their words alone"
            notice = Degradation(code="query_without_vector", detail=detail)
            return LegOutcome(report=LegReport(leg=VECTOR, ran=False), notices=(notice,), timings_ms=took)
        query = VectorQuery(vector=vector, identity=identity, guard=self.guard, pins=self.plan.vector_pins, k=self.window)
        outcome = await self._asked(VECTOR, self.plan.vector_pins, lambda: self.legs.vector(query, self.deadline), identity.key)
        notices = (*outcome.notices, *self._cut_notices(identity)) if outcome.answer is not None else outcome.notices
        return replace(outcome, notices=notices, timings_ms={**took, **outcome.timings_ms})

    def _cut_notices(self, identity: VectorIdentity) -> tuple[Degradation, ...]:
        """Counting exactly takes the model's own tokenizer; the estimate states a cut rather too often than too rarely."""
        most = self.legs.max_query_tokens(identity)
        if most is None or estimate_tokens(self.request.query) <= most:
            return ()
        detail = f"the model reads {most} tokens of a query, and this one may have more: its end counts by its words alone"
        return (Degradation(code="query_cut_for_vectors", detail=detail),)

    async def _asked(
        self, leg: str, pins: Pins, ask: Callable[[], Awaitable[LegAnswer]], identity: str | None = None
    ) -> LegOutcome:
        start = self.clock.monotonic()
        try:
            answer = await self._in_time(ask, ShardError)
        except RaycallError as error:
            self._log_failure(leg, error)
            return _missing(leg, error, f"{leg}_leg_unavailable", self._since(start))
        outcome = _answered(leg, pins, answer, identity, self._since(start))
        if outcome.error is not None:
            self._log_failure(leg, outcome.error)
        return outcome

    async def _in_time(self, ask: Callable[[], Awaitable[_Result]], kind: type[RaycallError]) -> _Result:
        """What `ask` gives. Everything else becomes an error of Raycall, `kind` where it is none yet."""
        try:
            async with asyncio.timeout(max(0.0, self.deadline - self.clock.monotonic())):
                return await ask()
        except RaycallError:
            raise
        except TimeoutError as error:
            raise kind("no answer in time") from error
        except Exception as error:
            # A fault of ours or of a library: the other leg can still answer. The trace is for the log alone.
            logger.exception("leg failed unexpectedly", extra={"action": "leg_crashed", "query_id": self.query_id})
            raise kind("it failed unexpectedly") from error

    def _since(self, start: float) -> float:
        return round((self.clock.monotonic() - start) * 1000, 3)

    def _log_failure(self, leg: str, error: RaycallError) -> None:
        extra = {"action": "leg_unavailable", "leg": leg, "code": error.code, "query_id": self.query_id}
        logger.warning("leg did not answer: %s", error.detail, extra=extra)


def _answered(leg: str, pins: Pins, answer: LegAnswer, identity: str | None, took_ms: float) -> LegOutcome:
    failed = _by_project(answer.failures)
    report = LegReport(
        leg=leg,
        ran=bool(answer.answered) or not answer.failures,
        asked=len(pins),
        answered=len(pins) - len(failed),
        failed=failed,
        hits=len(answer.ids),
        matched=answer.matched,
        identity=identity,
        took_ms=took_ms,
    )
    timings = {leg: took_ms}
    if not report.ran:
        missing = ShardError(failed[0].detail)
        notice = Degradation(code=f"{leg}_leg_unavailable", detail=f"no part of the index answered: {missing.detail}")
        return LegOutcome(report=report, notices=(notice,), error=missing, timings_ms=timings)
    notices = (_partition_notice(leg, failed),) if failed else ()
    return LegOutcome(report=report, answer=answer, notices=notices, timings_ms=timings)


def _by_project(failures: Iterable[PartitionFailure]) -> tuple[ProjectFailure, ...]:
    """One failure a project, the first one's."""
    found: dict[str, ProjectFailure] = {}
    for failure in sorted(failures, key=lambda failure: (failure.project, failure.bucket)):
        detail = f"a part of its index cannot be read: {ADVICE}"
        detail = failure.detail if failure.code in _OPEN_CODES else detail
        known = ProjectFailure(project=failure.project, generation=failure.generation, code=failure.code, detail=detail)
        found.setdefault(failure.project, known)
    return tuple(found.values())


def _without_vectors(lexical: LegOutcome, vector: LegOutcome) -> LegOutcome:
    """`vector`, taken out of the answer when it found nothing where words did: every row has some cosine, so what the question
    may read has no vector. The words then keep their full weight."""
    if vector.answer is None or vector.answer.ids or lexical.answer is None or not lexical.answer.ids:
        return vector
    if vector.report.failed:
        return replace(vector, answer=None)
    detail = "no row here has a vector yet: rows were found by their words alone"
    return replace(vector, answer=None, notices=(Degradation(code="no_vectors", detail=detail),))


def _nothing_left(errors: Sequence[RaycallError]) -> RaycallError:
    """What it means for the caller that no leg is left: try again later, try again, or what else helps."""
    if all(isinstance(error, OverloadedError) for error in errors):
        return OverloadedError("too many questions are waiting; try again later")
    if not all(isinstance(error, UnreadableIndexError) for error in errors):
        return ShardError("neither the lexical nor the vector leg answered; try again")
    kind = AnalyzerError if all(isinstance(error, AnalyzerError) for error in errors) else UnreadableIndexError
    return kind("; ".join(dict.fromkeys(error.detail for error in errors)))


def _not_run(leg: str) -> LegOutcome:
    return LegOutcome(report=LegReport(leg=leg, ran=False))


def _missing(leg: str, error: RaycallError, code: str, took_ms: float) -> LegOutcome:
    part = "embedder" if code == "embedder_unavailable" else f"{leg} leg"
    other = "words" if leg == VECTOR else "vectors"
    code = error.code if isinstance(error, AnalyzerError) else code
    detail = f"the {part} did not answer ({error.detail}): rows were found by their {other} alone"
    return LegOutcome(
        report=LegReport(leg=leg, ran=False, took_ms=took_ms),
        notices=(Degradation(code=code, detail=detail),),
        error=error,
        timings_ms={"embed" if part == "embedder" else leg: took_ms},
    )


def _partition_notice(leg: str, failed: Iterable[ProjectFailure]) -> Degradation:
    projects = ", ".join(failure.project for failure in failed)
    detail = f"a part of the {leg} index did not answer; rows are missing from: {projects}"
    return Degradation(code="partition_failed", detail=detail)


def _lexical_notices(outcome: LegOutcome) -> tuple[Degradation, ...]:
    if outcome.answer is None:
        return ()
    explain = outcome.answer.explain
    notices = []
    if explain.get("terms_cut"):
        detail = f"the query has too many words: its {len(explain.get('terms', ()))} rarest were looked for"
        notices.append(Degradation(code="query_terms_cut", detail=detail))
    if "terms" in explain and not explain["terms"]:
        notices.append(Degradation(code="no_terms", detail="the query holds no word to look for: the lexical leg has no hits"))
    return tuple(notices)
