"""Records of the Neo4j graph store: the one place that knows which property holds which field.

Texts that the indexes know are properties of their own, so that Neo4j can index them too; all others are one JSON text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, TypeAlias

import orjson

from cluster.graph.batches import EdgeKey, json_text
from cluster.model.access import ApiKey, Principal, Role
from cluster.model.nodes import Admission, Edge, Node, Scope, Source, Store, Visibility
from cluster.ports import FileState, Project, Receipt

Record: TypeAlias = Mapping[str, Any]

TEXTS = ("title", "path", "symbol", "summary", "content")


def node_record(node: Node, revision: int) -> dict[str, Any]:
    """The properties of a clean `node` that `revision` writes; what is None is no property."""
    source = node.source
    other = {name: value for name, value in node.text.items() if name not in TEXTS}
    fields = {
        "id": node.id,
        "account": node.account,
        "project": node.project,
        "store": node.store.value,
        "labels": list(node.labels),
        **{name: node.text[name] for name in TEXTS if name in node.text},
        "text": json_text(other) if other else None,
        "properties": json_text(node.properties) if node.properties else None,
        "scope": node.scope and node.scope.value,
        "agents": None if node.agents is None else list(node.agents),
        "keywords": list(node.keywords) or None,
        "visibility": node.visibility and node.visibility.value,
        "owner_agent": node.owner_agent,
        "shared_with": list(node.shared_with),
        "admission": node.admission and node.admission.value,
        "status": node.status,
        "confidence": node.confidence,
        "created_at": node.created_at,
        "last_confirmed_at": node.last_confirmed_at,
        "deleted_at": node.deleted_at,
        "source_repository": source and source.repository,
        "source_path": source and source.path,
        "source_start_line": source and source.start_line,
        "source_end_line": source and source.end_line,
        "source_commit": source and source.commit,
        "content_hash": node.content_hash,
        "revision": revision,
    }
    record = {name: value for name, value in fields.items() if value is not None}
    record["checksum"] = _checksum(record)
    return record


def is_whole(record: Record) -> bool:
    """Whether `record` is one that `node_record` made.

    Neo4j isolates at read committed: who reads while a write is being applied may see some properties of the new version and
    some of the old one, for example new content beside the old tags.
    """
    fields = dict(record)
    return bool(fields.pop("checksum", None) == _checksum(fields))


def _checksum(record: Record) -> str:
    return hashlib.blake2b(orjson.dumps(record, option=orjson.OPT_SORT_KEYS), digest_size=8).hexdigest()


def to_node(record: Record) -> Node:
    """The node of the properties that `node_record` makes."""
    get, path = record.get, record.get("source_path")
    text = {name: record[name] for name in TEXTS if name in record}
    if "text" in record:
        text |= orjson.loads(record["text"])
    source = None
    if path is not None:
        source = Source(
            repository=record["source_repository"],
            path=path,
            start_line=get("source_start_line"),
            end_line=get("source_end_line"),
            commit=get("source_commit"),
        )
    agents, scope, visibility, admission = get("agents"), get("scope"), get("visibility"), get("admission")
    return Node(
        id=record["id"],
        account=record["account"],
        project=record["project"],
        store=Store(record["store"]),
        labels=tuple(record["labels"]),
        text=text,
        properties=orjson.loads(get("properties", "{}")),
        scope=None if scope is None else Scope(scope),
        agents=None if agents is None else tuple(agents),
        keywords=tuple(get("keywords", ())),
        visibility=None if visibility is None else Visibility(visibility),
        owner_agent=get("owner_agent"),
        shared_with=tuple(record["shared_with"]),
        admission=None if admission is None else Admission(admission),
        status=get("status"),
        confidence=get("confidence"),
        created_at=record["created_at"],
        last_confirmed_at=get("last_confirmed_at"),
        deleted_at=get("deleted_at"),
        source=source,
        content_hash=record["content_hash"],
        revision=record["revision"],
    )


def edge_record(edge: Edge) -> dict[str, Any]:
    """The ends of a clean `edge`, and the properties of its relationship."""
    held = {"type": edge.type, "account": edge.account, "project": edge.project, "properties": json_text(edge.properties)}
    return {"from_id": edge.from_id, "to_id": edge.to_id, "edge": held}


def to_edge(record: Record) -> Edge:
    """The edge of a row of (from_id, to_id, edge)."""
    held = record["edge"]
    return Edge(
        from_id=record["from_id"],
        type=held["type"],
        to_id=record["to_id"],
        account=held["account"],
        project=held["project"],
        properties=orjson.loads(held["properties"]),
    )


def edge_keys(subject: str) -> list[EdgeKey]:
    """The keys that the feed's `subject` may stand for: one, unless an id holds the separator itself."""
    parts = subject.split("\x1f")
    return [
        ("\x1f".join(parts[:first]), "\x1f".join(parts[first:second]), "\x1f".join(parts[second:]))
        for first in range(1, len(parts) - 1)
        for second in range(first + 1, len(parts))
    ]


def file_record(file: FileState) -> dict[str, Any]:
    return {
        "account": file.account,
        "project": file.project,
        "path": file.path,
        "content_hash": file.content_hash,
        "extractor": file.extractor,
        "facts": json_text(file.facts),
    }


def to_file(record: Record) -> FileState:
    return FileState(**{**record, "facts": orjson.loads(record["facts"])})


def project_record(project: Project) -> dict[str, Any]:
    return {
        "account": project.account,
        "project": project.project,
        "root": project.root,
        "commit": project.commit,
        "indexed_at": project.indexed_at,
    }


def to_project(record: Record) -> Project:
    return Project(**{"commit": None, **record})


def receipt_record(receipt: Receipt) -> dict[str, Any]:
    return {
        "account": receipt.account,
        "key": receipt.key,
        "fingerprint": receipt.fingerprint,
        "answer": receipt.answer,
        "expires_at": receipt.expires_at,
    }


def to_receipt(record: Record) -> Receipt:
    return Receipt(**record)


def key_record(key: ApiKey) -> dict[str, Any]:
    """The properties of a clean `key`."""
    principal = key.principal
    return {
        "key_id": key.key_id,
        "account": principal.account,
        "name": key.name,
        "secret_hash": key.secret_hash,
        "principal_key_id": principal.key_id,
        "role": principal.role.value,
        "agent": principal.agent,
        "scopes": None if principal.scopes is None else sorted(scope.value for scope in principal.scopes),
        "projects": None if principal.projects is None else sorted(principal.projects),
        "teams": sorted(principal.teams),
        "created_at": key.created_at,
        "revoked_at": key.revoked_at,
    }


def to_key(record: Record) -> ApiKey:
    scopes, projects = record.get("scopes"), record.get("projects")
    return ApiKey(
        key_id=record["key_id"],
        name=record["name"],
        secret_hash=record["secret_hash"],
        principal=Principal(
            account=record["account"],
            key_id=record["principal_key_id"],
            role=Role(record["role"]),
            agent=record.get("agent"),
            scopes=None if scopes is None else frozenset(map(Scope, scopes)),
            projects=None if projects is None else frozenset(projects),
            teams=frozenset(record["teams"]),
        ),
        created_at=record["created_at"],
        revoked_at=record.get("revoked_at"),
    )
