"""The surface: the ordered list of event seqs whose messages the model sees.

`append` puts an event at the tail; `replace(start, end)` removes the nodes between the *positions* of `start`
and `end` and puts the event there. Nothing is deleted: a replace shadows, and the log keeps everything. A
refused candidate changes nothing. The checks and their order are log.md, section 5; `vectors/surface.json`
has the reference's answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, TypeGuard

import msgspec

from turnlog.errors import SurfaceError
from turnlog.events import EventLike, SessionEvent, event_from_plain
from turnlog.frozen import FrozenList, thaw
from turnlog.lossless import SAFE_INTEGER, canonicalize, is_safe_integer, json_equal
from turnlog.messages import Message
from turnlog.vocabulary import SURFACE_TYPES

SurfaceCode = Literal[
    "NOT_CONTIGUOUS", "NOT_ELIGIBLE_OP", "NOT_ELIGIBLE_SOURCES", "OP_MISSING", "OP_INVALID",
    "OP_INVALID_REPLACE", "START_NOT_FOUND", "END_NOT_FOUND", "RANGE_REVERSED", "SOURCES_NOT_LIST",
    "SOURCES_EMPTY", "SOURCES_INVALID", "SOURCES_DUPLICATE", "SOURCES_NOT_EARLIER", "SOURCES_INCOMPLETE",
    "RESULT_NOT_SINGLE", "RESULT_TARGET", "RESULT_CONTENT_ONLY",
]  # fmt: skip
"""The codes of `SurfaceError`, in the order in which the conditions are checked."""

ABSENT: Any = msgspec.UNSET
"""Stands for a key that an event does not have; None is the JSON value null."""

_INTS = {int}


class Replacement(msgspec.Struct, frozen=True):
    """A committed replace: event `seq` took the place of the nodes from `start` to `end`."""

    seq: int
    start: int
    end: int
    shadowed_seqs: tuple[int, ...]

    def to_dict(self) -> dict[str, Any]:
        """`{seq, start, end, shadowedSeqs}`."""
        return {
            "seq": self.seq,
            "start": self.start,
            "end": self.end,
            "shadowedSeqs": list(self.shadowed_seqs),
        }


class Surface(msgspec.Struct, frozen=True):
    """A folded surface: the seqs of its nodes in order, and the replaces that led to it."""

    nodes: tuple[int, ...]
    replacements: tuple[Replacement, ...]

    def to_dict(self) -> dict[str, Any]:
        """`{nodes: [seq, ...], replacements: [{seq, start, end, shadowedSeqs}, ...]}`."""
        return {
            "nodes": list(self.nodes),
            "replacements": [replacement.to_dict() for replacement in self.replacements],
        }


class _Range(msgspec.Struct, frozen=True):
    """A checked replace: the positions that it covers, last exclusive."""

    first: int
    stop: int
    start: int
    end: int


SavedSurface = tuple[int, list[int], list[Replacement]]
"""Next seq, nodes and replaces: what takes a surface back to a moment."""


class SurfaceManager:
    """The surface of a log that grows: `check` a candidate, then `commit` it.

    `log` gives the event of a seq by `log[seq - base_seq]`; it is asked only for the target of a rewritten
    tool result. A window that starts at `base_seq` knows nothing of earlier nodes.
    """

    def __init__(self, log: Sequence[SessionEvent], base_seq: int = 0) -> None:
        self._log = log
        self._base = base_seq
        self._next = base_seq
        self._nodes: list[int] = []
        self._replacements: list[Replacement] = []

    @property
    def nodes(self) -> FrozenList:
        """The seqs of the nodes, in surface order (a copy)."""
        return FrozenList(self._nodes)

    @property
    def replacements(self) -> tuple[Replacement, ...]:
        """The committed replaces, oldest first."""
        return tuple(self._replacements)

    @property
    def replace_generation(self) -> int:
        """How many replaces were committed."""
        return len(self._replacements)

    def __len__(self) -> int:
        return len(self._nodes)

    def node_at(self, position: int) -> int:
        """The seq of the node at a position."""
        return self._nodes[position]

    def to_surface(self) -> Surface:
        """The surface as it is now."""
        return Surface(tuple(self._nodes), tuple(self._replacements))

    def copy_for(self, log: Sequence[SessionEvent]) -> SurfaceManager:
        """The same surface over another log with the same events."""
        twin = SurfaceManager(log, self._base)
        twin.restore(self.save())
        return twin

    def save(self) -> SavedSurface:
        """What `restore` needs to take the surface back to where it is now."""
        return self._next, self._nodes.copy(), self._replacements.copy()

    def restore(self, saved: SavedSurface) -> None:
        """Take back everything that was committed since `saved` was made."""
        self._next, self._nodes, self._replacements = saved

    def skip_to(self, seq: int) -> None:
        """Note that the events before `seq` are known to carry no surface operation."""
        self._next = seq

    def add(self, seq: int, type_: str, data: Any, op: Any = ABSENT, sources: Any = ABSENT) -> None:
        """Check one event, given as plain values, and commit it; `SurfaceError` changes nothing."""
        self.commit(seq, self.check(seq, type_, data, op, sources))

    def add_behind(self, seq: int, type_: str, data: Any, op: Any, sources: Any) -> None:
        """The same for a surface event behind events that are known to carry no surface operation."""
        self._next = seq
        if op == "append" and sources is ABSENT:
            self._nodes.append(seq)
            self._next = seq + 1
        else:
            self.commit(seq, self.check(seq, type_, data, op, sources))

    def check(
        self, seq: int, type_: str, data: Any, op: Any = ABSENT, sources: Any = ABSENT
    ) -> _Range | Literal[False] | None:
        """What committing the candidate would do: a range to replace, None to append, False for nothing.

        Raises `SurfaceError` for the first condition that fails.
        """
        if op == "append" and sources is ABSENT and seq == self._next and type_ in SURFACE_TYPES:
            return None
        if seq != self._next:
            raise _fail("NOT_CONTIGUOUS", seq, f"the next seq is {self._next}")
        if type_ not in SURFACE_TYPES:
            if op is not ABSENT:
                raise _fail(
                    "NOT_ELIGIBLE_OP", seq, f"{type_} is no surface type and carries surfaceOp"
                )
            if sources is not ABSENT:
                raise _fail(
                    "NOT_ELIGIBLE_SOURCES",
                    seq,
                    f"{type_} is no surface type and carries sourceEventSeqs",
                )
            return False
        if op is ABSENT:
            raise _fail("OP_MISSING", seq, f"{type_} must carry surfaceOp")
        span = None if op == "append" and isinstance(op, str) else self._find_range(seq, op)
        if sources is not ABSENT:
            self._check_sources(seq, type_, sources)
        if span is not None:
            cited = () if sources is ABSENT else sources
            missing = set(self._nodes[span.first : span.stop]).difference(cited)
            if missing:
                raise _fail(
                    "SOURCES_INCOMPLETE",
                    seq,
                    f"the replace does not cite the nodes {sorted(missing)}",
                )
            if type_ == "tool/result":
                self._check_rewrite(seq, data, span)
        return span

    def _find_range(self, seq: int, op: Any) -> _Range:
        if not isinstance(op, dict) or op.get("op") != "replace":
            raise _fail(
                "OP_INVALID", seq, "surfaceOp must be 'append' or {op: 'replace', start, end}"
            )
        start, end = op.get("start"), op.get("end")
        if op.keys() != {"op", "start", "end"} or not (_is_seq(start) and _is_seq(end)):
            raise _fail(
                "OP_INVALID_REPLACE", seq, "a replace has exactly op, start and end, both seqs"
            )
        first = self._position(start)
        if first is None:
            raise _fail("START_NOT_FOUND", seq, f"start {start} is not on the surface")
        last = self._position(end)
        if last is None:
            raise _fail("END_NOT_FOUND", seq, f"end {end} is not on the surface")
        if last < first:
            raise _fail("RANGE_REVERSED", seq, f"end {end} stands before start {start}")
        return _Range(first, last + 1, start, end)

    def _position(self, seq: int) -> int | None:
        try:
            return self._nodes.index(seq)
        except ValueError:
            return None

    def _check_sources(self, seq: int, type_: str, sources: Any) -> None:
        if not isinstance(sources, list):
            raise _fail("SOURCES_NOT_LIST", seq, "sourceEventSeqs must be a list")
        if not sources:
            if type_ == "assistant/message":
                return
            raise _fail("SOURCES_EMPTY", seq, "sourceEventSeqs must not be empty")
        first, count = sources[0], len(sources)
        if (
            type(first) is int
            and 1 < first <= seq - count
            and (count == 1 or sources == list(range(first, first + count)))
        ):
            # The usual case, events in a row; above 1 no bool can pass for one of them.
            return
        if set(map(type, sources)) != _INTS or min(sources) < 0 or max(sources) > SAFE_INTEGER:
            raise _fail("SOURCES_INVALID", seq, "sourceEventSeqs must be seqs")
        if len(set(sources)) != len(sources):
            raise _fail("SOURCES_DUPLICATE", seq, "sourceEventSeqs names an event twice")
        if max(sources) >= seq:
            raise _fail("SOURCES_NOT_EARLIER", seq, "sourceEventSeqs must be earlier events")

    def _check_rewrite(self, seq: int, data: Any, span: _Range) -> None:
        if span.stop - span.first != 1:
            raise _fail("RESULT_NOT_SINGLE", seq, "a tool result replaces exactly one node")
        target = self._log[span.start - self._base]
        if target.type != "tool/result":
            raise _fail("RESULT_TARGET", seq, "a tool result replaces only a tool result")
        if not json_equal(_without_content(target.data), _without_content(data)):
            raise _fail(
                "RESULT_CONTENT_ONLY", seq, "only the content of the result block may change"
            )

    def commit(self, seq: int, span: _Range | Literal[False] | None) -> None:
        """Carry out what `check` returned for the candidate."""
        self._next = seq + 1
        if span is False:
            return
        if span is None:
            self._nodes.append(seq)
            return
        shadowed = tuple(self._nodes[span.first : span.stop])
        self._nodes[span.first : span.stop] = [seq]
        self._replacements.append(Replacement(seq, span.start, span.end, shadowed))


def _fail(code: SurfaceCode, seq: int, what: str) -> SurfaceError:
    return SurfaceError(f"event {seq}: {what}", code=code, seq=seq)


def _is_seq(value: Any) -> TypeGuard[int]:
    return is_safe_integer(value) and value >= 0


def _without_content(data: Any) -> Any:
    """A tool result's data with the one part that a rewrite may change taken out."""
    plain = thaw(data)
    try:
        plain["message"]["content"][0]["content"] = None
    except (KeyError, IndexError, TypeError):
        return plain
    return plain


def _as_event(event: EventLike) -> SessionEvent:
    if isinstance(event, SessionEvent):
        return event
    return event_from_plain(canonicalize(dict(event))[1])


def fold_surface(events: Iterable[EventLike]) -> Surface:
    """The surface of a log given as events or wire dicts from seq 0; `SurfaceError` for the first bad one.

    Only surface rules are judged: payloads and envelopes are taken as they are.
    """
    log: list[SessionEvent] = []
    manager = SurfaceManager(log)
    for entry in events:
        event = _as_event(entry)
        op: Any = event.surface_op
        sources: Any = event.source_event_seqs
        if not isinstance(entry, SessionEvent):
            op, sources = entry.get("surfaceOp", ABSENT), entry.get("sourceEventSeqs", ABSENT)
        else:
            op = ABSENT if op is None else op
            sources = ABSENT if sources is None else sources
        manager.add(event.seq, event.type, event.data, op, sources)
        log.append(event)
    return manager.to_surface()


def is_surface_event(event: EventLike) -> bool:
    """Whether the event is of a type that can stand on the surface."""
    return _as_event(event).type in SURFACE_TYPES


def is_append_surface_event(event: EventLike) -> bool:
    """Whether the event entered the surface at its tail: what a person's transcript shows."""
    event = _as_event(event)
    return event.type in SURFACE_TYPES and event.surface_op == "append"


def is_replacement_surface_event(event: EventLike) -> bool:
    """Whether the event took the place of earlier nodes."""
    event = _as_event(event)
    return event.type in SURFACE_TYPES and isinstance(event.surface_op, dict)


def derive_event_message(event: EventLike) -> Message | None:
    """The stored message, verbatim; None for other events and for an assistant message without content."""
    event = _as_event(event)
    if event.type not in SURFACE_TYPES:
        return None
    message = event.message
    return None if event.type == "assistant/message" and not message["content"] else message
