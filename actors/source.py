"""Where a shard reads what was written since its generations were built."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cluster.feed import Feed


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """The store that a shard follows, as a shard's own process can open it."""

    #: The file of the embedded store.
    graph: Path
    account: str

    def feed(self) -> Feed:
        """What happens in the store. Raises as opening the store does."""
        from cluster.graph.sqlite import SqliteGraphStore

        return Feed(SqliteGraphStore(self.graph, account=self.account), self.account)
