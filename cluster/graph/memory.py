"""The graph store in memory: the twin that unit tests run on, held to the same contract as the one on disk."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import deepcopy
from dataclasses import replace

from cluster import guards
from cluster.errors import ConflictError
from cluster.graph import batches
from cluster.graph.batches import EdgeKey
from cluster.model.access import ApiKey
from cluster.model.guard import Guard
from cluster.model.nodes import Edge, Node, Related
from cluster.ports import Change, FileState, Present, Project, Receipt, WriteBatch


class MemoryGraphStore:
    """A `GraphStore` of one process, gone with it. Safe to use from several threads."""

    def __init__(self, *, account: str) -> None:
        self._gate = batches.AccountGate(account)
        self._lock = threading.RLock()
        self._nodes: dict[str, Node] = {}
        self._edges: dict[EdgeKey, Edge] = {}
        self._outgoing: dict[str, set[EdgeKey]] = {}
        self._incoming: dict[str, set[EdgeKey]] = {}
        self._files: dict[tuple[str, str, str], FileState] = {}
        self._projects: dict[tuple[str, str], Project] = {}
        self._keys: dict[str, ApiKey] = {}
        self._receipts: dict[str, Receipt] = {}
        self._feed: list[Change] = []

    @property
    def rejected_writes(self) -> int:
        """Writes refused because they held another account."""
        return self._gate.rejected

    def write(self, batch: WriteBatch) -> int:
        self._gate.check(batches.accounts_of(batch))
        batch = batches.clean_batch(batch)
        with self._lock:
            plan = self._planned(batch)
            self._apply(plan)
            for key in batch.forget_files:
                self._files.pop(key, None)
            self._files.update(((file.account, file.project, file.path), file) for file in batch.files)
            self._projects.update(((project.account, project.project), project) for project in batch.projects)
            if batch.receipts:
                self._receipts = {key: known for key, known in self._receipts.items() if known.expires_at > batch.now}
                self._receipts.update((receipt.key, receipt) for receipt in batch.receipts)
            return self.revision()

    def transact(self, ids: Sequence[str], receipt: str, decide: Callable[[Present], WriteBatch | None]) -> int:
        with self._lock:
            present = Present(revision=self.revision(), nodes=self.get_nodes(ids), receipt=self._receipts.get(receipt))
            batch = decide(present)
            return self.revision() if batch is None else self.write(batch)

    def _planned(self, batch: WriteBatch) -> batches.Plan:
        paths = set(batch.replace_paths)
        nodes = {key: self._nodes[key] for key in batches.touched_ids(batch) if key in self._nodes}
        if paths:
            nodes.update((key, node) for key, node in self._nodes.items() if batches.is_derived_from(node, paths))
        edges = {key: self._edges[key] for key in batches.touched_edges(batch) if key in self._edges}
        edges.update(self._edges_from(batches.removed_ids(batch, nodes)))
        batches.load_contained(
            batch,
            nodes,
            edges,
            lambda ids: {key: self._nodes[key] for key in ids if key in self._nodes},
            self._edges_from,
        )
        return batches.plan(batch, nodes, edges)

    def _edges_from(self, ids: Iterable[str]) -> dict[EdgeKey, Edge]:
        return {key: self._edges[key] for from_id in ids for key in self._outgoing.get(from_id, ())}

    def _apply(self, plan: batches.Plan) -> None:
        revision = self.revision() + 1
        for removed in plan.drop_nodes:
            del self._nodes[removed]
        self._nodes.update((node.id, replace(node, revision=revision)) for node in plan.put_nodes)
        for key in plan.drop_edges:
            del self._edges[key]
            self._outgoing[key[0]].discard(key)
            self._incoming[key[2]].discard(key)
        for edge in plan.put_edges:
            key = batches.edge_key(edge)
            self._edges[key] = edge
            self._outgoing.setdefault(edge.from_id, set()).add(key)
            self._incoming.setdefault(edge.to_id, set()).add(key)
        self._feed.extend(Change(revision=revision, kind=kind, subject=subject) for kind, subject in plan.feed)

    def revision(self) -> int:
        with self._lock:
            return self._feed[-1].revision if self._feed else 0

    def changes(self, since: int, limit: int = 10_000) -> list[Change]:
        limit = max(1, limit)
        with self._lock:
            entries = [change for change in self._feed if change.revision > since]
        if len(entries) <= limit:
            return entries
        # The revision that the limit would cut is left for the next call, unless it is the first: then it comes whole.
        cut = max(entries[limit].revision, entries[0].revision + 1)
        return [change for change in entries if change.revision < cut]

    def get_nodes(self, ids: Sequence[str], guard: Guard | None = None) -> dict[str, Node]:
        with self._lock:
            found = {key: self._nodes[key] for key in ids if key in self._nodes}
        return {key: batches.copied(node) for key, node in found.items() if guard is None or guards.allows(guard, node)}

    def scan(self, guard: Guard) -> Iterator[Node]:
        with self._lock:
            snapshot = sorted(self._nodes.items())
        for _, node in snapshot:
            if guards.allows(guard, node):
                yield batches.copied(node)

    def count(self, guard: Guard) -> int:
        with self._lock:
            return sum(guards.allows(guard, node) for node in self._nodes.values())

    def neighbours(self, ids: Sequence[str], guard: Guard, limit: int) -> tuple[dict[str, list[Related]], dict[str, int]]:
        limit = max(0, limit)
        shown: dict[str, list[Related]] = {}
        omitted: dict[str, int] = {}
        with self._lock:
            for asked in dict.fromkeys(ids):
                related = sorted(self._related(asked, guard), key=lambda item: (item.edge.type, item.direction, item.node.id))
                shown[asked] = related[:limit]
                omitted[asked] = max(0, len(related) - limit)
        return shown, omitted

    def _related(self, asked: str, guard: Guard) -> Iterable[Related]:
        ends = [(key, "outgoing", key[2]) for key in self._outgoing.get(asked, ())]
        # An edge from a node to itself is one relation, not two.
        ends += [(key, "incoming", key[0]) for key in self._incoming.get(asked, ()) if key[0] != asked]
        for key, direction, other in ends:
            node = self._nodes.get(other)
            if node is not None and guards.allows(guard, node):
                yield Related(edge=deepcopy(self._edges[key]), direction=direction, node=batches.copied(node))

    def crowded(self, ids: Sequence[str], most: int) -> bool:
        with self._lock:
            return sum(len(ends.get(asked, ())) for asked in set(ids) for ends in (self._outgoing, self._incoming)) > most

    def edges(self, account: str, project: str) -> Iterator[Edge]:
        with self._lock:
            snapshot = sorted(self._edges.items())
        for _, edge in snapshot:
            if (edge.account, edge.project) == (account, project):
                yield deepcopy(edge)

    def files(self, account: str, project: str) -> dict[str, FileState]:
        with self._lock:
            return {
                path: deepcopy(file)
                for (owner, name, path), file in sorted(self._files.items(), key=lambda item: item[0])
                if (owner, name) == (account, project)
            }

    def projects(self, account: str) -> list[Project]:
        with self._lock:
            return [project for (owner, _), project in sorted(self._projects.items()) if owner == account]

    def put_key(self, key: ApiKey) -> None:
        self._gate.check((key.principal.account,))
        key = batches.clean_key(key)
        with self._lock:
            if any(other.secret_hash == key.secret_hash and other.key_id != key.key_id for other in self._keys.values()):
                raise ConflictError("another API key has the same secret")
            self._keys[key.key_id] = key

    def find_key(self, secret_hash: str) -> ApiKey | None:
        with self._lock:
            return next((key for key in self._keys.values() if key.secret_hash == secret_hash), None)

    def keys(self, account: str) -> list[ApiKey]:
        with self._lock:
            mine = [key for key in self._keys.values() if key.principal.account == account]
        return sorted(mine, key=lambda key: (key.created_at, key.key_id))

    def revoke_key(self, account: str, key_id: str, now: int) -> bool:
        self._gate.check((account,))
        with self._lock:
            key = self._keys.get(key_id)
            if key is None or key.principal.account != account or key.revoked_at is not None:
                return False
            self._keys[key_id] = replace(key, revoked_at=now)
            return True

    def close(self) -> None:
        """Nothing to release."""
