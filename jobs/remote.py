"""Batch work as Ray tasks. The only file of this package that imports Ray; it runs the plain functions of the others."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import ray
from ray.exceptions import OutOfMemoryError, RayError, RayTaskError, WorkerCrashedError

from cluster.config import Config
from cluster.errors import RaycallError, UnavailableError
from jobs.tasks import log_to_file

logger = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

#: Items of one task: large enough to hide the cost of a task, small enough to keep all cores busy to the end.
BATCH = 16
#: How often an item is tried alone after the worker of its batch was lost. Twice, since a lack of memory may pass.
ATTEMPTS_ALONE = 2
#: What an item can do to its worker, as opposed to what befalls the cluster.
_LOST = (WorkerCrashedError, OutOfMemoryError)


def _each(function: Callable[[T], R], prepare: Callable[[], None], items: Sequence[T]) -> list[R]:
    prepare()
    return [function(item) for item in items]


def _job(function: Callable[..., R], config: Config, arguments: Sequence[object]) -> R:
    log_to_file(config)
    return function(config, *arguments)


def map_tasks(
    function: Callable[[T], R],
    items: Sequence[T],
    *,
    in_flight: int,
    on_lost: Callable[[T], R],
    prepare: Callable[[], None],
) -> Iterator[R]:
    """`function` of each item, on Ray, in the order of the items; at most `in_flight` batches are out at a time.

    `function` must be importable by name and must not raise for what one item can do wrong. An item that ends its worker (a
    crash, a lack of memory) costs no other item its result: those of its batch are tried again one by one, and `on_lost` of the
    item, called here, stands for the result that it has not. `prepare` is called in the workers, before each batch. Results are
    fetched and freed batch by batch, so the object store holds no more than what is out.
    """
    task = _each_task(function, prepare)
    batches = [items[start : start + BATCH] for start in range(0, len(items), BATCH)]
    out: list[tuple[Sequence[T], Any]] = []
    try:
        for batch in batches:
            if len(out) >= in_flight:
                yield from _results(task, *out.pop(0), on_lost)
            out.append((batch, task(batch)))
        while out:
            yield from _results(task, *out.pop(0), on_lost)
    finally:
        for _, reference in out:
            ray.cancel(reference, force=False)


def _each_task(function: Callable[[T], R], prepare: Callable[[], None]) -> Callable[[Sequence[T]], Any]:
    # No retries by Ray: it would run all of a batch again, and for want of memory without end.
    task = ray.remote(_each).options(num_cpus=1, max_retries=0)
    return lambda items: task.remote(function, prepare, items)


def _results(task: Callable[[Sequence[T]], Any], batch: Sequence[T], reference: Any, on_lost: Callable[[T], R]) -> Iterator[R]:
    found: list[R] | None = _unless_lost(reference)
    if found is not None:
        yield from found
        return
    logger.warning(
        "a batch worker was lost, its items are tried one by one", extra={"action": "batch_lost", "items": len(batch)}
    )
    for item in batch:
        tries = (_unless_lost(task([item])) for _ in range(ATTEMPTS_ALONE))
        alone: list[R] | None = next((one for one in tries if one is not None), None)
        yield on_lost(item) if alone is None else alone[0]


def run_task(
    function: Callable[..., R], config: Config, *arguments: object, poll: Callable[[], None], every_s: float = 0.2
) -> R:
    """`function(config, *arguments)` in a worker of its own, which ends with it: what it loaded (a JVM, a model) goes too.

    `poll` is called about every `every_s` seconds meanwhile; what it raises (KeyboardInterrupt) cancels the task. The worker's
    log records are in the jobs' log file.
    """
    reference = _job_task(function, config, arguments)
    try:
        while not ray.wait([reference], timeout=every_s)[0]:
            poll()
    except BaseException:
        ray.cancel(reference, force=True)
        raise
    result: R = _fetched(reference)
    return result


def start_task(function: Callable[..., R], config: Config, *arguments: object) -> Task:
    """As `run_task`, but returns at once."""
    return Task(_job_task(function, config, arguments))


def _job_task(function: Callable[..., R], config: Config, arguments: Sequence[object]) -> Any:
    return ray.remote(num_cpus=1, max_calls=1, max_retries=1)(_job).remote(function, config, arguments)


class Task:
    """A task that runs in the background."""

    def __init__(self, reference: Any) -> None:
        self._reference = reference

    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return bool(ray.wait([self._reference], timeout=0)[0])

    def result(self) -> Any:
        """What it returned; raises what it raised, as a RaycallError."""
        return _fetched(self._reference)

    def cancel(self) -> None:
        """Ends it; what it had saved stays."""
        ray.cancel(self._reference, force=True)


def _fetched(reference: Any) -> Any:
    try:
        return ray.get(reference)
    except RaycallError:
        raise
    except RayTaskError as error:
        raise UnavailableError(f"a batch task failed: {error.cause}") from error
    except RayError as error:
        raise UnavailableError("a batch worker was lost") from error


def _unless_lost(reference: Any) -> Any:
    """What the task returned; None when its worker was lost."""
    try:
        return _fetched(reference)
    except UnavailableError as error:
        if isinstance(error.__cause__, _LOST):
            return None
        raise
