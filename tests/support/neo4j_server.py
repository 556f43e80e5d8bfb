"""One real Neo4j for all tests of a run, emptied for each."""

from __future__ import annotations

import atexit
import tempfile
from functools import cache
from pathlib import Path

import neo4j

from cluster.graph.neo4j_store import Neo4jGraphStore
from deploy.neo4j.server import QUICK_START, Neo4jServer
from tests.support.factories import ACCOUNT


def shared_server() -> Neo4jServer:
    """Started when it is first asked for, stopped when the tests end. Where it cannot be started, the test fails."""
    server = _server()
    if not server.is_running:
        server.start()
    return server


@cache
def _server() -> Neo4jServer:
    folder = tempfile.TemporaryDirectory(prefix="raycall-neo4j-", ignore_cleanup_errors=True)
    server = Neo4jServer(Path(folder.name), jvm=QUICK_START)
    atexit.register(folder.cleanup)
    atexit.register(server.stop)
    return server


def open_store(server: Neo4jServer, account: str = ACCOUNT) -> Neo4jGraphStore:
    return Neo4jGraphStore(server.uri, account=account, password=server.password)


def connect(server: Neo4jServer) -> neo4j.Driver:
    return neo4j.GraphDatabase.driver(server.uri, auth=("neo4j", server.password))


@cache
def shared_driver(server: Neo4jServer) -> neo4j.Driver:
    driver = connect(server)
    atexit.register(driver.close)
    return driver


def empty(server: Neo4jServer) -> None:
    """Deletes every record; the schema stays."""
    shared_driver(server).execute_query("MATCH (n) WHERE NOT n:Meta DETACH DELETE n", database_="neo4j")
    shared_driver(server).execute_query("MATCH (m:Meta) SET m.revision = 0", database_="neo4j")
