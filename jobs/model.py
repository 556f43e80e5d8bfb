"""What the ingest job's parts hand to each other: the file at hand, and what was found in it.

Ids made here depend on the account, the project, the path and the thing's own name or ordinal; never on the commit, the time
or a line number. So what did not change keeps its id, and with it its vectors and its place in the index.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cluster.model.ids import derived_id
from cluster.model.nodes import Edge, Json, Node, Source, Store

DOCUMENT = "Document"
SECTION = "Section"
CHUNK = "Chunk"
SYMBOL = "Symbol"

HAS_SECTION = "HAS_SECTION"
HAS_CHUNK = "HAS_CHUNK"
DEFINES = "DEFINES"
IMPORTS = "IMPORTS"
CALLS = "CALLS"
REFERENCES = "REFERENCES"


@dataclass(frozen=True, slots=True)
class FileContext:
    """The file that is being extracted, and the run that does it."""

    account: str
    project: str
    #: Name of the repository, as it is to be cited.
    repository: str
    #: Path inside the repository, "/" between segments; encodable as UTF-8.
    path: str
    #: Checked-out commit, 40 hex digits; None outside git or before the first commit.
    commit: str | None
    #: Milliseconds since the epoch.
    now: int
    #: Longest content of one row, in code points.
    max_chars: int = 1200


@dataclass(frozen=True, slots=True)
class Extracted:
    """What one file holds."""

    nodes: tuple[Node, ...] = ()
    #: Containment inside this file. Edges to other files come from linking.
    edges: tuple[Edge, ...] = ()
    #: What linking and later runs need of this file; JSON only. Empty for a file that links to nothing.
    facts: Mapping[str, Json] = field(default_factory=dict)
    #: Sentences for the report; each says what was odd about this file.
    warnings: tuple[str, ...] = ()


def document_id(context: FileContext) -> str:
    """The id of the file's Document node."""
    return node_id(context, DOCUMENT)


def node_id(context: FileContext, kind: str, *key: str) -> str:
    """The id of the thing of this file that is called `key` among those of `kind`."""
    return derived_id(context.account, context.project, kind, context.path, *key)


def make_node(
    context: FileContext,
    id_: str,
    labels: tuple[str, ...],
    text: Mapping[str, str],
    properties: Mapping[str, Json],
    lines: tuple[int, int] | None,
) -> Node:
    """A structure node of this file. Blank text properties are left out; `lines` counts from 1, both ends inclusive."""
    kept = {name: value for name, value in text.items() if value.strip()}
    start, end = lines or (None, None)
    return Node(
        id=id_,
        account=context.account,
        project=context.project,
        store=Store.STRUCTURE,
        labels=labels,
        text=kept,
        properties=dict(properties),
        created_at=context.now,
        source=Source(repository=context.repository, path=context.path, start_line=start, end_line=end, commit=context.commit),
        content_hash=derived_id(*(part for item in sorted(kept.items()) for part in item)),
    )


def make_edge(context: FileContext, from_id: str, type_: str, to_id: str, properties: Mapping[str, Json] | None = None) -> Edge:
    """An edge of this file's project."""
    return Edge(
        from_id=from_id,
        type=type_,
        to_id=to_id,
        account=context.account,
        project=context.project,
        properties=dict(properties or {}),
    )
