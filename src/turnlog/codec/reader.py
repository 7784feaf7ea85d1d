"""LogReader: lines of a stored log in, a validated log with its surface out.

Two kinds of fault are told apart. A *physical* one (a line that is no record, a malformed row, a seq that does
not follow) ends the good prefix: what stands behind it is a torn tail, unless a later line holds a `turn/end`,
because then the fault lies in a committed region and the log is refused (storage.md, 5.5). A *logical* one (an
envelope, payload or surface rule broken, an unknown required type) always refuses the log.

Checks run block by block on the fast path of `typed`, and line by line where that gives up.
"""

from __future__ import annotations

from array import array
from typing import Any

import msgspec

from turnlog.codec.chunk_rows import is_row, parse_row
from turnlog.codec.segment import Block, LineSegment
from turnlog.codec.typed import ROWS, TYPE_OF, BlockDecoder, Chunk, StepEnd, StepStart, TurnStart
from turnlog.codec.upgrade import is_old_shape, upgrade_v0_shapes
from turnlog.errors import (
    CorruptLogError,
    EventError,
    JsonValueError,
    TurnlogError,
    UnsupportedFormatError,
)
from turnlog.eventlog import EventLog
from turnlog.events import SessionEvent, check_envelope
from turnlog.logstate import STATE_TYPES, LogState
from turnlog.lossless import canonicalize, is_safe_integer, parse_json
from turnlog.surface import ABSENT, SurfaceManager
from turnlog.vocabulary import EVENT_TYPES, RETIRED_TYPES, SURFACE_TYPES

BLOCK_BYTES = 32 * 1024
"""How much is decoded at a time: small enough that the decoded values never leave the processor's cache."""

_BRACKETS = frozenset({TurnStart, StepStart, StepEnd})
_LOOKED_AT = {
    kind: name
    for kind, name in TYPE_OF.items()
    if name in STATE_TYPES or name in SURFACE_TYPES or name in RETIRED_TYPES
}
"""The classes of events whose payload matters while loading; the rest only has to be a sound event."""


class Fault(msgspec.Struct, frozen=True):
    """A physical fault: the line (1 is the header), its byte offset in the text, and what is wrong."""

    line: int
    offset: int
    what: str

    def to_error(self, session_id: str) -> CorruptLogError:
        """The fault as the error that a strict load raises."""
        return CorruptLogError(
            f"session {session_id!r}, line {self.line} (byte {self.offset}): {self.what}; "
            "later lines hold a finished turn, so this is damage and not a torn tail: "
            "`turnlog verify` lists all of it, salvage reads the rest",
            session_id=session_id,
            line=self.line,
            offset=self.offset,
        )


class _Lookup:
    """Gives the surface manager the events that were read so far."""

    def __init__(self, segment: LineSegment) -> None:
        self._segment = segment

    def __getitem__(self, seq: int) -> SessionEvent:
        return self._segment.event(seq)


class LogReader:
    """Reads the lines of one log in order: `feed` it, `finish`, then `take_log`.

    `line` and `offset` say where the next byte stands in the whole text, the header included; `good_offset`
    where the good prefix ends. `fault` is the first physical fault, or None.
    """

    def __init__(self, session_id: str, *, line: int = 1, offset: int = 0) -> None:
        self.session_id = session_id
        self.line = line
        self.offset = self.good_offset = offset
        self.fault: Fault | None = None
        self.state = LogState()
        self._segment = LineSegment()
        self._decoder = BlockDecoder()
        self._next = 0
        self.surface = SurfaceManager(_Lookup(self._segment))  # type: ignore[arg-type]

    def __len__(self) -> int:
        return self._next

    def feed(self, text: bytes, start: int = 0, stop: int | None = None) -> None:
        """Read whole lines, each with its line feed, from a part of a text; the text is kept, not copied."""
        at, stop = start, len(text) if stop is None else stop
        while at < stop:
            end = text.rfind(b"\n", at, min(at + BLOCK_BYTES, stop)) + 1
            if end <= at:
                end = text.index(b"\n", at) + 1
            self._feed_block(text, at, end, None)
            at = end

    def feed_frames(self, text: bytes, frames: bytes) -> None:
        """Read whole lines that were decompressed from frames; short ones are kept compressed."""
        if len(text) <= 4 * BLOCK_BYTES:
            self._feed_block(text, 0, len(text), frames)
        else:
            self.feed(text)

    def finish(self, rest: bytes = b"") -> None:
        """End of the text; `rest` is a last line without a line feed, which is always torn."""
        if rest and self.fault is None:
            self._note_fault("the last line has no line feed")

    def take_log(self) -> EventLog:
        """The good prefix as a log; `surface` then belongs to it."""
        log = EventLog.from_segment(self._segment)
        self.surface = self.surface.copy_for(log)  # type: ignore[arg-type]
        return log

    def _feed_block(self, text: bytes, at: int, end: int, frames: bytes | None) -> None:
        block = text[at:end]
        if self.fault is None:
            records = self._decoder.decode(block)
            if records is not None and self._accept(records, block, text, at, frames):
                return
            middle = block.find(b"\n", len(block) // 2, -1) + 1 or block.rfind(b"\n", 0, -1) + 1
            if middle:
                # One odd line does not make its neighbours slow: halve until it stands alone.
                self._feed_block(text, at, at + middle, None)
                self._feed_block(text, at + middle, end, None)
                return
        for line in block.split(b"\n")[:-1]:
            self._feed_line(line)

    # -- the fast path ---------------------------------------------------------------------------------

    def _accept(
        self, records: list[Any], block: bytes, text: bytes, at: int, frames: bytes | None
    ) -> bool:
        """Check and take a block of decoded records; False, with nothing changed, for the strict path."""
        start = seq = self._next
        firsts: array[int] | None = None
        looked_at: list[tuple[int, str, Any]] = []
        # Of brackets only the last of each kind can still be seen in the state behind the block.
        brackets: dict[type, Any] = {}
        for number, record in enumerate(records):
            if record.seq != seq:
                return False
            kind = type(record)
            if kind in ROWS:
                members = len(record.data.texts)
                if len(record.data.dt) != members - 1:
                    return False
                if firsts is None:
                    firsts = array("q", range(start, seq))
                firsts.append(seq)
                seq += members
                continue
            if firsts is not None:
                firsts.append(seq)
            seq += 1
            if kind is Chunk:
                continue
            if kind in _BRACKETS:
                brackets[kind] = record
            elif (type_ := _LOOKED_AT.get(kind)) is not None:
                if is_old_shape(type_, record.data):
                    return False
                if type_ == "turn/end":
                    brackets[kind] = record
                else:
                    looked_at.append((number, type_, record))
        self._segment.add(
            Block(start, seq, text, at, at + len(block), firsts)
            if frames is None
            else Block(start, seq, frames, 0, None, firsts)
        )
        for number, type_, record in looked_at:
            try:
                self._take(type_, record)
            except EventError as error:
                lines = block.split(b"\n")[:number]
                raise self._logical(
                    error, self.line + number, self.offset + sum(map(len, lines)) + number
                ) from error
        for record in sorted(brackets.values(), key=_seq_of):
            self._note_bracket(record)
        self._advance(seq, block, len(records))
        return True

    def _take(self, type_: str, record: Any) -> None:
        seq, data = record.seq, record.data
        EVENT_TYPES.check_payload(type_, data)
        if type_ in SURFACE_TYPES:
            self.surface.add_behind(seq, type_, data, record.surfaceOp, record.sourceEventSeqs)
        else:
            self.state.note(type_, seq, data)

    def _note_bracket(self, record: Any) -> None:
        kind = type(record)
        if kind is StepStart:
            self.state.start_step(record.data.step)
        elif kind is StepEnd:
            self.state.end_step()
        elif kind is TurnStart:
            self.state.start_turn(record.data.turn, record.seq)
        else:
            self.state.note("turn/end", record.seq, record.data)

    def _advance(self, next_seq: int, text: bytes, lines: int) -> None:
        self._next = next_seq
        self.surface.skip_to(next_seq)
        self.line += lines
        self.offset += len(text)
        self.good_offset = self.offset

    # -- the strict path -------------------------------------------------------------------------------

    def _feed_line(self, line: bytes) -> None:
        if self.fault is None:
            self._read_line(line)
        elif b"turn/end" in line and _is_turn_end(line):
            raise self.fault.to_error(self.session_id)
        if self.fault is not None:
            self.line += 1
            self.offset += len(line) + 1

    def _read_line(self, line: bytes) -> None:
        """Take one line, or note it as the first physical fault."""
        try:
            record = parse_json(line)
            if is_row(record):
                row = parse_row(record)
                if row.seq == self._next:
                    self._take_line(row.to_json(), len(row), line)
                    return
        except (JsonValueError, CorruptLogError) as error:
            self._note_fault(error.message)
            return
        seq = record.get("seq", record.get("seq0")) if isinstance(record, dict) else None
        if not is_safe_integer(seq) or seq != self._next:
            self._note_fault(
                f"seq {self._next} is due, not {seq!r}" if isinstance(record, dict) else "no record"
            )
            if _is_end(record):
                assert self.fault is not None  # noted in the line before
                raise self.fault.to_error(self.session_id)
            return
        try:
            self._take_event(record, line)
        except (EventError, JsonValueError) as error:
            raise self._logical(error, self.line, self.offset) from error

    def _take_event(self, wire: dict[str, Any], line: bytes) -> None:
        check_envelope(wire)
        wire = upgrade_v0_shapes(wire, self.session_id, self._find_message)
        type_, data, seq = wire["type"], wire["data"], wire["seq"]
        # Payloads first: a retired type is none that anybody could register.
        EVENT_TYPES.check_payload(type_, data)
        EVENT_TYPES.require_known(type_, "ignorable" in wire)
        self.surface.add(
            seq, type_, data, wire.get("surfaceOp", ABSENT), wire.get("sourceEventSeqs", ABSENT)
        )
        if type_ in STATE_TYPES:
            self.state.note(type_, seq, data)
        self._take_line(canonicalize(wire)[0], 1, line)

    def _take_line(self, canonical: bytes, count: int, line: bytes) -> None:
        seq = self._next
        firsts = array("q", [seq]) if count > 1 else None
        text = canonical + b"\n"
        self._segment.add(Block(seq, seq + count, text, 0, len(text), firsts))
        self._advance(seq + count, line + b"\n", 1)

    def _find_message(self, seq: int) -> Any:
        event = self._segment.event(seq) if 0 <= seq < self._next else None
        return event.message if event is not None and event.type in SURFACE_TYPES else None

    # -- faults ----------------------------------------------------------------------------------------

    def _note_fault(self, what: str) -> None:
        self.fault = Fault(self.line, self.offset, what)

    def _logical(self, error: TurnlogError, line: int, offset: int) -> TurnlogError:
        """A broken rule as the error of a storage, with its place."""
        kind = UnsupportedFormatError if error.code == "UNKNOWN_EVENT_TYPE" else CorruptLogError
        return kind(
            f"session {self.session_id!r}, line {line} (byte {offset}): {error.message}",
            code=error.code,
            session_id=self.session_id,
            line=line,
            offset=offset,
            seq=error.details.get("seq"),
        )


def _seq_of(record: Any) -> int:
    return record.seq  # type: ignore[no-any-return]


def _is_end(record: Any) -> bool:
    return isinstance(record, dict) and record.get("type") == "turn/end"


def _is_turn_end(line: bytes) -> bool:
    try:
        return _is_end(parse_json(line))
    except JsonValueError:
        return False
