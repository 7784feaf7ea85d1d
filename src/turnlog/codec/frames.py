"""Zstandard frames: a compressed log is a chain of them, one for the header and one for each batch.

`scan_frames` reads only the frames' structure, as RFC 8878 gives it, and so finds the last good byte without
decompressing. A frame carries a content checksum, so one flipped byte anywhere is noticed. Python 3.14 has
zstd in its standard library; before, `backports.zstd` is the same code.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from turnlog.errors import CorruptLogError

if sys.version_info >= (3, 14):  # pragma: no cover
    from compression import zstd
else:
    from backports import zstd

MAGIC = b"\x28\xb5\x2f\xfd"
_OPTIONS: Mapping[int, int] = {zstd.CompressionParameter.checksum_flag: 1}
_DICTIONARY_BYTES = (0, 1, 2, 4)
_LARGEST_WINDOW: Mapping[int, int] = {zstd.DecompressionParameter.window_log_max: 27}
"""128 MiB: what a frame may ask for; the reference's default level needs 2 MiB."""


class Frames(NamedTuple):
    """Where the complete frames of a file end, and where an incomplete last one starts (or None)."""

    ends: list[int]
    torn_start: int | None

    def spans(self) -> Iterator[tuple[int, int]]:
        """The complete frames as (start, end)."""
        return zip([0, *self.ends], self.ends, strict=False)


def compress_frame(text: bytes) -> bytes:
    """The text as one frame with a content checksum."""
    return zstd.compress(text, options=_OPTIONS)


def decompress_frames(data: bytes) -> bytes:
    """The text of one or more complete frames; `CorruptLogError` when a checksum or a block is wrong."""
    try:
        return zstd.decompress(data, options=_LARGEST_WINDOW)
    except zstd.ZstdError as error:
        raise CorruptLogError(f"a zstd frame is damaged: {error}", code="BAD_FRAME") from error


def decompress_torn(data: bytes) -> bytes:
    """What can be read of an incomplete frame; the checksum is not asked for, and damage ends the text."""
    decompressor = zstd.ZstdDecompressor(options=_LARGEST_WINDOW)
    text = bytearray()
    # In small steps, so that what came out before the decoder fails counts as read.
    for start in range(0, len(data), 512):
        try:
            text += decompressor.decompress(data[start : start + 512])
        except (zstd.ZstdError, EOFError):
            break
        if decompressor.eof:
            break
    return bytes(text)


def scan_frames(data: bytes) -> Frames:
    """The frames of a file, by structure alone; `CorruptLogError` where no frame can start or go on."""
    ends: list[int] = []
    at, size = 0, len(data)
    while at < size:
        end = _frame_end(data, at)
        if end is None:
            return Frames(ends, at)
        ends.append(end)
        at = end
    return Frames(ends, None)


def find_frame(data: bytes, start: int) -> int | None:
    """Where the next whole and sound frame begins, at `start` or behind it; None where there is none.

    Text compresses to no such bytes by chance: the four that begin a frame must be followed by a frame's
    structure and end in its checksum.
    """
    at = data.find(MAGIC, start)
    while at >= 0:
        try:
            end = _frame_end(data, at)
            if end is not None:
                decompress_frames(data[at:end])
                return at
        except CorruptLogError:
            pass
        at = data.find(MAGIC, at + 1)
    return None


def first_frame_end(data: bytes) -> int | None:
    """Where the first frame ends, or None when the data does not hold all of it."""
    return _frame_end(data, 0)


def _frame_end(data: bytes, start: int) -> int | None:
    """The end of the frame that starts here; None when the data ends inside it."""
    magic = data[start : start + 4]
    if magic != MAGIC[: len(magic)]:
        raise _bad(start, "no zstd frame starts here")
    if len(data) < start + 5:
        return None
    descriptor = data[start + 4]
    if descriptor & 0x18:
        raise _bad(start, "the frame's descriptor has reserved bits set")
    single_segment = bool(descriptor & 0x20)
    size_flag = descriptor >> 6
    size_bytes = (1 if single_segment else 0) if size_flag == 0 else 1 << size_flag
    at = start + 5 + (not single_segment) + _DICTIONARY_BYTES[descriptor & 3] + size_bytes
    last = False
    while not last:
        if len(data) < at + 3:
            return None
        block = int.from_bytes(data[at : at + 3], "little")
        last, kind = bool(block & 1), (block >> 1) & 3
        if kind == 3:
            raise _bad(start, "the frame has a block of a reserved kind")
        at += 3 + (1 if kind == 1 else block >> 3)
    at += 4 if descriptor & 4 else 0
    return at if at <= len(data) else None


def _bad(offset: int, what: str) -> CorruptLogError:
    return CorruptLogError(f"{what} (byte {offset})", code="BAD_FRAME", offset=offset)
