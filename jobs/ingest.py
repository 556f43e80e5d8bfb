"""The ingest job: a folder's files into the graph store, doing again only what changed.

A file is known by the hash of its bytes and by the version of what read it. Its nodes and that knowledge are written in one
transaction, so a run that is killed at any point resumes where it was, and no file passes for done before it is stored. What
the folder no longer holds is removed; then the edges between files are compared with those that the facts of all files give.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cluster.errors import ConflictError
from cluster.model.ids import parse_name
from cluster.model.nodes import Edge, Node, Store
from cluster.ports import FileState, GraphStore, Project, WriteBatch
from jobs import extract, git, lock
from jobs.extract import ExtractResult, ExtractTask
from jobs.model import DOCUMENT, FileContext
from jobs.refuse import Limits, Skip
from jobs.relink import relink
from jobs.walk import Walk, WalkedFile, printable, resolved_root, walk

logger = logging.getLogger(__name__)

#: Called with (phase, done, total, path); phases are "walk", "extract" and "link". What it raises ends the run.
Progress = Callable[[str, int, int, str], None]
ExtractMany = Callable[[Sequence[ExtractTask]], Iterator[ExtractResult]]


@dataclass(frozen=True, slots=True)
class IngestOptions:
    """How to read a folder."""

    limits: Limits = field(default_factory=Limits)
    #: Longest content of one row, in code points.
    max_chars: int = 1200
    #: Folders that are not entered, such as the program's own data.
    exclude: tuple[Path, ...] = ()
    #: Where lock files are kept. None: one run at a time within this process alone.
    lock_folder: Path | None = None
    #: A transaction is closed at this many files, or bytes of files.
    batch_files: int = 50
    batch_bytes: int = 2_000_000
    #: Allows a project to be filled from another folder than the one it was filled from before.
    replace_root: bool = False


@dataclass(frozen=True, slots=True)
class IngestReport:
    """What a run did. `indexed + unchanged + len(skipped) == files_seen`."""

    project: str
    root: str
    commit: str | None
    files_seen: int
    #: Files that were read and stored.
    indexed: int
    unchanged: int
    #: Files that were known and whose nodes are gone now.
    removed: int
    #: By path. A folder that was not entered is one entry.
    skipped: tuple[Skip, ...]
    warnings: tuple[str, ...]
    #: Nodes and edges of the whole project's files, after the run.
    nodes: int
    edges: int
    #: The store's, after the run.
    revision: int
    #: Of the files indexed in this run: words that the index will cut, files whose encoding was guessed, control characters.
    long_tokens_cut: int = 0
    fallback_encodings: int = 0
    control_characters_removed: int = 0

    @property
    def skipped_by_reason(self) -> dict[str, int]:
        """How many were left out for each reason, without the reason's details."""
        return dict(sorted(Counter(skip.reason.partition(":")[0] for skip in self.skipped).items()))


def ingest(
    store: GraphStore,
    root: Path,
    *,
    account: str,
    project: str,
    repository: str,
    now: int,
    options: IngestOptions | None = None,
    progress: Progress | None = None,
    extract_many: ExtractMany = extract.extract_locally,
) -> IngestReport:
    """Brings `project` up to date with the files below `root`. `now`: milliseconds since the epoch.

    `extract_many` may answer in any order and run anywhere; `extract.run_extract` of each task is what it has to return.
    Raises UsageError for a root that cannot be read, and ConflictError while another run is at the same project, or when the
    project holds another folder that still exists.
    """
    parse_name(project, "project")
    options = options or IngestOptions()
    root = resolved_root(root)
    with lock.exclusive(options.lock_folder, store, "ingest", account, project):
        run = _Run(store, account, project, repository, now, options, progress or _silent)
        return run.run(root, extract_many)


def _silent(phase: str, done: int, total: int, path: str) -> None:
    """Reports to nobody."""


class _Run:
    def __init__(
        self,
        store: GraphStore,
        account: str,
        project: str,
        repository: str,
        now: int,
        options: IngestOptions,
        progress: Progress,
    ) -> None:
        self._store = store
        self._account = account
        self._project = project
        self._repository = repository
        self._now = now
        self._options = options
        self._progress = progress
        self._extractor = f"{extract.VERSION}/{options.max_chars}/{repository}"
        self._known = store.files(account, project)
        #: What the store will know of each file when the run has ended.
        self._facts: dict[str, Mapping[str, Any]] = {path: state.facts for path, state in self._known.items()}
        self._lost: set[str] = set()
        self._skipped: list[Skip] = []
        self._warnings: list[str] = []
        self._kept: set[str] = set()
        self._counts: Counter[str] = Counter()

    def run(self, root: Path, extract_many: ExtractMany) -> IngestReport:
        place = printable(os.fsencode(root))
        self._check_root(place)
        found = walk(root, self._options.limits, self._options.exclude)
        self._skipped += found.skipped
        self._warnings += found.warnings
        self._check_history(root)
        tasks = self._tasks(found)
        self._extract(tasks, extract_many)
        self._remove(found)
        links = self._link()
        self._store.write(WriteBatch(projects=(self._record(place, found.commit),), now=self._now))
        report = IngestReport(
            project=self._project,
            root=place,
            commit=found.commit,
            files_seen=len(found.files) + len(found.skipped),
            indexed=self._counts["indexed"],
            unchanged=self._counts["unchanged"],
            removed=self._counts["removed"],
            skipped=tuple(sorted(self._skipped, key=lambda skip: (skip.path, skip.reason))),
            warnings=tuple(self._warnings),
            nodes=sum(int(facts.get("nodes", 0)) for facts in self._facts.values()),
            edges=links + sum(len(facts.get("contains", ())) for facts in self._facts.values()),
            revision=self._store.revision(),
            long_tokens_cut=self._counts["long_words"],
            fallback_encodings=self._counts["fallback"],
            control_characters_removed=self._counts["control"],
        )
        logger.info("folder ingested", extra={"action": "ingest_done", "project": self._project, **dict(self._counts)})
        return report

    # --- what there is to do -----------------------------------------------------------------------------------------------

    def _check_root(self, place: str) -> None:
        """A name that two folders share by accident must not make one project replace the other."""
        stored = next((item for item in self._store.projects(self._account) if item.project == self._project), None)
        if stored is None or stored.root in ("", place) or self._options.replace_root:
            return
        if Path(stored.root).is_dir():
            raise ConflictError(
                f"project {self._project} holds {stored.root}; give the folder {place} another project name, "
                "or fill the project from it instead: raycall index --replace",
                field="project",
            )

    def _check_history(self, root: Path) -> None:
        cited = {commit for facts in self._facts.values() for commit in facts.get("commits", ())}
        self._lost = git.lost_commits(root, cited) if cited else set()
        if self._lost:
            self._warnings.append(
                f"{len(self._lost)} commit(s) that stored nodes cite are not in the repository (rewritten or shallow history);"
                " every file is compared, and those that cite them are read again"
            )

    def _tasks(self, found: Walk) -> list[ExtractTask]:
        """The files that have to be read; the others are counted as unchanged."""
        tasks = []
        for number, file in enumerate(found.files):
            self._progress("walk", number, len(found.files), file.path)
            if not self._unchanged(found.root, file):
                context = FileContext(
                    self._account,
                    self._project,
                    self._repository,
                    file.path,
                    found.commit,
                    self._now,
                    self._options.max_chars,
                )
                tasks.append(ExtractTask(os.fspath(found.root), file.relative, context, self._options.limits))
        self._progress("walk", len(found.files), len(found.files), "")
        return tasks

    def _unchanged(self, root: Path, file: WalkedFile) -> bool:
        state = self._known.get(file.path)
        if state is None or state.extractor != self._extractor or not self._lost.isdisjoint(state.facts.get("commits", ())):
            return False
        # Size and time of change are no proof: both can stay the same while the bytes differ.
        with suppress(OSError):
            raw = extract.read_bytes(os.fspath(root), file.relative, self._options.limits.max_bytes + 1)
            if extract.hash_bytes(raw) == state.content_hash:
                self._count_file(file.path, "unchanged", bool(state.facts.get("blank")))
                return True
        return False

    def _count_file(self, path: str, how: str, blank: bool) -> None:
        self._kept.add(path)
        if blank:
            self._skipped.append(Skip(path=path, reason="empty"))
        else:
            self._counts[how] += 1

    # --- reading and storing -----------------------------------------------------------------------------------------------

    def _extract(self, tasks: list[ExtractTask], extract_many: ExtractMany) -> None:
        waiting = {task.context.path for task in tasks}
        batch: list[ExtractResult] = []
        results = extract_many(tasks)
        for number, result in enumerate(results):
            self._progress("extract", number, len(tasks), result.path)
            waiting.discard(result.path)
            if result.extracted is None:
                self._refused(result.path, result.refused or "failed: no reason given", result.broken)
                continue
            batch.append(result)
            if len(batch) >= self._options.batch_files or sum(item.size for item in batch) >= self._options.batch_bytes:
                self._store_files(batch)
                batch = []
        if batch:
            self._store_files(batch)
        for path in sorted(waiting):
            self._refused(path, "failed: the worker gave no answer", broken=True)
        self._progress("extract", len(tasks), len(tasks), "")

    def _refused(self, path: str, reason: str, broken: bool) -> None:
        self._skipped.append(Skip(path=path, reason=reason))
        if broken and path in self._known:
            self._kept.add(path)
            self._warnings.append(f"{path}: {reason}; what an earlier run stored of it is kept")

    def _store_files(self, results: list[ExtractResult]) -> None:
        extracted = [node for result in results if result.extracted for node in result.extracted.nodes]
        stored = self._store.get_nodes([node.id for node in extracted])
        nodes: list[Node] = []
        edges: list[Edge] = []
        stale: list[tuple[str, str, str]] = []
        states: list[FileState] = []
        for result in results:
            assert result.extracted is not None
            own = self._deletion_carried(result, stored, [self._carried(stored.get(n.id), n) for n in result.extracted.nodes])
            state = self._state(result, own)
            contains = {tuple(key) for key in state.facts["contains"]}
            stale += [key for key in self._contained(result.path) if key not in contains]
            nodes += own
            edges += result.extracted.edges
            states.append(state)
        self._store.write(
            WriteBatch(
                replace_paths=tuple(self._key(result.path) for result in results),
                nodes=tuple(nodes),
                remove_edges=tuple(stale),
                edges=tuple(edges),
                files=tuple(states),
                now=self._now,
            )
        )
        for result, state in zip(results, states, strict=True):
            self._stored(result, state)

    def _state(self, result: ExtractResult, nodes: list[Node]) -> FileState:
        assert result.extracted is not None
        facts: dict[str, Any] = {
            "link": dict(result.extracted.facts),
            "contains": [[edge.from_id, edge.type, edge.to_id] for edge in result.extracted.edges],
            "commits": sorted({node.source.commit for node in nodes if node.source and node.source.commit}),
            "nodes": len(nodes),
            "blank": result.blank,
        }
        return FileState(
            account=self._account,
            project=self._project,
            path=result.path,
            content_hash=result.content_hash,
            extractor=self._extractor,
            facts=facts,
        )

    def _stored(self, result: ExtractResult, state: FileState) -> None:
        self._facts[result.path] = state.facts
        self._count_file(result.path, "indexed", result.blank)
        self._counts["fallback"] += result.fallback
        self._counts["control"] += result.removed
        self._counts["long_words"] += result.long_words
        if result.extracted is not None:
            self._warnings += [f"{result.path}: {warning}" for warning in result.extracted.warnings]

    def _carried(self, old: Node | None, new: Node) -> Node:
        """`new` with what others have said about the node since: its tags, its visibility, that it was deleted.

        Reading a file again must not make public what was marked private. A part that is the
        same as before stays the very same node, at the commit where it was read, so that no index has to take it again.
        """
        if old is None or old.store is not Store.STRUCTURE:
            return new
        merged = replace(
            old, labels=new.labels, text=new.text, properties=new.properties, source=new.source, content_hash=new.content_hash
        )
        cited = old.source.commit if old.source else None
        if DOCUMENT in new.labels or new.source is None or cited is None or cited in self._lost:
            return merged
        same = replace(merged, source=replace(new.source, commit=cited))
        return same if same == old else merged

    def _deletion_carried(self, result: ExtractResult, stored: Mapping[str, Node], nodes: list[Node]) -> list[Node]:
        """`nodes` of a file whose document was deleted: new bytes bring back what that deletion took, the same bytes do not.

        A part that was deleted by itself stays deleted, and a part that is new belongs to a deleted document like the others.
        """
        documents = [stored[node.id] for node in nodes if DOCUMENT in node.labels and node.id in stored]
        mark = documents[0].deleted_at if documents and documents[0].store is Store.STRUCTURE else None
        if mark is None:
            return nodes
        known = self._known.get(result.path)
        if known is None or known.content_hash != result.content_hash:
            return [replace(node, deleted_at=None) if node.deleted_at == mark else node for node in nodes]
        return [node if node.deleted_at is not None else replace(node, deleted_at=mark) for node in nodes]

    # --- what is gone --------------------------------------------------------------------------------------------------------

    def _remove(self, found: Walk) -> None:
        unread = tuple(f"{skip.path}/" for skip in found.skipped if skip.reason.startswith("unreadable"))
        gone = []
        for path in self._known:
            if path in self._kept:
                continue
            if f"{path}/".startswith(unread) or "./" in unread:
                self._warnings.append(f"{path}: cannot be read now; what an earlier run stored of it is kept")
                continue
            gone.append(path)
        for paths in _slices(gone, 500):
            keys = tuple(map(self._key, paths))
            stale = tuple(key for path in paths for key in self._contained(path))
            self._store.write(WriteBatch(replace_paths=keys, remove_edges=stale, forget_files=keys, now=self._now))
            for path in paths:
                del self._facts[path]
        self._counts["removed"] = len(gone)

    # --- edges between files ------------------------------------------------------------------------------------------------

    def _link(self) -> int:
        """Makes the edges between files those that all files' facts give; returns how many there are."""
        self._progress("link", 0, 1, "")
        facts = {path: facts.get("link", {}) for path, facts in sorted(self._facts.items())}
        contained = {key for path in self._facts for key in self._contained(path)}
        links = relink(self._store, self._account, self._project, facts, contained, self._now)
        self._progress("link", 1, 1, "")
        return links

    # --- small parts --------------------------------------------------------------------------------------------------------

    def _contained(self, path: str) -> list[tuple[str, str, str]]:
        """Keys of the containment edges inside a file, as last stored."""
        return [(str(key[0]), str(key[1]), str(key[2])) for key in self._facts.get(path, {}).get("contains", ())]

    def _key(self, path: str) -> tuple[str, str, str]:
        return self._account, self._project, path

    def _record(self, place: str, commit: str | None) -> Project:
        return Project(account=self._account, project=self._project, root=place, commit=commit, indexed_at=self._now)


def _slices(items: Sequence[str], size: int) -> Iterator[Sequence[str]]:
    return (items[start : start + size] for start in range(0, len(items), size))
