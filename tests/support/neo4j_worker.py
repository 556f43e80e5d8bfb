"""A process that writes to Neo4j until it is stopped, for tests that end the server under it.

python -m tests.support.neo4j_worker URI PASSWORD_FILE NAME     prints "<revision> <node id>" for each acknowledged write
"""

from __future__ import annotations

import sys
from itertools import count
from pathlib import Path

from cluster.errors import UnavailableError
from cluster.graph.neo4j_store import Neo4jGraphStore
from cluster.ports import WriteBatch
from tests.support.factories import ACCOUNT, make_edge, make_node
from tests.support.store_worker import GROUP


def write(uri: str, password_file: str, name: str) -> None:
    """Each step replaces one path's group of nodes, and adds one that stays. Ends when the server is gone."""
    store = Neo4jGraphStore(uri, account=ACCOUNT, password=Path(password_file).read_text(), retry_s=0.5)
    for step in count():
        group = tuple(
            make_node(f"{name}-{step}-{place}", project=name, path=f"{name}.md", status=str(step)) for place in range(GROUP)
        )
        kept = make_node(f"{name}-kept-{step}", project=f"{name}-kept")
        batch = WriteBatch(
            replace_paths=((ACCOUNT, name, f"{name}.md"),), nodes=(*group, kept), edges=(make_edge(kept.id, group[0].id),)
        )
        try:
            print(store.write(batch), kept.id, flush=True)
        except UnavailableError:
            break
    store.close()


if __name__ == "__main__":
    write(*sys.argv[1:])
