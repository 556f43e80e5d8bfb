import tokenize
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.errors import UsageError
from jobs.code import extract_code, language_of
from jobs.decode import decode
from jobs.model import FileContext, document_id
from tests.support.code import ACCOUNT, PROJECT, Linked, assert_whole, extract, local, rows, symbols

FACTORY = """def target():
    return 0


def module_level():
    return target()


if True:
    def inside_if():
        return target()


def factory():
    def nested():
        return target()
    return nested


def create_app(app):
    @app.get("/x")
    async def handler():
        return target()
    return app
"""

DECORATED = '''import functools


class Svc:
    """A service.

    With a second paragraph.
    """

    def plain(self):
        return 1

    @classmethod
    def build(cls, raw):
        return cls()

    @property
    def size(self):
        return self.plain()

    async def fetch(self):
        return self.plain()


@functools.lru_cache
@functools.wraps(len)
def top(x):
    return x
'''

CLOSE_NAMES = """from typing import overload


class Session:
    pass


def session():
    return Session()


class Rules:
    def _add(self, p):
        return p

    def add(self, p):
        return self._add(p)

    def __add(self, p):
        return p

    @overload
    def size(self, x: int) -> int: ...
    @overload
    def size(self, x: str) -> str: ...
    def size(self, x):
        return x

    def twice(self, x):
        return self.size(self.size(x))


def visit_TEXT():
    return 1


def visit_text():
    return 2
"""

UNICODE = '''# café — notes → π 🚀
import os


# ñ/code
def toggle_pause():
    """Прервать 停止"""
    return os.sep


def größe():
    return toggle_pause()


def after():
    return größe()
'''

DEEP = "x = " + "(" * 3000 + ")" * 3000 + "\n\n\ndef tail():\n    return 1\n"


def test_functions_inside_functions_and_branches_are_symbols_and_callers() -> None:
    found = extract("app.py", FACTORY)
    names = ["target", "module_level", "inside_if", "factory", "factory.nested", "create_app", "create_app.handler"]
    assert list(symbols(found)) == names
    callers = Linked({"app.py": FACTORY}).callers("app.py::target")
    assert callers == {f"app.py::{name}" for name in ("module_level", "inside_if", "factory.nested", "create_app.handler")}


def test_decorated_and_async_definitions() -> None:
    found = symbols(extract("deco.py", DECORATED))
    assert list(found) == ["Svc", "Svc.plain", "Svc.build", "Svc.size", "Svc.fetch", "top"]
    kinds = {name: node.labels for name, node in found.items()}
    assert kinds["Svc"] == ("Symbol", "Class")
    assert kinds["Svc.fetch"] == ("Symbol", "Method")
    assert kinds["top"] == ("Symbol", "Function")
    assert found["top"].properties["decorators"] == ["functools.lru_cache", "functools.wraps"]
    assert found["Svc.fetch"].text["title"] == "async def fetch(self)"
    assert found["Svc"].text["summary"] == "A service."
    assert found["top"].text["content"].startswith("@functools.lru_cache\n")
    top = found["top"].source
    assert top is not None
    assert (top.start_line, top.end_line, found["top"].properties["line"]) == (25, 28, 27)
    calls = local(Linked({"deco.py": DECORATED}).calls())
    assert calls == {("Svc.size", "Svc.plain"), ("Svc.fetch", "Svc.plain"), ("Svc.build", "Svc")}


def test_names_that_differ_by_case_or_underscore_stay_apart() -> None:
    found = extract("rules.py", CLOSE_NAMES)
    names = ["Session", "session", "Rules", "Rules._add", "Rules.add", "Rules.__add", "Rules.size", "Rules.twice"]
    assert list(symbols(found)) == [*names, "visit_TEXT", "visit_text"]
    assert len({node.id for node in found.nodes}) == len(found.nodes)
    linked = Linked({"rules.py": CLOSE_NAMES})
    assert ("Rules.add", "Rules._add") in local(linked.calls())
    # Of the overloads the one with the body is called.
    caller, body = symbols(found)["Rules.twice"].id, symbols(found)["Rules.size"].id
    assert [(edge.to_id, edge.properties["confidence"]) for edge in linked.edges if edge.from_id == caller] == [(body, 1.0)]
    assert symbols(found)["Rules.size"].text["title"] == "def size(self, x)"


def test_text_is_cut_by_bytes_of_the_encoded_source() -> None:
    found = symbols(extract("uni.py", UNICODE))
    starts = {name: node.source.start_line for name, node in found.items() if node.source is not None}
    assert starts == {"toggle_pause": 6, "größe": 11, "after": 15}
    assert all(node.text["content"].startswith("def ") for node in found.values())
    assert found["toggle_pause"].text["summary"] == "Прервать 停止"
    calls = local(Linked({"uni.py": UNICODE}).calls())
    assert calls == {("größe", "toggle_pause"), ("after", "größe")}


def test_a_syntax_error_is_named_and_what_could_be_parsed_is_kept() -> None:
    source = "def before():\n    return 1\n\n\ndef broken(:\n    pass\n\n\ndef after():\n    return before()\n"
    found = extract("a.py", source)
    assert found.warnings == ("parse error, line 5",)
    assert found.nodes[0].properties["parse_error_line"] == 5
    assert {"before", "after"} <= set(symbols(found))
    assert ("after", "before") in local(Linked({"a.py": source}).calls())
    assert_whole(found, source)


def test_what_the_parser_cannot_read_is_still_text_to_find() -> None:
    before = "def before():\n    return 1\n\n\n"
    source = before + "def broken(x:\n    return x +\n\n\nclass K:\n    def m(self):\n        return after()\n"
    found = extract("b.py", source)
    assert found.warnings == ("parse error, line 5",)
    assert "before" in symbols(found)
    assert any("class K" in node.text["content"] for node in rows(found))
    assert_whole(found, source)


@pytest.mark.parametrize(
    ("raw", "names"),
    [
        (b"# -*- coding: latin-1 -*-\ndef caf\xe9_total(x):\n    return x\n", ["café_total"]),
        (b"def caf\xe9_total(x):\n    return x\n", ["café_total"]),
        ("\ufeffdef wide():\n    return 1\n".encode("utf-16-le"), ["wide"]),
        (b"\xef\xbb\xbfdef first(): pass\r\ndef second(): pass\r\n", ["first", "second"]),
    ],
)
def test_other_encodings_keep_their_names(raw: bytes, names: list[str]) -> None:
    assert list(symbols(extract("x.py", decode(raw).text))) == names


@pytest.mark.parametrize(
    "source",
    [
        DEEP,
        "x = " + "f(" * 3000 + ")" * 3000 + "\n\n\ndef tail():\n    return 1\n",
        "x" + ".a" * 3000 + "()\n\n\ndef tail():\n    return 1\n",
        "x = a" + ".b()" * 3000 + "\n\n\ndef tail():\n    return 1\n",
    ],
)
def test_deep_expressions_do_not_end_the_walk(source: str) -> None:
    found = extract("deep.py", source)
    assert "tail" in symbols(found)
    assert_whole(found, source)
    Linked({"deep.py": source})


def test_deeply_nested_definitions_stay_bounded() -> None:
    source = "".join(" " * depth + f"def f{depth}():\n" for depth in range(400)) + " " * 400 + "pass\n"
    found = extract("nest.py", source)
    assert max(len(name) for name in symbols(found)) <= 500
    assert_whole(found, source)


def test_a_large_real_file_is_read_to_its_last_function() -> None:
    source = "".join(f"def f_{number:04d}(x):\n    return x + {number}\n\n\n" for number in range(2000))
    found = extract("big.py", source)
    assert len(symbols(found)) == 2000
    assert "f_1999" in symbols(found)


def test_constants_are_symbols_and_other_assignments_are_not() -> None:
    source = (
        "HCA060T = 1\n#: Seconds.\nTIMEOUT: float = 5.0\nretries: int = 3\ncounter = 0\nT = 1\n"
        "type Pair = tuple[int, int]\n\n\ndef f():\n    LOCAL = 1\n    return LOCAL\n"
    )
    found = symbols(extract("names.py", source))
    assert {name: node.properties["kind"] for name, node in found.items()} == {
        "HCA060T": "Variable",
        "TIMEOUT": "Variable",
        "retries": "Variable",
        "Pair": "Type",
        "f": "Function",
    }
    assert found["TIMEOUT"].text["content"] == "#: Seconds.\nTIMEOUT: float = 5.0"
    assert found["TIMEOUT"].text["summary"] == "Seconds."


def test_odd_identifiers_are_kept_as_they_are() -> None:
    source = (
        "def parseHTMLResponse(): pass\nclass oauth2_Client: pass\ndef apiV2Handler(): pass\ndef _private(a__b): return a__b\n"
    )
    assert list(symbols(extract("names.py", source))) == ["parseHTMLResponse", "oauth2_Client", "apiV2Handler", "_private"]


def test_content_is_cut_where_nested_symbols_begin_and_the_rest_becomes_chunks() -> None:
    body = "".join(f"    value_{number} = {number}\n" for number in range(30))
    method = "    def open(self):\n        return 1\n"
    source = f"import os\n\n\nclass Box:\n{body}\n{method}\n{body}\n\nprint(Box, os)\nprint(Box().open(), os.sep)\n"
    found = extract("box.py", source, max_chars=200)
    box = symbols(found)["Box"]
    assert box.text["content"].startswith("class Box:")
    assert "def open" not in box.text["content"]
    assert symbols(found)["Box.open"].text["content"] == "    def open(self):\n        return 1"
    chunks = {edge.to_id: edge.from_id for edge in found.edges if edge.type == "HAS_CHUNK"}
    by_owner = {node.id: node for node in rows(found) if node.labels == ("Chunk", "Code")}
    assert set(chunks) == set(by_owner)
    assert chunks[rows(found)[-1].id] == found.nodes[0].id
    assert sum(owner == box.id for owner in chunks.values()) >= 5
    assert {(edge.from_id, edge.to_id) for edge in found.edges if edge.type == "DEFINES"} == {
        (found.nodes[0].id, box.id),
        (box.id, symbols(found)["Box.open"].id),
    }
    assert_whole(found, source, 200)


def test_code_between_two_functions_is_the_document_s() -> None:
    between = "for name in ('one', 'two', 'three'):\n    register(name, first)"
    source = f"def first():\n    return 1\n\n\n{between}\n\n\ndef second():\n    return 2\n"
    found = extract("m.py", source)
    assert [(node.text.get("symbol"), node.text["content"]) for node in rows(found)] == [
        ("first", "def first():\n    return 1"),
        (None, between),
        ("second", "def second():\n    return 2"),
    ]
    assert [(edge.from_id, edge.to_id) for edge in found.edges if edge.type == "HAS_CHUNK"] == [
        (found.nodes[0].id, rows(found)[1].id)
    ]


def test_scraps_go_with_the_row_before_them() -> None:
    found = extract("wrap.py", "def wrap(f):\n    def inner():\n        return f()\n    return inner\n")
    assert [node.text["content"] for node in rows(found)] == [
        "def wrap(f):",
        "    def inner():\n        return f()\n    return inner",
    ]


def test_ids_do_not_depend_on_lines_or_commits() -> None:
    before = symbols(extract("app.py", FACTORY))
    moved = symbols(extract("app.py", "# a new first line\n\n" + FACTORY, commit="a" * 40))
    assert {name: node.id for name, node in before.items()} == {name: node.id for name, node in moved.items()}
    assert before["target"].content_hash == moved["target"].content_hash
    other = symbols(extract("other/app.py", FACTORY))
    assert not {node.id for node in before.values()} & {node.id for node in other.values()}


def test_the_document_is_the_file() -> None:
    found = extract("pkg/app.py", '"""What this module is for.\n\nMore."""\n\nX = 1\n')
    document = found.nodes[0]
    context = FileContext(ACCOUNT, PROJECT, "repo", "pkg/app.py", None, now=0)
    assert document.id == document_id(context)
    assert document.labels == ("Document", "File")
    assert document.text == {"title": "app.py", "path": "pkg/app.py", "summary": "What this module is for."}


@pytest.mark.parametrize("source", ["", "\n", "# only a comment\n", "\t\n \n", "def", '"""never closed', "\x0c\ndef f(): pass"])
def test_files_with_little_or_nothing_in_them(source: str) -> None:
    assert_whole(extract("x.py", source), source)


def test_languages_are_told_by_name() -> None:
    names = {"a.py": "python", "a.pyi": "python", "b/c.JS": "javascript", "d.mts": "typescript", "e.tsx": "tsx", "f.go": "go"}
    assert {path: language_of(path) for path in names} == names
    assert language_of("deep/go.mod") == "gomod"
    assert [language_of(path) for path in ("a.rs", "README", "go.mod.bak", "x.py.orig", ".py")] == [None] * 5
    with pytest.raises(UsageError):
        extract_code("", "cobol", FileContext(ACCOUNT, PROJECT, "repo", "a.cob", None, now=0))


_LINES = [
    "def f(a, *, b: int = 1) -> str:",
    "async def größe(self):",
    "class Box(Base, metaclass=Meta):",
    "@decorated(1)",
    "    def method(self): return self.other()",
    "        return [g(x) for x in xs if (y := x)]",
    "    pass",
    "if x: pass",
    "X = {'ключ': 1, '停止': [1, 2]}",
    "from .a import (b as c, d)",
    '"""doc',
    "# comment 🚀",
    "",
    "    ",
    "match x:",
    "    case Point(x=0, y=[a, *rest]) as p:",
    "global q; nonlocal r",
    "\tlambda *a, **k: (a, k)",
    ")]}",
]


@given(st.lists(st.sampled_from(_LINES), max_size=30), st.integers(20, 400))
def test_no_line_is_lost_or_doubled_whatever_the_source(lines: list[str], limit: int) -> None:
    source = "\n".join(lines)
    assert_whole(extract("x.py", source, limit), source, limit)
    Linked({"x.py": source})


@settings(max_examples=20)
@given(st.sampled_from([FACTORY, DECORATED, CLOSE_NAMES, UNICODE]), st.data())
def test_no_line_is_lost_or_doubled_in_a_damaged_file(source: str, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(source)))
    damaged = source[:start] + data.draw(st.text(max_size=4)) + source[start + data.draw(st.integers(0, 20)) :]
    damaged = decode(damaged.encode("utf-8", "replace")).text
    assert_whole(extract("x.py", damaged, 150), damaged, 150)


def test_the_readers_own_sources_come_back_whole() -> None:
    for path in sorted(Path("jobs/languages").glob("*.py")):
        with tokenize.open(path) as file:
            source = file.read()
        found = extract(path.as_posix(), source)
        assert not found.warnings
        assert_whole(found, source)
