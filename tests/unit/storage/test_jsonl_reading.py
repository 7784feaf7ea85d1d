"""Strict reading of a JSONL log: every check of the loader, each by an input that only it refuses.

`ok` logs end in a finished turn, so what stands in front of it lies in a committed region; `tail` inputs stand
behind the last turn, where a physical fault is a torn tail (storage.md, 5.5).
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from turnlog.codec.frames import compress_frame
from turnlog.engine.protocol import StoredLog
from turnlog.engine.verify import verify_salvage
from turnlog.errors import (
    CorruptLogError,
    StorageError,
    TurnlogError,
    UnsupportedFormatError,
)
from turnlog.storage.jsonl import JsonlStorage
from turnlog.testing.builders import EventBuilder, log_frames, log_text, place_log, talk_events
from turnlog.vocabulary import EVENT_TYPES

HEADER = b'{"type":"session","version":0,"id":"s1","createdAt":1700000000000,"delegationDepth":0}\n'
END = b'{"type":"turn/end","seq":%d,"time":1,"data":{"turn":1,"reason":{"kind":"completed"}}}\n'


def line(type_: str, seq: int, data: Any = None, **keys: Any) -> bytes:
    wire = {"type": type_, "seq": seq, "time": 1, "data": data, **keys}
    return json.dumps(wire, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


START = line("turn/start", 0, {"turn": 1})
USER = {"id": "m", "role": "user", "content": [], "source": {"kind": "user"}}
RESULT = {
    "turn": 1,
    "step": 1,
    "message": {
        "id": "r",
        "role": "user",
        "source": {"kind": "tool", "callId": "c"},
        "content": [{"type": "tool-result", "toolCallId": "c", "content": []}],
    },
}


def read(root: Path, data: bytes, **keys: Any) -> StoredLog:
    place_log(root, data, **keys)
    return JsonlStorage(root).inspect("s1", close_turn=False)


def committed(middle: bytes) -> bytes:
    """A log with the line between a turn's start and its end; the end goes on at seq 2."""
    return HEADER + START + middle + END % 2


# -- physical faults: lines that are no records --------------------------------------------------------

PHYSICAL: dict[str, tuple[bytes, str]] = {
    "no json": (b"{oops\n", "bad JSON"),
    "blank": (b"\n", "bad JSON"),
    "spaces": (b"   \n", "bad JSON"),
    "carriage return alone": (b"\r\n", "bad JSON"),
    "nul bytes": (b"\0" * 512 + b"\n", "bad JSON"),
    "nul bytes before a record": (b"\0" * 300 + line("plan/mode", 1, {}), "bad JSON"),
    "null": (b"null\n", "no record"),
    "a number": (b"1\n", "no record"),
    "a string": (b'"x"\n', "no record"),
    "a list": (b"[]\n", "no record"),
    "two records glued": (line("plan/mode", 1).rstrip() + line("plan/mode", 2), "bad JSON"),
    "torn and retried": (line("plan/mode", 1)[:20] + line("plan/mode", 1), "bad JSON"),
    "trailing text": (line("plan/mode", 1).rstrip() + b" x\n", "bad JSON"),
    "doubled key": (b'{"type":"plan/mode","seq":1,"time":1,"data":{"a":1,"a":1}}\n', "key"),
    "doubled envelope key": (b'{"type":"plan/mode","seq":1,"seq":1,"time":1,"data":1}\n', "key"),
    "escaped doubled key": (
        b'{"type":"plan/mode","seq":1,"time":1,"data":{"a":1,"\\u0061":1}}\n',
        "key",
    ),
    "negative zero": (b'{"type":"plan/mode","seq":1,"time":1,"data":-0}\n', "-0"),
    "negative zero float": (b'{"type":"plan/mode","seq":1,"time":1,"data":[-0.0]}\n', "-0"),
    "beyond a double": (b'{"type":"plan/mode","seq":1,"time":1,"data":1e999}\n', "double"),
    "inexact integer": (
        b'{"type":"plan/mode","seq":1,"time":1,"data":9007199254740993}\n',
        "double",
    ),
    "nan": (b'{"type":"plan/mode","seq":1,"time":1,"data":NaN}\n', "bad JSON"),
    "infinity": (b'{"type":"plan/mode","seq":1,"time":1,"data":Infinity}\n', "bad JSON"),
    "invalid utf-8": (b'{"type":"plan/mode","seq":1,"time":1,"data":"\xff"}\n', "UTF-8"),
    "utf-8 cut in two": (b'{"type":"plan/mode","seq":1,"time":1,"data":"\xf0\x9f\x98"}\n', "UTF-8"),
    "surrogate in utf-8": (
        b'{"type":"plan/mode","seq":1,"time":1,"data":"\xed\xa0\x80"}\n',
        "UTF-8",
    ),
    "overlong utf-8": (b'{"type":"plan/mode","seq":1,"time":1,"data":"\xc0\xaf"}\n', "UTF-8"),
    "utf-16": ('{"type":"plan/mode"}'.encode("utf-16-le") + b"\n", "bad JSON"),
    "raw control": (b'{"type":"plan/mode","seq":1,"time":1,"data":"a\tb"}\n', "bad JSON"),
    "byte order mark": (b"\xef\xbb\xbf" + line("plan/mode", 1), "bad JSON"),
    "gap": (line("plan/mode", 2), "seq 1 is due, not 2"),
    "seq again": (line("plan/mode", 0), "seq 1 is due, not 0"),
    "no seq": (b'{"type":"plan/mode","time":1,"data":1}\n', "seq 1 is due, not None"),
    "seq as text": (line("plan/mode", 1).replace(b":1,", b':"1",', 1), "seq 1 is due"),
    "seq true": (line("plan/mode", 1).replace(b":1,", b":true,", 1), "seq 1 is due"),
    "row without seq0": (
        b'{"type":"text-chunks","seq":1,"time0":1,"data":{"turn":1,"step":1,"index":0,"dt":[],"texts":["a"]}}\n',
        "malformed text-chunks",
    ),
    "row with a gap": (
        b'{"type":"text-chunks","seq0":2,"time0":1,"data":{"turn":1,"step":1,"index":0,"dt":[],"texts":["a"]}}\n',
        "seq 1 is due, not 2",
    ),
    "row of nothing": (
        b'{"type":"text-chunks","seq0":1,"time0":1,"data":{"turn":1,"step":1,"index":0,"dt":[],"texts":[]}}\n',
        "malformed text-chunks",
    ),
    "row with a dt too many": (
        b'{"type":"text-chunks","seq0":1,"time0":1,"data":{"turn":1,"step":1,"index":0,"dt":[1],"texts":["a"]}}\n',
        "malformed text-chunks",
    ),
    "tool row without args": (
        b'{"type":"tool-call-chunks","seq0":1,"time0":1,"data":{"turn":1,"step":1,"index":0,"dt":[],"id":"c"}}\n',
        "malformed tool-call-chunks",
    ),
    "header again": (HEADER, "seq 1 is due, not None"),
}


@pytest.mark.parametrize("name", PHYSICAL)
def test_a_physical_fault_in_a_committed_region_refuses_the_log(name: str, tmp_path: Path) -> None:
    bad, what = PHYSICAL[name]
    with pytest.raises(CorruptLogError, match=what) as caught:
        read(tmp_path, committed(bad))
    error = caught.value
    assert (error.code, error.line, error.offset) == ("CORRUPT_LOG", 3, len(HEADER + START))
    assert error.session_id == "s1"
    assert str(tmp_path) in str(error.path)


@pytest.mark.parametrize("name", PHYSICAL)
def test_a_physical_fault_behind_the_last_turn_is_a_torn_tail(name: str, tmp_path: Path) -> None:
    bad, _ = PHYSICAL[name]
    good = HEADER + START + END % 1
    bad = bad.replace(b'"seq":1', b'"seq":2').replace(b'"seq0":1', b'"seq0":2')
    if "gap" in name or "glued" in name:
        bad = bad.replace(b'":2', b'":4')
    if name == "seq again":
        bad = line("plan/mode", 1)
    rest = bad + line("feedback/record", 9, {"text": "sound, but behind the fault"})
    stored = read(tmp_path, good + rest)
    assert len(stored.log) == 2
    assert stored.torn is not None
    assert (stored.torn.truncate_to, stored.torn.cut_bytes) == (len(good), len(rest))
    assert stored.torn.recovered == 0


@pytest.mark.parametrize("name", PHYSICAL)
def test_a_physical_fault_in_a_complete_frame_refuses_the_log(name: str, tmp_path: Path) -> None:
    bad, _ = PHYSICAL[name]
    for rest in (b"", END % 2):
        frames = [HEADER, START, bad, *([rest] if rest else [])]
        data = b"".join(map(compress_frame, frames))
        with pytest.raises(CorruptLogError) as caught:
            read(tmp_path, data, encoding="zstd")
        assert caught.value.code in ("CORRUPT_LOG", "TORN_IN_FRAME")
        assert caught.value.line == 3
        assert caught.value.offset == len(HEADER + START)


# -- logical faults: records that break a rule ---------------------------------------------------------

LOGICAL: dict[str, tuple[bytes, str]] = {
    "unknown required type": (line("future/kind", 1), "UNKNOWN_EVENT_TYPE"),
    "type no string": (line("x", 1).replace(b'"x"', b"[]"), "INVALID_ENVELOPE"),
    "type an object": (line("x", 1).replace(b'"x"', b"{}"), "INVALID_ENVELOPE"),
    "no type": (line("x", 1).replace(b'"type":"x",', b""), "INVALID_ENVELOPE"),
    "no data": (b'{"type":"plan/mode","seq":1,"time":1}\n', "INVALID_ENVELOPE"),
    "no time": (b'{"type":"plan/mode","seq":1,"data":1}\n', "INVALID_ENVELOPE"),
    "time no integer": (line("plan/mode", 1, time=1.5), "INVALID_ENVELOPE"),
    "time no safe integer": (line("plan/mode", 1, time=2**53), "INVALID_ENVELOPE"),
    "extra key": (line("plan/mode", 1, extra=1), "INVALID_ENVELOPE"),
    "ignorable false": (line("plan/mode", 1, ignorable=False), "INVALID_ENVELOPE"),
    "ignorable null": (line("plan/mode", 1, ignorable=None), "INVALID_ENVELOPE"),
    "retired delta": (line("request/header-delta", 1, {}), "RETIRED_EVENT"),
    "retired mode": (line("mode/set", 1, {}), "RETIRED_EVENT"),
    "retired though ignorable": (line("mode/set", 1, {}, ignorable=True), "RETIRED_EVENT"),
    "op on a plain event": (line("plan/mode", 1, surfaceOp="append"), "NOT_ELIGIBLE_OP"),
    "null op on a plain event": (line("plan/mode", 1, surfaceOp=None), "NOT_ELIGIBLE_OP"),
    "sources on a plain event": (line("plan/mode", 1, sourceEventSeqs=[0]), "NOT_ELIGIBLE_SOURCES"),
    "no op": (line("user/message", 1, USER), "OP_MISSING"),
    "null op": (line("user/message", 1, USER, surfaceOp=None), "OP_INVALID"),
    "op prepend": (line("user/message", 1, USER, surfaceOp="prepend"), "OP_INVALID"),
    "replace of what is not there": (
        line("user/message", 1, USER, surfaceOp={"op": "replace", "start": 0, "end": 0}),
        "START_NOT_FOUND",
    ),
    "replace of a later version": (
        line("user/message", 1, USER, surfaceOp={"op": "replace", "startSeq": 0, "endSeq": 0}),
        "OP_INVALID_REPLACE",
    ),
    "sources empty": (
        line("user/message", 1, USER, sourceEventSeqs=[], surfaceOp="append"),
        "SOURCES_EMPTY",
    ),
    "sources later": (
        line("user/message", 1, USER, sourceEventSeqs=[1], surfaceOp="append"),
        "SOURCES_NOT_EARLIER",
    ),
    "sources null": (
        line("user/message", 1, USER, sourceEventSeqs=None, surfaceOp="append"),
        "SOURCES_NOT_LIST",
    ),
    "sources bool": (
        line("user/message", 1, USER, sourceEventSeqs=[False], surfaceOp="append"),
        "SOURCES_INVALID",
    ),
    "user without id": (
        line("user/message", 1, {**USER, "id": ""}, surfaceOp="append"),
        "INVALID_MESSAGE",
    ),
    "user as assistant": (
        line("user/message", 1, {**USER, "role": "assistant"}, surfaceOp="append"),
        "INVALID_MESSAGE",
    ),
    "result of an empty call": (
        line(
            "tool/result",
            1,
            json.loads(json.dumps(RESULT).replace('"c"', '""')),
            surfaceOp="append",
        ),
        "INVALID_MESSAGE",
    ),
    "result without message": (
        line("tool/result", 1, {"turn": 1, "step": 1, "message": {}}, surfaceOp="append"),
        "INVALID_MESSAGE",
    ),
    "assistant without message": (
        line("assistant/message", 1, {"turn": 1, "step": 1}, surfaceOp="append"),
        "INVALID_MESSAGE",
    ),
    "header of a request without model": (
        line("request/header", 1, {"header": {"config": {"provider": "p"}}, "reason": "initial"}),
        "INVALID_REQUEST_HEADER",
    ),
    "old trigger": (
        line("turn/start", 1, {"turn": 1, "trigger": 5}),
        "MALFORMED_OLD_EVENT",
    ),
    "old steering": (line("steering/message", 1, {}, surfaceOp="append"), "MALFORMED_OLD_EVENT"),
}


@pytest.mark.parametrize("name", LOGICAL)
@pytest.mark.parametrize("where", ["committed", "tail"])
@pytest.mark.parametrize("encoding", ["none", "zstd"])
def test_a_broken_rule_refuses_the_log_anywhere(
    name: str, where: str, encoding: Any, tmp_path: Path
) -> None:
    bad, code = LOGICAL[name]
    rest = END % 2 if where == "committed" else b""
    lines = [HEADER, START, bad, rest]
    data = (
        b"".join(map(compress_frame, filter(None, lines)))
        if encoding == "zstd"
        else b"".join(lines)
    )
    kind = UnsupportedFormatError if code == "UNKNOWN_EVENT_TYPE" else CorruptLogError
    with pytest.raises(kind) as caught:
        read(tmp_path, data, encoding=encoding)
    details = caught.value.details
    assert (caught.value.code, details["line"], details["offset"]) == (code, 3, len(HEADER + START))
    assert "line 3" in str(caught.value)


def test_a_retired_reason_of_a_request_header_refuses_the_log(tmp_path: Path) -> None:
    data = {"header": {"config": {"provider": "p", "model": "m"}}, "reason": "fallback"}
    with pytest.raises(CorruptLogError) as caught:
        read(tmp_path, committed(line("request/header", 1, data)))
    assert caught.value.code in ("RETIRED_EVENT", "INVALID_REQUEST_HEADER")


def test_the_refusal_of_an_unknown_type_says_how_to_register_it(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedFormatError, match=r"future/kind.*register_event_type"):
        read(tmp_path, committed(line("future/kind", 1)))


def test_a_registered_type_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EVENT_TYPES, "_own", dict(EVENT_TYPES._own))
    EVENT_TYPES.register("mine/note", payload=dict[str, int])
    assert len(read(tmp_path, committed(line("mine/note", 1, {"n": 1}))).log) == 3
    with pytest.raises(CorruptLogError) as caught:
        read(tmp_path, committed(line("mine/note", 1, {"n": "x"})))
    assert caught.value.code == "INVALID_PAYLOAD"


# -- what is fine though it looks odd ------------------------------------------------------------------

FINE: dict[str, bytes] = {
    "ignorable unknown": line("future/kind", 1, None, ignorable=True),
    "ignorable unknown, any data": line("future/kind", 1, [1, {"a": "b"}], ignorable=True),
    "known and ignorable": line("plan/mode", 1, {"active": True}, ignorable=True),
    "null data": line("hook/result", 1, None),
    "line separators": line("feedback/record", 1, {"text": "a\u2028b\u2029c\u0085d\x7f"}),
    "escaped lone surrogate": b'{"type":"feedback/record","seq":1,"time":1,"data":"\\ud800"}\n',
    "spaces": b'{"type": "plan/mode", "seq": 1, "time": 1, "data": {"a": 1} }\n',
    "carriage return": line("plan/mode", 1).rstrip() + b"\r\n",
    "other key order": b'{"data":1,"time":1,"seq":1,"type":"plan/mode"}\n',
    "integral float": b'{"type":"plan/mode","seq":1.0,"time":1e0,"data":[1.0,1E2]}\n',
    "escapes nobody writes": b'{"type":"plan\\/mode","seq":1,"time":1,"data":"\\u0061\\/"}\n',
    "negative time": line("plan/mode", 1, time=-5),
    "row of one": (
        b'{"type":"text-chunks","seq0":1,"time0":1,"data":{"turn":1,"step":1,"index":0,"dt":[],"texts":["a"]}}\n'
    ),
    "deep": b'{"type":"hook/result","seq":1,"time":1,"data":'
    + b"[" * 5_000
    + b"]" * 5_000
    + b"}\n",
    "double turn start": line("turn/start", 1, {"turn": 1}),
    "turn start of nothing": line("turn/start", 1, None),
    "repair's key order": (
        b'{"type":"user/message","seq":1,"time":1,"data":{"id":"m","role":"user","content":[],'
        b'"source":{"kind":"user"}},"surfaceOp":"append","sourceEventSeqs":[0]}\n'
    ),
}


@pytest.mark.parametrize("name", FINE)
@pytest.mark.parametrize("encoding", ["none", "zstd"])
def test_odd_lines_that_break_no_rule_are_read(name: str, encoding: Any, tmp_path: Path) -> None:
    lines = [HEADER, START, FINE[name], END % 2]
    data = b"".join(map(compress_frame, lines)) if encoding == "zstd" else b"".join(lines)
    stored = read(tmp_path, data, encoding=encoding)
    assert len(stored.log) == 3
    assert stored.torn is None
    assert [event.seq for event in stored.log.view()] == [0, 1, 2]


def test_case_25_a_mark_crlf_and_no_final_line_feed(tmp_path: Path) -> None:
    """Blank lines are damage in a committed region, a torn tail elsewhere; the last line is always torn."""
    crlf = b"\xef\xbb\xbf" + HEADER.replace(b"\n", b"\r\n") + START.replace(b"\n", b"\r\n")
    path = place_log(tmp_path, crlf + line("plan/mode", 1, {}) + END.rstrip() % 2)
    storage = JsonlStorage(tmp_path)
    assert len(storage.load("s1", close_turn=False).log) == 2
    assert path.read_bytes() == crlf + line("plan/mode", 1, {})
    path.write_bytes(crlf + b"\r\n" + line("plan/mode", 1, {}) + b"   \n" + END % 2)
    storage = JsonlStorage(tmp_path)
    with pytest.raises(CorruptLogError, match="line 3"):
        storage.inspect("s1")
    salvage = storage.salvage("s1")
    assert [record.line for record in salvage.records] == [2, 4, 6]
    assert [(damage.line, damage.harmless) for damage in salvage.damage] == [
        (1, True),
        (3, False),
        (5, False),
    ]


# -- headers -------------------------------------------------------------------------------------------


def header(**changes: Any) -> bytes:
    wire = {**json.loads(HEADER), **changes}
    present = {key: value for key, value in wire.items() if value != "absent"}
    return json.dumps(present, separators=(",", ":")).encode() + b"\n"


BAD_HEADERS: dict[str, tuple[bytes, str]] = {
    "empty file": (b"", "CORRUPT_HEADER"),
    "no line feed": (HEADER.rstrip(), "CORRUPT_HEADER"),
    "blank first line": (b"\n" + HEADER, "CORRUPT_HEADER"),
    "null": (b"null\n", "CORRUPT_HEADER"),
    "nul bytes": (b"\0" * 4096, "CORRUPT_HEADER"),
    "nul bytes and a line feed": (b"\0" * 4096 + b"\n", "CORRUPT_HEADER"),
    "an event": (START, "CORRUPT_HEADER"),
    "type absent": (header(type="absent"), "CORRUPT_HEADER"),
    "only its type": (b'{"type":"session"}\n', "CORRUPT_HEADER"),
    "id absent": (header(id="absent"), "INVALID_HEADER"),
    "id empty": (header(id=""), "INVALID_HEADER"),
    "id no string": (header(id=5), "INVALID_HEADER"),
    "createdAt as text": (header(createdAt="270"), "INVALID_HEADER"),
    "createdAt negative": (header(createdAt=-1), "INVALID_HEADER"),
    "createdAt a fraction": (header(createdAt=1.5), "INVALID_HEADER"),
    "createdAt negative zero": (HEADER.replace(b"1700000000000", b"-0"), "CORRUPT_HEADER"),
    "createdAt true": (header(createdAt=True), "INVALID_HEADER"),
    "delegationDepth absent": (header(delegationDepth="absent"), "CORRUPT_HEADER"),
    "delegationDepth negative": (header(delegationDepth=-1), "INVALID_HEADER"),
    "delegationDepth null": (header(delegationDepth=None), "INVALID_HEADER"),
    "cwd relative": (header(cwd="w"), "INVALID_HEADER"),
    "cwd null": (header(cwd=None), "INVALID_HEADER"),
    "seedLength text": (header(seedLength="1"), "INVALID_HEADER"),
    "origin other": (header(origin="user"), "INVALID_HEADER"),
    "agentPreset number": (header(agentPreset=1), "INVALID_HEADER"),
    "retired sandboxMode": (header(sandboxMode="x"), "INVALID_HEADER"),
    "retired approvalPolicy": (header(approvalPolicy=None), "INVALID_HEADER"),
    "version as text": (header(version="1"), "INVALID_HEADER"),
    "version null": (header(version=None), "INVALID_HEADER"),
    "version true": (header(version=True), "INVALID_HEADER"),
    "version absent": (header(version="absent"), "CORRUPT_HEADER"),
    "doubled key": (HEADER.replace(b"{", b'{"version":0,', 1), "CORRUPT_HEADER"),
}


@pytest.mark.parametrize("name", BAD_HEADERS)
def test_a_bad_header_refuses_the_log_and_is_listed_as_damage(name: str, tmp_path: Path) -> None:
    bad, code = BAD_HEADERS[name]
    place_log(tmp_path, bad + (START + END % 1 if bad.endswith(b"\n") else b""))
    storage = JsonlStorage(tmp_path)
    for use in (storage.inspect, storage.load, storage.read_raw):
        with pytest.raises(CorruptLogError) as caught:
            use("s1")
        assert caught.value.code == code
        assert str(tmp_path) in str(caught.value)
    (entry,) = storage.list()
    assert entry.header is None
    assert entry.code == code
    assert entry.damage
    assert any(finding.severity == "error" for finding in verify_salvage(storage.salvage("s1")))


OTHER_VERSIONS: dict[str, tuple[bytes, str]] = {
    "newer": (header(version=99), "NEWER_FORMAT"),
    "newer of another shape": (b'{"version":2,"id":5,"kind":"x"}\n', "NEWER_FORMAT"),
    "newer with retired fields": (header(version=3, sandboxMode="x"), "NEWER_FORMAT"),
    "one of today's shape": (header(version=1), "NEWER_FORMAT"),
    "one of June 2026": (
        b'{"type":"session","version":1,"id":"s1","createdAt":0}\n',
        "OLDER_FORMAT",
    ),
    "below zero": (header(version=-1), "OLDER_FORMAT"),
    "a fraction": (header(version=0.5), "NEWER_FORMAT"),
}


@pytest.mark.parametrize("name", OTHER_VERSIONS)
@pytest.mark.parametrize("encoding", ["none", "zstd"])
def test_another_version_is_refused_by_name_and_left_alone(
    name: str, encoding: Any, tmp_path: Path
) -> None:
    """Case 32: four outcomes (absent, damaged, unsupported, sound), and the file is not touched."""
    bad, code = OTHER_VERSIONS[name]
    rest = line("x", 0, {}, x=1)
    data = compress_frame(bad) + compress_frame(rest) if encoding == "zstd" else bad + rest
    path = place_log(tmp_path, data, encoding=encoding)
    storage = JsonlStorage(tmp_path)
    for use in (storage.inspect, storage.load):
        with pytest.raises(UnsupportedFormatError, match="version") as caught:
            use("s1")
        assert caught.value.code == code
        assert str(path) in str(caught.value)
    assert [entry.code for entry in storage.list()] == [code]
    with pytest.raises(StorageError):
        storage.append(read(tmp_path / "other", HEADER + START).header, talk_events())
    assert path.read_bytes() == data
    assert len(storage.salvage("s1").records) == 1


def test_unknown_header_keys_are_kept(tmp_path: Path) -> None:
    stored = read(tmp_path, header(theirs=[1], another="x") + START)
    assert stored.header.to_dict()["theirs"] == [1]
    assert list(stored.header.to_dict())[-2:] == ["theirs", "another"]


def test_a_header_frame_must_hold_exactly_the_header_line(tmp_path: Path) -> None:
    for first in (HEADER + START, HEADER.rstrip(), b""):
        with pytest.raises(CorruptLogError):
            read(tmp_path, compress_frame(first) + compress_frame(START), encoding="zstd")
        (entry,) = JsonlStorage(tmp_path).list()
        assert entry.code == "CORRUPT_HEADER"


def test_frames_may_cut_lines_anywhere(tmp_path: Path) -> None:
    """The reference joins the text of the frames; only the end of the last complete one must end a line."""
    text = START + FINE["line separators"] + END % 2
    for cut in range(1, len(text)):
        data = b"".join(map(compress_frame, (HEADER, text[:cut], text[cut:])))
        assert len(read(tmp_path, data, encoding="zstd").log) == 3
    data = b"".join(map(compress_frame, (HEADER, text[:-1])))
    with pytest.raises(CorruptLogError) as caught:
        read(tmp_path, data, encoding="zstd")
    assert caught.value.code == "TORN_IN_FRAME"


def test_the_file_says_how_it_is_encoded_not_its_name(tmp_path: Path) -> None:
    assert len(read(tmp_path, HEADER + START, encoding="zstd").log) == 1
    root = tmp_path / "other"
    assert len(read(root, compress_frame(HEADER) + compress_frame(START)).log) == 1


# -- the file itself -----------------------------------------------------------------------------------


def unreadable(root: Path) -> None:
    storage = JsonlStorage(root)
    uses: list[Callable[[str], Any]] = [
        storage.inspect,
        storage.load,
        storage.salvage,
        storage.read_raw,
    ]
    for use in uses:
        with pytest.raises(StorageError) as caught:
            use("s1")
        assert caught.value.code == "UNREADABLE"
        assert caught.value.session_id == "s1"
    assert [entry.code for entry in storage.list()] == ["UNREADABLE"]


def test_a_directory_in_place_of_the_file(tmp_path: Path) -> None:
    path = place_log(tmp_path, b"")
    path.unlink()
    path.mkdir()
    unreadable(tmp_path)


@pytest.mark.parametrize("target", ["session.jsonl", "nowhere"])
def test_a_link_that_leads_nowhere(target: str, tmp_path: Path) -> None:
    path = place_log(tmp_path, b"")
    path.unlink()
    path.symlink_to(target)
    unreadable(tmp_path)
    with pytest.raises(StorageError):
        JsonlStorage(tmp_path).revision("s1")


def test_a_file_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place_log(tmp_path, HEADER + START).chmod(0)
    if os.geteuid() == 0:
        real = os.open

        def refuse(path: Any, *args: Any, **keys: Any) -> int:
            if Path(path).name == "session.jsonl":
                raise PermissionError(13, "Permission denied", str(path))
            return real(path, *args, **keys)

        monkeypatch.setattr(os, "open", refuse)
    unreadable(tmp_path)


def test_a_linked_log_is_read(tmp_path: Path) -> None:
    real = tmp_path / "elsewhere"
    real.write_bytes(HEADER + START)
    path = place_log(tmp_path / "root", b"")
    path.unlink()
    path.symlink_to(real)
    assert len(JsonlStorage(tmp_path / "root").inspect("s1", close_turn=False).log) == 1


@pytest.mark.parametrize("where", ["payload", "first line", "no line feed"])
def test_a_line_of_fifty_megabytes(where: str, tmp_path: Path) -> None:
    size = 50_000_000
    if where == "payload":
        big = line("feedback/record", 1, {"text": "@"}).replace(b"@", b"x" * size)
        data = committed(big)
    elif where == "first line":
        data = b'{"type":"session","x":"' + b"x" * size + b'"}\n'
    else:
        data = b"x" * size
    place_log(tmp_path, data)
    storage = JsonlStorage(tmp_path)
    began = time.perf_counter()
    listed = storage.list()
    assert time.perf_counter() - began < 1
    if where == "payload":
        assert listed[0].header is not None
        assert len(storage.inspect("s1").log) == 3
    else:
        assert [entry.code for entry in listed] == ["CORRUPT_HEADER"]
        with pytest.raises(CorruptLogError):
            storage.inspect("s1")


def test_a_log_without_events_is_read(tmp_path: Path) -> None:
    for data, encoding in ((HEADER, "none"), (compress_frame(HEADER), "zstd")):
        stored = read(tmp_path / encoding, data, encoding=encoding)
        assert len(stored.log) == 0
        assert stored.torn is None


# -- a defect before and after the last turn -----------------------------------------------------------


def test_a_defect_before_a_turns_end_refuses_and_behind_it_is_cut(tmp_path: Path) -> None:
    """storage.md, 5.8: turn/start and a gap without turn/end keeps the prefix; a turn/end behind refuses."""
    storage = JsonlStorage(tmp_path)
    place_log(tmp_path, HEADER + START + line("plan/mode", 5))
    assert len(storage.inspect("s1", close_turn=False).log) == 1
    place_log(tmp_path, HEADER + START + line("plan/mode", 5) + END % 6)
    with pytest.raises(CorruptLogError):
        storage.inspect("s1")
    place_log(tmp_path, HEADER + START + END % 5)
    with pytest.raises(CorruptLogError, match="seq 1 is due, not 5"):
        storage.inspect("s1")
    place_log(tmp_path, HEADER + START + b"{oops\n" + b'{"type":"turn/end"}\n')
    with pytest.raises(CorruptLogError):
        storage.inspect("s1")


def test_text_that_only_mentions_a_turns_end_does_not_make_damage(tmp_path: Path) -> None:
    rest = b"{oops\n" + line("feedback/record", 2, {"text": "turn/end", "type": "turn/end"})
    stored = read(tmp_path, HEADER + START + rest + b'{"type":"turn/end"\n')
    assert len(stored.log) == 1
    assert stored.torn is not None


def test_a_title_behind_a_defect_is_cut_and_kept_aside(tmp_path: Path) -> None:
    good = HEADER + START + END % 1
    rest = b"\0\0\n" + line("session/title", 2, {"title": "t", "messageSeqs": [], "source": {}})
    path = place_log(tmp_path, good + rest)
    storage = JsonlStorage(tmp_path)
    assert len(storage.load("s1").log) == 2
    assert path.read_bytes() == good
    (side,) = path.parent.glob("session.cut-*.bin")
    assert side.read_bytes() == rest
    assert side.stat().st_mode & 0o777 == 0o600


def test_packed_plain_and_mixed_files_read_alike(tmp_path: Path) -> None:
    events = EventBuilder().talk().work().events
    packed, plain = log_text(events), log_text(events, pack=False)
    mixed = packed[: packed.index(b"\n", packed.index(b"text-chunks")) + 1]
    mixed += plain[plain.index(b'{"type":"assistant/message"') :]
    for number, data in enumerate((packed, plain, mixed)):
        stored = read(tmp_path / str(number), data)
        assert list(stored.log.view()) == events
    data = log_frames([events[:4], events[4:9], events[9:]])
    assert list(read(tmp_path / "zstd", data, encoding="zstd").log.view()) == events


def test_a_damaged_log_names_itself_in_every_error(tmp_path: Path) -> None:
    place_log(tmp_path, committed(b"{oops\n"))
    with pytest.raises(TurnlogError) as caught:
        JsonlStorage(tmp_path).load("s1")
    details = caught.value.to_dict()
    assert details["session_id"] == "s1"
    assert details["path"].endswith("session.jsonl")
