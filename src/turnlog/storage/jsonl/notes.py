"""Notes of a session in a JSONL root: a sidecar file in its directory, which no harness looks at."""

from __future__ import annotations

from pathlib import Path

import msgspec

from turnlog.engine.listing import Notes
from turnlog.errors import JsonValueError
from turnlog.lossless import canonicalize, parse_json
from turnlog.storage.jsonl.files import replace_file

NOTES_NAME = "session.notes.json"


def read_notes(log: Path) -> Notes:
    """The notes beside a log; empty where there are none, or none that can be read."""
    try:
        wire = parse_json(log.with_name(NOTES_NAME).read_bytes())
        return msgspec.convert(wire, type=Notes)
    except (OSError, JsonValueError, msgspec.ValidationError):
        return Notes()


def write_notes(log: Path, notes: Notes) -> None:
    """Replace the notes beside a log, durably."""
    wire = {"tags": list(notes.tags), "archived": notes.archived}
    replace_file(log.with_name(NOTES_NAME), canonicalize(wire)[0])


def forget_notes(log: Path) -> None:
    """Remove notes that a deleted session of the same id has left behind, as far as it goes."""
    try:
        log.with_name(NOTES_NAME).unlink()
    except OSError:
        return
