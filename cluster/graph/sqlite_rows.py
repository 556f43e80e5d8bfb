"""Rows of the SQLite graph store: the one place that knows which column holds which field."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any, TypeAlias

import orjson

from cluster.graph.batches import json_text
from cluster.model.access import ApiKey, Principal, Role
from cluster.model.nodes import Admission, Edge, Node, Scope, Source, Store, Visibility
from cluster.ports import Change, FileState, Project, Receipt

Row: TypeAlias = Sequence[Any]

NODE_COLUMNS = (
    "id",
    "account",
    "project",
    "store",
    "labels",
    "text",
    "properties",
    "scope",
    "agents",
    "keywords",
    "visibility",
    "owner_agent",
    "shared_with",
    "admission",
    "status",
    "confidence",
    "created_at",
    "last_confirmed_at",
    "deleted_at",
    "source_repository",
    "source_path",
    "source_start_line",
    "source_end_line",
    "source_commit",
    "content_hash",
    "revision",
)
EDGE_COLUMNS = ("from_id", "type", "to_id", "account", "project", "properties")
KEY_COLUMNS = (
    "key_id",
    "account",
    "name",
    "secret_hash",
    "principal_key_id",
    "role",
    "agent",
    "scopes",
    "projects",
    "teams",
    "created_at",
    "revoked_at",
)

# A dictionary's lookup costs a quarter of calling the enumeration, and a node has four of them.
_STORES = {item.value: item for item in Store}
_SCOPES: dict[str | None, Scope | None] = {None: None, **{item.value: item for item in Scope}}
_VISIBILITIES: dict[str | None, Visibility | None] = {None: None, **{item.value: item for item in Visibility}}
_ADMISSIONS: dict[str | None, Admission | None] = {None: None, **{item.value: item for item in Admission}}


def node_row(node: Node, revision: int) -> tuple[Any, ...]:
    """The values of NODE_COLUMNS for a clean `node` that `revision` writes."""
    source = node.source
    where = (
        (None,) * 5 if source is None else (source.repository, source.path, source.start_line, source.end_line, source.commit)
    )
    return (
        node.id,
        node.account,
        node.project,
        node.store.value,
        _list(node.labels),
        json_text(node.text),
        json_text(node.properties),
        node.scope and node.scope.value,
        None if node.agents is None else _list(node.agents),
        _list(node.keywords),
        node.visibility and node.visibility.value,
        node.owner_agent,
        _list(node.shared_with),
        node.admission and node.admission.value,
        node.status,
        node.confidence,
        node.created_at,
        node.last_confirmed_at,
        node.deleted_at,
        *where,
        node.content_hash,
        revision,
    )


def to_node(row: Row) -> Node:
    """The node of a row of NODE_COLUMNS."""
    properties, source = row[6], None
    if row[20] is not None:
        source = Source(repository=row[19], path=row[20], start_line=row[21], end_line=row[22], commit=row[23])
    return Node(
        id=row[0],
        account=row[1],
        project=row[2],
        store=_STORES[row[3]],
        labels=_strings(row[4]),
        text=orjson.loads(row[5]),
        properties={} if properties == "{}" else orjson.loads(properties),
        scope=_SCOPES[row[7]],
        agents=None if row[8] is None else _strings(row[8]),
        keywords=_strings(row[9]),
        visibility=_VISIBILITIES[row[10]],
        owner_agent=row[11],
        shared_with=_strings(row[12]),
        admission=_ADMISSIONS[row[13]],
        status=row[14],
        confidence=row[15],
        created_at=row[16],
        last_confirmed_at=row[17],
        deleted_at=row[18],
        source=source,
        content_hash=row[24],
        revision=row[25],
    )


#: Longest list of strings, in characters of JSON, that is kept decoded.
_SHORT = 256
#: Columns with JSON, and what a decoded node takes beside the values of its row, in bytes.
_JSON = tuple(map(NODE_COLUMNS.index, ("labels", "properties", "agents", "keywords", "shared_with")))
_NODE_BYTES, _OBJECT_BYTES, _VALUE_BYTES = 1024, 256, 128


def node_bytes(row: Row) -> int:
    """Bytes of memory of the node of a row of NODE_COLUMNS, rather too many than too few, without decoding it.

    A text takes its characters in the width of its widest one; the values that JSON is decoded to take many times its own
    bytes, so that each sign that may begin one counts, in strings, too. In texts that would count too much: of them
    each field counts, by the signs around its colon, which no string has unescaped.
    """
    size: int = _NODE_BYTES + sum(map(sys.getsizeof, row)) + _OBJECT_BYTES * row[5].count('":"')
    for column in _JSON:
        value = row[column]
        if value is not None:
            size += _OBJECT_BYTES * (value.count("{") + value.count("["))
            size += _VALUE_BYTES * (value.count(",") + value.count(":"))
    return size


def edge_row(edge: Edge) -> tuple[Any, ...]:
    """The values of EDGE_COLUMNS for a clean `edge`."""
    return edge.from_id, edge.type, edge.to_id, edge.account, edge.project, json_text(edge.properties)


def to_edge(row: Row) -> Edge:
    """The edge of a row of EDGE_COLUMNS."""
    properties = {} if row[5] == "{}" else orjson.loads(row[5])
    return Edge(from_id=row[0], type=row[1], to_id=row[2], account=row[3], project=row[4], properties=properties)


def to_change(row: Row) -> Change:
    return Change(revision=row[0], kind=row[1], subject=row[2])


def file_row(file: FileState) -> tuple[Any, ...]:
    return file.account, file.project, file.path, file.content_hash, file.extractor, json_text(file.facts)


def to_file(row: Row) -> FileState:
    return FileState(
        account=row[0], project=row[1], path=row[2], content_hash=row[3], extractor=row[4], facts=orjson.loads(row[5])
    )


def project_row(project: Project) -> tuple[Any, ...]:
    return project.account, project.project, project.root, project.commit, project.indexed_at


def to_project(row: Row) -> Project:
    return Project(account=row[0], project=row[1], root=row[2], commit=row[3], indexed_at=row[4])


def receipt_row(receipt: Receipt) -> tuple[Any, ...]:
    return receipt.account, receipt.key, receipt.fingerprint, receipt.answer, receipt.expires_at


def to_receipt(row: Row) -> Receipt:
    return Receipt(account=row[0], key=row[1], fingerprint=row[2], answer=row[3], expires_at=row[4])


def key_row(key: ApiKey) -> tuple[Any, ...]:
    """The values of KEY_COLUMNS for a clean `key`."""
    principal = key.principal
    return (
        key.key_id,
        principal.account,
        key.name,
        key.secret_hash,
        principal.key_id,
        principal.role.value,
        principal.agent,
        None if principal.scopes is None else _list(sorted(principal.scopes)),
        None if principal.projects is None else _list(sorted(principal.projects)),
        _list(sorted(principal.teams)),
        key.created_at,
        key.revoked_at,
    )


def to_key(row: Row) -> ApiKey:
    """The key of a row of KEY_COLUMNS."""
    return ApiKey(
        key_id=row[0],
        name=row[2],
        secret_hash=row[3],
        principal=Principal(
            account=row[1],
            key_id=row[4],
            role=Role(row[5]),
            agent=row[6],
            scopes=None if row[7] is None else frozenset(map(Scope, _strings(row[7]))),
            projects=None if row[8] is None else frozenset(_strings(row[8])),
            teams=frozenset(_strings(row[9])),
        ),
        created_at=row[10],
        revoked_at=row[11],
    )


def _list(items: Iterable[str]) -> str:
    return orjson.dumps([str(item) for item in items]).decode()


def _strings(value: str) -> tuple[str, ...]:
    # Few and short ones are in most nodes; long ones would make a number of them no bound of memory.
    return _few_strings(value) if len(value) <= _SHORT else tuple(orjson.loads(value))


@lru_cache(maxsize=4096)
def _few_strings(value: str) -> tuple[str, ...]:
    return tuple(orjson.loads(value))
