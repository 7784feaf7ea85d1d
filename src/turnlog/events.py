"""SessionEvent: one entry of a session's log, whose truth is its bytes.

An event is `{type, seq, time, data, ignorable?, sourceEventSeqs?, surfaceOp?}`. It keeps the canonical JSON
text of its payload; `data` is decoded when first asked for, into frozen values, so whatever a caller does to
a decoded value changes nothing stored. Key order in the text is the order above, as the harnesses append it;
an event that came in another order (as crash repair writes) keeps its whole line, and with it that order.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from turnlog.errors import EventError, JsonValueError
from turnlog.frozen import FrozenDict, FrozenList, freeze, thaw
from turnlog.lossless import (
    canonicalize,
    decode_canonical,
    format_string,
    is_safe_integer,
    json_equal,
)
from turnlog.messages import Message
from turnlog.vocabulary import EVENT_TYPES, SURFACE_TYPES

T = TypeVar("T")

SurfaceOp = str | FrozenDict
"""`"append"`, or `{op: "replace", start, end}` with seqs of nodes, both inclusive."""

_WIRE_KEYS = frozenset({"type", "seq", "time", "data", "ignorable", "sourceEventSeqs", "surfaceOp"})
_UNDECODED: Any = msgspec.UNSET
_encode = msgspec.json.Encoder().encode


class SessionEvent(msgspec.Struct, frozen=True, eq=False, gc=False, repr_omit_defaults=True):
    """One event of a log.

    `seq`: its index in the log, from 0. `time`: Unix milliseconds. `data_json`: the payload's canonical JSON,
    UTF-8. `surface_op` and `source_event_seqs` are None where the event carries none. `line` is set only where
    the keys stand in an unusual order.
    """

    type: str
    seq: int
    time: int
    data_json: bytes
    surface_op: SurfaceOp | None = None
    source_event_seqs: FrozenList | None = None
    ignorable: bool = False
    line: bytes | None = None
    decoded: Any = _UNDECODED

    @property
    def data(self) -> Any:
        """The payload as frozen values, decoded on first use."""
        if self.decoded is _UNDECODED:
            value = freeze(decode_canonical(self.data_json))
            msgspec.structs.force_setattr(self, "decoded", value)
        return self.decoded

    @property
    def message(self) -> Message:
        """The message of a surface event; `EventError` for any other type."""
        if self.type not in SURFACE_TYPES:
            raise EventError(
                f"a {self.type} event holds no message", code="NO_MESSAGE", seq=self.seq
            )
        return Message(self.data if self.type == "user/message" else self.data["message"])

    def as_(self, kind: builtins.type[T]) -> T:
        """The payload converted to a Struct, dataclass or TypedDict; `EventError` when it does not fit."""
        try:
            return msgspec.convert(thaw(self.data), kind)
        except msgspec.ValidationError as error:
            raise EventError(
                f"event {self.seq}, {self.type}: {error}", code="INVALID_PAYLOAD", seq=self.seq
            ) from error

    def typed(self) -> Any:
        """The payload as the type registered for it; the frozen data where none is."""
        kind = EVENT_TYPES.get(self.type)
        return self.data if kind is None or kind.payload is None else self.as_(kind.payload)

    def to_dict(self) -> dict[str, Any]:
        """The wire form as plain, mutable values."""
        if self.line is not None:
            return decode_canonical(self.line)  # type: ignore[no-any-return]
        wire: dict[str, Any] = {
            "type": self.type,
            "seq": self.seq,
            "time": self.time,
            "data": decode_canonical(self.data_json),
        }
        if self.ignorable:
            wire["ignorable"] = True
        if self.source_event_seqs is not None:
            wire["sourceEventSeqs"] = list(self.source_event_seqs)
        if self.surface_op is not None:
            wire["surfaceOp"] = thaw(self.surface_op)
        return wire

    def to_json(self) -> bytes:
        """The wire form as one line of canonical JSON, UTF-8, without a line feed."""
        if self.line is not None:
            return self.line
        head = b'{"type":%b,"seq":%d,"time":%d,"data":%b' % (
            _encode_type(self.type),
            self.seq,
            self.time,
            self.data_json,
        )
        if self.surface_op is None and not self.ignorable and self.source_event_seqs is None:
            return head + b"}"
        if self.ignorable:
            head += b',"ignorable":true'
        if self.source_event_seqs is not None:
            head += b',"sourceEventSeqs":' + _encode(self.source_event_seqs)
        if self.surface_op is not None:
            head += b',"surfaceOp":' + _encode(self.surface_op)
        return head + b"}"

    @classmethod
    def from_dict(cls, wire: Mapping[str, Any]) -> SessionEvent:
        """The event that a wire dict spells, detached from it and checked apart from its place in a log.

        Raises `EventError` for a wrong envelope or payload and `JsonValueError` for what JSON cannot hold.
        """
        return read_wire(wire)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SessionEvent):
            return NotImplemented
        return (
            self.type == other.type
            and self.seq == other.seq
            and self.time == other.time
            and self.ignorable == other.ignorable
            and self.surface_op == other.surface_op
            and self.source_event_seqs == other.source_event_seqs
            and (self.data_json == other.data_json or json_equal(self.data, other.data))
        )

    def __ne__(self, other: object) -> bool:
        # A Struct brings a `!=` of its own, which would compare identities.
        return not self == other

    def __hash__(self) -> int:
        return hash((self.type, self.seq, self.time))

    def __repr__(self) -> str:
        return f"SessionEvent({self.to_json().decode('utf-8')[:200]})"


EventLike = SessionEvent | Mapping[str, Any]
"""An event, or its wire form as a dict."""

_type_texts: dict[str, bytes] = {}


def _encode_type(name: str) -> bytes:
    text = _type_texts.get(name)
    if text is None:
        text = format_string(name).encode()
        if len(_type_texts) < 1000:
            _type_texts[name] = text
    return text


def check_envelope(wire: Any) -> None:
    """Raise `EventError` unless the plain value has the keys and types of an event envelope."""
    if not isinstance(wire, dict):
        raise EventError("an event must be an object", code="INVALID_ENVELOPE")
    seq = wire.get("seq")
    where = {"seq": seq} if is_safe_integer(seq) else {}
    if not is_safe_integer(seq) or seq < 0:
        raise _invalid("seq must be an integer from 0 to 2**53 - 1", where)
    if not isinstance(wire.get("type"), str):
        raise _invalid("type must be a string", where)
    if not is_safe_integer(wire.get("time")):
        raise _invalid("time must be an integer of Unix milliseconds", where)
    if "data" not in wire:
        raise _invalid("data is missing (it may be null)", where)
    unknown = wire.keys() - _WIRE_KEYS
    if unknown:
        raise _invalid(f"unknown keys {sorted(unknown)}; put them into data", where)
    if wire.get("ignorable", True) is not True:
        raise _invalid("ignorable must be true or absent", where)


def _invalid(what: str, where: dict[str, Any]) -> EventError:
    place = f"event {where['seq']}: " if where else ""
    return EventError(f"{place}{what}", code="INVALID_ENVELOPE", **where)


def event_from_plain(wire: dict[str, Any], line: bytes | None = None) -> SessionEvent:
    """The event of a checked, plain wire dict; surface keys and key order are taken as they are.

    `line` is the dict's canonical text, where the caller has it.
    """
    event = SessionEvent(
        wire["type"],
        wire["seq"],
        wire["time"],
        canonicalize(wire["data"])[0],
        freeze(wire.get("surfaceOp")),
        freeze(wire.get("sourceEventSeqs")),
        "ignorable" in wire,
    )
    return _keep_order(event, canonicalize(wire)[0] if line is None else line)


def _keep_order(event: SessionEvent, line: bytes) -> SessionEvent:
    if event.to_json() != line:
        msgspec.structs.force_setattr(event, "line", line)
    return event


def read_wire(wire: EventLike) -> SessionEvent:
    """An event from an event or a wire dict, detached; envelope and payload checked."""
    if isinstance(wire, SessionEvent):
        return wire
    if not isinstance(wire, Mapping):
        raise EventError("an event must be a SessionEvent or a dict", code="INVALID_ENVELOPE")
    try:
        line, plain = canonicalize(dict(wire))
    except JsonValueError as error:
        error.details["seq"] = wire.get("seq")
        raise
    check_envelope(plain)
    EVENT_TYPES.check_payload(plain["type"], plain["data"])
    return event_from_plain(plain, line)


def snapshot_session_event(event: EventLike) -> SessionEvent:
    """A detached, checked copy of a borrowed event."""
    return read_wire(event.to_dict() if isinstance(event, SessionEvent) else event)


def adopt_session_event(event: EventLike) -> SessionEvent:
    """The event itself where it is one of ours (they are immutable), else a checked copy."""
    return read_wire(event)


def wire_dicts(events: Iterable[EventLike]) -> list[dict[str, Any]]:
    """The events as plain wire dicts."""
    return [event.to_dict() if isinstance(event, SessionEvent) else dict(event) for event in events]


class _Line(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    """An event line with its payload left undecoded."""

    type: str
    seq: int
    time: int
    data: msgspec.Raw
    ignorable: bool = False
    sourceEventSeqs: list[int] | None = None
    surfaceOp: str | dict[str, Any] | None = None


_decode_line = msgspec.json.Decoder(_Line).decode


def event_from_line(line: bytes) -> SessionEvent:
    """The event of a canonical line that was validated before."""
    try:
        parts = _decode_line(line)
    except (ValueError, RecursionError):
        # Lone surrogates and deep nesting: legal, and beyond msgspec.
        return event_from_plain(decode_canonical(line), line)
    sources, op = parts.sourceEventSeqs, parts.surfaceOp
    event = SessionEvent(
        parts.type,
        parts.seq,
        parts.time,
        bytes(parts.data),
        FrozenDict(op) if isinstance(op, dict) else op,
        None if sources is None else FrozenList(sources),
        parts.ignorable,
    )
    return _keep_order(event, line)
