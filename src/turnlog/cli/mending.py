"""`repair` and `doctor`: making good what a crash left, and finding it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import click

from turnlog.cli.output import App, pass_app
from turnlog.cli.text import count

if TYPE_CHECKING:
    from turnlog.interop.mending import Mended
    from turnlog.log import Turnlog
    from turnlog.query.doctor import Report

_SHOWN_PLACES = 5


@click.command()
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@click.option(
    "--salvage",
    is_flag=True,
    help="Write what is sound of damaged sessions to new sessions ID-salvaged.",
)
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@pass_app
def repair(app: App, ids: tuple[str, ...], salvage: bool, dry_run: bool) -> None:
    """Repair sessions for good: cut torn ends, which are kept aside, and close open turns.

    A damaged session is not touched; --salvage copies what is sound of it.
    """
    from turnlog.cli.ids import resolve_id

    with app.open() as log:
        names = list(dict.fromkeys(resolve_id(log, text) for text in ids))
        failed = [name for name in names if not _repair(app, log, name, salvage, dry_run)]
    if failed:
        raise click.exceptions.Exit(1)


def _repair(app: App, log: Turnlog, id: str, salvage: bool, dry_run: bool) -> bool:
    from turnlog.errors import StorageError
    from turnlog.interop.mending import mend_session

    try:
        mended = mend_session(log, id, salvage=salvage, dry_run=dry_run)
    except StorageError as error:
        if app.json:
            app.value({"id": id, "status": "failed", "error": error.to_dict()})
        else:
            hint = "" if salvage or error.code == "SESSION_LOCKED" else "; try --salvage"
            app.error(f"{id}: {error.message}{hint}")
        return False
    if app.json:
        app.value(_to_dict(mended, dry_run))
    else:
        _print(app, mended, dry_run)
    return True


def _to_dict(mended: Mended, dry_run: bool) -> dict[str, Any]:
    import msgspec

    wire: dict[str, Any] = {"id": mended.id, "status": mended.status, "dryRun": dry_run}
    if mended.closed:
        wire["turn"] = mended.turn
        wire["closed"] = [{"seq": event.seq, "type": event.type} for event in mended.closed]
    if mended.torn is not None:
        torn = mended.torn
        wire["torn"] = {
            "offset": torn.truncate_to,
            "bytes": torn.cut_bytes,
            "recovered": torn.recovered,
            "what": torn.what,
            "kept": mended.kept,
        }
    if mended.status == "salvaged":
        wire |= {
            "salvaged": mended.salvaged,
            "added": mended.added,
            "damage": mended.damage,
            "losses": list(msgspec.to_builtins(mended.losses)),
        }
    return wire


def _print(app: App, mended: Mended, dry_run: bool) -> None:
    would = "would be " if dry_run and mended.status != "sound" else ""
    app.line((mended.id, "bold"), f": {would}{mended.status}")
    torn = mended.torn
    if torn is not None:
        kept = f", kept in {mended.kept}" if mended.kept else ""
        app.line(
            f"  a torn end of {torn.cut_bytes} bytes at byte {torn.truncate_to} ({torn.what}){kept}"
        )
        if torn.recovered:
            app.line(f"  {count(torn.recovered, 'whole event')} of it written again")
    if mended.closed:
        types = Counter(event.type for event in mended.closed)
        parts = ", ".join(name if n == 1 else f"{n} {name}" for name, n in types.items())
        app.line(f"  turn {mended.turn} closed as interrupted: {parts}")
    if mended.status == "salvaged":
        app.line((f"  {mended.damage}", "dim"))
        for text in mended.losses:
            app.line((f"  lost: {text}", "yellow"))
        app.line(f"  {count(mended.added, 'new event')} in ", (str(mended.salvaged), "bold"))


@click.command()
@click.option("--collect", is_flag=True, help="Remove the blobs that no session refers to.")
@pass_app
def doctor(app: App, collect: bool) -> None:
    """Look at all that a store holds, and say what is wrong with it and what to do.

    Reads every session. The exit code is 1 when something needs attention.
    """
    from turnlog.query.doctor import collect_blobs, examine

    with app.open() as log:
        if collect:
            gone = collect_blobs(log.storage, progress=lambda ids: app.progress(ids, "Reading"))
            if app.json:
                app.value({"collected": [{"digest": one.digest, "size": one.size} for one in gone]})
            else:
                size = sum(blob.size for blob in gone)
                app.line(f"{count(len(gone), 'blob')} removed, {size:,} bytes")
            return
        report = examine(log.storage, progress=lambda ids: app.progress(ids, "Reading"))
    if app.json:
        app.value(_report_to_dict(report))
    else:
        _print_report(app, report)
    if not report.is_well:
        raise click.exceptions.Exit(1)


def _report_to_dict(report: Report) -> dict[str, Any]:
    return {
        "store": {
            "kind": report.kind,
            "location": report.location,
            "bytes": report.parts,
            "versions": report.versions,
        },
        "sessions": report.sessions,
        "archived": report.archived,
        "damaged": report.damaged,
        "events": report.events,
        "blobs": report.blobs,
        "ok": report.is_well,
        "concerns": [
            {
                "severity": concern.severity,
                "kind": concern.kind,
                "what": concern.what,
                "do": concern.do,
                "places": list(concern.places),
            }
            for concern in report.concerns
        ],
    }


def _print_report(app: App, report: Report) -> None:
    sizes = ", ".join(f"{name} {size:,}" for name, size in report.parts.items() if size)
    facts = {
        "store": f"{report.kind}, {report.location}",
        "bytes": sizes or "0",
        "versions": ", ".join(f"{name} {_plain(value)}" for name, value in report.versions.items()),
        "holds": f"{count(report.sessions, 'session')} ({report.archived:,} archived, "
        f"{report.damaged:,} damaged), {count(report.events, 'event')}, {count(report.blobs, 'blob')}",
    }
    for name, value in facts.items():
        app.line((f"{name:9} ", "dim"), value)
    for concern in report.concerns:
        style = "yellow" if concern.severity == "attention" else ""
        app.line((f"{concern.severity:9} ", style), concern.what)
        for place in concern.places[:_SHOWN_PLACES] if len(concern.places) > 1 else ():
            app.line((f"{'':12}{place}", "dim"))
        if len(concern.places) > _SHOWN_PLACES:
            app.line((f"{'':12}and {len(concern.places) - _SHOWN_PLACES:,} more", "dim"))
        app.line(f"{'':10}{concern.do}")
    number = sum(concern.severity == "attention" for concern in report.concerns)
    app.line(f"{count(number, 'thing')} to look after" if number else "nothing needs attention")


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return " + ".join(f"{name} {number:,}" for name, number in value.items()) or "none"
    return str(value)
