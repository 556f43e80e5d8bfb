"""The guard algebra: one expression says what a principal may read, and every engine is handed that same expression.

A guard is a small boolean expression over a node's guard columns. It is compiled to SQL, Cypher, plain Python and an Arrow mask
here, and to a Lucene FILTER in `cluster.index.lexical`; a property test holds all of them equal. Everywhere it is a
pre-filter, applied before the top-k cut. The layers, in the order in which ARCHITECTURE.md lists them:

    1 soft delete   deleted_at IS NULL
    2 scope         scope IS NULL OR scope IN allowed scopes          (not for a principal without a scope list)
    3 agent tag     agents HAS slug; for related nodes: agents IS NULL OR agents HAS slug     (only for an agent)
    4 expansion     layers 1 to 3, 5 and 6 again for every related node, in the weaker form of layer 3
    5 account       account = the principal's account
    + membership    project IN the key's projects, cut to the requested ones
    + visibility    NULL or project: pass; personal: the owner or a listed reader; team: a member of the project's team
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import reduce
from typing import TYPE_CHECKING, Any

import numpy as np

from cluster.model.access import Principal
from cluster.model.guard import LIST_COLUMNS, SCALAR_COLUMNS, All, AnyOf, Guard, Has, In, IsNull
from cluster.model.nodes import Node, Visibility

if TYPE_CHECKING:
    import pyarrow as pa


def search_guard(principal: Principal, projects: Iterable[str] | None = None, labels: Iterable[str] = ()) -> Guard:
    """What `principal` may find, in `projects` (None: wherever it is a member) and with any of `labels` (none: no limit).

    Asking for a project that the key is no member of narrows to nothing; it never widens.
    """
    parts = [*_common_layers(principal, projects)]
    if principal.agent is not None:
        parts.append(Has("agents", (principal.agent,)))
    wanted = _sorted(labels)
    if wanted:
        parts.append(Has("labels", wanted))
    return All(tuple(parts))


def expansion_guard(principal: Principal) -> Guard:
    """What `principal` may see as a related node: as `search_guard`, but untagged nodes pass the agent layer."""
    parts = [*_common_layers(principal, None)]
    if principal.agent is not None:
        parts.append(AnyOf((IsNull("agents"), Has("agents", (principal.agent,)))))
    return All(tuple(parts))


def _common_layers(principal: Principal, projects: Iterable[str] | None) -> Iterable[Guard]:
    yield IsNull("deleted_at")
    yield In("account", (principal.account,))
    allowed = principal.projects
    if projects is not None:
        asked = frozenset(projects)
        allowed = asked if allowed is None else asked & allowed
    if allowed is not None:
        yield In("project", _sorted(allowed))
    if principal.scopes is not None:
        yield AnyOf((IsNull("scope"), In("scope", _sorted(principal.scopes))))
    yield _visibility(principal)


def _visibility(principal: Principal) -> Guard:
    readable: list[Guard] = [IsNull("visibility"), In("visibility", (Visibility.PROJECT.value,))]
    if principal.agent is not None:
        reader = (principal.agent,)
        readable.append(
            All(
                (
                    In("visibility", (Visibility.PERSONAL.value,)),
                    AnyOf((In("owner_agent", reader), Has("shared_with", reader))),
                )
            )
        )
    if principal.teams:
        readable.append(All((In("visibility", (Visibility.TEAM.value,)), In("project", _sorted(principal.teams)))))
    return AnyOf(tuple(readable))


def _sorted(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({str(value) for value in values}))


# --- plain Python ------------------------------------------------------------------------------------------------------------


def allows(guard: Guard, node: Node) -> bool:
    """Whether `guard` selects `node`: the reference that the other compilers are held to."""
    match guard:
        case IsNull(column):
            return getattr(node, column) is None
        case In(column, values):
            value = getattr(node, column)
            return value is not None and str(value) in values
        case Has(column, values):
            return any(item in values for item in getattr(node, column) or ())
        case All(parts):
            return all(allows(part, node) for part in parts)
        case AnyOf(parts):
            return any(allows(part, node) for part in parts)


# --- SQL ---------------------------------------------------------------------------------------------------------------------


def to_sql(guard: Guard, table: str = "nodes") -> tuple[str, list[str]]:
    """A WHERE expression with "?" places, and their values. List columns are JSON arrays (or NULL) in the table.

    Column names come from this module's own constants; values are always parameters.
    """
    match guard:
        case IsNull(column):
            return f"{table}.{_column(column)} IS NULL", []
        case In(_, ()) | Has(_, ()) | AnyOf(()):
            return "0", []
        case In(column, values):
            return f"{_text_of(column, table)} IN ({_places(values)})", list(values)
        case Has(column, values):
            items = f"json_each({table}.{_column(column)}) AS item"
            return f"EXISTS (SELECT 1 FROM {items} WHERE item.value IN ({_places(values)}))", list(values)  # noqa: S608
        case All(()):
            return "1", []
        case All(parts):
            return _joined(" AND ", parts, table)
        case AnyOf(parts):
            return _joined(" OR ", parts, table)


def _joined(word: str, parts: tuple[Guard, ...], table: str) -> tuple[str, list[str]]:
    compiled = [to_sql(part, table) for part in parts]
    return "(" + word.join(sql for sql, _ in compiled) + ")", [value for _, values in compiled for value in values]


def _places(values: tuple[str, ...]) -> str:
    return ", ".join("?" * len(values))


def _text_of(column: str, table: str) -> str:
    # A number column would turn the values it is compared with into numbers, so that "07" were 7.
    return f"CAST({table}.deleted_at AS TEXT)" if column == "deleted_at" else f"{table}.{_column(column)}"


def _column(name: str) -> str:
    if name not in SCALAR_COLUMNS and name not in LIST_COLUMNS:
        raise ValueError(f"no guard column {name!r}")
    return name


# --- Cypher ------------------------------------------------------------------------------------------------------------------


def to_cypher(guard: Guard, variable: str = "n") -> tuple[str, dict[str, list[str]]]:
    """A WHERE expression over the node `variable`, and its parameters, named guard0, guard1, ... in order.

    Unknown (of a property that is not there) selects nothing, as in SQL: a guard has no negation. Column names come from this
    module's own constants and `variable` from the program; values are always parameters, as lists, so that guards which differ
    in values alone share one query plan.
    """
    parameters: dict[str, list[str]] = {}
    return _cypher(guard, variable, parameters), parameters


def _cypher(guard: Guard, variable: str, parameters: dict[str, list[str]]) -> str:
    match guard:
        case IsNull(column):
            return f"{variable}.{_column(column)} IS NULL"
        case In(_, ()) | Has(_, ()) | AnyOf(()):
            return "false"
        case In(column, values):
            held = f"{variable}.{_column(column)}"
            return f"{f'toString({held})' if column == 'deleted_at' else held} IN ${_parameter(values, parameters)}"
        case Has(column, values):
            return f"any(item IN {variable}.{_column(column)} WHERE item IN ${_parameter(values, parameters)})"
        case All(()):
            return "true"
        case All(parts):
            return "(" + " AND ".join(_cypher(part, variable, parameters) for part in parts) + ")"
        case AnyOf(parts):
            return "(" + " OR ".join(_cypher(part, variable, parameters) for part in parts) + ")"


def _parameter(values: tuple[str, ...], parameters: dict[str, list[str]]) -> str:
    name = f"guard{len(parameters)}"
    parameters[name] = list(values)
    return name


# --- Arrow -------------------------------------------------------------------------------------------------------------------


#: Up to so many values, comparing with each is faster than hashing the column.
_FEW = 3


def to_mask(guard: Guard, rows: pa.Table) -> pa.BooleanArray:
    """One boolean a row, never null, shape (rows.num_rows,).

    List columns are `list` of strings, scalar ones strings, either of them null where the node has no value; `deleted_at` is
    int64. Strings may be dictionary-encoded. Chunked and sliced tables are read in place, without a copy.
    """
    import pyarrow as pa  # a tenth of a second that the CLI must not pay

    mask = _mask(guard, rows)
    return mask.combine_chunks() if isinstance(mask, pa.ChunkedArray) else mask


def _mask(guard: Guard, rows: pa.Table) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    match guard:
        case IsNull(column):
            return pc.is_null(rows[column])
        case In(column, values):
            return _is_in(rows[column], values)
        case Has(column, values):
            return pa.chunked_array([_has(chunk, values) for chunk in rows[column].chunks], pa.bool_())
        case All(()):
            return pa.repeat(pa.scalar(True), rows.num_rows)
        case All(parts):
            return _folded(pc.and_, parts, rows)
        case AnyOf(()):
            return pa.repeat(pa.scalar(False), rows.num_rows)
        case AnyOf(parts):
            return _folded(pc.or_, parts, rows)


def _folded(operation: Callable[[Any, Any], Any], parts: tuple[Guard, ...], rows: pa.Table) -> Any:
    return reduce(operation, (_mask(part, rows) for part in parts))


def _is_in(column: Any, values: tuple[str, ...]) -> Any:
    """Where `column` (an array of any chunking) has one of `values`; null is none of them."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        column, kind = pc.cast(column, pa.string()), pa.string()
    if 0 < len(values) <= _FEW:
        equal = (pc.equal(column, pa.scalar(value, kind)) for value in values)
        # In Kleene's logic unknown and false is false, and this takes a hundredth of what fill_null does.
        return pc.and_kleene(reduce(pc.or_, equal), pc.is_valid(column))
    # A null in the column is in no value set without nulls, so that the answer has none either.
    return pc.is_in(column, value_set=pa.array(values, kind))


def _has(lists: pa.Array, values: tuple[str, ...]) -> pa.BooleanArray:
    """Where one list of `lists` has one of `values`: how many hits lie before its end, and how many before its start."""
    import pyarrow as pa

    hits = np.asarray(_is_in(lists.values, values))
    before = np.zeros(len(hits) + 1, np.int32)
    np.cumsum(hits, dtype=np.int32, out=before[1:])
    offsets = np.asarray(lists.offsets)
    found = before[offsets[1:]] > before[offsets[:-1]]
    # The format lets a null list span items of its child array; they are not its own.
    return pa.array(found & np.asarray(lists.is_valid()))
