"""How a search of one index goes, decided from counts alone. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

#: Nodes that a graph search expands at least, and for each row that it fetches, without and with a filter. Recall against an
#: exact scan of 50,000 real vectors, 12 links: 0.99 of 10 and 0.96 of 100 (see benchmarks/vectors.py).
GRAPH_MIN_WIDTH = 384
GRAPH_WIDTH = 2
GRAPH_FILTERED_WIDTH = 3
#: Rows asked for beyond k, so that ties at the cut are seen and resolved by row number.
TIE_SLACK = 16
#: From this many queries on, one matrix product over all of them is faster than a scan for each (measured at 256 and 384
#: dimensions); it then costs about BLAS_ROW_COST of a single scan per row and query.
BLAS_QUERIES = 4
BLAS_ROW_COST = 0.35
#: A scan of quantised vectors, in scans: most are followed by a second one for what the rounding may have hidden.
QUANTISED_ROW_COST = 2.0


class Plan(StrEnum):
    """How a selection is searched."""

    NOTHING = "nothing"
    EXACT = "exact"
    GRAPH = "graph"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """What a plan depends on, of an index and one selection."""

    #: Vectors in the index, and how many of them are allowed.
    count: int
    allowed: int
    #: Links of a node on the lowest level of the graph; 0: there is no graph.
    links: int
    quantised: bool
    #: Whether the allowed vectors lie together in a copy of their own.
    gathered: bool


def fetch_count(sizes: Sizes, wanted: int) -> int:
    """Rows that are proposed for `wanted` of them, 1 or more; never more than are allowed."""
    slack = max(TIE_SLACK, wanted // 2) if sizes.quantised else TIE_SLACK
    return min(wanted + slack, sizes.allowed)


def graph_width(sizes: Sizes, fetch: int) -> int:
    """Nodes that a graph search for `fetch` allowed rows expands: with a share s allowed, 1/s as many must be."""
    per_row = GRAPH_WIDTH if sizes.allowed == sizes.count else GRAPH_FILTERED_WIDTH
    return max(GRAPH_MIN_WIDTH, math.ceil(per_row * fetch * sizes.count / sizes.allowed))


def choose_plan(sizes: Sizes, queries: int, wanted: int) -> Plan:
    """How `queries` queries for `wanted` rows each are searched together: what reads fewer vectors.

    Exact: each allowed one, for less when a matrix product reads it for all queries at once. Graph: each expanded node reads
    its links.
    """
    if sizes.allowed == 0:
        return Plan.NOTHING
    if not sizes.links or sizes.gathered:
        return Plan.EXACT
    row_cost = QUANTISED_ROW_COST if sizes.quantised else BLAS_ROW_COST if queries >= BLAS_QUERIES else 1.0
    graph = graph_width(sizes, fetch_count(sizes, wanted)) * sizes.links
    return Plan.GRAPH if graph < sizes.allowed * row_cost else Plan.EXACT
