"""Records to bytes: what a batch and a header look like on the medium."""

from __future__ import annotations

from collections.abc import Iterable

from turnlog.codec.chunk_rows import pack_events
from turnlog.events import SessionEvent
from turnlog.lossless import canonicalize


def encode_batch(events: Iterable[SessionEvent], *, pack: bool = True) -> bytes:
    """The events of one batch as lines of canonical JSON, each with its line feed; chunk runs as rows."""
    records = pack_events(events) if pack else events
    return b"".join(record.to_json() + b"\n" for record in records)


def encode_header(header: dict[str, object]) -> bytes:
    """The header line, with its line feed."""
    return canonicalize(header)[0] + b"\n"
