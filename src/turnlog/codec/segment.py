"""LineSegment: the events of a loaded file as its own lines, decoded when someone looks.

Lines are kept in blocks of some 32 KiB, as text or, from a compressed file, as the file's own frames. A block
knows the seq of its first event; where it holds packed rows, that of every line. Nothing that is decoded is
kept, so reading all events of a session leaves no trace in memory but one block's lines.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator

import msgspec

from turnlog.codec.chunk_rows import ChunkRow, parse_row
from turnlog.codec.frames import decompress_frames
from turnlog.events import SessionEvent, event_from_line
from turnlog.lossless import decode_canonical

ROW_HEADS = (b'{"type":"text-chunks"', b'{"type":"reasoning-chunks"', b'{"type":"tool-call-chunks"')


class Block(msgspec.Struct, frozen=True):
    """Whole lines of validated, canonical records: the events from `first` to `stop`, exclusive.

    The lines are the bytes `at` to `end` of a text that blocks share, or, where `end` is None, all that the
    frames in `data` decompress to. `firsts` holds the first seq of each line, or is None where every line is
    one event.
    """

    first: int
    stop: int
    data: bytes
    at: int
    end: int | None
    firsts: array[int] | None

    def lines(self) -> list[bytes]:
        """The lines without their line feeds."""
        text = decompress_frames(self.data) if self.end is None else self.data[self.at : self.end]
        lines = text.split(b"\n")
        lines.pop()
        return lines


def record_from_line(line: bytes) -> SessionEvent | ChunkRow:
    """The record of a validated, canonical line."""
    if line.startswith(ROW_HEADS):
        return parse_row(decode_canonical(line))
    return event_from_line(line)


class LineSegment:
    """A segment made of blocks; see `turnlog.eventlog.Segment` for the contract.

    Only the reader that builds it adds blocks; afterwards it does not change.
    """

    def __init__(self) -> None:
        self._blocks: list[Block] = []
        self._starts: list[int] = []
        self._recent: tuple[Block, list[bytes]] | None = None

    def add(self, block: Block) -> None:
        """Add the block that follows the last one."""
        self._blocks.append(block)
        self._starts.append(block.first)

    def __len__(self) -> int:
        return self._blocks[-1].stop if self._blocks else 0

    def event(self, index: int) -> SessionEvent:
        """The event at an index."""
        block = self._blocks[bisect_right(self._starts, index) - 1]
        number = (
            index - block.first if block.firsts is None else bisect_right(block.firsts, index) - 1
        )
        record = record_from_line(self._lines(block)[number])
        return record if isinstance(record, SessionEvent) else record.event(index - record.seq)

    def records(self, start: int, stop: int) -> Iterator[SessionEvent | ChunkRow]:
        """The records of a range; rows that reach over its ends are given event by event."""
        for block in self._blocks[max(bisect_right(self._starts, start) - 1, 0) :]:
            if block.first >= stop:
                return
            firsts = range(block.first, block.stop) if block.firsts is None else block.firsts
            low = max(bisect_right(firsts, start) - 1, 0)
            lines = block.lines()
            for number in range(low, len(lines)):
                if firsts[number] >= stop:
                    return
                record = record_from_line(lines[number])
                if isinstance(record, SessionEvent) or (
                    record.seq >= start and record.seq + len(record) <= stop
                ):
                    yield record
                else:
                    yield from (event for event in record.events() if start <= event.seq < stop)

    def _lines(self, block: Block) -> list[bytes]:
        recent = self._recent
        if recent is not None and recent[0] is block:
            return recent[1]
        lines = block.lines()
        self._recent = (block, lines)
        return lines
