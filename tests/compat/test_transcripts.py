"""Logs that the harnesses wrote: each loads and derives, or is refused for the reason stated here.

The files lie outside the repository. Fixtures have `{{cwd}}` where a directory stood, and some headers of
July 2026 lack `delegationDepth`; both are filled in before they are read, nothing else is touched.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from turnlog.codec import decode_storage_record
from turnlog.codec.frames import decompress_frames, scan_frames
from turnlog.codec.record import encode_batch
from turnlog.codec.upgrade import is_old_shape
from turnlog.engine.verify import verify_salvage
from turnlog.errors import CorruptLogError, StorageError, UnsupportedFormatError
from turnlog.events import SessionEvent, event_from_line
from turnlog.lossless import canonicalize
from turnlog.storage.jsonl import JsonlStorage
from turnlog.testing.builders import place_log

REFUSED = {
    # Stubs of the recorder's own tests, cut down by hand: their headers have no version.
    "acp-snapshot__record-suite__rec-child__session.1.jsonl": "CORRUPT_HEADER",
    "acp-snapshot__record-suite__rec-pin__session.1.jsonl": "CORRUPT_HEADER",
    "acp-snapshot__record-suite__rec-pin__session.jsonl": "CORRUPT_HEADER",
    "acp-snapshot__suite__authored-error__session.jsonl": "CORRUPT_HEADER",
    "acp-snapshot__suite__blocked-log__session.jsonl": "CORRUPT_HEADER",
    "acp-snapshot__suite__no-model__session.jsonl": "CORRUPT_HEADER",
    "acp-snapshot__suite__pin-turn__session.jsonl": "CORRUPT_HEADER",
    "acp-snapshot__suite__plain-turn__session.1.jsonl": "CORRUPT_HEADER",
    "acp-snapshot__suite__shared-pin__session.jsonl": "CORRUPT_HEADER",
    # Assistant messages without a route (no `provenance`), which the reference refuses as well.
    "2026-07-02-multi-turn.jsonl": "INVALID_MESSAGE",
    "2026-07-02-subagent-mixed.jsonl": "INVALID_MESSAGE",
    "2026-07-02-subagent-multi.jsonl": "INVALID_MESSAGE",
    # A request header without its config.
    "2026-07-07-live-mode-switching.jsonl": "INVALID_REQUEST_HEADER",
    "2026-06-21-cancel.jsonl": "OLDER_FORMAT",
    # A row with `seq` for `seq0`, results without a message.
    "vct-session.jsonl": "CORRUPT_LOG",
    "vct-session.jsonl.zstd": "CORRUPT_LOG",
}
TORN = {"torn-last-frame.jsonl.zstd"}
FOLDERS = {
    "full-v0": 130,
    "recorded-0.1.0-rc.8": 11,
    "legacy-v0": 16,
    "thirdparty": 2,
    "projected-v0": 10,
    "later-versions": 8,
}
PAIRS = ["fs-policy-reject", "multi-turn", "subagent-mixed", "subagent-multi", "workspace-edit"]


def prepared(path: Path) -> tuple[bytes, dict[str, Any]]:
    """The file's bytes with the placeholders filled in, and its header."""
    data = path.read_bytes()
    if path.suffix == ".zstd":
        return data, json.loads(decompress_frames(data[: scan_frames(data).ends[0]]))
    data = data.replace(b"{{cwd}}", b"/w")
    line, _, rest = data.partition(b"\n")
    header = json.loads(line)
    if header.get("type") == "session" and header.get("version") == 0:
        header.setdefault("delegationDepth", 0)
        line = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    return line + b"\n" + rest, header


def placed(path: Path, root: Path) -> tuple[JsonlStorage, str]:
    data, header = prepared(path)
    encoding: Any = "zstd" if path.suffix == ".zstd" else "none"
    id_ = str(header["id"])
    place_log(root, data, id=id_, cwd=header.get("cwd"), encoding=encoding)
    return JsonlStorage(root), id_


def files(folder: Path) -> list[Path]:
    found = sorted(path for path in folder.iterdir() if path.is_file())
    assert len(found) == FOLDERS[folder.name]
    return found


def expected(path: Path) -> str | None:
    folder = path.parent.name
    if folder == "later-versions":
        return "NEWER_FORMAT"
    if folder == "projected-v0":
        return "CORRUPT_LOG"
    return REFUSED.get(path.name)


@pytest.mark.parametrize("folder", FOLDERS)
def test_each_file_loads_and_derives_or_is_refused_for_its_reason(
    folder: str, transcripts: Path, tmp_path: Path
) -> None:
    for number, path in enumerate(files(transcripts / "dsh" / folder)):
        storage, id_ = placed(path, tmp_path / str(number))
        code = expected(path)
        if code is not None:
            kind = UnsupportedFormatError if code.endswith("_FORMAT") else CorruptLogError
            with pytest.raises(kind) as caught:
                storage.inspect(id_)
            assert caught.value.code == code, path.name
            continue
        stored = storage.inspect(id_)
        assert (stored.torn is not None) == (path.name in TORN), path.name
        assert stored.state.open_turn is None
        session = stored.to_session()
        messages = session.derive_messages()
        assert len(messages) <= len(stored.surface.nodes)
        assert bool(messages) == bool(stored.surface.nodes), path.name


@pytest.mark.parametrize("folder", FOLDERS)
def test_salvage_gives_what_every_file_holds(
    folder: str, transcripts: Path, tmp_path: Path
) -> None:
    for number, path in enumerate(files(transcripts / "dsh" / folder)):
        storage, id_ = placed(path, tmp_path / str(number))
        result = storage.salvage(id_)
        assert result.header is not None
        text, _ = prepared(path)
        if path.suffix == ".zstd":
            text = storage.read_raw(id_).content
        records = [
            json.loads(line)
            for line in text.split(b"\n")[1:]
            if line.startswith(b'{"type":') and line.endswith(b"}")
        ]
        lost = 1 if path.parent.name == "thirdparty" else 0
        assert len({record.line for record in result.records}) >= len(records) - lost, path.name
        findings = [found for found in verify_salvage(result) if found.severity == "error"]
        sound = expected(path) is None and path.name not in TORN
        assert sound == (not findings), (path.name, findings[:1])


def test_projected_files_are_numbered_by_their_place(transcripts: Path, tmp_path: Path) -> None:
    for number, path in enumerate(files(transcripts / "dsh" / "projected-v0")):
        storage, id_ = placed(path, tmp_path / str(number))
        result = storage.salvage(id_)
        assert [wire["seq"] for wire in result.events] == list(range(len(result.events)))
        assert {type(wire["time"]) for wire in result.events} == {int}


def test_a_third_partys_row_is_named_with_its_line(transcripts: Path, tmp_path: Path) -> None:
    for number, path in enumerate(files(transcripts / "dsh" / "thirdparty")):
        storage, id_ = placed(path, tmp_path / str(number))
        result = storage.salvage(id_)
        assert result.damage[0].line == 5
        assert "malformed text-chunks" in result.damage[0].what
        assert [record.line for record in result.records] == [2, 3, 4, *range(6, 26)]


@pytest.mark.parametrize("scenario", PAIRS)
def test_packed_and_plain_twins_tell_the_same_story(
    scenario: str, transcripts: Path, tmp_path: Path
) -> None:
    folder = transcripts / "dsh" / "legacy-v0"
    told = []
    for day in ("21", "28"):
        storage, id_ = placed(folder / f"2026-07-{day}-{scenario}.jsonl", tmp_path / day)
        session = storage.inspect(id_).to_session()
        told.append([(message.role, said(message)) for message in session.derive_messages()])
    assert told[0] == told[1]


def said(message: Any) -> str:
    """The text of a message and of the results in it."""
    parts = []
    for block in message.content:
        inner = block.get("content", ()) if block["type"] == "tool-result" else (block,)
        parts += [part.get("text", "") for part in inner]
    # One of the recordings was made where `/var` is a link.
    return "\n".join(parts).replace("/private/var/", "/var/")


def written_again(path: Path, tmp_path: Path) -> tuple[bytes, bytes]:
    """The file's text, and what we write for its events with each original line as its own batch."""
    text, header = prepared(path)
    if path.suffix == ".zstd":
        text = decompress_frames(text[: scan_frames(text).ends[-1]])
    storage = JsonlStorage(tmp_path)
    place_log(tmp_path, text, id=str(header["id"]), cwd=header.get("cwd"))
    log = storage.inspect(str(header["id"]), close_turn=False).log
    lines = text.split(b"\n")[:-1]
    out, seq = lines[:1], 0
    for line in lines[1:]:
        count = len(decode_storage_record(json.loads(line)))
        out.append(encode_batch(log.view()[seq : seq + count])[:-1])
        seq += count
    assert seq == len(log)
    return text, b"\n".join([*out, b""])


def test_recorded_files_are_written_again_byte_for_byte(transcripts: Path, tmp_path: Path) -> None:
    for number, path in enumerate(files(transcripts / "dsh" / "recorded-0.1.0-rc.8")):
        text, again = written_again(path, tmp_path / str(number))
        assert again == text, path.name


def test_current_fixtures_are_written_again_byte_for_byte(
    transcripts: Path, tmp_path: Path
) -> None:
    """Files in today's shape; those whose events are upgraded on reading keep their data but not their bytes."""
    same = 0
    for number, path in enumerate(files(transcripts / "dsh" / "full-v0")):
        if expected(path) is not None or path.name in TORN:
            continue
        text, again = written_again(path, tmp_path / str(number))
        wires = [json.loads(line) for line in text.split(b"\n")[1:-1]]
        if any(is_old_shape(wire["type"], wire["data"]) for wire in wires):
            continue
        assert again == text, path.name
        same += 1
    assert same > 100


def test_recorded_batches_are_packed_as_the_reference_packs_them(
    transcripts: Path, tmp_path: Path
) -> None:
    """Each frame of a recorded file is one batch: packing its events gives its text."""
    folder = transcripts / "dsh" / "recorded-0.1.0-rc.8"
    for path in folder.glob("*.zstd"):
        data = path.read_bytes()
        spans = list(scan_frames(data).spans())
        assert len(spans) > 3
        for start, end in spans[1:]:
            text = decompress_frames(data[start:end])
            events = [
                SessionEvent.from_dict(wire)
                for line in text.split(b"\n")[:-1]
                for wire in decode_storage_record(json.loads(line))
            ]
            assert encode_batch(events) == text


def test_plain_lines_read_and_write_the_same_bytes(transcripts: Path) -> None:
    """A thousand lines that people and models produced, not we."""
    path = transcripts / "dsh" / "legacy-v0" / "2026-07-07-live-mode-switching.jsonl"
    lines = path.read_bytes().split(b"\n")[1:-1]
    assert len(lines) > 2000
    for line in lines:
        assert canonicalize(json.loads(line))[0] == line
        assert event_from_line(line).to_json() == line


def test_a_killed_session_is_repaired_and_goes_on(transcripts: Path, tmp_path: Path) -> None:
    folder = transcripts / "dsh" / "recorded-0.1.0-rc.8"
    for number, name in enumerate(
        ("killed-open-turn.jsonl", "killed-open-turn.jsonl.zstd", "sigint-open-turn.jsonl")
    ):
        storage, id_ = placed(folder / name, tmp_path / str(number))
        before = Path(str(storage.location(id_))).read_bytes()
        assert [event.type for event in storage.inspect(id_).closers] == [
            "tool/result",
            "step/end",
            "turn/end",
        ]
        loaded = storage.load(id_)
        assert Path(str(storage.location(id_))).read_bytes().startswith(before)
        end = SessionEvent("session/end-seed", len(loaded.log), 1, b"{}")
        storage.append(loaded.header, [end])
        assert len(JsonlStorage(tmp_path / str(number)).inspect(id_).log) == len(loaded.log) + 1


def test_reading_rewrites_nothing(transcripts: Path, tmp_path: Path) -> None:
    for number, path in enumerate(files(transcripts / "dsh" / "legacy-v0")):
        storage, id_ = placed(path, tmp_path / str(number))
        location = Path(str(storage.location(id_)))
        before = location.read_bytes()
        for read in (storage.inspect, storage.salvage, storage.read_raw):
            try:
                read(id_)
            except StorageError:
                continue
        storage.list()
        assert location.read_bytes() == before
        assert [entry.name for entry in location.parent.iterdir()] == [location.name]
