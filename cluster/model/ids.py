"""Identifiers: how they are derived and which names are accepted."""

from __future__ import annotations

import hashlib
import re

from cluster.errors import UsageError

#: Names of accounts, projects and agents. No separator, quote or space, so that a name is one path segment, one index term
#: and one log token; what is accepted here is searchable everywhere.
NAME_PATTERN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")


def derived_id(*parts: str) -> str:
    """A stable 32-hex-digit id for something that is derived from `parts`.

    The parts are length-prefixed, so ("a", "bc") and ("ab", "c") differ. BLAKE2b-128: independent of the process and of
    PYTHONHASHSEED, with no collisions to care about below 2**60 items.
    """
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        raw = part.encode("utf-8", "surrogatepass")
        digest.update(len(raw).to_bytes(8, "big"))
        digest.update(raw)
    return digest.hexdigest()


def content_hash(text: str) -> str:
    """The hash that embeddings are cached by and unchanged content is recognised by (32 hex digits)."""
    return derived_id(text)


def parse_name(value: str, field: str) -> str:
    """`value` if it is a legal account, project or agent name; raises UsageError naming `field` otherwise."""
    if not NAME_PATTERN.fullmatch(value):
        raise UsageError(
            f"{field} must be 1 to 100 letters, digits, '.', '_' or '-', not starting with '.' or '-': {value[:100]!r}",
            field=field,
        )
    return value
