"""Builds a generation: the store's live, searchable nodes of one project become buckets of rows, postings and vectors."""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from cluster import faults
from cluster.checks import checksums, sizes
from cluster.embed.node_text import embedding_hash, embedding_text
from cluster.generations import generation_id
from cluster.index.rows import rows_table, write_rows
from cluster.index.vector_file import FORMAT, Precision, choose_precision
from cluster.model.guard import LIST_COLUMNS, SCALAR_COLUMNS, All, In, IsNull
from cluster.model.manifest import Bucket, Manifest, VectorIdentity
from cluster.model.nodes import Node
from cluster.placement import bucket_count, bucket_of
from cluster.ports import GraphStore, VectorCache
from cluster.storage import GenerationStore, link_tree
from cluster.unit_vectors import find_faults_for

log = logging.getLogger(__name__)

#: Writes a Lucene directory for the nodes in their order and returns the token count of each, int32 of shape (len(nodes),).
BuildLexical = Callable[[Path, Sequence[Node]], npt.NDArray[np.int32]]


class WriteVectors(Protocol):
    """Writes the FAISS file at `path`, and what belongs beside it: unit vectors float32 (n, d), their row numbers (n,)."""

    def __call__(
        self,
        path: Path,
        vectors: npt.NDArray[np.float32],
        rows: npt.NDArray[np.int64],
        identity: VectorIdentity,
        *,
        precision: Precision,
    ) -> None: ...


#: Nodes with an unusable vector that one record of the log names.
NAMED_NODES = 20

LEXICAL_PART = "lexical"
VECTOR_PART = "vector"


@dataclass(frozen=True, slots=True, kw_only=True)
class Builder:
    """What a build reads and writes."""

    store: GraphStore
    generations: GenerationStore
    vectors: VectorCache
    build_lexical: BuildLexical
    write_vectors: WriteVectors
    analyzer: str
    target_rows: int
    #: "auto" or a Precision; see `choose_precision`.
    precision: str = "auto"

    def build(self, account: str, project: str, identity: VectorIdentity, now: int, previous: Manifest | None) -> Manifest:
        """Builds and finishes one generation after `previous`, not yet published. The caller holds the project's build lock.

        A part of a bucket whose inputs did not change since the served generation is linked from it. Rows without a cached
        vector are left to their words, and so are, with their node in the log, those whose vector cannot be used. The watermark
        is read before the rows: a write in between is built again, never lost.
        """
        self.generations.discard_unfinished(project)
        watermark = self.store.revision()
        buckets = self.partition(searchable(self.store, account, project))
        generation = generation_id(now, secrets.token_hex(4))
        with self.generations.building(project, generation) as part:
            faults.reach("build.started")
            precision = self.precision_of(buckets)
            built = tuple(
                self._bucket(part / f"b{number:04d}", nodes, identity, precision, previous)
                for number, nodes in enumerate(buckets)
            )
            manifest = Manifest(
                generation=generation,
                account=account,
                project=project,
                created_at=now,
                watermark=watermark,
                analyzer=self.analyzer,
                identity=identity,
                buckets=built,
                previous=None if previous is None else previous.generation,
            )
            self.generations.finish(part, manifest)
        log.info(
            "generation built",
            extra={"action": "generation_built", "generation": generation, "project": project, "rows": manifest.rows},
        )
        return manifest

    def partition(self, nodes: Sequence[Node]) -> list[list[Node]]:
        """The nodes of each bucket, in the order of `nodes`."""
        count = bucket_count(len(nodes), self.target_rows)
        buckets: list[list[Node]] = [[] for _ in range(count)]
        for node in nodes:
            buckets[bucket_of(node.id, count)].append(node)
        return buckets

    def precision_of(self, buckets: Sequence[Sequence[Node]]) -> Precision:
        """How the vectors of a project with these buckets are kept."""
        return choose_precision(self.precision, sum(map(len, buckets)))

    def usable_vectors(
        self, nodes: Sequence[Node], hashes: Sequence[str], identity: VectorIdentity
    ) -> dict[str, npt.NDArray[np.float32]]:
        """The cached vectors among `hashes`, those of `nodes`. One that cannot be used is left out and its node named in the
        log: the rest of its bucket is built, and it is found by its words."""
        known = self.vectors.get(identity, hashes)
        faults = _faults(known, identity)
        if faults:
            named = {node.id: faults[key] for node, key in zip(nodes, hashes, strict=True) if key in faults}
            log.error(
                "%d nodes have a vector that cannot be used; they are found by their words alone",
                len(named),
                extra={"action": "vectors_refused", "nodes": dict(list(named.items())[:NAMED_NODES]), "count": len(named)},
            )
        return {key: vector for key, vector in known.items() if key not in faults}

    def _bucket(
        self,
        folder: Path,
        nodes: list[Node],
        identity: VectorIdentity,
        precision: Precision,
        previous: Manifest | None,
    ) -> Bucket:
        folder.mkdir()
        faults.reach("build.bucket_started")
        hashes = [embedding_hash(node) for node in nodes]
        known = self.usable_vectors(nodes, hashes, identity)
        lexical_key = lexical_fingerprint(nodes, self.analyzer)
        vector_key = vector_fingerprint(nodes, hashes, identity, precision, known)
        old, old_folder = self._served_bucket(previous, folder.name)
        if old is not None and old.lexical_fingerprint == lexical_key and intact(old_folder, old, LEXICAL_PART):
            link_tree(old_folder / LEXICAL_PART, folder / LEXICAL_PART)
        else:
            self._write_lexical(folder / LEXICAL_PART, nodes)
        faults.reach("build.lexical_written")
        rows = np.array([row for row, key in enumerate(hashes) if key in known], dtype=np.int64)
        if old is not None and old.vector_fingerprint == vector_key and intact(old_folder, old, VECTOR_PART):
            link_tree(old_folder / VECTOR_PART, folder / VECTOR_PART)
        else:
            vectors = _stacked(hashes, rows, identity, known)
            (folder / VECTOR_PART).mkdir()
            self.write_vectors(folder / VECTOR_PART / "vectors.faiss", vectors, rows, identity, precision=precision)
        faults.reach("build.vectors_written")
        bucket = Bucket(
            name=folder.name,
            rows=len(nodes),
            vectors=len(rows),
            checksums=checksums(folder),
            lexical_fingerprint=lexical_key,
            vector_fingerprint=vector_key,
            sizes=sizes(folder),
        )
        faults.reach("build.bucket_written")
        return bucket

    def _served_bucket(self, previous: Manifest | None, name: str) -> tuple[Bucket | None, Path]:
        for bucket in previous.buckets if previous is not None else ():
            if previous is not None and bucket.name == name:
                return bucket, self.generations.folder(previous.project, previous.generation) / name
        return None, Path()

    def _write_lexical(self, target: Path, nodes: Sequence[Node]) -> None:
        target.mkdir()
        tokens = self.build_lexical(target / "lucene", nodes)
        write_rows(target / "rows.parquet", rows_table(nodes, tokens))


def _faults(known: dict[str, npt.NDArray[np.float32]], identity: VectorIdentity) -> dict[str, str]:
    """Why a vector cannot be used, by its hash; only those are in it."""
    faults: dict[str, str] = {}
    sizes: dict[tuple[int, ...], list[str]] = {}
    for key, vector in known.items():
        sizes.setdefault(vector.shape, []).append(key)
    for keys in sizes.values():
        found = find_faults_for(identity, np.stack([known[key] for key in keys]))
        faults.update({keys[place]: fault for place, fault in found.items()})
    return faults


def _stacked(
    hashes: Sequence[str],
    rows: npt.NDArray[np.int64],
    identity: VectorIdentity,
    known: dict[str, npt.NDArray[np.float32]],
) -> npt.NDArray[np.float32]:
    vectors = np.zeros((len(rows), identity.dimensions), dtype=np.float32)
    for place, row in enumerate(rows):
        vectors[place] = known[hashes[row]]
    return vectors


def intact(folder: Path, bucket: Bucket, part: str) -> bool:
    """Whether every file of a part still is what its manifest says; damage must not be linked into the next generation."""
    if not (folder / part).is_dir():
        return False
    expected = {path: checksum for path, checksum in bucket.checksums.items() if path.startswith(f"{part}/")}
    found = {f"{part}/{path}": checksum for path, checksum in checksums(folder / part).items()}
    if found == expected:
        return True
    log.error("a part of the served generation is damaged; it is built again", extra={"action": "part_damaged", "part": part})
    return False


def searchable(store: GraphStore, account: str, project: str) -> list[Node]:
    """The nodes of a project that go into its indexes, by id ascending: not deleted, and with some text."""
    guard = All((IsNull("deleted_at"), In("account", (account,)), In("project", (project,))))
    return [node for node in store.scan(guard) if embedding_text(node)]


def lexical_fingerprint(nodes: Sequence[Node], analyzer: str) -> str:
    """Hash of all that the rows and the postings are made from."""
    digest = hashlib.blake2b(analyzer.encode(), digest_size=16)
    for node in nodes:
        guards = [getattr(node, column) for column in (*SCALAR_COLUMNS, *LIST_COLUMNS)]
        digest.update(repr((node.id, guards, sorted(node.text.items()))).encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def vector_fingerprint(
    nodes: Sequence[Node],
    hashes: Sequence[str],
    identity: VectorIdentity,
    precision: Precision,
    known: dict[str, npt.NDArray[np.float32]],
) -> str:
    """Hash of all that the vector files are made from: which rows have a vector of which text, and how they are written."""
    digest = hashlib.blake2b(f"{identity.key} {precision} {FORMAT}\n".encode(), digest_size=16)
    for node, key in zip(nodes, hashes, strict=True):
        digest.update(f"{node.id} {key if key in known else '-'}\n".encode())
    return digest.hexdigest()
