"""Vectors to index in tests."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cluster.model.manifest import VectorIdentity

Floats = npt.NDArray[np.float32]


def identity(dimensions: int, model: str = "m1") -> VectorIdentity:
    return VectorIdentity(provider="test", model=model, dimensions=dimensions)


def unit(rows: npt.ArrayLike) -> Floats:
    matrix = np.asarray(rows, dtype=np.float64)
    return (matrix / np.linalg.norm(matrix, axis=1, keepdims=True)).astype(np.float32)


def clustered(count: int, dimensions: int, seed: int) -> Floats:
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((40, dimensions))
    return unit(centres[rng.integers(0, 40, count)] + 0.9 * rng.standard_normal((count, dimensions)))
