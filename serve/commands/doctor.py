"""`raycall doctor`: checks this installation and its data directory."""

from __future__ import annotations

from dataclasses import asdict

import typer

from serve.commands import options, output

_MARKS = {"ok": "green", "warn": "yellow", "fail": "red"}


def doctor(
    context: typer.Context,
    json: options.Json = False,
    config: options.ConfigFile = None,
    data_dir: options.DataDir = None,
) -> None:
    """Check what Raycall needs here, one line each, with what to do. Exits with 1 when a check fails."""
    from serve.doctor import examine

    settings = options.load_config(context, config, data_dir)
    checks = []
    for check in examine(settings):
        checks.append(check)
        if not json:
            _show(check.status, check.name, check.detail, check.fix)
    if json:
        output.write_json(
            {"ok": all(check.status != "fail" for check in checks), "checks": [asdict(check) for check in checks]}
        )
    if any(check.status == "fail" for check in checks):
        raise typer.Exit(1)


def _show(status: str, name: str, detail: str, fix: str | None) -> None:
    line = output.one_line(f"{name}: {detail}" + (f"; {fix}" if fix else ""))
    mark = typer.style(f"{status:4}", fg=_MARKS[status]) if output.is_terminal() else f"{status:4}"
    output.write_text(f"{mark}  {line}")
