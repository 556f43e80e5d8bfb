"""What is found by which words: code and prose, every script, and text that looks like query syntax."""

import unicodedata
from collections.abc import Mapping
from pathlib import Path

import pytest

from cluster.guards import search_guard
from cluster.index.analysis import MAX_QUERY_TERMS, choose_terms
from cluster.model.nodes import Node, Visibility
from tests.support.factories import make_node, make_principal
from tests.support.lexical import Ranked, analyse, opened, search, statistics


def ask(folder: Path, texts: Mapping[str, str], *queries: str) -> list[Ranked]:
    with opened(folder, documents(texts)) as partitions:
        return [search(partitions, query) for query in queries]


def documents(texts: Mapping[str, str]) -> list[Node]:
    return [make_node(name, text={"content": text}) for name, text in texts.items()]


def files(*paths: str, content: str = "") -> list[Node]:
    return [make_node(path, text={"title": path.rpartition("/")[2], "path": path, "content": content}) for path in paths]


SYNTAX_TEXTS = {
    "root": "root causes and solutions for timeouts in the api",
    "hosts": "the file hosts in etc",
    "call": "call a b yes foo arr json httpclient",
    "cpp": "C++ templates",
    "c": "a plain c program",
    "words": "and or not are words of any text",
    "plain": "nothing of this",
    "square": "x 2 times",
}


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("root causes/solutions for timeouts in src/api/v2", "root"),
        ("/etc/hosts", "hosts"),
        ("foo)", "call"),
        ("call(a, b", "call"),
        ('he said "yes', "call"),
        ("arr[0", "call"),
        ("{json", "call"),
        ("httpclient()", "call"),
        ("C++", "cpp"),
        ("AND", "words"),
        ("NOT", "words"),
        ("OR OR", "words"),
        ("a && !b", "call"),
        ("foo AND", "call"),
        ("text:nothing", "plain"),
        ("^2", "square"),
    ],
)
def test_query_syntax_is_plain_text(tmp_path: Path, query: str, first: str) -> None:
    (found,) = ask(tmp_path, SYNTAX_TEXTS, query)
    assert found.ids[0] == first


@pytest.mark.parametrize("query", ["!", "*", "~", "--", "&& ||", "?", "***", "(", '"', "\\", "[*"])
def test_punctuation_alone_finds_nothing_and_never_everything(tmp_path: Path, query: str) -> None:
    (found,) = ask(tmp_path, SYNTAX_TEXTS, query)
    assert (found.ids, found.matched) == ((), 0)


def test_slashes_find_what_spaces_find(tmp_path: Path) -> None:
    query = "root causes/solutions for timeouts in src/api/v2"
    slashes, spaces = ask(tmp_path, SYNTAX_TEXTS, query, query.replace("/", " "))
    assert set(slashes.ids) == set(spaces.ids)


def test_no_question_reaches_a_guard_column(tmp_path: Path) -> None:
    nodes = [
        make_node("a1", account="A", visibility=Visibility.PROJECT, text={"content": "Gene GO:0006275 regulates replication."}),
        make_node("b1", account="B", visibility=Visibility.TEAM, text={"content": "salary table"}),
        make_node("a2", account="A", visibility=Visibility.PERSONAL, owner_agent="noor", text={"content": "salary notes"}),
        make_node("a3", account="A", visibility=Visibility.PROJECT, deleted_at=7, text={"content": "salary draft, removed"}),
    ]
    guard = search_guard(make_principal(account="A"))
    smuggled = ["salary) OR account_id:B", "guard.account:B", "visibility:private", "null:scope", "* OR deleted:true", "salary"]
    with opened(tmp_path, nodes) as partitions:
        for query in smuggled:
            assert search(partitions, query, guard).ids == ()
        assert search(partitions, "GO:0006275", guard).ids == ("a1",)


def test_of_a_long_question_the_rarest_terms_are_asked(tmp_path: Path) -> None:
    query = " ".join([*(f"w{number:04}q" for number in range(1500)), "zanzibarix"])
    crowd = {f"c{number}": f"w{number // 2:04}q filler" for number in range(600)} | {"d": "filler valve"}
    texts = {"z": "The zanzibarix valve must be closed first."} | crowd
    with opened(tmp_path, documents(texts)) as partitions:
        terms = analyse(query)
        chosen, cut = choose_terms(terms, statistics(partitions, terms, search_guard(make_principal())))
        assert (len(chosen), len(chosen) + len(cut)) == (MAX_QUERY_TERMS, len(terms))
        assert "zanzibarix" in chosen
        assert "z" in search(partitions, query).ids


def test_a_giant_token_harms_neither_its_neighbours_nor_its_own_prose(tmp_path: Path) -> None:
    texts = {
        "ok-1": "The turbine is serviced in spring.",
        "blob": "# Blob\nThe gearbox drawing follows.\n\n" + "QUJDRGVm" * 5000,
        "ok-2": "The rotor is balanced in autumn.",
    }
    found = ask(tmp_path, texts, "turbine", "gearbox drawing", "rotor", "QUJDRGVm" * 5000)
    assert [ranked.ids for ranked in found] == [("ok-1",), ("blob",), ("ok-2",), ()]


COMPOSED, DECOMPOSED = (
    unicodedata.normalize("NFC", "Le résumé est prêt. 한국어"),
    unicodedata.normalize("NFD", "Le résumé est prêt. 한국어"),
)


@pytest.mark.parametrize("query", ["résumé", "한국어", "prêt"])
@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_composed_and_decomposed_text_find_each_other(tmp_path: Path, query: str, form: str) -> None:
    assert COMPOSED != DECOMPOSED
    nodes = [
        make_node(name, text={"content": text, "path": name}) for name, text in ((COMPOSED, COMPOSED), (DECOMPOSED, DECOMPOSED))
    ]
    with opened(tmp_path, nodes) as partitions:
        found = search(partitions, unicodedata.normalize(form, query))  # type: ignore[arg-type]
    assert set(found.ids) == {COMPOSED, DECOMPOSED}
    assert found.scores[0] == found.scores[1]


def test_accented_and_bare_words_find_each_other_and_the_exact_one_is_first(tmp_path: Path) -> None:
    texts = {
        "d1": "café au coin",
        "d2": "résumé of the candidate",
        "d3": "crème brûlée",
        "d4": "Manutenção preventiva",
        "d5": "resume the job after a crash",
    }
    pairs = {
        "café": "d1",
        "cafe": "d1",
        "crème": "d3",
        "creme": "d3",
        "Manutenção": "d4",
        "Manutencao": "d4",
        "manutencao": "d4",
    }
    with opened(tmp_path, documents(texts)) as partitions:
        for query, right in pairs.items():
            assert search(partitions, query).ids == (right,), query
        assert search(partitions, "résumé").ids == ("d2", "d5")
        assert search(partitions, "resume").ids == ("d5", "d2")


def test_chinese_and_japanese_are_found_by_words_inside_a_sentence(tmp_path: Path) -> None:
    texts = {
        "zh": "混合检索系统使用倒排索引",
        "ja": "認証システムはトークンを使う",
        "en": "hybrid retrieval uses an inverted index",
    }
    right = {"检索": ("zh",), "倒排索引": ("zh",), "認証": ("ja",), "トークン": ("ja",), "天气": (), "ﾄｰｸﾝ": ("ja",)}
    assert {query: ranked.ids for query, ranked in zip(right, ask(tmp_path, texts, *right), strict=True)} == right


def test_latin_and_chinese_in_one_run(tmp_path: Path) -> None:
    texts = {"m1": "GitHub 备份 脚本 上传 失败 时重试", "m2": "GitLab runner setup"}
    (found,) = ask(tmp_path, texts, "GitHub备份脚本上传失败")
    assert found.ids[0] == "m1"
    assert found.scores[0] > 0


def test_control_characters_part_words(tmp_path: Path) -> None:
    found = ask(tmp_path, {"n": "F\x0013 alpha\x00omega gamma \ud83d tail"}, "omega", "gamma", "alpha\x00", "tail", "\ud83d")
    assert [ranked.ids for ranked in found] == [("n",), ("n",), ("n",), ("n",), ()]


def test_a_camel_case_name_is_found_in_any_spelling_and_best_exactly(tmp_path: Path) -> None:
    texts = {
        "def": "class OvertimeService:\n    def approve(self):\n        return True",
        "other": "overtime is approved by the service",
    }
    queries = ("OvertimeService", "overtimeservice", "overtime service", "OVERTIME")
    found = ask(tmp_path, texts, *queries)
    assert all("def" in ranked.ids for ranked in found)
    best = found[0].as_map()["def"]
    assert all(best > ranked.as_map()["def"] for ranked in found[1:] if ranked is not found[1])
    assert found[0].ids[0] == found[1].ids[0] == "def"
    assert best > found[1].as_map()["def"]


def test_a_snake_case_name_is_found_whole_first_and_by_parts(tmp_path: Path) -> None:
    texts = {
        "def": "def refresh_token_rotation(user_id):\n    return user_id",
        "parts": "rotation of the token: refresh it, refresh the token in rotation",
        "private": "def _private(a__b):\n    return a__b",
    }
    with opened(tmp_path, documents(texts)) as partitions:
        assert "def" in search(partitions, "refresh token").ids
        assert search(partitions, "user").ids == search(partitions, "id").ids == ("def",)
        assert search(partitions, "refresh_token_rotation").ids[0] == "def"
        assert search(partitions, "private").ids == search(partitions, "a__b").ids == ("private",)


def test_acronyms_and_digits_inside_names(tmp_path: Path) -> None:
    names = ["parseHTMLResponse", "oauth2_Client", "HCA060T", "apiV2Handler", "unlockWithBiometrics", "biometricsHelper"]
    nodes = [make_node(name, text={"symbol": name, "content": f"def {name}(): pass"}) for name in names]
    right = {
        "html response": "parseHTMLResponse",
        "oauth2 client": "oauth2_Client",
        "hca060t": "HCA060T",
        "v2": "apiV2Handler",
        "unlockWithBiometrics": "unlockWithBiometrics",
        "biometricsHelper": "biometricsHelper",
    }
    with opened(tmp_path, nodes) as partitions:
        for query, name in right.items():
            assert search(partitions, query).ids[0] == name
        whole = search(partitions, "unlockWithBiometrics")
    assert whole.ids == ("unlockWithBiometrics", "biometricsHelper")
    assert whole.scores[0] > whole.scores[1]


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("scripts/deploy", "scripts/deploy"),
        ("scripts/deploy.sh", "scripts/deploy.sh"),
        ("deploy.sh", "scripts/deploy.sh"),
        (".sh", "scripts/deploy.sh"),
        ("./scripts/deploy.sh", "scripts/deploy.sh"),
        ("scripts\\deploy.sh", "scripts/deploy.sh"),
        ("src/deploy-runner.ts", "src/deploy-runner.ts"),
        ("deploy-runner", "src/deploy-runner.ts"),
        ("C:\\work\\scripts\\deploy.sh", "scripts/deploy.sh"),
    ],
)
@pytest.mark.parametrize("content", ["", "run the deploy script; scripts deploy sh deploy deploy"])
def test_a_path_finds_its_file_first(tmp_path: Path, query: str, first: str, content: str) -> None:
    paths = ["scripts/deploy", "scripts/deploy.sh", "src/deploy-runner.ts", "docs/deploy.md", "sh/scripts.md"]
    with opened(tmp_path, files(*paths, content=content)) as partitions:
        assert search(partitions, query).ids[0] == first


@pytest.mark.parametrize(
    ("query", "right"),
    [
        ("C++", {"cpp"}),
        ("c#", {"cs"}),
        (".NET", {"net"}),
        ("node.js", {"node"}),
        ("noor@example.org", {"mail"}),
        ("http://example.org/a/b?x=1&y=2", {"url"}),
        ("v2.1.0", {"version"}),
        ("ROW_NUMBER()", {"sql"}),
        ("std::vector<int>", {"vector"}),
        ("kebab-case", {"kebab"}),
        ("$scope", {"scope"}),
        ("@decorator", {"decorator"}),
        ("pkg.mod:func", {"func"}),
        ("🚀", {"rocket"}),
    ],
)
def test_names_with_punctuation_are_found_first(tmp_path: Path, query: str, right: set[str]) -> None:
    texts = {
        "cpp": "written in C++, mostly",
        "cs": "written in C#.",
        "net": "the (.NET) runtime",
        "node": "runs on node.js!",
        "mail": "write to <noor@example.org>",
        "url": 'see "http://example.org/a/b?x=1&y=2".',
        "version": "released v2.1.0, tagged",
        "sql": "SELECT ROW_NUMBER() OVER (ORDER BY id)",
        "vector": "std::vector<int> values;",
        "kebab": "in kebab-case;",
        "scope": "$scope.apply()",
        "decorator": "@decorator\ndef f(): pass",
        "func": "entry = pkg.mod:func",
        "rocket": "ship it🚀",
        "noise": "c net node js example org v2 1 0 row number std vector int kebab case pkg mod",
    }
    (found,) = ask(tmp_path, texts, query)
    assert found.ids[0] in right


def test_common_words_are_words(tmp_path: Path) -> None:
    """There are no stop words: a question of nothing else is answered, with low scores and no special case."""
    found = ask(tmp_path, {"h": "to be or not to be", "o": "something else"}, "to be or not to be", "the a an")
    assert found[0].ids == ("h",)
    assert found[1].ids == ()
