"""The database file: opening it, proving that it is ours, and running transactions on it.

A file is written to only after its application id and schema version were read and are ours, or after it proved
empty; anything else is refused as it is. WAL with `synchronous=FULL`: a committed transaction survives a power
cut as far as the disk tells the truth, and readers in other processes never wait for the writer.
"""

from __future__ import annotations

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from turnlog.errors import (
    CorruptLogError,
    StorageBusyError,
    StorageError,
    StorageWriteError,
    UnsupportedFormatError,
)
from turnlog.storage.sqlite.schema import APPLICATION_ID, MIGRATIONS, PAGE_SIZE, SCHEMA_VERSION


class Database:
    """One connection to a store's file, opened on first use. Thread-safe: transactions take turns.

    `busy_timeout_ms`: how long a transaction waits for another process's before it is refused as busy.
    """

    def __init__(self, path: Path, *, busy_timeout_ms: int = 5000) -> None:
        self.path = path
        self._busy_timeout_ms = busy_timeout_ms
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._pid = 0

    def exists(self) -> bool:
        """Whether there is a store; looking into one that was never written to creates no file."""
        return self.path.exists() and self.path.stat().st_size > 0

    @contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """A transaction that sees one state of the store and writes nothing."""
        with self._lock, self._translated():
            connection = self._open()
            connection.execute("BEGIN")
            try:
                yield connection
            finally:
                connection.rollback()

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """A transaction that is durable when the block ends, and never happened when it raises.

        A commit that fails is rolled back; `SYNC_FAILED` where even that leaves the outcome unknown.
        """
        with self._lock, self._translated():
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
            if self._connection is not None and self._pid == os.getpid():
                self._connection.close()
            self._connection = None

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """The driver's errors as ours."""
        try:
            yield
        except sqlite3.Error as error:
            raise _translate(self.path, error) from error

    def _open(self) -> sqlite3.Connection:
        # A connection must not be used over a fork; the child's first use opens its own.
        if self._connection is None or self._pid != os.getpid():
            _create_file(self.path)
            connection = sqlite3.connect(
                self.path,
                timeout=self._busy_timeout_ms / 1000,
                isolation_level=None,
                check_same_thread=False,
            )
            try:
                self._prepare(connection)
            except BaseException:
                connection.close()
                raise
            self._connection, self._pid = connection, os.getpid()
        return self._connection

    def _prepare(self, connection: sqlite3.Connection) -> None:
        version = self._check_owner(connection)
        if not version:
            connection.execute(f"PRAGMA page_size={PAGE_SIZE}")
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        if version < SCHEMA_VERSION:
            self._migrate(connection)

    def _check_owner(self, connection: sqlite3.Connection) -> int:
        """The file's schema version, 0 for an empty file; refuses what is not ours. Reads only."""
        connection.execute("PRAGMA trusted_schema=OFF")
        application_id, version = (
            _pragma(connection, "application_id"),
            _pragma(connection, "user_version"),
        )
        empty = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0
        if application_id != APPLICATION_ID and not (empty and application_id == version == 0):
            raise StorageError(
                f"{self.path} is a database of another program; choose another file",
                code="FOREIGN_DATABASE",
                path=str(self.path),
            )
        if version > SCHEMA_VERSION:
            raise UnsupportedFormatError(
                f"{self.path} has schema version {version} and this program knows {SCHEMA_VERSION}; upgrade turnlog",
                code="NEWER_FORMAT",
                path=str(self.path),
                version=version,
            )
        return version

    def _migrate(self, connection: sqlite3.Connection) -> None:
        connection.execute("BEGIN IMMEDIATE")
        try:
            # Read again: another process may have been faster between our look and our lock.
            version = _pragma(connection, "user_version")
            for step in MIGRATIONS[version:]:
                for statement in step:
                    connection.execute(statement)
            if not version:
                connection.execute("INSERT INTO store VALUES (?)", (os.urandom(16).hex(),))
                connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
            connection.commit()
        except BaseException:
            connection.rollback()
            raise


def _translate(path: Path, error: sqlite3.Error) -> StorageError:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StorageBusyError(
            f"{path} is busy: another process kept it for too long; try again", path=str(path)
        )
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return CorruptLogError(
            f"{path} is no sound database ({error}); restore it from a copy",
            code="DAMAGED_DATABASE",
            path=str(path),
        )
    known = (
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_PERM,
    )
    unsure = code == sqlite3.SQLITE_IOERR
    return StorageWriteError(
        f"{path}: {error}",
        code="SYNC_FAILED" if unsure and code not in known else "WRITE_FAILED",
        path=str(path),
    )


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])


def _create_file(path: Path) -> None:
    """An empty file for this user alone, where there is none; SQLite gives its side files the same mode."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        return
    except OSError as error:
        raise StorageWriteError(
            f"{path} cannot be created: {error.strerror or error}", path=str(path)
        ) from error
