"""Real text as vectors: chunks of the Python files that are installed, under the static model; kept between runs."""

from __future__ import annotations

import hashlib
import sysconfig
from pathlib import Path

import numpy as np
import numpy.typing as npt

from cluster.model.manifest import VectorIdentity

Floats = npt.NDArray[np.float32]

OUT = Path(__file__).parent / "out"
#: Characters of a chunk; one of fewer than LEAST is left out.
CHUNK = 700
LEAST = 100


def chunk_vectors(count: int) -> Floats:
    """float32, shape (count, dimensions): unit vectors of `count` different chunks, in an order that mixes the packages."""
    kept = OUT / f"chunk-vectors-{count}.npy"
    if not kept.exists():
        from cluster.embed.static import StaticEmbedder

        OUT.mkdir(exist_ok=True)
        part = kept.with_suffix(".part.npy")
        np.save(part, StaticEmbedder(threads=2).embed(_chunks(count)))
        part.rename(kept)
    vectors: Floats = np.load(kept)
    return vectors


def _chunks(count: int) -> list[str]:
    root = Path(sysconfig.get_paths()["purelib"])
    names = sorted(
        (path.relative_to(root).as_posix() for path in root.rglob("*.py")),
        key=lambda name: hashlib.blake2b(name.encode()).digest(),
    )
    chunks: dict[str, None] = {}
    for name in names:
        text = (root / name).read_text("utf-8", "replace")
        cut = (text[start : start + CHUNK] for start in range(0, len(text), CHUNK))
        chunks.update(dict.fromkeys(chunk for chunk in cut if len(chunk) >= LEAST and not chunk.isspace()))
        if len(chunks) >= count:
            return list(chunks)[:count]
    raise RuntimeError(f"{len(chunks)} chunks are installed, {count} are wanted")


def identity_of(vectors: Floats) -> VectorIdentity:
    """An identity for measured vectors."""
    return VectorIdentity(provider="bench", model="chunks", dimensions=vectors.shape[1])
