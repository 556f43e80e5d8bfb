"""What every graph store promises of files, projects, keys, other accounts and text that is hard to store."""

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cluster import guards
from cluster.errors import ConflictError, ForbiddenError, UsageError
from cluster.graph.memory import MemoryGraphStore
from cluster.graph.sqlite import SqliteGraphStore
from cluster.model.guard import Has, In
from cluster.model.nodes import Source
from cluster.ports import GraphStore, Project, WriteBatch
from tests.support.factories import ACCOUNT, make_agent, make_edge, make_key, make_node, make_principal
from tests.support.graph_stores import EVERYTHING, AnyStore, ids, make_file

# --- files, projects, keys ---


def test_files_are_kept_replaced_and_forgotten(store: GraphStore) -> None:
    facts = {"calls": [["f", 3]], "nested": {"ü": None}}
    first, other = make_file("b.md", facts=facts), make_file("b.md", project="NOT")
    assert store.write(WriteBatch(files=(first, make_file("a.md"), other))) == 0, "files are no part of the graph"
    assert store.files(ACCOUNT, "main") == {"a.md": make_file("a.md"), "b.md": first}
    assert list(store.files(ACCOUNT, "main")) == ["a.md", "b.md"]
    store.write(WriteBatch(files=(make_file("a.md", content_hash="new"),), forget_files=((ACCOUNT, "main", "b.md"),)))
    assert store.files(ACCOUNT, "main") == {"a.md": make_file("a.md", content_hash="new")}
    assert store.files(ACCOUNT, "NOT") == {"b.md": other}
    assert store.files("zenith", "main") == {}
    renewed = WriteBatch(forget_files=((ACCOUNT, "main", "a.md"),), files=(make_file("a.md"),))
    store.write(renewed)
    assert store.files(ACCOUNT, "main") == {"a.md": make_file("a.md")}


def test_every_legal_project_name_keeps_its_own(store: GraphStore) -> None:
    names = ["ap-erp", "main", "00000000-0000-0000-0000-000000000001", "a_b", "NOT", "OR", "null", "a.b", "Main"]
    for place, name in enumerate(names):
        store.write(
            WriteBatch(
                nodes=(make_node(f"doc-{name}", project=name, path="a.md"),),
                edges=(make_edge(f"doc-{name}", "x", project=name),),
                files=(make_file("a.md", project=name),),
                projects=(Project(account=ACCOUNT, project=name, root=f"/r/{name}", commit=None, indexed_at=place),),
            )
        )
    assert [project.project for project in store.projects(ACCOUNT)] == sorted(names)
    assert store.projects("zenith") == []
    for place, name in enumerate(names):
        assert ids(store.scan(guards.search_guard(make_principal(), [name]))) == [f"doc-{name}"]
        assert [edge.from_id for edge in store.edges(ACCOUNT, name)] == [f"doc-{name}"]
        assert store.files(ACCOUNT, name) == {"a.md": make_file("a.md", project=name)}
        wanted = Project(account=ACCOUNT, project=name, root=f"/r/{name}", commit=None, indexed_at=place)
        assert wanted in store.projects(ACCOUNT)
    store.write(WriteBatch(replace_paths=((ACCOUNT, "main", "a.md"),)))
    assert store.count(EVERYTHING) == len(names) - 1


def test_a_project_is_registered_again_with_its_new_state(store: GraphStore) -> None:
    first = Project(account=ACCOUNT, project="main", root="/r", commit=None, indexed_at=1)
    second = replace(first, commit="c" * 40, indexed_at=2)
    store.write(WriteBatch(projects=(first,)))
    store.write(WriteBatch(projects=(second,)))
    assert store.projects(ACCOUNT) == [second]


@pytest.mark.parametrize(
    "principal",
    [
        make_principal(key_id="k9"),
        make_agent("iris", projects=frozenset({"main", "NOT"}), teams=frozenset({"main"}), key_id="k9"),
        make_agent("iris", projects=frozenset(), scopes=frozenset()),
    ],
)
def test_a_key_comes_back_as_it_was_put(store: GraphStore, principal: Any) -> None:
    key = make_key("k9", principal=principal)
    store.put_key(key)
    assert store.find_key(key.secret_hash) == key
    assert store.keys(ACCOUNT) == [key]
    found = store.find_key(key.secret_hash)
    assert found is not None
    assert found.principal.role is principal.role
    assert store.revision() == 0


def test_unknown_keys_are_not_found(store: GraphStore) -> None:
    store.put_key(make_key("k1"))
    for wrong in ("", "%", "0" * 64, make_key("k1").secret_hash[:-1], make_key("k1").secret_hash.upper(), "\ud800", "\0"):
        assert store.find_key(wrong) is None
    assert store.keys("zenith") == []


def test_keys_are_listed_by_age_and_revoked_once(store: GraphStore) -> None:
    old, new, newer = make_key("z", created_at=1), make_key("b", created_at=2), make_key("a", created_at=3)
    for key in (newer, new, old):
        store.put_key(key)
    assert store.keys(ACCOUNT) == [old, new, newer]
    assert store.revoke_key(ACCOUNT, "b", 77) is True
    assert store.revoke_key(ACCOUNT, "b", 88) is False
    assert store.revoke_key(ACCOUNT, "missing", 88) is False
    assert store.find_key(new.secret_hash) == replace(new, revoked_at=77)
    assert store.keys(ACCOUNT) == [old, replace(new, revoked_at=77), newer]


def test_two_keys_never_share_a_secret(store: GraphStore) -> None:
    first = make_key("k1")
    store.put_key(first)
    with pytest.raises(ConflictError):
        store.put_key(make_key("k2", secret_hash=first.secret_hash))
    assert store.keys(ACCOUNT) == [first]


# --- other accounts ---


@pytest.mark.parametrize(
    "alien",
    [
        WriteBatch(nodes=(make_node("x", account="zenith"),)),
        WriteBatch(nodes=(make_node("x", account=""),)),
        WriteBatch(nodes=(make_node("x", account="ACME"),)),
        WriteBatch(nodes=(make_node("x", account="\ud800"),)),
        WriteBatch(edges=(make_edge("x", "y", account="zenith"),)),
        WriteBatch(replace_paths=(("zenith", "main", "a.md"),)),
        WriteBatch(forget_files=(("zenith", "main", "a.md"),)),
        WriteBatch(files=(make_file(account="zenith"),)),
        WriteBatch(projects=(Project(account="zenith", project="main", root="", commit=None, indexed_at=0),)),
    ],
)
def test_a_batch_with_another_account_is_refused_whole(
    store: AnyStore, alien: WriteBatch, caplog: pytest.LogCaptureFixture
) -> None:
    good = make_node("good")
    with caplog.at_level(logging.ERROR), pytest.raises(ForbiddenError):
        store.write(replace(alien, nodes=(good, *alien.nodes), now=1))
    assert store.count(EVERYTHING) == 0
    assert store.revision() == 0
    assert store.rejected_writes == 1
    record = caplog.records[-1]
    assert (record.__dict__["action"], record.__dict__["reason"]) == ("write_rejected", "invalid-account-id")


def test_a_key_of_another_account_is_refused(store: AnyStore) -> None:
    with pytest.raises(ForbiddenError):
        store.put_key(make_key("k1", principal=make_principal(account="zenith")))
    with pytest.raises(ForbiddenError):
        store.revoke_key("zenith", "k1", 5)
    assert store.keys("zenith") == []
    assert store.rejected_writes == 2


@pytest.mark.parametrize("account", ["", "a b", "../x", "é"])
@pytest.mark.parametrize("make", [MemoryGraphStore, SqliteGraphStore])
def test_a_store_is_not_opened_for_an_impossible_account(make: Any, account: str, tmp_path: Path) -> None:
    arguments = () if make is MemoryGraphStore else (tmp_path / "graph.sqlite",)
    with pytest.raises(UsageError):
        make(*arguments, account=account)


# --- text that is hard to store ---


def test_half_an_emoji_becomes_the_replacement_character(store: GraphStore) -> None:
    body = json.loads(r'{"documents":[{"id":"s1","text":"ok \ud83d tail"},{"id":"s2","text":"fine \ud83d\ude80 rocket"}]}')
    nodes = tuple(make_node(item["id"], text={"content": item["text"]}) for item in body["documents"])
    assert store.write(WriteBatch(nodes=nodes)) == 1
    found = store.get_nodes(["s1", "s2"])
    assert found["s1"].text["content"] == "ok \ufffd tail"
    assert found["s2"].text["content"] == "fine \U0001f680 rocket"
    assert store.write(WriteBatch(nodes=nodes)) == 1, "writing the same half again is no change"


def test_a_surrogate_pair_is_the_character_it_stands_for(store: GraphStore) -> None:
    store.write(WriteBatch(nodes=(make_node("a", text={"content": "\ud83d\ude80 \ude80\ud83d \udc80"}),)))
    assert store.get_nodes(["a"])["a"].text["content"] == "\U0001f680 \ufffd\ufffd \ufffd"


def test_surrogates_do_no_harm_anywhere(store: GraphStore) -> None:
    bad, good = "x\ud83dy", "x\ufffdy"
    source = Source(repository=bad, path=bad, commit=bad)
    node = make_node(
        bad,
        project=bad,
        labels=(bad,),
        text={bad: bad},
        properties={bad: [bad, {"k": bad}]},
        agents=(bad,),
        keywords=(bad,),
        owner_agent=bad,
        shared_with=(bad,),
        status=bad,
        source=source,
        content_hash=bad,
    )
    batch = WriteBatch(
        replace_paths=((ACCOUNT, bad, bad),),
        nodes=(node,),
        edges=(make_edge(bad, bad, bad, project=bad, properties={bad: bad}),),
        files=(make_file(bad, project=bad, content_hash=bad, extractor=bad, facts={bad: bad}),),
        projects=(Project(account=ACCOUNT, project=bad, root=bad, commit=bad, indexed_at=1),),
    )
    assert [store.write(batch), store.write(batch)] == [1, 1]
    store.put_key(make_key("k", name=bad, principal=make_agent(agent=bad, key_id=bad, projects=frozenset({bad}))))
    found = store.get_nodes([good])[good]
    assert (found.labels, found.agents, found.text, found.properties) == (
        (good,),
        (good,),
        {good: good},
        {good: [good, {"k": good}]},
    )
    assert found.source == Source(repository=good, path=good, commit=good)
    assert [edge.type for edge in store.edges(ACCOUNT, good)] == [good]
    assert store.files(ACCOUNT, good)[good].facts == {good: good}
    assert store.projects(ACCOUNT)[0].root == good
    assert store.keys(ACCOUNT)[0].name == good
    # Asking for the half itself finds nothing and breaks nothing.
    assert store.get_nodes([bad], In("project", (bad,))) == {}
    assert store.neighbours([bad], Has("labels", (bad,)), 5) == ({bad: []}, {bad: 0})
    assert list(store.scan(In("project", (bad,)))) == []
    assert (store.files(ACCOUNT, bad), list(store.edges(ACCOUNT, bad)), store.projects(bad), store.keys(bad)) == (
        {},
        [],
        [],
        [],
    )
    assert store.revoke_key(ACCOUNT, bad, 1) is False
    assert store.write(WriteBatch(purge=(bad,))) == 2


def test_nul_stays_in_text_with_everything_after_it(store: GraphStore) -> None:
    text = "F\x0013 alpha\x00omega gamma"
    node = make_node(
        "nul\x00id", text={"content": text, "nul\x00name": "\x00"}, status="a\x00b", properties={"p\x00": "q\x00r"}
    )
    node = replace(node, keywords=("k\x00w",), source=Source(repository="r", path="a\x00b.txt"))
    store.write(WriteBatch(nodes=(node,), files=(make_file("a\x00b.txt", facts={"f": "\x00"}),)))
    found = store.get_nodes(["nul\x00id"])["nul\x00id"]
    assert found == replace(node, revision=1)
    assert len(found.text["content"]) == len(text) == 22
    assert store.get_nodes(["nul"]) == {}
    assert store.files(ACCOUNT, "main")["a\x00b.txt"].facts == {"f": "\x00"}


def test_nul_in_a_tag_never_makes_it_another_tag(store: GraphStore) -> None:
    node = make_node("a", agents=("iris\x00x",), labels=("Chunk\x00",), shared_with=("mira\x00",))
    store.write(WriteBatch(nodes=(node,)))
    for guard in (Has("agents", ("iris",)), Has("labels", ("Chunk",)), Has("shared_with", ("mira",))):
        assert store.count(guard) == 0
        assert store.get_nodes(["a"], guard) == {}
    assert store.get_nodes(["a"])["a"].agents == ("iris\ufffdx",)


@pytest.mark.parametrize(
    "fields",
    [
        {"properties": {"x": float("nan")}},
        {"properties": {"x": [float("inf")]}},
        {"properties": {"x": {1, 2}}},
        {"properties": {"x": b"bytes"}},
        {"properties": {"x": 2**63}},
        {"properties": {"x": {1: "not text"}}},
        {"confidence": float("nan")},
        {"confidence": 1.5},
        {"created_at": 2**63},
        {"deleted_at": -(2**63) - 1},
    ],
    ids=str,
)
def test_what_cannot_be_stored_is_refused_by_name(store: GraphStore, fields: dict[str, Any]) -> None:
    with pytest.raises(UsageError) as caught:
        store.write(WriteBatch(nodes=(make_node("good"), make_node("bad", **fields))))
    assert caught.value.field == next(iter(fields))
    assert store.count(EVERYTHING) == 0


def test_properties_nested_too_deeply_are_refused(store: GraphStore) -> None:
    def nested(levels: int) -> list[Any]:
        deep: list[Any] = []
        for _ in range(levels):
            deep = [deep]
        return deep

    fine = make_node("fine", properties={"x": nested(98)})
    store.write(WriteBatch(nodes=(fine,)))
    assert store.get_nodes(["fine"])["fine"].properties == fine.properties
    for levels in (99, 100_000):
        with pytest.raises(UsageError):
            store.write(WriteBatch(nodes=(make_node("bad", properties={"x": nested(levels)}),)))


def test_a_megabyte_of_text_comes_back_whole(store: GraphStore) -> None:
    text = "ab\n\U0001f680" * 250_000
    store.write(WriteBatch(nodes=(make_node("a", text={"content": text}),)))
    assert store.get_nodes(["a"])["a"].text["content"] == text


def test_what_a_caller_changes_later_is_not_what_is_stored(store: GraphStore) -> None:
    properties: dict[str, Any] = {"list": [1]}
    store.write(WriteBatch(nodes=(make_node("a", properties=properties),), edges=(make_edge("a", "a", properties=properties),)))
    properties["list"].append(2)
    store.get_nodes(["a"])["a"].properties["list"].append(3)
    next(store.edges(ACCOUNT, "main")).properties["list"].append(4)
    assert store.get_nodes(["a"])["a"].properties == {"list": [1]}
    assert next(store.edges(ACCOUNT, "main")).properties == {"list": [1]}
