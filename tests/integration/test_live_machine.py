"""Hypothesis looks for a sequence of writes, deletes, crashes, restarts, publishes and rollbacks that shows in an answer."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.support.live_driver import BUILD_POINTS, LiveDriver


class LiveMachine(RuleBasedStateMachine):
    """The index beside a dictionary of nodes: after each step a question is answered as by a fresh index of that."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.folder = tempfile.TemporaryDirectory(prefix="raycall-test-")
        self.driver: LiveDriver | None = None

    @initialize(pick=st.randoms(use_true_random=False), shards=st.sampled_from([1, 3]))
    def start(self, pick: Any, shards: int) -> None:
        self.driver = LiveDriver(pick, Path(self.folder.name), shards)
        self.run(self.driver.start())

    def run(self, step: Coroutine[Any, Any, None]) -> None:
        self.runner.run(step)

    @property
    def live(self) -> LiveDriver:
        assert self.driver is not None
        return self.driver

    @rule()
    def write(self) -> None:
        self.run(self.live.insert())

    @rule()
    def update(self) -> None:
        self.run(self.live.update())

    @rule()
    def update_one_often(self) -> None:
        self.run(self.live.update_one_often())

    @rule()
    def delete(self) -> None:
        self.run(self.live.soft_delete())

    @rule()
    def restore(self) -> None:
        self.run(self.live.restore())

    @rule()
    def purge(self) -> None:
        self.run(self.live.purge())

    @rule()
    def publish(self) -> None:
        self.run(self.live.build_and_swap())

    @rule()
    def write_while_a_generation_is_swapped_in(self) -> None:
        self.run(self.live.write_between_opening_and_swap())

    @rule()
    def roll_back(self) -> None:
        self.run(self.live.roll_back())

    @rule()
    def crash_of_a_shard(self) -> None:
        self.run(self.live.restart_after_a_write_that_nobody_was_told_of())

    @rule(point=st.sampled_from(BUILD_POINTS))
    def crash_of_a_build(self, point: str) -> None:
        self.run(self.live.kill_a_build(point))

    @rule()
    def restart(self) -> None:
        self.run(self.live.restart_everything())

    @invariant()
    def search(self) -> None:
        if self.driver is not None:
            self.run(self.driver.compare())

    def teardown(self) -> None:
        if self.driver is not None:
            self.driver.live.close()
        self.runner.close()
        self.folder.cleanup()


TestLiveMachine = LiveMachine.TestCase
# A step takes so long that shrinking what fails would take minutes: the steps are printed as they were drawn.
_PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
TestLiveMachine.settings = settings(
    max_examples=6, stateful_step_count=12, phases=_PHASES, suppress_health_check=[*HealthCheck]
)
