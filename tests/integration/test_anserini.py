"""With Anserini's settings our ranking is Anserini's own, on an index that Anserini itself wrote."""

import json
import random
import re
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from cluster.index import jvm
from cluster.index.analysis import analysis
from cluster.index.lexical import LexicalIndex, build_lexical
from cluster.index.rows import rows_table
from cluster.model.guard import All
from tests.support.factories import make_node

ENGLISH = analysis("english")
K = 50
#: Anserini rounds scores to four places and sets ties apart by a millionth.
ROUNDED = 1e-4


def texts() -> list[str]:
    """Pieces of the comments and code of Python's own library, some very short, one empty."""
    sources = (path.read_text("utf-8") for path in sorted(Path(sysconfig.get_paths()["stdlib"]).glob("[d-h]*.py")))
    pieces = [text[start : start + 900] for text in sources for start in range(0, len(text), 900)][:400]
    return [*pieces, "cafés of Zürich", "1,000 e-mails aren't U.S.A.'s", "the of and", ""]


def questions(pieces: list[str], count: int) -> list[str]:
    pick = random.Random(7)
    words = [re.findall(r"\w+", piece) for piece in pieces]
    found = []
    while len(found) < count:
        source = pick.choice(words)
        if source:
            start = pick.randrange(len(source))
            found.append(" ".join(source[start : start + pick.randint(1, 8)]))
    # A word that a question repeats counts as often.
    return [*found, "file file path", "parser.parse(file)", "cafés", "1,000 mails", "the of", "nothing-like-this"]


@pytest.fixture(scope="module")
def anserini(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A SimpleSearcher, which is what pyserini's LuceneSearcher wraps, over an index written by Anserini's own indexer."""
    jvm.start()
    import jnius

    folder = str(tmp_path_factory.mktemp("anserini") / "index")
    indexer = jnius.autoclass("io.anserini.index.SimpleIndexer")(folder)
    for number, text in enumerate(texts()):
        indexer.addRawDocument(json.dumps({"id": f"d{number:04}", "contents": text}))
    indexer.close()
    searcher = jnius.autoclass("io.anserini.search.SimpleSearcher")(folder)
    searcher.set_bm25(0.9, 0.4)
    yield searcher
    searcher.close()


def test_rankings_are_those_of_anserini(anserini: Any, tmp_path: Path) -> None:
    pieces = texts()
    nodes = [make_node(f"d{number:04}", text={"content": text}) for number, text in enumerate(pieces)]
    tokens = build_lexical(tmp_path / "index", nodes, ENGLISH)
    index = LexicalIndex(tmp_path / "index", rows_table(nodes, tokens), ENGLISH)
    compared = 0
    for question in questions(pieces, 200):
        weights = ENGLISH.query_terms(question)
        total = index.statistics(list(weights), All(()))
        rows, scores, _ = index.search([term for term in weights for _ in range(weights[term])], All(()), total, K)
        ours = {nodes[row].id: score for row, score in zip(rows, scores, strict=True)}
        theirs = {hit.docid: hit.score for hit in anserini.search(question, K)}
        assert list(ours.values()) == pytest.approx(sorted(theirs.values(), reverse=True), abs=ROUNDED), question
        last = min(ours.values(), default=0.0)
        # Among equal scores at the cut either may have taken others.
        for node_id in ours.keys() ^ theirs.keys():
            assert ours.get(node_id, theirs.get(node_id)) == pytest.approx(last, abs=ROUNDED), question
        compared += len(ours)
    index.close()
    assert compared > 3000
