"""Typer commands whose plain options are read without pydantic, which takes longer to load than a search takes to answer.

Typer hands each value to a `runtime param` that it builds on pydantic at first use. Here the parameters with a plain type get
one of our own instead. Should a later Typer not look at it any more, its own is used: slower, otherwise the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import typer
from typer.core import TyperCommand, TyperGroup

Read = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class _PlainParam:
    """Reads the values of one option or argument."""

    read: Read
    many: bool

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        if value is None:
            return () if self.many else None
        try:
            return [self.read(item) for item in value] if self.many else self.read(value)
        except ValueError as error:
            raise typer.BadParameter(str(error), ctx=ctx, param=param) from error


def _path(value: Any) -> Path:
    # An empty text would be the working directory, which nobody means who passes on a variable that is not set.
    if not str(value).strip():
        raise ValueError("the path is empty")
    return Path(value)


def _whole_number(value: Any) -> int:
    try:
        return int(value)
    except ValueError as error:
        raise ValueError(f"{value!r} is no whole number") from error


def _choice(known: tuple[str, ...]) -> Read:
    def read(value: Any) -> Any:
        if value not in known:
            raise ValueError(f"{value!r} is not one of {', '.join(known)}")
        return value

    return read


def plain_param(annotation: Any) -> _PlainParam | None:
    """What reads values of this type; None for a type that is left to Typer."""
    if get_origin(annotation) is list:
        inner = plain_param(get_args(annotation)[0])
        return None if inner is None or inner.many else _PlainParam(inner.read, True)
    if get_origin(annotation) is Literal:
        return _PlainParam(_choice(get_args(annotation)), False)
    known: dict[Any, Read] = {str: str, int: _whole_number, bool: bool, Path: _path}
    return _PlainParam(known[annotation], False) if annotation in known else None


def _hastened(params: list[Any]) -> list[Any]:
    for param in params:
        own = plain_param(getattr(getattr(param, "type_descriptor", None), "annotation", None))
        if own is not None and getattr(param, "_runtime_param", own) is None:
            param._runtime_param = own
    return params


class QuickCommand(TyperCommand):
    """A command with quick options."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters, `--help` among them."""
        return _hastened(super().get_params(ctx))


class QuickGroup(TyperGroup):
    """A group with quick options."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters, `--help` among them."""
        return _hastened(super().get_params(ctx))
