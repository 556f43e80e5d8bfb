import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.link import link
from tests.support.code import ACCOUNT, PROJECT, Linked, extract, folder, local

CYCLE = """def a():
    return b()


def b():
    return c()


def c():
    a()
    return d()


def d():
    return d()
"""


def test_relative_imports_reach_the_module_and_not_the_name() -> None:
    linked = Linked(folder("relative_imports"))
    assert linked.pairs("IMPORTS") == {
        ("pkg/tools/diag.py", "pkg/jenkins/build_tree.py"),
        ("pkg/x/__init__.py", "pkg/x/x.py"),
        ("pkg/tasks.py", "pkg/celery.py"),
    }
    assert linked.calls() == {
        ("pkg/tools/diag.py::run", "pkg/jenkins/build_tree.py::flatten"),
        ("pkg/tasks.py::go", "pkg/celery.py::make"),
    }


def test_reexports_star_imports_and_cycles() -> None:
    linked = Linked(folder("reexports"))
    assert linked.calls(certain=True) == {
        ("views.py::go", "pkg/responses.py::Redirect"),
        ("views.py::star", "pkg/star.py::helper"),
    }
    assert linked.calls() == linked.calls(certain=True)
    assert ("pkg/a.py", "pkg/b.py") in linked.pairs("IMPORTS")
    assert ("views.py", "pkg/__init__.py") in linked.pairs("IMPORTS")


def test_calls_through_a_module_or_an_alias() -> None:
    linked = Linked(folder("module_calls"))
    callers = {"by_module", "by_alias", "by_from_alias", "inner_import", "in_comprehension"}
    assert linked.callers("services/kit.py::sync") == {f"use.py::{name}" for name in callers}
    assert linked.pairs("REFERENCES") == {("use.py::handed_over", "services/kit.py::sync")}
    assert linked.pairs("IMPORTS") == {("use.py", "services/kit.py")}


def test_the_same_name_in_two_modules_is_never_guessed() -> None:
    linked = Linked(folder("same_names"))
    assert linked.calls() == {
        ("invoice.py::total", "billing/helpers.py::format_amount"),
        ("label.py::show", "shipping/helpers.py::format_amount"),
    }


def test_each_edge_of_a_cycle_once() -> None:
    linked = Linked({"cyc.py": CYCLE})
    assert sorted(local(linked.calls())) == [("a", "b"), ("b", "c"), ("c", "a"), ("c", "d"), ("d", "d")]
    assert len(linked.edges) == 5


def test_members_are_found_through_self_class_and_bases() -> None:
    linked = Linked(
        {
            "base.py": "class Base:\n    def run(self): return self.step()\n    def step(self): return 0\n",
            "mid.py": "from base import Base as B\nclass Mid(B):\n    def step(self): return super().step()\n",
            "leaf.py": (
                "import mid\nfrom abc import ABC\nclass Leaf(ABC, mid.Mid):\n    def go(self): return self.run()\n"
                "    @staticmethod\n    def make(self): return self.run()\ndef use(): return Leaf.step\n"
            ),
        }
    )
    assert linked.calls(certain=True) == {
        ("base.py::Base.run", "base.py::Base.step"),
        ("mid.py::Mid.step", "base.py::Base.step"),
    }
    # A base from outside may have the member too.
    assert ("leaf.py::Leaf.go", "base.py::Base.run") in linked.calls()
    assert ("leaf.py::Leaf.make", "base.py::Base.run") not in linked.calls()
    assert ("leaf.py::use", "mid.py::Mid.step") in linked.pairs("REFERENCES")
    assert ("leaf.py::Leaf", "mid.py::Mid") in linked.pairs("REFERENCES")


def test_a_local_binding_hides_the_module_s() -> None:
    source = (
        "def f(): pass\n"
        "def parameter(f): f()\n"
        "def assigned():\n    f = print\n    f()\n"
        "def later():\n    f()\n    for f in (): pass\n"
        "def outer():\n    def f(): pass\n    return f()\n"
        "class C:\n    def f(self): pass\n    def g(self): f()\n"
        "def comprehension(): return [f for f in ()], f()\n"
        "def inside(): return [f() for f in ()]\n"
        "def declared():\n    global f\n    f()\n    f = print\n"
        "def caught():\n    try: pass\n    except E as f: f()\n"
        "def matched(x):\n    match x:\n        case [f]: f()\n"
        "def lambdas(): return lambda f: f()\n"
        "def walrus():\n    if (f := 1): f()\n"
    )
    calls = local(Linked({"m.py": source}).calls())
    assert calls == {("outer", "outer.f"), ("C.g", "f"), ("comprehension", "f"), ("declared", "f")}


def test_a_class_body_sees_its_own_names_and_its_functions_do_not() -> None:
    source = "class C:\n    def f(self): pass\n    table = [g for g in (f,)]\n    def h(self): return f\n"
    assert local(Linked({"m.py": source}).pairs("REFERENCES")) == {("C", "C.f")}


def test_what_is_bound_twice_is_less_than_certain() -> None:
    files = {
        "fast.py": "def dump(x): return x\n",
        "fallback.py": "try:\n    from fast import dump\nexcept ImportError:\n    def dump(x): return 1\n",
        "optional.py": "try:\n    from fast import dump\nexcept ImportError:\n    dump = None\ndef go(): dump(1)\n",
        "user.py": "from fallback import dump\ndef go(): dump(1)\n",
        "twice.py": "if x:\n    def f(): pass\nelse:\n    def f(): pass\ndef go(): f()\n",
    }
    linked = Linked(files)
    assert linked.callers("fast.py::dump") == {"optional.py::go"}
    assert linked.callers("twice.py::f") == {"twice.py::go"}
    assert linked.calls(certain=True) == set()


def test_a_method_of_an_unknown_value_is_at_most_a_guess() -> None:
    files = {
        "store.py": "class Store:\n    def persist(self): pass\n    def get(self): pass\n",
        "user.py": "from store import Store\ndef f(s): s.persist(); s.get()\n",
        "stranger.py": "def f(s): s.persist()\n",
    }
    linked = Linked(files)
    assert linked.calls() == {("user.py::f", "store.py::Store.persist")}
    assert linked.calls(certain=True) == set()
    twins = Linked({**files, "other.py": "class Other:\n    def persist(self): pass\n"})
    assert twins.calls() == set()


def test_decorators_annotations_bases_and_tables_are_references() -> None:
    source = (
        "def deco(f): return f\nclass Base: pass\nclass Point: pass\ndef handler(): pass\n"
        "@deco\ndef one(p: Point) -> None: pass\n"
        "class Two(Base): pass\n"
        "TABLE = {'x': handler}\n"
    )
    references = local(Linked({"m.py": source}).pairs("REFERENCES"))
    assert references == {("one", "deco"), ("one", "Point"), ("Two", "Base"), ("", "handler")}


@pytest.mark.parametrize(
    ("files", "imports"),
    [
        (["src/pkg/__init__.py", "src/pkg/a.py", "tests/test_a.py"], {"tests/test_a.py": "src/pkg/a.py"}),
        (["pkg/a.py", "main.py"], {"main.py": "pkg/a.py"}),
        (["one/pkg/__init__.py", "one/pkg/a.py", "two/pkg/__init__.py", "two/pkg/a.py", "main.py"], {}),
        (
            ["one/pkg/__init__.py", "one/pkg/a.py", "one/main.py", "two/pkg/__init__.py", "two/pkg/a.py"],
            {"one/main.py": "one/pkg/a.py"},
        ),
        (["deep/pkg/a.py", "main.py"], {}),
        (["app/pkg/__init__.py", "app/pkg/a.py", "app/pkg/sub/__init__.py", "main.py"], {"main.py": "app/pkg/a.py"}),
    ],
)
def test_modules_are_found_by_the_roots_that_packages_give(files: list[str], imports: dict[str, str]) -> None:
    importer = next(path for path in files if path.endswith(("main.py", "test_a.py")))
    linked = Linked({path: "from pkg.a import x\n" if path == importer else "x = 1\n" for path in files})
    assert dict(linked.pairs("IMPORTS")) == imports


def test_the_standard_library_is_not_a_file_of_the_same_name() -> None:
    linked = Linked({"json.py": "def loads(x): pass\n", "main.py": "import json\ndef f(): json.loads('')\n"})
    assert linked.edges == ()


def test_endless_chains_end() -> None:
    chain = {f"m{number}.py": f"from m{number + 1} import x\n" for number in range(300)}
    Linked({**chain, "m300.py": "def x(): pass\n", "main.py": "from m0 import x\nx()\n"})
    own_base = "from b import Foo\nclass Foo(Foo.A, Foo.B, Foo.C): pass\nFoo.thing()\n"
    Linked({"a.py": own_base, "b.py": "from a import Foo\n"})
    bases = "class C0: pass\n" + "".join(f"class C{number}(C{number - 1}.X): pass\n" for number in range(1, 400))
    Linked({"a.py": "from bases import C399\nC399.X()\n", "bases.py": bases})
    Linked({"a.py": "from b import *\nx()\n", "b.py": "from c import *\n", "c.py": "from a import *\nfrom b import *\n"})
    Linked({"loop.py": "a = b\nb = a\na()\n"})


def test_a_star_import_brings_what_the_module_exports() -> None:
    linked = Linked(
        {
            "lib.py": "__all__ = ['shown']\n__all__ += ['_listed']\ndef shown(): 1\ndef _listed(): 1\ndef other(): 1\n",
            "open.py": "def plain(): pass\ndef _hidden(): pass\n",
            "main.py": "from lib import *\nfrom open import *\ndef f(): shown(), _listed(), other(), plain(), _hidden()\n",
        }
    )
    assert {to.partition("::")[2] for _, to in linked.calls()} == {"shown", "_listed", "plain"}


def test_links_do_not_depend_on_the_order_of_the_files() -> None:
    files = folder("reexports") | folder("same_names")
    facts = {path: extract(path, source).facts for path, source in files.items()}
    edges = link(ACCOUNT, PROJECT, facts)
    assert edges == link(ACCOUNT, PROJECT, dict(reversed(facts.items())))
    assert len({(edge.from_id, edge.type, edge.to_id) for edge in edges}) == len(edges)
    assert edges == link(ACCOUNT, PROJECT, json.loads(json.dumps(facts)))
    assert link(ACCOUNT, PROJECT, {}) == ()


def test_one_pair_keeps_its_first_line() -> None:
    linked = Linked({"m.py": "def f(): pass\ndef g():\n    f()\n    f()\n"})
    assert [edge.properties for edge in linked.edges] == [{"line": 3, "confidence": 1.0}]


_NAMES = st.sampled_from(["a", "b", "pkg", "x", "y"])
_STATEMENTS = st.one_of(
    st.builds("from {} import {}".format, st.sampled_from([".", "..", ".a", ".b", "pkg", "pkg.a", "x"]), _NAMES),
    st.builds("from {} import *".format, st.sampled_from([".", ".a", "pkg", "pkg.b"])),
    st.builds("import {}.{} as {}".format, _NAMES, _NAMES, _NAMES),
    st.builds("class {}({}.{}): pass".format, _NAMES, _NAMES, _NAMES),
    st.builds("{} = {}.{}".format, _NAMES, _NAMES, _NAMES),
    st.builds("def {}(): {}.{}()".format, _NAMES, _NAMES, _NAMES),
)


@given(st.dictionaries(st.sampled_from(["pkg/__init__.py", "pkg/a.py", "pkg/b.py", "x.py"]), st.lists(_STATEMENTS, max_size=6)))
def test_any_tangle_of_imports_ends_and_leads_only_to_what_exists(files: dict[str, list[str]]) -> None:
    linked = Linked({path: "\n".join(lines) + "\n" for path, lines in files.items()})
    known = {node.id for found in linked.extracted.values() for node in found.nodes}
    assert {edge.to_id for edge in linked.edges} <= known
    assert {edge.from_id for edge in linked.edges} <= known
    assert all(0 < edge.properties["confidence"] <= 1 for edge in linked.edges)
