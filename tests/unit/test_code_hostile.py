"""No source, however broken, keeps an extractor from ending."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.code import extract_code
from jobs.model import FileContext

TOKENS = (
    "x y if else for in def class ( ) [ ] { } . , : = + / ` @ * -> => import from lambda await async func type var let const ;"
)
SOURCES = st.lists(st.sampled_from([*TOKENS.split(), "\n", "\n    ", "'", '"', "é", "\x00"]), max_size=25).map(" ".join)


def context(path: str) -> FileContext:
    return FileContext("acme", "demo", "demo", path, None, 1)


@pytest.mark.parametrize(
    "source", ["x if else y\n", "a = b if else c\n", "print(x if else y)\n", "/`", "f(x, /`", ".", "x.", "x..y", "@", "f(.x)"]
)
@pytest.mark.timeout(20)
def test_a_half_typed_line_ends(source: str) -> None:
    extracted = extract_code(source, "python", context("bad.py"))
    assert "".join(node.text.get("content", "") for node in extracted.nodes).strip() == source.strip()


@pytest.mark.parametrize(
    ("language", "path"), [("python", "a.py"), ("javascript", "a.js"), ("typescript", "a.ts"), ("tsx", "a.tsx"), ("go", "a.go")]
)
@pytest.mark.timeout(60)
@given(source=SOURCES)
def test_any_tokens_in_any_order_end(language: str, path: str, source: str) -> None:
    extract_code(source, language, context(path))
