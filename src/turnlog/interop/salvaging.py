"""Rebuild a session out of what could be salvaged of a damaged log.

Events keep their order and get new seqs without holes; whatever names a seq follows. Only what a load would
accept is taken, and everything that is not is counted, so that the reader knows what is missing.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

from turnlog.engine.protocol import Salvage, SalvagedRecord
from turnlog.errors import CorruptLogError, EventError, HeaderError, JsonValueError
from turnlog.eventlog import EventLog
from turnlog.events import SessionEvent, check_envelope, event_from_plain
from turnlog.header import SessionHeader, is_absolute
from turnlog.lossless import canonicalize, is_safe_integer
from turnlog.surface import ABSENT, SurfaceManager
from turnlog.vocabulary import EVENT_TYPES

SUFFIX = "-salvaged"
"""What the new session's id ends in."""

_ENVELOPE = ("type", "seq", "time", "data", "ignorable", "sourceEventSeqs", "surfaceOp")
_SEQ_LISTS = {
    "session/title": "messageSeqs",
    "session/title-llm-request": "messageSeqs",
    "compaction/summary": "shadowedSeqs",
    "compaction/prune": "shadowedSeqs",
}
_MAX_LISTED = 20


class Rebuilt(NamedTuple):
    """A session that loads, and what was lost on the way, in sentences."""

    header: SessionHeader
    events: list[SessionEvent]
    losses: list[str]


def rebuild_session(salvage: Salvage, fallback_id: str) -> Rebuilt:
    """A session out of a salvaged log.

    Its id is the old one, or `fallback_id` where none can be read, plus `-salvaged`.
    Raises `CorruptLogError` (`NOTHING_TO_SALVAGE`) when no event is left.
    """
    rebuilder = _Rebuilder()
    for record in salvage.records:
        rebuilder.take(record)
    if not rebuilder.events:
        raise CorruptLogError(
            f"nothing of {fallback_id!r} can be salvaged", code="NOTHING_TO_SALVAGE"
        )
    losses = [f"line {item.line} (byte {item.offset}): {item.what}" for item in salvage.damage]
    if len(losses) > _MAX_LISTED:
        losses[_MAX_LISTED:] = [f"and {len(losses) - _MAX_LISTED} more damaged places"]
    header = _header(salvage.header, fallback_id, rebuilder)
    return Rebuilt(header, rebuilder.events, losses + rebuilder.losses())


def _header(wire: dict[str, Any] | None, fallback_id: str, rebuilder: _Rebuilder) -> SessionHeader:
    """The old header under the new id; of a damaged one the fields that are sound."""
    given = wire or {}
    old_id = given.get("id")
    new_id = f"{old_id if isinstance(old_id, str) and old_id else fallback_id}{SUFFIX}"
    fields = {**given, "id": new_id}
    length = given.get("seedLength")
    if is_safe_integer(length):
        fields["seedLength"] = sum(seq < length for seq in rebuilder.old_seqs)
    try:
        return SessionHeader.from_dict(fields)
    except (HeaderError, JsonValueError):
        created: Any = given.get("createdAt")
        sound = is_safe_integer(created) and created >= 0
        cwd = given.get("cwd")
        return SessionHeader(
            id=new_id,
            created_at=created if sound else max(rebuilder.events[0].time, 0),
            cwd=cwd if is_absolute(cwd) else None,
        )


class _Rebuilder:
    """Takes records in file order; `events` are the sound ones, renumbered."""

    def __init__(self) -> None:
        self.events: list[SessionEvent] = []
        self.old_seqs: list[int] = []
        self._log = EventLog()
        self._surface = SurfaceManager(self._log)  # type: ignore[arg-type]
        self._new_seq: dict[int, int] = {}
        self._seen: dict[int, bytes] = {}
        self._dropped: Counter[str] = Counter()

    def losses(self) -> list[str]:
        """What was dropped, each reason with its number."""
        return [
            f"{number} event{'' if number == 1 else 's'}: {reason}"
            for reason, number in self._dropped.items()
        ]

    def take(self, record: SalvagedRecord) -> None:
        wire = record.wire
        old = wire["seq"]
        text = canonicalize(wire)[0]
        if self._seen.get(old) == text:
            self._dropped["the same event a second time, left out"] += 1
            return
        self._seen[old] = text
        for key in sorted(wire.keys() - set(_ENVELOPE)):
            self._dropped[f"the key {key!r}, which no event has, left out"] += 1
        event = self._rebuild(self._moved(wire))
        if event is None:
            return
        self._new_seq[old] = event.seq
        self.old_seqs.append(old)
        self.events.append(event)
        self._log.append(event)

    def _rebuild(self, wire: dict[str, Any]) -> SessionEvent | None:
        type_ = wire["type"]
        try:
            check_envelope(wire)
            EVENT_TYPES.require_known(type_, "ignorable" in wire)
            EVENT_TYPES.check_payload(type_, wire["data"])
            op, sources = wire.get("surfaceOp", ABSENT), wire.get("sourceEventSeqs", ABSENT)
            self._surface.skip_to(wire["seq"])
            self._surface.add(wire["seq"], type_, wire["data"], op, sources)
        except EventError as error:
            self._dropped[f"{type_}, dropped ({error.code})"] += 1
            return None
        return event_from_plain(wire)

    def _moved(self, wire: dict[str, Any]) -> dict[str, Any]:
        """The event at the next seq, with every seq that it names moved along."""
        moved = {key: value for key, value in wire.items() if key in _ENVELOPE}
        moved["seq"] = len(self.events)
        sources = wire.get("sourceEventSeqs")
        if isinstance(sources, list):
            moved["sourceEventSeqs"] = self._known(sources)
            if sources and not moved["sourceEventSeqs"]:
                # An empty list would claim that there never was a source.
                del moved["sourceEventSeqs"]
        if isinstance(wire.get("surfaceOp"), dict):
            cited = moved.get("sourceEventSeqs", [])
            moved["surfaceOp"] = self._moved_range(wire["surfaceOp"], cited)
        if isinstance(wire["data"], dict):
            moved["data"] = self._moved_data(wire["type"], wire["data"])
        return moved

    def _moved_data(self, type_: str, data: dict[str, Any]) -> dict[str, Any]:
        key = _SEQ_LISTS.get(type_)
        if key is not None and isinstance(data.get(key), list):
            data = {**data, key: self._known(data[key])}
            if isinstance(data.get("shadowedRange"), dict) and data[key]:
                data["shadowedRange"] = {"start": data[key][0], "end": data[key][-1]}
        source = data.get("sourceEventSeq")
        if type_ == "command/done" and is_safe_integer(source) and source in self._new_seq:
            data = {**data, "sourceEventSeq": self._new_seq[source]}
        return data

    def _moved_range(self, op: dict[str, Any], cited: list[int]) -> dict[str, Any]:
        """The range of a replace; where an end of it is lost, what is left of the nodes that it cites."""
        start, end = self._known([op.get("start")]), self._known([op.get("end")])
        nodes = self._surface.nodes
        if start and end and start[0] in nodes and end[0] in nodes:
            return {**op, "start": start[0], "end": end[0]}
        left = [seq for seq in nodes if seq in cited]
        return {**op, "start": left[0], "end": left[-1]} if left else op

    def _known(self, seqs: list[Any]) -> list[int]:
        return [self._new_seq[seq] for seq in seqs if type(seq) is int and seq in self._new_seq]
