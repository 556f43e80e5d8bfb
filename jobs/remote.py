"""Batch work as Ray tasks. The only file of this package that imports Ray; it runs the plain functions of the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import ray
from ray.exceptions import RayError, RayTaskError

from cluster.errors import RaycallError, UnavailableError

T = TypeVar("T")
R = TypeVar("R")

#: Items of one task: large enough to hide the cost of a task, small enough to keep all cores busy to the end.
BATCH = 16


def _each(function: Callable[[T], R], items: Sequence[T]) -> list[R]:
    return [function(item) for item in items]


def map_tasks(function: Callable[[T], R], items: Sequence[T], *, in_flight: int) -> Iterator[R]:
    """`function` of each item, on Ray, in the order of the items; at most `in_flight` batches are out at a time.

    `function` must be importable by name and must not raise for what one item can do wrong. Results are fetched and freed batch
    by batch, so the object store holds no more than what is out.
    """
    task = ray.remote(_each).options(num_cpus=1, max_retries=2)
    batches = [items[start : start + BATCH] for start in range(0, len(items), BATCH)]
    out: list[Any] = []
    try:
        for batch in batches:
            if len(out) >= in_flight:
                yield from _fetched(out.pop(0))
            out.append(task.remote(function, batch))
        while out:
            yield from _fetched(out.pop(0))
    finally:
        for reference in out:
            ray.cancel(reference, force=False)


def run_task(function: Callable[..., R], *arguments: object, poll: Callable[[], None], every_s: float = 0.2) -> R:
    """`function(*arguments)` in a worker process of its own, which ends with it: what it loaded (a JVM, a model) goes too.

    `poll` is called about every `every_s` seconds meanwhile; what it raises (KeyboardInterrupt) cancels the task.
    """
    reference = ray.remote(num_cpus=1, max_calls=1, max_retries=1)(function).remote(*arguments)
    try:
        while not ray.wait([reference], timeout=every_s)[0]:
            poll()
    except BaseException:
        ray.cancel(reference, force=True)
        raise
    result: R = _fetched(reference)
    return result


def start_task(function: Callable[..., R], *arguments: object) -> Task:
    """As `run_task`, but returns at once."""
    return Task(ray.remote(num_cpus=1, max_calls=1, max_retries=1)(function).remote(*arguments))


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
