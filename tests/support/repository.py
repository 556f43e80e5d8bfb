"""A small repository of several languages, made anew for a test."""

from __future__ import annotations

import subprocess
from pathlib import Path

FILES = {
    "README.md": """# Pump controller

Controls water pumps over a serial line.

## Installation

Run `make install`, then set the port with PUMP_PORT.

## Calibration

Calibrate the flow sensor every month. The calibration table is kept in `calibration.yaml`.
""",
    "src/pump/controller.py": '''"""Drives the pumps."""

from pump.serial_port import open_port


class PumpController:
    """Starts and stops pumps."""

    def start_pump(self, number: int) -> None:
        """Starts one pump after the safety check."""
        self.check_pressure(number)
        open_port().write(f"START {number}")

    def check_pressure(self, number: int) -> None:
        """Refuses to start a pump under too high a pressure."""
        if open_port().read(number) > 9:
            raise OverpressureError(number)


class OverpressureError(Exception):
    """The pressure is too high."""
''',
    "src/pump/serial_port.py": '''"""The serial line."""


def open_port():
    """Opens the serial line once and keeps it."""
    return connect("/dev/ttyUSB0", baud=9600)
''',
    "web/dashboard.ts": """import { fetchStatus } from "./api";

export function renderDashboard(root: HTMLElement): void {
  fetchStatus().then((status) => { root.textContent = status.flow.toFixed(2); });
}
""",
    "web/api.ts": """export async function fetchStatus(): Promise<{ flow: number }> {
  return (await fetch("/status")).json();
}
""",
    "cmd/main.go": """package main

// ParseFlags reads the command line of the pump daemon.
func ParseFlags(args []string) map[string]string {
	return map[string]string{}
}

func main() {
	ParseFlags(nil)
}
""",
    "docs/résumé.md": "# Résumé\n\nDer Prüfstand für Kreiselpumpen: 混合检索系统使用倒排索引.\n",
    "calibration.yaml": "sensor_a: 1.02\nsensor_b: 0.98\n",
    "logo.png": "\x89PNG\r\n\x1a\n\x00\x00",
    ".gitignore": "build/\n",
    "build/generated.py": "ignored_symbol = 1\n",
}


def make_repository(folder: Path, files: dict[str, str] | None = None, *, git: bool = True) -> Path:
    """Writes the files and, by default, commits them."""
    for name, text in (FILES if files is None else files).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode("utf-8") if not name.endswith(".png") else text.encode("latin-1"))
    if git:
        run_git(folder, "init", "-q")
        commit_all(folder, "first")
    return folder


def commit_all(folder: Path, message: str) -> None:
    """Commits everything there is."""
    run_git(folder, "add", "-A")
    run_git(folder, "commit", "-qm", message)


def run_git(folder: Path, *arguments: str) -> str:
    """One git command with an identity of its own and no configuration of this machine's."""
    identity = ["-c", "user.name=noor", "-c", "user.email=noor@example.org", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()
