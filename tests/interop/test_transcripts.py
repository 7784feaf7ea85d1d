"""Real session files: what the TypeScript packages load, we load with the same history, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from turnlog.codec.frames import MAGIC, decompress_frames, scan_frames
from turnlog.errors import TurnlogError
from turnlog.lossless import canonicalize
from turnlog.storage.jsonl import JsonlStorage
from turnlog.storage.jsonl.paths import session_dir

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

Peer = Callable[..., Any]
HEADER = {"type": "session", "version": 0, "id": "no-header", "createdAt": 1, "cwd": "/w"}


def prepare(data: bytes) -> tuple[dict[str, Any], bytes]:
    """A fixture as a stored file: its placeholder for the directory filled, its header complete."""
    if data[:4] == MAGIC:
        return json.loads(decompress_frames(data[: scan_frames(data).ends[0]])), data
    data = data.replace(b"{{cwd}}", b"/w")
    first, _, rest = data.partition(b"\n")
    header = json.loads(first)
    if header.get("type") != "session":
        header, rest = dict(HEADER), data
    header.setdefault("delegationDepth", 0)
    return header, canonicalize(header)[0] + b"\n" + rest


def place(root: Path, data: bytes) -> tuple[str, str]:
    """The fixture in a root of its own; its id and its encoding."""
    header, text = prepare(data)
    encoding, name = (
        ("zstd", "session.jsonl.zstd") if text[:4] == MAGIC else ("none", "session.jsonl")
    )
    folder = session_dir(root, header.get("cwd"), header["id"])
    folder.mkdir(parents=True)
    (folder / name).write_bytes(text)
    return header["id"], encoding


def ours(root: Path, id: str) -> list[bytes] | None:
    try:
        session = JsonlStorage(root).inspect(id).to_session(mark_seed=False)
    except TurnlogError:
        return None
    return [canonicalize(message)[0] for message in session.derive_messages()]


def theirs(peer: Peer, root: Path, id: str, encoding: str) -> list[bytes] | None:
    try:
        view = peer("read", root=root, compression=encoding, id=id)
    except RuntimeError:
        return None
    return [canonicalize(message)[0] for message in view["messages"]]


def test_every_transcript_loads_alike(peer: Peer, transcripts: Path, tmp_path: Path) -> None:
    loaded, differ = 0, []
    for number, path in enumerate(sorted((transcripts / "dsh").rglob("*.jsonl*"))):
        root = tmp_path / str(number)
        name, encoding = place(root, path.read_bytes())
        mine, other = ours(root, name), theirs(peer, root, name, encoding)
        loaded += mine is not None
        if mine != other:
            differ.append(path.name)
    assert differ == []
    assert loaded > 100
