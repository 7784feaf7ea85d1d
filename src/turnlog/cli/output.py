"""What the commands share: the options of the whole program, and the one way to print.

Everything printed passes `visible` or `visible_json`, except exported bytes that do not go to a terminal. Rich
is used on a terminal only; a pipe gets plain lines that are neither wrapped nor cut.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click
import msgspec

from turnlog.cli.text import visible, visible_json

if TYPE_CHECKING:
    from rich.console import Console

    from turnlog.log import Turnlog

Span = tuple[str, str]
"""A text and its rich style, `""` for none."""


class App(msgspec.Struct):
    """The program's options, and printing. `store` is None for the default store."""

    store: str | None = None
    json: bool = False

    def open(self) -> Turnlog:
        """The store that the options name."""
        from turnlog import log

        return log.open(self.store or None)

    def store_name(self) -> str:
        """The store for people."""
        from turnlog.storage.targets import default_store

        return visible(self.store or str(default_store()))

    def line(self, *spans: str | Span) -> None:
        """Print one line; on a terminal in style."""
        parts = [(span, "") if isinstance(span, str) else span for span in spans]
        safe = [(visible(text, tabs=True), style) for text, style in parts]
        if not sys.stdout.isatty():
            sys.stdout.write("".join(text for text, _ in safe) + "\n")
            return
        from rich.text import Text

        _console().print(Text.assemble(*safe), soft_wrap=True)

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Print rows of one-line cells under their columns; the last column takes what room is left."""
        safe = [[visible(cell) for cell in row] for row in rows]
        if sys.stdout.isatty():
            _print_rich_table(columns, safe)
            return
        widths = [max(map(len, cells)) for cells in zip(columns, *safe, strict=True)]
        for row in (list(columns), *safe):
            cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            sys.stdout.write("  ".join(cells).rstrip() + "\n")

    def value(self, value: Any) -> None:
        """Print a JSON value on a line of its own."""
        from turnlog.lossless import canonicalize

        self.json_text(canonicalize(value)[0])

    def json_text(self, text: bytes) -> None:
        """Print JSON that is encoded already, its hostile characters escaped: the same value."""
        plain = text.decode("utf-8")
        sys.stdout.write(visible_json(plain, ascii_only=not _is_utf8()) + "\n")

    def note(self, text: str) -> None:
        """Say something about the work on stderr, in one line; nothing with `--json`."""
        if not self.json:
            sys.stderr.write(f"turnlog: {visible(text)}\n")

    def error(self, text: str) -> None:
        """Say what failed for one of several things, in one line on stderr; the exit code is the caller's."""
        sys.stderr.write(f"turnlog: error: {visible(text)}\n")

    def progress(self, items: Sequence[Any], what: str) -> Iterable[Any]:
        """The items; on a terminal with a bar that shows how far the work is."""
        if self.json or len(items) < 2 or not sys.stderr.isatty():
            return items
        from rich.console import Console
        from rich.progress import track

        return track(items, description=what, console=Console(stderr=True), transient=True)


pass_app: Callable[[Callable[..., Any]], Callable[..., Any]] = click.make_pass_decorator(App)
"""Gives a command the `App` as its first argument."""


def _is_utf8() -> bool:
    return (sys.stdout.encoding or "").lower().replace("-", "").replace("_", "") == "utf8"


def _console() -> Console:
    from rich.console import Console

    return Console(markup=False, highlight=False, emoji=False)


def _print_rich_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for number, column in enumerate(columns):
        overflow: Any = "ellipsis" if number else "fold"
        table.add_column(Text(column), no_wrap=number > 0, overflow=overflow)
    for row in rows:
        table.add_row(*map(Text, row))
    _console().print(table)
