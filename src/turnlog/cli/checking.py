"""`verify`: every fault of a stored session, with its place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from turnlog.cli.output import App, pass_app
from turnlog.cli.text import count

if TYPE_CHECKING:
    from turnlog.engine.protocol import SalvagedRecord, StoredLog
    from turnlog.engine.verify import Finding
    from turnlog.log import Turnlog


@click.command()
@click.argument("ids", nargs=-1, metavar="[ID]...")
@pass_app
def verify(app: App, ids: tuple[str, ...]) -> None:
    """Check sessions and list each fault with its line, byte and seq; all sessions without ID.

    Errors are what keeps a session from being loaded, and make the exit code 1. Warnings do not: an open last
    turn or a torn end is what a crash leaves, and would be repaired on resume.
    """
    from turnlog.cli.ids import resolve_id

    reports = []
    with app.open() as log:
        if ids:
            names = [resolve_id(log, text) for text in ids]
        else:
            records = log.query.list_sessions(damaged=True)
            names = [record.header.id for record in records if record.header is not None]
            reports = [_unreadable(record) for record in records if record.header is None]
        for report in reports:
            _print(app, report)
        for name in app.progress(names, "Verifying"):
            reports.append(verify_session(log, name))
            _print(app, reports[-1])
    bad = sum(not report["ok"] for report in reports)
    if not app.json:
        summary = f"{count(len(reports), 'session')} checked"
        app.line(f"{summary}, {bad} with errors" if bad else f"{summary}, no errors")
    if bad:
        raise click.exceptions.Exit(1)


def verify_session(log: Turnlog, id: str) -> dict[str, Any]:
    """`{id, ok, events, findings: [{severity, code, line, offset, what, seq?}]}` of one stored session."""
    from turnlog.engine.verify import verify_salvage
    from turnlog.errors import StorageError

    salvage = log.storage.salvage(id)
    findings = verify_salvage(salvage)
    try:
        stored = log.storage.inspect(id, close_turn=False)
    except StorageError as error:
        places = {(finding.line, finding.severity) for finding in findings}
        if (error.details.get("line"), "error") not in places:
            findings.insert(0, _strict_finding(error))
        events = len(salvage.records)
    else:
        findings = _as_warnings(findings, stored, salvage.records)
        events = len(stored.log)
    return {
        "id": id,
        "ok": not any(finding.severity == "error" for finding in findings),
        "events": events,
        "findings": [finding.to_dict() for finding in findings],
    }


def _strict_finding(error: Any) -> Finding:
    from turnlog.engine.verify import Finding

    line, offset = error.details.get("line") or 1, error.details.get("offset") or 0
    return Finding("error", error.code, line, offset, error.message, error.details.get("seq"))


def _as_warnings(
    findings: list[Finding], stored: StoredLog, records: list[SalvagedRecord]
) -> list[Finding]:
    """The faults of a log that loads: whatever they are, they are no errors; what a resume would do comes last."""
    from msgspec.structs import replace

    from turnlog.engine.verify import Finding

    found = [replace(finding, severity="warning") for finding in findings]
    if stored.torn is not None:
        at = stored.torn.truncate_to
        what = f"a torn end of {stored.torn.cut_bytes} bytes ({stored.torn.what}): cut on resume"
        line = max((record.line for record in records if record.offset < at), default=1) + 1
        found.append(Finding("warning", "TORN_TAIL", line, at, what))
    if stored.state.open_turn is not None:
        seq = stored.state.turn_seq
        what = f"turn {stored.state.open_turn} is open: it would be closed on resume"
        start = (record for record in records if record.wire["seq"] == seq)
        found += [
            Finding("warning", "OPEN_TURN", record.line, record.offset, what, seq)
            for record in start
        ]
    return found


def _unreadable(record: Any) -> dict[str, Any]:
    """The report of an entry whose header cannot be read, so that it has no id."""
    finding = {"severity": "error", "code": record.code, "line": 1, "offset": 0}
    return {
        "id": None,
        "location": record.location,
        "ok": False,
        "events": 0,
        "findings": [{**finding, "what": record.damage}],
    }


def _print(app: App, report: dict[str, Any]) -> None:
    if app.json:
        app.value(report)
        return
    name = report["id"] if report["id"] is not None else report["location"]
    findings = report["findings"]
    state = "sound" if not findings else count(len(findings), "finding")
    app.line((name, "bold"), f": {count(report['events'], 'event')}, {state}")
    for finding in findings:
        seq = f", seq {finding['seq']}" if "seq" in finding else ""
        style = "red" if finding["severity"] == "error" else "yellow"
        app.line(
            (f"  {finding['severity']} ", style),
            f"line {finding['line']}, byte {finding['offset']}{seq}: {finding['what']} [{finding['code']}]",
        )
