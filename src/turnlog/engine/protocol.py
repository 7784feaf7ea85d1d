"""The storage contract: what a session's log needs of a medium, and nothing else.

A storage keeps logs by id. It never holds a live session: the caller appends batches, in order, with the seq
that it expects next, and everything that is read comes back validated, or as an error that says where and
what. Methods may be called from any thread; calls for one id are serialised by the storage.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import msgspec

from turnlog.clock import Clock, system_clock
from turnlog.engine.blobs import BlobMedium
from turnlog.engine.lease import Lease
from turnlog.engine.listing import Notes, Order, Page, Progress, SessionFilter
from turnlog.errors import TurnlogError
from turnlog.eventlog import EventLog
from turnlog.events import SessionEvent
from turnlog.header import SessionHeader
from turnlog.logstate import LogState
from turnlog.repair import interrupted_turn_closers
from turnlog.session import END_SEED, Session
from turnlog.surface import SurfaceManager


class TornTail(msgspec.Struct, frozen=True):
    """Bytes behind the last durable batch that a crash left: cut at `truncate_to`, `cut_bytes` of them.

    `recovered` of the log's last events were read out of the torn part and are written again by a repair.
    """

    truncate_to: int
    cut_bytes: int
    recovered: int
    what: str


class StoredLog(msgspec.Struct):
    """A validated log as it is stored, with what its reading gave for free.

    `log` holds the stored events and, behind them, the `closers` that balance an interrupted last turn and are
    not stored. `revision` is equal for equal bytes, and another one after every change.
    """

    header: SessionHeader
    log: EventLog
    surface: SurfaceManager
    state: LogState
    revision: str
    torn: TornTail | None = None
    closers: Sequence[SessionEvent] = ()

    def close_turn(self) -> None:
        """Close an open last turn in memory: compute the closers and put them behind the stored events."""
        if self.state.open_turn is None:
            return
        self.closers = interrupted_turn_closers(self.log.view(), start=self.state.turn_seq)
        for event in self.closers:
            op = event.surface_op
            span = (
                False if op is None else self.surface.check(event.seq, event.type, event.data, op)
            )
            self.surface.commit(event.seq, span)
            self.log.append(event)
            self.state.note(event.type, event.seq, event.data)

    def to_session(self, *, clock: Clock = system_clock, mark_seed: bool = True) -> Session:
        """A detached session over the log; it shares the loaded bytes. `mark_seed`: mark the seed's end."""
        session = Session(
            self.header, log=self.log, surface=self.surface, state=self.state, clock=clock
        )
        last = len(self.log) - 1
        if mark_seed and (last < 0 or self.log[last].type != END_SEED):
            session.append(END_SEED, {})
        return session


class Batch(msgspec.Struct, frozen=True):
    """Events of one session to be made durable together; `fence` is that of its writer's lease, if it has one."""

    header: SessionHeader
    events: Sequence[SessionEvent]
    fence: int | None = None


class StoredSession(msgspec.Struct, frozen=True):
    """One entry of a listing: a readable header, or what keeps it from being read.

    `header` is None exactly where `damage` says why. `location` is for people: a path, or a row's name.
    `code` is the error code that opening it would raise, `""` for a sound entry.
    """

    header: SessionHeader | None
    location: str
    damage: str | None = None
    code: str = ""


class Damage(msgspec.Struct, frozen=True):
    """What salvage found wrong: the line (1 is the header), its byte offset in the text, and what it is.

    `harmless` is what a strict load takes as well, and that is only worth knowing.
    """

    line: int
    offset: int
    what: str
    seq: int | None = None
    harmless: bool = False

    def to_dict(self) -> dict[str, Any]:
        """`{line, offset, what, seq?}`."""
        place = {"line": self.line, "offset": self.offset, "what": self.what}
        return place if self.seq is None else {**place, "seq": self.seq}


class SalvagedRecord(msgspec.Struct, frozen=True):
    """An event that could be decoded, in wire form, with its place in the text."""

    line: int
    offset: int
    wire: dict[str, Any]


class Salvage(msgspec.Struct, frozen=True):
    """Everything of a log that can be decoded, in file order, and a list of what is damaged.

    `header` is the header line as it stands, or None. It is a list and not a session: seqs may be missing,
    doubled or out of order, and nothing is validated.
    """

    header: dict[str, Any] | None
    records: list[SalvagedRecord]
    damage: list[Damage]

    @property
    def events(self) -> list[dict[str, Any]]:
        """The decoded events in wire form."""
        return [record.wire for record in self.records]


class RawLog(msgspec.Struct, frozen=True):
    """A log's text as it is stored, decompressed where the medium compresses."""

    header: SessionHeader
    filename: str
    content: bytes


@runtime_checkable
class Storage(BlobMedium, Protocol):
    """What a storage must do. Errors are of `turnlog.errors`, the driver's own as their cause."""

    def list(self) -> list[StoredSession]:
        """Every stored session once, damaged ones among them, in no particular order.

        One damaged entry never hides another. Reads headers only.
        """

    def browse(
        self,
        wanted: SessionFilter,
        *,
        order: Order = "created",
        cursor: str | None = None,
        limit: int = 50,
    ) -> Page:
        """One page of the sound sessions that a filter admits, newest first; damaged ones are in `list` only.

        Reads no log whose index entry is current. Raises `StorageError`: `INVALID_CURSOR`,
        or `INVALID_LIMIT` for a limit below 1.
        """

    def notes(self, id: str) -> Notes:
        """The session's tags and archive flag; empty for one that nobody noted anything about."""

    def set_notes(self, id: str, notes: Notes) -> None:
        """Store the notes, durably on return; needs no lease. Raises `SessionNotFoundError`."""

    def share(self, header: SessionHeader, source: str, progress: Progress) -> bool:
        """Create a session whose first `progress.events` events are those of a stored one, without copying them.

        `progress` is that of the prefix. False where the storage cannot share: the caller then writes the events.
        Durable on return.
        """

    def delete(self, id: str) -> None:
        """Remove the session durably; others that share events with it keep them. Raises `SessionNotFoundError`.

        The caller holds the lease.
        """

    def inspect(self, id: str, *, close_turn: bool = True) -> StoredLog:
        """The stored log, its open last turn closed in memory only; writes nothing, whatever it finds.

        With `close_turn=False` the turn stays open.
        Raises `SessionNotFoundError`, `CorruptLogError` or `UnsupportedFormatError`.
        """

    def load(self, id: str, *, close_turn: bool = True) -> StoredLog:
        """The log after a durable repair: torn bytes cut (and set aside), an open last turn closed.

        With `close_turn=False` the turn stays open, for a host that goes on with it. Afterwards `append` goes
        on at the log's end. Loading again adds nothing. Raises what `inspect` raises, and `StorageWriteError`
        when the repair could not be made durable.
        """

    def salvage(self, id: str) -> Salvage:
        """Everything that can be decoded; raises only `SessionNotFoundError` and for unreadable media."""

    def acquire(self, id: str) -> Lease:
        """The lease of a session, stored or not yet: the right to write it, until it is released.

        Exclusive among threads and processes; a process's death frees it at once. Reading needs none. Raises
        `SessionLockedError`, with who holds it since when. Writing without one is for tools that own the medium.
        """

    def append_many(self, batches: Sequence[Batch]) -> Sequence[TurnlogError | None]:
        """Make batches of different sessions durable with as few syncs as the medium allows.

        Each stands or falls for itself, as in `append`: the result has None or the error for each, in order.
        """

    def append(
        self, header: SessionHeader, events: Sequence[SessionEvent], fence: int | None = None
    ) -> None:
        """Make a batch durable before returning: all of it, or after an error none of it.

        The first batch of a new session creates it, header and events in one step. The first seq must be that
        which follows the stored ones. An empty batch does nothing, so that a session without events is never
        stored.

        Raises `ConflictError` when the stored log ends elsewhere, was changed from outside, or has a newer lease,
        `SessionExistsError` for a new session whose id is taken, `StorageWriteError` when the medium refused.
        """

    def read_from(self, id: str, seq: int) -> Sequence[SessionEvent]:
        """The stored events from a seq on, without closers; none behind the end. Writes nothing."""

    def read_raw(self, id: str) -> RawLog:
        """The stored text, byte for byte. `StorageError` (`NO_RAW_LOG`) where the medium has no text."""

    def revision(self, id: str) -> str | None:
        """The revision without reading the log; None for an id that is not stored."""

    def location(self, id: str) -> str | None:
        """Where the session lies, for people: a path; None where there is none."""

    def close(self) -> None:
        """Release everything; calling it again does nothing."""
