"""Lucene's side of guards, scored queries and hits. No query is ever written as text that a parser reads."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from cluster.index import jvm
from cluster.index.analysis import DELIMITER, MAX_TERM
from cluster.index.analyzers import Chain, build
from cluster.model.guard import LIST_COLUMNS, SCALAR_COLUMNS, All, AnyOf, Guard, Has, In, IsNull
from cluster.model.ids import derived_id
from cluster.model.nodes import Node

#: The one text field.
TEXT = "text"
#: The field whose values are the names of the guard columns that are null.
_NULL = "null"
#: Longest guard value that is a term itself; a longer one is stood in for by its hash. Lucene's limit is 32,766 bytes.
_MAX_VALUE = 1000


def guard_terms(node: Node) -> tuple[tuple[str, str], ...]:
    """(field, value) pairs that a row is indexed with, so that `guard_query` selects it exactly when the guard allows it."""
    return tuple(_guard_terms(node))


def _guard_terms(node: Node) -> Iterator[tuple[str, str]]:
    for column in SCALAR_COLUMNS:
        value = getattr(node, column)
        yield (_NULL, column) if value is None else (_field(column), _value(str(value)))
    for column in LIST_COLUMNS:
        values = getattr(node, column)
        if values is None:
            yield _NULL, column
        else:
            yield from ((_field(column), _value(value)) for value in dict.fromkeys(values))


def guard_query(guard: Guard) -> Any:
    """The Lucene query that matches exactly the rows that `guard` allows. It is meant as a FILTER; its scores mean nothing."""
    java = jvm.java()
    match guard:
        case IsNull(column):
            return _term_query(_NULL, column)
        case In(column, values) | Has(column, values):
            return _joined([_term_query(_field(column), _value(value)) for value in values], java.Occur.SHOULD)
        case All(()):
            return java.MatchAllDocsQuery()
        case All(parts):
            return _joined([guard_query(part) for part in parts], java.Occur.FILTER)
        case AnyOf(parts):
            return _joined([guard_query(part) for part in parts], java.Occur.SHOULD)


def _joined(queries: list[Any], occur: Any) -> Any:
    java = jvm.java()
    if not queries:
        return java.MatchNoDocsQuery()
    if len(queries) == 1:
        return queries[0]
    builder = java.BooleanQueryBuilder()
    for query in queries:
        builder.add(query, occur)
    return builder.build()


def _term_query(field: str, value: str) -> Any:
    java = jvm.java()
    term = java.Term(field, value)
    return java.TermQuery(term)


def _field(column: str) -> str:
    return f"guard.{column}"


def _value(value: str) -> str:
    return value if len(value) <= _MAX_VALUE else f"hash:{derived_id(value)}"


# --- scored queries -----------------------------------------------------------------------------------------------------------


def scored_query(boosts: Mapping[str, float], allowed: Any | None) -> Any:
    """Matches rows with any of the terms (at least one), scored with BM25 times each term's boost, among those of `allowed`.

    Lucene's QueryBuilder reads "term|boost" tokens through an analyzer: one call for all terms instead of four for each.
    """
    java = jvm.java()
    query = _builder().createBooleanQuery(TEXT, " ".join(f"{term}{DELIMITER}{boost:.9g}" for term, boost in boosts.items()))
    if allowed is None:
        return query
    builder = java.BooleanQueryBuilder()
    must, only = _occurs()
    builder.add(query, must)
    builder.add(allowed, only)
    return builder.build()


def frequency_analyzer() -> Any:
    """The analyzer of the text field: it takes over terms and frequencies as they are."""
    return build(Chain(("whitespace", _WIDE), (("delimitedTermFrequency", {"delimiter": DELIMITER}),)))


#: A term, the delimiter and a number; astral characters count two.
_WIDE = {"maxTokenLen": str(4 * MAX_TERM)}


@cache
def _builder() -> Any:
    analyzer = build(Chain(("whitespace", _WIDE), (("delimitedBoost", {"delimiter": DELIMITER}),)))
    return jvm.java().QueryBuilder(analyzer)


@cache
def _occurs() -> tuple[Any, Any]:
    return jvm.java().Occur.MUST, jvm.java().Occur.FILTER


def idf(documents: int, frequency: int) -> float:
    """Lucene's BM25 inverse document frequency, positive for 0 <= frequency <= documents."""
    return math.log(1 + (documents - frequency + 0.5) / (frequency + 0.5))


# --- hits ---------------------------------------------------------------------------------------------------------------------


def hits(top_docs: Any) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float64]]:
    """Row numbers and scores of a TopDocs, each of shape (hits,)."""
    arguments = jvm.java().Collections.singletonList(top_docs)
    rows, scores = (column.invokeWithArguments(arguments) for column in _columns())
    return np.array(rows, np.int64), np.array(scores, np.float64)


@cache
def _columns() -> tuple[Any, Any]:
    java = jvm.java()
    return _column("doc", java.Integer.TYPE, "[I"), _column("score", java.Float.TYPE, "[F")


def _column(name: str, kind: Any, array_name: str) -> Any:
    """A method handle from TopDocs to the array of its hits' field `name`.

    jnius turns an array of numbers into a list in one call, but an array of objects into a proxy for each (0.5 ms a 100).
    So the loop `for i: array[i] = topDocs.scoreDocs[i].name` is put together from method handles, which run inside Java.
    """
    java, handles = jvm.java(), jvm.java().MethodHandles
    lookup = handles.publicLookup()
    hit_array, array = java.Class.forName("[Lorg.apache.lucene.search.ScoreDoc;"), java.Class.forName(array_name)
    element, field = handles.arrayElementGetter(hit_array), lookup.findGetter(java.ScoreDoc, name, kind)
    get = handles.filterReturnValue(element, field)
    setter = handles.arrayElementSetter(array)
    put = handles.collectArguments(setter, 2, get)  # (array, i, hits, i)
    integer = java.Integer.TYPE
    types = java.MethodType.methodType(java.Void.TYPE, (array, integer, hit_array))
    put = handles.permuteArguments(put, types, (0, 1, 2, 1))
    same = handles.identity(array)
    same = handles.dropArguments(same, 1, (integer, hit_array))
    body = handles.foldArguments(same, put)
    length, new = handles.arrayLength(hit_array), handles.arrayConstructor(array)
    start = handles.filterReturnValue(length, new)
    loop = handles.countedLoop(length, start, body)
    score_docs = lookup.findGetter(java.TopDocs, "scoreDocs", hit_array)
    return handles.filterReturnValue(score_docs, loop)
