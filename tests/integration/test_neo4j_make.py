"""What `make neo4j` says on a machine that cannot run it, in one line."""

import subprocess
import sys
from pathlib import Path

import pytest

from deploy.neo4j import server
from deploy.neo4j.server import Neo4jServer, ServerError

ROOT = Path(__file__).parents[2]


def test_a_missing_java_is_named(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "deploy.neo4j.server", "--folder", str(tmp_path / "neo4j")]
    done = subprocess.run(command, cwd=ROOT, env={"PATH": str(tmp_path)}, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("raycall: java was not found: Neo4j 5.26 runs on a JDK, 17 or 21")
    assert not (tmp_path / "neo4j").exists()


def test_a_missing_maven_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ServerError, match="mvn was not found: Maven fetches the Neo4j server") as caught:
        server.fetch(tmp_path / "tools")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "tools").exists()


def test_a_fetch_that_fails_leaves_nothing_that_looks_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    maven = tmp_path / "mvn"
    script = (
        "for part; do case $part in *outputDirectory=*) /bin/mkdir ${part#*=};; esac; done\necho '[ERROR] no network'\nexit 1\n"
    )
    maven.write_text(f"#!/bin/sh\n{script}")
    maven.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ServerError, match=r"Maven could not fetch Neo4j 5\.26\.\d+: \[ERROR\] no network"):
        server.fetch(tmp_path / "tools")
    assert list((tmp_path / "tools").iterdir()) == []


def test_a_java_that_fails_is_named_with_its_reason_and_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java = tmp_path / "java"
    java.write_text("#!/bin/sh\necho 'Unrecognized option: --add-opens' >&2\nexit 1\n")
    java.chmod(0o755)
    monkeypatch.setattr(server, "fetch", lambda: tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    started = Neo4jServer(tmp_path / "neo4j")
    with pytest.raises(ServerError, match="Neo4j did not start: Unrecognized option: --add-opens"), started:
        pass
    assert not started.is_running
