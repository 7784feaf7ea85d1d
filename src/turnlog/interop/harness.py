"""The harnesses' JSONL files in and out of a store.

Importing copies: each file is validated as a load would validate it and stored as one batch, event for event;
the file itself is never changed. It can be done again at any time: what is stored already stays, and of a
file that has grown only the new events are added (`Turnlog.import_session`).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from turnlog.codec.frames import compress_frame
from turnlog.codec.record import encode_batch, encode_header
from turnlog.engine.batch import stored_header
from turnlog.engine.protocol import StoredLog
from turnlog.errors import CorruptLogError, StorageError, TurnlogError, UnsupportedFormatError
from turnlog.interop.salvaging import rebuild_session
from turnlog.log import Turnlog
from turnlog.lossless import canonicalize
from turnlog.storage.jsonl.reading import read_header, read_log, salvage_file

SUFFIXES = (".jsonl", ".jsonl.zstd")
"""What a file in a searched directory ends in to be taken for a log."""

Status = Literal["new", "grown", "unchanged", "empty"]


class Imported(msgspec.Struct, frozen=True):
    """What came of one file: `added` of the session's `events` are new. `losses` only after a salvage."""

    id: str
    status: Status
    events: int
    added: int
    notes: list[str] = []
    losses: list[str] = []


def iter_log_files(path: Path) -> Iterator[Path]:
    """The file itself, or every log below a directory, in order of their names; links are not followed.

    Raises OSError for a path that is not there.
    """
    if not stat.S_ISDIR(path.stat().st_mode):
        yield path
        return
    for directory, names, files in os.walk(path):
        names.sort()
        for name in sorted(files):
            if name.endswith(SUFFIXES):
                yield Path(directory, name)


def import_file(log: Turnlog, path: Path, *, salvage: bool = False) -> Imported:
    """Copy the session of a file into the store.

    With `salvage`, what is sound of a damaged file becomes a session of its own, `<id>-salvaged`. Raises
    `StorageError`: the file's damage with its line, `UnsupportedFormatError`, or `ConflictError` for an id
    that another session has.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise StorageError(f"{path} is no file", code="UNREADABLE", path=str(path))
        return _import(log, path, salvage)
    except OSError as error:
        raise StorageError(
            f"{path} cannot be read: {error.strerror or error}", code="UNREADABLE", path=str(path)
        ) from error


def _import(log: Turnlog, path: Path, salvage: bool) -> Imported:
    try:
        # The header first: a file that is none of ours is refused without reading all of it.
        read_header(path)
        stored = read_log(path).stored
    except (CorruptLogError, UnsupportedFormatError) as error:
        if not salvage or error.code in ("NEWER_FORMAT", "OLDER_FORMAT"):
            raise
        return _import_salvaged(log, path)
    before, after = log.import_session(stored.header, list(stored.log.view()))
    return Imported(
        stored.header.id, _status(before, after), after, after - before, _notes(stored, after)
    )


def _import_salvaged(log: Turnlog, path: Path) -> Imported:
    name = path.parent.name if path.name.startswith("session.jsonl") else path.name.split(".")[0]
    rebuilt = rebuild_session(salvage_file(path), name or "session")
    before, after = log.import_session(rebuilt.header, rebuilt.events)
    return Imported(
        rebuilt.header.id, _status(before, after), after, after - before, losses=rebuilt.losses
    )


def _status(before: int, after: int) -> Status:
    if after == 0:
        return "empty"
    return "new" if before == 0 else "unchanged" if before == after else "grown"


def _notes(stored: StoredLog, after: int) -> list[str]:
    notes = []
    if stored.torn is not None:
        notes.append(f"the torn end of the file was left out ({stored.torn.what})")
    if stored.state.open_turn is not None:
        notes.append(f"turn {stored.state.open_turn} is open")
    if after > len(stored.log):
        notes.append(f"the store is {after - len(stored.log)} events ahead of the file")
    return notes


def export_session(log: Turnlog, id: str, *, compress: bool = False) -> tuple[bytes, list[str]]:
    """A stored session in the harness format, and what is damaged about it.

    Sound logs come out canonical: the header line and all events, chunk runs packed as one batch, so equal
    logs give equal bytes. Of a damaged log the records that can be decoded are given as they stand.
    """
    damage: list[str] = []
    try:
        stored = log.storage.inspect(id, close_turn=False)
    except (CorruptLogError, UnsupportedFormatError) as error:
        head, body = _salvaged_text(log, id)
        damage.append(f"{error.message}; only the readable records are exported, as they are")
    else:
        head = encode_header(stored_header(stored.header))
        body = encode_batch(stored.log.view())
    if not compress:
        return head + body, damage
    return compress_frame(head) + (compress_frame(body) if body else b""), damage


def _salvaged_text(log: Turnlog, id: str) -> tuple[bytes, bytes]:
    salvage = log.storage.salvage(id)
    head = b"" if salvage.header is None else canonicalize(salvage.header)[0] + b"\n"
    return head, b"".join(canonicalize(wire)[0] + b"\n" for wire in salvage.events)


def describe_refusal(error: TurnlogError, path: Path) -> str:
    """Why a file was refused, with the line where one is known, for a reader who knows the path."""
    reason = error.message.removeprefix(f"{path}: ").removeprefix(f"{path} ")
    line = error.details.get("line")
    return reason if line is None or "line " in reason else f"line {line}: {reason}"
