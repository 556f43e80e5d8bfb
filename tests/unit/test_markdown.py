import re
import textwrap

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.model.nodes import Node
from jobs.markdown import extract_markdown, inline_text
from jobs.model import Extracted, FileContext, document_id
from jobs.plain import extract_plain, lead_sentence


def _context(path: str = "docs/doc.md", max_chars: int = 1200) -> FileContext:
    return FileContext("acme", "erp", "erp", path, "c" * 40, 1_000, max_chars)


def _read(text: str, path: str = "docs/doc.md", max_chars: int = 1200) -> Extracted:
    return extract_markdown(textwrap.dedent(text), _context(path, max_chars))


def _of(extracted: Extracted, label: str) -> list[Node]:
    return [node for node in extracted.nodes if label in node.labels]


def _titles(extracted: Extracted) -> list[str]:
    return [node.text["title"] for node in _of(extracted, "Section")]


def _contents(extracted: Extracted) -> list[str]:
    return [node.text["content"] for node in _of(extracted, "Chunk")]


def test_sections_nest_as_headings_do_and_know_their_lines() -> None:
    extracted = _read("""\
        # Guide

        Intro sentence. More of it.

        ## Install

        Run it.

        # Other

        ### Deep

        End.
        """)
    document, *_ = extracted.nodes
    assert (document.labels, document.text["title"], document.text["path"]) == (("Document",), "Guide", "docs/doc.md")
    assert document.text["summary"] == "Intro sentence."
    assert [(section.text["title"], section.source and section.source.start_line) for section in _of(extracted, "Section")] == [
        ("Guide", 1),
        ("Guide > Install", 5),
        ("Other", 9),
        ("Other > Deep", 11),
    ]
    assert [(chunk.text["content"], chunk.text["title"]) for chunk in _of(extracted, "Chunk")] == [
        ("Intro sentence. More of it.", "Guide"),
        ("Run it.", "Guide > Install"),
        ("End.", "Other > Deep"),
    ]
    names = {node.id: node.text.get("content") or node.text["title"] for node in extracted.nodes}
    assert [(names[edge.from_id], edge.type, names[edge.to_id]) for edge in extracted.edges] == [
        ("Guide", "HAS_SECTION", "Guide"),
        ("Guide", "HAS_CHUNK", "Intro sentence. More of it."),
        ("Guide", "HAS_SECTION", "Guide > Install"),
        ("Guide > Install", "HAS_CHUNK", "Run it."),
        ("Guide", "HAS_SECTION", "Other"),
        ("Other", "HAS_SECTION", "Other > Deep"),
        ("Other > Deep", "HAS_CHUNK", "End."),
    ]
    assert extracted.edges[0].from_id == document.id == document_id(_context())
    assert {node.source.commit for node in extracted.nodes if node.source} == {"c" * 40}


def test_a_comment_in_a_code_block_is_no_heading() -> None:
    extracted = _read("""\
        # Real Title

        Intro.

        ```python
        # this is a comment
        x = 1
        ## another
        ```

        More prose.

        ## Second

        End.
        """)
    assert _titles(extracted) == ["Real Title", "Real Title > Second"]
    assert "```python\n# this is a comment\nx = 1\n## another\n```" in _contents(extracted)[0]


@pytest.mark.parametrize(
    ("text", "titles"),
    [
        ("# T\n~~~py\n# no\n~~~\ntext\n", ["T"]),
        ("# N\n````md\n```python\n# no\n```\n# no either\n````\n# After\n", ["N", "After"]),
        ("# U\n```sh\n# no\necho still code\n\n# no, still code until the end of the file\n", ["U"]),
        ("# I\n\n    # no\n    code\n\ntext\n", ["I"]),
        ("# L\n\n- # in a list\n\n> # in a quote\n\n#no space\n", ["L"]),
        ("Alpha\n=====\n\ntext\n\nBeta\n----\n\ntext\n", ["Alpha", "Alpha > Beta"]),
        ("Two\nlines\n===\n", ["Two lines"]),
        ("# A `code` [link](http://x) **bold** &amp; \\# ![alt](i.png)\n", ["A code link bold & # alt"]),
        ("# Same\n\na\n\n# Same\n\nb\n", ["Same", "Same"]),
        ("#\n\ntext\n", ["doc.md"]),
        ("# résumé\n\n# re\u0301sume\u0301\n", ["résumé", "re\u0301sume\u0301"]),
    ],
)
def test_headings_are_those_of_the_parser(text: str, titles: list[str]) -> None:
    extracted = extract_markdown(text, _context())
    assert _titles(extracted) == titles
    assert len({node.id for node in extracted.nodes}) == len(extracted.nodes)


@pytest.mark.parametrize(
    ("text", "contents"),
    [
        ("Just prose about anchors.\n\nSecond paragraph.\n", ["Just prose about anchors.\n\nSecond paragraph."]),
        ("A paragraph line.\n\n---\n\nnext\n", ["A paragraph line.\n\n---\n\nnext"]),
    ],
)
def test_a_text_without_headings_is_one_section_named_after_the_file(text: str, contents: list[str]) -> None:
    extracted = extract_markdown(text, _context())
    assert (_titles(extracted), _contents(extracted)) == (["doc.md"], contents)


def test_text_before_the_first_heading_belongs_to_the_document() -> None:
    extracted = _read("preamble\n\n# One\n\nbody\n")
    assert _contents(extracted) == ["preamble", "body"]
    assert [edge.type for edge in extracted.edges if edge.from_id == document_id(_context())] == ["HAS_CHUNK", "HAS_SECTION"]


def test_front_matter_gives_title_tags_and_summary_and_no_heading() -> None:
    extracted = _read("""\
        ---
        title: Pump guide
        tags: [ops, ops, 7]
        description: How pumps work
        ---
        # Start

        text
        """)
    document = extracted.nodes[0]
    assert (document.text["title"], document.text["summary"]) == ("Pump guide", "How pumps work")
    assert document.properties["tags"] == ["ops", "7"]
    assert (_titles(extracted), _contents(extracted)) == (["Start"], ["text"])
    assert _of(extracted, "Chunk")[0].source == _of(extracted, "Section")[0].source.__class__(
        repository="erp", path="docs/doc.md", start_line=8, end_line=8, commit="c" * 40
    )


@pytest.mark.parametrize(
    ("text", "title", "warned"),
    [
        ("---\ntitle: 'a: b: c\n---\ntext\n", "a: b: c", True),
        ("---\ntitle: [x]\ntags: {a: 1}\n---\ntext\n", "doc.md", False),
        ("---\ntitle: true\ntags: a, b\n---\ntext\n", "doc.md", False),
        ("---\nwhen: 2024-99-99\n---\ntext\n", "doc.md", True),
        ("---\nx: &a [*a]\n---\ntext\n", "doc.md", False),
        ("---\n\n---\ntext\n", "doc.md", False),
        ("---\ntitle: T\nx: " + "long " * 8_000 + "\n---\ntext\n", "T", True),
        ("---\nx: " + "[" * 1000 + "\n---\ntext\n", "doc.md", True),
    ],
)
def test_odd_front_matter_is_never_a_failure(text: str, title: str, warned: bool) -> None:
    extracted = extract_markdown(text, _context())
    assert extracted.nodes[0].text["title"] == title
    assert _contents(extracted) == ["text"]
    assert bool(extracted.warnings) == warned


def test_front_matter_alone_is_a_document_without_chunks() -> None:
    extracted = extract_markdown("---\ntitle: Only this\n---\n", _context())
    assert [(node.labels, node.text["title"]) for node in extracted.nodes] == [(("Document",), "Only this")]


@pytest.mark.parametrize("text", ["---\nProse between rules.\n\n---\n\nmore\n", "---\nnever closed\n", "---\n# H\n---\n"])
def test_a_rule_in_the_first_line_does_not_swallow_prose(text: str) -> None:
    everything = " ".join([*_titles(extract_markdown(text, _context())), *_contents(extract_markdown(text, _context()))])
    assert set(re.findall(r"\w+", text)) <= set(re.findall(r"\w+", everything))


def test_every_part_of_a_cut_table_carries_the_header_and_whole_rows() -> None:
    rows = [f"| timeout_{n:03} | ms | {7 * n} |" for n in range(120)]
    header = ["| parameter | unit | default |", "|---|---|---|"]
    text = "\n".join(["# Settings", "", *header, *rows, "", "After the table.", ""])
    extracted = extract_markdown(text, _context(max_chars=300))
    chunks = [chunk for chunk in _of(extracted, "Chunk") if "timeout" in chunk.text["content"]]
    assert len(chunks) > 10
    found = []
    for chunk in chunks:
        lines = chunk.text["content"].split("\n")
        assert lines[:2] == header
        assert len(chunk.text["content"]) <= 300
        found += [line for line in lines[2:] if line.startswith("| timeout")]
    assert found == rows
    last = next(chunk for chunk in chunks if "timeout_099" in chunk.text["content"])
    prefix = last.properties["prefix_chars"]
    assert isinstance(prefix, int)
    assert last.source is not None
    assert last.text["content"][prefix:] == "\n".join(text.split("\n")[last.source.start_line - 1 : last.source.end_line])  # type: ignore[operator]
    assert last.properties["header_lines"] == [3, 4]
    assert "prefix_chars" not in chunks[0].properties
    assert _contents(extracted)[-1] == "After the table."


def test_a_table_in_a_list_and_a_row_beyond_the_limit() -> None:
    rows = "\n".join(f"  | k{n} | {'v' * 20} |" for n in range(10))
    nested = _contents(extract_markdown(f"- item\n\n  | key | value |\n  |---|---|\n{rows}\n", _context(max_chars=120)))
    assert all("| key | value |" in content for content in nested if "vvv" in content)
    long = extract_markdown(f"| a | b |\n|---|---|\n| x | {'w' * 500} |\n| y | z |\n", _context(max_chars=200))
    assert all(len(content) <= 200 for content in _contents(long))
    assert all(content.startswith("| a | b |\n|---|---|\n") for content in _contents(long))
    assert "".join(_contents(long)).count("w") == 500


def test_a_header_too_long_to_repeat_is_said() -> None:
    names = " | ".join(f"column{n}" for n in range(20))
    text = f"| {names} |\n|{'---|' * 20}\n" + f"| {' | '.join('x' * 20)} |\n" * 5
    extracted = extract_markdown(text, _context(max_chars=200))
    assert extracted.warnings == ("the table in line 1 has a header too long to repeat",)
    assert max(map(len, _contents(extracted))) <= 200


def test_a_fence_that_fits_is_not_cut() -> None:
    fence = "```python\n" + "\n\n".join(f"x{n} = {n}" for n in range(20)) + "\n```"
    text = f"# T\n\n{'Some words before the code. ' * 6}\n\n{fence}\n\n{'And after it. ' * 12}\n"
    contents = _contents(extract_markdown(text, _context(max_chars=300)))
    assert sum(fence in content for content in contents) == 1
    assert max(map(len, contents)) <= 300


@pytest.mark.parametrize("text", ["1. " * 2000 + "x", "> " * 2000 + "x", "- a\n" + "[" * 30_000, "*" * 30_000])
def test_hostile_nesting_is_read_as_text(text: str) -> None:
    contents = _contents(extract_markdown(text, _context()))
    assert re.sub(r"\s", "", "".join(contents)) == re.sub(r"\s", "", text)


def test_a_parser_that_gives_up_leaves_plain_text_and_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    def give_up(_text: str) -> None:
        raise RecursionError

    monkeypatch.setattr("jobs.markdown._parse", give_up)
    extracted = extract_markdown("# a\n\nb\n", _context())
    assert _contents(extracted) == ["# a\n\nb\n"]
    assert extracted.warnings == ("read as plain text: the Markdown parser gave up (RecursionError)",)


def test_a_very_long_heading_is_shortened_in_titles_and_whole_in_the_content() -> None:
    heading = "word " * 100 + "needle"
    extracted = extract_markdown(f"# {heading}\n\nbody\n", _context())
    assert len(_titles(extracted)[0]) <= 200
    assert "needle" in _contents(extracted)[0]


def test_ids_do_not_depend_on_lines_commit_or_time() -> None:
    first = extract_markdown("# A\n\none\n\n# B\n\ntwo\n", _context())
    moved = FileContext("acme", "erp", "erp", "docs/doc.md", "d" * 40, 9_000)
    second = extract_markdown("# A\n\none\n\nnew paragraph\n\n# B\n\ntwo\n", moved)
    assert [node.id for node in first.nodes] == [node.id for node in second.nodes]
    assert first.nodes[-1].content_hash == second.nodes[-1].content_hash
    assert first.nodes[2].content_hash != second.nodes[2].content_hash
    other = extract_markdown("# A\n\none\n", FileContext("acme", "erp2", "erp", "docs/doc.md", None, 1_000))
    assert {node.id for node in first.nodes}.isdisjoint(node.id for node in other.nodes)


_LINES = st.sampled_from(
    [
        "# H",
        "## H",
        "text of some words",
        "",
        "",
        "```",
        "~~~",
        "| a | b |",
        "|---|---|",
        "| 1 | 2 |",
        "- item",
        "> quote",
        "---",
        "===",
    ]
)


@given(st.lists(_LINES, max_size=30), st.integers(20, 200))
@settings(deadline=None, max_examples=100)
def test_every_line_with_text_is_in_one_row_within_the_limit(lines: list[str], limit: int) -> None:
    numbered = [
        f"{line} w{n}" if line[:1] in "#t->" and line not in ("---",) and line else line for n, line in enumerate(lines)
    ]
    extracted = extract_markdown("\n".join(numbered), _context(max_chars=limit))
    bodies = [
        chunk.text["content"][chunk.properties.get("prefix_chars", 0) :]  # type: ignore[misc]
        for chunk in _of(extracted, "Chunk")
    ]
    assert all(len(content) <= limit for content in _contents(extracted))
    words = re.findall(r"\bw\d+\b", "\n".join(numbered))
    in_titles = re.findall(r"\bw\d+\b", " ".join(title.rpartition(" > ")[2] for title in _titles(extracted)))
    in_bodies = re.findall(r"\bw\d+\b", " ".join(bodies))
    assert sorted(words) == sorted([*in_titles, *in_bodies])
    assert len({node.id for node in extracted.nodes}) == len(extracted.nodes)


def test_plain_text_is_its_chunks() -> None:
    text = " " + "a" * 20_000 + " " + "words in one line " * 1_700 + "zuletzt"
    extracted = extract_plain(text, _context("line.txt"))
    assert "".join(_contents(extracted)) == text
    assert {chunk.source.start_line for chunk in _of(extracted, "Chunk") if chunk.source} == {1}
    family = "a" * 511 + "👩\u200d👩\u200d👧\u200d👦e\u0301 family plan follows here\n"
    contents = _contents(extract_plain(family, _context("emoji.txt", 512)))
    assert contents == ["a" * 511, family[511:]]


def test_a_plain_document_is_named_after_its_file() -> None:
    notes = extract_plain("First sentence. Second.\n\nThird.\n", _context("notes/a.txt"))
    assert notes.nodes[0].text == {"title": "a.txt", "path": "notes/a.txt", "summary": "First sentence."}
    config = extract_plain("key: 1\n", _context("conf/app.yaml"))
    assert config.nodes[0].text == {"title": "app.yaml", "path": "conf/app.yaml"}


def test_short_helpers() -> None:
    assert lead_sentence("") == ""
    assert lead_sentence("Version 1.2 is out! Read on.") == "Version 1.2 is out!"
    assert lead_sentence("word " * 200).endswith("…")
    assert len(lead_sentence("word " * 200)) <= 300
    assert inline_text("a *b* <br> `c`\nd") == "a b c d"
