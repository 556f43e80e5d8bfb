"""Functions for batch workers, which import them by name."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from cluster.config import Config
from jobs.extract import ExtractResult, ExtractTask, run_extract


def double(number: int) -> int:
    """Twice the number; a negative one ends the process, as a segmentation fault or the lack of memory would."""
    if number < 0:
        os._exit(1)
    return 2 * number


def megabyte(_number: int) -> bytes:
    return bytes(2**20)


def fail(_number: int) -> int:
    raise ValueError("a bug")


def extract(task: ExtractTask) -> ExtractResult:
    """As `run_extract`, but a file called fatal.md ends the process."""
    if task.context.path == "fatal.md":
        os._exit(1)
    return run_extract(task)


def note_call(folder: Path, number: int) -> int:
    """Leaves a file for each call."""
    (folder / f"{number}-{os.urandom(8).hex()}").touch()
    return double(number)


def log_and_return(config: Config, word: str) -> str:
    logging.getLogger("jobs.tests").warning("a job ran", extra={"action": "job_ran", "word": word})
    return f"{config.account} {word}"
