"""all-MiniLM-L6-v2 with int8 weights on ONNX Runtime: 384 dimensions, 256 tokens, mean pooling over the tokens."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt

from cluster.embed.batching import NOTHING_KNOWN, EmbedReport, cut, no_vectors
from cluster.embed.models import SENTENCE_MODEL, SENTENCE_TOKENIZER, verified_path
from cluster.model.manifest import VectorIdentity

IDENTITY = VectorIdentity(provider="onnx", model="all-MiniLM-L6-v2-int8", dimensions=384)
MAX_TOKENS = 256

#: Tokens of one run of the model. Only texts of equal length share a run: there is no padding to compute, and no long texts
#: to share at all. On 2 cores single long texts run faster than batches of 8 (31 against 20 a second), short ones do not.
_TOKENS_PER_RUN = 160


class SentenceEmbedder:
    """The sentence model. Safe to use from several threads; the files are read on first use, or by `load`."""

    identity = IDENTITY
    max_tokens = MAX_TOKENS

    def __init__(self, threads: int = 1) -> None:
        """`threads`: runs of the model at one time inside one call; each takes one core."""
        self._threads = threads
        self._lock = threading.Lock()
        self._loaded: tuple[Any, Any, int] | None = None

    def load(self) -> None:
        """Reads and checks the model's files (about 0.4 s and 170 MB); raises ModelFileError."""
        self._parts()

    def _parts(self) -> tuple[Any, Any, int]:
        with self._lock:
            if self._loaded is None:
                self._loaded = _load()
            return self._loaded

    def embed(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """See `Embedder.embed`. Raises ModelFileError when the model's files are missing or changed."""
        return self.embed_items(texts).vectors

    def embed_query(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """The same as `embed`: the model knows no difference."""
        return self.embed(texts)

    def embed_items(self, texts: Sequence[str]) -> EmbedReport:
        """As `embed`, with the reason for each row of NaN."""
        vectors = no_vectors(len(texts), IDENTITY.dimensions)
        if not texts:
            return EmbedReport(vectors=vectors)
        session, tokenizer, unknown = self._parts()
        tokens = [tokenizer.encode(cut(text, MAX_TOKENS)).ids for text in texts]
        # Every text gets a first and a last special token.
        known = [row for row, ids in enumerate(tokens) if any(token != unknown for token in ids[1:-1])]

        def run(rows: list[int]) -> None:
            vectors[rows] = _run(session, [tokens[row] for row in rows])

        runs = _runs([(len(tokens[row]), row) for row in known])
        if self._threads > 1 and len(runs) > 1:
            with ThreadPoolExecutor(self._threads) as pool:
                list(pool.map(run, runs))
        else:
            for rows in runs:
                run(rows)
        missing = np.flatnonzero(np.isnan(vectors).any(axis=1))
        return EmbedReport(vectors=vectors, failures={int(row): NOTHING_KNOWN for row in missing})


def _load() -> tuple[Any, Any, int]:
    import onnxruntime
    import tokenizers

    # Both are checked before the slow part.
    model, words = verified_path(SENTENCE_MODEL), verified_path(SENTENCE_TOKENIZER)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    tokenizer = tokenizers.Tokenizer.from_file(str(words))
    tokenizer.no_padding()
    tokenizer.enable_truncation(MAX_TOKENS)
    return session, tokenizer, int(tokenizer.token_to_id("[UNK]") or 0)


def _runs(lengths: list[tuple[int, int]]) -> list[list[int]]:
    """Rows from (tokens, row) in runs of one length, the longest first so that threads end at the same time."""
    runs: list[list[int]] = []
    for tokens, group in groupby(sorted(lengths, reverse=True), key=lambda pair: pair[0]):
        rows = [row for _, row in group]
        size = max(1, _TOKENS_PER_RUN // tokens)
        runs.extend(rows[start : start + size] for start in range(0, len(rows), size))
    return runs


def _run(session: Any, tokens: list[list[int]]) -> npt.NDArray[np.float32]:
    """Unit rows, float32 of shape (len(tokens), 384), for token lists of equal length."""
    ids = np.array(tokens, dtype=np.int64)
    inputs = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
    # Every token is a real one, so the mean over the attention mask is the mean.
    pooled = session.run(None, inputs)[0].mean(axis=1, dtype=np.float64)
    with np.errstate(invalid="ignore", divide="ignore"):
        unit: npt.NDArray[np.float32] = (pooled / np.linalg.norm(pooled, axis=1, keepdims=True)).astype(np.float32)
    unit[~np.isfinite(unit).all(axis=1)] = np.nan
    return unit
