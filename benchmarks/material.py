"""What the legs and the raw libraries are asked: the same questions, as terms and as vectors."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.corpus import questions, stored_texts

PROJECT = "bench"
#: Hits that are asked for, and questions that are on their way at once.
K = 100
BATCH = 64
QUESTIONS = 4096


@dataclass(frozen=True, slots=True)
class Material:
    """Questions over one data folder."""

    generation: str
    texts: list[str]
    #: Of `texts` with the static model, shape (QUESTIONS, dimensions).
    vectors: npt.NDArray[np.float32]


def make_material(data_dir: Path) -> Material:
    """The questions for what is indexed in `data_dir`; the same ones in every process."""
    from cluster.embed.factory import make_embedder
    from cluster.embed.settings import EmbedSettings
    from cluster.storage import GenerationStore

    manifest = GenerationStore(data_dir / "generations").current(PROJECT)
    assert manifest is not None
    assert len(manifest.buckets) == 1, "the raw libraries are given one index"
    texts = questions(stored_texts(data_dir), QUESTIONS)
    embedder = make_embedder(EmbedSettings(provider="static", threads=1))
    assert embedder.identity == manifest.identity
    return Material(manifest.generation, texts, np.ascontiguousarray(embedder.embed_query(texts), dtype=np.float32))
