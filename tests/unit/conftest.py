"""A unit test cannot start Ray, a JVM or a connection, by construction."""

from __future__ import annotations

import socket
import sys
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def no_outside_world(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: Any, **_kwargs: Any) -> None:
        raise AssertionError("a unit test must not start Ray, a JVM or a connection")

    if sys.modules.get("ray") is not None:
        monkeypatch.setattr(sys.modules["ray"], "init", refuse)
    else:
        monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setitem(sys.modules, "jnius", None)
    monkeypatch.setattr(socket.socket, "connect", refuse)
