"""One file to nodes: read, judge, decode, and hand to the reader of its kind. Runs in any process, one call a file."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import posixpath
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from cluster.text import is_wordless
from jobs import refuse
from jobs.decode import Decoded, decode
from jobs.markdown import extract_markdown
from jobs.model import DOCUMENT, Extracted, FileContext
from jobs.plain import extract_plain
from jobs.refuse import Limits

logger = logging.getLogger(__name__)

#: Part of every `FileState.extractor`. Raise it when the same bytes give other nodes: every file is then read again.
VERSION = "1"
_MARKDOWN = frozenset({".md", ".markdown", ".mdown", ".mkd", ".mdx"})
#: The analyzer cuts a longer word; what is behind the cut is not found by it.
_LONG_WORD = re.compile(r"\w{256,}")


@dataclass(frozen=True, slots=True)
class ExtractTask:
    """One file to read. Picklable, small: the worker opens the file itself."""

    root: str
    #: Path inside the root, as the file system spells it.
    relative: bytes
    context: FileContext
    limits: Limits


@dataclass(frozen=True, slots=True)
class ExtractResult:
    """What came of a task: `extracted`, or the reason why not."""

    path: str
    extracted: Extracted | None = None
    #: Why nothing was extracted.
    refused: str | None = None
    #: Whether the file could not be read this time, so that what is known of it from before still stands.
    broken: bool = False
    #: Hash of the bytes that were read.
    content_hash: str = ""
    #: Bytes.
    size: int = 0
    #: Whether there is no word in it.
    blank: bool = False
    #: Whether its encoding was guessed.
    fallback: bool = False
    #: Control characters taken out.
    removed: int = 0
    #: Words too long for the index, which cuts them.
    long_words: int = 0


def extract_locally(tasks: Sequence[ExtractTask]) -> Iterator[ExtractResult]:
    """Runs the tasks here, one after the other."""
    return map(run_extract, tasks)


def run_extract(task: ExtractTask) -> ExtractResult:
    """Runs one task. Whatever is wrong with the file is in the result; nothing is raised."""
    path = task.context.path
    try:
        raw = read_bytes(task.root, task.relative, task.limits.max_bytes + 1)
    except OSError as error:
        return ExtractResult(path=path, refused=read_problem(error), broken=error.errno != errno.ENOENT)
    try:
        return _judged(raw, task)
    except Exception as error:
        logger.exception("a file could not be extracted", extra={"action": "extract_failed", "path": path})
        return ExtractResult(path=path, refused=f"failed: {type(error).__name__}: {error}"[:300], broken=True)


def lost_result(task: ExtractTask) -> ExtractResult:
    """The result of a task whose worker did not survive it."""
    logger.error("a file ended the worker that read it", extra={"action": "extract_lost", "path": task.context.path})
    return ExtractResult(path=task.context.path, refused="failed: worker lost", broken=True)


def _judged(raw: bytes, task: ExtractTask) -> ExtractResult:
    result = ExtractResult(path=task.context.path, content_hash=hash_bytes(raw), size=len(raw))
    refused = refuse.by_content(task.context.path, raw, task.limits)
    if refused is not None:
        return replace(result, refused=refused)
    decoded = decode(raw)
    return replace(
        result,
        extracted=_extracted(decoded, task.context),
        blank=is_wordless(decoded.text),
        fallback=decoded.fallback,
        removed=decoded.removed,
        long_words=sum(1 for _ in _LONG_WORD.finditer(decoded.text)),
    )


def extract_file(raw: bytes, context: FileContext) -> Extracted:
    """Nodes, edges and facts of a file that holds `raw`. A file without a word is a Document without text or chunks."""
    return _extracted(decode(raw), context)


def _extracted(decoded: Decoded, context: FileContext) -> Extracted:
    extracted = _by_kind(decoded.text, context)
    if not is_wordless(decoded.text):
        return extracted
    # Listed and linked to (an empty __init__.py is imported), but with nothing that a search could find.
    documents = [node for node in extracted.nodes if DOCUMENT in node.labels]
    return replace(extracted, nodes=tuple(replace(node, text={}, content_hash="") for node in documents), edges=())


def _by_kind(text: str, context: FileContext) -> Extracted:
    from jobs.code import extract_code, language_of  # grammars are loaded by the processes that read code

    if posixpath.splitext(context.path)[1].lower() in _MARKDOWN:
        return extract_markdown(text, context)
    language = language_of(context.path)
    if language is None:
        return extract_plain(text, context)
    try:
        return extract_code(text, language, context)
    except (RecursionError, ValueError, IndexError, KeyError) as error:
        plain = extract_plain(text, context)
        return replace(plain, warnings=(*plain.warnings, f"read as plain text: {type(error).__name__}: {error}"[:300]))


def hash_bytes(raw: bytes) -> str:
    """Hash of a file's content (32 hex digits)."""
    return hashlib.blake2b(raw, digest_size=16).hexdigest()


def read_bytes(root: str, relative: bytes, limit: int) -> bytes:
    """Up to `limit` bytes of a regular file. Raises OSError; a link or a device is one as well."""
    path = os.fsencode(root) + b"/" + relative
    # The walk saw a regular file; what is there now may be a link or a pipe, which must neither lead away nor block.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:  # noqa: PTH123 - a descriptor
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        return file.read(limit)


def read_problem(error: OSError) -> str:
    """The reason for which a file that cannot be opened is left out."""
    if error.errno == errno.ENOENT:
        return "gone while it was read"
    return "symlink" if error.errno == errno.ELOOP else f"unreadable: {error.strerror}"
