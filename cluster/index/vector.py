"""The vectors of a bucket: one FAISS file, and a pre-filtered search over it. The only file that knows FAISS.

A file holds unit vectors in row order under their row numbers (an IndexIDMap), flat for small buckets and with an HNSW graph
beside the vectors for large ones, followed by a trailer that names the vectors' identity:

    <FAISS index> <JSON: format, identity, count, kind> <length of the JSON, 8 bytes> <magic, 8 bytes>

FAISS stops reading where its index ends, so the file stays readable by FAISS alone, and the identity cannot be separated from
the vectors by a crash between two renames.

A guard's mask becomes a `Selection` once, by `prepare`; the shard keeps it by guard signature. `plan` decides from counts
alone how a selection is searched; a graph search that comes back short is repeated as an exact scan, so a filter can never
cost a hit. Scores are recomputed from the stored vectors in one fixed way: neither batching nor the chosen path shows in them.
"""

from __future__ import annotations

import json
import math
import os
import threading
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import faiss as _faiss
import numpy as np
import numpy.typing as npt

from cluster.errors import CorruptIndexError, ShardError, UsageError, VectorError
from cluster.model.manifest import VectorIdentity

#: FAISS's stubs know a part of its interface only.
faiss: Any = _faiss

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
Ranked = tuple[Ints, npt.NDArray[np.float64]]

#: Buckets with more vectors than this get a graph. Below it an exact scan takes about a millisecond and a build no time.
GRAPH_THRESHOLD = 20_000
#: Links of a graph node (twice as many on the lowest level), and how widely a build looks for them.
GRAPH_LINKS = 16
GRAPH_BUILD_WIDTH = 80
#: Nodes that a graph search expands at least; it is twice the rows asked for when that is more (recall@100 about 0.95).
GRAPH_MIN_WIDTH = 128
#: Rows asked for beyond k, so that ties at the cut are seen and resolved by row number.
TIE_SLACK = 16
#: Two scores closer than this may change places between two ways of computing them (float32 sums of up to 4096 products).
SCORE_NOISE = 2e-6
#: How far a row's length may be from 1.
UNIT_TOLERANCE = 1e-3
#: Selections up to this size carry a copy of their vectors, which is 2 to 4 times as fast as picking them from the whole.
GATHER_BYTES = 4 << 20
#: From this many queries on, one matrix product over all of them is faster than a scan for each (measured at 256 and 384
#: dimensions); it then costs about BLAS_ROW_COST of a single scan per row and query.
BLAS_QUERIES = 4
BLAS_ROW_COST = 0.35

_FORMAT = 1
_MAGIC = b"RAYCVEC\x01"

# FAISS compares queries * dimensions with this; its own default of 128,000 never takes the matrix product for small batches.
faiss.cvar.distance_compute_blas_threshold = BLAS_QUERIES * 256


class Plan(StrEnum):
    """How a selection is searched."""

    NOTHING = "nothing"
    EXACT = "exact"
    GRAPH = "graph"


@dataclass(frozen=True, slots=True, eq=False)
class Selection:
    """The vectors of one index that a guard allows, in the form that its search needs. Immutable; shared between threads."""

    #: What the index that made it recognises it by: used with another index, it would allow other rows.
    owner: object
    #: Allowed rows that have a vector.
    count: int
    #: int64, shape (count,), ascending positions inside the index; None: all of them.
    positions: Ints | None
    #: float32, shape (count, dimensions): a copy of the allowed vectors; None for a large selection.
    gathered: Floats | None = None
    #: FAISS's view of a bitmap over the positions; None when `gathered` serves or everything is allowed.
    selector: Any = None
    #: bool, shape (vectors in the index,); the selector's twin for the check after a search.
    allowed: npt.NDArray[np.bool_] | None = None

    @property
    def nbytes(self) -> int:
        """Memory that keeping this selection costs."""
        arrays = (self.positions, self.gathered, self.allowed)
        bitmap = 0 if self.allowed is None else self.allowed.size // 8
        return bitmap + sum(0 if array is None else array.nbytes for array in arrays)


def find_bad_vector(vectors: Floats) -> tuple[int, str] | None:
    """Position and fault of the first row that is not a finite unit vector; None when all are."""
    # A sum over a row is finite only if the row is, and needs no matrix of flags. Overflow is what it looks for.
    with np.errstate(over="ignore", invalid="ignore"):
        squares = np.einsum("ij,ij->i", vectors, vectors)
        bad = ~(np.abs(np.sqrt(squares) - 1.0) <= UNIT_TOLERANCE)
    if not bad.any():
        return None
    position = int(np.argmax(bad))
    row = vectors[position]
    if np.isnan(row).any():
        return position, "contains NaN"
    if np.isinf(row).any():
        return position, "contains infinity"
    if not row.any():
        return position, "is all zeros"
    return position, f"has length {float(np.linalg.norm(row.astype(np.float64))):.6g}, not 1"


def write_vectors(
    path: Path,
    vectors: Floats,
    rows: npt.NDArray[np.integer[Any]],
    identity: VectorIdentity,
    *,
    graph_threshold: int = GRAPH_THRESHOLD,
) -> None:
    """Writes the bucket's vectors to `path`: whole or not at all, durable, and byte for byte the same for the same input.

    `vectors` is float32 of shape (n, identity.dimensions) with rows of length 1; `rows` int of shape (n,), ascending, each
    once, 0 or more: the row numbers of the bucket. Above `graph_threshold` vectors a graph is built, on one thread, since
    only that gives equal bytes: about 0.3 ms a vector. Neither array is modified.

    Raises VectorError, naming the row, for a vector that is NaN, infinite, zero or not of length 1, for wrong dimensions and
    for a row number out of order. CorruptIndexError when the file cannot be written.
    """
    numbers = np.ascontiguousarray(rows, dtype=np.int64)
    _check_input(vectors, numbers, identity)
    values = np.ascontiguousarray(vectors, dtype=np.float32)
    kind = Plan.GRAPH if len(values) > graph_threshold else Plan.EXACT
    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        index = faiss.IndexIDMap(_empty_index(kind, identity.dimensions))
        if len(values):
            index.add_with_ids(values, numbers)
    finally:
        faiss.omp_set_num_threads(threads)
    trailer = {"format": _FORMAT, "identity": asdict(identity), "count": len(values), "kind": kind.value}
    _write_file(Path(path), index, json.dumps(trailer, sort_keys=True).encode())


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
    bad = find_bad_vector(vectors)
    if bad is not None:
        raise VectorError(f"row {rows[bad[0]]}: the vector {bad[1]}")


def _empty_index(kind: Plan, dimensions: int) -> Any:
    if kind is Plan.EXACT:
        return faiss.IndexFlatIP(dimensions)
    graph = faiss.IndexHNSWFlat(dimensions, GRAPH_LINKS, faiss.METRIC_INNER_PRODUCT)
    graph.hnsw.efConstruction = GRAPH_BUILD_WIDTH
    return graph


def _write_file(path: Path, index: Any, trailer: bytes) -> None:
    part = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.part")
    try:
        faiss.write_index(index, str(part))
        with part.open("ab") as file:
            file.write(trailer + len(trailer).to_bytes(8, "little") + _MAGIC)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except (OSError, RuntimeError) as error:
        raise CorruptIndexError(f"{path.name} could not be written: {error}") from error
    finally:
        part.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


class VectorIndex:
    """One bucket's vectors, read into memory. (Mapping the file would share it between processes, but FAISS writes vectors at
    odd offsets, and numpy copies the whole of an unaligned array for each use of it.)

    Searches may run on several threads at once. Each runs on `threads` OpenMP threads: FAISS keeps that number for each
    calling thread, so it is set again by every search and no index disturbs another.
    """

    def __init__(self, path: Path, total_rows: int, identity: VectorIdentity, threads: int = 1) -> None:
        """Opens `path` for a bucket of `total_rows` rows.

        Raises VectorError when its vectors are not of `identity`, CorruptIndexError when it is missing or not readable.
        """
        path = Path(path)
        trailer = _read_trailer(path)
        found = VectorIdentity(**trailer["identity"])
        if found != identity:
            raise VectorError(
                f"the index holds vectors of {found.key}, {identity.key} was asked for: embed the project again with this model"
            )
        self.identity = identity
        self.total_rows = total_rows
        self.threads = threads
        self.memory_bytes = path.stat().st_size
        try:
            self._index: Any = faiss.read_index(str(path))
        except RuntimeError as error:
            raise CorruptIndexError(f"{path.name} is not readable by FAISS") from error
        inner = faiss.downcast_index(self._index.index)
        self._graph: Any = inner if trailer["kind"] == Plan.GRAPH else None
        self._flat: Any = inner if self._graph is None else faiss.downcast_index(inner.storage)
        self.count = int(self._flat.ntotal)
        self._rows: Ints = faiss.vector_to_array(self._index.id_map)
        self._check_counts(path.name, trailer)
        self._vectors = self._view_of_vectors()
        self._token = object()
        self._everything = Selection(self._token, self.count, None)

    def _check_counts(self, name: str, trailer: dict[str, Any]) -> None:
        if self.count != trailer["count"] or len(self._rows) != self.count or self._flat.d != self.identity.dimensions:
            raise CorruptIndexError(f"{name} does not hold what its trailer says")
        if self.count and self._rows[-1] >= self.total_rows:
            raise CorruptIndexError(f"{name} has row {self._rows[-1]}, the bucket has {self.total_rows} rows")

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
        allowed = mask[self._rows]
        positions = np.flatnonzero(allowed)
        if len(positions) == self.count:
            return self._everything
        if len(positions) * self.identity.dimensions * 4 <= GATHER_BYTES:
            return Selection(self._token, len(positions), positions, gathered=np.take(self._open_vectors(), positions, axis=0))
        selector = faiss.IDSelectorBitmap(np.packbits(allowed, bitorder="little"))
        return Selection(self._token, len(positions), positions, selector=selector, allowed=allowed)

    def plan(self, selection: Selection, queries: int, k: int) -> Plan:
        """How `queries` queries for `k` rows of `selection` are searched together.

        Costs in vectors read. Exact: each allowed one, for less when a matrix product reads it for all queries at once.
        Graph: each of `width` expanded nodes reads its links, and with a share s allowed 1/s as many must be expanded.
        """
        if selection.count == 0:
            return Plan.NOTHING
        if self._graph is None or selection.gathered is not None:
            return Plan.EXACT
        exact = selection.count * (BLAS_ROW_COST if queries >= BLAS_QUERIES else 1.0)
        graph = self._width(selection, k + TIE_SLACK) * 2 * GRAPH_LINKS
        return Plan.GRAPH if graph < exact else Plan.EXACT

    def _width(self, selection: Selection, fetch: int) -> int:
        return max(GRAPH_MIN_WIDTH, math.ceil(2 * fetch * self.count / selection.count))

    def search(self, queries: Floats, selections: Sequence[Selection | None], k: int) -> list[Ranked]:
        """For each query, the min(k, allowed) rows of highest cosine, score descending, then row ascending.

        `queries` is float32 of shape (q, dimensions), finite and not zero, of any length; it is not modified. `selections`
        has one entry a query, from this index's `prepare`; None allows all. Queries that share a selection are searched
        together. Rows are int64 row numbers of the bucket; scores float64 in [-1, 1]. Exact where `plan` says so.

        Raises VectorError for a query that is NaN, infinite, zero or of wrong dimensions; UsageError when k < 1.
        """
        if k < 1:
            raise UsageError(f"k must be 1 or more, got {k}", field="limit")
        units = self._unit_queries(queries)
        if len(selections) != len(units):
            raise UsageError(f"{len(units)} queries but {len(selections)} selections given")
        # Kept for the whole search: `close` on another thread must not free what is being read here.
        owner, vectors = self._index, self._open_vectors()
        faiss.omp_set_num_threads(self.threads)
        groups: dict[int, list[int]] = {}
        for place, selection in enumerate(selections):
            groups.setdefault(id(selection), []).append(place)
        results: list[Ranked] = [(np.empty(0, np.int64), np.empty(0, np.float64))] * len(units)
        for places in groups.values():
            selection = selections[places[0]] or self._everything
            if selection.owner is not self._token:
                raise UsageError("the selection was prepared by another index")
            for place, ranked in zip(places, self._search_group(vectors, units[places], selection, k), strict=False):
                results[place] = ranked
        del owner
        return results

    def _unit_queries(self, queries: Floats) -> Floats:
        if queries.ndim != 2 or queries.shape[1] != self.identity.dimensions:
            shape = "x".join(str(size) for size in queries.shape)
            raise VectorError(f"query of shape {shape} given, {self.identity.key} has {self.identity.dimensions} dimensions")
        wide = queries.astype(np.float64)
        lengths = np.sqrt(np.einsum("ij,ij->i", wide, wide))
        if not (np.isfinite(lengths) & (lengths > 0)).all():
            raise VectorError("the query's vector is NaN, infinite or all zeros")
        return np.ascontiguousarray(wide / lengths[:, None], dtype=np.float32)

    def _open_vectors(self) -> Floats:
        vectors = self._vectors
        if vectors is None:
            raise ShardError("the index has been closed")
        return vectors

    def _search_group(self, vectors: Floats, queries: Floats, selection: Selection, k: int) -> list[Ranked]:
        wanted = min(k, selection.count)
        fetch = min(wanted + TIE_SLACK, selection.count)
        plan = self.plan(selection, len(queries), wanted)
        if plan is Plan.NOTHING:
            return []
        if plan is Plan.GRAPH:
            found, raw = self._graph_scan(queries, selection, fetch)
            short = np.flatnonzero((found >= 0).sum(axis=1) < wanted)
            if len(short):
                found[short], raw[short] = self._exact_scan(vectors, queries[short], selection, fetch)
        else:
            found, raw = self._exact_scan(vectors, queries, selection, fetch)
        scores = _cosines(vectors, queries, found)
        lasts = np.where(found >= 0, raw, np.inf).min(axis=1)
        return [
            self._cut(vectors, query, selection, wanted, positions, values, last)
            for query, positions, values, last in zip(queries, found, scores, lasts, strict=True)
        ]

    def _graph_scan(self, queries: Floats, selection: Selection, fetch: int) -> tuple[Ints, Floats]:
        """The allowed ones among the nearest of all, which are therefore the nearest of the allowed; -1 fills what is missing.

        FAISS could filter inside the graph search, but then takes allowed rows from the edge of what it explored when the
        nearest ones are out of its reach (a filter that excludes the query's whole neighbourhood), and nothing tells.
        """
        ask = min(self.count, math.ceil(1.25 * fetch * self.count / selection.count))
        parameters = faiss.SearchParametersHNSW(efSearch=self._width(selection, fetch))
        raw, found = self._graph.search(queries, ask, params=parameters)
        if selection.allowed is not None:
            found = np.where((found >= 0) & selection.allowed[found], found, -1)
        # Stable: the real ones come first, in the order of their scores.
        order = np.argsort(found < 0, axis=1, kind="stable")[:, :fetch]
        return np.take_along_axis(found, order, axis=1), np.take_along_axis(raw, order, axis=1)

    def _exact_scan(self, vectors: Floats, queries: Floats, selection: Selection, fetch: int) -> tuple[Ints, Floats]:
        if selection.positions is None:
            raw, found = self._flat.search(queries, fetch)
            return found, raw
        gathered = selection.gathered
        if gathered is None and len(queries) >= BLAS_QUERIES:
            gathered = np.take(vectors, selection.positions, axis=0)
        if gathered is None:
            raw, found = self._flat.search(queries, fetch, params=faiss.SearchParameters(sel=selection.selector))
            return found, raw
        raw, found = faiss.knn(queries, gathered, fetch, metric=faiss.METRIC_INNER_PRODUCT)
        return selection.positions[found], raw

    def _cut(
        self,
        vectors: Floats,
        query: Floats,
        selection: Selection,
        wanted: int,
        positions: Ints,
        scores: Floats,
        last: float,
    ) -> Ranked:
        """The best `wanted` of the proposed positions, unless rows that were not proposed may tie with the last of them."""
        positions, scores = _ranked(positions, scores)
        if len(positions) < selection.count and last >= scores[wanted - 1] - SCORE_NOISE:
            tied = self._at_least(query, selection, float(scores[wanted - 1]) - SCORE_NOISE)
            tied = np.union1d(tied, positions)
            positions, scores = _ranked(tied, _cosines(vectors, query[None], tied[None])[0])
        return self._rows[positions[:wanted]], scores[:wanted].astype(np.float64)

    def _at_least(self, query: Floats, selection: Selection, threshold: float) -> Ints:
        if selection.gathered is not None and selection.positions is not None:
            return selection.positions[selection.gathered @ query >= threshold]
        parameters = None if selection.selector is None else faiss.SearchParameters(sel=selection.selector)
        found: Ints = self._flat.range_search(query[None], threshold, params=parameters)[2]
        return found

    def close(self) -> None:
        """Frees the memory, once the searches that are running have ended. Searches after that raise ShardError."""
        self._vectors = None  # type: ignore[assignment]
        self._index = None


def _cosines(vectors: Floats, queries: Floats, found: Ints) -> Floats:
    """float32 of shape `found.shape`: the cosine of each query and each of its positions; -1 positions give -inf.

    einsum sums along the last axis in one order, whatever the batch; a matrix product would not, and equal vectors would get
    unequal scores.
    """
    taken = vectors[found.ravel()].reshape(*found.shape, vectors.shape[1])
    scores: Floats = np.clip(np.einsum("qfd,qd->qf", taken, queries), -1.0, 1.0)
    return np.where(found >= 0, scores, np.float32(-np.inf))


def _ranked(positions: Ints, scores: Floats) -> tuple[Ints, Floats]:
    """The real positions by score descending, then position ascending."""
    order = np.lexsort((positions, -scores))
    order = order[positions[order] >= 0]
    return positions[order], scores[order]


def _read_trailer(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - 16))
            tail = file.read(16)
            length = int.from_bytes(tail[:8], "little")
            if tail[8:] != _MAGIC or length > size - 16:
                raise CorruptIndexError(f"{path.name} is not a vector file, or was cut off")
            file.seek(size - 16 - length)
            trailer: dict[str, Any] = json.loads(file.read(length))
    except OSError as error:
        raise CorruptIndexError(f"{path.name} cannot be opened: {error.strerror}") from error
    except ValueError as error:
        raise CorruptIndexError(f"{path.name} has an unreadable trailer") from error
    if trailer.get("format") != _FORMAT:
        raise CorruptIndexError(f"{path.name} has format {trailer.get('format')!r}, this program reads {_FORMAT}")
    return trailer
