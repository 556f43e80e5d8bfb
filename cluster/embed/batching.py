"""What all embedders share: reports, cutting, estimates, packing into requests, and embedding through the cache."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from cluster.ports import Embedder, VectorCache
from cluster.unit_vectors import find_faults_for

Floats = npt.NDArray[np.float32]

#: Texts that are looked up, embedded and stored together: at most so many are lost when the process dies.
CHECKPOINT = 256
#: Characters kept per token that a model reads, before its tokenizer sees the text: no tokenizer here needs more, and a text
#: of a megabyte costs no more than a page.
CHARACTERS_PER_TOKEN = 8

#: Why a text has no vector.
NOTHING_KNOWN = "no token that the model knows"
BLANK = "nothing to embed: blank text"


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbedReport:
    """Vectors of a list of texts, and what went wrong with which of them."""

    #: float32, shape (texts, dimensions): unit rows; a row of NaN for each failure.
    vectors: Floats
    #: position -> why that text has no vector.
    failures: Mapping[int, str] = field(default_factory=dict)
    #: position -> characters that were read, where the provider refused the text's full length.
    shortened: Mapping[int, int] = field(default_factory=dict)


@runtime_checkable
class ReportingEmbedder(Embedder, Protocol):
    """An embedder that can say which text has no vector and why. All of this package are."""

    def embed_items(self, texts: Sequence[str]) -> EmbedReport:
        """As `embed`, with the reason for each row of NaN."""
        ...


def no_vectors(count: int, dimensions: int) -> Floats:
    """float32, shape (count, dimensions), all NaN: the rows that nothing is known of yet."""
    return np.full((count, dimensions), np.nan, dtype=np.float32)


def cut(text: str, max_tokens: int) -> str:
    """The head of `text` that can matter to a model of `max_tokens`, as text that every tokenizer takes."""
    head = text[: max_tokens * CHARACTERS_PER_TOKEN]
    # A lone surrogate, from a file name or from broken JSON, has no UTF-8 form: tokenizers and JSON refuse it.
    return head if head.isascii() else head.encode("utf-8", "replace").decode("utf-8")


def estimate_tokens(text: str) -> int:
    """Tokens that a model may count in `text`, rather too many than too few: one for 2.5 bytes of UTF-8.

    Four characters a token, the rule for English prose, is too few by half for CSS, and by a factor of four for Chinese, whose
    characters are three bytes and about one token each.
    """
    size = len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
    return 1 + 2 * size // 5


def pack(costs: Sequence[int], max_items: int, max_cost: int) -> Iterator[list[int]]:
    """Positions in order, in groups of at most `max_items` and a sum of at most `max_cost`; one too dear is alone."""
    group: list[int] = []
    total = 0
    for position, cost in enumerate(costs):
        if group and (len(group) >= max_items or total + cost > max_cost):
            yield group
            group, total = [], 0
        group.append(position)
        total += cost
    if group:
        yield group


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedVectors:
    """Vectors by content hash, and why the others have none."""

    vectors: Mapping[str, Floats]
    failures: Mapping[str, str]


def embed_cached(
    embedder: Embedder,
    cache: VectorCache,
    texts: Mapping[str, str],
    progress: Callable[[int], None] = lambda _done: None,
) -> CachedVectors:
    """The vectors of `texts` (content hash -> text): from the cache, the rest computed and stored in it in checkpoints.

    A text without a vector, or whose vector is unusable (NaN, infinite, zero, not of length 1, of other dimensions), is in no
    cache, so that it is tried again next time; those beside it are kept. `progress` is told the texts done so far. Raises
    EmbedderError when the embedder is gone; what it had embedded until then is cached.
    """
    vectors: dict[str, Floats] = {}
    failures: dict[str, str] = {}
    hashes = list(texts)
    for start in range(0, len(hashes), CHECKPOINT):
        block = hashes[start : start + CHECKPOINT]
        vectors.update(cache.get(embedder.identity, block))
        wanted = [key for key in block if key not in vectors]
        if wanted:
            fresh, faults = _usable(embedder, wanted, [texts[key] for key in wanted])
            cache.put(embedder.identity, fresh)
            vectors.update(fresh)
            failures.update(faults)
        progress(start + len(block))
    return CachedVectors(vectors=vectors, failures=failures)


def _usable(embedder: Embedder, keys: Sequence[str], texts: Sequence[str]) -> tuple[dict[str, Floats], dict[str, str]]:
    """The vectors of `texts` by their keys, and why the others have none."""
    report = report_on(embedder, texts)
    faults = {row: f"the vector {fault}" for row, fault in find_faults_for(embedder.identity, report.vectors).items()}
    faults.update(report.failures)
    fresh = {key: report.vectors[row] for row, key in enumerate(keys) if row not in faults}
    return fresh, {keys[row]: reason for row, reason in faults.items()}


def report_on(embedder: Embedder, texts: Sequence[str]) -> EmbedReport:
    """`embed_items` of an embedder that has it, and a report made from the rows of one that has not."""
    if isinstance(embedder, ReportingEmbedder):
        return embedder.embed_items(texts)
    vectors = embedder.embed(texts)
    missing = np.flatnonzero(np.isnan(vectors).any(axis=1))
    return EmbedReport(vectors=vectors, failures={int(row): "the embedder has no vector for this text" for row in missing})
