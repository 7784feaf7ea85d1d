"""Lease files that nobody will need again, as far as one can tell from outside."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from turnlog.query.doctor.report import Concern, count


def lock_concerns(directory: Path, known: set[str]) -> Iterator[Concern]:
    """Lease files of sessions that are not stored, and that no process of this host can have open."""
    if not directory.is_dir():
        return
    stale = [
        str(path)
        for path in sorted(directory.iterdir())
        if path.name not in known and _holder_is_gone(path)
    ]
    if stale:
        what = f"{count(stale, 'lease file')} of sessions that are not stored"
        do = "they may stay; remove them only while no program uses the store"
        yield Concern("note", "leases", what, do, stale)


def _holder_is_gone(path: Path) -> bool:
    """Whether the last holder was a process of this host that does not run any more."""
    try:
        note = json.loads(path.read_bytes() or b"{}")
    except (OSError, ValueError, RecursionError):
        return False
    pid = note.get("pid") if isinstance(note, dict) else None
    if type(pid) is not int or pid <= 0 or note.get("host") != socket.gethostname():
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return False
