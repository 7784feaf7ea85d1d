"""Verify: every fault of a stored log, each with its place.

A strict load stops at the first fault; this goes on behind it. Faults of bytes, records, envelopes, payloads
and the surface are errors: the log does not load. Relational ones (turns, steps, calls) are warnings: it
loads, and was written by a program that did not check them.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from turnlog.engine.protocol import Salvage
from turnlog.errors import EventError, HeaderError, InvariantError, JsonValueError
from turnlog.events import SessionEvent, check_envelope, event_from_plain
from turnlog.header import FORMAT_VERSION, SessionHeader
from turnlog.invariants import Invariants
from turnlog.logstate import LogState
from turnlog.surface import ABSENT, SurfaceManager
from turnlog.vocabulary import EVENT_TYPES


class Finding(msgspec.Struct, frozen=True):
    """One fault: how grave, where (line 1 is the header), and what."""

    severity: Literal["error", "warning"]
    code: str
    line: int
    offset: int
    what: str
    seq: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """The finding as plain JSON values; `seq` only where there is one."""
        fields = msgspec.to_builtins(self)
        if self.seq is None:
            del fields["seq"]
        return fields  # type: ignore[no-any-return]


class _BySeq:
    """The checked events, for the surface's look at the target of a rewrite."""

    def __init__(self) -> None:
        self.events: dict[int, SessionEvent] = {}

    def __getitem__(self, seq: int) -> SessionEvent:
        return self.events[seq]


def verify_salvage(salvage: Salvage) -> list[Finding]:
    """The faults of a salvaged log, in file order."""
    findings = [
        Finding(
            "warning" if damage.harmless else "error",
            "DAMAGED",
            damage.line,
            damage.offset,
            damage.what,
            damage.seq,
        )
        for damage in salvage.damage
    ]
    findings.extend(_header_findings(salvage.header))
    checker = _Checker(findings)
    for record in salvage.records:
        checker.check(record.line, record.offset, record.wire)
    return sorted(findings, key=lambda finding: finding.line)


def _header_findings(header: dict[str, Any] | None) -> list[Finding]:
    if header is None:
        return [Finding("error", "INVALID_HEADER", 1, 0, "the file has no readable header line")]
    version = header.get("version")
    if isinstance(version, bool) or not isinstance(version, (int, float)):
        what = f"the header's version must be a number, not {version!r}"
        return [Finding("error", "INVALID_HEADER", 1, 0, what)]
    if version != FORMAT_VERSION:
        what = f"the log is of format version {version!r}; this program reads {FORMAT_VERSION}"
        return [Finding("error", "UNSUPPORTED_FORMAT", 1, 0, what)]
    if "delegationDepth" not in header:
        return [Finding("error", "INVALID_HEADER", 1, 0, "the header lacks delegationDepth")]
    try:
        SessionHeader.from_dict(header)
    except (HeaderError, JsonValueError) as error:
        return [Finding("error", error.code, 1, 0, error.message)]
    return []


class _Checker:
    def __init__(self, findings: list[Finding]) -> None:
        self._findings = findings
        self._log = _BySeq()
        self._surface = SurfaceManager(self._log)  # type: ignore[arg-type]
        self._state = LogState()
        self._relations = Invariants()

    def check(self, line: int, offset: int, wire: dict[str, Any]) -> None:
        seq = wire.get("seq")
        try:
            check_envelope(wire)
            self._check_event(wire)
        except (EventError, JsonValueError) as error:
            self._findings.append(Finding("error", error.code, line, offset, error.message, seq))
            return
        event = self._log.events[wire["seq"]]
        try:
            self._relations.check(event, wire["data"], self._state)
        except InvariantError as error:
            self._findings.append(Finding("warning", error.code, line, offset, error.message, seq))
        if isinstance(wire["data"], dict):
            self._relations.commit(event, wire["data"])
        self._state.note(event.type, event.seq, wire["data"])

    def _check_event(self, wire: dict[str, Any]) -> None:
        type_, data = wire["type"], wire["data"]
        EVENT_TYPES.check_payload(type_, data)
        EVENT_TYPES.require_known(type_, "ignorable" in wire)
        # Gaps are salvage's to report: here each event is judged as if the log went on at its seq.
        self._surface.skip_to(wire["seq"])
        op, sources = wire.get("surfaceOp", ABSENT), wire.get("sourceEventSeqs", ABSENT)
        self._surface.add(wire["seq"], type_, data, op, sources)
        self._log.events[wire["seq"]] = event_from_plain(wire)
