"""Nothing of what a reader may not read can be told from its answers, and a leak that is put in is found."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actors import lexical_shard
from cluster.config import Config, load
from cluster.errors import NotFoundError
from cluster.graph.sqlite import SqliteGraphStore
from cluster.model.access import Principal
from cluster.model.nodes import Edge, Node, Scope, Visibility
from cluster.model.query import Fusion, LegAnswer, SearchRequest
from cluster.ports import Project, WriteBatch
from jobs import tasks
from jobs.setup import graph_path
from serve import cli, isolation, retrieval
from serve.isolation import IsolationReport, verify_isolation
from serve.keys import Keys
from tests.support.clock import ManualClock
from tests.support.factories import make_agent, make_node, make_principal

ACCOUNT = "local"
PROJECTS = ("main", "ap-erp", "secret")
WORDS = ("pump", "valve", "flow", "pressure", "sensor", "index", "shard", "token", "parse", "request", "water", "table")
READERS = [
    make_agent("iris", account=ACCOUNT, teams=frozenset({"main"})),
    make_agent("mira", account=ACCOUNT, projects=frozenset({"main", "ap-erp"}), scopes=frozenset({Scope.PUBLIC})),
    make_principal(account=ACCOUNT, projects=frozenset({"ap-erp"})),
    make_principal(account=ACCOUNT),
    make_agent("nobody", account=ACCOUNT),
]
REQUESTS = [
    SearchRequest(query="pump pressure", limit=5, expand_hops=2),
    SearchRequest(query="water valve sensor table", limit=20),
    SearchRequest(query="token", projects=("main",), limit=3, expand_hops=3),
    SearchRequest(query="shard index", projects=("secret",)),
    SearchRequest(query="parse request", labels=("Document",), limit=100),
    SearchRequest(query="nowhere", projects=("unknown",)),
    SearchRequest(query="flow of the pump", projects=("ap-erp", "main"), expand_hops=0, limit=7),
    SearchRequest(query="?!"),
    SearchRequest(query="pump pressure valve", fusion=Fusion.RRF),
    SearchRequest(query="sensor", fusion=Fusion.WEIGHTED_MAX, limit=4),
]


class Corpus:
    """Several agents' nodes in three projects, written before and after their indexes were built, and edges across it."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.pick = random.Random(seed)
        # Small buckets, so that the private copies have fewer of them.
        overrides: dict[str, object] = {"data_dir": folder, "shards.target_rows_per_bucket": 40, "embed.then": ""}
        self.config: Config = load(None, None, overrides)
        self.store = SqliteGraphStore(graph_path(self.config), account=ACCOUNT)
        self.ids = [f"n{number:03}" for number in range(200)]
        registered = [Project(account=ACCOUNT, project=name, root="", commit=None, indexed_at=0) for name in PROJECTS]
        self.store.write(WriteBatch(nodes=tuple(map(self.node, self.ids)), edges=self.edges(), projects=tuple(registered)))
        for project in PROJECTS:
            tasks.publish(self.config, project)
        self.live_writes()

    def live_writes(self) -> None:
        """Changed and new rows, in no generation yet; half of them embedded by another project's build."""
        changed = [self.node(node_id) for node_id in [*self.pick.sample(self.ids, 25), "x1", "x2", "x3"]]
        self.store.write(WriteBatch(nodes=tuple(changed), edges=self.edges()))
        self.store.write(WriteBatch(soft_delete=tuple(self.pick.sample(self.ids, 12)), now=5))
        self.store.write(WriteBatch(purge=tuple(self.pick.sample(self.ids, 6))))

    def node(self, node_id: str) -> Node:
        words = " ".join(self.pick.choices(WORDS, k=self.pick.choice([3, 12, 40])))
        return make_node(
            node_id,
            account=ACCOUNT,
            project=self.pick.choice(PROJECTS),
            text={"content": words, "title": f"title of {node_id}"},
            labels=self.pick.choice([("Chunk",), ("Document",)]),
            scope=self.pick.choice([None, None, *Scope]),
            agents=self.pick.choice([None, ("iris",), ("iris", "mira"), ("mira",), ()]),
            visibility=self.pick.choice([None, None, *Visibility]),
            owner_agent=self.pick.choice([None, "iris", "mira"]),
            shared_with=self.pick.choice([(), ("iris",)]),
        )

    def edges(self) -> tuple[Edge, ...]:
        pairs = {tuple(self.pick.sample(self.ids, 2)) for _ in range(300)}
        return tuple(
            Edge(from_id=a, type="CALLS", to_id=b, account=ACCOUNT, project=self.pick.choice(PROJECTS)) for a, b in pairs
        )


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Corpus]:
    made = Corpus(tmp_path_factory.mktemp("isolation"), seed=7)
    yield made
    made.store.close()


@pytest.mark.parametrize("reader", READERS, ids=["iris", "mira", "one project", "admin", "nobody"])
def test_answers_are_those_of_a_private_index(corpus: Corpus, reader: Principal) -> None:
    report = verify_isolation(corpus.config, reader, REQUESTS)
    assert report.difference is None
    assert report.queries == len(REQUESTS) and report.pages >= report.queries
    assert (report.readable > 10) == (reader.agent != "nobody")
    assert report.nodes > report.readable or reader is READERS[3]


def leaks(corpus: Corpus) -> IsolationReport:
    return verify_isolation(corpus.config, READERS[0], REQUESTS)


def statistics_over_all_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lexical_shard, "_counted", lambda _query: lexical_shard.EVERYTHING)


def counts_of_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    real = lexical_shard.LexicalShard._search

    def counting(self: Any, query: Any) -> Any:
        everything = real(self, replace(query, guard=lexical_shard.EVERYTHING))
        return replace(real(self, query), matched=everything.matched)

    monkeypatch.setattr(lexical_shard.LexicalShard, "_search", counting)


def unguarded_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrieval, "expansion_guard", lambda _principal: lexical_shard.EVERYTHING)


def error_that_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    real = retrieval.make_plan

    def telling(request: Any, principal: Any, served: Any, *more: Any) -> Any:
        try:
            return real(request, principal, served, *more)
        except NotFoundError as error:
            error.detail += f" ({sum(manifest.rows for manifest in served.values())} rows)"
            raise

    monkeypatch.setattr(retrieval, "make_plan", telling)


@pytest.mark.parametrize(
    ("plant", "place"),
    [
        (statistics_over_all_rows, "hits"),
        (counts_of_everything, "disclosure.legs[0].matched"),
        (unguarded_neighbours, "hits"),
        (error_that_tells, "error.detail"),
    ],
)
def test_a_leak_is_found(
    corpus: Corpus, monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None], place: str
) -> None:
    plant(monkeypatch)
    difference = leaks(corpus).difference
    assert difference is not None
    assert difference.place.startswith(place), difference


def test_the_command_answers_with_its_exit_code_and_the_first_difference(
    corpus: Corpus, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    queries = tmp_path / "queries.jsonl"
    queries.write_text('{"query": "pump pressure"}\n{"query": "token", "projects": ["main"], "expand_hops": 3}\n')
    monkeypatch.setenv("RAYCALL_DATA_DIR", str(corpus.config.data_dir))
    monkeypatch.setenv("RAYCALL_EMBED_THEN", "")
    made = Keys(account=ACCOUNT, store=corpus.store, clock=ManualClock()).create(name="n", projects=["ap-erp"])

    def run(*arguments: str) -> tuple[int, str, str]:
        code = cli.run_command(["verify-isolation", str(queries), *arguments])
        written = capsys.readouterr()
        return code, written.out, written.err

    code, out, err = run("--key-id", made.key.key_id, "--json")
    assert code == 0, err
    assert json.loads(out)["isolated"]
    for arguments, expected, words in (
        ([], 2, "say whose answers"),
        (["--key-id", "key_0"], 1, "no key 'key_0'"),
        (["--agent", "iris", "--scope", "all"], 2, "'all' is not a valid Scope"),
        (["--key-id", made.key.key_id, "--agent", "iris"], 2, "say whose answers"),
    ):
        code, out, err = run(*arguments)
        assert (code, out, err.count("\n")) == (expected, "", 1) and words in err
    statistics_over_all_rows(monkeypatch)
    code, out, _ = run("--agent", "iris")
    assert code == 1
    assert "isolated: no" in out and "first difference:" in out and "place: hits" in out


# --- comparing ---------------------------------------------------------------------------------------------------------------


def told(*hits: tuple[str, float], **more: Any) -> dict[str, Any]:
    listed = [{"id": node_id, "score": score} for node_id, score in hits]
    return {"hits": listed, "explain": {"hits": listed}, "text": " ".join(node_id for node_id, _ in hits), **more}


@pytest.mark.parametrize(
    ("private", "place"),
    [
        (told(("a", 0.5), ("b", 0.5), ("c", 0.1)), None),
        (told(("b", 0.5 + 1e-9), ("a", 0.5), ("c", 0.1)), None),
        (told(("a", 0.5), ("b", 0.5), ("c", 0.1 + 1e-5)), "hits[2].score"),
        (told(("a", 0.5), ("x", 0.5), ("c", 0.1)), "hits[0:2].id"),
        (told(("a", 0.5), ("b", 0.5)), "hits"),
        ({**told(("a", 0.5), ("b", 0.5), ("c", 0.1)), "text": "a b  c"}, "text"),
        (told(("a", 0.5), ("b", 0.5), ("c", 0.1), more=True), ""),
        ({"error": {"code": "x"}}, ""),
    ],
)
def test_ties_may_move_and_nothing_else(private: dict[str, Any], place: str | None) -> None:
    found = isolation.first_difference(told(("a", 0.5), ("b", 0.5), ("c", 0.1)), private)
    assert (None if found is None else found["place"]) == place


def leg(**scores: float) -> LegAnswer:
    return LegAnswer(ids=tuple(scores), scores=np.array(list(scores.values())))


def test_rounding_is_taken_away_and_nothing_else() -> None:
    reference = leg(b=2.0, a=1.9999999, c=1.0)
    found = isolation.aligned(leg(a=2.0, b=1.9999999, c=1.1, d=0.5), reference)
    assert found.ids == ("b", "a", "c", "d")
    assert found.scores.tolist() == [2.0, 1.9999999, 1.1, 0.5]
    assert isolation.aligned(reference, None) is reference
