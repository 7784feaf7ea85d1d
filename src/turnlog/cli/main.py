"""The group of commands, and the one place where errors become messages and exit codes.

0: done. 1: it failed, said in one line on stderr, or with `--json` as one object on stdout. 2: wrong usage.
"""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

from turnlog._version import __version__
from turnlog.cli.checking import verify
from turnlog.cli.keeping import rm, tag, title
from turnlog.cli.listing import ls
from turnlog.cli.mending import doctor, repair
from turnlog.cli.moving import export, fork, import_
from turnlog.cli.output import App
from turnlog.cli.showing import messages, show
from turnlog.cli.text import visible
from turnlog.errors import TurnlogError


class _Group(click.Group):
    """A group whose reader may leave early: click itself would make that an exit code of 1."""

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except BrokenPipeError:
            _drop_output()
            raise click.exceptions.Exit(0) from None


def _drop_output() -> None:
    """Whoever read the output has seen enough; what is still buffered must not raise at exit."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@click.group(
    cls=_Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.option(
    "--store",
    envvar="TURNLOG_STORE",
    metavar="TARGET",
    help="Where the sessions are: a database (x.db), a directory or a URL. Default: $TURNLOG_STORE, else your own.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON: one value, or one a line.")
@click.version_option(__version__, message="turnlog %(version)s")
@click.pass_context
def cli(context: click.Context, store: str | None, as_json: bool) -> None:
    """Browse, check, mend and move the session logs of LLM agents."""
    context.obj = App(store, as_json)


for _command in (
    ls, show, messages, title, tag, verify, repair, rm, fork, export, import_, doctor,
):  # fmt: skip
    cli.add_command(_command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; the arguments are those of the process unless given. Returns the exit code."""
    _never_fail_to_print()
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = cli.main(given, prog_name="turnlog", standalone_mode=False)
        sys.stdout.flush()
    except click.UsageError as error:
        return _fail(given, 2, "USAGE", _usage_text(error), {})
    except click.ClickException as error:
        return _fail(given, 1, "FAILED", error.format_message(), {})
    except (click.Abort, KeyboardInterrupt):
        return _fail(given, 130, "INTERRUPTED", "interrupted", {})
    except TurnlogError as error:
        return _fail(given, 1, error.code, error.message, error.to_dict())
    except BrokenPipeError:
        _drop_output()
        return 0
    except OSError as error:
        where = f"{error.filename}: " if error.filename is not None else ""
        return _fail(given, 1, "OS_ERROR", f"{where}{error.strerror or error}", {})
    return code if isinstance(code, int) else 0


def _never_fail_to_print() -> None:
    """Make characters that the output's encoding lacks come out as escapes instead of raising."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _fail(given: list[str], exit_code: int, code: str, message: str, details: Any) -> int:
    app = App(json=_wants_json(given))
    with contextlib.suppress(BrokenPipeError):
        if app.json:
            app.value({"error": {"code": code, "message": message, **details}})
            sys.stdout.flush()
        else:
            sys.stderr.write(f"turnlog: error: {visible(message)}\n")
    return exit_code


def _wants_json(given: list[str]) -> bool:
    """Whether `--json` stands before the command; also for a command line that click refused."""
    skip = False
    for argument in given:
        if argument == "--json":
            return True
        if not skip and not argument.startswith("-"):
            return False
        skip = argument == "--store"
    return False


def _usage_text(error: click.UsageError) -> str:
    text = error.format_message()
    if isinstance(error, click.NoSuchOption) and error.option_name in ("--json", "--store"):
        text += f" {error.option_name} stands before the command: turnlog {error.option_name} ..."
    path = error.ctx.command_path if error.ctx is not None else "turnlog"
    return f"{text} (see {path} --help)"
