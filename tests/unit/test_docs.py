"""What the documents say is what the code does."""

import os
import re
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
import typer

from cluster.config import SETTINGS, load
from serve import cli
from serve.http.app import OPEN_PATHS
from tests.support import settings_docs

ROOT = settings_docs.ROOT
DOCUMENTS = sorted(ROOT.glob("*.md"))
COMMANDS = (
    *("search", "index", "serve", "status", "doctor", "keys", "keys create", "keys list", "keys revoke"),
    *("generations", *(f"generations {name}" for name in ("list", "verify", "publish", "rollback", "gc"))),
    "verify-isolation",
)


def read(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


@pytest.mark.parametrize("package", ["cluster", "actors", "jobs", "serve"])
def test_the_packages_are_ours(package: str) -> None:
    spec = find_spec(package)
    assert spec is not None and Path(spec.origin or "") == ROOT / package / "__init__.py"


def test_every_package_is_installed() -> None:
    found = {
        ".".join(path.parent.relative_to(ROOT).parts)
        for part in ("cluster", "actors", "jobs", "serve")
        for path in (ROOT / part).rglob("__init__.py")
    }
    listed = re.search(
        r"^packages = \[(.*?)^\]", read("pyproject.toml").split("[tool.setuptools]")[1], re.DOTALL | re.MULTILINE
    )
    assert listed is not None
    assert set(re.findall(r'"([\w.]+)"', listed[1])) == found


def test_the_readme_starts_with_the_two_commands() -> None:
    lines = [line.split("#")[0].strip() for line in read("README.md").splitlines() if line.startswith("    ")]
    assert lines[:2] == ["make run", "make test"]


def test_local_yaml_holds_every_setting_with_its_default() -> None:
    assert settings_docs.local_yaml() == read("configs/local.yaml"), "run: make docs"
    assert load(ROOT / "configs" / "local.yaml") == load()
    for setting in SETTINGS:
        assert setting.variable in read("configs/local.yaml")


def test_the_readmes_table_holds_every_setting_with_its_default() -> None:
    readme = read("README.md")
    assert settings_docs.readme_with_table(readme) == readme, "run: make docs"
    for setting in SETTINGS:
        assert f"| `{setting.key}` | `{settings_docs.default_text(setting)}` |" in readme


def test_cluster_yaml_is_a_configuration_that_differs() -> None:
    values, defaults = load(ROOT / "configs" / "cluster.yaml").values(), load().values()
    differing = {key for key in values if values[key] != defaults[key]}
    assert {"http.host", "shards.lexical_actors", "embed.then", "log.format"} <= differing


def test_golden_help_of_every_command(
    golden: Callable[[str, str], None], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    parts = []
    for command in ("", *COMMANDS):
        assert cli.run_command([*command.split(), "--help"]) == 0
        parts.append(capsys.readouterr().out)
    golden("cli_help.txt", f"{'-' * 100}\n".join(parts))


def test_every_command_and_option_is_in_the_readme() -> None:
    readme = read("README.md")
    command_line = typer.main.get_command(cli.app)
    commands = command_line.commands  # type: ignore[attr-defined]
    for name in commands:
        assert f"`raycall {name}" in readme, name
    for parameter in commands["search"].params:
        for option in (option for option in parameter.opts if option.startswith("--")):
            assert f"`{option}" in readme, option


def test_every_route_is_in_the_readme() -> None:
    source = read("serve/http/app.py")
    routes = set(re.findall(r'"(/v1/\w+)"', source)) | OPEN_PATHS - {"/docs/oauth2-redirect"}
    assert {"/v1/search", "/v1/status", "/healthz"} <= routes
    for route in routes:
        assert route in read("README.md"), route


def test_exit_codes_are_in_the_readme() -> None:
    table = read("README.md").split("| Exit code |")[1].split("\n\n")[0]
    for code in (0, cli.EXIT_FAILURE, cli.EXIT_USAGE, cli.EXIT_INTERRUPTED, cli.output.EXIT_PIPE):
        assert f"\n| {code} |" in table


def test_every_target_of_make_that_a_document_names_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", read("Makefile"), re.MULTILINE))
    assert {"help", "run", "test", "check", "bench", "golden", "clean"} <= targets
    for document in DOCUMENTS:
        for name in re.findall(r"(?:^    |`)make ([a-z-]+)", document.read_text("utf-8"), re.MULTILINE):
            assert name in targets, f"{document.name}: make {name}"


def test_every_file_that_a_document_names_exists() -> None:
    for document in DOCUMENTS:
        text = document.read_text("utf-8")
        named = set(re.findall(r"`((?:cluster|actors|jobs|serve|tests|configs|benchmarks)/[\w./]*)`", text))
        links = {link for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link}
        anchors = {
            "#" + re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")
            for title in re.findall(r"^#+ (.+)$", text, re.MULTILINE)
        }
        assert {link for link in links if link.startswith("#")} <= anchors, document.name
        for name in named | {link for link in links if not link.startswith("#")}:
            assert (ROOT / name).exists(), f"{document.name}: {name}"


def test_the_guards_of_the_architecture_are_those_of_the_code() -> None:
    page, code = read("ARCHITECTURE.md"), read("cluster/guards.py").split('"""')[1]
    for rule in ("deleted_at IS NULL", "agents IS NULL OR agents HAS slug", "account = the principal's account"):
        assert rule in page and rule in code
    for layer in re.findall(r"^ {4}[1-5+] (\w+)", code, re.MULTILINE):
        assert re.search(rf"^\| [1-5+] \| {layer}", page, re.MULTILINE), layer


def test_documents_hold_no_line_that_cannot_be_read() -> None:
    for document in DOCUMENTS:
        for number, line in enumerate(document.read_text("utf-8").splitlines(), 1):
            assert line.startswith(("|", "    ")) or len(line) <= 130, f"{document.name}:{number}"
            assert os.fspath(ROOT) not in line
