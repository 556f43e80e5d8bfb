import pickle
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster.config import ALIASES, CLIENT_VARIABLES, SETTINGS, Config, Setting, load
from cluster.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]
BY_KEY = {setting.key: setting for setting in SETTINGS}


def written(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "raycall.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def refused(
    path: Path | None = None, environ: dict[str, str] | None = None, overrides: dict[str, object] | None = None
) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load(path, environ, overrides)
    assert "\n" not in caught.value.detail
    return caught.value


@cache
def attributes_read() -> set[str]:
    sources = [path for part in ("cluster", "actors", "jobs", "serve") for path in (ROOT / part).rglob("*.py")]
    return {name for path in sources if path.name != "config.py" for name in re.findall(r"\.(\w+)", path.read_text())}


def test_nothing_given_is_the_defaults() -> None:
    assert load() == Config()
    assert load().values() == {setting.key: setting.default for setting in SETTINGS}


def test_options_win_over_variables_over_the_file_over_defaults(tmp_path: Path) -> None:
    path = written(tmp_path, "http:\n  port: 1\n  host: filed\nsearch:\n  max_batch: 7\n")
    environ = {"RAYCALL_HTTP_PORT": "2", "RAYCALL_HTTP_HOST": "environed"}
    config = load(path, environ, {"http.port": 3})
    assert (config.http.port, config.http.host, config.search.max_batch) == (3, "environed", 7)
    assert config.search.deadline_s == BY_KEY["search.deadline_s"].default


def test_zero_empty_and_false_can_be_set_by_every_way(tmp_path: Path) -> None:
    path = written(tmp_path, 'http:\n  port: 0\nembed:\n  then: ""\ningress:\n  ha_proxy: false\n')
    environ = {"RAYCALL_HTTP_PORT": "0", "RAYCALL_EMBED_THEN": "", "RAYCALL_INGRESS_HA_PROXY": "false"}
    overrides: dict[str, object] = {"http.port": 0, "embed.then": "", "ingress.ha_proxy": False}
    for config in (load(path), load(None, environ), load(None, None, overrides)):
        assert (config.http.port, config.embed.then, config.ingress.ha_proxy) == (0, "", False)


def test_names_that_other_tools_use_are_weaker_than_ours() -> None:
    environ = {"EMBED_MODEL": "bge-m3", "EMBED_DIMENSIONS": "1024", "OLLAMA_URL": "http://gpu:11434", "HOME": "/x"}
    config = load(None, environ)
    assert (config.embed.model, config.embed.dimensions, config.embed.ollama_url) == ("bge-m3", 1024, "http://gpu:11434")
    assert load(None, {**environ, "RAYCALL_EMBED_MODEL": "ours"}).embed.model == "ours"
    assert set(ALIASES.values()) <= BY_KEY.keys()


@pytest.mark.parametrize(
    ("text", "key", "near"),
    [
        ("http:\n  prot: 1\n", "http.prot", "http.port"),
        ("port: 1\n", "port", "http.port"),
        ("serch:\n  deadline_s: 1\n", "serch.deadline_s", "search.deadline_s"),
        ("embed:\n  Model: x\n", "embed.Model", "embed.model"),
        ("acount: x\n", "acount", "account"),
    ],
)
def test_an_unknown_key_is_named_with_its_place_and_the_nearest_known_one(
    tmp_path: Path, text: str, key: str, near: str
) -> None:
    path = written(tmp_path, text)
    error = refused(path)
    line = text.count("\n")
    assert error.detail == f"unknown setting {key} in {path}:{line}; did you mean {near}?"
    assert error.field == key


def test_an_unknown_variable_is_named_with_the_nearest_known_one() -> None:
    error = refused(None, {"RAYCALL_HTTP_PROT": "1"})
    assert error.detail == "unknown environment variable RAYCALL_HTTP_PROT; did you mean RAYCALL_HTTP_PORT?"
    assert refused(None, {"RAYCALL_KEYS": "x"}).detail.endswith("did you mean RAYCALL_KEY?")
    assert load(None, dict.fromkeys(CLIENT_VARIABLES, "anything")) == Config()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("http:\n  port: true\n", "http.port in {path}:2 must be a whole number; it is 'True'"),
        ("http:\n  port: 1.5\n", "http.port in {path}:2 must be a whole number; it is '1.5'"),
        ('http:\n  port: "80"\n', "http.port in {path}:2 must be a whole number; it is '80'"),
        ("http:\n  port: 65536\n", "http.port in {path}:2 must be 0 to 65535; it is '65536'"),
        ("http:\n  port: -1\n", "http.port in {path}:2 must be 0 to 65535; it is '-1'"),
        ("http:\n  host:\n", "http.host in {path}:2 must be text (in quotes); it is 'None'"),
        ("search:\n  deadline_s: .inf\n", "search.deadline_s in {path}:2 must be 0.05 to 300.0; it is 'inf'"),
        ("search:\n  deadline_s: .nan\n", "search.deadline_s in {path}:2 must be 0.05 to 300.0; it is 'nan'"),
        ("ingress:\n  ha_proxy: 1\n", "ingress.ha_proxy in {path}:2 must be true or false; it is '1'"),
        ("account: 12\n", "account in {path}:1 must be text (in quotes); it is '12'"),
        (
            "embed:\n  first: Static\n",
            "embed.first in {path}:2 must be one of static, sentence, ollama, openai; it is 'Static'",
        ),
        ('data_dir: ""\n', "data_dir in {path}:1 must be text that is not empty; it is ''"),
        ('http:\n  host: "a\\nb"\n', "http.host in {path}:2 must not contain control characters; it is 'a\\nb'"),
    ],
)
def test_a_wrong_value_is_named_with_its_key_place_and_range(tmp_path: Path, text: str, words: str) -> None:
    path = written(tmp_path, text)
    assert refused(path).detail == words.format(path=path)


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("RAYCALL_HTTP_PORT", "", "must be a whole number"),
        ("RAYCALL_HTTP_PORT", "8000.0", "must be a whole number"),
        ("RAYCALL_HTTP_PORT", "9" * 30, "must be 0 to 65535"),
        ("RAYCALL_SEARCH_DEADLINE_S", "soon", "must be a number"),
        ("RAYCALL_SEARCH_DEADLINE_S", "nan", "must be 0.05 to 300.0"),
        ("RAYCALL_INGRESS_HA_PROXY", "maybe", "must be true or false"),
        ("RAYCALL_ACCOUNT", "a/b", "must be 1 to 100 letters"),
        ("RAYCALL_ACCOUNT", "", "must be 1 to 100 letters"),
        ("OLLAMA_URL", "localhost:11434", "must be an http or https address"),
        ("RAYCALL_RAY_TEMP_DIR", "/" + "x" * 60, "must be a path of at most 60 bytes"),
    ],
)
def test_a_wrong_variable_is_named(variable: str, value: str, words: str) -> None:
    error = refused(None, {variable: value})
    assert error.detail.startswith(f"{variable} {words}")
    assert error.field == variable


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"http: [", "is no valid YAML"),
        (b"- a\n", "must hold sections and keys"),
        (b"text", "must hold sections and keys"),
        (b"\xff\xfe\x00", "is no UTF-8 text"),
        (b"account: a\x00b\n", "is no UTF-8 text"),
        (b"account: a\naccount: b\n", "account stands twice"),
        (b"http:\n  port: 1\nhttp:\n  port: 2\n", "http.port stands twice"),
        (b"account: !!python/object/apply:os.system [date]\n", "is no valid YAML"),
        (b"#" * (1024 * 1024 + 1), "is larger than 1048576 bytes"),
        (b"a: &a [*a]\n", "is no valid YAML"),
    ],
)
def test_a_file_that_is_no_configuration_is_refused(tmp_path: Path, raw: bytes, words: str) -> None:
    assert words in refused(written(tmp_path, raw)).detail


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    assert "No such file" in refused(tmp_path / "none.yaml").detail
    assert "directory" in refused(tmp_path).detail


@pytest.mark.parametrize("text", ["", "# nothing\n", "http:\n", "---\n", "http:\n  # port: 1\nlog:\n"])
def test_an_empty_file_or_section_changes_nothing(tmp_path: Path, text: str) -> None:
    assert load(written(tmp_path, text)) == Config()


def test_two_remote_services_cannot_share_one_model_name() -> None:
    assert refused(None, {"RAYCALL_EMBED_FIRST": "openai", "RAYCALL_EMBED_THEN": "ollama"}).field == "embed.then"
    assert load(None, {"RAYCALL_EMBED_FIRST": "ollama", "RAYCALL_EMBED_THEN": "ollama"}).embed.then == "ollama"


def test_the_configuration_is_frozen_and_crosses_processes() -> None:
    config = load(None, {"RAYCALL_HTTP_PORT": "1"})
    assert pickle.loads(pickle.dumps(config)) == config
    with pytest.raises(AttributeError):
        config.http.port = 2  # type: ignore[misc]


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.key)
def test_each_setting_has_help_a_typed_default_in_range_and_a_reader(setting: Setting) -> None:
    assert setting.help.endswith(".") and setting.help[0].isupper()
    assert type(setting.check(setting.default)) is setting.type or isinstance(setting.default, Path)
    name = setting.key.rpartition(".")[2]
    assert name in attributes_read(), "nobody reads this setting"


@settings(max_examples=50, deadline=None)
@given(st.sampled_from(SETTINGS), st.data())
def test_a_value_in_range_survives_the_environment(setting: Setting, data: st.DataObject) -> None:
    if setting.choices:
        value: object = data.draw(st.sampled_from(setting.choices))
    elif setting.type is int:
        value = data.draw(st.integers(int(setting.low or 0), int(setting.high or 0)))
    elif setting.type is float:
        value = data.draw(st.floats(setting.low, setting.high))
    elif setting.type is bool:
        value = data.draw(st.booleans())
    else:
        value = setting.default
    config = load(None, {setting.variable: str(value)})
    assert config.values()[setting.key] == value


@settings(max_examples=50, deadline=None)
@given(st.sampled_from(SETTINGS), st.text(max_size=20))
def test_any_text_in_a_variable_is_a_value_or_a_refusal(setting: Setting, text: str) -> None:
    try:
        load(None, {setting.variable: text})
    except ConfigError as error:
        assert setting.variable in error.detail


def test_loading_the_configuration_imports_nothing_heavy() -> None:
    program = "import sys, cluster.config; cluster.config.load(None, {}); print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert not {"yaml", "numpy", "pyarrow", "ray", "pydantic"} & set(loaded)


def test_the_home_folder_of_nobody_is_refused() -> None:
    with pytest.raises(ConfigError, match="home folder"):
        load(None, {"RAYCALL_DATA_DIR": "~nobody-has-this-name/data"})
