"""What `make` says on a machine that cannot install, without installing anything."""

import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def make(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    shutil.copy(ROOT / "Makefile", folder)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return subprocess.run(["make", *arguments], cwd=folder, env=kept, capture_output=True, text=True, check=False)


def python_that(folder: Path, script: str) -> str:
    path = folder / "a python"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@pytest.mark.parametrize("version", ["2.7.18", "3.10.14", "3.14.0"])
def test_a_python_that_is_too_old_or_too_new_is_named(tmp_path: Path, version: str) -> None:
    python = python_that(tmp_path, f'case "$*" in *version_info*) exit 1 ;; --version) echo "Python {version}" ;; esac')
    done = make(tmp_path, ".tools/bin/uv", f"PYTHON={python}")
    first, *rest = done.stderr.splitlines()
    assert done.returncode != 0 and not (tmp_path / ".tools").exists()
    assert first.startswith("raycall: Python 3.11, 3.12 or 3.13 is needed") and f"is Python {version}" in first
    assert all(line.startswith("make: ***") for line in rest)


def test_a_missing_python_is_named(tmp_path: Path) -> None:
    done = make(tmp_path, ".tools/bin/uv", "PYTHON=no-such-python")
    assert done.returncode != 0
    assert done.stderr.startswith("raycall: no-such-python was not found; install Python 3.11, 3.12 or 3.13")


def test_a_python_without_venv_says_what_to_install(tmp_path: Path) -> None:
    python = python_that(tmp_path, 'case "$*" in *ensurepip*) exit 1 ;; esac')
    done = make(tmp_path, ".tools/bin/uv", f"PYTHON={python}")
    assert done.returncode != 0 and not (tmp_path / ".tools").exists()
    assert "comes without venv; install it (Debian and Ubuntu: sudo apt-get install python3-venv)" in done.stderr


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_the_version_check_takes_the_supported_pythons(version: str) -> None:
    program = next(line for line in (ROOT / "Makefile").read_text().splitlines() if "version_info" in line).split("'")[1]
    major, minor = version.split(".")
    checked = program.replace("import sys; ", "").replace("sys.version_info[:2]", f"({major}, {minor})")
    with pytest.raises(SystemExit) as ended:
        exec(checked, {"sys": __import__("sys")})
    assert not ended.value.code


@pytest.mark.parametrize("folder", ["a b", "$(id)", "$$HOME", "`touch x`", 'q"uote', "-x", "a;touch x", "ümlaut/"])
def test_no_character_of_a_folder_is_run(tmp_path: Path, folder: str) -> None:
    done_with = tmp_path / "argument"
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    raycall = tmp_path / ".venv" / "bin" / "raycall"
    raycall.write_text(f'#!/bin/sh\nprintf %s "$2" > "{done_with}"\n')
    raycall.chmod(0o755)
    for name in ("requirements.lock", "pyproject.toml", ".tools/bin/uv", ".venv/.installed"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    done = make(tmp_path, "run", f"REPO={folder}")
    assert done.returncode == 0, done.stderr
    assert done_with.read_text() == f"--index={folder}"
    assert not (tmp_path / "x").exists()


def test_help_names_every_target() -> None:
    text = (ROOT / "Makefile").read_text()
    phony = next(line for line in text.splitlines() if line.startswith(".PHONY:")).split()[1:]
    done = subprocess.run(["make"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in phony:
        assert f"\n{name} " in f"\n{done.stdout}", name
