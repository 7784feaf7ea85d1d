"""Zstandard frames: structure, cuts at every byte, flipped bits (storage.md, 5.4)."""

from __future__ import annotations

import sys

import pytest

from turnlog.codec.frames import (
    MAGIC,
    compress_frame,
    decompress_frames,
    decompress_torn,
    find_frame,
    first_frame_end,
    scan_frames,
)
from turnlog.errors import CorruptLogError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

TEXTS = [b"one\n", b"", b"two 2 two 2 " * 50 + b"\n", bytes(range(256)) * 600, b"z\n"]
FRAMES = [compress_frame(text) for text in TEXTS]
FILE = b"".join(FRAMES)


def ends() -> list[int]:
    at, found = 0, []
    for frame in FRAMES:
        at += len(frame)
        found.append(at)
    return found


def test_frames_are_found_without_decompressing() -> None:
    frames = scan_frames(FILE)
    assert frames.ends == ends()
    assert frames.torn_start is None
    assert list(frames.spans()) == list(zip([0, *ends()], ends(), strict=False))
    assert decompress_frames(FILE) == b"".join(TEXTS)
    assert first_frame_end(FILE) == ends()[0]


def test_every_frame_carries_a_checksum() -> None:
    for frame in FRAMES:
        assert frame[4] & 4


def test_a_cut_at_any_byte_costs_the_last_frame_only() -> None:
    for cut in range(ends()[2] + 1):
        frames = scan_frames(FILE[:cut])
        whole = [end for end in ends() if end <= cut]
        assert frames.ends == whole
        assert frames.torn_start == (None if cut in (0, *whole) else ([0, *whole][-1]))


def test_a_torn_frame_gives_a_prefix_of_its_text() -> None:
    text = bytes(range(256)) * 2000
    frame = compress_frame(text)
    lengths = []
    for cut in (0, 1, 5, 9, len(frame) // 2, len(frame) - 5, len(frame) - 4, len(frame) - 1):
        part = decompress_torn(frame[:cut])
        assert text.startswith(part)
        lengths.append(len(part))
    assert lengths == sorted(lengths)
    assert lengths[-2:] == [len(text)] * 2


def test_damage_in_a_torn_frame_ends_its_text() -> None:
    frame = bytearray(compress_frame(bytes(range(256)) * 2000))
    frame[-200] ^= 0xFF
    assert isinstance(decompress_torn(bytes(frame[:-4])), bytes)


def test_every_flipped_bit_of_a_frame_is_noticed() -> None:
    frame = compress_frame(b'{"a":"some text, some text, more of it"}\n' * 3)
    for at in range(len(frame)):
        for bit in range(8):
            bad = bytearray(frame)
            bad[at] ^= 1 << bit
            try:
                scan = scan_frames(bytes(bad))
                text = decompress_frames(bytes(bad)) if scan.torn_start is None else None
            except CorruptLogError as error:
                assert error.code == "BAD_FRAME"  # noqa: PT017 - most flips are noticed by the scan already
                continue
            # Cut-off or the same text: a flip in an unused descriptor bit changes nothing.
            assert text in (None, decompress_frames(frame)), (at, bit)


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"\x28\xb5\x2e", "no zstd frame"),
        (b"x", "no zstd frame"),
        (FILE + b"\x00", "no zstd frame"),
        (b"\x50\x2a\x4d\x18\x00\x00\x00\x00", "no zstd frame"),  # a skippable frame
        (MAGIC + b"\x08", "reserved"),
        (MAGIC + b"\x24\x00\x07\x00\x00", "reserved kind"),
    ],
)
def test_what_no_frame_can_be_is_damage(data: bytes, what: str) -> None:
    with pytest.raises(CorruptLogError, match=what) as caught:
        scan_frames(data)
    assert caught.value.code == "BAD_FRAME"


def test_frames_of_all_header_layouts_are_scanned() -> None:
    for size in (0, 1, 255, 256, 70_000):
        for level in (1, 3, 19):
            text = b"a" * size
            for checksum in (0, 1):
                options: dict[int, int] = {
                    zstd.CompressionParameter.compression_level: level,
                    zstd.CompressionParameter.checksum_flag: checksum,
                }
                frame = zstd.compress(text, options=options)
                assert scan_frames(frame + FRAMES[0]).ends == [len(frame), len(frame + FRAMES[0])]
    compressor = zstd.ZstdCompressor()
    streamed = compressor.compress(b"abc") + compressor.flush()  # a frame without its size
    assert scan_frames(streamed).ends == [len(streamed)]


def test_a_frame_that_asks_for_a_huge_window_is_refused() -> None:
    compressor = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 30})
    frame = compressor.compress(b"a" * 10) + compressor.flush()
    with pytest.raises(CorruptLogError):
        decompress_frames(frame)
    assert decompress_torn(frame) == b""


def test_a_whole_frame_is_found_among_other_bytes() -> None:
    frame = FRAMES[2]
    assert find_frame(b"x" * 9 + frame, 0) == 9
    assert find_frame(MAGIC + b"x" * 9 + frame + b"x", 1) == 13
    assert find_frame(frame, 1) is None
    assert find_frame(frame[:-1], 0) is None
    assert find_frame(frame[:-1] + b"x", 0) is None
    assert find_frame(b"", 0) is None
