"""What all tiers share."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Examples come from a fixed seed in CI, so that a red run can be run again; elsewhere each run looks at new ones, and half as
# many, so that the unit tests are done while one waits for them.
settings.register_profile("local", deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", parent=settings.get_profile("local"), max_examples=50, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write the files of tests/golden anew instead of comparing")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that start Ray in this process come first, before a JVM is there, or, where they start one themselves, last.

    When Ray leaves a process it sets SIGSEGV back to the system's default, and a JVM lives by handling it: the next time that
    compiled Java code meets a null, the process ends. Raycall itself never has both in one process.
    """

    def place(item: pytest.Item) -> int:
        marker = item.get_closest_marker("ray_in_process")
        return 0 if marker is None else {"first": -1, "last": 1}[marker.args[0]]

    items.sort(key=place)


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compares a text with a file of tests/golden, or writes it with --update-golden. Tests have "golden" in their names."""

    def check(name: str, text: str) -> None:
        path = Path(__file__).parent / "golden" / name
        if request.config.getoption("--update-golden"):
            path.write_text(text, "utf-8")
        assert text == path.read_text("utf-8"), f"differs from {name}; if that is meant: make golden"

    return check


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees the settings of whoever runs it."""
    for name in list(os.environ):
        if name.startswith("RAYCALL_") or name in {"EMBED_MODEL", "EMBED_DIMENSIONS", "OLLAMA_URL"}:
            monkeypatch.delenv(name)
