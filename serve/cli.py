"""The `raycall` command."""

from __future__ import annotations


def main() -> None:
    """Entry point of the console script."""
    from importlib.metadata import version

    print(version("raycall"))  # noqa: T201
