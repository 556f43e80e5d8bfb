"""WordLlama's static vectors: a text is the mean of its tokens' vectors. 256 dimensions, thousands of texts a second."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from cluster.embed.batching import NOTHING_KNOWN, EmbedReport, cut, no_vectors
from cluster.embed.models import STATIC_MODEL, STATIC_TOKENIZER, verified_path
from cluster.model.manifest import VectorIdentity
from cluster.text import is_blank

IDENTITY = VectorIdentity(provider="wordllama", model="l2-supercat-256", dimensions=256)
#: The mean has no limit of its own; past this many tokens a text's vector says little about any part of it.
MAX_TOKENS = 1024

Floats = npt.NDArray[np.float32]


class StaticEmbedder:
    """The static model. Safe to use from several threads; the files are read on first use, or by `load`."""

    identity = IDENTITY
    max_tokens = MAX_TOKENS

    def __init__(self, threads: int = 1) -> None:
        """`threads`: more than one lets the tokenizer use all cores for lists of texts."""
        self._threads = threads
        self._lock = threading.Lock()
        self._loaded: tuple[Any, Floats] | None = None

    def load(self) -> None:
        """Reads and checks the model's files (0.2 s, about 60 MB); raises ModelFileError."""
        self._parts()

    def _parts(self) -> tuple[Any, Floats]:
        with self._lock:
            if self._loaded is None:
                self._loaded = _load()
            return self._loaded

    def embed(self, texts: Sequence[str]) -> Floats:
        """See `Embedder.embed`. Raises ModelFileError when the model's files are missing or changed."""
        return self.embed_items(texts).vectors

    def embed_query(self, texts: Sequence[str]) -> Floats:
        """The same as `embed`: the model knows no difference."""
        return self.embed(texts)

    def embed_items(self, texts: Sequence[str]) -> EmbedReport:
        """As `embed`, with the reason for each row of NaN."""
        vectors = no_vectors(len(texts), IDENTITY.dimensions)
        if not texts:
            return EmbedReport(vectors=vectors)
        tokenizer, weights = self._parts()
        tokens = self._tokens(tokenizer, [cut(text, MAX_TOKENS) for text in texts])
        # The tokenizer spells unknown characters out in bytes, and spaces too: every text but a blank one has a meaning.
        known = [row for row, ids in enumerate(tokens) if ids and not is_blank(texts[row])]
        for row in known:
            vectors[row] = _mean(weights, tokens[row])
        missing = np.flatnonzero(np.isnan(vectors).any(axis=1))
        return EmbedReport(vectors=vectors, failures={int(row): NOTHING_KNOWN for row in missing})

    def _tokens(self, tokenizer: Any, texts: list[str]) -> list[list[int]]:
        if self._threads > 1 and len(texts) > 1:
            encoded = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        else:
            encoded = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
        return [one.ids[:MAX_TOKENS] for one in encoded]


def _load() -> tuple[Any, Floats]:
    import safetensors.numpy
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_file(str(verified_path(STATIC_TOKENIZER)))
    weights = safetensors.numpy.load_file(verified_path(STATIC_MODEL))["embedding.weight"]
    # The file has float16, in half the memory; numpy would widen it again for each text, at three times the cost of the sum.
    return tokenizer, weights.astype(np.float32)


def _mean(weights: Floats, ids: list[int]) -> Floats:
    """The unit vector of at least one token, float32 of shape (256,). The direction of a sum is that of the mean.

    One text at a time: numpy sums the rows of one block ten times as fast as it does many blocks by `add.reduceat`.
    """
    total = np.take(weights, ids, axis=0).sum(axis=0)
    with np.errstate(invalid="ignore", divide="ignore"):
        unit: Floats = total / np.linalg.norm(total)
    return unit if np.isfinite(unit).all() else np.full_like(unit, np.nan)
