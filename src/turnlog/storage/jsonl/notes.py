"""Notes of a session in a JSONL root: a sidecar file in its directory, which no harness looks at."""

from __future__ import annotations

from pathlib import Path

import msgspec

from turnlog.engine.listing import Notes
from turnlog.storage.jsonl.files import replace_file

NOTES_NAME = "session.notes.json"


def read_notes(log: Path) -> Notes:
    """The notes beside a log; empty where there are none, or none that can be read."""
    try:
        return msgspec.json.decode(log.with_name(NOTES_NAME).read_bytes(), type=Notes)
    except (OSError, msgspec.DecodeError):
        return Notes()


def write_notes(log: Path, notes: Notes) -> None:
    """Replace the notes beside a log, durably."""
    replace_file(log.with_name(NOTES_NAME), msgspec.json.encode(notes))
