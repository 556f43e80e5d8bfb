import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from cluster.model.nodes import Scope
from cluster.model.query import Fusion, Statistics
from cluster.text import printable
from serve import cli, client, machine
from serve.commands import keys, options, output, search
from tests.support.http_connection import FakeConnection

KEY = "rk_" + "k" * 43

ANSWER: dict[str, Any] = {
    "query_id": "q1",
    "hits": [
        {
            "id": "n1",
            "labels": ["Symbol", "Function"],
            "project": "web",
            "store": "structure",
            "score": 0.75,
            "scores": {"vector": 0.8, "bm25": 3.0, "bm25_scaled": 1.0},
            "title": "def café()",
            "symbol": "café",
            "path": "src/a.py",
            "start_line": 3,
            "end_line": 9,
            "commit": None,
            "snippet": {"text": "open the café\n\x1b[31mat eight", "matches": [[9, 13]], "start_line": 3},
            "related": [
                {
                    "type": "DEFINES",
                    "direction": "incoming",
                    "id": "d",
                    "labels": ["Document"],
                    "title": "a.py",
                    "path": "src/a.py",
                }
            ],
            "related_omitted": 2,
        }
    ],
    "disclosure": {
        "legs": [{"leg": "lexical", "ran": True}, {"leg": "vector", "ran": False}],
        "fusion": "weighted",
        "candidates": 7,
        "returned": 1,
        "omitted": {"limit": 6},
        "more": "ask with limit 7",
        "degradations": [{"code": "limit_clamped", "detail": "limit must be from 1 to 100: 100 was used instead of 500"}],
        "timings_ms": {},
    },
    "explain": None,
}


@pytest.fixture(autouse=True)
def own_surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("RAYCALL_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[..., FakeConnection]]:
    folder = tmp_path / ".raycall"
    folder.mkdir()
    (folder / "key").write_text(KEY)
    url = "http://127.0.0.1:8000"
    machine.write_state(
        folder, machine.ServerState(pid=os.getpid(), host="127.0.0.1", port=8000, url=url, started_at=1, run_dir="/tmp/x")
    )

    def answers(*given: Any) -> FakeConnection:
        connection = FakeConnection(list(given))
        monkeypatch.setattr(client.Client, "_connection", lambda _self: connection)
        return connection

    yield answers


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = cli.run_command(arguments)
    written = capsys.readouterr()
    return code, written.out, written.err


def on_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "is_terminal", lambda stream=None: True)


# --- usage -------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["search"], "Missing argument 'TEXT'"),
        (["search", "-x"], "No such option"),
        (["search", "a", "b"], "unexpected extra argument"),
        (["search", "a", "--limit", "ten"], "'ten' is no whole number"),
        (["search", "a", "--limit", "1.5"], "'1.5' is no whole number"),
        (["search", "a", "--fusion", "best"], "'best' is not one of weighted, weighted_max, rrf"),
        (["search", "a", "--url", "nowhere"], "must look like http://127.0.0.1:8000"),
        (["search", "\udcff"], "query is not valid text"),
        (["serch", "a"], "No such command 'serch'"),
        (["keys"], "Missing command"),
        (["keys", "create"], "Missing argument 'NAME'"),
        (["keys", "create", "n", "--agent", "a", "--scope", "secret"], "--scope must be one of public, shared, admin"),
        (["index"], "Missing argument 'PATH'"),
        (["index", "no such"], "no such folder: 'no such'"),
        (["index", "--", "-x"], "no such folder: '-x'"),
        (["index", "a\0b"], "no such folder"),
        (["index", "."], "project must be"),
        (["serve", "--index", "none"], "no such folder: 'none'"),
        (["serve", "--port", "70000"], "http.port must be 0 to 65535"),
        (["--config", "none.yaml", "status"], "configuration file none.yaml cannot be read"),
        (["--data-dir", "", "status"], "'--data-dir': the path is empty"),
        (["status", "--data-dir", " "], "'--data-dir': the path is empty"),
        (["--config", "", "status"], "'--config': the path is empty"),
        (["search", "a", "--key-file", ""], "'--key-file': the path is empty"),
        (["search", "a", "--url", ""], "must look like http://127.0.0.1:8000"),
        (["generations", "publish", "p", "--gate", ""], "'--gate': the path is empty"),
        (["verify-isolation", ""], "the path is empty"),
        (["index", ""], "the folder's path is empty; the working directory is '.'"),
        (["serve", "--index", " "], "the folder's path is empty"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    if arguments == ["index", "."]:
        arguments = ["index", ".", "--project", "a/b"]
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("raycall: ") and err.count("\n") == 1
    assert words in err


def test_a_file_is_no_folder_to_index(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "a file").write_text("x")
    assert run(capsys, "index", "a file") == (2, "", "raycall: not a folder: 'a file'\n")


@pytest.mark.parametrize("name", ["my repo", "-x", "a;b", "$(id)", "ümlaut", "a\nb"])
def test_every_spelling_of_a_folder_is_the_same_folder(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    (tmp_path / "link").symlink_to(folder)
    for spelling in (str(folder), f"{folder}/", name, f"./{name}", f"{name}/../{name}", "link"):
        assert options.folder_argument(spelling) == folder.resolve()


def test_a_command_line_without_a_command_shows_help_and_is_wrong_usage(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _err = run(capsys)
    assert code == 2
    assert "raycall serve --index PATH" in out


@pytest.mark.parametrize("command", ["search", "index", "serve", "status", "doctor", "keys", "keys create"])
def test_every_command_has_help(capsys: pytest.CaptureFixture[str], command: str) -> None:
    code, out, err = run(capsys, *command.split(), "--help")
    assert (code, err) == (0, "")
    assert out.startswith(f"Usage: raycall {command}")


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _err = run(capsys, "--version")
    assert code == 0 and out.startswith("raycall 0.")


def test_every_command_that_answers_takes_json(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("search", "index", "serve", "status", "doctor", "keys create", "keys list", "keys revoke"):
        assert "--json" in run(capsys, *command.split(), "--help")[1], command


@pytest.mark.parametrize(("arguments", "replaced"), [((), False), (("--replace",), True)])
def test_a_project_is_filled_from_another_folder_on_request_alone(
    arguments: tuple[str, ...], replaced: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def index_command(
        _config: object, _folder: Path, project: str, _progress: object, *, replace_root: bool
    ) -> dict[str, object]:
        return {"project": project, "replaced": replace_root, "skipped_files": []}

    monkeypatch.setattr("serve.bootstrap.index_command", index_command)
    code, out, _err = run(capsys, "index", ".", "--project", "demo", "--json", *arguments)
    assert (code, json.loads(out)) == (0, {"project": "demo", "replaced": replaced, "skipped_files": []})


def test_choices_are_those_of_the_model() -> None:
    assert get_args(search.Fusion) == tuple(Fusion)
    assert get_args(search.Statistics) == tuple(Statistics)
    assert tuple(Scope) == keys.SCOPES


# --- search ------------------------------------------------------------------------------------------------------------------


def test_search_sends_what_was_asked_and_nothing_else(capsys: pytest.CaptureFixture[str], server: Any) -> None:
    connection = server((200, b"text"), (200, b"text"))
    run(capsys, "search", "plain question")
    assert connection.requests[0]["body"] == {"query": "plain question"}
    arguments = [
        "-p",
        "web",
        "--project",
        "api",
        "--limit",
        "0",
        "-l",
        "File",
        "--fusion",
        "rrf",
        "--expand-hops",
        "0",
        "--statistics",
        "all",
    ]
    run(capsys, "search", "-n", "5", *arguments, "--", "--limit")
    assert connection.requests[1]["body"] == {
        "query": "--limit",
        "projects": ["web", "api"],
        "limit": 0,
        "labels": ["File"],
        "fusion": "rrf",
        "expand_hops": 0,
        "statistics": "all",
    }


@pytest.mark.parametrize("query", ["-x", "--", "!", "*", "~", "&& ||", "AND", "?", "^2", "C++", "$(id)", "café 停止 👩‍👩‍👧"])
def test_no_character_of_a_query_is_syntax(capsys: pytest.CaptureFixture[str], server: Any, query: str) -> None:
    connection = server((200, b"text\n"))
    assert run(capsys, "search", "--", query) == (0, "text\n", "")
    assert connection.requests[0]["body"] == {"query": query}


def test_a_pipe_gets_the_servers_text_as_it_is(capsys: pytest.CaptureFixture[str], server: Any) -> None:
    text = "[Document] (id: x) (score: 0.500)\n---\ndegraded: limit_clamped: 100 was used instead of 500\n"
    connection = server((200, text.encode()))
    assert run(capsys, "search", "q", "--limit", "500") == (0, text, "")
    assert connection.requests[0]["headers"]["Accept"] == "text/plain"


def test_json_is_one_line_alone_on_stdout(capsys: pytest.CaptureFixture[str], server: Any) -> None:
    server((200, ANSWER))
    code, out, err = run(capsys, "search", "q", "--json")
    assert (code, err, out.count("\n")) == (0, "", 1)
    assert json.loads(out) == ANSWER


def test_a_terminal_gets_the_same_form_with_the_notice_and_no_control_characters(
    capsys: pytest.CaptureFixture[str], server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server((200, ANSWER))
    on_terminal(monkeypatch)
    code, out, err = run(capsys, "search", "q", "--limit", "500")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "[Symbol, Function] (id: n1) (score: 0.750)"
    assert "  path: src/a.py:3-9" in lines
    assert "    <--[DEFINES]-- [Document] {title: a.py, path: src/a.py}" in lines
    assert "    (2 more)" in lines
    assert "degraded: limit_clamped: limit must be from 1 to 100: 100 was used instead of 500" in lines
    assert "\x1b" not in out and "\\x1b[31mat eight" in out


def test_the_vectors_and_generations_that_served_are_named() -> None:
    from serve.commands.pretty import plain_answer

    legs = [{"leg": "lexical", "ran": True, "identity": None}, {"leg": "vector", "ran": True, "identity": "onnx/mini/384"}]
    disclosure = {**ANSWER["disclosure"], "legs": legs, "generations": {"main": "g1", "other": "g2\x1b"}}
    lines = plain_answer({**ANSWER, "disclosure": disclosure}).splitlines()
    assert any("lexical ran, vector ran (onnx/mini/384)" in line for line in lines)
    assert "generations: main g1, other g2\\x1b" in lines


def test_matches_are_marked_where_the_server_says() -> None:
    from serve.commands.pretty import render

    text = render(ANSWER)
    marked = [text.plain[span.start : span.end] for span in text.spans if "yellow" in str(span.style)]
    assert marked[0] == "café"


def test_explain_is_shown_without_a_terminal_too(capsys: pytest.CaptureFixture[str], server: Any) -> None:
    server((200, {**ANSWER, "explain": {"terms": ["café"]}}))
    code, out, _err = run(capsys, "search", "q", "--explain")
    assert code == 0
    assert out.endswith("explain:\n  terms:\n    - café\n")


@pytest.mark.parametrize("query", ["", " ", "\t\n", "\u00a0", "\u200b", "\u3000"])
def test_the_servers_refusal_of_a_blank_query_is_wrong_usage(
    capsys: pytest.CaptureFixture[str], server: Any, query: str
) -> None:
    detail = "query must hold at least one visible character"
    connection = server((422, {"code": "invalid_input", "detail": detail, "field": "query"}))
    assert run(capsys, "search", query) == (2, "", f"raycall: {detail}\n")
    assert connection.requests[0]["body"] == {"query": query}


@pytest.mark.parametrize("arguments", [["search", "q"], ["search", "q", "--json"]])
def test_without_a_server_search_says_how_to_start_one(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    expected = "raycall: no server runs on .raycall; start one with: raycall serve --index PATH\n"
    assert run(capsys, *arguments) == (1, "", expected)


def test_a_failure_of_the_server_is_one_line(capsys: pytest.CaptureFixture[str], server: Any) -> None:
    server((503, {"code": "unavailable", "detail": "no shard\nanswered \x1b[2J"}))
    assert run(capsys, "search", "q") == (1, "", "raycall: no shard answered \\x1b[2J\n")


def test_options_before_and_after_the_command_are_the_same(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("data_dir: filed\n")
    for arguments in (["--config", "c.yaml", "search", "q"], ["search", "q", "--config", "c.yaml"]):
        assert "on filed;" in run(capsys, *arguments)[2]
    for arguments in (["--config", "c.yaml", "--data-dir", "opted", "search", "q"], ["search", "q", "--data-dir", "opted"]):
        assert "on opted;" in run(capsys, *arguments)[2]


def test_the_configuration_file_can_come_from_the_environment(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "c.yaml").write_text("data_dir: filed\n")
    monkeypatch.setenv("RAYCALL_CONFIG", "c.yaml")
    assert "on filed;" in run(capsys, "search", "q")[2]
    monkeypatch.setenv("RAYCALL_DATA_DIR", "environed")
    assert "on environed;" in run(capsys, "search", "q")[2]


# --- whatever else goes wrong ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("failure", "code", "words"),
    [
        (KeyboardInterrupt(), 130, ""),
        (BrokenPipeError(32, "Broken pipe"), 141, ""),
        (ZeroDivisionError("division by zero"), 1, "raycall: ZeroDivisionError: division by zero (this should not happen"),
        (OSError(28, "No space left on device"), 1, "No space left on device"),
    ],
)
def test_no_exception_leaves_a_traceback(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    server: Any,
    failure: BaseException,
    code: int,
    words: str,
) -> None:
    def fail(*_arguments: Any) -> None:
        raise failure

    monkeypatch.setattr(client.Client, "text", fail)
    found, out, err = run(capsys, "search", "q")
    assert (found, out) == (code, "")
    assert "Traceback" not in err and err.count("\n") <= 1 and words in err


def test_debugging_shows_where_an_unexpected_error_came_from(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, server: Any
) -> None:
    monkeypatch.setattr(client.Client, "text", lambda *_arguments: 1 / 0)
    monkeypatch.setenv("RAYCALL_LOG_LEVEL", "debug")
    code, _out, err = run(capsys, "search", "q")
    assert code == 1 and "Traceback" in err


def test_plain_options_are_read_without_pydantic(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    # Typer's own reader would import it; a search from the command line has no time for that.
    monkeypatch.setitem(sys.modules, "typer._adapters", None)
    code, _out, err = run(
        capsys, "search", "q", "-n", "3", "-p", "a", "--fusion", "rrf", "--json", "--key-file", "x", "--explain"
    )
    assert code == 1 and "no server runs" in err


# --- status and keys ---------------------------------------------------------------------------------------------------------


def test_status_shows_what_the_server_says(capsys: pytest.CaptureFixture[str], server: Any) -> None:
    answer = {"projects": [{"project": "web", "rows": 3, "embedded": True}], "account": "local"}
    server((200, answer), (200, answer))
    code, out, _err = run(capsys, "status", "--json")
    assert code == 0
    assert json.loads(out) == {"server": {"url": "http://127.0.0.1:8000", "pid": os.getpid()}, **answer}
    code, out, _err = run(capsys, "status")
    assert code == 0 and "  -\n    project: web\n    rows: 3\n    embedded: yes\n" in out


def test_status_without_a_server_says_what_is_on_disk_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "status", "--json")
    found = json.loads(out)
    assert (code, err) == (1, "")
    assert found["server"] is None and "raycall serve" in found["reason"]
    assert found["disk"] == {"data_dir": ".raycall", "exists": False}
    assert run(capsys, "keys", "create", "operator")[0] == 0
    disk = json.loads(run(capsys, "status", "--json")[1])["disk"]
    assert disk["exists"] and disk["projects"] == [] and disk["bytes"]["graph.sqlite"] > 0


def test_a_key_is_made_shown_once_listed_and_revoked(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(
        capsys, "keys", "create", "ci key", "--agent", "bot", "--scope", "public", "-p", "web", "--team", "web"
    )
    assert code == 0 and out.startswith("rk_") and len(out.strip()) == 46 and "only time" in err
    made = json.loads(run(capsys, "keys", "create", "operator", "--json")[1])
    assert made["secret"].startswith("rk_") and made["role"] == "admin"
    listing = run(capsys, "keys", "list", "--json")[1]
    assert "rk_" not in listing
    first, second = json.loads(listing)["keys"]
    assert (first["name"], first["agent"], first["scopes"], first["projects"]) == ("ci key", "bot", ["public"], ["web"])
    assert second["id"] == made["id"]
    assert run(capsys, "keys", "revoke", first["id"])[0] == 0
    assert f"{first['id']}  revoked  agent bot  web  ci key\n" in run(capsys, "keys", "list")[1]
    code, out, err = run(capsys, "keys", "revoke", first["id"])
    assert (code, out) == (1, "") and err.count("\n") == 1


def test_keys_of_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, err = run(capsys, "keys", "list")
    assert (code, out) == (1, "") and "raycall keys create NAME" in err
    assert not (tmp_path / ".raycall").exists()


def test_an_admins_key_has_no_scopes(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "keys", "create", "n", "--scope", "public")
    assert (code, out) == (2, "") and "scope" in err


# --- output ------------------------------------------------------------------------------------------------------------------


def test_text_for_people_keeps_words_and_shows_what_would_steer_a_terminal() -> None:
    assert output.one_line("a\nb\x1b[2J\x9b\u2028\ud83dé👩‍👧") == "a b\\x1b[2J\\x9b\\u2028\\ud83dé👩‍👧"
    assert printable("a\n\tb\rc\x07") == "a\n\tb\\rc\\x07"


def test_a_tree_of_values() -> None:
    value = {"a": {"b": [1, {"c": None}], "empty": {}}, "yes": True, "text": "x\ny"}
    assert output.tree(value) == "a:\n  b:\n    - 1\n    -\n      c: none\n  empty: none\nyes: yes\ntext: x y\n"


def test_progress_is_drawn_on_a_terminal_alone(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from serve.commands import progress

    def work() -> None:
        with progress.make_progress() as report:
            report("walk", 0, None)
            report("embed", 3, 10)

    work()
    assert capsys.readouterr() == ("", "")
    assert progress.log_level("info") == "info"
    monkeypatch.setattr(progress, "is_terminal", lambda stream=None: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    work()
    out, err = capsys.readouterr()
    assert out == "" and "embed" in err and "3/10" in err
    assert [progress.log_level(level) for level in ("debug", "info", "error")] == ["debug", "warning", "error"]
