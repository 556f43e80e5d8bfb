"""Who is asking."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from cluster.model.nodes import Scope


class Role(StrEnum):
    """What kind of caller a key belongs to."""

    ADMIN = "admin"
    AGENT = "agent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """The identity that an API key stands for. It comes from the key alone, never from a request."""

    account: str
    key_id: str
    role: Role
    #: The agent's slug; None for an admin. With a slug, only nodes tagged for it are found.
    agent: str | None = None
    #: Scopes that pass the scope layer; None = the layer does not apply (admin).
    scopes: frozenset[Scope] | None = None
    #: Projects of the account that the key is a member of; None = all of them.
    projects: frozenset[str] | None = None
    #: Projects whose team the reader is an active member of.
    teams: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """A stored API key. The secret itself is never stored."""

    key_id: str
    name: str
    #: SHA-256 of the secret, 64 hex digits. The secret has 256 random bits, so no slow hash is needed.
    secret_hash: str
    principal: Principal
    created_at: int
    revoked_at: int | None = None
