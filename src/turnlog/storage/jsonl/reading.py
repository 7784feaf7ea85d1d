"""Reading one log file: header, events, and what its end looks like.

Works on a file wherever it lies; whether it lies where its header says is the storage's question. Files are
told apart by their first bytes, not by their names.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from turnlog.codec.frames import (
    MAGIC,
    Frames,
    decompress_frames,
    decompress_torn,
    find_frame,
    first_frame_end,
    scan_frames,
)
from turnlog.codec.reader import BLOCK_BYTES, LogReader
from turnlog.engine.protocol import Damage, Salvage, StoredLog, TornTail
from turnlog.engine.salvage import BOM, Salvager
from turnlog.errors import (
    CorruptLogError,
    HeaderError,
    JsonValueError,
    StorageError,
    UnsupportedFormatError,
)
from turnlog.header import FORMAT_VERSION, SessionHeader
from turnlog.lossless import parse_json
from turnlog.storage.jsonl.files import FileState, open_log, read_stable
from turnlog.storage.jsonl.paths import Encoding

_HEADER_CHUNK = 8 * 1024
MAX_HEADER_BYTES = 1024 * 1024
"""A first line longer than this is taken for no header, so that a listing never reads a whole file for one."""


class LogFile(NamedTuple):
    """A read file: the log, how it is encoded, and the state of the file that was read."""

    stored: StoredLog
    encoding: Encoding
    state: FileState


def parse_header(line: bytes, path: Path) -> SessionHeader:
    """The header of a first line without its line feed.

    The version comes first: a log of another version is refused as such, whatever else its header holds.
    """
    try:
        wire = parse_json(line.removeprefix(BOM))
    except JsonValueError as error:
        raise _corrupt(path, f"the header is no JSON ({error.message})") from error
    if not isinstance(wire, dict):
        raise _corrupt(path, "the first line is no header")
    _check_version(wire, path)
    if wire.get("type") != "session":
        raise _corrupt(path, "the first line is no header (its type is not 'session')")
    for name in ("version", "delegationDepth"):
        if name not in wire:
            raise _corrupt(path, f"the header lacks {name}")
    try:
        return SessionHeader.from_dict(wire)
    except HeaderError as error:
        raise _corrupt(path, error.message, code=error.code) from error


def _check_version(wire: dict[str, Any], path: Path) -> None:
    version = wire.get("version")
    if (
        isinstance(version, bool)
        or not isinstance(version, (int, float))
        or version == FORMAT_VERSION
    ):
        return
    # The logs of June 2026 called themselves version 1 and are older than 0; their headers are bare.
    older = version < FORMAT_VERSION or (version == 1 and "delegationDepth" not in wire)
    if older:
        what = f"older than the supported version {FORMAT_VERSION}, and there is no upgrade path"
    else:
        what = f"written by a newer program; upgrade turnlog to read it (this one reads {FORMAT_VERSION})"
    raise UnsupportedFormatError(
        f"session {wire.get('id')!r} is of format version {version}, {what} (raw log: {path})",
        code="OLDER_FORMAT" if older else "NEWER_FORMAT",
        session_id=str(wire.get("id")),
        path=str(path),
        version=version,
    )


def _corrupt(path: Path, what: str, code: str = "CORRUPT_HEADER") -> CorruptLogError:
    return CorruptLogError(f"{path}: {what}", code=code, path=str(path), line=1, offset=0)


def read_header(path: Path) -> SessionHeader:
    """The header alone, from the first kilobytes of the file."""
    data = b""
    with open_log(path) as file:
        while True:
            chunk = file.read(_HEADER_CHUNK)
            data += chunk
            line = _header_line(data, path)
            if line is not None:
                return parse_header(line, path)
            if not chunk:
                raise _corrupt(path, "the file is empty" if not data else "the header is cut off")
            if len(data) > MAX_HEADER_BYTES:
                raise _corrupt(path, "the first line is too long for a header")


def _header_line(data: bytes, path: Path) -> bytes | None:
    """The header line without its line feed, or None when the data does not hold all of it."""
    if data.startswith(MAGIC[: len(data)] or b"\0") and data[:1] == MAGIC[:1]:
        end = first_frame_end(data)
        if end is None:
            return None
        text = decompress_frames(data[:end])
        if not text.endswith(b"\n") or text.count(b"\n") != 1:
            raise _corrupt(path, "the first frame is not exactly the header line")
        return text[:-1]
    at = data.find(b"\n")
    return None if at < 0 else data[:at].removesuffix(b"\r")


def read_log(path: Path) -> LogFile:
    """The validated log of a file as it is stored; nothing is written.

    Raises `CorruptLogError`, `UnsupportedFormatError`, or OSError from the file system.
    """
    data, state = read_stable(path)
    try:
        if data[:4] == MAGIC:
            stored, encoding = _read_compressed(data, path), "zstd"
        else:
            stored, encoding = _read_raw(data, path), "none"
    except StorageError as error:
        error.details.setdefault("path", str(path))
        raise
    stored.revision = state.revision
    return LogFile(stored, encoding, state)  # type: ignore[arg-type]


def _read_raw(data: bytes, path: Path) -> StoredLog:
    end = data.find(b"\n") + 1
    if not end:
        raise _corrupt(path, "the file is empty" if not data else "the header is cut off")
    header = parse_header(data[: end - 1].removesuffix(b"\r"), path)
    reader = LogReader(header.id, line=2, offset=end)
    last = data.rfind(b"\n") + 1
    reader.feed(data, end, last)
    reader.finish(data[last:])
    torn = None
    if reader.good_offset < len(data):
        assert reader.fault is not None  # good_offset stops short only at a fault
        torn = TornTail(reader.good_offset, len(data) - reader.good_offset, 0, reader.fault.what)
    return _stored(header, reader, torn)


def _stored(header: SessionHeader, reader: LogReader, torn: TornTail | None) -> StoredLog:
    log = reader.take_log()
    return StoredLog(header, log, reader.surface, reader.state, "", torn)


def _read_compressed(data: bytes, path: Path) -> StoredLog:
    frames = scan_frames(data)
    if not frames.ends:
        raise _corrupt(path, "the file is empty or its header is cut off")
    text = _decompress(data, 0, frames.ends[0], path)
    if not text.endswith(b"\n") or text.count(b"\n") != 1:
        raise _corrupt(path, "the first frame is not exactly the header line")
    header = parse_header(text[:-1], path)
    reader = LogReader(header.id, line=2, offset=len(text))
    _feed_frames(reader, data, frames, path)
    complete = len(reader)
    torn = None
    if frames.torn_start is not None:
        behind = find_frame(data, frames.torn_start + 1)
        if behind is not None:
            # A wrong length makes a frame reach over those behind it: no crash leaves this.
            raise _bad_frame(path, frames.torn_start, behind, "a whole frame lies inside it")
        rest = decompress_torn(data[frames.torn_start :])
        reader.feed(rest[: rest.rfind(b"\n") + 1])
        torn = TornTail(
            frames.torn_start,
            len(data) - frames.torn_start,
            len(reader) - complete,
            "the last frame is incomplete",
        )
    return _stored(header, reader, torn)


def _feed_frames(reader: LogReader, data: bytes, frames: Frames, path: Path) -> None:
    """Feed all frames behind the header's, several small ones at a time.

    Complete frames were durable: nothing in them may be torn.
    """
    rest = b""
    for start, end in _groups(frames.ends):
        text = _decompress(data, start, end, path)
        if rest or not text.endswith(b"\n"):
            text = rest + text
            cut = text.rfind(b"\n") + 1
            text, rest = text[:cut], text[cut:]
            reader.feed(text)
        else:
            reader.feed_frames(text, data[start:end])
    if rest and reader.fault is None:
        reader.finish(rest)
    if reader.fault is not None:
        raise CorruptLogError(
            f"{path}: line {reader.fault.line} in a complete frame: {reader.fault.what}",
            code="TORN_IN_FRAME",
            session_id=reader.session_id,
            path=str(path),
            line=reader.fault.line,
            offset=reader.fault.offset,
        )


def _groups(ends: list[int]) -> list[tuple[int, int]]:
    """Neighbouring frames together, so that each decompression is worth its call."""
    groups: list[tuple[int, int]] = []
    start = ends[0]
    for number, end in enumerate(ends[1:], 2):
        if number == len(ends) or ends[number] - start > BLOCK_BYTES // 4:
            groups.append((start, end))
            start = end
    return groups


def _decompress(data: bytes, start: int, end: int, path: Path) -> bytes:
    try:
        return decompress_frames(data[start:end])
    except CorruptLogError as error:
        raise _bad_frame(path, start, end, error.message) from error


def _bad_frame(path: Path, start: int, end: int, what: str) -> CorruptLogError:
    return CorruptLogError(
        f"{path}: a frame between bytes {start} and {end} is damaged ({what})",
        code="BAD_FRAME",
        path=str(path),
        offset=start,
    )


def salvage_file(path: Path) -> Salvage:
    """Everything of a file that can be decoded."""
    data, _ = read_stable(path)
    salvager = Salvager()
    # By name as well: the damage may lie in the very bytes that tell a frame.
    compressed = data[:4] == MAGIC or (path.suffix == ".zstd" and MAGIC in data)
    text, faults = _salvage_text(data) if compressed else (data, [])
    salvager.damage.extend(faults)
    salvager.feed(text)
    return salvager.result()


def _salvage_text(data: bytes) -> tuple[bytes, list[Damage]]:
    """The text of a compressed file, damaged frames as far as they go; the search goes on behind them.

    And what is wrong with the frames, at the places in the text where each begins.
    """
    text = bytearray()
    faults: list[Damage] = []

    def note(what: str) -> None:
        faults.append(Damage(text.count(b"\n") + 1, len(text), what))

    at = 0
    while 0 <= at < len(data):
        try:
            end = first_frame_end(data[at:])
            if end is not None:
                text += decompress_frames(data[at : at + end])
                if at == 0 and text.find(b"\n") != len(text) - 1:
                    faults.append(Damage(1, 0, "the first frame is not exactly the header line"))
                at += end
                continue
            note(f"the frame at byte {at} of the file is cut off")
        except CorruptLogError as error:
            note(f"the frame at byte {at} of the file is damaged: {error.message}")
        text += decompress_torn(data[at:])
        if text and text[-1:] != b"\n":
            text += b"\n"
        at = data.find(MAGIC, at + 1)
    return bytes(text), faults
