"""`ls`: what a store holds, the damaged part of it included."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from turnlog.cli.output import App, pass_app
from turnlog.cli.text import count, format_time, one_line

if TYPE_CHECKING:
    from turnlog.header import SessionHeader
    from turnlog.log import Turnlog
    from turnlog.query.corpus import SessionRecord

_TITLE_CHARS = 100


@click.command()
@click.option("--damaged", is_flag=True, help="List only what cannot be read.")
@click.option("--all", "everything", is_flag=True, help="List all sessions, however many.")
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=50,
    show_default=True,
    help="List this many of the newest sessions.",
)
@click.option(
    "--titles/--no-titles", default=True, help="Read the titles; needs a look at each log."
)
@pass_app
def ls(app: App, damaged: bool, everything: bool, limit: int, titles: bool) -> None:
    """List the sessions, newest first, and damaged ones with the reason."""
    with app.open() as log:
        records = log.query.list_sessions(damaged=True)
        sound = [] if damaged else [record for record in records if record.header is not None]
        broken = [record for record in records if record.header is None]
        shown = sound if everything else sound[:limit]
        listing = {
            "sessions": [
                _session(log, record.header, record.location, titles)
                for record in app.progress(shown, "Reading titles")
                if record.header is not None
            ],
            "damaged": [_damaged(record) for record in broken],
            "total": len(sound),
            "missingCwd": len(_with_missing_cwd(sound)),
        }
    if app.json:
        app.value(listing)
    else:
        _print(app, listing, damaged)


def _session(log: Turnlog, header: SessionHeader, location: str, titles: bool) -> dict[str, Any]:
    """One session of the listing; a log that cannot be read is that entry's `problem` and nothing else's."""
    entry = {**header.to_dict(), "location": location}
    if titles:
        entry.update(_read_title(log, header.id))
    return entry


def _read_title(log: Turnlog, id: str) -> dict[str, Any]:
    from turnlog.errors import TurnlogError

    try:
        session = log.query.read_session(id, close_turn=False)
        title = session.title() or _first_words(session)
    except TurnlogError as error:
        return {"title": None, "problem": error.message, "code": error.code}
    except OSError as error:
        return {"title": None, "problem": str(error), "code": "UNREADABLE"}
    return {"title": title}


def _first_words(session: Any) -> str | None:
    """What the user asked first, for a session without a title."""
    from turnlog.surface import is_append_surface_event

    for record in session.events.iter_records():
        if getattr(record, "type", "") != "user/message" or not is_append_surface_event(record):
            continue
        message = record.message
        if message.source.get("kind") == "user" and message.text.strip():
            return str(message.text)
    return None


def _damaged(record: SessionRecord) -> dict[str, Any]:
    return {"location": record.location, "reason": record.damage, "code": record.code}


def _with_missing_cwd(records: list[SessionRecord]) -> list[str]:
    """The working directories, one for each session, that are paths of this system and gone."""
    known: dict[str, bool] = {}
    missing = []
    for record in records:
        cwd = record.header.cwd if record.header is not None else None
        if cwd is None or not os.path.isabs(cwd):  # noqa: PTH117 - as text: it may be no path here
            continue
        if cwd not in known:
            known[cwd] = os.path.exists(cwd)  # noqa: PTH110 - false for what is no path
        if not known[cwd]:
            missing.append(cwd)
    return missing


def _print(app: App, listing: dict[str, Any], only_damaged: bool) -> None:
    sessions, broken = listing["sessions"], listing["damaged"]
    if sessions:
        app.table(("ID", "CREATED (UTC)", "CWD", "TITLE"), map(_row, sessions))
    elif not only_damaged:
        app.line(f"no sessions in {app.store_name()}; `turnlog import --examples` brings some")
    left = listing["total"] - len(sessions)
    if left > 0 and sessions:
        app.line(f"... and {count(left, 'older session')}: --all or --limit")
    if broken:
        app.line((count(len(broken), "damaged entry", "damaged entries") + ":", "bold"))
        for entry in broken:
            app.line(("  damaged ", "red"), f"{entry['location']}: {entry['reason']}")
    elif only_damaged:
        app.line("nothing is damaged")
    if listing["missingCwd"]:
        number = listing["missingCwd"]
        verb = "belongs" if number == 1 else "belong"
        app.line(f"{count(number, 'session')} {verb} to a directory that is gone")


def _row(entry: dict[str, Any]) -> tuple[str, str, str, str]:
    title = entry.get("title") or ""
    if "problem" in entry:
        title = f"(damaged: {entry['problem']})"
    return (
        entry["id"],
        format_time(entry["createdAt"]),
        entry.get("cwd") or "-",
        one_line(title, _TITLE_CHARS),
    )
