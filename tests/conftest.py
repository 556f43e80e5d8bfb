"""What all tiers share."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

# Examples come from a fixed seed in CI, so that a red run can be run again; elsewhere each run looks at new ones.
settings.register_profile("local", deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", parent=settings.get_profile("local"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees the settings of whoever runs it."""
    for name in list(os.environ):
        if name.startswith("RAYCALL_") or name in {"EMBED_MODEL", "EMBED_DIMENSIONS", "OLLAMA_URL"}:
            monkeypatch.delenv(name)
