"""Related nodes of the hits, hop by hop: one store call a hop for all hits together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from cluster.model.guard import Guard
from cluster.model.nodes import Related
from cluster.ports import GraphStore

#: Most related nodes of one hit.
RELATED_CAP = 20


@dataclass(slots=True)
class Neighbourhood:
    """What was reached from one hit."""

    related: list[Related] = field(default_factory=list)
    #: Allowed neighbours that the cap left out, as the store counts them; one that is reached twice may count twice.
    omitted: int = 0
    _visited: set[str] = field(default_factory=set)
    _frontier: list[str] = field(default_factory=list)


def expand(
    store: GraphStore,
    hit_ids: Sequence[str],
    guard: Guard,
    hops: int,
    cap: int = RELATED_CAP,
    may_go: Callable[[Sequence[str]], bool] = lambda _asked: True,
) -> tuple[dict[str, Neighbourhood], bool]:
    """At most `cap` nodes around each hit that `guard` allows, nearest first; no node twice, and never the hit itself.

    A node that `guard` refuses is no bridge either: what lies behind it is not reached through it. A hop from some
    nodes is begun only when `may_go` of them; the second result is whether all were that had anywhere to go.
    """
    found = {hit_id: Neighbourhood(_visited={hit_id}, _frontier=[hit_id]) for hit_id in hit_ids}
    for _ in range(hops):
        asked = sorted({node_id for around in found.values() for node_id in around._frontier})
        if not asked:
            break
        if not may_go(asked):
            return found, False
        # Twice the cap: two edges to one neighbour, and edges back to where we come from, take places that stay empty.
        neighbours, more = store.neighbours(asked, guard, 2 * cap)
        for around in found.values():
            _advance(around, neighbours, more, cap)
    return found, True


def _advance(around: Neighbourhood, neighbours: dict[str, list[Related]], more: dict[str, int], cap: int) -> None:
    reached: list[str] = []
    for node_id in around._frontier:
        around.omitted += more.get(node_id, 0)
        for item in neighbours.get(node_id, ()):
            if item.node.id in around._visited:
                continue
            around._visited.add(item.node.id)
            if len(around.related) < cap:
                around.related.append(item)
                reached.append(item.node.id)
            else:
                around.omitted += 1
    around._frontier = reached if len(around.related) < cap else []
