"""Logs torn at every byte, and logs with one byte changed: nothing sound is lost, nothing wrong is believed."""

from __future__ import annotations

import base64
import json
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from turnlog.codec import decode_storage_record
from turnlog.engine.protocol import StoredLog
from turnlog.engine.verify import verify_salvage
from turnlog.errors import CorruptLogError, StorageError, UnsupportedFormatError
from turnlog.events import SessionEvent
from turnlog.storage.jsonl import JsonlStorage
from turnlog.storage.jsonl.paths import LOG_NAMES, Encoding
from turnlog.testing.builders import (
    EventBuilder,
    header_of,
    log_frames,
    log_text,
    place_log,
)


@pytest.fixture(autouse=True)
def no_waiting_for_the_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read back here is read by the same machine, and thousands of syncs take minutes."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


class Sample(NamedTuple):
    """A small log: its bytes, its events, and for each byte offset how many events end at or before it."""

    encoding: Encoding
    data: bytes
    events: list[SessionEvent]
    header_end: int
    whole: dict[int, int]


def raw_sample(*, pack: bool) -> Sample:
    events = EventBuilder().talk().interrupted().events
    data = log_text(events, pack=pack)
    lines = data.split(b"\n")[:-1]
    at, count, whole = len(lines[0]) + 1, 0, {}
    header_end = at
    whole[at] = 0
    for line in lines[1:]:
        at += len(line) + 1
        count += len(decode_storage_record(json.loads(line)))
        whole[at] = count
    assert count == len(events)
    return Sample("none", data, events, header_end, whole)


def zstd_sample() -> Sample:
    events = EventBuilder().talk().work().interrupted().events
    batches = [events[:3], events[3:12], events[12:13], events[13:]]
    data = log_frames(batches)
    whole, count = {}, 0
    header_end = at = len(log_frames([]))
    whole[at] = 0
    for number, batch in enumerate(batches):
        at = len(log_frames(batches[: number + 1]))
        count += len(batch)
        whole[at] = count
    return Sample("zstd", data, events, header_end, whole)


SAMPLES = {
    "packed": raw_sample(pack=True),
    "plain": raw_sample(pack=False),
    "zstd": zstd_sample(),
}


def lines(events: Any) -> list[bytes]:
    return [event.to_json() for event in events]


def cuts(name: str, thorough: bool) -> Iterator[int]:
    """Every cut, or those around frame and line ends and a few others."""
    sample = SAMPLES[name]
    if thorough:
        yield from range(len(sample.data) + 1)
        return
    near = {end + step for end in (0, *sample.whole) for step in (-5, -4, -2, -1, 0, 1, 2, 5)}
    spread = set(range(0, len(sample.data), 37))
    yield from sorted(cut for cut in near | spread if 0 <= cut <= len(sample.data))


def verify_agrees(storage: JsonlStorage, sound: bool) -> None:
    """`verify` finds an error exactly where a load is refused or cuts something off."""
    findings = verify_salvage(storage.salvage("s1"))
    assert sound == all(finding.severity == "warning" for finding in findings)


def check_cut(sample: Sample, cut: int, root: Path) -> None:
    path = place_log(root, sample.data[:cut], encoding=sample.encoding)
    storage = JsonlStorage(root)
    if cut < sample.header_end:
        for use in (storage.inspect, storage.load):
            with pytest.raises(CorruptLogError):
                use("s1")
        assert path.read_bytes() == sample.data[:cut]
        verify_agrees(storage, False)
        return
    end = max(end for end in sample.whole if end <= cut)
    inspected = storage.inspect("s1", close_turn=False)
    stored = lines(inspected.log.view())
    assert stored == lines(sample.events[: len(stored)])
    assert len(stored) >= sample.whole[end]
    if sample.encoding == "none":
        assert len(stored) == sample.whole[end]
    assert (inspected.torn is None) == (cut == end)
    verify_agrees(storage, cut == end)
    balanced = lines(storage.inspect("s1").log.view())
    assert path.read_bytes() == sample.data[:cut]
    check_load(storage, sample, path, cut, end, balanced)


def check_load(
    storage: JsonlStorage, sample: Sample, path: Path, cut: int, end: int, balanced: list[bytes]
) -> None:
    loaded = storage.load("s1")
    assert lines(loaded.log.view()) == balanced
    assert loaded.state.open_turn is None
    repaired = path.read_bytes()
    assert repaired.startswith(sample.data[:end])
    sides = list(path.parent.glob("session.cut-*.bin"))
    if cut == end:
        assert sides == []
    else:
        (side,) = sides
        assert side.read_bytes() == sample.data[end:cut]
        assert side.name.startswith(f"session.cut-{end}-")
    assert {path.name for path in path.parent.iterdir()} == {path.name, *(s.name for s in sides)}
    again = JsonlStorage(path.parents[2])
    found = again.inspect("s1")
    assert (found.torn, list(found.closers)) == (None, [])
    assert lines(found.log.view()) == balanced
    assert lines(again.load("s1").log.view()) == balanced
    assert path.read_bytes() == repaired
    more = SessionEvent("session/end-seed", len(balanced), 1, b"{}")
    storage.append(header_of(), [more])
    assert lines(again.read_from("s1", 0)) == [*balanced, more.to_json()]
    assert path.read_bytes().startswith(repaired)


@pytest.mark.parametrize("name", SAMPLES)
def test_a_log_torn_somewhere_loads_and_goes_on(name: str, tmp_path: Path) -> None:
    for cut in cuts(name, thorough=False):
        check_cut(SAMPLES[name], cut, tmp_path / str(cut))


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLES)
def test_a_log_torn_at_any_byte_loads_and_goes_on(name: str, tmp_path: Path) -> None:
    for cut in cuts(name, thorough=True):
        check_cut(SAMPLES[name], cut, tmp_path / str(cut))


@pytest.mark.parametrize("name", ["packed", "plain"])
def test_a_cut_through_a_character_is_no_decoding_error(name: str, tmp_path: Path) -> None:
    sample = SAMPLES[name]
    emoji = "😀".encode()
    at = sample.data.rindex(emoji)
    for cut in range(at, at + len(emoji) + 1):
        check_cut(sample, cut, tmp_path / str(cut))


def test_case_21_the_next_process_does_not_glue_its_record_to_a_torn_one(tmp_path: Path) -> None:
    events = EventBuilder().talk().events
    torn = b'{"type":"feedback/record","seq":99,"time":3,"data":{"text":"gr\xc3\xbc\xc3\x9fe \xf0\x9f\x98'
    path = place_log(tmp_path, log_text(events) + torn)
    more = EventBuilder()
    more.wires = [event.to_dict() for event in events]
    more.talk()
    storage = JsonlStorage(tmp_path)
    with pytest.raises(StorageError) as caught:
        storage.append(header_of(), more.events[len(events) :])
    assert caught.value.code == "TORN_TAIL"
    assert storage.load("s1").torn is None
    storage.append(header_of(), more.events[len(events) :])
    assert (
        path.read_bytes()
        == log_text(events) + log_text(more.events[len(events) :]).split(b"\n", 1)[1]
    )
    assert lines(JsonlStorage(tmp_path).read_from("s1", 0)) == lines(more.events)
    (side,) = path.parent.glob("*.bin")
    assert side.read_bytes() == torn


def test_a_torn_tail_is_cut_again_and_again(tmp_path: Path) -> None:
    events = EventBuilder().talk().events
    path = place_log(tmp_path, log_text(events))
    for number in range(3):
        with path.open("ab") as file:
            file.write(b"torn %d" % number)
        JsonlStorage(tmp_path).load("s1")
    assert path.read_bytes() == log_text(events)
    kept = sorted(side.read_bytes() for side in path.parent.glob("*.bin"))
    assert kept == [b"torn 0", b"torn 1", b"torn 2"]


# -- the reference's own answers -----------------------------------------------------------------------


def check_vector(
    file: dict[str, Any], id_: str, cuts: list[dict[str, Any]], tmp_path: Path
) -> None:
    data = base64.b64decode(file["base64"])
    for number, case in enumerate(cuts):
        path = tmp_path / str(number) / file["path"]
        path.parent.mkdir(parents=True)
        path.write_bytes(data[: case["cut"]])
        storage = JsonlStorage(tmp_path / str(number))
        for use, name in ((storage.inspect, "inspect"), (storage.load, "load")):
            assert answer(use, id_) == case[name], (case["cut"], name)
        assert answer(storage.inspect, id_) == case["load"]


def answer(use: Callable[[str], StoredLog], id_: str) -> dict[str, Any]:
    try:
        log = use(id_).log
    except CorruptLogError:
        return {"error": True}
    tail = [
        f"tool/result:{event.data['error']['code']}"
        if event.type == "tool/result" and "error" in event.data
        else event.type
        for event in log.view()[-6:]
    ]
    return {"n": len(log), "tail": tail}


VECTORS = ["none-packed", "none-plain", "zstd-packed", "zstd-plain"]


@pytest.mark.parametrize("name", VECTORS)
def test_the_references_files_are_read_whole(
    name: str, vectors: Callable[[str], Any], tmp_path: Path
) -> None:
    given = vectors("storage_jsonl")
    file = given["files"][name]
    cut = len(base64.b64decode(file["base64"]))
    check_vector(
        file, given["id"], [{"cut": cut, "inspect": file["full"], "load": file["full"]}], tmp_path
    )


@pytest.mark.parametrize("name", VECTORS)
def test_the_references_files_read_alike_when_torn(
    name: str, vectors: Callable[[str], Any], tmp_path: Path
) -> None:
    given = vectors("storage_jsonl")
    file = given["files"][name]
    check_vector(file, given["id"], file["cuts"][::5], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", VECTORS)
def test_the_references_files_read_alike_at_every_cut(
    name: str, vectors: Callable[[str], Any], tmp_path: Path
) -> None:
    given = vectors("storage_jsonl")
    file = given["files"][name]
    check_vector(file, given["id"], file["cuts"], tmp_path)


# -- one changed byte ----------------------------------------------------------------------------------

PATTERNS = (0x01, 0x20, 0x80, 0xFF)
"""Bit patterns: another digit or letter, another case, no ASCII, all bits."""


def check_flip(sample: Sample, at: int, pattern: int, root: Path) -> None:
    """Noticed, or confined: every event but the one on that line is what it was."""
    bad = bytearray(sample.data)
    bad[at] ^= pattern
    place_log(root, bytes(bad), encoding=sample.encoding)
    storage = JsonlStorage(root)
    try:
        stored = storage.inspect("s1", close_turn=False)
    except (CorruptLogError, UnsupportedFormatError):
        verify_agrees(storage, False)
        salvaged(storage, sample, at)
        return
    verify_agrees(storage, stored.torn is None)
    if stored.torn is not None:
        # Of a compressed file, only the last frame can pass for one that was cut off.
        assert at >= stored.torn.truncate_to
        last = max(count for count in sample.whole.values() if count < len(sample.events))
        assert sample.encoding == "none" or len(stored.log) >= last
        assert lines(stored.log.view()) == lines(sample.events[: len(stored.log)])
        salvaged(storage, sample, at)
        return
    found, wanted = lines(stored.log.view()), lines(sample.events)
    assert len(found) == len(wanted)
    first, last = touched(sample, at)
    assert found[:first] == wanted[:first]
    assert found[last:] == wanted[last:]
    if sample.encoding == "zstd":
        assert found == wanted
        assert stored.header.to_dict() == {"delegationDepth": 0, **header_of().to_dict()}


def touched(sample: Sample, at: int) -> tuple[int, int]:
    """The events of the line or frame in which the byte lies, as a range of seqs."""
    first = max((count for end, count in sample.whole.items() if end <= at), default=0)
    last = min(count for end, count in sample.whole.items() if end > at)
    return first, last


def salvaged(storage: JsonlStorage, sample: Sample, at: int) -> None:
    """Damage costs the damaged record only; of a compressed file, the damaged frame."""
    salvage = storage.salvage("s1")
    first, last = touched(sample, at)
    wanted = {event.seq: event.to_dict() for event in sample.events}
    found = {wire["seq"]: wire for wire in salvage.events if wanted.get(wire["seq"]) == wire}
    if sample.data[at : at + 1] == b"\n":
        last = max(last, touched(sample, min(at + 1, len(sample.data) - 1))[1])
    missing = wanted.keys() - found.keys()
    assert missing <= set(range(first, last)), (at, missing)


@pytest.mark.parametrize("name", SAMPLES)
def test_a_changed_byte_is_noticed_or_confined(name: str, tmp_path: Path) -> None:
    sample = SAMPLES[name]
    chance = random.Random(name)
    for at in sorted(chance.sample(range(len(sample.data)), 120)):
        check_flip(sample, at, chance.choice(PATTERNS), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("pattern", [*PATTERNS, 0x02, 0x04, 0x08, 0x10, 0x40])
@pytest.mark.parametrize("name", SAMPLES)
def test_any_changed_byte_is_noticed_or_confined(name: str, pattern: int, tmp_path: Path) -> None:
    sample = SAMPLES[name]
    for at in range(len(sample.data)):
        check_flip(sample, at, pattern, tmp_path)


def test_written_files_are_the_references_bytes(
    vectors: Callable[[str], Any], tmp_path: Path
) -> None:
    """Raw files byte for byte, compressed ones text for text, written as the reference wrote them."""
    given = vectors("storage_jsonl")
    events = [SessionEvent.from_dict(wire) for wire in given["events"]]
    for name, file in given["files"].items():
        theirs = base64.b64decode(file["base64"])
        source = tmp_path / name / "theirs"
        path = source / file["path"]
        path.parent.mkdir(parents=True)
        path.write_bytes(theirs)
        reference = JsonlStorage(source)
        header = reference.inspect(given["id"]).header
        root = tmp_path / name / "ours"
        encoding: Encoding = "zstd" if name.startswith("zstd") else "none"
        ours = JsonlStorage(root, compression=encoding, pack=name.endswith("packed"))
        ours.append(header, events)
        assert (root / file["path"]).name == LOG_NAMES[encoding]
        assert ours.read_raw(given["id"]).content == reference.read_raw(given["id"]).content
        if encoding == "none":
            assert (root / file["path"]).read_bytes() == theirs
