"""Chunk rows: runs of streamed deltas as one stored record each.

A run of at least three consecutive `assistant/chunk` deltas of one kind, block and step is stored as one row
that keeps every token boundary and time; everything else is stored verbatim. Packing is a pure function of
one batch and never changes what is read back. Shapes and checks: storage.md, 1.4; `vectors/chunk_rows.json`
has the reference's answers, byte for byte.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate, pairwise
from typing import Any, Literal, TypeVar

import msgspec

from turnlog.errors import CorruptLogError, JsonValueError
from turnlog.events import EventLike, SessionEvent
from turnlog.frozen import FrozenDict, freeze
from turnlog.lossless import SAFE_INTEGER, canonicalize, format_string, is_safe_integer

RowTag = Literal["text-chunks", "reasoning-chunks", "tool-call-chunks"]

ROW_TAGS = frozenset({"text-chunks", "reasoning-chunks", "tool-call-chunks"})
"""The record types of packed rows; without a slash, so that no event type can be one."""

MIN_RUN = 3
"""A shorter run is stored as plain events."""

_TAG_OF_DELTA: dict[str, RowTag] = {
    "text-delta": "text-chunks",
    "reasoning-delta": "reasoning-chunks",
    "tool-call-delta": "tool-call-chunks",
}
_DELTA_OF_TAG = {tag: delta for delta, tag in _TAG_OF_DELTA.items()}
_TEXT_KEY = {"text-delta": "text", "reasoning-delta": "text", "tool-call-delta": "argumentsDelta"}
_DELTA_KEYS = {"type", "seq", "time", "data"}
_INT, _STR = {int}, {str}

T = TypeVar("T")


def is_numeric(value: Any) -> bool:
    """Whether the value is a JSON number (a bool is none)."""
    return type(value) in (int, float)


class _Place(msgspec.Struct, frozen=True):
    """What all members of a run share."""

    delta: str
    turn: int | float
    step: int | float
    index: int | float
    id: str | None
    name: str | None


class _Member(msgspec.Struct, frozen=True):
    """One delta that may join a run."""

    place: _Place
    seq: int
    time: int
    text: str


class ChunkRow(msgspec.Struct, frozen=True):
    """A packed run: the deltas of one block, their texts apart, and the time between neighbours."""

    tag: RowTag
    seq: int
    time: int
    turn: int | float
    step: int | float
    index: int | float
    dt: list[int]
    texts: list[str]
    id: str | None = None
    name: str | None = None

    def __len__(self) -> int:
        return len(self.texts)

    def events(self) -> Iterator[SessionEvent]:
        """The `assistant/chunk` events that the row stands for, in order."""
        head, tail = self._frame()
        times = accumulate(self.dt, initial=self.time)
        for number, (text, time) in enumerate(zip(self.texts, times, strict=True)):
            data = head + format_string(text).encode() + tail
            yield SessionEvent("assistant/chunk", self.seq + number, time, data)

    def event(self, number: int) -> SessionEvent:
        """The member at an index."""
        head, tail = self._frame()
        data = head + format_string(self.texts[number]).encode() + tail
        return SessionEvent(
            "assistant/chunk", self.seq + number, self.time + sum(self.dt[:number]), data
        )

    def _frame(self) -> tuple[bytes, bytes]:
        """The canonical payload text around a member's own text."""
        delta = _DELTA_OF_TAG[self.tag]
        chunk: dict[str, Any] = {"type": delta, "index": self.index}
        if self.id is not None:
            chunk["id"] = self.id
        if self.name is not None:
            chunk["name"] = self.name
        chunk[_TEXT_KEY[delta]] = ""
        text, _ = canonicalize({"turn": self.turn, "step": self.step, "chunk": chunk})
        return text[: -len(b'""}}')], b"}}"

    def to_dict(self) -> dict[str, Any]:
        """The record as it is stored, keys in the stored order."""
        data: dict[str, Any] = {"turn": self.turn, "step": self.step, "index": self.index}
        if self.tag == "tool-call-chunks":
            data["dt"] = list(self.dt)
            data["id"] = self.id
            if self.name is not None:
                data["name"] = self.name
            data["args"] = list(self.texts)
        else:
            data["dt"] = list(self.dt)
            data["texts"] = list(self.texts)
        return {"type": self.tag, "seq0": self.seq, "time0": self.time, "data": data}

    def to_json(self) -> bytes:
        """The record as one line of canonical JSON, without a line feed."""
        return canonicalize(self.to_dict())[0]


def _row(run: list[_Member]) -> ChunkRow:
    first, place = run[0], run[0].place
    times = [member.time for member in run]
    return ChunkRow(
        _TAG_OF_DELTA[place.delta],
        first.seq,
        first.time,
        place.turn,
        place.step,
        place.index,
        [after - before for before, after in pairwise(times)],
        [member.text for member in run],
        place.id,
        place.name,
    )


def _group(items: Iterable[tuple[_Member | None, T]]) -> Iterator[T | ChunkRow]:
    """The items in order, each run of `MIN_RUN` members or more as a row."""
    run: list[_Member] = []
    originals: list[T] = []

    def settle() -> Iterator[T | ChunkRow]:
        if len(run) >= MIN_RUN:
            yield _row(run)
        else:
            yield from originals
        run.clear()
        originals.clear()

    for member, original in items:
        if run and not (member is not None and _continues(run[-1], member)):
            yield from settle()
        if member is None:
            yield original
        else:
            run.append(member)
            originals.append(original)
    if run:
        yield from settle()


def _continues(last: _Member, member: _Member) -> bool:
    return (
        member.seq == last.seq + 1
        and -SAFE_INTEGER <= member.time - last.time <= SAFE_INTEGER
        and member.place == last.place
    )


def _member(seq: Any, time: Any, data: Any) -> _Member | None:
    """The member that an eligible delta's plain parts make, else None."""
    if not (is_safe_integer(seq) and seq >= 0 and is_safe_integer(time)):
        return None
    if not isinstance(data, dict) or data.keys() != {"turn", "step", "chunk"}:
        return None
    chunk = data["chunk"]
    delta = chunk.get("type") if isinstance(chunk, dict) else None
    if not isinstance(delta, str) or delta not in _TEXT_KEY:
        return None
    text_key = _TEXT_KEY[delta]
    keys, text, index = chunk.keys() - {"name"}, chunk.get(text_key), chunk.get("index")
    tool = delta == "tool-call-delta"
    wanted = {"type", "index", text_key, "id"} if tool else {"type", "index", text_key}
    if keys != wanted or not isinstance(text, str) or ("name" in chunk and not tool):
        return None
    id_, name = chunk.get("id"), chunk.get("name", "")
    if tool and not (isinstance(id_, str) and isinstance(name, str)):
        return None
    turn, step = data["turn"], data["step"]
    if not (is_numeric(turn) and is_numeric(step) and is_numeric(index)):
        return None
    return _Member(_Place(delta, turn, step, index, id_, chunk.get("name")), seq, time, text)


class _Delta(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    type: Literal["text-delta", "reasoning-delta"]
    index: int
    text: str


class _ChunkData(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    turn: int
    step: int
    chunk: _Delta


_decode_delta = msgspec.json.Decoder(_ChunkData).decode


def _event_member(event: SessionEvent) -> _Member | None:
    if event.type != "assistant/chunk" or event.ignorable:
        return None
    if event.surface_op is not None or event.source_event_seqs is not None:
        return None
    if event.line is not None and event.to_dict().keys() != _DELTA_KEYS:
        return None  # a key that a member does not have, held in the line: `surfaceOp` of null, say
    try:
        parts = _decode_delta(event.data_json)
    except (ValueError, RecursionError):
        # A tool-call delta, another chunk, or text beyond msgspec: the general rule decides.
        return _member(event.seq, event.time, event.data)
    chunk = parts.chunk
    place = _Place(chunk.type, parts.turn, parts.step, chunk.index, None, None)
    return _Member(place, event.seq, event.time, chunk.text)


def pack_events(events: Iterable[SessionEvent]) -> Iterator[SessionEvent | ChunkRow]:
    """The records of one batch: rows where runs are long enough, the events themselves elsewhere."""
    return _group((_event_member(event), event) for event in events)


def pack_chunk_runs(events: Iterable[EventLike]) -> list[dict[str, Any]]:
    """The storage records of one batch of events or wire dicts, as plain dicts.

    Whatever is no eligible delta, of any shape, passes through verbatim.
    """

    def items() -> Iterator[tuple[_Member | None, dict[str, Any]]]:
        for event in events:
            wire = event.to_dict() if isinstance(event, SessionEvent) else event
            plain = canonicalize(dict(wire) if isinstance(wire, Mapping) else wire)[1]
            eligible = (
                isinstance(plain, dict)
                and plain.get("type") == "assistant/chunk"
                and plain.keys() == _DELTA_KEYS
            )
            yield (
                _member(plain["seq"], plain["time"], plain["data"]) if eligible else None,
                plain,
            )

    return [
        record.to_dict() if isinstance(record, ChunkRow) else record for record in _group(items())
    ]


def is_row(record: Any) -> bool:
    """Whether a plain record is tagged as a row; it need not be a sound one."""
    tag = record.get("type") if isinstance(record, dict) else None
    return isinstance(tag, str) and tag in ROW_TAGS


def parse_row(record: Any) -> ChunkRow:
    """The row that a plain record tagged as one spells; `CorruptLogError` when any part is malformed."""
    tag = record["type"]
    data = record.get("data")
    list_key = "args" if tag == "tool-call-chunks" else "texts"
    keys = {"turn", "step", "index", "dt", list_key}
    if tag == "tool-call-chunks":
        keys |= {"id"} | ({"name"} if isinstance(data, dict) and "name" in data else set())
    if (
        record.keys() != {"type", "seq0", "time0", "data"}
        or not isinstance(data, dict)
        or data.keys() != keys
    ):
        raise malformed(tag, "it has other keys than a row")
    texts, dt = data[list_key], data["dt"]
    if not isinstance(texts, list) or not texts or set(map(type, texts)) != _STR:
        raise malformed(tag, f"{list_key} must be a non-empty list of strings")
    if not isinstance(dt, list) or not set(map(type, dt)) <= _INT or len(dt) != len(texts) - 1:
        raise malformed(tag, "dt must hold one integer less than there are members")
    if not (is_numeric(data["turn"]) and is_numeric(data["step"]) and is_numeric(data["index"])):
        raise malformed(tag, "turn, step and index must be numbers")
    id_, name = data.get("id"), data.get("name")
    if tag == "tool-call-chunks" and not (
        isinstance(id_, str) and isinstance(data.get("name", ""), str)
    ):
        raise malformed(tag, "id and name must be strings")
    row = ChunkRow(
        tag,
        record["seq0"],
        record["time0"],
        data["turn"],
        data["step"],
        data["index"],
        dt,
        texts,
        id_,
        name,
    )
    check_numbers(row)
    return row


def check_numbers(row: ChunkRow) -> None:
    """Raise `CorruptLogError` unless every seq and every running time of the row is a safe integer."""
    if not is_safe_integer(row.seq) or row.seq < 0 or row.seq + len(row) - 1 > SAFE_INTEGER:
        raise malformed(row.tag, "a seq is no safe integer")
    if not is_safe_integer(row.time):
        raise malformed(row.tag, "time0 is no safe integer")
    for time in accumulate(row.dt, initial=row.time):
        if not -SAFE_INTEGER <= time <= SAFE_INTEGER:
            raise malformed(row.tag, "a time is no safe integer")
    if any(not -SAFE_INTEGER <= step <= SAFE_INTEGER for step in row.dt):
        raise malformed(row.tag, "a time difference is no safe integer")


def malformed(tag: str, what: str) -> CorruptLogError:
    """The error for a record that is tagged as a row and is none."""
    return CorruptLogError(f"malformed {tag} storage row: {what}", code="MALFORMED_ROW")


def decode_storage_record(record: Any) -> list[Any]:
    """The events of one storage record, in wire form as frozen dicts.

    A record with a row's tag must be a valid row, else `CorruptLogError`; any other JSON value is passed
    through as one event, whatever its shape, unvalidated.
    """
    try:
        _, plain = canonicalize(dict(record) if isinstance(record, Mapping) else record)
    except JsonValueError as error:
        raise CorruptLogError(f"bad storage record: {error.message}", code=error.code) from error
    if is_row(plain):
        return [FrozenDict(freeze(event.to_dict())) for event in parse_row(plain).events()]
    return [freeze(plain)]
