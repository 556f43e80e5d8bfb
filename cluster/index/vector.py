"""The vectors of a bucket in FAISS, and a pre-filtered search over them. The only file that knows FAISS.

A file holds unit vectors in row order: flat for small buckets, with an HNSW graph over them for large ones; as float32, as
float16 or as one byte a number (SQ8: FAISS's scalar quantizer, whose ranges are each dimension's least and greatest number in
the bucket). Quantised, the float32 vectors lie in a mapped file beside (`cluster.index.vector_file`), and every score is taken
from them: FAISS proposes rows, it does not score them. Neither batching, the chosen path nor the precision shows in a score.

A guard's mask becomes a `Selection` once, by `prepare`; the shard keeps it by guard. `cluster.index.vector_plan`
decides from counts alone how a selection is searched.

Exact, whatever the precision: a search whose plan is EXACT. A quantised vector is not farther from its original than the
file's `error`, so by Cauchy and Schwarz no score of a unit query is off by more; every row whose approximate score is not that
far below the k-th best score is scored. Approximate: which rows a GRAPH search finds (recall@10 above 0.98); their scores and
their order are exact, and of a run of equal vectors that would fill a node's links the lowest rows are found.

Excluded rows never come back, and k allowed ones always give k hits: a graph search looks among all rows, keeps the allowed
ones, and is repeated as an exact scan when it comes back short. FAISS's own filter inside a graph search was measured and is
not used: see `_graph_scan`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import faiss as _faiss
import numpy as np
import numpy.typing as npt

from cluster.errors import CorruptIndexError, ShardError, UsageError, VectorError
from cluster.index.vector_file import (
    Header,
    Precision,
    RawVectors,
    digest_of,
    raw_path,
    read_header,
    write_raw,
    write_whole,
)
from cluster.index.vector_plan import BLAS_QUERIES, Plan, Sizes, choose_plan, fetch_count, graph_width
from cluster.index.vector_ranking import SCORE_NOISE, Proposals, Take, by_score, cosines, propose
from cluster.model.manifest import VectorIdentity
from cluster.unit_vectors import find_faults

#: FAISS's stubs know a part of its interface only.
faiss: Any = _faiss

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
Ranked = tuple[Ints, npt.NDArray[np.float64]]

#: Buckets with more vectors than this get a graph. Below it an exact scan takes about a millisecond and a build no time.
GRAPH_THRESHOLD = 20_000
#: Links of a graph node (twice as many on the lowest level, of 4 bytes each), and how widely a build looks for them. Fewer
#: where memory is short: it costs 0.004 of recall@10.
GRAPH_LINKS = 16
QUANTISED_GRAPH_LINKS = 12
GRAPH_BUILD_WIDTH = 80
#: Selections up to this size carry a copy of their vectors, which is 2 to 4 times as fast as picking them from the whole.
#: Not where vectors are quantised, to save memory.
GATHER_BYTES = 4 << 20
#: Rows that are asked for first where all above a score are wanted.
_FIRST_FETCH = 256
#: Vectors that are decoded at one time while their error is measured.
_BLOCK = 8192

# FAISS compares queries * dimensions with this; its own default of 128,000 never takes the matrix product for small batches.
faiss.cvar.distance_compute_blas_threshold = BLAS_QUERIES * 256


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """The vectors of one index that a guard allows, in the form that its search needs. Immutable; shared between threads."""

    #: What the index that made it recognises it by: used with another index, it would allow other rows.
    owner: object
    #: Allowed rows that have a vector.
    count: int
    #: float32, shape (count, dimensions): a copy of the allowed vectors; None for a large selection.
    gathered: Floats | None = None
    #: int64, shape (count,), ascending: where those are inside the index.
    positions: Ints | None = None
    #: bool, shape (vectors in the index,), and FAISS's view of it; None when `gathered` serves or everything is allowed.
    allowed: npt.NDArray[np.bool_] | None = None
    selector: Any = None

    @property
    def nbytes(self) -> int:
        """Memory that keeping this selection costs."""
        arrays = (self.positions, self.gathered, self.allowed)
        bitmap = 0 if self.allowed is None else self.allowed.size // 8
        return bitmap + sum(0 if array is None else array.nbytes for array in arrays)


def write_vectors(
    path: Path,
    vectors: Floats,
    rows: npt.NDArray[np.integer[Any]],
    identity: VectorIdentity,
    *,
    precision: Precision = Precision.FLOAT32,
    graph_threshold: int = GRAPH_THRESHOLD,
) -> None:
    """Writes the bucket's vectors to `path`, and to `raw_path(path)` when quantised: durable, and byte for byte the same for
    the same input. Each file is there whole or not at all; where a crash leaves one of two, opening them is refused.

    `vectors` is float32 of shape (n, identity.dimensions) with rows of length 1; `rows` int of shape (n,), ascending, each
    once, 0 or more: the row numbers of the bucket. Above `graph_threshold` vectors a graph is built, from the float32 vectors,
    on one thread, since only that gives equal bytes: about 0.3 ms a vector. Neither array is modified.

    Raises VectorError, naming the row, for a vector that is NaN, infinite, zero or not of length 1, for wrong dimensions and
    for a row number out of order. CorruptIndexError when a file cannot be written.
    """
    path = Path(path)
    numbers = np.ascontiguousarray(rows, dtype=np.int64)
    _check_input(vectors, numbers, identity)
    values = np.ascontiguousarray(vectors, dtype=np.float32)
    if not len(values):
        precision = Precision.FLOAT32
    graph = len(values) > graph_threshold
    listed = bool(len(numbers)) and int(numbers[-1]) != len(numbers) - 1
    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        index, error = _filled_index(values, precision, graph=graph)
    finally:
        faiss.omp_set_num_threads(threads)
    if listed:
        index = _numbered(index, numbers)
    quantised = precision is not Precision.FLOAT32
    header = Header(
        identity=identity,
        count=len(values),
        graph=graph,
        precision=precision,
        listed=listed,
        error=error,
        digest=digest_of(values) if quantised else "",
    )
    if quantised:
        write_raw(raw_path(path), values, header)
    write_whole(path, lambda part: faiss.write_index(index, str(part)), header)
    if not quantised:
        raw_path(path).unlink(missing_ok=True)


def _check_input(vectors: Floats, rows: Ints, identity: VectorIdentity) -> None:
    if vectors.ndim != 2 or vectors.shape[1] != identity.dimensions:
        shape = "x".join(str(size) for size in vectors.shape)
        raise VectorError(f"vectors of shape {shape} given, {identity.key} has {identity.dimensions} dimensions")
    if rows.shape != (len(vectors),):
        raise VectorError(f"{len(vectors)} vectors but {rows.size} row numbers given")
    if len(rows) and rows[0] < 0:
        raise VectorError(f"row {rows[0]}: row numbers start at 0")
    steps = np.diff(rows)
    if (steps <= 0).any():
        at = int(np.argmax(steps <= 0))
        raise VectorError(f"row {rows[at + 1]} follows row {rows[at]}: row numbers must ascend, each once")
    for position, fault in find_faults(vectors).items():
        raise VectorError(f"row {rows[position]}: the vector {fault}")


def _filled_index(values: Floats, precision: Precision, *, graph: bool) -> tuple[Any, float]:
    """A FAISS index of `values`, and how far its vectors are from them at most."""
    metric, dimensions = faiss.METRIC_INNER_PRODUCT, values.shape[1]
    quantised = precision is not Precision.FLOAT32
    links = QUANTISED_GRAPH_LINKS if quantised else GRAPH_LINKS
    if graph:
        flat = faiss.IndexHNSWFlat(dimensions, links, metric)
        flat.hnsw.efConstruction = GRAPH_BUILD_WIDTH
    else:
        flat = faiss.IndexFlatIP(dimensions)
    if graph or not quantised:
        flat.add(values)
    if not quantised:
        return flat, 0.0
    kind = faiss.ScalarQuantizer.QT_fp16 if precision is Precision.FLOAT16 else faiss.ScalarQuantizer.QT_8bit
    index = (
        faiss.IndexHNSWSQ(dimensions, kind, links, metric) if graph else faiss.IndexScalarQuantizer(dimensions, kind, metric)
    )
    codes = faiss.downcast_index(index.storage) if graph else index
    codes.train(values)
    codes.add(values)
    if graph:
        # The graph of the float32 vectors, over the quantised ones: its links owe nothing to rounding.
        index.hnsw = flat.hnsw
        index.is_trained, index.ntotal = True, len(values)
    return index, _error_of(codes, values)


def _numbered(index: Any, rows: Ints) -> Any:
    """`index` under `rows` for its positions."""
    # FAISS wraps empty indexes only, and would number what is added later.
    index.ntotal = 0
    numbered = faiss.IndexIDMap(index)
    index.ntotal = numbered.ntotal = len(rows)
    faiss.copy_array_to_vector(rows, numbered.id_map)
    return numbered


def _error_of(codes: Any, values: Floats) -> float:
    """The greatest length of the difference between a vector and what its code stands for, rounded up."""
    greatest = 0.0
    for start in range(0, len(values), _BLOCK):
        block = values[start : start + _BLOCK]
        decoded = codes.reconstruct_n(start, len(block)).astype(np.float64)
        greatest = max(greatest, float(np.linalg.norm(decoded - block, axis=1).max()))
    return float(np.nextafter(np.float32(greatest), np.float32(np.inf)))


class VectorIndex:
    """One bucket's vectors, read into memory; of quantised ones, the float32 vectors stay in a mapped file.

    (Mapping FAISS's file would share it between processes, but FAISS writes vectors at odd offsets, and numpy copies the whole
    of an unaligned array for each use of it.)

    Searches may run on several threads at once. Each runs on `threads` OpenMP threads: FAISS keeps that number for each
    calling thread, so it is set again by every search and no index disturbs another.
    """

    def __init__(self, path: Path, total_rows: int, identity: VectorIdentity, threads: int = 1) -> None:
        """Opens `path` for a bucket of `total_rows` rows.

        Raises VectorError when its vectors are not of `identity`, CorruptIndexError when it is missing or not readable.
        """
        path = Path(path)
        header = read_header(path)
        if header.identity != identity:
            raise VectorError(
                f"the index holds vectors of {header.identity.key}, {identity.key} was asked for:"
                " embed the project again with this model"
            )
        self.identity = identity
        self.precision = header.precision
        self.count = header.count
        self.total_rows = total_rows
        self.threads = threads
        #: Bytes that the index takes in memory; the mapped file is not among them.
        self.memory_bytes = path.stat().st_size
        try:
            self._index: Any = faiss.read_index(str(path))
        except RuntimeError as error:
            raise CorruptIndexError(f"{path.name} is not readable by FAISS") from error
        #: The row of each position, ascending; None where they are the same.
        self._rows: Ints | None = faiss.vector_to_array(self._index.id_map) if header.listed else None
        inner = faiss.downcast_index(self._index.index) if header.listed else self._index
        self._graph: Any = inner if header.graph else None
        self._flat: Any = faiss.downcast_index(inner.storage) if header.graph else inner
        self._check_counts(path.name)
        self._links = int(inner.hnsw.nb_neighbors(0)) if header.graph else 0
        #: How far a score that FAISS gives may be from the real one.
        self._error = header.error + SCORE_NOISE
        self._take: Take | None
        if self._quantised:
            self._take = RawVectors(raw_path(path), header).take
        else:
            self._take = partial(np.take, self._view_of_vectors(), axis=0)
        self._token = object()
        self._everything = Selection(self._token, self.count)

    @property
    def _quantised(self) -> bool:
        return self.precision is not Precision.FLOAT32

    def _check_counts(self, name: str) -> None:
        numbered = self.count if self._rows is None else len(self._rows)
        if int(self._flat.ntotal) != self.count or numbered != self.count or self._flat.d != self.identity.dimensions:
            raise CorruptIndexError(f"{name} does not hold what its trailer says")
        last = self.count - 1 if self._rows is None or not self.count else int(self._rows[-1])
        if last >= self.total_rows:
            raise CorruptIndexError(f"{name} has row {last}, the bucket has {self.total_rows} rows")

    def _view_of_vectors(self) -> Floats:
        shape = (self.count, self.identity.dimensions)
        if not self.count:
            return np.empty(shape, dtype=np.float32)
        view: Floats = faiss.rev_swig_ptr(self._flat.get_xb(), self.count * shape[1]).reshape(shape)
        view.flags.writeable = False
        return view

    def prepare(self, mask: npt.NDArray[np.bool_] | None) -> Selection:
        """What `mask` (bool, shape (total_rows,); None allows all) means for this index, to be kept and passed to `search`.

        Costs a pass over the mask, and a copy of the allowed vectors where they are few (at most GATHER_BYTES).
        """
        if mask is None:
            return self._everything
        if mask.dtype != np.bool_ or mask.shape != (self.total_rows,):
            raise UsageError(f"a mask is bool of shape ({self.total_rows},), got {mask.dtype} of shape {mask.shape}")
        allowed = mask[: self.count].copy() if self._rows is None else mask[self._rows]
        count = int(np.count_nonzero(allowed))
        if count == self.count:
            return self._everything
        if not self._quantised and count * self.identity.dimensions * 4 <= GATHER_BYTES:
            positions = np.flatnonzero(allowed)
            return Selection(self._token, count, gathered=self._open_vectors()(positions), positions=positions)
        selector = faiss.IDSelectorBitmap(np.packbits(allowed, bitorder="little"))
        return Selection(self._token, count, allowed=allowed, selector=selector)

    def plan(self, selection: Selection, queries: int, k: int) -> Plan:
        """How `queries` queries for `k` rows of `selection` are searched together; see `choose_plan`."""
        return choose_plan(self._sizes(selection), queries, min(k, selection.count))

    def _sizes(self, selection: Selection) -> Sizes:
        return Sizes(
            count=self.count,
            allowed=selection.count,
            links=self._links,
            quantised=self._quantised,
            gathered=selection.gathered is not None,
        )

    def search(self, queries: Floats, selections: Sequence[Selection | None], k: int) -> list[Ranked]:
        """For each query, the min(k, allowed) rows of highest cosine, score descending, then row ascending.

        `queries` is float32 of shape (q, dimensions), finite and not zero, of any length; it is not modified. `selections`
        has one entry a query, from this index's `prepare`; None allows all. Queries that share a selection are searched
        together. Rows are int64 row numbers of the bucket; scores float64 in [-1, 1], of the float32 vectors. Which rows are
        found is exact where `plan` says so.

        Raises VectorError for a query that is NaN, infinite, zero or of wrong dimensions; UsageError when k < 1.
        """
        if len(selections) != len(queries):
            raise UsageError(f"{len(queries)} queries but {len(selections)} selections given")
        groups: dict[int, list[int]] = {}
        for place, selection in enumerate(selections):
            groups.setdefault(id(selection), []).append(place)
        results: list[Ranked] = [(np.empty(0, np.int64), np.empty(0, np.float64))] * len(queries)
        for places in groups.values():
            ranked = self.search_together(queries[places], selections[places[0]], k)
            for place, rows, scores in zip(places, *ranked, strict=True):
                results[place] = rows, scores
        return results

    def search_together(self, queries: Floats, selection: Selection | None, k: int) -> Ranked:
        """As `search`, of queries that share one selection: rows and scores, both of shape (q, min(k, allowed))."""
        if k < 1:
            raise UsageError(f"k must be 1 or more, got {k}", field="limit")
        units = self._unit_queries(queries)
        # Kept for the whole search: `close` on another thread must not free what is being read here.
        owner, take = self._index, self._open_vectors()
        faiss.omp_set_num_threads(self.threads)
        selection = selection or self._everything
        if selection.owner is not self._token:
            raise UsageError("the selection was prepared by another index")
        ranked = self._search_selected(take, units, selection, k)
        del owner
        return ranked

    def _unit_queries(self, queries: Floats) -> Floats:
        if queries.ndim != 2 or queries.shape[1] != self.identity.dimensions:
            shape = "x".join(str(size) for size in queries.shape)
            raise VectorError(f"query of shape {shape} given, {self.identity.key} has {self.identity.dimensions} dimensions")
        wide = queries.astype(np.float64)
        lengths = np.sqrt(np.einsum("ij,ij->i", wide, wide))
        if not (np.isfinite(lengths) & (lengths > 0)).all():
            raise VectorError("the query's vector is NaN, infinite or all zeros")
        return np.ascontiguousarray(wide / lengths[:, None], dtype=np.float32)

    def _open_vectors(self) -> Take:
        take = self._take
        if take is None:
            raise ShardError("the index has been closed")
        return take

    def _search_selected(self, take: Take, queries: Floats, selection: Selection, k: int) -> Ranked:
        wanted = min(k, selection.count)
        plan = self.plan(selection, len(queries), k)
        if plan is Plan.NOTHING or not len(queries):
            return np.empty((len(queries), 0), np.int64), np.empty((len(queries), 0), np.float64)
        fetch = fetch_count(self._sizes(selection), wanted)
        exact = np.full(len(queries), plan is Plan.EXACT)
        if plan is Plan.GRAPH:
            found, raw = self._graph_scan(queries, selection, fetch)
            exact = (found >= 0).sum(axis=1) < wanted
            if exact.any():
                found[exact], raw[exact] = self._exact_scan(take, queries[exact], selection, fetch)
        else:
            found, raw = self._exact_scan(take, queries, selection, fetch)
        return self._cut(take, queries, selection, wanted, propose(found, cosines(take, queries, found), raw, exact))

    def _graph_scan(self, queries: Floats, selection: Selection, fetch: int) -> tuple[Ints, Floats]:
        """The allowed ones among the nearest of all, which are therefore the nearest of the allowed; -1 fills what is missing.

        FAISS could filter inside the graph search. Measured on 50,000 real vectors (FAISS 1.15.1, k = 10), that is faster for
        a tenth of random rows (0.7 ms against 1.3 ms; an exact scan of them takes 1.3 ms) at a lower recall (0.96), and finds
        what is near the query as well. But where the filter excludes the query's whole neighbourhood it returns k allowed rows
        from the edge of what it explored, of recall 0.00 to 0.05, and nothing tells; here such a search comes back short, and
        an exact one follows. With `bounded_queue=False` FAISS returns excluded rows.
        """
        ask = min(self.count, math.ceil(1.25 * fetch * self.count / selection.count))
        width = graph_width(self._sizes(selection), fetch)
        raw, found = self._graph.search(queries, ask, params=faiss.SearchParametersHNSW(efSearch=width))
        if selection.allowed is not None:
            found = np.where((found >= 0) & selection.allowed[found], found, -1)
        # Stable: the real ones come first, in the order of their scores.
        order = np.argsort(found < 0, axis=1, kind="stable")[:, :fetch]
        return np.take_along_axis(found, order, axis=1), np.take_along_axis(raw, order, axis=1)

    def _exact_scan(self, take: Take, queries: Floats, selection: Selection, fetch: int) -> tuple[Ints, Floats]:
        if selection.count == self.count:
            raw, found = self._flat.search(queries, fetch)
            return found, raw
        gathered, positions = selection.gathered, selection.positions
        if selection.allowed is not None and not self._quantised and len(queries) >= BLAS_QUERIES:
            positions = np.flatnonzero(selection.allowed)
            gathered = take(positions)
        if gathered is None or positions is None:
            raw, found = self._flat.search(queries, fetch, params=faiss.SearchParameters(sel=selection.selector))
            return found, raw
        raw, found = faiss.knn(queries, gathered, fetch, metric=faiss.METRIC_INNER_PRODUCT)
        return positions[found], raw

    def _cut(self, take: Take, queries: Floats, selection: Selection, wanted: int, proposals: Proposals) -> Ranked:
        """The best `wanted` of the proposed positions, and of those that were not proposed and may belong among them."""
        positions, scores = proposals.positions[:, :wanted], proposals.scores[:, :wanted]
        incomplete = (proposals.positions >= 0).sum(axis=1) < selection.count
        for place in np.flatnonzero(incomplete & proposals.may_miss(wanted, self._error, self._links)).tolist():
            near = self._at_least(queries[place], selection, float(scores[place, -1]) - self._error)
            known = proposals.positions[place]
            near = np.union1d(near, known[known >= 0])
            near, their_scores = by_score(near, cosines(take, queries[place][None], near[None])[0])
            positions[place], scores[place] = near[:wanted], their_scores[:wanted]
        rows = positions if self._rows is None else self._rows[positions]
        return rows, scores.astype(np.float64)

    def _at_least(self, query: Floats, selection: Selection, threshold: float) -> Ints:
        """Allowed positions with a `raw` score of at least `threshold`."""
        if selection.gathered is not None and selection.positions is not None:
            return selection.positions[selection.gathered @ query >= threshold]
        parameters = None if selection.selector is None else faiss.SearchParameters(sel=selection.selector)
        found: Ints
        if not self._quantised:
            found = self._flat.range_search(query[None], threshold, params=parameters)[2]
            return found
        # FAISS's range search takes 20 times as long over quantised vectors as a search for the best, which is asked for more
        # until it has all.
        fetch = 0
        while fetch < selection.count:
            fetch = min(max(_FIRST_FETCH, 4 * fetch), selection.count)
            raw, near = self._flat.search(query[None], fetch, params=parameters)
            if raw[0, -1] < threshold:
                break
        found = near[0, raw[0] >= threshold]
        return found

    def close(self) -> None:
        """Frees the memory, once the searches that are running have ended. Searches after that raise ShardError."""
        self._take = None
        self._index = self._graph = self._flat = None
