import json
import os
import shutil
import socket
import subprocess
import sys
from collections import namedtuple
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cluster.config import Config, Http, Ingress, load
from cluster.embed import models
from cluster.storage import GenerationStore
from serve import cli, doctor, machine
from tests.unit.test_generations import make_manifest

DEAD_PID = 2**22 + 1


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Config:
    monkeypatch.setattr(doctor, "PACKAGES", ("json", "math"))
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    return load(None, None, {"data_dir": tmp_path / "data", "http.port": 0})


def done(code: int, out: str = "", err: str = "") -> Any:
    return lambda *_arguments, **_options: subprocess.CompletedProcess([], code, out, err)


def test_every_finding_has_a_known_status_and_a_failure_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, config: Config
) -> None:
    def fail(*_arguments: Any, **_options: Any) -> Any:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(subprocess, "run", fail)
    monkeypatch.setattr(shutil, "disk_usage", fail)
    checks = list(doctor.examine(config))
    assert [check.name for check in checks] == list(dict.fromkeys(check.name for check in checks))
    assert {check.status for check in checks} <= {"ok", "warn", "fail"}
    by_name = {check.name: check for check in checks}
    assert by_name["jvm"].status == by_name["disk space"].status == "fail"
    assert "the check itself failed: OSError" in by_name["disk space"].detail


def test_an_old_python_is_named(monkeypatch: pytest.MonkeyPatch, config: Config) -> None:
    version = namedtuple("version", "major minor micro")
    monkeypatch.setattr(sys, "version_info", version(3, 10, 1))
    found = doctor._python(config)
    assert (found.status, found.fix) == ("fail", "use Python 3.11, 3.12 or 3.13")
    monkeypatch.setattr(sys, "version_info", version(3, 14, 0))
    assert doctor._python(config).status == "fail"
    monkeypatch.setattr(sys, "version_info", version(3, 13, 9))
    assert doctor._python(config).status == "ok"


def test_the_supported_pythons_are_those_of_the_project() -> None:
    project = (Path(__file__).resolve().parents[2] / "pyproject.toml").read_text()
    low, high = doctor.PYTHON_FROM, doctor.PYTHON_BELOW
    assert f'requires-python = ">={low[0]}.{low[1]},<{high[0]}.{high[1]}"' in project


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, config: Config) -> None:
    monkeypatch.setattr(doctor, "PACKAGES", ("json", "no_such_package"))
    found = doctor._packages(config)
    assert (
        found.status == "fail" and "no_such_package (ModuleNotFoundError" in found.detail and found.fix == "run: make install"
    )


def test_a_changed_model_file_is_named(monkeypatch: pytest.MonkeyPatch, config: Config) -> None:
    assert doctor._models(config).status == "ok"
    monkeypatch.setattr(models, "STATIC_TOKENIZER", replace(models.STATIC_TOKENIZER, sha256="0" * 64))
    found = doctor._models(config)
    assert found.status == "fail" and "l2_supercat_tokenizer_config.json" in found.detail


def test_the_jvm_is_tried_in_another_process(monkeypatch: pytest.MonkeyPatch, config: Config) -> None:
    monkeypatch.setattr(subprocess, "run", done(0, "9.9.1\n"))
    assert doctor._jvm(config).detail == "starts; Lucene 9.9.1"
    monkeypatch.setattr(subprocess, "run", done(1, "", "Traceback\ncluster.errors.UnavailableError: the jar is missing\n"))
    found = doctor._jvm(config)
    assert found.status == "fail" and found.detail.endswith("the jar is missing") and found.fix

    def late(*_arguments: Any, **_options: Any) -> Any:
        raise subprocess.TimeoutExpired("java", 60)

    monkeypatch.setattr(subprocess, "run", late)
    assert doctor._jvm(config).status == "fail"


def test_a_left_over_cluster_is_found(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: Any, **_options: Any) -> None:
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr(socket, "create_connection", refuse)
    assert doctor._ray_folder(config).status == "ok"
    folder = tmp_path / "ray"
    folder.mkdir()
    marker = folder / "ray_current_cluster"
    for content in ("127.0.0.1:1", "nonsense", "host:99999999", ""):
        marker.write_text(content)
        found = doctor._ray_folder(config)
        assert (found.status, found.fix) == ("warn", f"remove {marker}")


def test_a_cluster_that_answers_is_left_alone(monkeypatch: pytest.MonkeyPatch, config: Config, tmp_path: Path) -> None:
    folder = tmp_path / "ray"
    folder.mkdir()
    (folder / "ray_current_cluster").write_text("127.0.0.1:6379\n")
    left, right = socket.socketpair()
    monkeypatch.setattr(socket, "create_connection", lambda address, timeout: left if address == ("127.0.0.1", 6379) else None)
    assert doctor._ray_folder(config).status == "ok"
    right.close()


def with_port(config: Config, host: str, port: int) -> Config:
    return replace(config, http=Http(host=host, port=port))


def test_a_taken_port_is_a_warning_and_a_foreign_address_a_failure(config: Config) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        found = doctor._port(with_port(config, "127.0.0.1", port))
        assert found.status == "warn" and f"{port} is taken" in found.detail
        config.data_dir.mkdir()
        state = machine.ServerState(
            pid=os.getpid(), host="127.0.0.1", port=port, url="http://x", started_at=1, run_dir="/tmp/x"
        )
        machine.write_state(config.data_dir, state)
        assert doctor._port(with_port(config, "127.0.0.1", port)).status == "ok"
    machine.write_state(config.data_dir, replace(state, pid=DEAD_PID))
    assert doctor._port(with_port(config, "127.0.0.1", 0)).status == "ok"
    assert doctor._port(with_port(config, "192.0.2.1", 0)).status == "fail"


def test_the_data_directory_is_tried_and_left_as_it_was(config: Config) -> None:
    assert doctor._data_dir(config).status == "ok"
    assert not config.data_dir.exists()
    config.data_dir.mkdir()
    assert doctor._data_dir(config).status == "ok"
    assert list(config.data_dir.iterdir()) == []
    blocked = replace(config, data_dir=config.data_dir / "file")
    blocked.data_dir.write_text("x")
    assert doctor._data_dir(blocked).status == "fail"


def test_a_key_that_others_can_read_is_a_warning(config: Config) -> None:
    config.data_dir.mkdir()
    key = config.data_dir / "key"
    key.write_text("rk_")
    key.chmod(0o644)
    assert doctor._data_dir(config).fix == f"run: chmod 600 {key}"
    key.chmod(0o600)
    assert doctor._data_dir(config).status == "ok"


@pytest.mark.parametrize(("free", "status"), [(0, "fail"), (2**29, "warn"), (2**33, "ok")])
def test_disk_space(monkeypatch: pytest.MonkeyPatch, config: Config, free: int, status: str) -> None:
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _folder: usage(free))
    assert doctor._disk_space(config).status == status


def test_haproxy_that_is_not_wanted_is_not_looked_for(config: Config) -> None:
    assert doctor._haproxy(replace(config, ingress=Ingress(ha_proxy=False))).status == "ok"


def test_a_store_that_is_no_store_fails(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", done(0, "9.9.1\n"))
    assert doctor._store(config).detail == "nothing is kept yet"
    config.data_dir.mkdir()
    (config.data_dir / "graph.sqlite").write_text("this is no database, but some text of more than a hundred bytes" * 3)
    checks = {check.name: check for check in doctor.examine(config)}
    assert checks["graph store"].status == "fail"


def test_a_damaged_generation_is_named(config: Config) -> None:
    assert doctor._generations(config).status == "ok"
    folder = config.data_dir / "generations" / "web"
    folder.mkdir(parents=True)
    (folder / "CURRENT").write_text(json.dumps({"generation": "g1", "previous": None, "sequence": 1}))
    found = doctor._generations(config)
    assert found.status == "fail" and found.detail.startswith("web: ") and "index again" in (found.fix or "")


def test_a_generation_of_another_analyzer_is_named(config: Config) -> None:
    generations = GenerationStore(config.data_dir / "generations")
    with generations.building("demo", "g1") as part:
        manifest = make_manifest("g1")
        generations.finish(part, manifest)
    generations.publish(manifest, required=None)
    found = doctor._generations(config)
    assert (found.status, found.fix) == ("warn", "index these projects again")
    assert "demo was built with analyzer a1, and text-" in found.detail


@pytest.mark.parametrize(("status", "code"), [("ok", 0), ("warn", 0), ("fail", 1)])
def test_the_command_fails_when_a_check_fails(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, status: str, code: int
) -> None:
    check = doctor.Check(name="disk space", status=status, detail="1.0 GiB\nfree", fix="free more")
    monkeypatch.setattr(doctor, "examine", lambda _config: iter([check]))
    monkeypatch.chdir(tmp_path)
    assert cli.run_command(["doctor"]) == code
    assert capsys.readouterr().out == f"{status:4}  disk space: 1.0 GiB free; free more\n"
    assert cli.run_command(["doctor", "--json"]) == code
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is (status != "fail") and report["checks"][0]["fix"] == "free more"


@pytest.mark.parametrize(
    ("states", "status"),
    [((), "ok"), (("serving", "serving"), "ok"), (("serving", "down"), "warn"), (("down", "behind"), "fail")],
)
def test_replicas_of_shards_that_are_down_are_named(
    monkeypatch: pytest.MonkeyPatch, config: Config, states: tuple[str, ...], status: str
) -> None:
    class Client:
        def json(self, *_arguments: str) -> dict[str, Any]:
            shards = [
                {"shard": "vector-0", "replica": number, "state": state, "detail": f"why {number}", "revision": 3}
                for number, state in enumerate(states)
            ]
            return {"shards": shards}

    if states:
        config.data_dir.mkdir(parents=True)
        state = machine.ServerState(pid=os.getpid(), host="", port=1, url="http://x", started_at=0, run_dir="")
        machine.write_state(config.data_dir, state)
    monkeypatch.setattr("serve.client.connect", lambda *_arguments: Client())
    found = doctor._shards(config)
    assert found.status == status
    for number, name in enumerate(states):
        assert (f"vector-0#{number} is {name}: why {number}" in found.detail) is (name != "serving")
    assert (found.fix is not None) is (status != "ok")
