"""What lies in a store's database, besides what its storage looks at."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from turnlog.errors import CorruptLogError
from turnlog.query.doctor.report import Concern, Report

_SIDE_FILES = {"": "database", "-wal": "write-ahead log", "-shm": "shared memory"}
_SEQ_BITS = 32
_MIN_FREE_BYTES = 16 * 1024 * 1024


def examine_database(path: Path) -> Report:
    """Sizes, versions and leftovers of a database; its storage has found that it is one of ours.

    Raises `CorruptLogError` (`DAMAGED_DATABASE`) where not even that can be read.
    """
    parts = {
        name: size
        for suffix, name in _SIDE_FILES.items()
        if (size := _size(path.with_name(path.name + suffix))) is not None
    }
    report = Report("SQLite", str(path), parts)
    if not parts.get("database"):
        return report
    try:
        # Read-only, so that looking cannot change anything.
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
            report.versions = {
                "schema": _pragma(connection, "user_version"),
                "pageSize": _pragma(connection, "page_size"),
                "sqlite": sqlite3.sqlite_version,
            }
            report.concerns = list(_concerns(connection, path))
    except sqlite3.Error as error:
        raise CorruptLogError(
            f"{path} cannot be examined: {error}", code="DAMAGED_DATABASE", path=str(path)
        ) from error
    return report


def _concerns(connection: sqlite3.Connection, path: Path) -> Iterator[Concern]:
    faults = [str(row[0]) for row in connection.execute("PRAGMA quick_check(20)")]
    if faults != ["ok"]:
        what = f"the database is damaged: {faults[0]}"
        do = "copy the file, then `turnlog export` what can be read, or restore it from a backup"
        yield Concern("attention", "database", what, do, faults)
    (stray,) = connection.execute(
        f"SELECT count(*) FROM batches WHERE place >> {_SEQ_BITS} NOT IN (SELECT key FROM sessions)"
    ).fetchone()
    if stray:
        what = f"{stray:,} batches that belong to no session"
        yield Concern("attention", "rows", what, "nothing reads them; keep a copy of the file")
    hidden, size = connection.execute(
        f"""SELECT count(DISTINCT sessions.key), ifnull(sum(length(body)), 0) FROM sessions
            LEFT JOIN batches ON place >> {_SEQ_BITS} = sessions.key WHERE deleted"""
    ).fetchone()
    if hidden:
        what = f"{hidden:,} removed sessions ({size:,} bytes) whose events forks still share"
        do = "nothing: they go with the last of these forks"
        yield Concern("note", "shared", what, do)
    free = _pragma(connection, "freelist_count") * _pragma(connection, "page_size")
    if free >= _MIN_FREE_BYTES:
        what = f"{free:,} free bytes in the file, which new events will use"
        do = f"to give them back, run `VACUUM` in {path} while no program uses it"
        yield Concern("note", "free", what, do)


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None
