"""What may be stored as a vector: finite, of length 1, of the right dimensions. Everything that takes vectors in asks here."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cluster.model.manifest import VectorIdentity

Floats = npt.NDArray[np.float32]

#: How far a vector's length may be from 1.
UNIT_TOLERANCE = 1e-3


def find_faults(vectors: Floats) -> dict[int, str]:
    """Why each row that is not a finite unit vector is none, by position, ascending; empty when all are.

    `vectors` is float32 of shape (n, dimensions). The words fit after "the vector".
    """
    # A sum over a row is finite only if the row is, and needs no matrix of flags. Overflow is what it looks for.
    with np.errstate(over="ignore", invalid="ignore"):
        squares = np.einsum("ij,ij->i", vectors, vectors)
        bad = ~(np.abs(np.sqrt(squares) - 1.0) <= UNIT_TOLERANCE)
    return {int(position): _fault(vectors[position]) for position in np.flatnonzero(bad)}


def find_faults_for(identity: VectorIdentity, vectors: Floats) -> dict[int, str]:
    """As `find_faults`, with wrong dimensions for every row where `vectors`, of shape (n, d), are not of `identity`."""
    if vectors.shape[1:] != (identity.dimensions,):
        size = "x".join(str(size) for size in vectors.shape[1:])
        return dict.fromkeys(range(len(vectors)), f"has {size} dimensions, {identity.key} has {identity.dimensions}")
    return find_faults(vectors)


def find_fault(vector: Floats, identity: VectorIdentity) -> str | None:
    """Why one vector, float32 of any shape, cannot be one of `identity`; None when it can."""
    return find_faults_for(identity, vector[None]).get(0)


def _fault(row: Floats) -> str:
    if np.isnan(row).any():
        return "contains NaN"
    if np.isinf(row).any():
        return "contains infinity"
    if not row.any():
        return "is all zeros"
    return f"has length {float(np.linalg.norm(row.astype(np.float64))):.6g}, not 1"
