"""The analyzers on real Lucene: what a text's terms are, recorded, and what holds for every text."""

import json
import sys
import unicodedata
from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cluster.index.analysis import MAX_TERM, analysis, runs
from cluster.index.analyzers import analyzer, tokens
from tests.support.factories import make_node
from tests.support.lexical import analyse, row_terms

TEXTS = (
    "parseHTTPResponse2Json",
    "HTTPServer",
    "OvertimeService",
    "snake_case",
    "kebab-case",
    "pkg.mod:func",
    "src/lib/util.py",
    "./scripts/deploy.sh",
    "scripts\\deploy.sh",
    "C:\\Users\\noor\\notes.txt",
    ".sh",
    "ROW_NUMBER() OVER",
    "C++ and C# and .NET, C++17",
    "ASP.NET node.js",
    "std::vector<int> a->b",
    "__init__ _private a__b ___",
    "$scope @decorator #tag",
    "noor@example.org",
    "http://example.org/a/b?x=1&y=2",
    "v2.1.0 apiV2Handler oauth2_Client HCA060T",
    "word, (word) \"word\" 'word' word. word!",
    "the engine's drawing, don't",
    "GO:0006275",
    'foo:bar AND (baz* OR "unclosed',
    "! * ~ -- && || ? ^2 [ ] { }",
    "i++; x = arr[0]",
    "flows flow flowing",
    "café résumé crème Manutenção naïve",
    "café résumé",
    "Straße ΟΔΟΣ İstanbul",
    "ﬁne Ⅳ ＡＢＣ ½",
    "混合检索系统使用倒排索引",
    "認証システムはトークンを使う",
    "GitHub备份脚本上传失败",
    "猫",
    "한국어를 배우다",
    "हिन्दी भाषा",
    "ship\U0001f680it \u2764\ufe0f \U0001f469\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466",
    "soft\xadhyphen zero\u200dwidth zero\u200bspace",
    "alpha\x00omega \ud83d tail",
    "größeÄndern",
    "2024-01-05T10:20:30",
    "wait...what a--b",
    "%s\\n",
    "ROW_NUMBER()",
    "Map<String, List<Integer>>",
    "a->b == c != d",
    "getUTF8StringFromIPv6Address",
    "XMLHttpRequest2",
    "__proto__",
    "--no-verify",
    "@org/pkg-name",
    "s3://bucket/key.parquet",
    "1,000.5 3.14e-10",
    "λx.x ∀",
    "x̂ ﷺ",
    "the teams’ flows aren’t",
    "ǅabc Ωmega",
    "ราคาไทย",
    "C:\\\\work\\\\scripts",
    "foo::Bar<T>::baz()",
    "#include <stdio.h>",
    "i18n l10n k8s",
    "user_id=42&mode=READ_ONLY",
)

any_text = st.text(st.characters(), max_size=100) | st.text("aZ9_./:@-\\'+#|é한漢あ🚀\u0301\u200d \ud83d\ua66e", max_size=60)
quick = settings(max_examples=50)


def read(name: str, text: str) -> list[str]:
    """The terms of one analyzer, in order and with repeats."""
    return [term for run in runs(text) for term in tokens(run, analyzer(name))]


def test_golden_terms(golden: Callable[[str, str], None]) -> None:
    table = [{"text": text, "code": read("code", text), "prose": read("prose", text)} for text in TEXTS]
    lines = ",\n".join(json.dumps(row, ensure_ascii=True) for row in table)
    golden("analyzers.json", f"[\n{lines}\n]\n")


@pytest.mark.parametrize(
    ("identifier", "parts"),
    [
        ("parseHTTPResponse2Json", ["parse", "http", "response", "2", "json"]),
        ("HTTPServer", ["http", "server"]),
        ("getUTF8StringFromIPv6Address", ["get", "utf", "8", "string", "from", "i", "pv", "6", "address"]),
        ("refresh_token_rotation", ["refresh", "token", "rotation"]),
        ("ROW_NUMBER", ["row", "number"]),
        ("__init__", ["init"]),
        ("a__b", ["a", "b"]),
        ("apiV2Handler", ["api", "v", "2", "handler"]),
        ("HCA060T", ["hca", "060", "t"]),
        ("oauth2_Client", ["oauth", "2", "client"]),
        ("kebab-case", ["kebab", "case"]),
        ("pkg.mod:func", ["pkg.mod", "pkg", "mod", "func"]),
        ("src/lib/util.py", ["src", "lib", "util.py", "util", "py"]),
        ("größeÄndern", ["größe", "ändern"]),
        ("node.js", ["node", "js"]),
        ("word", []),
        ("C++", []),
        (".NET", []),
        ("C#", []),
    ],
)
def test_an_identifier_is_found_whole_and_by_its_parts(identifier: str, parts: list[str]) -> None:
    assert read("code", identifier) == [identifier.lower(), *parts]
    assert [term for term in analyse(identifier) if term not in analyse(f"{identifier} zzz")] == []


@pytest.mark.parametrize(
    "bare", ["word,", "(word)", '"word"', "'word'", "word.", "«word»", "word…", "[word]", "*word*", "word\u2019s", "word's"]
)
def test_punctuation_around_a_word_leaves_no_trace(bare: str) -> None:
    assert read("code", bare) == read("prose", bare) == ["word"]


@quick
@given(any_text)
@example("C++" * 200)
@example("a/" * 400)
@example("_" * 300 + "a")
@example("a_" * 127)
@example("_\u0300")
@example("_\u0300a b._\u0300 \u0300c")
@example("\ua66e\ua66e\ua66e b \ua66e\ua66e\ua66e")
def test_any_text_gives_clean_terms(text: str) -> None:
    for term in analyse(text):
        assert 0 < len(term) <= 2 * MAX_TERM
        assert term.strip("_"), term
        assert not any(char.isspace() or char in "|,\x00" for char in term)
        assert term.isascii() <= (term == term.lower())


@quick
@given(any_text)
def test_decomposed_and_composed_text_have_the_same_terms(text: str) -> None:
    assert analyse(unicodedata.normalize("NFC", text)) == analyse(unicodedata.normalize("NFD", text))


@quick
@given(st.lists(any_text, max_size=6))
def test_what_stands_beside_a_text_changes_none_of_its_terms(texts: list[str]) -> None:
    """Runs are analysed many at a time, remembered and added up: the same as each text by itself."""
    together = row_terms(make_node(text={"content": " ".join(texts)}))
    alone: dict[str, int] = {}
    for text in texts:
        for name in ("code", "prose"):
            for term in read(name, text):
                folded = term if term.isascii() else term.casefold()
                alone[folded] = alone.get(folded, 0) + 1
    assert together == alone


@quick
@given(st.text("aBc9_./:@-\\'+#,;(){}<>=!*&|\"é漢あ🚀", max_size=60))
def test_runs_are_cut_where_no_token_can_reach(text: str) -> None:
    for name in ("code", "prose"):
        assert read(name, text) == tokens(unicodedata.normalize("NFKC", text), analyzer(name))


def test_every_character_has_terms_without_separators() -> None:
    letters = [
        f"a{char}b" for char in map(chr, range(sys.maxunicode + 1)) if char.isalnum() or unicodedata.category(char)[0] == "M"
    ]
    assert len(letters) > 100_000
    for start in range(0, len(letters), 10_000):
        for term in row_terms(make_node(text={"content": " ".join(letters[start : start + 10_000])})):
            assert term and not any(char.isspace() or char in "|," for char in term)


def test_forgetting_runs_changes_no_term(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["one two flows", "three flows four", "one five six seven"]
    before = [row_terms(make_node(text={"content": text})) for text in texts]
    monkeypatch.setattr("cluster.index.analysis._MEMORY", 4)
    analysis()._known.clear()
    analysis()._older.clear()
    for _ in range(3):
        for text, terms in zip(texts, before, strict=True):
            assert row_terms(make_node(text={"content": text})) == terms
            assert len(analysis()._known) <= 4 and len(analysis()._older) <= 4
    assert "flows" in analysis()._known.keys() | analysis()._older.keys()


def test_english_is_what_anserini_makes_of_a_whole_text() -> None:
    text = "The flows aren't 1,000 caf\u00e9s: U.S.A. parsing/parsers, e-mail noor@example.org 'quoted' \u2019tis"
    whole = tokens(text, analyzer("english"))
    counted = analysis("english").row_terms(make_node(text={"content": text}))
    assert counted == {term: whole.count(term) for term in whole}
    assert analysis("english").row_text(make_node(text={"content": text})).length == len(whole)
    assert analysis("english").query_terms("flow flows stone") == {"flow": 2, "stone": 1}
    assert analysis("text").query_terms("stone stone") == {"stone": 1}
