"""From the store to a served generation: embed, build, publish; and the same again under a better embedder."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cluster import faults
from cluster.embed.node_text import embedding_hash
from cluster.errors import CorruptIndexError, NotFoundError, RaycallError
from cluster.model.manifest import Manifest, VectorIdentity
from cluster.model.nodes import Node
from cluster.ports import Clock, Embedder
from jobs.build import LEXICAL_PART, VECTOR_PART, Builder, intact, lexical_fingerprint, searchable, vector_fingerprint
from jobs.embed import fill_cache

log = logging.getLogger(__name__)

#: Texts that are embedded before publishing rather than after, when the served generation has the better identity already:
#: a few seconds of waiting for an answer that is complete at once.
INLINE_TEXTS = 64

#: (served, new) -> why the new generation must not replace the served one; None when it may.
Gate = Callable[[Manifest, Manifest], str | None]
#: phase, done, total
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reindexer:
    """Publishes generations of one account."""

    builder: Builder
    #: Fast, for the first generation of a project.
    first: Embedder
    #: Better, for the generation that follows in the background. The same as `first` where there is only one.
    target: Embedder
    clock: Clock
    #: What a generation must pass before it is served; None: nothing.
    gate: Gate | None = None

    def publish(self, account: str, project: str, progress: Progress) -> Manifest:
        """Makes the store's present state searchable: under the served identity, or the first embedder's for a new project.

        Returns the served generation; the same one as before when nothing changed, or when the gate keeps the new one out,
        which then lies there unpublished (see `GenerationStore.refused`).
        """
        embedder = self._served_by(self._served(project)[0])
        nodes = searchable(self.builder.store, account, project)
        if embedder is self.first or len(self._uncached(nodes, embedder)) <= INLINE_TEXTS:
            fill_cache(nodes, embedder, self.builder.vectors, lambda done, total: progress("embed", done, total))
        # Chosen again under the lock: a refinement that was published meanwhile must not be undone.
        return self._build(account, project, lambda served: self._served_by(served).identity, progress)

    def _served_by(self, served: Manifest | None) -> Embedder:
        """The embedder of the served generation's kind: the target's once that has been reached, the first one's until then."""
        return self.target if served is not None and served.identity == self.target.identity else self.first

    def refine(self, account: str, project: str, progress: Progress) -> Manifest:
        """Embeds everything with the target embedder and publishes that; may take minutes, and goes on where it was stopped."""
        nodes = searchable(self.builder.store, account, project)
        fill_cache(nodes, self.target, self.builder.vectors, lambda done, total: progress("embed", done, total))
        return self._build(account, project, lambda _served: self.target.identity, progress)

    def needs_refining(self, account: str, project: str) -> bool:
        """Whether the served generation has another identity than the target's, or rows that the target could still embed."""
        served = self._served(project)[0]
        if served is None:
            return False
        if served.identity != self.target.identity:
            return True
        if served.vectors == served.rows:
            return False
        return bool(self._uncached(searchable(self.builder.store, account, project), self.target))

    def _uncached(self, nodes: Sequence[Node], embedder: Embedder) -> set[str]:
        hashes = {embedding_hash(node) for node in nodes}
        return hashes - self.builder.vectors.get(embedder.identity, sorted(hashes)).keys()

    def _build(
        self, account: str, project: str, choose: Callable[[Manifest | None], VectorIdentity], progress: Progress
    ) -> Manifest:
        generations = self.builder.generations
        with generations.build_lock(project):
            faults.reach("build.locked")
            served, required = self._served(project)
            # What a build that was killed after its swap left for later.
            generations.discard_unfinished(project)
            generations.sweep(project)
            identity = choose(served)
            progress("build", 0, 1)
            if served is not None and self._unchanged(served, identity):
                return served
            manifest = self.builder.build(account, project, identity, self.clock.now_ms(), served)
            faults.reach("build.finished")
            try:
                if served is not None and self._kept_out(served, manifest):
                    progress("build", 1, 1)
                    return served
                generations.publish(manifest, required=required)
            except RaycallError:
                # Nobody serves it, and the next build makes another one: those that nobody served would pile up.
                kept = generations.refused(project)
                generations.discard_refused(project, frozenset({kept["generation"]} if kept else ()))
                raise
            generations.sweep(project)
            faults.reach("build.swept")
            progress("build", 1, 1)
            return manifest

    def _kept_out(self, served: Manifest, new: Manifest) -> bool:
        """Whether the gate keeps `new` out; why is noted beside it, and what was kept out before it goes."""
        reason = None if self.gate is None else self.gate(served, new)
        if reason is None:
            return False
        extra = {"action": "generation_kept_out", "project": new.project, "generation": new.generation}
        log.warning("the new generation is not published: %s", reason, extra=extra)
        self.builder.generations.refuse(new, reason)
        self.builder.generations.discard_refused(new.project, frozenset({new.generation}))
        return True

    def _served(self, project: str) -> tuple[Manifest | None, str | None]:
        """The served generation's manifest and its name. The store has everything: what is damaged is built anew."""
        generations = self.builder.generations
        try:
            pointer = generations.pointer(project)
        except CorruptIndexError as error:
            log.error(error.detail, extra={"action": "pointer_damaged", "project": project})  # noqa: TRY400
            generations.set_aside_pointer(project)
            return None, None
        if pointer.generation is None:
            return None, None
        try:
            return generations.manifest(project, pointer.generation), pointer.generation
        except (CorruptIndexError, NotFoundError) as error:
            log.error(error.detail, extra={"action": "manifest_damaged", "project": project})  # noqa: TRY400
            return None, pointer.generation

    def _unchanged(self, served: Manifest, identity: VectorIdentity) -> bool:
        """Whether a build would give what is served already, bucket by bucket."""
        if served.identity != identity or served.analyzer != self.builder.analyzer:
            return False
        buckets = self.builder.partition(searchable(self.builder.store, served.account, served.project))
        if len(buckets) != len(served.buckets):
            return False
        precision = self.builder.precision_of(buckets)
        for nodes, bucket in zip(buckets, served.buckets, strict=True):
            hashes = [embedding_hash(node) for node in nodes]
            known = self.builder.usable_vectors(nodes, hashes, identity)
            if bucket.lexical_fingerprint != lexical_fingerprint(nodes, served.analyzer):
                return False
            if bucket.vector_fingerprint != vector_fingerprint(nodes, hashes, identity, precision, known):
                return False
            folder = self.builder.generations.folder(served.project, served.generation) / bucket.name
            if not (intact(folder, bucket, LEXICAL_PART) and intact(folder, bucket, VECTOR_PART)):
                return False
        return True
