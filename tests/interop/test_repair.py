"""A log that a crash tore or left open: both programs mend it to the same bytes (storage.md, 1.5 and 5.5)."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

from turnlog.codec.frames import decompress_frames
from turnlog.errors import CorruptLogError
from turnlog.events import SessionEvent
from turnlog.header import SessionHeader
from turnlog.repair import interrupted_turn_closers
from turnlog.storage.jsonl import JsonlStorage

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

Peer = Callable[..., Any]
Wire = dict[str, Any]
Sample = tuple[Wire, list[list[Wire]]]
Compression = Literal["none", "zstd"]

ENCODINGS = pytest.mark.parametrize("compression", ["none", "zstd"])
ID = "interrupted"


def store(root: Path, compression: Compression, sample: Sample) -> Path:
    storage = JsonlStorage(root, compression=compression)
    for batch in sample[1]:
        events = [SessionEvent.from_dict(event) for event in batch]
        storage.append(SessionHeader.from_dict(sample[0]), events)
    return Path(storage.location(ID) or "")


def text_of(data: bytes, compression: Compression) -> bytes:
    return data if compression == "none" else decompress_frames(data)


def test_closers_are_those_of_the_packages_at_every_length_of_a_log(
    peer: Peer, interrupted: Sample
) -> None:
    events = [event for batch in interrupted[1] for event in batch]
    logs = [events[:length] for length in range(len(events) + 1)]
    for log, theirs in zip(logs, peer("closers", logs=logs), strict=True):
        assert [event.to_dict() for event in interrupted_turn_closers(log)] == theirs


@ENCODINGS
def test_a_log_left_open_is_closed_with_the_same_bytes(
    peer: Peer, tmp_path: Path, interrupted: Sample, compression: Compression
) -> None:
    path = store(tmp_path / "ours", compression, interrupted)
    before = path.read_bytes()
    shutil.copytree(tmp_path / "ours", tmp_path / "theirs")
    other = tmp_path / "theirs" / path.relative_to(tmp_path / "ours")
    JsonlStorage(tmp_path / "ours").load(ID)
    peer("read", root=tmp_path / "theirs", compression=compression, id=ID, repair=True)
    assert path.read_bytes()[: len(before)] == before == other.read_bytes()[: len(before)]
    closed = text_of(path.read_bytes(), compression)
    assert closed == text_of(other.read_bytes(), compression)
    # Two results, step/end and turn/end.
    assert len(closed.splitlines()) == len(text_of(before, compression).splitlines()) + 4


@ENCODINGS
def test_what_we_repaired_the_packages_take_as_it_is(
    peer: Peer, tmp_path: Path, interrupted: Sample, compression: Compression
) -> None:
    path = store(tmp_path, compression, interrupted)
    path.write_bytes(path.read_bytes()[:-7])
    stored = JsonlStorage(tmp_path).load(ID)
    repaired = path.read_bytes()
    for repair in (False, True):
        theirs = peer("read", root=tmp_path, compression=compression, id=ID, repair=repair)
        assert theirs["events"] == [event.to_dict() for event in stored.log.view()]
    assert path.read_bytes() == repaired


@ENCODINGS
def test_torn_logs_are_mended_to_the_same_bytes(
    peer: Peer, tmp_path: Path, interrupted: Sample, compression: Compression
) -> None:
    whole = store(tmp_path / "whole", compression, interrupted)
    data = whole.read_bytes()
    # Some fifty places, the last hundred bytes closely.
    cuts = [*range(1, len(data) - 100, len(data) // 35), *range(len(data) - 100, len(data), 7)]
    for cut in cuts:
        ours, theirs = tmp_path / f"ours{cut}", tmp_path / f"theirs{cut}"
        for root in (ours, theirs):
            path = root / whole.relative_to(tmp_path / "whole")
            path.parent.mkdir(parents=True)
            path.write_bytes(data[:cut])
        where = whole.relative_to(tmp_path / "whole")
        try:
            JsonlStorage(ours).load(ID)
        except CorruptLogError:
            with pytest.raises(RuntimeError):
                peer("read", root=theirs, compression=compression, id=ID, repair=True)
            continue
        peer("read", root=theirs, compression=compression, id=ID, repair=True)
        mended = text_of((ours / where).read_bytes(), compression)
        assert mended == text_of((theirs / where).read_bytes(), compression), f"cut at {cut}"
