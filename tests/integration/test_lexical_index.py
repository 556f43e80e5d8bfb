"""Building, opening and breaking a lexical index, and where its JVM may run."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from cluster.errors import CorruptIndexError, UnavailableError
from cluster.index import jvm, lexical_writer
from cluster.index.lexical import LexicalIndex, build_lexical
from cluster.index.rows import rows_table
from cluster.model.nodes import Node
from tests.support.factories import make_node
from tests.support.lexical import EVERYTHING, opened, row_terms, search


def chunks(*texts: str) -> list[Node]:
    return [make_node(f"n{number:05}", text={"content": text}) for number, text in enumerate(texts)]


def test_rows_keep_their_order_however_many_segments_are_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lexical_writer, "_BUFFER_MB", 0.1)
    nodes = chunks(*(f"all row{number} " + " ".join(f"w{number * 7 + place}" for place in range(60)) for number in range(600)))
    segments: set[str] = set()

    def watched() -> Iterator[Node]:
        for node in nodes:
            segments.update(path.name for path in tmp_path.glob("*.fnm"))
            yield node

    tokens = build_lexical(tmp_path, watched())
    assert len(segments) > 3
    index = LexicalIndex(tmp_path, rows_table(nodes, tokens))
    for number in (0, 1, 99, 300, 598, 599):
        statistics = index.statistics([f"row{number}", "row", str(number)], EVERYTHING)
        assert index.search([f"row{number}"], EVERYTHING, statistics, 1)[0].tolist() == [number]
    # Equal scores: ties come in row order.
    rows, _, matched = index.search(["all"], EVERYTHING, index.statistics(["all"], EVERYTHING), 1000)
    assert (rows.tolist(), matched) == (list(range(600)), 600)
    index.close()


def test_the_returned_lengths_are_the_rows_own(tmp_path: Path) -> None:
    nodes = [
        make_node("a", text={"content": "two words"}),
        make_node("b", text={"content": "  "}),
        make_node("c", text={}),
        make_node(
            "d", text={"symbol": "HTTPServer", "title": "class HTTPServer", "path": "src/server.py", "content": "pass " * 100}
        ),
    ]
    tokens = build_lexical(tmp_path / "index", nodes)
    assert tokens.dtype == np.int32
    assert tokens.tolist() == [sum(row_terms(node).values()) for node in nodes]
    assert tokens.tolist()[:3] == [4, 0, 0]


def test_a_build_replaces_what_was_there_and_leaves_no_lock(tmp_path: Path) -> None:
    build_lexical(tmp_path, chunks("old words", "more old words"))
    nodes = chunks("new")
    tokens = build_lexical(tmp_path, nodes)
    index = LexicalIndex(tmp_path, rows_table(nodes, tokens))
    assert (index.rows, index.statistics(["old", "new"], EVERYTHING).document_frequency) == (1, {"old": 0, "new": 1})
    index.close()
    assert not any("lock" in path.name for path in tmp_path.iterdir())


def test_a_build_that_fails_leaves_no_usable_half(tmp_path: Path) -> None:
    def failing() -> object:
        yield from chunks("one", "two")
        raise OSError("the store went away")

    with pytest.raises(OSError, match="the store went away"):
        build_lexical(tmp_path, failing())  # type: ignore[arg-type]
    nodes = chunks("one", "two")
    with pytest.raises(CorruptIndexError):
        LexicalIndex(tmp_path, rows_table(nodes, np.array([2, 2], np.int32)))


def test_a_row_that_is_added_after_another_does_not_inherit_its_text(tmp_path: Path) -> None:
    """Rows with equal guard columns share one Lucene document during the build."""
    with opened(tmp_path, chunks("alpha", "beta", "", "alpha beta")) as partitions:
        assert search(partitions, "alpha").ids == ("n00000", "n00003")
        assert search(partitions, "beta").ids == ("n00001", "n00003")


@pytest.mark.parametrize("texts", [[], [""], ["", "   ", "---"]])
def test_an_index_without_words_answers_with_nothing(tmp_path: Path, texts: list[str]) -> None:
    with opened(tmp_path, chunks(*texts)) as empty, opened(tmp_path, chunks("anything goes")) as full:
        assert search(empty, "anything").ids == ()
        assert search(empty, "").matched == 0
        beside = search([*empty, *full], "anything")
        assert beside == search(full, "anything")
        assert beside.ids == ("n00000",)


def test_scores_are_the_same_after_reopening(tmp_path: Path) -> None:
    nodes = chunks("valve closed", "valve opened twice", "pump", "valve " * 30)
    tokens = build_lexical(tmp_path, nodes)
    answers = []
    for _ in range(2):
        index = LexicalIndex(tmp_path, rows_table(nodes, tokens))
        statistics = index.statistics(["valve", "twice"], EVERYTHING)
        rows, scores, matched = index.search(["valve", "twice"], EVERYTHING, statistics, 10)
        answers.append((rows.tolist(), scores.tolist(), matched))
        index.close()
    assert answers[0] == answers[1]
    assert answers[0][0][0] == 1


def test_files_that_are_missing_cut_or_of_other_rows_are_refused(tmp_path: Path) -> None:
    nodes = chunks("one two", "three")
    right = rows_table(nodes, build_lexical(tmp_path / "index", nodes))
    refused = {
        "no lexical index": (tmp_path / "nowhere", right),
        "cannot be opened": (tmp_path, right),
        "its rows say": (tmp_path / "index", right.slice(0, 1)),
        "holds": (tmp_path / "index", rows_table(nodes, np.array([4, 3], np.int32))),
    }
    for message, (directory, rows) in refused.items():
        with pytest.raises(CorruptIndexError, match=message):
            LexicalIndex(directory, rows)
    for path in (tmp_path / "index").iterdir():
        whole = path.read_bytes()
        path.write_bytes(whole[: len(whole) // 2])
        with pytest.raises(CorruptIndexError):
            LexicalIndex(tmp_path / "index", right)
        path.write_bytes(whole)
    LexicalIndex(tmp_path / "index", right).close()


def test_a_closed_index_raises_and_may_be_closed_again(tmp_path: Path) -> None:
    nodes = chunks("one two")
    index = LexicalIndex(tmp_path, rows_table(nodes, build_lexical(tmp_path, nodes)))
    statistics = index.statistics(["one"], EVERYTHING)
    index.close()
    index.close()
    with pytest.raises(CorruptIndexError):
        index.search(["one"], EVERYTHING, statistics, 1)


def in_new_process(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, env={**os.environ, **environment}
    )


BUILD = """
from pathlib import Path
from tests.support.factories import make_node
from tests.support.lexical import opened, search
with opened(Path({folder!r}), [make_node()]) as partitions:
    assert search(partitions, "content").ids == ("n1",)
"""


def test_java_writes_nothing_to_the_programs_output(tmp_path: Path) -> None:
    done = in_new_process(BUILD.format(folder=str(tmp_path)), JAVA_HOME="/nowhere", CLASSPATH="/nowhere")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_jvm_is_not_started_by_importing_and_pyserini_is_never_imported(tmp_path: Path) -> None:
    program = "import sys; import cluster.index.lexical; assert not {'jnius', 'pyserini'} & set(sys.modules)\n"
    done = in_new_process(program + BUILD.format(folder=str(tmp_path)) + "assert 'pyserini' not in sys.modules")
    assert (done.returncode, done.stderr) == (0, "")


def test_signals_stay_with_python() -> None:
    done = in_new_process(
        "import os, signal\n"
        "from cluster.index import jvm\n"
        "signal.signal(signal.SIGTERM, lambda *_: print('handled'))\n"
        "jvm.start()\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
    )
    assert (done.returncode, done.stdout) == (0, "handled\n")


def test_a_fork_of_a_process_with_a_jvm_is_told_so() -> None:
    done = in_new_process(
        "import os, warnings\n"
        "from cluster.errors import UnavailableError\n"
        "from cluster.index import jvm\n"
        "warnings.simplefilter('ignore')\n"
        "jvm.start()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    try:\n"
        "        jvm.java()\n"
        "    except UnavailableError as error:\n"
        "        os._exit(7 if 'forked' in str(error) else 1)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    assert done.stdout == "7\n", done.stderr


def test_a_jvm_that_cannot_start_is_an_error_that_says_why() -> None:
    done = in_new_process(
        "from cluster.errors import UnavailableError\n"
        "from cluster.index import jvm\n"
        "try:\n"
        "    jvm.start(heap_mb=1)\n"
        "except UnavailableError as error:\n"
        "    print(error)\n"
    )
    assert (done.returncode, done.stdout) == (0, "the JVM needs a heap of at least 32 MB, not 1\n")


@pytest.mark.parametrize("jars", [[], ["anserini-1-fatjar.jar", "anserini-2-fatjar.jar"]])
def test_exactly_one_jar_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jars: list[str]) -> None:
    folder = tmp_path / "pyserini" / "resources" / "jars"
    folder.mkdir(parents=True)
    (tmp_path / "pyserini" / "__init__.py").write_text("raise AssertionError('imported')")
    for name in jars:
        (folder / name).touch()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UnavailableError, match="exactly one Anserini jar"):
        jvm.anserini_jar()
