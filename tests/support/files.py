"""Damage to files."""

from __future__ import annotations

from pathlib import Path


def flip(path: Path) -> None:
    """Changes one bit in the middle of a file, and not its size. A new file: what links to the old one stays whole."""
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.unlink()
    path.write_bytes(raw)
