"""Builds a generation: the store's live, searchable nodes of one project become buckets of rows, postings and vectors."""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from cluster.embed.node_text import embedding_hash, embedding_text
from cluster.errors import VectorError
from cluster.generations import generation_id
from cluster.index.rows import rows_table, write_rows
from cluster.model.guard import LIST_COLUMNS, SCALAR_COLUMNS, All, In, IsNull
from cluster.model.manifest import Bucket, Manifest, VectorIdentity
from cluster.model.nodes import Node
from cluster.placement import bucket_count, bucket_of
from cluster.ports import GraphStore, VectorCache
from cluster.storage import GenerationStore, checksums, link_tree

log = logging.getLogger(__name__)

#: Writes a Lucene directory for the nodes in their order and returns the token count of each, int32 of shape (len(nodes),).
BuildLexical = Callable[[Path, Sequence[Node]], npt.NDArray[np.int32]]
#: Writes the FAISS file: path, unit vectors float32 (n, d), their row numbers (n,), identity.
WriteVectors = Callable[[Path, npt.NDArray[np.float32], npt.NDArray[np.int64], VectorIdentity], None]

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

    def build(self, account: str, project: str, identity: VectorIdentity, now: int, previous: Manifest | None) -> Manifest:
        """Builds and finishes one generation after `previous`, not yet published. The caller holds the project's build lock.

        A part of a bucket whose inputs did not change since the served generation is linked from it. Rows without a cached
        vector are left to their words. The watermark is read before the rows: a write in between is built again, never lost.
        """
        self.generations.discard_unfinished(project)
        watermark = self.store.revision()
        buckets = self.partition(searchable(self.store, account, project))
        generation = generation_id(now, secrets.token_hex(4))
        with self.generations.building(project, generation) as part:
            built = tuple(
                self._bucket(part / f"b{number:04d}", nodes, identity, previous) for number, nodes in enumerate(buckets)
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

    def _bucket(self, folder: Path, nodes: list[Node], identity: VectorIdentity, previous: Manifest | None) -> Bucket:
        folder.mkdir()
        hashes = [embedding_hash(node) for node in nodes]
        known = self.vectors.get(identity, hashes)
        lexical_key = lexical_fingerprint(nodes, self.analyzer)
        vector_key = vector_fingerprint(nodes, hashes, identity, known)
        old, old_folder = self._served_bucket(previous, folder.name)
        if old is not None and old.lexical_fingerprint == lexical_key and intact(old_folder, old, LEXICAL_PART):
            link_tree(old_folder / LEXICAL_PART, folder / LEXICAL_PART)
        else:
            self._write_lexical(folder / LEXICAL_PART, nodes)
        rows = np.array([row for row, key in enumerate(hashes) if key in known], dtype=np.int64)
        if old is not None and old.vector_fingerprint == vector_key and intact(old_folder, old, VECTOR_PART):
            link_tree(old_folder / VECTOR_PART, folder / VECTOR_PART)
        else:
            vectors = _stacked(nodes, hashes, rows, identity, known)
            (folder / VECTOR_PART).mkdir()
            self.write_vectors(folder / VECTOR_PART / "vectors.faiss", vectors, rows, identity)
        return Bucket(
            name=folder.name,
            rows=len(nodes),
            vectors=len(rows),
            checksums=checksums(folder),
            lexical_fingerprint=lexical_key,
            vector_fingerprint=vector_key,
        )

    def _served_bucket(self, previous: Manifest | None, name: str) -> tuple[Bucket | None, Path]:
        for bucket in previous.buckets if previous is not None else ():
            if previous is not None and bucket.name == name:
                return bucket, self.generations.folder(previous.project, previous.generation) / name
        return None, Path()

    def _write_lexical(self, target: Path, nodes: Sequence[Node]) -> None:
        target.mkdir()
        tokens = self.build_lexical(target / "lucene", nodes)
        write_rows(target / "rows.parquet", rows_table(nodes, tokens))


def _stacked(
    nodes: Sequence[Node],
    hashes: Sequence[str],
    rows: npt.NDArray[np.int64],
    identity: VectorIdentity,
    known: dict[str, npt.NDArray[np.float32]],
) -> npt.NDArray[np.float32]:
    vectors = np.zeros((len(rows), identity.dimensions), dtype=np.float32)
    for place, row in enumerate(rows):
        vector = known[hashes[row]]
        if vector.shape != (identity.dimensions,):
            sizes = f"{vector.shape[0]} dimensions, {identity.key} has {identity.dimensions}"
            raise VectorError(f"node {nodes[row].id} has a vector of {sizes}")
        vectors[place] = vector
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
    known: dict[str, npt.NDArray[np.float32]],
) -> str:
    """Hash of all that the vector file is made from: which rows have a vector of which text, under which identity."""
    digest = hashlib.blake2b(identity.key.encode(), digest_size=16)
    for node, key in zip(nodes, hashes, strict=True):
        digest.update(f"{node.id} {key if key in known else '-'}\n".encode())
    return digest.hexdigest()
