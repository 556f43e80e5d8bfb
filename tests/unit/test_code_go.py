from hypothesis import given
from hypothesis import strategies as st

from tests.support.code import Linked, assert_whole, extract, rows, symbols

STORE = """// Package store keeps orders.
//
// More about it.
package store

import (
	"fmt"

	util "example.com/shop/internal/util"
)

// Status of an order — größer 🚀.
type Status int

const (
	// Open is new.
	Open Status = iota
	closed
)

const Limit = 3

var ErrMissing = fmt.Errorf("missing")

// Put adds an order.
//
// It never fails.
func (s *Store[T]) Put(o T) error {
	go func() { util.Do() }()
	return nil
}

func helper(a, b int) (int, error) { return a, nil }

type (
	// Store holds orders.
	Store[T any] struct {
		items []T
	}
	Reader interface {
		Read() error
	}
)

func (Other) Get() {}
"""


def test_go_symbols() -> None:
    found = extract("store/store.go", STORE)
    assert found.warnings == ()
    assert {name: node.properties["kind"] for name, node in symbols(found).items()} == {
        "Status": "Type",
        "Open": "Enum",
        "Limit": "Variable",
        "ErrMissing": "Variable",
        "Store.Put": "Method",
        "helper": "Function",
        "Store": "Type",
        "Reader": "Interface",
        "Other.Get": "Method",
    }
    assert found.nodes[0].text["summary"] == "Package store keeps orders."
    assert_whole(found, STORE)


def test_titles_summaries_lines_and_exports() -> None:
    found = symbols(extract("store/store.go", STORE))
    put = found["Store.Put"]
    assert put.text["title"] == "func (s *Store[T]) Put(o T) error"
    assert put.text["summary"] == "Put adds an order."
    assert put.text["content"].startswith("// Put adds an order.\n//\n// It never fails.\nfunc (s *Store[T]) Put")
    assert put.source is not None
    assert (put.source.start_line, put.properties["line"], put.source.end_line) == (25, 28, 31)
    assert found["Status"].text["summary"] == "Status of an order — größer 🚀."
    assert found["Open"].text["title"] == "const (Open, closed)"
    assert found["Store"].text["title"] == "type Store[T any] struct"
    assert found["Store"].text["content"].startswith("type (\n\t// Store holds orders.\n\tStore[T any] struct {")
    assert found["Reader"].text["title"] == "type Reader interface"
    assert {name for name, node in found.items() if not node.properties["exported"]} == {"helper"}


def test_a_method_belongs_to_its_type_where_that_is_in_the_file() -> None:
    found = extract("store/store.go", STORE)
    names = symbols(found)
    owner = {edge.to_id: edge.from_id for edge in found.edges if edge.type == "DEFINES"}
    assert owner[names["Store.Put"].id] == names["Store"].id
    assert owner[names["Other.Get"].id] == found.nodes[0].id


def test_imports_reach_the_files_of_a_package_of_the_module() -> None:
    files = {
        "go.mod": "// the shop\nmodule example.com/shop // v1\n\ngo 1.22\n",
        "main.go": 'package main\nimport . "example.com/shop/store"\nimport "example.com/shop"\nimport "fmt"\n',
        "store/store.go": STORE,
        "store/more.go": "package store\n",
        "store/store_test.go": 'package store\nimport "example.com/shop/store"\n',
        "internal/util/do.go": "package util\n",
        "tools/go.mod": 'module "example.com/shop/tools"\n',
        "tools/gen/gen.go": 'package gen\nimport "example.com/shop/tools/lib"\nimport "example.com/shopping/lib"\n',
        "ping/lib/lib.go": "package lib\n",
        "moved/go.mod": "module example.com/shop/plugins\n",
        "moved/auth/auth.go": "package auth\n",
        "plugins/auth/stale.go": "package auth\n",
        "use.go": 'package main\nimport "example.com/shop/plugins/auth"\n',
        "tools/lib/lib.go": "package lib\n",
    }
    assert Linked(files).pairs("IMPORTS") == {
        ("main.go", "store/store.go"),
        ("main.go", "store/more.go"),
        ("store/store.go", "internal/util/do.go"),
        ("tools/gen/gen.go", "tools/lib/lib.go"),
        ("use.go", "moved/auth/auth.go"),  # the module with the longest path owns the package
    }


def test_a_module_file_is_text_to_find() -> None:
    found = extract("go.mod", "module example.com/shop\n\nrequire example.com/other v1.2.3\n")
    assert [node.text["content"] for node in rows(found)] == ["module example.com/shop\n\nrequire example.com/other v1.2.3"]
    assert found.facts["module"] == "example.com/shop"
    assert extract("go.mod", "go 1.22\n").facts["module"] is None


def test_a_syntax_error_is_named_and_the_rest_is_kept() -> None:
    source = "package a\n\nfunc Before() {}\n\nfunc Broken( {\n\nfunc After() {}\n"
    found = extract("a.go", source)
    assert found.warnings == ("parse error, line 5",)
    assert "Before" in symbols(found)
    assert_whole(found, source)


def test_deep_nesting() -> None:
    source = (
        "package a\n\nvar x = " + "(" * 3000 + "1" + ")" * 3000 + "\n\nfunc Tail() {" + "if x {" * 2000 + "}" * 2000 + "}\n"
    )
    found = extract("deep.go", source)
    assert "Tail" in symbols(found)
    assert_whole(found, source)


_PARTS = st.sampled_from(
    [
        "package a\n",
        "func F() {",
        "func (r *R) M(x int) error { return nil }\n",
        "}\n",
        "type (\n\tA struct{}\n\tB interface{}\n)\n",
        "type A = B; type C D\n",
        "const (\n\tX = iota // größer\n\tY\n)\n",
        "var a, b = 1, 2\n",
        "// doc 🚀\n",
        "/* open",
        '"',
        "\n\n",
        "func(",
    ]
)


@given(st.lists(_PARTS, max_size=25), st.integers(20, 300))
def test_no_line_is_lost_or_doubled_whatever_the_source(parts: list[str], limit: int) -> None:
    source = "".join(parts)
    found = extract("a.go", source, limit)
    assert_whole(found, source, limit)
    assert len({node.id for node in found.nodes}) == len(found.nodes)
    assert len(found.edges) == len(found.nodes) - 1
