"""Tantivy through its Python binding, with its English stemmer."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.peers.data import Data, K

_HEAP_BYTES = 256_000_000
#: Its parser has a syntax and would make phrases of what its tokenizer cuts; a question is words.
_WORD = re.compile(r"[^\W_]+")


class Engine:
    """One index; the project is a term of its own, and a filter a clause that must match."""

    legs = ("lexical",)

    def __init__(self) -> None:
        import tantivy

        builder = tantivy.SchemaBuilder()
        builder.add_integer_field("row", stored=True)
        builder.add_text_field("project", stored=False, tokenizer_name="raw", index_option="basic")
        builder.add_text_field("text", stored=True, tokenizer_name="en_stem", index_option="freq")
        self._schema = builder.build()
        self._index: Any = None
        self._searcher: Any = None

    def build(self, data: Data, folder: Path) -> None:
        import tantivy

        index = tantivy.Index(self._schema, path=str(folder))
        writer = index.writer(_HEAP_BYTES)
        for number, row in enumerate(data.rows()):
            writer.add_document(tantivy.Document(row=number, project=row.project, text=row.text))
        writer.commit()
        writer.wait_merging_threads()

    def open(self, folder: Path) -> None:
        import tantivy

        self._index = tantivy.Index.open(str(folder))
        self._searcher = self._index.searcher()

    def ask(self, leg: str, text: str, vector: npt.NDArray[np.float32], project: str | None) -> list[int]:
        import tantivy

        del leg, vector
        query = self._index.parse_query(" ".join(_WORD.findall(text)).lower(), ["text"])
        if project is not None:
            only = tantivy.Query.term_query(self._schema, "project", project)
            must = tantivy.Occur.Must
            query = tantivy.Query.boolean_query([(must, query), (must, tantivy.Query.const_score_query(only, 0.0))])
        found = self._searcher.search(query, K, count=False).hits
        return [self._searcher.doc(address)["row"][0] for _, address in found]
