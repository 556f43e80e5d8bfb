"""A process that writes to, or reads from, the graph store in a file, for tests that need several of them.

python -m tests.support.store_worker write PATH NAME STEPS     prints "<revision> <node id>" for each acknowledged write
python -m tests.support.store_worker read PATH NAMES           until its input ends, then prints how often it read
"""

from __future__ import annotations

import select
import sys
from itertools import count

from cluster.graph.sqlite import SqliteGraphStore
from cluster.model.guard import In
from cluster.ports import WriteBatch
from tests.support.factories import ACCOUNT, make_edge, make_node

#: Nodes that one write replaces together.
GROUP = 5


def write(path: str, name: str, steps: str) -> None:
    """Each step replaces one path's group of nodes, and adds one node that stays. Without steps (0): for ever."""
    store = SqliteGraphStore(path, account=ACCOUNT)
    for step in range(int(steps)) if int(steps) else count():
        group = tuple(
            make_node(f"{name}-{step}-{place}", project=name, path=f"{name}.md", status=str(step)) for place in range(GROUP)
        )
        kept = make_node(f"{name}-kept-{step}", project=f"{name}-kept")
        revision = store.write(
            WriteBatch(
                replace_paths=((ACCOUNT, name, f"{name}.md"),),
                nodes=(*group, kept),
                edges=(make_edge(kept.id, group[0].id),),
            )
        )
        print(revision, kept.id, flush=True)
    store.close()


def read(path: str, names: str) -> None:
    """Fails when it ever sees a part of a write, or anything go backwards."""
    store = SqliteGraphStore(path, account=ACCOUNT)
    reads, last = 0, dict.fromkeys(names.split(","), (-1, 0))
    revision = 0
    while not select.select([sys.stdin], [], [], 0)[0]:
        for name in last:
            group = list(store.scan(In("project", (name,))))
            steps = {node.status for node in group}
            if group and (len(group) != GROUP or len(steps) != 1):
                raise AssertionError(f"half a write was seen: {[node.id for node in group]}")
            now = (int(steps.pop() or -1) if group else -1, store.count(In("project", (f"{name}-kept",))))
            if now < last[name]:
                raise AssertionError(f"the past was seen: {now} after {last[name]}")
            last[name] = now
        if store.revision() < revision:
            raise AssertionError("the revision went back")
        revision = store.revision()
        reads += 1
    store.close()
    print(reads, flush=True)


if __name__ == "__main__":
    {"write": write, "read": read}[sys.argv[1]](*sys.argv[2:])
