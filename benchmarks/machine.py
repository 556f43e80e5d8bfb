"""What a measurement was taken on, and how much memory a running server has."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version
from pathlib import Path
from typing import Any

PACKAGES = ("raycall", "ray", "faiss-cpu", "pyserini", "pyjnius", "onnxruntime", "fastapi", "uvicorn", "numpy")


def describe() -> dict[str, Any]:
    """Processor, cores, memory, load, Python and the versions of what the numbers depend on."""
    return {
        "cpu": _field("/proc/cpuinfo", "model name"),
        "cores": len(os.sched_getaffinity(0)),
        "memory_mb": int(_field("/proc/meminfo", "MemTotal").split()[0]) // 1024,
        "load_before": [round(load, 2) for load in os.getloadavg()],
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in PACKAGES},
    }


def _field(path: str, name: str) -> str:
    for line in Path(path).read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == name:
            return value.strip()
    return "0"


def resident_mb(server: int, mark: str) -> tuple[float, dict[str, float]]:
    """The proportional set size of process `server` and of all whose command line or environment names `mark`, in MB.

    Pages that several processes share count once in the sum. Also by program.
    """
    total = 0
    programs: dict[str, int] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if int(entry.name) != server and not _names(entry, mark.encode()):
                continue
            size = _pss_kb(entry)
            name = (entry / "comm").read_text().strip()
        except OSError:
            continue
        total += size
        programs[name] = programs.get(name, 0) + size
    by_size = sorted(programs.items(), key=lambda item: -item[1])
    return round(total / 1024, 1), {name: round(size / 1024, 1) for name, size in by_size}


def _names(entry: Path, mark: bytes) -> bool:
    return mark in (entry / "cmdline").read_bytes() or mark in (entry / "environ").read_bytes()


def _pss_kb(entry: Path) -> int:
    for line in (entry / "smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1])
    return 0
