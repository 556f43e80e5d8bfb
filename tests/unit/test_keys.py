"""Keys: from a header to a principal, and their life."""

from __future__ import annotations

import re
from typing import Any

import pytest

from cluster.errors import AuthenticationError, NotFoundError, UsageError
from cluster.graph.memory import MemoryGraphStore
from cluster.model.access import Role
from cluster.model.nodes import Scope
from serve.keys import CACHE_S, Keys
from tests.support.clock import ManualClock
from tests.support.factories import ACCOUNT, make_key, make_principal


def make_keys(store: MemoryGraphStore | None = None, clock: ManualClock | None = None) -> Keys:
    return Keys(account=ACCOUNT, store=store or MemoryGraphStore(account=ACCOUNT), clock=clock or ManualClock())


def test_a_new_key_authenticates_and_its_secret_is_stored_nowhere() -> None:
    store = MemoryGraphStore(account=ACCOUNT)
    keys = make_keys(store)
    made = keys.create(name="laptop")
    assert re.fullmatch(r"rk_[A-Za-z0-9_-]{43}", made.secret)
    assert keys.authenticate(f"Bearer {made.secret}") == made.key.principal == make_principal(key_id=made.key.key_id)
    assert keys.authenticate(f"bearer  {made.secret} ") == made.key.principal
    assert made.secret not in repr(made) and made.secret not in repr(store.keys(ACCOUNT))


def test_an_agents_key_sees_public_and_shared_unless_it_says_otherwise() -> None:
    keys = make_keys()
    made = keys.create(name="a", role=Role.AGENT, agent="iris", projects=["main"], teams=["main"])
    principal = keys.authenticate(f"Bearer {made.secret}")
    assert (principal.agent, principal.scopes) == ("iris", frozenset({Scope.PUBLIC, Scope.SHARED}))
    assert principal.projects == principal.teams == frozenset({"main"})
    narrow = keys.create(name="b", role=Role.AGENT, agent="iris", scopes=[Scope.PUBLIC])
    assert narrow.key.principal.scopes == frozenset({Scope.PUBLIC})


@pytest.mark.parametrize(
    "header",
    [
        "Bearer",
        "Bearer ",
        "Bearer rk_short",
        "Basic rk_" + "a" * 43,
        "rk_" + "a" * 43,
        "Bearer rk_" + "a" * 43,
        "Bearer rk_é" + "a" * 42,
    ],
)
def test_whatever_is_wrong_with_a_key_is_said_in_the_same_words(header: str) -> None:
    with pytest.raises(AuthenticationError) as caught:
        make_keys().authenticate(header)
    assert caught.value.detail == "the API key is not valid"


@pytest.mark.parametrize("header", [None, ""])
def test_without_a_key_the_need_is_explained(header: str | None) -> None:
    with pytest.raises(AuthenticationError, match="an API key is needed"):
        make_keys().authenticate(header)


def test_a_revocation_is_seen_at_once_here_and_soon_elsewhere() -> None:
    store, clock = MemoryGraphStore(account=ACCOUNT), ManualClock()
    here, elsewhere = make_keys(store, clock), make_keys(store, clock)
    made = here.create(name="laptop")
    header = f"Bearer {made.secret}"
    here.authenticate(header)
    elsewhere.authenticate(header)
    here.revoke(made.key.key_id)
    with pytest.raises(AuthenticationError):
        here.authenticate(header)
    assert elsewhere.authenticate(header) == made.key.principal
    clock.advance(CACHE_S)
    with pytest.raises(AuthenticationError):
        elsewhere.authenticate(header)


def test_within_the_time_of_the_cache_the_store_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    store, clock = MemoryGraphStore(account=ACCOUNT), ManualClock()
    keys = make_keys(store, clock)
    header = f"Bearer {keys.create(name='laptop').secret}"
    calls: list[str] = []
    original = store.find_key
    monkeypatch.setattr(store, "find_key", lambda hashed: calls.append(hashed) or original(hashed))
    for _ in range(5):
        keys.authenticate(header)
    clock.advance(CACHE_S)
    keys.authenticate(header)
    assert len(calls) == 2


def test_a_key_of_another_account_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryGraphStore(account=ACCOUNT)
    foreign = make_key(principal=make_principal(account="zenith"))
    monkeypatch.setattr(store, "find_key", lambda _hash: foreign)
    with pytest.raises(AuthenticationError, match="the API key is not valid"):
        make_keys(store).authenticate("Bearer rk_" + "a" * 43)


def test_keys_are_listed_oldest_first_with_the_revoked_ones() -> None:
    clock = ManualClock()
    keys = make_keys(clock=clock)
    first = keys.create(name="first").key
    clock.advance(1)
    second = keys.create(name="second").key
    keys.revoke(first.key_id)
    listed = keys.list()
    assert [key.key_id for key in listed] == [first.key_id, second.key_id]
    assert [key.revoked_at is None for key in listed] == [False, True]


def test_a_key_that_is_not_there_or_revoked_cannot_be_revoked() -> None:
    keys = make_keys()
    made = keys.create(name="laptop").key
    keys.revoke(made.key_id)
    for key_id in (made.key_id, "key_absent"):
        with pytest.raises(NotFoundError):
            keys.revoke(key_id)


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"name": " "}, "name"),
        ({"name": "x" * 101}, "name"),
        ({"name": "a\nb"}, "name"),
        ({"name": "a", "role": Role.AGENT}, "agent"),
        ({"name": "a", "agent": "iris"}, "agent"),
        ({"name": "a", "role": Role.AGENT, "agent": "a b"}, "agent"),
        ({"name": "a", "scopes": [Scope.PUBLIC]}, "scopes"),
        ({"name": "a", "projects": []}, "projects"),
        ({"name": "a", "projects": ["../x"]}, "projects"),
        ({"name": "a", "teams": [""]}, "teams"),
    ],
)
def test_a_key_that_makes_no_sense_is_not_made(values: dict[str, Any], field: str) -> None:
    keys = make_keys()
    with pytest.raises(UsageError) as caught:
        keys.create(**values)
    assert caught.value.field == field
    assert keys.list() == []
