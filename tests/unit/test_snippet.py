"""Snippets: the passage, its matches and its line."""

from __future__ import annotations

import unicodedata
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.model.nodes import Node, Source, Store
from cluster.model.query import Snippet
from cluster.text import joins
from jobs.markdown import extract_markdown
from jobs.model import FileContext
from serve.snippet import WIDTH, make_snippet, query_words


def node(content: str = "", *, start_line: int | None = 10, **text: str) -> Node:
    return Node(
        id="n",
        account="a",
        project="p",
        store=Store.STRUCTURE,
        labels=("Chunk",),
        text={**text, **({"content": content} if content else {})},
        source=Source(repository="r", path="src/a.py", start_line=start_line),
    )


def cut(content: str, query: str, width: int = WIDTH) -> Snippet:
    return make_snippet(node(content), query_words(query), width)


def marked(snippet: Snippet) -> list[str]:
    return [snippet.text[start:end] for start, end in snippet.matches]


@pytest.mark.parametrize(
    ("text", "query", "expected"),
    [
        ("The router merges.", "ROUTER", ["router"]),
        ("parseConfig(path)", "config", ["Config"]),
        ("HTMLParser and html_parser", "parser", ["Parser", "parser"]),
        ("load parse_config now", "parseConfig", ["parse", "config"]),
        ("call parseConfig now", "parse config", ["parseConfig"]),
        ("reconfigure the configuration", "config", []),
        ("indexes, indexing, indexed, index", "index", ["indexes", "indexing", "indexed", "index"]),
        ("one timeout", "timeouts", ["timeout"]),
        ("a scar on a car", "car", ["car"]),
        ("utf8 and latin1", "utf", ["utf"]),
        ("the reader of the book", "what is the reader", ["reader"]),
        ("to be or not", "to be", ["to", "be"]),
        ("Café crème", "cafe creme", ["Café", "crème"]),
        ("cafe creme", "Café", ["cafe"]),
        (unicodedata.normalize("NFD", "un café, un thé"), "café", [unicodedata.normalize("NFD", "café")]),
        ("die Straße hier", "strasse", ["Straße"]),
        ("die STRASSE hier", "straße", ["STRASSE"]),
        ("ﬁle and ｆｕｌｌ", "file full", ["ﬁle", "ｆｕｌｌ"]),
        ("загрузить файл", "ЗагрузитьФайл", ["загрузить", "файл"]),
        ("ｶﾞｽ", "ガス", ["ｶﾞｽ"]),
        ("混合检索系统使用倒排索引", "检索", ["检索"]),
        ("合检索", "合检索", ["合检索"]),
        ("GitHub 备份 脚本", "GitHub备份脚本", ["GitHub", "备份", "脚本"]),
        ("トークンを使う", "トークン", ["トークン"]),
        ("かき", "がき", []),
        ("한국어를 배운다", "한국어", ["한국어"]),
        (unicodedata.normalize("NFD", "한국어를"), "한국어", [unicodedata.normalize("NFD", "한국어")]),
        ("हिन्दी भाषा", "हिन्दी", ["हिन्दी"]),
        ("C++ and C", "C++", ["C", "C"]),
        ("anything", "!&& ||", []),
        ("a\0b word", "word", ["word"]),
    ],
)
def test_matches_are_what_a_reader_would_mark(text: str, query: str, expected: list[str]) -> None:
    snippet = cut(text, query)
    assert snippet.text == text
    assert marked(snippet) == expected


def test_the_passage_with_the_most_telling_words_is_taken_and_starts_at_a_line() -> None:
    filler = "".join(f"line {number} says nothing of note here\n" for number in range(40))
    content = f"{filler}the alpha is alone\n{filler}    alpha meets omega\n{filler}"
    snippet = cut(content, "alpha omega")
    assert marked(snippet) == ["alpha", "omega"]
    before = content.index(snippet.text)
    assert content[before - 1] == "\n" and content[before + len(snippet.text)] == "\n"
    assert 160 < len(snippet.text) <= WIDTH
    assert snippet.start_line == 10 + content.count("\n", 0, before)


def test_without_a_match_the_head_is_shown() -> None:
    content = "\n\n  first words\n" + "more of them " * 50
    snippet = cut(content, "absent")
    assert snippet.text.startswith("  first words\nmore") and snippet.matches == ()
    assert snippet.start_line == 12


def test_the_line_counts_from_where_the_content_starts() -> None:
    content = "x\n" * 300 + "needle"
    words = query_words("needle")
    plain = make_snippet(node(content), words)
    whole_file = make_snippet(node(content, start_line=None), words)
    assert plain.start_line is not None
    lines_before = content[: content.rindex(plain.text)].count("\n")
    assert plain.start_line == 10 + lines_before
    assert whole_file.start_line == 1 + lines_before


HEADED = "# List\n\nText before.\n\n| name | size |\n| --- | --- |\n"


@pytest.mark.parametrize("query", ["row7", "row30", "row59", "name", "size row12", "absent"])
def test_the_lines_of_a_table_that_was_cut_are_those_of_the_file(query: str) -> None:
    text = HEADED + "".join(f"| row{number} | {number * 'x'} |\n" for number in range(60))
    context = FileContext(account="a", project="p", repository="r", path="sizes.md", commit=None, now=0, max_chars=300)
    chunks = [one for one in extract_markdown(text, context).nodes if "content" in one.text]
    assert sum("prefix_chars" in chunk.properties for chunk in chunks) > 3
    lines = text.split("\n")
    for chunk in chunks:
        snippet = make_snippet(chunk, query_words(query), 60)
        assert snippet.start_line is not None
        assert snippet.text.split("\n")[0] in lines[snippet.start_line - 1], (snippet, chunk)


def test_blank_lines_before_the_passage_go_and_its_indentation_stays() -> None:
    lone = cut("x" * 300 + "\n" * 60 + "    needle here", "needle")
    assert lone.text == "    needle here"


def test_summary_and_title_stand_in_and_name_no_line() -> None:
    words = query_words("needle")
    in_summary = make_snippet(node("hay", summary="a needle", title="needle"), words)
    assert (in_summary.text, in_summary.start_line) == ("a needle", None)
    in_title = make_snippet(node(title="The needle"), words)
    assert (in_title.text, in_title.start_line) == ("The needle", None)
    nowhere = make_snippet(node("hay", summary="straw"), words)
    assert (nowhere.text, nowhere.start_line) == ("hay", 10)
    assert make_snippet(node(), words) == Snippet(text="", matches=(), start_line=None)


def test_one_long_line_is_cut_between_whole_characters() -> None:
    family = "👩\u200d👩\u200d👧\u200d👦"
    content = family * 100 + "needle." + "e\u0301" * 400
    snippet = cut(content, "needle")
    at = content.index(snippet.text)
    assert "needle" in snippet.text and len(snippet.text) <= WIDTH
    assert not joins(content, at) and not joins(content, at + len(snippet.text))


def test_a_match_longer_than_the_passage_is_clipped() -> None:
    word = "x" * 900
    snippet = cut(f"see {word} there", word)
    assert len(snippet.text) <= WIDTH
    assert snippet.matches and snippet.matches[-1][1] <= len(snippet.text)


def test_a_huge_query_and_a_huge_text_are_bounded() -> None:
    words = query_words(" ".join(f"w{number}" for number in range(20_000)))
    assert len(words) <= 48
    assert len(cut("w1 " * 100_000, "w1").matches) <= WIDTH


def longest_character(text: str) -> int:
    borders = [at for at in range(len(text) + 1) if not joins(text, at)]
    return max((after - before for before, after in pairwise(borders)), default=0)


TEXT = st.text(
    st.one_of(
        st.sampled_from(list("abcdeABC  \n\n._-123é")),
        st.sampled_from(["\u0301", "\u200d", "👩", "🇩", "🇪", "检", "索", "ß", "ﬁ", "が", "\u1112", "\u1161", "İ", "\0", "\r"]),
        st.characters(exclude_categories=["Cs"]),
    ),
    max_size=400,
)


@settings(max_examples=80, deadline=None)
@given(TEXT, st.one_of(TEXT, st.sampled_from(["abc", "检索", "é", "a b c"])), st.integers(20, 120))
def test_whatever_the_text_the_snippet_is_a_clean_piece_of_it(content: str, query: str, width: int) -> None:
    snippet = cut(content, query, width)
    assert snippet.text in content
    assert len(snippet.text) <= width
    last = 0
    for start, end in snippet.matches:
        assert last <= start < end <= len(snippet.text)
        last = end
    if content.count(snippet.text) == 1:
        at = content.index(snippet.text)
        assert not joins(content, at) or longest_character(content) > 10
        assert (
            not joins(content, at + len(snippet.text))
            or longest_character(content) > 10
            or content[at + len(snippet.text)].isspace()
        )


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(["alpha", "Beta", "gammaDelta", "x_y", "检索系统", "été"]), min_size=1, max_size=60), st.data())
def test_a_word_that_is_there_is_always_shown(words: list[str], data: st.DataObject) -> None:
    word = data.draw(st.sampled_from(words))
    snippet = cut(" ".join(words), word)
    assert snippet.matches
