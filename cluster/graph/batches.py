"""What a write batch does, worked out without a database.

Every graph store admits, cleans and plans a batch with the functions here, so that "nothing changed", "removed with its edges"
and "another account" mean the same in each; a store only loads what `touched_ids`, `touched_edges` and `removed_ids` name, and
stores what `plan` returns.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from copy import deepcopy
from dataclasses import dataclass, fields, replace
from operator import attrgetter
from typing import Any, TypeAlias

import orjson

from cluster.errors import ForbiddenError, UsageError
from cluster.model.access import ApiKey
from cluster.model.ids import parse_name
from cluster.model.nodes import Edge, Node, Source, Store
from cluster.ports import FileState, Receipt, WriteBatch

logger = logging.getLogger(__name__)

#: (from, type, to)
EdgeKey: TypeAlias = tuple[str, str, str]
#: (account, project, path)
PathKey: TypeAlias = tuple[str, str, str]

_INT64 = range(-(2**63), 2**63)

#: Types of the edges from a node to its parts: what becomes of the one becomes of the others.
CONTAINMENT = frozenset({"HAS_SECTION", "HAS_CHUNK", "DEFINES"})

#: Levels of containers in a JSON value.
_MAX_DEPTH = 100

#: What makes two versions of a node the same: everything but the revision.
_content = attrgetter(*(item.name for item in fields(Node) if item.name != "revision"))


class AccountGate:
    """Lets the writes of one account pass; refuses, counts and logs all others.

    The read guards hide what belongs to another account; only a check on the writing side keeps it from being stored at all.
    """

    def __init__(self, account: str) -> None:
        self.account = parse_name(account, "account")
        self._lock = threading.Lock()
        self._rejected = 0

    @property
    def rejected(self) -> int:
        """Writes refused so far."""
        return self._rejected

    def check(self, accounts: Iterable[str]) -> None:
        """Raises ForbiddenError when one of `accounts` is not the gate's own."""
        for account in accounts:
            if account != self.account:
                raise self.refusal(account)

    def check_stored(self, batch: WriteBatch, nodes: Mapping[str, Node], edges: Mapping[EdgeKey, Edge]) -> None:
        """Raises ForbiddenError when `batch` would write over another account's stored node or edge."""
        self.check(nodes[node.id].account for node in batch.nodes if node.id in nodes)
        self.check(edges[edge_key(edge)].account for edge in batch.edges if edge_key(edge) in edges)

    def refusal(self, account: str) -> ForbiddenError:
        with self._lock:
            self._rejected += 1
        logger.error(
            "write rejected, it holds another account",
            extra={"action": "write_rejected", "reason": "invalid-account-id", "account": clean_text(account)[:100]},
        )
        return ForbiddenError("the write holds an account that this store is not open for", field="account")


def accounts_of(batch: WriteBatch) -> set[str]:
    """Every account that `batch` names."""
    return {
        *(account for account, _, _ in (*batch.replace_paths, *batch.forget_files)),
        *(node.account for node in batch.nodes),
        *(edge.account for edge in batch.edges),
        *(file.account for file in batch.files),
        *(project.account for project in batch.projects),
        *(receipt.account for receipt in batch.receipts),
    }


# --- cleaning ----------------------------------------------------------------------------------------------------------------


def clean_text(text: str) -> str:
    """`text` with every lone surrogate as U+FFFD and every surrogate pair as the one character that it stands for.

    No UTF-8 store can hold half a pair. NUL and every other character stay.
    """
    if text.isascii():  # known without looking at the characters, and true of most
        return text
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def _clean_name(name: str) -> str:
    # SQLite's json_each ends a string at NUL, so that a list item "iris\0x" would pass for "iris": NUL leaves guard lists.
    return clean_text(name).replace("\0", "\ufffd")


def clean_json(value: Mapping[str, Any], field: str) -> dict[str, Any]:
    """A deep copy of `value` as JSON holds it, with cleaned text.

    Raises UsageError naming `field` for what is not JSON, NaN, infinity, whole numbers over 64 bits and deep nesting.
    """
    if not value:
        return {}
    cleaned: dict[str, Any] = _clean_value(dict(value), field, _MAX_DEPTH)
    return cleaned


def _clean_value(value: Any, field: str, depth: int) -> Any:
    kind = type(value)
    if kind is str and value.isascii():  # most of what there is, hence first
        return value
    if kind is list and depth:
        return [_clean_value(item, field, depth - 1) for item in value]
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return clean_text(str.__str__(value))
    if isinstance(value, int):
        return _int64(value, field)
    if isinstance(value, float) and math.isfinite(value):
        return float(value)
    if isinstance(value, Mapping | list | tuple) and depth:
        if not isinstance(value, Mapping):
            return [_clean_value(item, field, depth - 1) for item in value]
        if all(isinstance(name, str) for name in value):
            return {clean_text(str.__str__(name)): _clean_value(item, field, depth - 1) for name, item in value.items()}
    raise UsageError(
        f"{field} must be JSON, with numbers that are finite and within 64 bits, nested at most {_MAX_DEPTH} deep: "
        f"{type(value).__name__}",
        field=field,
    )


def json_text(value: Mapping[str, Any]) -> str:
    """Clean `value` as canonical JSON: equal text, equal value, types included."""
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode() if value else "{}"


def clean_batch(batch: WriteBatch) -> WriteBatch:
    """`batch` as it will be stored. Raises UsageError for a value that cannot be."""
    return replace(
        batch,
        replace_paths=tuple(_clean_key(key) for key in batch.replace_paths),
        nodes=tuple(clean_node(node) for node in batch.nodes),
        remove_edges=tuple(_clean_key(key) for key in batch.remove_edges),
        edges=tuple(_clean_edge(edge) for edge in batch.edges),
        soft_delete=tuple(clean_text(item) for item in batch.soft_delete),
        restore=tuple(clean_text(item) for item in batch.restore),
        purge=tuple(clean_text(item) for item in batch.purge),
        forget_files=tuple(_clean_key(key) for key in batch.forget_files),
        files=tuple(_clean_file(file) for file in batch.files),
        projects=tuple(
            replace(
                project,
                project=clean_text(project.project),
                root=clean_text(project.root),
                commit=_clean_optional(project.commit),
                indexed_at=_int64(project.indexed_at, "indexed_at"),
            )
            for project in batch.projects
        ),
        receipts=tuple(map(_clean_receipt, batch.receipts)),
        now=_int64(batch.now, "now"),
    )


def clean_node(node: Node) -> Node:
    """`node` as it will be stored. Raises UsageError for a value that cannot be."""
    return Node(  # written out, for `replace` takes five times as long
        id=clean_text(node.id),
        account=node.account,
        project=clean_text(node.project),
        store=node.store,
        labels=tuple(map(_clean_name, node.labels)),
        text={clean_text(name): clean_text(value) for name, value in node.text.items()},
        properties=clean_json(node.properties, "properties"),
        scope=node.scope,
        agents=None if node.agents is None else tuple(map(_clean_name, node.agents)),
        keywords=tuple(map(clean_text, node.keywords)),
        visibility=node.visibility,
        owner_agent=_clean_optional(node.owner_agent),
        shared_with=tuple(map(_clean_name, node.shared_with)),
        admission=node.admission,
        status=_clean_optional(node.status),
        confidence=_fraction(node.confidence, "confidence"),
        created_at=_int64(node.created_at, "created_at"),
        last_confirmed_at=_optional_int64(node.last_confirmed_at, "last_confirmed_at"),
        deleted_at=_optional_int64(node.deleted_at, "deleted_at"),
        source=_clean_source(node.source),
        content_hash=clean_text(node.content_hash),
        revision=node.revision,
    )


def clean_key(key: ApiKey) -> ApiKey:
    """`key` as it will be stored."""
    principal = key.principal
    return replace(
        key,
        key_id=clean_text(key.key_id),
        name=clean_text(key.name),
        secret_hash=clean_text(key.secret_hash),
        principal=replace(
            principal,
            key_id=clean_text(principal.key_id),
            agent=_clean_optional(principal.agent),
            projects=None if principal.projects is None else frozenset(map(clean_text, principal.projects)),
            teams=frozenset(map(clean_text, principal.teams)),
        ),
        created_at=_int64(key.created_at, "created_at"),
        revoked_at=_optional_int64(key.revoked_at, "revoked_at"),
    )


def _clean_source(source: Source | None) -> Source | None:
    if source is None:
        return None
    return Source(
        repository=clean_text(source.repository),
        path=clean_text(source.path),
        start_line=_optional_int64(source.start_line, "start_line"),
        end_line=_optional_int64(source.end_line, "end_line"),
        commit=_clean_optional(source.commit),
    )


def _clean_edge(edge: Edge) -> Edge:
    return Edge(
        from_id=clean_text(edge.from_id),
        type=clean_text(edge.type),
        to_id=clean_text(edge.to_id),
        account=edge.account,
        project=clean_text(edge.project),
        properties=clean_json(edge.properties, "properties"),
    )


def _clean_file(file: FileState) -> FileState:
    return replace(
        file,
        project=clean_text(file.project),
        path=clean_text(file.path),
        content_hash=clean_text(file.content_hash),
        extractor=clean_text(file.extractor),
        facts=clean_json(file.facts, "facts"),
    )


def _clean_receipt(receipt: Receipt) -> Receipt:
    return Receipt(
        account=receipt.account,
        key=clean_text(receipt.key),
        fingerprint=clean_text(receipt.fingerprint),
        answer=clean_text(receipt.answer),
        expires_at=_int64(receipt.expires_at, "expires_at"),
    )


def _clean_key(key: tuple[str, str, str]) -> tuple[str, str, str]:
    first, second, third = key
    return clean_text(first), clean_text(second), clean_text(third)


def _clean_optional(text: str | None) -> str | None:
    return None if text is None else clean_text(text)


def _optional_int64(value: int | None, field: str) -> int | None:
    return None if value is None else _int64(value, field)


def _int64(value: int, field: str) -> int:
    if value not in _INT64:
        raise UsageError(f"{field} must be a whole number of 64 bits: {value!r}", field=field)
    return int(value)


def _fraction(value: float | None, field: str) -> float | None:
    if value is None:
        return None
    if not 0 <= value <= 1:  # also false for NaN
        raise UsageError(f"{field} must be between 0 and 1: {value!r}", field=field)
    return float(value)


# --- planning ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The net effect of a batch on nodes and edges: what it changes twice, or back again, counts once or not at all."""

    put_nodes: tuple[Node, ...]
    drop_nodes: tuple[str, ...]
    put_edges: tuple[Edge, ...]
    drop_edges: tuple[EdgeKey, ...]
    #: (kind, subject), at most one a subject: nodes by id, then edges by key.
    feed: tuple[tuple[str, str], ...]


def edge_key(edge: Edge) -> EdgeKey:
    return edge.from_id, edge.type, edge.to_id


def touched_ids(batch: WriteBatch) -> list[str]:
    """Ids of the nodes that `batch` names one by one."""
    return list(dict.fromkeys((*(node.id for node in batch.nodes), *batch.soft_delete, *batch.restore, *batch.purge)))


def touched_edges(batch: WriteBatch) -> list[EdgeKey]:
    """Keys of the edges that `batch` names one by one."""
    return list(dict.fromkeys((*batch.remove_edges, *map(edge_key, batch.edges))))


def is_derived_from(node: Node, paths: Set[PathKey]) -> bool:
    """Whether a job made `node` from one of `paths`. What agents wrote about a path is not derived from it."""
    source = node.source
    return node.store is Store.STRUCTURE and source is not None and (node.account, node.project, source.path) in paths


def removed_ids(batch: WriteBatch, nodes: Mapping[str, Node]) -> list[str]:
    """Ids whose outgoing edges `plan` needs to know: those of `nodes` that are replaced by nothing, and the purged ones."""
    return [*_replaced(batch, nodes), *batch.purge]


def load_contained(
    batch: WriteBatch,
    nodes: dict[str, Node],
    edges: dict[EdgeKey, Edge],
    load_nodes: Callable[[Sequence[str]], Mapping[str, Node]],
    load_edges_from: Callable[[Sequence[str]], Mapping[EdgeKey, Edge]],
) -> None:
    """Adds to `nodes` and `edges` what the nodes that `batch` marks as deleted or restores may contain, level by level."""
    seen: set[str] = set()
    level = {*batch.soft_delete, *batch.restore}
    while level:
        seen |= level
        edges.update(load_edges_from(sorted(level)))
        keys = (*edges, *map(edge_key, batch.edges))
        below = {to_id for from_id, kind, to_id in keys if from_id in level and kind in CONTAINMENT}
        nodes.update(load_nodes(sorted(below - nodes.keys())))
        level = below - seen


def plan(batch: WriteBatch, nodes: Mapping[str, Node], edges: Mapping[EdgeKey, Edge]) -> Plan:
    """The net effect of a clean `batch`.

    `nodes`: what is stored under `touched_ids` and what is derived from `replace_paths`. `edges`: what is stored under
    `touched_edges` and what leaves `removed_ids`. Both with what `load_contained` adds; neither holds anything of another
    account.
    """
    after_nodes, after_edges = dict(nodes), dict(edges)
    _remove(after_nodes, after_edges, _replaced(batch, nodes))
    after_nodes.update((node.id, node) for node in batch.nodes)
    for key in batch.remove_edges:
        after_edges.pop(key, None)
    after_edges.update((edge_key(edge), edge) for edge in batch.edges)
    if batch.soft_delete or batch.restore:
        _mark(after_nodes, after_edges, batch)
    _remove(after_nodes, after_edges, batch.purge)

    put_nodes = [node for key, node in sorted(after_nodes.items()) if not same_node(nodes.get(key), node)]
    put_edges = [edge for key, edge in sorted(after_edges.items()) if not _same_edge(edges.get(key), edge)]
    drop_nodes = sorted(nodes.keys() - after_nodes.keys())
    drop_edges = sorted(edges.keys() - after_edges.keys())
    node_feed = [(node.id, "node_written" if node.deleted_at is None else "node_deleted") for node in put_nodes]
    node_feed += [(key, "node_removed") for key in drop_nodes]
    edge_feed = [(edge_key(edge), "edge_written") for edge in put_edges] + [(key, "edge_removed") for key in drop_edges]
    feed = [(kind, key) for key, kind in sorted(node_feed)] + [(kind, "\x1f".join(key)) for key, kind in sorted(edge_feed)]
    return Plan(
        put_nodes=tuple(put_nodes),
        drop_nodes=tuple(drop_nodes),
        put_edges=tuple(put_edges),
        drop_edges=tuple(drop_edges),
        feed=tuple(feed),
    )


def _replaced(batch: WriteBatch, nodes: Mapping[str, Node]) -> list[str]:
    paths, kept = set(batch.replace_paths), {node.id for node in batch.nodes}
    return [key for key, node in nodes.items() if key not in kept and is_derived_from(node, paths)]


def _remove(nodes: dict[str, Node], edges: dict[EdgeKey, Edge], ids: Iterable[str]) -> None:
    gone = set(ids)
    if not gone:
        return
    for key in gone:
        nodes.pop(key, None)
    for edge in [edge for edge in edges if edge[0] in gone]:
        del edges[edge]


def _mark(nodes: dict[str, Node], edges: Iterable[EdgeKey], batch: WriteBatch) -> None:
    """Marks what is deleted with all that it contains, and takes the marks of that same deletion away where it is restored.

    What had been deleted before keeps its own mark, and so stays deleted when what contains it is restored.
    """
    below: dict[str, list[str]] = {}
    for from_id, kind, to_id in edges:
        if kind in CONTAINMENT:
            below.setdefault(from_id, []).append(to_id)
    for root in batch.soft_delete:
        if root in nodes:
            known = nodes[root].deleted_at
            _remark(nodes, _contained(root, nodes, below), None, batch.now if known is None else known)
    for root in batch.restore:
        if root in nodes and nodes[root].deleted_at is not None:
            _remark(nodes, _contained(root, nodes, below), nodes[root].deleted_at, None)


def _remark(nodes: dict[str, Node], ids: Iterable[str], old: int | None, new: int | None) -> None:
    for key in ids:
        if nodes[key].deleted_at == old:
            nodes[key] = replace(nodes[key], deleted_at=new)


def _contained(root: str, nodes: Mapping[str, Node], below: Mapping[str, list[str]]) -> list[str]:
    """`root` and what it contains at any depth, within its own project and store: nobody deletes another's by an edge to it."""
    home = _home(nodes[root])
    found = dict.fromkeys([root])
    waiting = [root]
    while waiting:
        inside = [key for key in below.get(waiting.pop(), ()) if key not in found and key in nodes]
        waiting += (mine := [key for key in inside if _home(nodes[key]) == home])
        found.update(dict.fromkeys(mine))
    return list(found)


def _home(node: Node) -> tuple[str, str, Store]:
    return node.account, node.project, node.store


def same_node(old: Node | None, new: Node) -> bool:
    """Whether storing the clean `new` over `old` changes nothing."""
    return old is new or (old is not None and _content(old) == _content(new) and _same_json(old.properties, new.properties))


def _same_edge(old: Edge | None, new: Edge) -> bool:
    return old is new or (old is not None and old == new and _same_json(old.properties, new.properties))


def _same_json(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    # Python calls 1, 1.0 and True equal; JSON does not.
    return json_text(old) == json_text(new)


def copied(node: Node) -> Node:
    """`node` with containers of its own, so that nobody who changes them changes what a store holds in memory."""
    return replace(node, text=dict(node.text), properties=deepcopy(dict(node.properties)))
