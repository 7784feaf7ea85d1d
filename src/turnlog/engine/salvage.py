"""Salvage: read what is sound of a damaged text, and say what is not.

Line by line, so that damage costs the damaged line only. A line that is no record is tried again without
leading NULs, and from each place where a record seems to start, because a failed write and its retry can end
up on one line, as can two records whose line feed was lost. Old shapes are read as `load` reads them, and
what is without seq and time gets them from its place. Nothing is validated beyond being JSON.
"""

from __future__ import annotations

import json
from typing import Any

from turnlog.codec.chunk_rows import is_row, parse_row
from turnlog.codec.upgrade import upgrade_v0_shapes
from turnlog.engine.protocol import Damage, Salvage, SalvagedRecord
from turnlog.errors import CorruptLogError, EventError, JsonValueError
from turnlog.events import check_envelope
from turnlog.lossless import canonicalize, is_safe_integer, parse_json

BOM = b"\xef\xbb\xbf"
_RECORD_START = '{"type":'
_PLACES = frozenset({"seq", "seq0"})
_scan = json.JSONDecoder().raw_decode


class Salvager:
    """Takes the lines of a log in order; `result` is what came of them."""

    def __init__(self) -> None:
        self.header: dict[str, Any] | None = None
        self.records: list[SalvagedRecord] = []
        self.damage: list[Damage] = []
        self._line = 0
        self._offset = 0
        self._due = 0
        self._time = 0
        self._messages: dict[int, Any] = {}

    def feed(self, text: bytes) -> None:
        """Read a whole text; that its last line has no line feed is damage, and the line is read all the same."""
        *lines, rest = text.split(b"\n")
        for line in lines:
            self._line += 1
            self._read_line(line)
            self._offset += len(line) + 1
        if rest:
            self._line += 1
            self.note("the last line has no line feed")
            self._read_line(rest)

    def note(self, what: str, seq: int | None = None, *, harmless: bool = False) -> None:
        """Report damage at the present place."""
        self.damage.append(Damage(self._line, self._offset, what, seq, harmless))

    def result(self) -> Salvage:
        """What was read so far."""
        return Salvage(self.header, self.records, self.damage)

    def _read_line(self, line: bytes) -> None:
        if self._line == 1 and line.startswith(BOM):
            line = line[len(BOM) :]
            self.note("a byte order mark stands before the header", harmless=True)
        stripped = line.strip(b" \t\r")
        if not stripped:
            self.note("a blank line")
            return
        text = stripped.lstrip(b"\0")
        if len(text) != len(stripped):
            self.note(f"{len(stripped) - len(text)} NUL bytes")
            if not text:
                return
        for value in self._values(text):
            self._take(value)

    def _values(self, text: bytes) -> list[Any]:
        """The JSON values on a line: one, or what can be made out of a damaged one."""
        try:
            return [parse_json(text)]
        except JsonValueError as error:
            self.note(error.message)
            if error.code != "BAD_JSON":
                return _lenient(text)
        return _records_within(text)

    def _take(self, value: Any) -> None:
        if not isinstance(value, dict):
            self.note("the line is no record")
        elif value.get("type") == "session" and self._line == 1:
            self.header = value
        elif is_row(value):
            self._take_row(value)
        else:
            self._take_event(value)

    def _take_row(self, record: dict[str, Any]) -> None:
        if "seq0" not in record and "time0" not in record and "seq" not in record:
            self.note("seq0 and time0 missing, taken from the place in the file", self._due)
            record = {**record, "seq0": self._due, "time0": self._time}
        try:
            events = [event.to_dict() for event in parse_row(record).events()]
        except CorruptLogError as error:
            self.note(error.message, _seq(record, "seq0"))
            return
        for wire in events:
            self._take_event(wire)

    def _take_event(self, wire: dict[str, Any]) -> None:
        if not isinstance(wire.get("type"), str) or "data" not in wire:
            self.note("the line is no event")
            return
        missing = [key for key in ("seq", "time") if not is_safe_integer(wire.get(key))]
        if missing:
            self.note(
                f"{' and '.join(missing)} missing, taken from the place in the file", self._due
            )
            wire = {**wire, "seq": wire["seq"] if "seq" not in missing else self._due}
            wire["time"] = wire["time"] if "time" not in missing else self._time
        if wire["seq"] != self._due:
            self.note(f"seq {wire['seq']} where {self._due} is due", wire["seq"])
        try:
            check_envelope(wire)
            wire = upgrade_v0_shapes(wire, self._session_id(), self._messages.get)
        except EventError as error:
            self.note(error.message, wire["seq"])
        self._due, self._time = wire["seq"] + 1, wire["time"]
        data = wire["data"]
        if wire["type"] == "tool/result" and isinstance(data, dict):
            self._messages[wire["seq"]] = data.get("message")
        self.records.append(SalvagedRecord(self._line, self._offset, wire))

    def _session_id(self) -> str:
        return str((self.header or {}).get("id", ""))


def _records_within(text: bytes) -> list[Any]:
    """The whole records on a line that is none: behind a torn one, in front of one, or glued to each other.

    A record's own blocks start as records do; only what has a record's keys counts. A start whose record is torn
    costs a scan to the end of the line, and no more of these lie within each other than blocks are nested.
    """
    line = text.decode("utf-8", "surrogateescape")
    found = []
    at = 0
    while at >= 0:
        try:
            _, end = _scan(line, at)
            value = parse_json(line[at:end].encode("utf-8", "surrogateescape"))
        except (ValueError, RecursionError, JsonValueError):
            end = at + 1
        else:
            if _is_record(value):
                found.append(value)
        at = line.find(_RECORD_START, end)
    return found


def _is_record(value: Any) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("type"), str):
        return False
    return value["type"] == "session" or ("data" in value and not _PLACES.isdisjoint(value))


def _seq(record: dict[str, Any], key: str) -> int | None:
    value = record.get(key)
    return value if is_safe_integer(value) else None


def _lenient(text: bytes) -> list[Any]:
    """A value whose only fault is a doubled key or a number that does not fit: what most readers see."""
    try:
        value = json.loads(text)
        canonicalize(value)
    except (ValueError, RecursionError, JsonValueError):
        return []
    return [value]
