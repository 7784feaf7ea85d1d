"""Mending stored sessions: repair in place, and salvage beside what is damaged.

Repairing is what a resume does and nothing else: torn bytes are cut off and kept aside, an open last turn is
closed. A log that cannot be loaded is never written to: what is sound of it becomes a session of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec

from turnlog.clock import Clock, system_clock
from turnlog.engine.protocol import StoredLog, TornTail
from turnlog.errors import CorruptLogError, UnsupportedFormatError
from turnlog.events import SessionEvent
from turnlog.interop.salvaging import rebuild_session
from turnlog.log import Turnlog

TITLE = "session/title"


class Mended(msgspec.Struct, frozen=True):
    """What was done, or would be, to one session.

    `closed`: the events that close its open turn. `torn`: the bytes that were cut off, kept in the file `kept`.
    `salvaged`: the id of the session that has what is sound of a damaged one, `added` events of it new, without
    what `losses` says; `damage` is why the log itself cannot be loaded.
    """

    id: str
    status: Literal["sound", "repaired", "salvaged"]
    closed: Sequence[SessionEvent] = ()
    turn: Any = None
    torn: TornTail | None = None
    kept: str | None = None
    salvaged: str | None = None
    added: int = 0
    losses: Sequence[str] = ()
    damage: str | None = None


def mend_session(log: Turnlog, id: str, *, salvage: bool = False, dry_run: bool = False) -> Mended:
    """Repair a stored session durably under its lease; with `dry_run` only find out what there is to do.

    With `salvage`, what is sound of a log that cannot be loaded becomes the session `<id>-salvaged`. Raises
    `SessionLockedError`, what `Storage.load` raises, and for a salvage what `Turnlog.import_session` raises.
    """
    try:
        return _look(log, id) if dry_run else _repair(log, id)
    except (CorruptLogError, UnsupportedFormatError) as error:
        if not salvage or error.code in ("NEWER_FORMAT", "OLDER_FORMAT"):
            raise
        return _salvage(log, id, error.message, dry_run)


def _look(log: Turnlog, id: str) -> Mended:
    stored = log.storage.inspect(id, close_turn=False)
    turn = stored.state.open_turn
    stored.close_turn()
    return _describe(id, stored, turn)


def _describe(id: str, stored: StoredLog, turn: Any) -> Mended:
    something = stored.torn is not None or stored.closers
    status: Literal["sound", "repaired"] = "repaired" if something else "sound"
    return Mended(id, status, tuple(stored.closers), turn, stored.torn)


def _repair(log: Turnlog, id: str) -> Mended:
    lease = log.storage.acquire(id)
    try:
        found = _look(log, id)
        if found.status == "sound":
            return found
        before = _side_files(log, id)
        log.storage.load(id)
        kept = sorted(_side_files(log, id) - before)
    finally:
        lease.release()
    return msgspec.structs.replace(found, kept=kept[0] if kept else None)


def _side_files(log: Turnlog, id: str) -> set[str]:
    """The files with bytes that were cut off the session's log; none where it is no file."""
    place = log.storage.location(id)
    if place is None or not Path(place).is_file():
        return set()
    return {str(path) for path in Path(place).parent.glob("session.cut-*.bin")}


def _salvage(log: Turnlog, id: str, damage: str, dry_run: bool) -> Mended:
    rebuilt = rebuild_session(log.storage.salvage(id), id)
    added = len(rebuilt.events)
    if not dry_run:
        before, after = log.import_session(rebuilt.header, rebuilt.events)
        added = after - before
    return Mended(
        id,
        "salvaged",
        salvaged=rebuilt.header.id,
        added=added,
        losses=rebuilt.losses,
        damage=damage,
    )


def set_title(log: Turnlog, id: str, title: str, *, clock: Clock = system_clock) -> None:
    """Give a stored session a title: one event, durable on return. An open turn stays open.

    Raises `SessionLockedError`, and what `Storage.load` and `Session.append` raise.
    """
    lease = log.storage.acquire(id)
    try:
        stored = log.storage.load(id, close_turn=False)
        session = stored.to_session(clock=clock, mark_seed=False)
        source = {"kind": "user"}
        event = session.append(TITLE, {"title": title, "messageSeqs": [], "source": source})
        log.storage.append(stored.header, [event], lease.fence)
    finally:
        lease.release()
