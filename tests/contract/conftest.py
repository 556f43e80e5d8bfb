"""Fixtures that are one implementation of a port after the other."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.graph_stores import GRAPH_STORES, AnyStore


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.neo4j if name == "neo4j" else ()) for name in GRAPH_STORES])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AnyStore]:
    opened = GRAPH_STORES[request.param](tmp_path)
    yield opened
    opened.close()
