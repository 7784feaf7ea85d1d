"""EventLog: the events of a session in memory, shared rather than copied.

A log is a list of parts and a growing tail. A part is a segment that never changes: a list of events, or what
a codec keeps of a loaded file (bytes, decoded when someone looks). Views and forks share parts and tail and
only remember how far they see, so taking one costs O(parts), whatever the length.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Protocol, overload

import msgspec

from turnlog.events import SessionEvent


class Run(Protocol):
    """Consecutive `assistant/chunk` events that a segment holds as one packed object."""

    def __len__(self) -> int: ...

    def events(self) -> Iterator[SessionEvent]:
        """The events, in order."""


class Segment(Protocol):
    """An immutable stretch of a log; indexes count from its own start."""

    def __len__(self) -> int: ...

    def event(self, index: int) -> SessionEvent:
        """The event at an index."""

    def records(self, start: int, stop: int) -> Iterator[SessionEvent | Run]:
        """The events of a range, those of a packed run as one object where the range holds it whole."""


class ListSegment:
    """Events in a list of which only the first `len(self)` count; the list may grow behind them."""

    __slots__ = ("_events", "_length")

    def __init__(self, events: list[SessionEvent], length: int) -> None:
        self._events = events
        self._length = length

    def __len__(self) -> int:
        return self._length

    def event(self, index: int) -> SessionEvent:
        """The event at an index."""
        return self._events[index]

    def records(self, start: int, stop: int) -> Iterator[SessionEvent]:
        """The events of a range."""
        return iter(self._events[start:stop])


class _Part(msgspec.Struct, frozen=True):
    """A segment in a log: it holds the events from `start` to `stop`, exclusive."""

    start: int
    stop: int
    segment: Segment


class EventView(Sequence[SessionEvent]):
    """An immutable sequence of a log's events, from seq 0. It does not grow when the log does.

    Events of loaded segments are made when asked for and not kept. Slices are lists.
    """

    __slots__ = ("_length", "_parts", "_starts")

    def __init__(self, parts: tuple[_Part, ...], length: int) -> None:
        self._parts = parts
        self._starts = [part.start for part in parts]
        self._length = length

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> SessionEvent: ...

    @overload
    def __getitem__(self, index: slice) -> list[SessionEvent]: ...

    def __getitem__(self, index: int | slice) -> SessionEvent | list[SessionEvent]:
        if isinstance(index, slice):
            start, stop, step = index.indices(self._length)
            if step == 1:
                return list(self.iter_events(start, stop))
            return [self[position] for position in range(start, stop, step)]
        position = index + self._length if index < 0 else index
        if not 0 <= position < self._length:
            raise IndexError(f"event {index} of {self._length}")
        part = self._parts[bisect_right(self._starts, position) - 1]
        return part.segment.event(position - part.start)

    def __iter__(self) -> Iterator[SessionEvent]:
        return self.iter_events()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(
            one == two for one, two in zip(self, other, strict=True)
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{self._length} events>"

    def iter_events(self, start: int = 0, stop: int | None = None) -> Iterator[SessionEvent]:
        """The events of a range of seqs, one after the other."""
        for record in self.iter_records(start, stop):
            if isinstance(record, SessionEvent):
                yield record
            else:
                yield from record.events()

    def iter_records(self, start: int = 0, stop: int | None = None) -> Iterator[SessionEvent | Run]:
        """The same, with each packed run as one object: what a fold uses that ignores stream deltas."""
        end = self._length if stop is None else min(stop, self._length)
        for part in self._parts:
            low, high = max(start, part.start), min(end, part.stop)
            if low < high:
                yield from part.segment.records(low - part.start, high - part.start)

    def prefix(self, length: int) -> EventView:
        """A view of the first `length` events."""
        parts = tuple(
            part if part.stop <= length else _Part(part.start, length, part.segment)
            for part in self._parts
            if part.start < length
        )
        return EventView(parts, min(length, self._length))


class EventLog:
    """A growing log: immutable parts and a tail of appended events.

    Not thread-safe for writers; a view taken at any time stays valid and does not change.
    """

    __slots__ = ("_parts", "_tail", "_tail_start")

    def __init__(self, prefix: EventView | None = None) -> None:
        self._parts: tuple[_Part, ...] = () if prefix is None else prefix._parts
        self._tail_start = 0 if prefix is None else len(prefix)
        self._tail: list[SessionEvent] = []

    @classmethod
    def from_segment(cls, segment: Segment) -> EventLog:
        """A log whose first events are those of a segment."""
        parts = (_Part(0, len(segment), segment),) if len(segment) else ()
        return cls(EventView(parts, len(segment)))

    def __len__(self) -> int:
        return self._tail_start + len(self._tail)

    def __getitem__(self, seq: int) -> SessionEvent:
        return self.view()[seq] if seq < self._tail_start else self._tail[seq - self._tail_start]

    def append(self, event: SessionEvent) -> None:
        """Add an event whose seq is `len(self)`."""
        self._tail.append(event)

    def truncate(self, length: int) -> None:
        """Take back appended events that nobody has seen yet, down to a length behind the parts."""
        del self._tail[length - self._tail_start :]

    def view(self) -> EventView:
        """The events as they are now."""
        count = len(self._tail)
        if not count:
            return EventView(self._parts, self._tail_start)
        start = self._tail_start
        tail = _Part(start, start + count, ListSegment(self._tail, count))
        return EventView((*self._parts, tail), start + count)
