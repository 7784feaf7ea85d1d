"""`show` and `messages`: a session for a person, and what a model was sent."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click
import msgspec

from turnlog.cli.output import App, pass_app
from turnlog.cli.text import count, format_time, shorten

if TYPE_CHECKING:
    from turnlog.cli.transcript import Entry, Part
    from turnlog.engine.protocol import Damage, StoredLog
    from turnlog.log import Turnlog

MAX_OUTPUT_CHARS = 1200
MAX_OUTPUT_LINES = 24
"""What `show` prints of one tool output, unless it is asked for all."""

_SHOWN_DAMAGE = 5
_STYLES = {"reasoning": "dim italic", "call": "cyan", "output": "dim", "note": "yellow"}
_HEADS = {
    "turn": "bold blue",
    "user": "bold green",
    "assistant": "bold magenta",
    "result": "cyan",
    "mark": "yellow",
}


class _Shown(msgspec.Struct):
    """A session ready to print. `events` are in wire form, made on demand."""

    header: dict[str, Any]
    title: str | None
    entries: Iterable[Entry]
    events: Iterable[Any]
    total: int
    messages: int = 0
    visible: int = 0
    shadowed: Sequence[int] = ()
    damage: Sequence[Damage] = ()


@click.command()
@click.argument("id")
@click.option("--surface", is_flag=True, help="Show what the model sees instead.")
@click.option("--raw", is_flag=True, help="Print the events as JSON lines.")
@click.option(
    "--limit", type=click.IntRange(min=0), help="Show only this many of the last entries."
)
@click.option("--full", is_flag=True, help="Do not shorten long tool outputs.")
@pass_app
def show(app: App, id: str, surface: bool, raw: bool, limit: int | None, full: bool) -> None:
    """Show a session's transcript: all that happened, compacted parts included.

    ID is a session id or the beginning of one. A damaged session is shown as far as it can be read.
    """
    if surface and raw:
        raise click.UsageError("--surface and --raw exclude each other")
    from turnlog.cli.ids import resolve_id

    with app.open() as log:
        found = resolve_id(log, id)
        shown = _surface(log, found) if surface else _transcript(app, log, found)
        if raw:
            for text in _last(shown.events, limit):
                app.json_text(text)
        elif app.json:
            app.value(_to_dict(shown, limit))
        else:
            _print(app, shown, limit, full)


@click.command()
@click.argument("id")
@click.option("--at", metavar="TURN.STEP", help="The request of this step, exactly as it was sent.")
@pass_app
def messages(app: App, id: str, at: str | None) -> None:
    """Print the history that the model sees, as a JSON array of messages.

    With --at one object {turn, step, header, context, messages}: what was sent for that step.
    """
    from turnlog.cli.ids import resolve_id

    place = None if at is None else _parse_place(at)
    with app.open() as log:
        session = log.query.read_session(resolve_id(log, id))
        if place is None:
            app.value([message.to_dict() for message in session.derive_messages()])
        else:
            app.value(session.request_at(*place).to_dict())


def _parse_place(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"([0-9]{1,15})\.([0-9]{1,15})", text)
    if match is None:
        raise click.BadParameter("write TURN.STEP, such as 2.1", param_hint="'--at'")
    return int(match[1]), int(match[2])


# -- reading -------------------------------------------------------------------------------------------


def _transcript(app: App, log: Turnlog, id: str) -> _Shown:
    """The stored log as it is, an open turn left open; salvaged, and said so, where it is damaged."""
    from turnlog.cli.transcript import iter_entries, iter_items
    from turnlog.errors import CorruptLogError, UnsupportedFormatError

    try:
        stored = log.storage.inspect(id, close_turn=False)
    except (CorruptLogError, UnsupportedFormatError) as error:
        app.note(f"{error.message}; what follows is what can be read of it")
        return _salvaged(app, log, id)
    if stored.torn is not None:
        app.note(
            f"the end is torn ({stored.torn.what}): {stored.torn.cut_bytes} bytes, cut on resume"
        )
    events = stored.log.view()
    nodes = set(stored.surface.nodes)
    appended = _appended(stored)
    shadowed = [seq for seq in appended if seq not in nodes]
    return _Shown(
        header=stored.header.to_dict(),
        title=stored.to_session().title(),
        entries=iter_entries(iter_items(events), frozenset(shadowed)),
        events=(event.to_json() for event in events),
        total=len(events),
        messages=len(appended),
        visible=len(nodes),
        shadowed=shadowed,
    )


def _appended(stored: StoredLog) -> list[int]:
    """The seqs of the messages that were appended, those that no longer show included."""
    replaced = {replacement.seq for replacement in stored.surface.replacements}
    seqs = {seq for entry in stored.surface.replacements for seq in entry.shadowed_seqs}
    return sorted((seqs | set(stored.surface.nodes)) - replaced)


def _salvaged(app: App, log: Turnlog, id: str) -> _Shown:
    from turnlog.cli.transcript import iter_entries, iter_wire_items
    from turnlog.lossless import canonicalize

    salvage = log.storage.salvage(id)
    for damage in salvage.damage[:_SHOWN_DAMAGE]:
        app.note(f"line {damage.line} (byte {damage.offset}): {damage.what}")
    more = len(salvage.damage) - _SHOWN_DAMAGE
    if more > 0:
        app.note(f"and {more} more; `turnlog verify` lists all")
    events = salvage.events
    titles = [wire["data"].get("title") for wire in events if _is_title(wire)]
    return _Shown(
        header={"id": id} if salvage.header is None else salvage.header,
        title=titles[-1] if titles and isinstance(titles[-1], str) else None,
        entries=iter_entries(iter_wire_items(events)),
        events=(canonicalize(wire)[0] for wire in events),
        total=len(events),
        messages=sum(wire.get("surfaceOp") == "append" for wire in events),
        damage=salvage.damage,
    )


def _is_title(wire: dict[str, Any]) -> bool:
    return wire["type"] == "session/title" and isinstance(wire["data"], dict)


def _surface(log: Turnlog, id: str) -> _Shown:
    """What the model would see next: the surface, with an open turn closed as a resume would."""
    from turnlog.cli.transcript import Item, iter_entries

    stored = log.storage.inspect(id)
    nodes, view = list(stored.surface.nodes), stored.log.view()
    events = [view[seq] for seq in nodes]
    # Each node as if it had been appended: in this view there is nothing that it stands for.
    items = [Item(event.type, event.seq, event.time, event.data, "append") for event in events]
    return _Shown(
        header=stored.header.to_dict(),
        title=stored.to_session().title(),
        entries=iter_entries(items),
        events=(),
        total=len(view) - len(stored.closers),
        messages=len(nodes),
        visible=len(nodes),
    )


# -- printing ------------------------------------------------------------------------------------------


def _to_dict(shown: _Shown, limit: int | None) -> dict[str, Any]:
    return {
        "header": shown.header,
        "title": shown.title,
        "events": shown.total,
        "shadowed": list(shown.shadowed),
        "damage": [damage.to_dict() for damage in shown.damage],
        "entries": [entry.to_dict() for entry in _last(shown.entries, limit)],
    }


def _last(values: Iterable[Any], limit: int | None) -> Iterable[Any]:
    return values if limit is None else deque(values, maxlen=limit)


def _print(app: App, shown: _Shown, limit: int | None, full: bool) -> None:
    _print_header(app, shown)
    entries = list(shown.entries)
    kept = entries if limit is None else entries[max(len(entries) - limit, 0) :]
    if len(kept) < len(entries):
        app.line(
            (
                f"... {count(len(entries) - len(kept), 'earlier entry', 'earlier entries')} left out",
                "yellow",
            )
        )
    for entry in kept:
        app.line("")
        shadowed = "  (shadowed: the model no longer sees this)" if entry.shadowed else ""
        lead = "== " if entry.kind == "turn" else "-- " if entry.kind == "mark" else ""
        app.line(
            (f"{lead}{entry.head}", _HEADS.get(entry.kind, "bold")),
            (f"  [seq {entry.seq}]{shadowed}", "dim"),
        )
        for part in entry.parts:
            _print_part(app, part, full)


def _print_header(app: App, shown: _Shown) -> None:
    header = shown.header
    app.line(("session ", "dim"), (str(header.get("id")), "bold"))
    facts = {
        "title": shown.title,
        "created": _created(header.get("createdAt")),
        "cwd": header.get("cwd"),
        "fork of": header.get("parentSession"),
        "inherited": header.get("seedLength"),
    }
    for name, value in facts.items():
        if value is not None:
            app.line((f"  {name:10}", "dim"), str(value))
    text = f"{count(shown.total, 'event')}, {count(shown.messages, 'message')}"
    if shown.shadowed:
        text += f", {len(shown.shadowed):,} of them shadowed (the model sees {shown.visible:,}: --surface)"
    if shown.damage:
        text += f", {count(len(shown.damage), 'damaged place')}"
    app.line(("  holds     ", "dim"), text)


def _created(value: Any) -> str | None:
    return f"{format_time(value)} UTC" if isinstance(value, int) else None


def _print_part(app: App, part: Part, full: bool) -> None:
    text, omitted = part.text.rstrip("\n"), 0
    if part.style in ("output", "call") and not full:
        text, omitted = shorten(text, max_chars=MAX_OUTPUT_CHARS, max_lines=MAX_OUTPUT_LINES)
    style = _STYLES.get(part.style, "")
    for line in text.split("\n"):
        app.line(("  " + line if line else "", style))
    if omitted:
        left = (
            f"  [... {omitted:,} of {len(text) + omitted:,} characters left out; --full shows them]"
        )
        app.line((left, "yellow"))
