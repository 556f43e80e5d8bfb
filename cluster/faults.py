"""Places at which a process can be told to die, so that tests can show that dying there loses nothing. For tests alone.

Unless the environment names one of them, reaching a place does nothing. The variable is no setting: no configuration file and
no option sets it, and no document of the product names it.
"""

from __future__ import annotations

import os
import signal

#: Names the point at which the process that reaches it ends itself with SIGKILL.
VARIABLE = "_RAYCALL_KILL_AT"

#: Every point, in the order in which a build and a publish, a rollback and a removal reach them.
POINTS = (
    "build.locked",
    "build.started",
    "build.bucket_started",
    "build.lexical_written",
    "build.vectors_written",
    "build.bucket_written",
    "finish.manifest_written",
    "finish.synced",
    "finish.renamed",
    "build.finished",
    "publish.locked",
    "swap.written",
    "swap.renamed",
    "publish.swapped",
    "sweep.renamed",
    "sweep.removed",
    "build.swept",
    "rollback.locked",
    "gc.locked",
)


def reach(point: str) -> None:
    """Ends this process at once, as a crash would, if it is the one point that the environment names."""
    if os.environ.get(VARIABLE) == point:
        os.kill(os.getpid(), signal.SIGKILL)
