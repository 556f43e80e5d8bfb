"""The guard expression: a boolean expression over a node's guard columns, which every engine compiles for itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, TypeAlias

#: Guard columns that hold one value or null, and those that hold a list (or null).
SCALAR_COLUMNS = ("account", "project", "store", "scope", "visibility", "owner_agent", "deleted_at")
LIST_COLUMNS = ("labels", "agents", "shared_with")


class _HashedOnce:
    """Keeps its hash: guards are keys of several caches, which each question looks up, and a hash walks the whole expression.

    It is no field, and so not pickled: the hash of a text differs from process to process.
    """

    __slots__ = ("_hash",)

    _hash: int
    __match_args__: ClassVar[tuple[str, ...]]

    def __hash__(self) -> int:
        try:
            return self._hash
        except AttributeError:
            found = hash((type(self), *(getattr(self, name) for name in self.__match_args__)))
            object.__setattr__(self, "_hash", found)
            return found


@dataclass(frozen=True, slots=True)
class IsNull(_HashedOnce):
    """The column has no value (for a list column: no list at all, which differs from an empty list)."""

    __hash__ = _HashedOnce.__hash__

    column: str


@dataclass(frozen=True, slots=True)
class In(_HashedOnce):
    """The scalar column's value is one of `values`; never true of null or with no values."""

    __hash__ = _HashedOnce.__hash__

    column: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Has(_HashedOnce):
    """The list column contains one of `values`; never true of null or with no values."""

    __hash__ = _HashedOnce.__hash__

    column: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class All(_HashedOnce):
    """Every part holds; with no parts, true."""

    __hash__ = _HashedOnce.__hash__

    parts: tuple[Guard, ...]


@dataclass(frozen=True, slots=True)
class AnyOf(_HashedOnce):
    """At least one part holds; with no parts, false."""

    __hash__ = _HashedOnce.__hash__

    parts: tuple[Guard, ...]


Guard: TypeAlias = IsNull | In | Has | All | AnyOf
