"""API keys: who a request comes from, and making, listing and revoking keys.

A secret is `rk_` and 43 URL-safe characters (256 random bits). The store holds its SHA-256 alone, so that a secret is shown
once, when it is made.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field

from cluster.errors import AuthenticationError, NotFoundError, UsageError
from cluster.model.access import ApiKey, Principal, Role
from cluster.model.ids import parse_name
from cluster.model.nodes import Scope
from cluster.ports import Clock, GraphStore

#: How long a key that was found is taken for good, in seconds. A revocation reaches every process within this time.
CACHE_S = 1.0
_CACHE_ENTRIES = 4096
_BEARER = re.compile(r"[Bb][Ee][Aa][Rr][Ee][Rr] +(rk_[A-Za-z0-9_-]{43})")
#: What an agent may see by scope unless the key says otherwise.
AGENT_SCOPES = frozenset({Scope.PUBLIC, Scope.SHARED})
_MAX_NAME = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class NewKey:
    """A key that was just made, with its secret: the only time that it is known."""

    secret: str = field(repr=False)
    key: ApiKey


def hash_secret(secret: str) -> str:
    """SHA-256 of `secret`, 64 hex digits."""
    return hashlib.sha256(secret.encode()).hexdigest()


class Keys:
    """The keys of one account. A key of another account is unknown here, even if the store holds it."""

    def __init__(self, *, account: str, store: GraphStore, clock: Clock, cache_s: float = CACHE_S) -> None:
        self._account = account
        self._store = store
        self._clock = clock
        self._cache_s = cache_s
        #: secret's hash -> (principal, until when). Unknown keys are not kept: a new key works at once.
        self._cache: dict[str, tuple[Principal, float]] = {}

    def authenticate(self, authorization: str | None) -> Principal:
        """The principal of an Authorization header's value. Raises AuthenticationError.

        Unknown, revoked and malformed keys, and keys of another account, are refused in the same words.
        """
        if not authorization:
            raise AuthenticationError("an API key is needed: send it as 'Authorization: Bearer rk_...'")
        match = _BEARER.fullmatch(authorization.strip(" "))
        if match is None:
            raise AuthenticationError("the API key is not valid")
        hashed = hash_secret(match[1])
        now = self._clock.monotonic()
        cached = self._cache.get(hashed)
        if cached is not None and now < cached[1]:
            return cached[0]
        self._cache.pop(hashed, None)
        key = self._store.find_key(hashed)
        if key is None or key.revoked_at is not None or key.principal.account != self._account:
            raise AuthenticationError("the API key is not valid")
        if len(self._cache) >= _CACHE_ENTRIES:
            self._cache.clear()
        self._cache[hashed] = (key.principal, now + self._cache_s)
        return key.principal

    def create(
        self,
        *,
        name: str,
        role: Role = Role.ADMIN,
        agent: str | None = None,
        scopes: Iterable[Scope] | None = None,
        projects: Iterable[str] | None = None,
        teams: Iterable[str] = (),
    ) -> NewKey:
        """Makes and stores a key.

        An agent's key needs the agent's slug and sees the scopes public and shared unless `scopes` says otherwise; an admin's
        key has neither. `projects`: None = all of the account, also later ones; an empty list is refused. Raises UsageError.
        """
        if not name.strip() or len(name) > _MAX_NAME or not name.isprintable():
            raise UsageError(f"name must be 1 to {_MAX_NAME} printable characters", field="name")
        key_id = f"key_{secrets.token_hex(6)}"
        secret = f"rk_{secrets.token_urlsafe(32)}"
        key = ApiKey(
            key_id=key_id,
            name=name,
            secret_hash=hash_secret(secret),
            principal=Principal(
                account=self._account,
                key_id=key_id,
                role=role,
                agent=_agent(role, agent),
                scopes=_scopes(role, scopes),
                projects=None if projects is None else _names(projects, "projects"),
                teams=frozenset(parse_name(team, "teams") for team in teams),
            ),
            created_at=self._clock.now_ms(),
        )
        self._store.put_key(key)
        return NewKey(secret=secret, key=key)

    def list(self) -> list[ApiKey]:
        """Every key of the account, revoked ones too, oldest first."""
        return sorted(self._store.keys(self._account), key=lambda key: (key.created_at, key.key_id))

    def revoke(self, key_id: str) -> None:
        """Ends a key: here at once, in other processes within `CACHE_S`. Raises NotFoundError for none that could be ended."""
        if not self._store.revoke_key(self._account, key_id, self._clock.now_ms()):
            raise NotFoundError(f"no key that could be revoked: {key_id[:100]!r}", field="key_id")
        self._cache.clear()


def _agent(role: Role, agent: str | None) -> str | None:
    if role is Role.AGENT:
        if agent is None:
            raise UsageError("an agent's key needs the agent's slug", field="agent")
        return parse_name(agent, "agent")
    if agent is not None:
        raise UsageError("an admin's key belongs to no agent", field="agent")
    return None


def _scopes(role: Role, scopes: Iterable[Scope] | None) -> frozenset[Scope] | None:
    if role is Role.ADMIN:
        if scopes is not None:
            raise UsageError("an admin's key is not limited by scope", field="scopes")
        return None
    return AGENT_SCOPES if scopes is None else frozenset(scopes)


def _names(names: Iterable[str], name_of_field: str) -> frozenset[str]:
    found = frozenset(parse_name(name, name_of_field) for name in names)
    if not found:
        raise UsageError(f"{name_of_field} must name at least one; leave it out for all", field=name_of_field)
    return found
