from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.repository import make_repository
from tests.support.server import Server


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_repository(tmp_path_factory.mktemp("source") / "pump-controller")


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Iterator[Server]:
    """One server for all tests that only ask: it indexed the repository, and embeds with the fast model alone."""
    running = Server(tmp_path_factory.mktemp("data"), "--index", str(repository))
    try:
        yield running
    finally:
        running.stop()
