"""Whether a new generation may replace the served one: recorded questions are asked of both, and the answers compared."""

from __future__ import annotations

import asyncio
import math
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from cluster.config import Config
from cluster.errors import RaycallError, UsageError
from cluster.model.manifest import Manifest
from jobs.reindex import Gate
from jobs.setup import first_and_target, open_store, threads_for
from serve.plain_index import PlainIndex, opened, retrieval_over
from serve.query_log import RecordedQuery, read_queries
from serve.retrieval import Retrieval

#: Hits of an answer that are compared.
DEPTH = 10
#: How much lower than the served generation's the mean judged score may be where no bound is given.
SCORE_SLACK = 0.02
#: Added to both latencies before their ratio is taken: of two answers within a millisecond none is slow.
LATENCY_FLOOR_MS = 1.0
#: Rounds in which each question is asked of both; its latency is the best of them, since what else runs here only adds.
ROUNDS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What a new generation must keep."""

    #: Least mean overlap@10 of the two answers, 0 to 1.
    min_overlap: float = 0.8
    #: Most that the median answer may take, as a multiple of the served generation's.
    max_latency_ratio: float = 2.0
    #: Least mean nDCG@10 of the judged questions, 0 to 1; None: the served generation's less SCORE_SLACK.
    min_score: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What a generation answers to one question."""

    ids: tuple[str, ...]
    took_ms: float
    #: Why there is no answer.
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A question that is answered otherwise by the new generation."""

    query: str
    agent: str | None
    overlap: float
    #: nDCG@10 under both; None where nobody judged.
    score_before: float | None
    score_after: float | None
    before: tuple[str, ...]
    after: tuple[str, ...]
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GateReport:
    """What the comparison came to."""

    passed: bool
    #: Why not, a sentence each.
    reasons: tuple[str, ...]
    served: str
    candidate: str
    queries: int
    judged: int
    overlap: float
    score_before: float | None
    score_after: float | None
    latency_before_ms: float
    latency_after_ms: float
    latency_ratio: float
    #: Answers that differ in what they hold or in its order, worst first.
    changed: tuple[Change, ...]

    def to_json(self) -> dict[str, Any]:
        """JSON values."""
        return asdict(self)


# --- pure --------------------------------------------------------------------------------------------------------------------


def overlap(before: Sequence[str], after: Sequence[str]) -> float:
    """The part of the first DEPTH ids that both have, 0 to 1; of two empty answers 1."""
    left, right = set(before[:DEPTH]), set(after[:DEPTH])
    return len(left & right) / max(len(left), len(right), 1) if left or right else 1.0


def ndcg(ids: Sequence[str], grades: Mapping[str, float]) -> float:
    """nDCG@10 with the grade as the gain (Järvelin and Kekäläinen, TOIS 2002), 0 to 1; 0 where no grade is above 0."""
    gained = _discounted([grades.get(node_id, 0.0) for node_id in ids[:DEPTH]])
    best = _discounted(sorted(grades.values(), reverse=True)[:DEPTH])
    return gained / best if best else 0.0


def _discounted(gains: Sequence[float]) -> float:
    return sum(gain / math.log2(rank + 2) for rank, gain in enumerate(gains))


def compare(
    queries: Sequence[RecordedQuery],
    before: Sequence[Replayed],
    after: Sequence[Replayed],
    bounds: Bounds,
    names: tuple[str, str],
) -> GateReport:
    """The report on `names` (served, candidate), whose answers to the same questions are `before` and `after`; one at least."""
    changes = [_change(*each) for each in zip(queries, before, after, strict=True)]
    judged = [change for change in changes if change.score_after is not None and change.score_before is not None]
    mean = statistics.fmean(change.overlap for change in changes)
    scores = [_mean(getattr(change, name) for change in judged) for name in ("score_before", "score_after")]
    latencies = [statistics.median(answer.took_ms for answer in answers) for answers in (before, after)]
    ratio = (latencies[1] + LATENCY_FLOOR_MS) / (latencies[0] + LATENCY_FLOOR_MS)
    broken = [new for old, new in zip(before, after, strict=True) if new.error is not None and old.error is None]
    reasons = [f"{len(broken)} questions are not answered any more; the first: {broken[0].error}"] if broken else []
    if mean < bounds.min_overlap:
        reasons.append(f"overlap@{DEPTH} is {mean:.3f}, at least {bounds.min_overlap} is wanted")
    if ratio > bounds.max_latency_ratio:
        reasons.append(f"the median answer takes {ratio:.2f} times as long, at most {bounds.max_latency_ratio} is wanted")
    reasons += _score_reasons(scores[0], scores[1], bounds)
    different = [change for change in changes if change.before != change.after or change.error is not None]
    return GateReport(
        passed=not reasons,
        reasons=tuple(reasons),
        served=names[0],
        candidate=names[1],
        queries=len(queries),
        judged=len(judged),
        overlap=mean,
        score_before=scores[0],
        score_after=scores[1],
        latency_before_ms=round(latencies[0], 3),
        latency_after_ms=round(latencies[1], 3),
        latency_ratio=round(ratio, 3),
        changed=tuple(sorted(different, key=_badness)),
    )


def _change(query: RecordedQuery, before: Replayed, after: Replayed) -> Change:
    grades = query.judged
    return Change(
        query=query.request.query,
        agent=query.principal.agent,
        overlap=0.0 if (before.error is None) != (after.error is None) else overlap(before.ids, after.ids),
        score_before=ndcg(before.ids, grades) if grades else None,
        score_after=ndcg(after.ids, grades) if grades else None,
        before=before.ids,
        after=after.ids,
        error=after.error,
    )


def _badness(change: Change) -> tuple[float, float, str]:
    lost = (change.score_after or 0.0) - (change.score_before or 0.0)
    return (change.overlap, lost, change.query)


def _mean(values: Iterable[float]) -> float | None:
    found = list(values)
    return statistics.fmean(found) if found else None


def _score_reasons(before: float | None, after: float | None, bounds: Bounds) -> list[str]:
    if after is None or before is None:
        return [f"no question is judged, so that min_score {bounds.min_score} says nothing"] if bounds.min_score else []
    least = before - SCORE_SLACK if bounds.min_score is None else bounds.min_score
    return [f"nDCG@{DEPTH} of the judged questions is {after:.3f}, at least {least:.3f} is wanted"] if after < least else []


#: Changed answers that the text form shows.
MOST_SHOWN = 20


def as_text(report: GateReport) -> str:
    """The report for people: the figures, then the answers that changed, worst first."""
    lines = [
        f"{report.candidate} instead of {report.served}: {'passed' if report.passed else 'FAILED'}, {report.queries} queries",
        f"overlap@{DEPTH}: {report.overlap:.3f}",
        f"median latency: {report.latency_after_ms} ms, was {report.latency_before_ms} ms (ratio {report.latency_ratio})",
    ]
    if report.score_after is not None and report.score_before is not None:
        lines.append(f"nDCG@{DEPTH} of {report.judged} judged: {report.score_after:.3f}, was {report.score_before:.3f}")
    lines += [f"failed: {reason}" for reason in report.reasons]
    lines.append(f"{len(report.changed)} answers changed")
    for change in report.changed[:MOST_SHOWN]:
        lines += _change_lines(change)
    hidden = len(report.changed) - MOST_SHOWN
    return "\n".join([*lines, *([f"  and {hidden} more; all of them with --json"] if hidden > 0 else [])])


def _change_lines(change: Change) -> list[str]:
    asked = " ".join(change.query.split())[:200]
    gone = [node_id for node_id in change.before if node_id not in change.after]
    new = [node_id for node_id in change.after if node_id not in change.before]
    lines = [f"  {change.overlap:.2f}  {asked}" + (f" (agent {change.agent})" if change.agent else "")]
    lines += [f"        error: {change.error}"] if change.error else []
    lines += [f"        gone: {', '.join(gone)}"] if gone else []
    lines += [f"        new: {', '.join(new)}"] if new else []
    return lines if gone or new or change.error else [*lines, "        the same hits in another order"]


# --- over real indexes -------------------------------------------------------------------------------------------------------


def check(config: Config, queries: Sequence[RecordedQuery], served: Manifest, new: Manifest, bounds: Bounds) -> GateReport:
    """Asks `queries` of both generations of one project, under who recorded them, and compares.

    Both are opened beside each other in this process, with all that was written since each was built. A question that was asked
    of other projects alone is left out; the others are asked of this project. Raises UsageError when none is left.
    """
    project = new.project
    asked = [
        replace(query, request=replace(query.request, projects=(project,), limit=DEPTH, explain=False, cursor=None))
        for query in queries
        if query.request.projects is None or project in query.request.projects
    ]
    if not asked:
        raise UsageError(f"no recorded query asks project {project}", field="queries")
    embedders = tuple(dict.fromkeys(first_and_target(config, threads_for(config), config.embed.timeout_s)))
    store = open_store(config)
    try:
        with opened(config, {project: served}, embedders) as old, opened(config, {project: new}, embedders) as candidate:
            fault = _fault(candidate)
            if fault is not None:
                return _unopened(served, new, len(asked), fault)
            # Where what is served cannot be read, there is nothing to compare with, and keeping the new one out helps nobody.
            reference = old if _fault(old) is None else candidate
            sides = [retrieval_over(config, index, store) for index in (reference, candidate)]
            before, after = asyncio.run(_replayed(asked, sides))
    finally:
        store.close()
    return compare(asked, before, after, bounds, (served.generation, new.generation))


def _unopened(served: Manifest, new: Manifest, queries: int, fault: str) -> GateReport:
    """The report on a generation that answers nothing."""
    return GateReport(
        passed=False,
        reasons=(f"the new generation cannot be opened: {fault}",),
        served=served.generation,
        candidate=new.generation,
        queries=queries,
        judged=0,
        overlap=0.0,
        score_before=None,
        score_after=None,
        latency_before_ms=0.0,
        latency_after_ms=0.0,
        latency_ratio=0.0,
        changed=(),
    )


def _fault(index: PlainIndex) -> str | None:
    return next((failure.detail for failure in index.failures()), None)


async def _replayed(queries: Sequence[RecordedQuery], sides: Sequence[Retrieval]) -> list[list[Replayed]]:
    """The answers of each side, asked in turns: what else happens on this machine meanwhile meets all alike."""
    found: list[list[Replayed]] = [[] for _ in sides]
    for query in queries:
        rounds = [[await _answered(query, side) for side in sides] for _ in range(ROUNDS)]
        for place, answers in enumerate(zip(*rounds, strict=True)):
            found[place].append(replace(answers[0], took_ms=min(answer.took_ms for answer in answers)))
    return found


async def _answered(query: RecordedQuery, side: Retrieval) -> Replayed:
    start = time.perf_counter()
    try:
        answer = await side.search(query.request, query.principal)
    except RaycallError as error:
        return Replayed(ids=(), took_ms=(time.perf_counter() - start) * 1000, error=f"{error.code}: {error.detail}")
    return Replayed(ids=tuple(hit.node.id for hit in answer.hits), took_ms=(time.perf_counter() - start) * 1000)


def make_gate(config: Config) -> Gate | None:
    """The gate that builds are held to under `config`, which says why a generation must stay out; None where there is none.

    Raises UsageError when the recorded queries cannot be read: before anything is built.
    """
    if not config.publish.gate:
        return None
    bounds, queries = bounds_of(config), read_queries(Path(config.publish.gate), config.account)

    def gate(served: Manifest, new: Manifest) -> str | None:
        try:
            report = check(config, queries, served, new, bounds)
        except UsageError:
            # Nobody recorded a question about this project: there is nothing to hold it to.
            return None
        return None if report.passed else "; ".join(report.reasons)

    return gate


def bounds_of(config: Config) -> Bounds:
    """The bounds of builds."""
    publish = config.publish
    return Bounds(
        min_overlap=publish.min_overlap,
        max_latency_ratio=publish.max_latency_ratio,
        min_score=None if publish.min_score < 0 else publish.min_score,
    )
