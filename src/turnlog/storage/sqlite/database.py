"""The database file: opening it, proving that it is ours, and running transactions on it.

A file is written to only after its application id and schema version were read and are ours, or after it proved
empty; anything else is refused as it is. That look is at the file's own first bytes, because merely opening a
database recovers what its owner's crash left. WAL with `synchronous=FULL`: a committed transaction survives a power
cut as far as the disk tells the truth, and readers in other processes never wait for the writer.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from turnlog.engine.directories import make_directory, sync_directory
from turnlog.engine.forking import watch_forks
from turnlog.errors import (
    CorruptLogError,
    StorageBusyError,
    StorageError,
    StorageWriteError,
    UnsupportedFormatError,
)
from turnlog.storage.sqlite.schema import APPLICATION_ID, MIGRATIONS, PAGE_SIZE, SCHEMA_VERSION

_MAGIC = b"SQLite format 3\0"
_HEAD_BYTES = 105
"""The file's header, and as much of its first page as tells whether anything is in it."""


class Database:
    """One connection to a store's file, opened on first use. Thread-safe: transactions take turns.

    `busy_timeout_ms`: how long a transaction waits for another process's before it is refused as busy.
    """

    def __init__(self, path: Path, *, busy_timeout_ms: int = 5000) -> None:
        self.path = path
        self._busy_timeout_ms = busy_timeout_ms
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        watch_forks(self)

    def before_fork(self) -> None:
        """Close the connection.

        SQLite keeps account of its locks for each file and process, so with an open connection a child would hold
        locks that it has not: even a connection of its own could then lose what it commits.
        """
        self._lock.acquire()
        if self._connection is not None and not self._connection.in_transaction:
            self.close()

    def after_fork(self, *, in_child: bool) -> None:
        """Go on with a new connection, when one is needed."""
        if in_child and self._connection is not None:
            # Forked inside a transaction: not even closing it is safe.
            _inherited.append(self._connection)
            self._connection = None
        self._lock.release()

    def exists(self) -> bool:
        """Whether there is a store; looking into one that was never written to creates no file."""
        try:
            return self.path.stat().st_size > 0
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise _unreadable(self.path, str(error.strerror or error)) from error

    @contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """A transaction that sees one state of the store and writes nothing."""
        with self._lock, self._translated("UNREADABLE"):
            connection = self._open_to_read()
            try:
                connection.execute("BEGIN")
                yield connection
            finally:
                if connection is self._connection:
                    connection.rollback()
                else:
                    connection.close()

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """A transaction that is durable when the block ends, and never happened when it raises.

        A commit that fails is rolled back; `SYNC_FAILED` where even that leaves the outcome unknown.
        """
        with self._lock, self._translated("WRITE_FAILED"):
            connection = self._open()
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.commit()
            except BaseException:
                if connection.in_transaction:
                    connection.rollback()
                raise

    def close(self) -> None:
        """Close the connection; the next use opens it again."""
        with self._lock:
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()

    @contextmanager
    def _translated(self, code: str) -> Iterator[None]:
        """The driver's errors as ours; `code` is that of a medium that refuses."""
        try:
            yield
        except sqlite3.Error as error:
            raise _translate(self.path, error, code) from error

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            _create_file(self.path)
            _check_file(self.path)
            connection = self._connect(str(self.path))
            try:
                self._prepare(connection)
            except BaseException:
                connection.close()
                raise
            self._connection = connection
        return self._connection

    def _connect(self, target: str, *, uri: bool = False) -> sqlite3.Connection:
        return sqlite3.connect(
            target,
            timeout=self._busy_timeout_ms / 1000,
            isolation_level=None,
            check_same_thread=False,
            uri=uri,
        )

    def _open_to_read(self) -> sqlite3.Connection:
        """The connection; on a read-only medium one of this call's own, which needs no side files."""
        try:
            return self._open()
        except sqlite3.OperationalError as error:
            refused = _primary_code(error) in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY)
            if not refused or _side_files(self.path):
                raise
        # Nobody writes here: without permission for side files, no other process of ours could either.
        connection = self._connect(f"{self.path.as_uri()}?mode=ro&immutable=1", uri=True)
        try:
            self._check_version(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        connection.execute("PRAGMA trusted_schema=OFF")
        version = self._check_version(connection)
        if not version:
            connection.execute(f"PRAGMA page_size={PAGE_SIZE}")
        connection.execute("PRAGMA synchronous=FULL")
        if version < SCHEMA_VERSION:
            # Before the switch to WAL, so that the marks that `_check_file` looks for are in the file itself.
            self._migrate(connection)
        self._use_wal(connection)

    def _use_wal(self, connection: sqlite3.Connection) -> None:
        # The switch does not wait for others that are opening the same new file; WAL or not, all is durable.
        deadline = time.monotonic() + self._busy_timeout_ms / 1000
        while True:
            try:
                connection.execute("PRAGMA journal_mode=WAL")
                return
            except sqlite3.OperationalError as error:
                if not _is_busy(error) or time.monotonic() > deadline:
                    raise
                time.sleep(0.005)

    def _check_version(self, connection: sqlite3.Connection) -> int:
        """The store's schema version, 0 for an empty file; refuses a newer one."""
        version = _pragma(connection, "user_version")
        if version > SCHEMA_VERSION:
            raise _newer(self.path, version)
        return version

    def _migrate(self, connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN IMMEDIATE")
        try:
            # Read again: another process may have been faster between our look and our lock.
            version = self._check_version(connection)
            for step in MIGRATIONS[version:]:
                for statement in step:
                    connection.execute(statement)
            if not version:
                connection.execute("INSERT INTO store VALUES (?)", (os.urandom(16).hex(),))
                connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
            connection.commit()
        except BaseException:
            if connection.in_transaction:
                connection.rollback()
            raise


_inherited: list[sqlite3.Connection] = []
"""Connections of the parent process: kept, because to let go of one would close it."""


def _check_file(path: Path) -> None:
    """Refuse a file that is no store of ours, or of a newer program, before SQLite touches it."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
            size = file.seek(0, os.SEEK_END)
    except OSError as error:
        raise _unreadable(path, str(error.strerror or error)) from error
    if not size:
        return
    if len(head) < _HEAD_BYTES or not head.startswith(_MAGIC):
        raise CorruptLogError(
            f"{path} is no database, or its beginning is damaged; restore it from a copy",
            code="DAMAGED_DATABASE",
            path=str(path),
        )
    version, application_id = (int.from_bytes(head[at : at + 4], "big") for at in (60, 68))
    cells = int.from_bytes(head[103:105], "big")
    unmarked = application_id == version == 0
    if application_id != APPLICATION_ID and not (unmarked and not cells and not _side_files(path)):
        raise StorageError(
            f"{path} is a database of another program; choose another file",
            code="FOREIGN_DATABASE",
            path=str(path),
        )
    if version > SCHEMA_VERSION:
        raise _newer(path, version)


def _side_files(path: Path) -> list[Path]:
    """What SQLite keeps beside a file that is in use, or was at a crash."""
    sides = [path.with_name(path.name + end) for end in ("-wal", "-journal")]
    return [side for side in sides if side.exists() and side.stat().st_size]


def _newer(path: Path, version: int) -> UnsupportedFormatError:
    return UnsupportedFormatError(
        f"{path} has schema version {version} and this program knows {SCHEMA_VERSION}; upgrade turnlog",
        code="NEWER_FORMAT",
        path=str(path),
        version=version,
    )


def _unreadable(path: Path, what: str) -> StorageError:
    return StorageError(f"{path} cannot be read: {what}", code="UNREADABLE", path=str(path))


def _primary_code(error: sqlite3.Error) -> int:
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def _is_busy(error: sqlite3.Error) -> bool:
    return _primary_code(error) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def _translate(path: Path, error: sqlite3.Error, code: str) -> StorageError:
    primary = _primary_code(error)
    if _is_busy(error):
        return StorageBusyError(
            f"{path} is busy: another process kept it for too long; try again", path=str(path)
        )
    if primary in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return CorruptLogError(
            f"{path} is no sound database ({error}); restore it from a copy",
            code="DAMAGED_DATABASE",
            path=str(path),
        )
    if code == "UNREADABLE":
        return _unreadable(path, str(error))
    # Only an I/O error leaves open what is on the disk; everything else was refused before it got there.
    unsure = primary == sqlite3.SQLITE_IOERR
    return StorageWriteError(
        f"{path}: {error}", code="SYNC_FAILED" if unsure else "WRITE_FAILED", path=str(path)
    )


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])


def _create_file(path: Path) -> None:
    """An empty file for this user alone, where there is none; SQLite gives its side files the same mode."""
    try:
        make_directory(path.parent)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        sync_directory(path.parent)
    except FileExistsError:
        return
    except OSError as error:
        raise StorageWriteError(
            f"{path} cannot be created: {error.strerror or error}", path=str(path)
        ) from error
