import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.code import Linked, assert_whole, extract, rows, symbols

SERVICE = """/**
 * Talks to the shop.
 *
 * More.
 */

import type { Order } from "./types";

const RETRIES = 3;
let counter = 0;

/** Adds an order — größer 🚀. */
export async function addOrder(order: Order): Promise<void> {
  function check() {
    return order;
  }
  const short = () => check();
  const onDone = (result: number) => {
    counter += result;
    return short();
  };
  type Local = string;
  onDone(1);
}

export const parse = <T,>(raw: string): T => JSON.parse(raw);

@Injectable({ providedIn: "root" })
export class Service extends Base implements Shape {
  static limit = 1;
  #secret = 2;

  constructor() {
    super();
  }

  @Input()
  get size(): number {
    return 1;
  }

  private handler = () => {
    return this.#secret;
  };
}

export interface Shape {
  area(): number;
}

export type Id = string | number;

export enum Color { Red, Green }

export namespace Inner {
  export function deep() {}
}

function over(x: string): void;
function over(x: number): void;
function over(x: unknown): void {}

export default class extends Service {}
"""

COMPONENT = """import React, { memo } from 'react';
import { fetchAll } from '../api.js';

export const Panel = memo(function Panel({ items }) {
  return <ul>{items.map((item) => <li key={item}>{item}</li>)}</ul>;
});

const List = ({ items }) => <Panel items={items} />;

export default () => <List items={fetchAll()} />;
"""


def test_typescript_symbols() -> None:
    found = extract("src/service.ts", SERVICE)
    assert found.warnings == ()
    kinds = {name: node.properties["kind"] for name, node in symbols(found).items()}
    assert kinds == {
        "RETRIES": "Variable",
        "addOrder": "Function",
        "addOrder.check": "Function",
        "addOrder.onDone": "Function",
        "parse": "Function",
        "Service": "Class",
        "Service.constructor": "Method",
        "Service.size": "Method",
        "Service.handler": "Method",
        "Shape": "Interface",
        "Id": "Type",
        "Color": "Enum",
        "Inner": "Namespace",
        "Inner.deep": "Function",
        "over": "Function",
        "default": "Class",
    }
    assert_whole(found, SERVICE)


def test_titles_summaries_exports_and_decorators() -> None:
    found = symbols(extract("src/service.ts", SERVICE))
    add = found["addOrder"]
    assert add.text["title"] == "export async function addOrder(order: Order): Promise<void>"
    assert add.text["summary"] == "Adds an order — größer 🚀."
    assert add.text["content"].startswith("/** Adds an order — größer 🚀. */\nexport async function addOrder")
    assert add.source is not None
    assert (add.source.start_line, add.properties["line"], add.source.end_line) == (12, 13, 24)
    assert found["Service"].properties["decorators"] == ["Injectable"]
    assert found["Service"].text["title"] == "export class Service extends Base implements Shape"
    assert found["Service.size"].properties["decorators"] == ["Input"]
    assert found["Service.size"].text["content"].startswith("  @Input()\n  get size(): number {")
    assert found["parse"].text["title"] == "export const parse = <T,>(raw: string): T"
    exported = {name for name, node in found.items() if node.properties.get("exported")}
    assert exported == {"addOrder", "parse", "Service", "Shape", "Id", "Color", "Inner", "Inner.deep", "default"}


def test_the_file_s_own_comment_is_the_document_s_summary() -> None:
    assert extract("src/service.ts", SERVICE).nodes[0].text["summary"] == "Talks to the shop."


def test_overloads_are_symbols_of_one_name_with_ids_of_their_own() -> None:
    found = [node for node in extract("src/service.ts", SERVICE).nodes if node.text.get("symbol") == "over"]
    assert len({node.id for node in found}) == 3


@pytest.mark.parametrize("path", ["panel.jsx", "panel.tsx", "panel.js"])
def test_components(path: str) -> None:
    found = extract(path, COMPONENT)
    assert found.warnings == ()
    assert {name: node.properties["kind"] for name, node in symbols(found).items()} == {
        "Panel": "Variable",
        "List": "Function",
        "default": "Function",
    }
    assert_whole(found, COMPONENT)


def test_commonjs_exports_and_prototypes() -> None:
    source = (
        "#!/usr/bin/env node\n'use strict';\nconst fs = require('fs');\n"
        "exports.read = function (name) { return fs.readFileSync(name); };\n"
        "module.exports.write = (name) => name;\n"
        "function Box() {}\nBox.prototype.open = function () {};\n"
        "var one = function () {}, two = 2, THREE = 3;\n"
    )
    found = symbols(extract("lib.cjs", source))
    assert {name: node.properties["kind"] for name, node in found.items()} == {
        "read": "Function",
        "write": "Function",
        "Box": "Function",
        "Box.open": "Method",
        "one": "Function",
        "THREE": "Variable",
    }
    assert [name for name, node in found.items() if node.properties.get("exported")] == ["read", "write"]
    assert_whole(extract("lib.cjs", source), source)


def test_object_methods_are_no_members_of_a_class_around_them() -> None:
    found = symbols(extract("a.js", "class A extends mixin({ inner() {} }) { outer() { return { x() {} }; } }\n"))
    assert list(found) == ["A", "A.outer"]


def test_a_comment_belongs_to_what_begins_the_line_below() -> None:
    source = "/** Doc. */\nclass A { m() {} static x = () => { 1; } }\n"
    found = symbols(extract("a.js", source))
    assert {name: node.text.get("summary") for name, node in found.items()} == {"A": "Doc.", "A.m": None, "A.x": None}
    assert_whole(extract("a.js", source, 30), source, 30)


def test_a_syntax_error_is_named() -> None:
    source = "function a() {}\n\nfunction b( {\n\nfunction c() {}\n"
    found = extract("a.js", source)
    assert [warning.startswith("parse error, line ") for warning in found.warnings] == [True]
    assert "a" in symbols(found)
    assert_whole(found, source)


@pytest.mark.parametrize(
    "source", ["x = " + "[" * 3000 + "]" * 3000 + "\nfunction tail() {}\n", "function a(){" * 2000 + "}" * 2000]
)
def test_deep_nesting(source: str) -> None:
    found = extract("deep.js", source)
    assert {"tail", "a"} & set(symbols(found))
    assert_whole(found, source)


def test_one_line_of_many_functions() -> None:
    source = "".join(f"function a{number}(b){{return b+{number}}};" for number in range(500))
    found = extract("bundle.js", source)
    assert len(symbols(found)) == 500
    assert_whole(found, source)


def test_relative_imports() -> None:
    files = {
        "src/app.ts": (
            "import a from './a';\nimport { b } from './b.js';\nimport './style.css';\nexport * from '../shared';\n"
            "import type { T } from './types';\nexport { q } from './deep/';\nconst c = require('./c');\n"
            "const lazy = () => import('./lazy');\nimport react from 'react';\nimport out from '../../outside';\n"
            "import self from './app';\nimport raw from './a?raw';\nimport data from './data.json';\nimport './gone';\n"
        ),
        "src/a.ts": "",
        "src/b.ts": "",
        "src/b.tsx": "",
        "src/c.js": "",
        "src/lazy/index.tsx": "",
        "src/deep/index.js": "",
        "src/types.d.ts": "",
        "src/style.css": "",
        "src/data.json": "",
        "shared/index.ts": "",
        "react.ts": "",
    }
    linked = Linked(files)
    targets = [to for from_, to in linked.pairs("IMPORTS") if from_ == "src/app.ts"]
    assert set(targets) >= {
        "src/a.ts",
        "src/b.ts",
        "src/c.js",
        "src/lazy/index.tsx",
        "src/deep/index.js",
        "src/types.d.ts",
        "shared/index.ts",
    }
    # The style sheet and the data file, which have no facts, are linked to as well; nothing else is.
    assert len(targets) == 9
    lines = {to: properties["line"] for _, _, to, properties in linked.named}
    assert lines["src/lazy/index.tsx"] == 8


_PARTS = st.sampled_from(
    [
        "export default function ",
        "class A { m() {} static x = () => { 1;\n2;\n3;\n} }",
        "const f = async (a) => {",
        "}",
        "/** ключ */\n",
        "// 🚀",
        "\n",
        "<div>{x}</div>",
        "import a from './a'",
        "`${",
        "interface I { x: number }",
        "@dec() ",
        ";",
        "exports.x = function() {}",
        "namespace N {",
    ]
)


@given(st.lists(_PARTS, max_size=25), st.sampled_from(["a.js", "a.ts", "a.tsx"]), st.integers(20, 300))
def test_no_line_is_lost_or_doubled_whatever_the_source(parts: list[str], path: str, limit: int) -> None:
    source = "".join(parts)
    found = extract(path, source, limit)
    assert_whole(found, source, limit)
    assert len({node.id for node in found.nodes}) == len(found.nodes)
    assert len(found.edges) == len(found.nodes) - 1
    assert rows(found) == [node for node in found.nodes[1:] if node.text.get("content")]
