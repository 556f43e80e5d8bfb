"""The graph store on a real Neo4j that restarts, is killed, refuses, or holds something else."""

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

import pytest

from cluster import guards
from cluster.errors import ConfigError, IntegrityError, RaycallError, TooLargeError, UnavailableError, UsageError
from cluster.graph import neo4j_schema
from cluster.graph.neo4j_rows import node_record
from cluster.graph.neo4j_store import Neo4jGraphStore
from cluster.model.guard import All, In
from cluster.model.nodes import Scope
from cluster.ports import WriteBatch
from deploy.neo4j.server import Neo4jServer
from tests.support import neo4j_server
from tests.support.factories import ACCOUNT, make_agent, make_edge, make_node
from tests.support.graph_stores import EVERYTHING, ids
from tests.support.store_worker import GROUP

#: A server takes half a minute to start where others keep the machine busy.
pytestmark = [pytest.mark.neo4j, pytest.mark.timeout(900)]
ROOT = Path(__file__).parents[2]


@pytest.fixture
def server() -> Neo4jServer:
    """The server of all tests, empty."""
    shared = neo4j_server.shared_server()
    neo4j_server.empty(shared)
    return shared


@pytest.fixture
def store(server: Neo4jServer) -> Iterator[Neo4jGraphStore]:
    opened = neo4j_server.open_store(server)
    yield opened
    opened.close()


def run(server: Neo4jServer, query: str, **parameters: object) -> list[dict[str, object]]:
    """What a person could do beside the store, in any client."""
    records, _, _ = neo4j_server.shared_driver(server).execute_query(query, parameters, database_="neo4j")
    return [record.data() for record in records]


# --- a server that goes away ---


def test_a_killed_server_loses_no_acknowledged_write_and_comes_back(server: Neo4jServer) -> None:
    with ExitStack() as stack:
        options = {"account": ACCOUNT, "password": server.password}
        store = stack.enter_context(closing(Neo4jGraphStore(server.uri, **options, retry_s=1)))
        command = [sys.executable, "-m", "tests.support.neo4j_worker", server.uri, str(server.password_file)]
        pipe = subprocess.PIPE
        writers = [
            stack.enter_context(subprocess.Popen([*command, name], cwd=ROOT, stdout=pipe, stderr=pipe, text=True))
            for name in ("one", "two")
        ]
        for writer in writers:
            stack.callback(writer.kill)
        heads = [[writer.stdout.readline() for _ in range(15)] for writer in writers if writer.stdout is not None]
        server.kill()
        rests = [writer.communicate() for writer in writers]
        assert [writer.returncode for writer in writers] == [0, 0], rests
        lines = [line for head, (rest, _) in zip(heads, rests, strict=True) for line in ("".join(head) + rest).splitlines()]
        acknowledged = {node_id: int(revision) for revision, node_id in map(str.split, lines)}
        assert len(acknowledged) >= 30

        for use in (lambda: store.write(WriteBatch(nodes=(make_node("while it is away"),))), lambda: store.count(EVERYTHING)):
            with pytest.raises(UnavailableError, match="does not answer"):
                use()

        server.start()
        _assert_nothing_is_lost(store, acknowledged)


def _assert_nothing_is_lost(store: Neo4jGraphStore, acknowledged: dict[str, int]) -> None:
    kept = {node.id: node.revision for node in store.scan(In("project", ("one-kept", "two-kept")))}
    assert acknowledged.items() <= kept.items()
    # Each writer's last write may have been committed and not yet said so; what is there, is there whole.
    assert len(kept) - len(acknowledged) in (0, 1, 2)
    assert sorted(kept.values()) == list(range(1, store.revision() + 1))
    assert {change.revision for change in store.changes(0, 10**6)} == set(kept.values())
    for name in ("one", "two"):
        group = list(store.scan(In("project", (name,))))
        assert len(group) == GROUP
        assert len({node.status for node in group}) == 1
    assert store.write(WriteBatch(nodes=(make_node("after"),))) == len(kept) + 1


def test_an_open_store_survives_an_orderly_restart(server: Neo4jServer, store: Neo4jGraphStore) -> None:
    assert store.write(WriteBatch(nodes=(make_node("before"),))) == 1
    first = server.process_id
    server.stop()
    with pytest.raises(ProcessLookupError):
        os.kill(first, 0)
    server.start()
    assert ids(store.scan(EVERYTHING)) == ["before"]
    assert store.write(WriteBatch(nodes=(make_node("after"),))) == 2


def test_a_server_in_the_foreground_ends_with_ctrl_c(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "deploy.neo4j.server", "--folder", str(tmp_path / "neo4j")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True) as owner:
        assert owner.stdout is not None
        lines = [owner.stdout.readline() for _ in range(2)]
        assert "raycall: Neo4j answers at bolt://127.0.0.1:" in lines[0]
        assert str(tmp_path / "neo4j" / "password") in lines[1]
        children = Path(f"/proc/{owner.pid}/task/{owner.pid}/children").read_text().split()
        assert len(children) == 1
        owner.send_signal(signal.SIGINT)
        assert owner.wait() == 130
    assert not Path(f"/proc/{children[0]}").exists()
    assert (tmp_path / "neo4j" / "password").stat().st_mode & 0o777 == 0o600


# --- a server that refuses ---


def test_what_is_wrong_is_one_clear_line_without_the_password(server: Neo4jServer, caplog: pytest.LogCaptureFixture) -> None:
    secret = "not-the-password-7f3a"
    cases: list[tuple[str, dict[str, str], type[RaycallError], str]] = [
        (server.uri, {"password": secret}, UnavailableError, "Neo4j refused the user name or the password"),
        (server.uri, {"password": server.password, "user": "nobody"}, UnavailableError, "refused the user name"),
        (server.uri, {"password": server.password, "database": "nope"}, UnavailableError, "has no database 'nope'"),
        ("bolt://127.0.0.1:1", {"password": secret}, UnavailableError, "does not answer"),
        ("http://127.0.0.1:1", {"password": secret}, ConfigError, "must be like bolt://host:7687"),
        ("nonsense", {"password": secret}, ConfigError, "must be like bolt://host:7687"),
    ]
    with caplog.at_level(logging.DEBUG):
        for uri, options, kind, line in cases:
            with pytest.raises(kind, match=line) as caught:
                Neo4jGraphStore(uri, account=ACCOUNT, retry_s=0.2, **options)
            assert "\n" not in caught.value.detail
            assert secret not in repr(caught.value) and server.password not in repr(caught.value)
    assert secret not in caplog.text and server.password not in caplog.text
    assert [record for record in caplog.records if record.__dict__.get("action") == "store_failed"]


@pytest.mark.parametrize("account", ["", "a b", "../x", "é"])
def test_a_store_is_not_opened_for_an_impossible_account(account: str) -> None:
    with pytest.raises(UsageError):
        Neo4jGraphStore("bolt://127.0.0.1:1", account=account, password="x")


def test_no_text_of_a_store_holds_the_password(server: Neo4jServer, store: Neo4jGraphStore) -> None:
    held = [store, *vars(store).values(), *vars(store._connection).values()]
    assert all(server.password not in text for thing in held for text in (repr(thing), str(thing)))


def test_a_database_of_another_program_is_refused(server: Neo4jServer) -> None:
    run(server, "MATCH (m:Meta) DELETE m")
    run(server, "CREATE (:Person {name: 'somebody'})")
    with pytest.raises(IntegrityError, match="another program"):
        neo4j_server.open_store(server)
    run(server, "MATCH (p:Person) DELETE p")
    neo4j_server.open_store(server).close()


def test_a_newer_schema_is_refused(server: Neo4jServer, store: Neo4jGraphStore) -> None:
    run(server, "MATCH (m:Meta) SET m.schema = 99")
    with pytest.raises(IntegrityError, match="newer release: its schema is version 99"):
        neo4j_server.open_store(server)
    run(server, f"MATCH (m:Meta) SET m.schema = {len(neo4j_schema.MIGRATIONS)}")


def test_a_schema_is_made_once_and_brought_on(server: Neo4jServer, store: Neo4jGraphStore) -> None:
    before = run(server, "SHOW INDEXES YIELD name, state RETURN name, state ORDER BY name")
    assert {"item_id", "node_project", "node_revision", "node_path", "edge_project"} <= {row["name"] for row in before}
    assert {row["state"] for row in before} == {"ONLINE"}
    run(server, "MATCH (m:Meta) DELETE m")
    neo4j_server.open_store(server).close()
    assert run(server, "SHOW INDEXES YIELD name, state RETURN name, state ORDER BY name") == before
    next_one = "// two\nCREATE INDEX node_status IF NOT EXISTS FOR (n:Node) ON (n.status);"
    for _ in range(2):
        neo4j_schema.migrate(store._connection.run, (*neo4j_schema.MIGRATIONS, next_one))
    version = len(neo4j_schema.MIGRATIONS) + 1
    found = run(server, "MATCH (m:Meta) RETURN m.schema AS version, m.revision AS revision")
    assert found == [{"version": version, "revision": 0}]
    run(server, "DROP INDEX node_status")
    run(server, f"MATCH (m:Meta) SET m.schema = {len(neo4j_schema.MIGRATIONS)}")


def test_an_id_that_cannot_be_indexed_is_refused_by_name(store: Neo4jGraphStore) -> None:
    with pytest.raises(TooLargeError, match="8,000 bytes"):
        store.write(WriteBatch(nodes=(make_node("x" * 9000),)))
    assert (store.revision(), store.count(EVERYTHING)) == (0, 0)
    with pytest.raises(UnavailableError, match="closed"):
        store.close()
        store.revision()


# --- what others see ---


def test_a_second_store_sees_what_the_first_wrote(server: Neo4jServer, store: Neo4jGraphStore) -> None:
    with closing(neo4j_server.open_store(server)) as other:
        for step in range(20):
            assert (store if step % 2 else other).write(WriteBatch(nodes=(make_node("n", status=str(step)),))) == step + 1
            assert (other if step % 2 else store).get_nodes(["n"])["n"].status == str(step)


def test_another_accounts_records_are_neither_changed_nor_written_over(server: Neo4jServer, store: Neo4jGraphStore) -> None:
    with closing(neo4j_server.open_store(server, "zenith")) as other:
        other.write(WriteBatch(nodes=(make_node("theirs", account="zenith", path="a.md"),)))
        with pytest.raises(RaycallError):
            store.write(WriteBatch(nodes=(make_node("theirs"),)))
        store.write(WriteBatch(purge=("theirs",), soft_delete=("theirs",), now=5))
        assert store.rejected_writes == 1
        assert other.get_nodes(["theirs"])["theirs"].deleted_at is None


def test_half_a_write_is_never_shown(server: Neo4jServer, store: Neo4jGraphStore) -> None:
    """A node whose properties are of two versions is read again, under the lock, and guarded by what it then is."""
    old = make_node("n", scope=Scope.PUBLIC, agents=("iris",), text={"content": "harmless"})
    store.write(WriteBatch(nodes=(old, make_node("hub")), edges=(make_edge("hub", "n"),)))
    torn = node_record(replace(old, text={"content": "secret"}), 2)
    guard = guards.search_guard(make_agent())
    asked: list[int] = []
    write = store._connection.write

    def locked(work):  # type: ignore[no-untyped-def]
        asked.append(1)
        run(server, "MATCH (n:Item {id: 'n'}) SET n = $record", record=node_record(replace(old, scope=Scope.ADMIN), 2))
        return write(work)

    store._connection.write = locked  # type: ignore[method-assign]
    for read in (lambda: store.get_nodes(["n"], guard), lambda: store.neighbours(["hub"], guard, 5)[0]["hub"]):
        run(server, "MATCH (n:Item {id: 'n'}) SET n.content = $content", content=torn["content"])
        run(server, "MATCH (n:Item {id: 'n'}) SET n.scope = 'public'")
        asked.clear()
        assert not read()
        assert asked == [1]


def test_what_somebody_edits_by_hand_is_read_as_it_is(server: Neo4jServer, store: Neo4jGraphStore) -> None:
    store.write(WriteBatch(nodes=(make_node("n"), make_node("m"))))
    run(server, "MATCH (n:Item {id: 'n'}) SET n.status = 'edited', n.mine = 1")
    assert store.get_nodes(["n"])["n"].status == "edited"
    assert [(node.id, node.status) for node in store.scan(All(()))] == [("m", None), ("n", "edited")]


def test_ends_that_no_edge_needs_are_not_kept(server: Neo4jServer, store: Neo4jGraphStore) -> None:
    store.write(WriteBatch(nodes=(make_node("a"),), edges=(make_edge("a", "nowhere"), make_edge("a", "later"))))
    assert ids(store.scan(EVERYTHING)) == ["a"]
    store.write(WriteBatch(nodes=(make_node("later"),)))
    store.write(WriteBatch(purge=("a",)))
    assert run(server, "MATCH (n:Item) RETURN n.id AS id") == [{"id": "later"}]
    store.write(WriteBatch(edges=(make_edge("later", "gone"),)))
    store.write(WriteBatch(remove_edges=(("later", "CALLS", "gone"),), purge=("later",)))
    assert run(server, "MATCH (n:Item) RETURN n.id AS id") == []
