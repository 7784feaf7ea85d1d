"""What lies under the root of a JSONL store, besides what its storage looks at."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from turnlog.engine.names import lock_name
from turnlog.engine.protocol import StoredSession
from turnlog.query.doctor.leases import lock_concerns
from turnlog.query.doctor.report import Concern, Report, count
from turnlog.storage.jsonl.blobs import BLOBS_NAME
from turnlog.storage.jsonl.index import INDEX_NAME
from turnlog.storage.jsonl.notes import NOTES_NAME
from turnlog.storage.jsonl.paths import LOG_NAMES

_LOCKS = ".locks"
_OLD_MS = 60 * 60 * 1000
"""From when on a temporary file belongs to nobody: nothing is written aside for an hour."""


def examine_root(
    root: Path, entries: Sequence[StoredSession], ids: Sequence[str], now: int
) -> Report:
    """Sizes, encodings and leftovers under a root; `entries` and `ids` are what its storage lists."""
    sizes: Counter[str] = Counter()
    encodings: Counter[str] = Counter()
    temporary, cut, bare = [], [], []
    for directory, names, files in os.walk(root):
        names.sort()
        here = Path(directory)
        names[:] = [name for name in names if here != root or name not in (_LOCKS, BLOBS_NAME)]
        for name in sorted(files):
            path = here / name
            size = _size(path)
            sizes[_part_of(name)] += size
            encodings.update(key for key, log in LOG_NAMES.items() if log == name)
            if name.endswith(".tmp") and _is_old(path, now):
                temporary.append(str(path))
            elif name.startswith("session.cut-") and name.endswith(".bin"):
                cut.append(str(path))
        if here.parent.parent == root and not names and set(LOG_NAMES.values()).isdisjoint(files):
            bare.append(str(here))
    temporary += [
        str(path) for path in sorted((root / BLOBS_NAME).glob("??/*.tmp")) if _is_old(path, now)
    ]
    known = {lock_name(id_) for id_ in ids}
    # A log without a readable header still has its name.
    known |= {f"{Path(entry.location).parent.name}.lock" for entry in entries if not entry.header}
    versions = {"encoding": {"raw": encodings["none"], "zstd": encodings["zstd"]}}
    concerns = [
        *_file_concerns(temporary, cut, bare),
        *lock_concerns(root / _LOCKS, known),
    ]
    return Report("JSONL", str(root), dict(sizes), versions, concerns=concerns)


def _part_of(name: str) -> str:
    if name in LOG_NAMES.values():
        return "logs"
    if name.startswith(INDEX_NAME):
        return "index"
    return "notes" if name == NOTES_NAME else "other"


def _file_concerns(
    temporary: Sequence[str], cut: Sequence[str], bare: Sequence[str]
) -> Iterator[Concern]:
    if temporary:
        what = f"{count(temporary, 'temporary file')} that a crash left"
        yield Concern("attention", "temporary", what, "remove them: no log is in them", temporary)
    if cut:
        what = f"{count(cut, 'file')} with bytes that a repair cut off"
        do = "look into them, for they may hold whole records, and remove or move them"
        yield Concern("attention", "cut", what, do, cut)
    if bare:
        what = f"{count(bare, 'directory', 'directories')} without a log"
        yield Concern("note", "bare", what, "look into them, and remove them", bare)


def _size(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:
        return 0


def _is_old(path: Path, now: int) -> bool:
    try:
        return path.lstat().st_mtime_ns // 1_000_000 <= now - _OLD_MS
    except OSError:
        return False
