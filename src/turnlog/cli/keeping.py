"""`title`, `tag` and `rm`: naming, sorting and removing stored sessions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from turnlog.cli.output import App, pass_app
from turnlog.cli.text import count, visible

if TYPE_CHECKING:
    from turnlog.errors import TurnlogError
    from turnlog.log import Turnlog

_UNIT_MS = {"h": 3_600_000, "d": 86_400_000, "w": 7 * 86_400_000}
_AGE = re.compile(r"(\d{1,6})([hdw])", re.ASCII)
_SHOWN = 5
_KEPT_BY_AGE = frozenset({"HAS_DEPENDENTS", "SESSION_LOCKED", "CONFLICT"})


@click.command()
@click.argument("id")
@click.argument("text", required=False)
@pass_app
def title(app: App, id: str, text: str | None) -> None:
    """Show a session's title, or give it the title TEXT.

    A title is an event of the log: earlier ones stay in it, the latest counts.
    """
    if text is not None:
        _check_text(text, "a title")
    from turnlog.cli.ids import resolve_id

    with app.open() as log:
        found = resolve_id(log, id)
        if text is not None:
            from turnlog.interop.mending import set_title

            set_title(log, found, text)
        else:
            text = log.query.read_session(found, close_turn=False).title()
    if app.json:
        app.value({"id": found, "title": text})
    elif text is None:
        app.note(f"session {found} has no title")
    else:
        app.line(text)


@click.command()
@click.argument("id")
@click.option("--add", multiple=True, metavar="TAG", help="Add a tag; may be given repeatedly.")
@click.option(
    "--remove", multiple=True, metavar="TAG", help="Remove a tag; may be given repeatedly."
)
@click.option(
    "--archive/--unarchive", default=None, help="Leave it out of listings, or list it again."
)
@pass_app
def tag(
    app: App, id: str, add: tuple[str, ...], remove: tuple[str, ...], archive: bool | None
) -> None:
    """Show a session's tags, or change them. They are notes beside the log and no part of it."""
    for text in add:
        _check_text(text, "a tag")
    from turnlog.cli.ids import resolve_id
    from turnlog.engine.listing import Notes

    with app.open() as log:
        found = resolve_id(log, id)
        before = log.storage.notes(found)
        tags = [*before.tags, *(one for one in dict.fromkeys(add) if one not in before.tags)]
        after = Notes(
            tuple(one for one in tags if one not in remove),
            before.archived if archive is None else archive,
        )
        if after != before:
            log.storage.set_notes(found, after)
    if app.json:
        app.value({"id": found, "tags": list(after.tags), "archived": after.archived})
        return
    for one in after.tags:
        app.line(one)
    if after.archived:
        app.line(("(archived)", "dim"))


def _check_text(text: str, what: str) -> None:
    if not text.strip():
        raise click.UsageError(f"{what} must not be empty")
    # Arguments that are no text come as lone surrogates, which no notes can hold.
    if visible(text) != text:
        raise click.UsageError(f"{what} is one line of text without control characters")


def _parse_age(context: click.Context, parameter: click.Parameter, text: str | None) -> int | None:
    """An age such as 30d, as milliseconds."""
    match = None if text is None else _AGE.fullmatch(text)
    if match is None and text is not None:
        raise click.BadParameter(f"{text!r} is no age; write 12h, 30d or 8w", context, parameter)
    return None if match is None else int(match[1]) * _UNIT_MS[match[2]]


@click.command()
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option(
    "--older-than",
    callback=_parse_age,
    metavar="AGE",
    help="Remove what had its last event so long ago: 12h, 30d, 8w.",
)
@click.option("--force", is_flag=True, help="Also what others were forked from or quote.")
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@pass_app
def rm(app: App, ids: tuple[str, ...], older_than: int | None, force: bool, dry_run: bool) -> None:
    """Remove sessions for good, with their notes.

    A session that others were forked from, or that others quote, is kept unless --force is given or these go
    with it; one that is open for writing is kept in any case.
    """
    if bool(ids) == (older_than is not None):
        raise click.UsageError("name sessions, or use --older-than")
    from turnlog.cli.ids import resolve_id

    with app.open() as log:
        # All of them first: after a mistyped id nothing is removed.
        names = [resolve_id(log, text) for text in ids] if ids else _idle(log, older_than or 0)
        # What goes for its age must still be what was looked at when its turn comes.
        seen = None if ids else {name: log.storage.revision(name) for name in names}
        kept = _remove(app, log, names, seen, force=force, dry_run=dry_run)
    if not app.json and older_than is not None:
        verb = "would be removed" if dry_run else "removed"
        app.line(f"{count(len(names) - len(kept), 'session')} {verb}, {len(kept):,} kept")
    # What is kept by age will go another time; what was named should have gone now.
    wrong = [code for code in kept if ids or code not in _KEPT_BY_AGE]
    if wrong:
        raise click.exceptions.Exit(1)


def _idle(log: Turnlog, age_ms: int) -> list[str]:
    """The sessions without an event for so long, archived ones too."""
    from turnlog.clock import system_clock
    from turnlog.engine.listing import SessionFilter

    wanted = SessionFilter(archived=None, active_until=system_clock() - age_ms)
    page = log.query.browse(wanted, order="active", limit=2**53 - 1)
    return [info.header.id for info in page.sessions]


def _remove(
    app: App,
    log: Turnlog,
    names: Sequence[str],
    seen: dict[str, str | None] | None,
    *,
    force: bool,
    dry_run: bool,
) -> list[str]:
    """Remove the sessions, forks before what they were forked from; the error codes of those that are kept.

    With `seen`, the revisions that they must still have, sessions that cannot be read are kept as well.
    """
    from turnlog.errors import TurnlogError
    from turnlog.query.lineage import order_for_removal

    known = log.query.map_dependents() if names else {}
    needed_by = {name: {*found.children, *found.quoted_by} for name, found in known.items()}
    gone: set[str] = set()
    kept = []
    for name in order_for_removal(names, needed_by):
        needing = sorted(needed_by.get(name, set()) - gone)
        try:
            if needing and not force:
                raise _needed(name, known[name].children, known[name].quoted_by, gone)
            if seen is not None:
                log.storage.inspect(name)
                _require_unchanged(log, name, seen[name])
            if dry_run:
                log.storage.acquire(name).release()
            else:
                log.delete(name, force=True)
        except TurnlogError as error:
            kept.append(error.code)
            _report_kept(app, name, error, expected=seen is not None and error.code in _KEPT_BY_AGE)
        else:
            gone.add(name)
            _report(app, name, "would be removed" if dry_run else "removed", needing)
    return kept


def _require_unchanged(log: Turnlog, name: str, revision: str | None) -> None:
    from turnlog.errors import ConflictError

    if log.storage.revision(name) != revision:
        raise ConflictError("it was written to just now", session_id=name)


def _needed(name: str, children: list[str], quoted_by: list[str], gone: set[str]) -> Exception:
    from turnlog.errors import SessionError

    forks, readers = ([one for one in ids if one not in gone] for ids in (children, quoted_by))
    parts = [
        f"{what} {_some(ids)}"
        for what, ids in (("it was forked into", forks), ("it is quoted by", readers))
        if ids
    ]
    return SessionError(
        f"{' and '.join(parts)}; --force removes it all the same, and they keep what they have of it",
        code="HAS_DEPENDENTS",
        session_id=name,
        children=forks,
        quoted_by=readers,
    )


def _some(ids: list[str]) -> str:
    more = len(ids) - _SHOWN
    return ", ".join(ids[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _report(app: App, name: str, status: str, needing: list[str]) -> None:
    if app.json:
        app.value({"id": name, "status": status.replace(" ", "-")})
        return
    note = f"  (still there: {_some(needing)})" if needing else ""
    app.line(f"{status}  ", (name, "bold"), (note, "dim"))


def _report_kept(app: App, name: str, error: TurnlogError, *, expected: bool) -> None:
    """Why a session is kept; that is no failure where it is `expected`."""
    text = f"kept {name}: {error.message}"
    if app.json:
        app.value({"id": name, "status": "kept", "error": error.to_dict()})
    elif expected:
        app.note(text)
    else:
        app.error(text)
