"""The `raycall` command: registers the commands and turns whatever they raise into one line and an exit code.

Exit codes: 0 done, 1 failure, 2 wrong usage, 130 interrupted, 141 the reader of stdout went away. Nothing heavy is imported
here or at the top of a command's module: a search from the command line must be quick as a whole process.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import cache
from typing import Annotated, Any

import typer

from cluster.errors import RaycallError, UsageError
from serve.commands import doctor, generations, index, isolation, keys, output, run, search, status
from serve.commands.options import ConfigFile, DataDir
from serve.commands.quick import QuickCommand, QuickGroup

EXIT_FAILURE = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

app = typer.Typer(
    name="raycall",
    cls=QuickGroup,
    help="A self-hosted retrieval cluster for agents: words and vectors, guarded, with a plain statement of what was left out.",
    epilog="Start with: raycall serve --index PATH",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
for _function in (search.search, index.index, run.serve, status.status, doctor.doctor):
    app.command(cls=QuickCommand)(_function)
app.command(name="verify-isolation", cls=QuickCommand)(isolation.verify_isolation)
app.add_typer(keys.app, name="keys")
app.add_typer(generations.app, name="generations")


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        output.write_text(f"raycall {version('raycall')}")
        raise typer.Exit


@app.callback()
def common(
    context: typer.Context,
    config: ConfigFile = None,
    data_dir: DataDir = None,
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Options before the command hold for it as well."""
    context.obj = {"config": config, "data_dir": data_dir}


def main() -> None:
    """Entry point of the console script."""
    output.prepare_streams()
    code = run_command(sys.argv[1:])
    sys.exit(_flushed(code))


def run_command(arguments: Sequence[str]) -> int:
    """Runs one command line and returns its exit code. Never raises, never prints a traceback."""
    try:
        if not arguments:
            # Help for a person; not 0, so that a script that lost its arguments notices.
            _run(["--help"])
            return EXIT_USAGE
        return _run(arguments)
    except RaycallError as error:
        output.note(error.detail)
        return EXIT_USAGE if isinstance(error, UsageError) else EXIT_FAILURE
    except typer.TyperException as error:
        # Typer's own refusals of options and arguments.
        output.note(f"{error.format_message()} (see: raycall --help)")
        return error.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return EXIT_INTERRUPTED
    except SystemExit as error:
        # Typer ends the process itself when stdout's reader has gone away. (The client maps the socket's errors.)
        return output.EXIT_PIPE if isinstance(error.__context__, BrokenPipeError) else EXIT_FAILURE
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        output.note(f"{place}{error.strerror or error}")
        return EXIT_FAILURE
    except Exception as error:
        return _unexpected(error)


@cache
def _command() -> Any:
    return typer.main.get_command(app)


def _run(arguments: Sequence[str]) -> int:
    code = _command().main(list(arguments), prog_name="raycall", standalone_mode=False)
    return code if isinstance(code, int) else 0


def _unexpected(error: Exception) -> int:
    if os.environ.get("RAYCALL_LOG_LEVEL") == "debug":
        import traceback

        sys.stderr.write(traceback.format_exc())
    output.note(f"{type(error).__name__}: {error} (this should not happen; RAYCALL_LOG_LEVEL=debug shows where)")
    return EXIT_FAILURE


def _flushed(code: int) -> int:
    """Sends what is left to stdout; a reader that has gone away, or a full disk, is an exit code and not a traceback."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        code = output.EXIT_PIPE
        _drop_stdout()
    except OSError as error:
        _drop_stdout()
        output.note(f"the answer could not be written: {error.strerror}")
        code = EXIT_FAILURE
    return code


def _drop_stdout() -> None:
    # What the buffers still hold goes nowhere when the interpreter closes the stream at exit.
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 1)
