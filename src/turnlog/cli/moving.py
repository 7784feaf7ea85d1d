"""`fork`, `export` and `import`: sessions into, out of and within a store."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from turnlog.cli.output import App, pass_app
from turnlog.cli.text import count, visible_json

if TYPE_CHECKING:
    from turnlog.interop.harness import Imported
    from turnlog.log import Turnlog


@click.command()
@click.argument("id")
@click.option("--at", type=int, metavar="SEQ", help="The last event to share; default: all.")
@click.option("--id", "child_id", metavar="NEW", help="The new session's id; made unless given.")
@pass_app
def fork(app: App, id: str, at: int | None, child_id: str | None) -> None:
    """Start a new session with the events of another, and print its id.

    An open last turn is closed in the fork; the source is not changed.
    """
    from turnlog.cli.ids import resolve_id

    with app.open() as log:
        child = log.fork(resolve_id(log, id), at, child_id=child_id)
        child.flush()
        if app.json:
            app.value({"id": child.id, "parentSession": child.header.parent_session})
        else:
            app.line(child.id)


@click.command()
@click.argument("id")
@click.option(
    "--format", "format_", type=click.Choice(["jsonl"]), default="jsonl", help="The format."
)
@click.option("-o", "--output", metavar="FILE", help="Write to a file, for its owner only.")
@click.option("--compress", is_flag=True, help="Compress with zstd, a frame a batch.")
@click.option("--force", is_flag=True, help="Overwrite FILE.")
@pass_app
def export(
    app: App, id: str, format_: str, output: str | None, compress: bool, force: bool
) -> None:
    """Write a session in the harnesses' own format, to stdout or a file."""
    from turnlog.cli.ids import resolve_id
    from turnlog.interop.harness import export_session

    to_stdout = output in (None, "-")
    if compress and to_stdout and sys.stdout.isatty():
        raise click.UsageError("compressed bytes do not go to a terminal; use -o FILE")
    with app.open() as log:
        found = resolve_id(log, id)
        data, damage = export_session(log, found, compress=compress)
    for text in damage:
        app.note(text)
    if output is None or to_stdout:
        _write_stdout(data)
        return
    write_private(Path(output), data, force=force)
    if app.json:
        app.value({"id": found, "path": output, "bytes": len(data), "damage": damage})


def _write_stdout(data: bytes) -> None:
    """The bytes as they are; on a terminal the same JSON with its hostile characters escaped."""
    if sys.stdout.isatty():
        sys.stdout.write(visible_json(data.decode("utf-8", "backslashreplace")))
        return
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def write_private(path: Path, data: bytes, *, force: bool = False) -> None:
    """Write a file that only its owner may read, all or nothing; an existing one only with `force`.

    Raises `StorageWriteError` (`FILE_EXISTS`), or OSError.
    """
    import secrets

    from turnlog.errors import StorageWriteError

    aside = path.with_name(f"{path.name[:200]}.{secrets.token_hex(6)}.tmp")
    descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if force:
            aside.replace(path)
        else:
            # Unlike a rename, a link never takes the place of something.
            path.hardlink_to(aside)
    except FileExistsError as error:
        raise StorageWriteError(
            f"{path} exists already; choose another name, or --force", code="FILE_EXISTS"
        ) from error
    finally:
        aside.unlink(missing_ok=True)


@click.command("import")
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@click.option("--examples", is_flag=True, help="Import the sessions that come with turnlog.")
@click.option(
    "--salvage",
    is_flag=True,
    help="Import what is sound of damaged files, as new sessions ID-salvaged.",
)
@pass_app
def import_(app: App, paths: tuple[str, ...], examples: bool, salvage: bool) -> None:
    """Copy sessions of the harnesses into the store: files, directories, or - for stdin.

    Importing again brings only what is new. A file that cannot be imported is named with the reason, and the
    others are imported all the same; then the exit code is 1.
    """
    if not paths and not examples:
        raise click.UsageError("name a file or a directory, or use --examples")
    with contextlib.ExitStack() as stack, app.open() as log:
        files = [*_found_files(paths, stack), *(_example_files(stack) if examples else ())]
        results = [
            _import_one(app, log, name, path, salvage)
            for name, path in app.progress(files, "Importing")
        ]
    refused = results.count("refused")
    if not app.json:
        _print_summary(app, results)
    if refused:
        if not app.json:
            raise click.ClickException(f"{count(refused, 'file')} of {len(results):,} refused")
        raise click.exceptions.Exit(1)


def _found_files(paths: tuple[str, ...], stack: contextlib.ExitStack) -> Iterator[tuple[str, Path]]:
    """The files to import, each with the name that it is reported under."""
    from turnlog.interop.harness import iter_log_files

    for name in paths:
        if name == "-":
            yield "-", stack.enter_context(_spooled_stdin())
            continue
        try:
            for path in iter_log_files(Path(name)):
                yield str(path), path
        except OSError:
            yield name, Path(name)  # importing it says what is wrong


@contextlib.contextmanager
def _spooled_stdin() -> Iterator[Path]:
    """Stdin as a file, because reading a log takes more than one look."""
    import shutil
    import tempfile

    with tempfile.TemporaryDirectory(prefix="turnlog-") as directory:
        path = Path(directory, "stdin.jsonl")
        with path.open("xb") as file:
            shutil.copyfileobj(sys.stdin.buffer, file)
        yield path


def _example_files(stack: contextlib.ExitStack) -> Iterator[tuple[str, Path]]:
    from importlib.resources import as_file, files

    for entry in sorted(files("turnlog.examples").iterdir(), key=lambda entry: entry.name):
        if entry.name.endswith(".jsonl"):
            yield entry.name, stack.enter_context(as_file(entry))


def _import_one(app: App, log: Turnlog, name: str, path: Path, salvage: bool) -> str:
    from turnlog.errors import TurnlogError
    from turnlog.interop.harness import describe_refusal, import_file

    try:
        result = import_file(log, path, salvage=salvage)
    except TurnlogError as error:
        reason = describe_refusal(error, path).replace(str(path), name)
        if app.json:
            fault = {**error.to_dict(), "message": reason}
            app.value({"path": name, "status": "refused", "error": fault})
        else:
            app.note(f"refused {name}: {reason}")
        return "refused"
    _report(app, name, result)
    return result.status


def _report(app: App, name: str, result: Imported) -> None:
    import msgspec

    if app.json:
        app.value({"path": name, **msgspec.to_builtins(result)})
        return
    added = f"{result.added:,} of " if result.status == "grown" else ""
    app.line(
        f"{result.status:9}  ",
        (result.id, "bold"),
        f"  ({added}{count(result.events, 'event')})  {name}",
    )
    for text in result.notes:
        app.line(("           " + text, "dim"))
    for text in result.losses:
        app.line(("           lost: " + text, "yellow"))


def _print_summary(app: App, results: list[str]) -> None:
    counts: dict[str, Any] = {name: results.count(name) for name in dict.fromkeys(results)}
    text = ", ".join(f"{number:,} {name}" for name, number in counts.items())
    app.line(f"{count(len(results), 'file')}: {text or 'nothing to import'}")
