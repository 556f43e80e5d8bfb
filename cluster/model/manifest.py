"""What a generation is made of: immutable values, with a versioned JSON form."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from cluster.errors import CorruptIndexError

log = logging.getLogger(__name__)

#: Raised when the layout of a generation changes. An older one stays readable or demands a rebuild; it is never guessed at.
#: What a reader can do without is added under the same number.
FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class VectorIdentity:
    """What makes two vectors comparable. Vectors of two identities never meet in one index or one score list."""

    provider: str
    model: str
    dimensions: int
    modality: str = "text"
    #: "symmetric" when documents and queries are embedded alike; else the model's own name for the pairing.
    intent: str = "symmetric"
    normalised: bool = True

    @property
    def key(self) -> str:
        """One token for logs, caches and file names: `provider/model/dimensions/modality/intent/l2|raw`."""
        norm = "l2" if self.normalised else "raw"
        return f"{self.provider}/{self.model}/{self.dimensions}/{self.modality}/{self.intent}/{norm}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """One partition of a generation: a Lucene directory, a FAISS file and the rows that both number alike."""

    #: Folder inside the generation, for example "b0003".
    name: str
    rows: int
    #: Rows that have a vector; the rest are found by their words alone.
    vectors: int
    #: BLAKE2b-128 by relative path, of every file of the bucket.
    checksums: Mapping[str, str]
    #: Hash of what the rows and the Lucene directory are made from, and of what the vector file is made from: a part whose
    #: inputs are those of the previous generation is linked, not rebuilt.
    lexical_fingerprint: str
    vector_fingerprint: str
    #: Bytes by relative path, of the same files; empty in generations that were built before it was noted.
    sizes: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One generation of one project."""

    generation: str
    account: str
    project: str
    created_at: int
    #: The store's revision that this generation shows.
    watermark: int
    analyzer: str
    identity: VectorIdentity
    buckets: tuple[Bucket, ...]
    #: The generation that this one replaced, kept for rollback; None for the first.
    previous: str | None = None
    format_version: int = FORMAT_VERSION
    notes: Mapping[str, Any] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Rows of all buckets."""
        return sum(bucket.rows for bucket in self.buckets)

    @property
    def vectors(self) -> int:
        """Rows of all buckets that have a vector."""
        return sum(bucket.vectors for bucket in self.buckets)

    def to_json(self) -> dict[str, Any]:
        """The form that `manifest.json` holds."""
        return asdict(self)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> Manifest:
        """Reads `to_json`'s form. A field that is not known is left out and logged: a later version of the same format may
        add what an earlier one can do without. Raises CorruptIndexError on another format version or a missing field."""
        version = raw.get("format_version")
        if version != FORMAT_VERSION:
            newer = isinstance(version, int) and version > FORMAT_VERSION
            what = "a newer version of Raycall built it" if newer else "it is damaged"
            raise CorruptIndexError(
                f"the manifest has format version {version!r}, and this program reads {FORMAT_VERSION}: {what}; "
                "index the project again, or run the version that built it"
            )
        try:
            known = _known(cls, raw, "manifest")
            known["identity"] = VectorIdentity(**_known(VectorIdentity, raw["identity"], "identity"))
            known["buckets"] = tuple(Bucket(**_known(Bucket, bucket, "bucket")) for bucket in raw["buckets"])
            return cls(**known)
        except (KeyError, TypeError, AttributeError) as error:
            raise CorruptIndexError("the manifest is damaged: a field is missing or of another type") from error


def _known(kind: type, raw: Mapping[str, Any], place: str) -> dict[str, Any]:
    """The members of `raw` that are fields of the dataclass `kind`."""
    names = {item.name for item in fields(kind)}
    unknown = sorted(raw.keys() - names)
    if unknown:
        extra = {"action": "manifest_field_unknown", "place": place, "fields": unknown}
        log.warning("a later version of Raycall wrote fields that are left out: %s", ", ".join(unknown), extra=extra)
    return {name: value for name, value in raw.items() if name in names}
