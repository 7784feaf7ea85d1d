"""One session, two programs: what either writes the other reads, byte for byte the same (storage.md, 5)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import pytest

from turnlog.codec.frames import MAGIC, decompress_frames
from turnlog.events import SessionEvent
from turnlog.header import SessionHeader
from turnlog.log import Turnlog
from turnlog.lossless import canonicalize
from turnlog.messages import user_message
from turnlog.storage.jsonl import JsonlStorage

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

Peer = Callable[..., Any]
Wire = dict[str, Any]
Sample = tuple[Wire, list[list[Wire]]]
Compression = Literal["none", "zstd"]

ENCODINGS = pytest.mark.parametrize("compression", ["none", "zstd"])
PACKING = pytest.mark.parametrize("pack", [True, False], ids=["packed", "plain"])


def write_ours(root: Path, compression: Compression, pack: bool, sample: Sample) -> None:
    storage = JsonlStorage(root, compression=compression, pack=pack)
    header, batches = sample
    for batch in batches:
        storage.append(SessionHeader.from_dict(header), [SessionEvent.from_dict(e) for e in batch])
    storage.close()


def write_theirs(
    peer: Peer, root: Path, compression: Compression, pack: bool, sample: Sample
) -> None:
    header, batches = sample
    where = {"root": root, "compression": compression, "packChunks": pack}
    peer("write", **where, id=header["id"], header=header, batches=batches)


def ours(root: Path, id: str) -> Wire:
    """Our balanced view of a stored session, as the driver gives theirs."""
    stored = JsonlStorage(root).inspect(id)
    session = stored.to_session(mark_seed=False)
    return {
        "header": {"delegationDepth": 0, **session.header.to_dict()},
        "events": [event.to_dict() for event in session.events],
        "messages": [message.to_dict() for message in session.derive_messages()],
        "nodes": list(session.surface.nodes),
    }


def texts(values: list[Any]) -> list[bytes]:
    """The values as canonical JSON, in which equal means equal with key order."""
    return [canonicalize(value)[0] for value in values]


def assert_same(left: Wire, right: Wire) -> None:
    assert left["header"] == right["header"]
    assert texts(left["events"]) == texts(right["events"])
    assert texts(left["messages"]) == texts(right["messages"])
    assert left["nodes"] == right["nodes"]


def log_bytes(root: Path) -> bytes:
    (path,) = [*root.glob("*/*/session.jsonl"), *root.glob("*/*/session.jsonl.zstd")]
    return path.read_bytes()


@ENCODINGS
@PACKING
def test_the_packages_read_what_we_wrote(
    peer: Peer, tmp_path: Path, sample: Sample, compression: Compression, pack: bool
) -> None:
    write_ours(tmp_path, compression, pack, sample)
    name = sample[0]["id"]
    before = log_bytes(tmp_path)
    theirs = peer("read", root=tmp_path, compression=compression, id=name)
    assert_same(theirs, ours(tmp_path, name))
    assert peer("list", root=tmp_path, compression=compression) == [sample[0]]
    assert log_bytes(tmp_path) == before


@ENCODINGS
@PACKING
def test_we_read_what_the_packages_wrote(
    peer: Peer, tmp_path: Path, sample: Sample, compression: Compression, pack: bool
) -> None:
    write_theirs(peer, tmp_path, compression, pack, sample)
    name = sample[0]["id"]
    found = ours(tmp_path, name)
    assert_same(found, peer("read", root=tmp_path, compression=compression, id=name))
    written = [event for batch in sample[1] for event in batch]
    assert texts(found["events"][: len(written)]) == texts(written)
    listed = JsonlStorage(tmp_path).list()
    assert [entry.header and entry.header.to_dict() for entry in listed] == [sample[0]]


@PACKING
def test_raw_files_are_byte_identical(
    peer: Peer, tmp_path: Path, sample: Sample, pack: bool
) -> None:
    write_ours(tmp_path / "ours", "none", pack, sample)
    write_theirs(peer, tmp_path / "theirs", "none", pack, sample)
    assert log_bytes(tmp_path / "ours") == log_bytes(tmp_path / "theirs")
    assert _names(tmp_path / "ours") == _names(tmp_path / "theirs")


@PACKING
def test_compressed_files_hold_identical_text(
    peer: Peer, tmp_path: Path, sample: Sample, pack: bool
) -> None:
    write_ours(tmp_path / "ours", "zstd", pack, sample)
    write_theirs(peer, tmp_path / "theirs", "zstd", pack, sample)
    one, other = log_bytes(tmp_path / "ours"), log_bytes(tmp_path / "theirs")
    assert one[:4] == other[:4] == MAGIC
    assert decompress_frames(one) == decompress_frames(other)
    assert _names(tmp_path / "ours") == _names(tmp_path / "theirs")


def _names(root: Path) -> list[str]:
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


@ENCODINGS
def test_both_write_one_file_in_turn(peer: Peer, tmp_path: Path, compression: Compression) -> None:
    where = {"root": tmp_path, "compression": compression}
    log = Turnlog(JsonlStorage(tmp_path, compression=compression))
    with log.create(id="shared", cwd="/work") as session:
        session.append_user("begin")
    said = ["begin"]
    for number in range(20):
        turn, text = number + 1, f"round {number}"
        said.append(text)
        if number % 2:
            with log.resume("shared") as session:
                for entry in _turn(turn, text):
                    session.append(entry["type"], entry["data"], surface_op=entry.get("surfaceOp"))
                session.flush()
                messages = [message.to_dict() for message in session.derive_messages()]
        else:
            messages = peer("resume", **where, id="shared", entries=_turn(turn, text))["messages"]
        assert [message["content"][0]["text"] for message in messages] == said
    log.close()
    assert_same(peer("read", **where, id="shared"), ours(tmp_path, "shared"))
    types = [event["type"] for event in ours(tmp_path, "shared")["events"]]
    assert types.count("turn/end") == 20
    # Each of them marked where it took over, and nobody repaired anything.
    assert types.count("session/end-seed") == 20


def _turn(turn: int, text: str) -> list[Wire]:
    place = {"turn": turn, "step": 1}
    chunks = [{"type": "text-delta", "index": 0, "text": part} for part in ("a", "b\ud800", "c")]
    return [
        {"type": "turn/start", "data": {"turn": turn}},
        {"type": "user/message", "data": user_message(text).to_dict(), "surfaceOp": "append"},
        {"type": "step/start", "data": place},
        *({"type": "assistant/chunk", "data": {**place, "chunk": chunk}} for chunk in chunks),
        {"type": "step/end", "data": place},
        {"type": "turn/end", "data": {"turn": turn, "reason": {"kind": "completed"}}},
    ]
