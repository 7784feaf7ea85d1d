"""`ls`: what a store holds, the damaged part of it included."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click
import msgspec

from turnlog.cli.output import App, pass_app
from turnlog.cli.text import count, format_time, one_line

if TYPE_CHECKING:
    from turnlog.engine.listing import Order, SessionFilter, SessionInfo
    from turnlog.log import Turnlog
    from turnlog.query.corpus import SessionRecord
    from turnlog.query.lineage import Placed

_TITLE_CHARS = 100
_MAX_INDENT = 20
_EVERY = 2**53 - 1
"""A limit that is none."""


class _Selection(msgspec.Struct):
    """What is listed, with depths; how many sessions come after it, and where to go on."""

    shown: Sequence[Placed]
    total: int
    left: int
    next_cursor: str | None = None


@click.command()
@click.option("--damaged", is_flag=True, help="List only what cannot be read.")
@click.option(
    "--all", "everything", is_flag=True, help="List all sessions, however many, archived ones too."
)
@click.option(
    "--limit",
    type=click.IntRange(min=0),
    default=50,
    show_default=True,
    help="List this many of the newest sessions; with --tree, of the newest roots.",
)
@click.option("--cursor", metavar="CURSOR", help="Go on where the listing that gave it ended.")
@click.option(
    "--order",
    type=click.Choice(["created", "active"]),
    default="created",
    show_default=True,
    help="Newest first, by creation or by the last event.",
)
@click.option("--tree", is_flag=True, help="Show forks under the sessions they were made from.")
@click.option("--cwd", metavar="PATH", help="List only sessions of this working directory.")
@click.option("--tag", metavar="TAG", help="List only sessions with this tag.")
@click.option("--archived", is_flag=True, help="List only archived sessions, else left out.")
@click.option(
    "--titles/--no-titles",
    default=True,
    help="Look for the user's first words in the logs of sessions without a title.",
)
@pass_app
def ls(
    app: App,
    *,
    damaged: bool,
    everything: bool,
    limit: int,
    cursor: str | None,
    order: Order,
    tree: bool,
    cwd: str | None,
    tag: str | None,
    archived: bool,
    titles: bool,
) -> None:
    """List the sessions, newest first, and damaged ones with the reason."""
    if tree and cursor is not None:
        raise click.UsageError("--tree shows whole trees; --cursor pages through a flat list")
    from turnlog.engine.listing import SessionFilter

    wanted = SessionFilter(
        cwd=None if cwd is None else _absolute(cwd),
        tag=tag,
        archived=True if archived else None if everything else False,
    )
    maximum = _EVERY if everything else limit
    with app.open() as log:
        records = log.query.list_sessions(damaged=True)
        known = [] if damaged else list(_known(log, records))
        selection = (
            _select_trees(known, wanted, order, maximum)
            if tree
            else _select_page(known, wanted, order, cursor, maximum)
        )
        listing: dict[str, Any] = {
            "sessions": [
                _session(log, info, titles) | ({"depth": depth} if tree else {})
                for depth, info in app.progress(selection.shown, "Reading titles")
            ],
            "damaged": [_damaged(record) for record in records if record.header is None],
            "total": selection.total,
            "left": selection.left,
            "nextCursor": selection.next_cursor,
            "hidden": _count_hidden(known, wanted),
            "missingCwd": len(_with_missing_cwd(known)),
        }
    if app.json:
        app.value(listing)
    elif damaged:
        _print_damaged(app, listing["damaged"])
        if not listing["damaged"]:
            app.line("nothing is damaged")
    else:
        _print(app, listing, order, tree=tree, anything=bool(known))


def _absolute(path: str) -> str:
    """A directory as headers have it; what is absolute on any system is taken as it is."""
    from turnlog.header import is_absolute

    return path if is_absolute(path) else os.path.abspath(path)  # noqa: PTH100 - `..` is resolved


def _known(log: Turnlog, records: Sequence[SessionRecord]) -> Iterator[SessionInfo]:
    """Every session with a sound header, in no order; where its log cannot be read, nothing but that header."""
    from turnlog.engine.listing import Progress, SessionFilter, SessionInfo

    page = log.query.browse(SessionFilter(archived=None), limit=_EVERY)
    yield from page.sessions
    browsed = {info.header.id for info in page.sessions}
    for record in records:
        header = record.header
        if header is not None and header.id not in browsed:
            yield SessionInfo(header, record.location, Progress(last_time=header.created_at))


def _select_page(
    known: Sequence[SessionInfo],
    wanted: SessionFilter,
    order: Order,
    cursor: str | None,
    limit: int,
) -> _Selection:
    from turnlog.engine.listing import encode_cursor, page_of, sort_key

    after = page_of(known, wanted, order=order, cursor=cursor, limit=_EVERY).sessions
    shown, left = after[:limit], max(len(after) - limit, 0)
    total = sum(map(wanted.admits, known))
    more = encode_cursor(order, sort_key(shown[-1], order)) if left and shown else None
    return _Selection([(0, info) for info in shown], total, left, more)


def _select_trees(
    known: Sequence[SessionInfo], wanted: SessionFilter, order: Order, limit: int
) -> _Selection:
    from turnlog.engine.listing import page_of
    from turnlog.query.lineage import build_trees

    infos = page_of(known, wanted, order=order, cursor=None, limit=_EVERY).sessions
    shown = [placed for tree in build_trees(infos)[:limit] for placed in tree]
    return _Selection(shown, len(infos), len(infos) - len(shown))


def _count_hidden(known: Sequence[SessionInfo], wanted: SessionFilter) -> int:
    """How many archived sessions are left out only because they are."""
    if wanted.archived is not False:
        return 0
    archived = msgspec.structs.replace(wanted, archived=True)
    return sum(map(archived.admits, known))


def _session(log: Turnlog, info: SessionInfo, titles: bool) -> dict[str, Any]:
    """One session of the listing; a log that cannot be read is that entry's `problem` and nothing else's."""
    progress, notes = info.progress, info.notes
    entry: dict[str, Any] = {
        **info.header.to_dict(),
        "location": info.location,
        "title": progress.title,
        "events": progress.events,
        "lastActive": progress.last_time,
        "openTurn": progress.open_turn,
        "tags": list(notes.tags),
        "archived": notes.archived,
    }
    if progress.events == 0 or (titles and progress.title is None):
        entry.update(_read_title(log, info.header.id))
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


def _with_missing_cwd(infos: Sequence[SessionInfo]) -> list[str]:
    """The working directories, one for each session, that are paths of this system and gone."""
    known: dict[str, bool] = {}
    missing = []
    for info in infos:
        cwd = info.header.cwd
        if cwd is None or not os.path.isabs(cwd):  # noqa: PTH117 - as text: it may be no path here
            continue
        if cwd not in known:
            known[cwd] = os.path.exists(cwd)  # noqa: PTH110 - false for what is no path
        if not known[cwd]:
            missing.append(cwd)
    return missing


def _print(app: App, listing: dict[str, Any], order: Order, *, tree: bool, anything: bool) -> None:
    sessions, left = listing["sessions"], listing["left"]
    if sessions:
        when = "ACTIVE (UTC)" if order == "active" else "CREATED (UTC)"
        columns = ("ID", when, "CWD", *(("FORK",) if tree else ()), "TITLE")
        app.table(columns, [_row(entry, order, tree) for entry in sessions])
    elif anything:
        app.line("no session is listed" if left else "no session matches")
    else:
        app.line(f"no sessions in {app.store_name()}; `turnlog import --examples` brings some")
    if left and sessions:
        more = listing["nextCursor"]
        how = "--all or --limit" if more is None else f"--all, --limit, or --cursor {more}"
        app.line(f"... and {count(left, 'older session')}: {how}")
    if listing["hidden"]:
        app.line(f"{count(listing['hidden'], 'archived session')} left out: --archived or --all")
    _print_damaged(app, listing["damaged"])
    if listing["missingCwd"]:
        number = listing["missingCwd"]
        verb = "belongs" if number == 1 else "belong"
        app.line(f"{count(number, 'session')} {verb} to a directory that is gone")


def _print_damaged(app: App, broken: Sequence[dict[str, Any]]) -> None:
    if broken:
        app.line((count(len(broken), "damaged entry", "damaged entries") + ":", "bold"))
    for entry in broken:
        app.line(("  damaged ", "red"), f"{entry['location']}: {entry['reason']}")


def _row(entry: dict[str, Any], order: Order, tree: bool) -> Sequence[str]:
    title = one_line(entry["title"] or "", _TITLE_CHARS)
    if "problem" in entry:
        title = one_line(f"(damaged: {entry['problem']})", _TITLE_CHARS)
    if entry["tags"]:
        title += f" [{one_line(', '.join(entry['tags']), _TITLE_CHARS)}]"
    if entry["archived"]:
        title += " (archived)"
    return (
        "  " * min(entry.get("depth", 0), _MAX_INDENT) + entry["id"],
        format_time(entry["lastActive" if order == "active" else "createdAt"]),
        entry.get("cwd") or "-",
        *((_describe_fork(entry),) if tree else ()),
        title.strip(),
    )


def _describe_fork(entry: dict[str, Any]) -> str:
    """Where a fork left its parent; the parent itself where it does not stand above."""
    parent = entry.get("parentSession")
    if parent is None:
        return "-"
    length = entry.get("seedLength")
    if entry.get("origin") == "subagent":
        what = "subagent"
    else:
        what = f"after seq {length - 1}" if length else "from the start"
    return what if entry["depth"] else f"{what} of {parent}"
