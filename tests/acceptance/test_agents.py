"""What a key for an agent finds: what a writer tagged for it, through both legs, the recheck and the graph."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from cluster.ports import Project, WriteBatch
from tests.support.factories import make_edge, make_node
from tests.support.publishing import DEFAULT_ACCOUNT, write_and_publish
from tests.support.server import Server, raycall

PROJECT = "field-notes"


def note(node_id: str, text: str, agents: tuple[str, ...] | None) -> Any:
    return make_node(node_id, account=DEFAULT_ACCOUNT, project=PROJECT, text={"title": node_id, "content": text}, agents=agents)


TAGGED = note("tagged", "The heron counts of the north shore.", ("sales",))
UNTAGGED = note("untagged", "The heron counts of the south shore.", None)
FOREIGN = note("foreign", "The heron counts of the east shore.", ("audit",))
FOR_NOBODY = note("for-nobody", "The heron counts of the west shore.", ())


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that runs while the notes are written and published."""
    running = Server(tmp_path_factory.mktemp("tagged"))
    edges = [
        replace(make_edge("tagged", other, "NEXT_TO"), account=DEFAULT_ACCOUNT, project=PROJECT)
        for other in ("untagged", "foreign", "for-nobody")
    ]
    batch = WriteBatch(
        nodes=(TAGGED, UNTAGGED, FOREIGN, FOR_NOBODY),
        edges=tuple(edges),
        projects=(Project(account=DEFAULT_ACCOUNT, project=PROJECT, root="", commit=None, indexed_at=0),),
    )
    try:
        write_and_publish(running.data_dir, batch, PROJECT)
        running.until("the notes", lambda: running.search("heron counts")["hits"], timeout=60)
        yield running
    finally:
        running.stop()


def key_for(server: Server, *arguments: str) -> str:
    made = raycall(server.data_dir, "keys", "create", "a key", *arguments, "--json")
    assert made.returncode == 0, made.stderr
    return str(json.loads(made.stdout)["secret"])


def ask(server: Server, key: str, **fields: Any) -> Any:
    reply = server.request("POST", "/v1/search", {"query": "heron counts", **fields}, key=key)
    assert reply.status == 200, reply.body
    return reply.json


def ids(answer: Any) -> set[str]:
    return {hit["id"] for hit in answer["hits"]}


def test_an_agent_finds_what_is_tagged_for_it_and_the_operator_everything(server: Server) -> None:
    assert ids(server.search("heron counts")) == {"tagged", "untagged", "foreign", "for-nobody"}
    answer = ask(server, key_for(server, "--agent", "sales"))
    assert ids(answer) == {"tagged"}
    assert [leg["hits"] for leg in answer["disclosure"]["legs"]] == [1, 1]
    assert answer["disclosure"]["candidates"] == 1
    assert answer["disclosure"]["legs"][0]["matched"] == 1
    assert ids(ask(server, key_for(server, "--agent", "nobody"))) == set()


def test_an_agents_key_of_another_project_finds_nothing_here(server: Server) -> None:
    assert ids(ask(server, key_for(server, "--agent", "sales", "--project", "elsewhere"))) == set()


def test_beside_a_hit_an_agent_sees_what_is_untagged_and_nothing_of_other_agents(server: Server) -> None:
    agent = key_for(server, "--agent", "sales")
    (hit,) = ask(server, agent)["hits"]
    assert [related["id"] for related in hit["related"]] == ["untagged"]
    assert hit["related_omitted"] == 0
    (hit,) = ask(server, agent, expand_hops=3)["hits"]
    assert [related["id"] for related in hit["related"]] == ["untagged"]
    everything = {related["id"] for hit in server.search("heron counts")["hits"] for related in hit["related"]}
    assert {"untagged", "foreign", "for-nobody"} <= everything


def test_no_count_of_an_agents_answer_tells_of_rows_that_it_cannot_read(server: Server) -> None:
    said = ask(server, key_for(server, "--agent", "sales"), explain=True)
    told = json.dumps(said["disclosure"]["omitted"]) + json.dumps(said["explain"]["lexical"])
    assert said["explain"]["lexical"]["documents"] == 1, told
    assert all(count == 1 for count in said["explain"]["lexical"]["terms"].values()), told
