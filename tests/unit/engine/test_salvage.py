"""Salvage and verify: every damage at its place, nothing sound lost (cases 20, 22, 25, 33, 35)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from turnlog.codec.frames import compress_frame
from turnlog.engine.protocol import Salvage
from turnlog.engine.salvage import Salvager
from turnlog.engine.verify import Finding, verify_salvage
from turnlog.errors import StorageError
from turnlog.events import SessionEvent
from turnlog.storage.jsonl import JsonlStorage
from turnlog.testing.builders import (
    EventBuilder,
    header_of,
    log_frames,
    log_text,
    odd_events,
    place_log,
    talk_events,
)

EVENTS = talk_events(2)
TEXT = log_text(EVENTS, pack=False)
LINES = TEXT.split(b"\n")[:-1]


def salvage(text: bytes) -> Salvage:
    salvager = Salvager()
    salvager.feed(text)
    return salvager.result()


def seqs(result: Salvage) -> list[int]:
    return [wire["seq"] for wire in result.events]


def places(result: Salvage) -> list[tuple[int, int]]:
    return [(damage.line, damage.offset) for damage in result.damage]


def offset_of(line: int) -> int:
    """Where a line of `TEXT` starts; 1 is the header."""
    return sum(len(text) + 1 for text in LINES[: line - 1])


def with_line(line: int, text: bytes) -> bytes:
    """`TEXT` with one line replaced."""
    return b"\n".join([*LINES[: line - 1], text, *LINES[line:], b""])


def errors(findings: list[Finding]) -> list[tuple[int, str]]:
    return [(found.line, found.code) for found in findings if found.severity == "error"]


ALL = list(range(len(EVENTS)))


def test_a_sound_log_is_whole_and_without_findings() -> None:
    for events in (EVENTS, odd_events()):
        for pack in (True, False):
            result = salvage(log_text(events, pack=pack))
            assert seqs(result) == list(range(len(events)))
            assert result.damage == []
            assert errors(verify_salvage(result)) == []
    assert verify_salvage(salvage(TEXT)) == []


@pytest.mark.parametrize("line", range(2, len(LINES) + 1))
def test_a_bad_line_costs_itself_and_is_named(line: int) -> None:
    result = salvage(with_line(line, b"{oops"))
    assert seqs(result) == [seq for seq in ALL if seq != line - 2]
    assert places(result)[0] == (line, offset_of(line))
    assert "bad JSON" in result.damage[0].what
    # What is missing shows at the next event.
    assert [damage.seq for damage in result.damage[1:]] == ([line - 1] if line < len(LINES) else [])


def test_case_22_nul_bytes_on_a_line_of_their_own_cost_nothing() -> None:
    text = b"\n".join([*LINES[:10], b"\0" * 512, *LINES[10:], b""])
    result = salvage(text)
    assert seqs(result) == ALL
    assert places(result) == [(11, offset_of(11))]
    assert result.damage[0].what == "512 NUL bytes"


def test_case_22_nul_bytes_before_a_record_cost_nothing() -> None:
    result = salvage(with_line(11, b"\0" * 300 + LINES[10]))
    assert seqs(result) == ALL
    assert places(result) == [(11, offset_of(11))]
    assert result.damage[0].what == "300 NUL bytes"


def test_nul_bytes_behind_or_between_records_cost_nothing() -> None:
    assert seqs(salvage(with_line(11, LINES[10] + b"\0" * 9))) == ALL
    glued = b"\n".join([*LINES[:9], LINES[9] + b"\0" * 9 + LINES[10], *LINES[11:], b""])
    assert seqs(salvage(glued)) == ALL


@pytest.mark.parametrize("part", [1, 10, 60, -1])
def test_case_20_a_torn_record_and_its_retry_on_one_line(part: int) -> None:
    for line in range(2, len(LINES) + 1):
        result = salvage(with_line(line, LINES[line - 1][:part] + LINES[line - 1]))
        assert seqs(result) == ALL
        assert places(result) == [(line, offset_of(line))]


def test_two_records_whose_line_feed_was_lost_are_both_kept() -> None:
    for line in range(1, len(LINES)):
        text = b"\n".join(
            [*LINES[: line - 1], LINES[line - 1] + LINES[line], *LINES[line + 1 :], b""]
        )
        result = salvage(text)
        assert seqs(result) == ALL, line
        assert result.header == json.loads(LINES[0])
        assert places(result) == [(line, offset_of(line))]


def test_a_whole_record_with_a_torn_one_behind_it_is_kept() -> None:
    result = salvage(b"\n".join([*LINES[:5], LINES[5] + LINES[6][:30]]))
    assert seqs(result) == ALL[:5]


def test_a_records_own_blocks_are_no_records() -> None:
    torn = b'{"type":"user/message","seq":3,"time":1,"data":{"content":[{"type":"image","data":"x"},{"type":"text"'
    result = salvage(with_line(5, torn + LINES[4]))
    assert seqs(result) == ALL


def test_a_torn_character_before_a_record_costs_nothing() -> None:
    result = salvage(with_line(5, b'{"type":"x","seq":3,"data":"\xf0\x9f\x98' + LINES[4]))
    assert seqs(result) == ALL


def test_case_25_marks_line_ends_and_blank_lines() -> None:
    text = (
        b"\xef\xbb\xbf"
        + LINES[0]
        + b"\r\n"
        + LINES[1]
        + b"\r\n\r\n"
        + LINES[2]
        + b"\n   \n"
        + LINES[3]
    )
    result = salvage(text)
    assert seqs(result) == [0, 1, 2]
    assert [(damage.line, damage.what, damage.harmless) for damage in result.damage] == [
        (1, "a byte order mark stands before the header", True),
        (3, "a blank line", False),
        (5, "a blank line", False),
        (6, "the last line has no line feed", False),
    ]
    assert result.damage[1].offset == text.index(b"\r\n\r\n") + 2


def test_an_empty_line_is_named() -> None:
    result = salvage(b"\n".join([*LINES[:3], b"", *LINES[3:], b""]))
    assert seqs(result) == ALL
    assert places(result) == [(4, offset_of(4))]


def test_case_35_a_forked_sequence_is_kept_whole_and_explained() -> None:
    builder = EventBuilder().talk().interrupted()
    fork = builder.seq
    storage_like = list(builder.wires)
    builder.result("c8", "interrupted").result("c9", "interrupted").end_step().end_turn(
        "interrupted"
    )
    builder.add("session/end-seed", {})
    synthetic = builder.wires[fork:]
    other = EventBuilder()
    other.wires = storage_like
    other._turn, other._step = 2, 1
    other.add("approval/decided", {"id": "a", "outcome": "x"}).result(
        "c8", "real output"
    ).end_step()
    real = other.wires[fork:]
    wires = [*storage_like[:fork], *synthetic, *real]
    text = LINES[0] + b"\n" + b"".join(json.dumps(wire).encode() + b"\n" for wire in wires)
    result = salvage(text)
    assert result.events == wires
    assert [(damage.seq, damage.what) for damage in result.damage] == [
        (fork, f"seq {fork} where {fork + len(synthetic)} is due")
    ]
    assert result.damage[0].line == 2 + fork + len(synthetic)
    found = verify_salvage(result)
    assert (result.damage[0].line, "DAMAGED") in errors(found)


@pytest.mark.parametrize("key", ["seq", "time"])
@pytest.mark.parametrize("where", ["end", "middle"])
def test_case_33_a_missing_number_is_taken_from_the_place(key: str, where: str) -> None:
    line = len(LINES) if where == "end" else 9
    wire = json.loads(LINES[line - 1])
    wanted = dict(wire)
    del wire[key]
    result = salvage(with_line(line, json.dumps(wire).encode()))
    assert seqs(result) == ALL
    got = result.events[line - 2]
    assert got["seq"] == wanted["seq"]
    assert places(result) == [(line, offset_of(line))]
    assert key in result.damage[0].what


def test_logs_without_any_place_are_numbered_rows_too() -> None:
    """Projected logs leave out seq and time everywhere."""
    lines = []
    for line in log_text(EVENTS).split(b"\n")[:-1]:
        wire = json.loads(line)
        lines.append(
            {key: wire[key] for key in wire if key not in ("seq", "seq0", "time", "time0")}
        )
    result = salvage(b"".join(json.dumps(line).encode() + b"\n" for line in lines))
    assert seqs(result) == ALL
    assert [wire["data"] for wire in result.events] == [event.to_dict()["data"] for event in EVENTS]
    assert len(result.damage) == len(lines) - 1


def test_numbers_and_keys_that_only_we_refuse_are_read_as_others_read_them() -> None:
    doubled = b'{"type":"plan/mode","seq":0,"time":1,"data":{"a":1,"a":2}}'
    zero = b'{"type":"plan/mode","seq":1,"time":1,"data":1e999}'
    result = salvage(b"\n".join([LINES[0], doubled, zero, b""]))
    assert [wire["data"] for wire in result.events] == [{"a": 2}]
    assert len(result.damage) >= 2


@pytest.mark.parametrize(
    "text",
    [b"", b"\n", b"\0", b"x", b"null\n[]\n1\n", b"\xff\xfe", b"[" * 200_000, b'{"type":[]}\n'],
)
def test_nothing_comes_of_nothing(text: bytes) -> None:
    result = salvage(text)
    assert result.records == []
    assert result.header is None
    assert result.damage or not text
    assert errors(verify_salvage(result))


def test_a_header_may_be_missing() -> None:
    result = salvage(b"\n".join([*LINES[1:], b""]))
    assert seqs(result) == ALL
    assert result.header is None
    assert errors(verify_salvage(result)) == [(1, "INVALID_HEADER")]


def test_findings_have_wire_names() -> None:
    result = salvage(with_line(3, b"{oops"))
    damage, gap = result.damage
    assert damage.to_dict() == {"line": 3, "offset": offset_of(3), "what": damage.what}
    assert gap.to_dict()["seq"] == 2
    finding = verify_salvage(result)[0]
    assert finding.to_dict() == {
        "severity": "error",
        "code": "DAMAGED",
        "line": 3,
        "offset": offset_of(3),
        "what": damage.what,
    }


def test_relational_faults_are_warnings() -> None:
    builder = EventBuilder().talk()
    builder.add("step/end", {"turn": 9, "step": 1}).add("turn/start", {"turn": 7})
    found = verify_salvage(salvage(log_text(builder.events)))
    assert [finding.severity for finding in found] == ["warning", "warning"]
    assert {finding.code for finding in found} == {"INVARIANT"}


def test_logical_faults_are_found_behind_each_other() -> None:
    wires: list[dict[str, Any]] = [event.to_dict() for event in EVENTS]
    wires[2]["data"]["id"] = ""
    wires[5]["extra"] = 1
    wires[6]["type"] = "nobody/knows"
    wires[7]["type"] = "mode/set"
    text = LINES[0] + b"\n" + b"".join(json.dumps(wire).encode() + b"\n" for wire in wires)
    found = errors(verify_salvage(salvage(text)))
    assert (4, "INVALID_MESSAGE") in found
    assert (7, "INVALID_ENVELOPE") in found
    assert (8, "UNKNOWN_EVENT_TYPE") in found
    assert (9, "RETIRED_EVENT") in found
    assert len(salvage(text).records) == len(EVENTS)


def test_a_rewritten_result_of_a_message_without_an_id_does_not_stop_salvage() -> None:
    """As a third-party log has them: a result with an empty message, replaced in the old shape."""
    lines = [
        b'{"type":"tool/result","seq":0,"time":1,"data":{"message":{}},"surfaceOp":"append"}',
        (
            b'{"type":"tool/result","seq":1,"time":1,"data":{"turn":1,"step":1,"callId":"c","content":[],"isError":false},'
            b'"surfaceOp":{"op":"replace","start":0,"end":0},"sourceEventSeqs":[0]}'
        ),
    ]
    assert seqs(salvage(b"\n".join([LINES[0], *lines, b""]))) == [0, 1]


# -- compressed files ----------------------------------------------------------------------------------


def test_a_damaged_frame_costs_itself_and_is_placed_in_the_text(tmp_path: Path) -> None:
    batches = [EVENTS[:4], EVENTS[4:9], EVENTS[9:]]
    sound = log_frames(batches, pack=False)
    start = len(log_frames(batches[:1], pack=False))
    bad = bytearray(sound)
    bad[start + 12] ^= 0xFF
    place_log(tmp_path, bytes(bad), encoding="zstd")
    result = JsonlStorage(tmp_path).salvage("s1")
    kept = seqs(result)
    assert kept[:4] == ALL[:4]
    assert kept[-len(batches[2]) :] == ALL[9:]
    frame = next(damage for damage in result.damage if "frame" in damage.what)
    assert f"byte {start} of the file" in frame.what
    assert (frame.line, frame.offset) == (6, len(log_text(EVENTS[:4], pack=False)))


def test_bytes_between_frames_are_named(tmp_path: Path) -> None:
    data = log_frames([EVENTS[:4]]) + b"\0" * 64 + log_frames([EVENTS[4:]])[len(log_frames([])) :]
    place_log(tmp_path, data, encoding="zstd")
    storage = JsonlStorage(tmp_path)
    with pytest.raises(StorageError) as caught:
        storage.inspect("s1")
    assert caught.value.code == "BAD_FRAME"
    assert seqs(storage.salvage("s1")) == ALL


def test_a_frame_that_reaches_over_the_ones_behind_it_is_no_torn_tail(tmp_path: Path) -> None:
    """One flipped bit in a block's length: a load must not cut the sound frames behind it."""
    batches = [EVENTS[:4], EVENTS[4:9], EVENTS[9:]]
    start = len(log_frames(batches[:1]))
    for at in range(start + 5, start + 12):
        bad = bytearray(log_frames(batches))
        bad[at] ^= 0x80
        path = place_log(tmp_path, bytes(bad), encoding="zstd")
        storage = JsonlStorage(tmp_path)
        with pytest.raises(StorageError) as caught:
            storage.load("s1")
        assert caught.value.code == "BAD_FRAME"
        assert path.read_bytes() == bad
        assert seqs(storage.salvage("s1"))[-len(batches[2]) :] == ALL[9:]


def test_a_torn_last_frame_gives_its_whole_records(tmp_path: Path) -> None:
    frames = log_frames([EVENTS[:4], EVENTS[4:]], pack=False)
    place_log(tmp_path, frames[:-3], encoding="zstd")
    result = JsonlStorage(tmp_path).salvage("s1")
    assert seqs(result) == ALL
    assert "cut off" in result.damage[0].what


def test_records_in_the_headers_frame_are_damage(tmp_path: Path) -> None:
    place_log(tmp_path, compress_frame(TEXT), encoding="zstd")
    storage = JsonlStorage(tmp_path)
    with pytest.raises(StorageError):
        storage.inspect("s1")
    result = storage.salvage("s1")
    assert seqs(result) == ALL
    assert places(result) == [(1, 0)]


def test_a_line_over_two_frames_is_one_line(tmp_path: Path) -> None:
    data = b"".join(map(compress_frame, (LINES[0] + b"\n", TEXT[offset_of(2) : 300], TEXT[300:])))
    place_log(tmp_path, data, encoding="zstd")
    result = JsonlStorage(tmp_path).salvage("s1")
    assert seqs(result) == ALL
    assert result.damage == []


# -- a crash repair that must not spoil the log ---------------------------------------------------------


def test_case_5_repairing_an_open_call_without_an_id_does_not_spoil_the_log(tmp_path: Path) -> None:
    builder = EventBuilder().start_turn().start_step().user().assistant("", calls=[""])
    storage = JsonlStorage(tmp_path)
    storage.append(header_of(), builder.events)
    storage.load("s1")
    assert JsonlStorage(tmp_path).load("s1").state.open_turn is None


def test_events_of_a_salvaged_log_make_events_again() -> None:
    result = salvage(TEXT)
    assert [SessionEvent.from_dict(wire) for wire in result.events] == EVENTS
