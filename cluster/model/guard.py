"""The guard expression: a boolean expression over a node's guard columns, which every engine compiles for itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

#: Guard columns that hold one value or null, and those that hold a list (or null).
SCALAR_COLUMNS = ("account", "project", "store", "scope", "visibility", "owner_agent", "deleted_at")
LIST_COLUMNS = ("labels", "agents", "shared_with")


@dataclass(frozen=True, slots=True)
class IsNull:
    """The column has no value (for a list column: no list at all, which differs from an empty list)."""

    column: str


@dataclass(frozen=True, slots=True)
class In:
    """The scalar column's value is one of `values`; never true of null or with no values."""

    column: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Has:
    """The list column contains one of `values`; never true of null or with no values."""

    column: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class All:
    """Every part holds; with no parts, true."""

    parts: tuple[Guard, ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    """At least one part holds; with no parts, false."""

    parts: tuple[Guard, ...]


Guard: TypeAlias = IsNull | In | Has | All | AnyOf
