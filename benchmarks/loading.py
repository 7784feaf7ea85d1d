"""Loading a stored session: all lines decoded and checked, the surface folded."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import mix
from benchmarks.measure import Bar, Report, interleave, milliseconds, ratio
from turnlog.codec.reader import LogReader
from turnlog.codec.record import encode_batch, encode_header
from turnlog.engine.batch import stored_header
from turnlog.storage.jsonl.reading import read_log


def load_raw() -> Report:
    """A raw, plain file."""
    return _load(packed=False, limit=0.25)


def load_packed() -> Report:
    """A raw file whose deltas lie in rows, one batch a turn."""
    return _load(packed=True, limit=0.08)


def packed_text() -> bytes:
    """The mix packed, without the header."""
    events, step = mix.session().events, mix.EVENTS_A_TURN
    return b"".join(encode_batch(events[at : at + step]) for at in range(0, len(events), step))


def _load(*, packed: bool, limit: float) -> Report:
    lines = mix.raw_lines()
    text = packed_text() if packed else b"".join(line + b"\n" for line in lines)
    head = encode_header(stored_header(mix.session().header))
    with TemporaryDirectory() as folder:
        path = Path(folder, "session.jsonl")
        path.write_bytes(head + text)
        assert len(read_log(path).stored.log) == len(lines)
        runs: dict[str, Callable[[], object]] = {
            "json.loads": lambda: [json.loads(line) for line in lines],
            "file": lambda: read_log(path),
            "memory": lambda: _read(text),
        }
        times = interleave(runs)
    return Report(
        f"storage.jsonl.reading.read_log of a {'packed' if packed else 'plain'} file of "
        f"{len(text) / 1e6:.1f} MB, and LogReader over the same text; {len(lines):,} events",
        [
            f"json.loads of each raw line, kept in a list: {milliseconds(times['json.loads'])}",
            f"read_log: {milliseconds(times['file'])}",
            f"LogReader: {milliseconds(times['memory'])}",
        ],
        [
            Bar("read_log / json.loads", ratio(times, "file", "json.loads"), limit),
            Bar("LogReader / json.loads", ratio(times, "memory", "json.loads"), limit),
        ],
    )


def _read(text: bytes) -> object:
    reader = LogReader("mix")
    reader.feed(text)
    reader.finish()
    return reader.take_log(), reader.surface
