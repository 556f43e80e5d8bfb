"""What the documents say of the settings, made from the table of them. `python -m tests.support.settings_docs` rewrites it."""

from __future__ import annotations

import json
import re
from itertools import groupby
from pathlib import Path

from cluster.config import ALIASES, SETTINGS, Setting

ROOT = Path(__file__).resolve().parents[2]
LOCAL_YAML = ROOT / "configs" / "local.yaml"
README = ROOT / "README.md"
BEGIN, END = "<!-- settings: begin (make docs) -->", "<!-- settings: end -->"

_HEAD = """\
# Every setting with its default; see "Configuration" in README.md for how files, variables and options combine.
# Use it with: raycall --config configs/local.yaml serve
# The comment gives what the setting does, the range and the environment variable.
"""


def default_text(setting: Setting) -> str:
    """The default as YAML and JSON write it."""
    value = setting.default
    return json.dumps(str(value) if isinstance(value, Path) else value)


def local_yaml() -> str:
    """The text of configs/local.yaml."""
    lines = [_HEAD]
    for section, settings in groupby(SETTINGS, key=lambda setting: setting.key.rpartition(".")[0]):
        indent = "  " if section else ""
        lines += [f"{section}:"] if section else []
        for setting in settings:
            lines.append(f"{indent}# {setting.help} ({setting.allowed}; {setting.variable})")
            lines.append(f"{indent}{setting.key.rpartition('.')[2]}: {default_text(setting)}")
        lines.append("")
    return "\n".join(lines)


def table() -> str:
    """The table of README.md."""
    also = {key: alias for alias, key in ALIASES.items()}
    lines = ["| Setting | Default | Allowed | What it does |", "| --- | --- | --- | --- |"]
    for setting in SETTINGS:
        help_text = setting.help + (f" Also `{also[setting.key]}`." if setting.key in also else "")
        lines.append(f"| `{setting.key}` | `{default_text(setting)}` | {setting.allowed} | {help_text} |")
    return "\n".join(lines)


def readme_with_table(readme: str) -> str:
    """`readme` with the table between its two marks replaced."""
    return re.sub(
        f"{re.escape(BEGIN)}.*?{re.escape(END)}", lambda _match: f"{BEGIN}\n{table()}\n{END}", readme, count=1, flags=re.DOTALL
    )


if __name__ == "__main__":
    LOCAL_YAML.write_text(local_yaml(), "utf-8")
    README.write_text(readme_with_table(README.read_text("utf-8")), "utf-8")
