"""A small index beside the logs, so that listing and titles do not read them.

Derived and never trusted: an entry counts only while its file is in exactly the state that it was made from, and
an index that is missing, damaged, of another version or not writable is rebuilt, or kept in memory. It lies in
the root as one SQLite file under a name that no harness looks at.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from turnlog.engine.listing import Progress
from turnlog.errors import TurnlogError
from turnlog.header import SessionHeader
from turnlog.lossless import canonicalize, parse_json

INDEX_NAME = ".turnlog-index.db"
_VERSION = 1
_KEYS = {
    "events": "events",
    "last_time": "lastTime",
    "title": "title",
    "open_turn": "openTurn",
}
_TABLE = "CREATE TABLE IF NOT EXISTS entries (path BLOB PRIMARY KEY, revision TEXT, entry BLOB)"


class IndexEntry(msgspec.Struct, frozen=True):
    """What the index knows of one log file in one state."""

    header: SessionHeader
    progress: Progress


class LogIndex:
    """The index of one root. Thread-safe."""

    def __init__(self, root: Path) -> None:
        self._path = root / INDEX_NAME
        self._lock = threading.Lock()
        self._entries: dict[str, tuple[str, IndexEntry]] | None = None

    def look_up(
        self, files: Iterable[tuple[Path, str]], read: Callable[[Path], IndexEntry | None]
    ) -> list[tuple[Path, IndexEntry]]:
        """The entries of the files, given with their present revisions; `read` makes those that are not current.

        A file for which `read` gives None is left out, and tried again the next time.
        """
        with self._lock:
            known = self._load()
            found, fresh, seen = [], {}, set()
            for path, revision in files:
                name = os.fspath(path)
                seen.add(name)
                entry = known[name][1] if name in known and known[name][0] == revision else None
                if entry is None and (entry := read(path)) is not None:
                    fresh[name] = (revision, entry)
                if entry is not None:
                    found.append((path, entry))
            gone = known.keys() - seen
            if fresh or gone:
                self._entries = {
                    name: pair for name, pair in (known | fresh).items() if name in seen
                }
                self._save(fresh, gone)
            return found

    def _load(self) -> dict[str, tuple[str, IndexEntry]]:
        if self._entries is None:
            try:
                self._entries = self._read() if self._path.exists() else {}
            except sqlite3.OperationalError:
                self._entries = {}  # not to be had now, because another process is at it say
            except (sqlite3.Error, ValueError, KeyError, TypeError, TurnlogError):
                # Whatever is wrong with it, the logs know better.
                self._remove()
                self._entries = {}
        return self._entries

    def _read(self) -> dict[str, tuple[str, IndexEntry]]:
        connection = sqlite3.connect(self._path)
        try:
            if connection.execute("PRAGMA user_version").fetchone()[0] != _VERSION:
                raise ValueError("an index of another version")
            rows = connection.execute("SELECT path, revision, entry FROM entries").fetchall()
        finally:
            connection.close()
        return {os.fsdecode(path): (revision, _decode(entry)) for path, revision, entry in rows}

    def _save(self, fresh: dict[str, tuple[str, IndexEntry]], gone: Iterable[str]) -> None:
        try:
            if not self._path.exists():
                os.close(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
            connection = sqlite3.connect(self._path)
            try:
                with connection:
                    connection.execute(_TABLE)
                    connection.execute(f"PRAGMA user_version={_VERSION}")
                    connection.executemany(
                        "DELETE FROM entries WHERE path = ?",
                        [(os.fsencode(name),) for name in gone],
                    )
                    connection.executemany(
                        "INSERT OR REPLACE INTO entries VALUES (?, ?, ?)",
                        [
                            (os.fsencode(name), revision, _encode(entry))
                            for name, (revision, entry) in fresh.items()
                        ],
                    )
            finally:
                connection.close()
        except (OSError, sqlite3.Error):
            # A read-only root, a full disk, another process at it: it costs the next listing some reading.
            return

    def _remove(self) -> None:
        try:
            self._path.unlink()
        except OSError:
            return


def _encode(entry: IndexEntry) -> bytes:
    wire = {key: getattr(entry.progress, name) for name, key in _KEYS.items()}
    return canonicalize({"header": entry.header.to_dict(), **wire})[0]


def _decode(text: bytes) -> IndexEntry:
    wire = parse_json(text)
    fields = {name: wire[key] for name, key in _KEYS.items()}
    progress = msgspec.convert(fields, type=Progress)
    return IndexEntry(SessionHeader.from_dict(wire["header"]), progress)
