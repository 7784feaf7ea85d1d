"""SqliteStorage: the logs of many sessions in one database file.

A batch is one row: the same lines as in a JSONL log, as a zstd frame where that is smaller. Reading a session is
feeding its rows to the same reader. One transaction checks lease and expected seq and writes, so a stale writer
is impossible: it gets a `ConflictError`. What a listing shows stands beside the batches, so it reads no log. A
fork of a stored session shares its parent's rows up to the boundary.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from turnlog.clock import Clock, system_clock
from turnlog.codec.frames import MAGIC, compress_frame, decompress_frames
from turnlog.codec.reader import BLOCK_BYTES, LogReader
from turnlog.codec.record import encode_batch, encode_header
from turnlog.engine.batch import check_batch, stored_header
from turnlog.engine.blobs import BlobInfo
from turnlog.engine.lease import FileLease, Lease
from turnlog.engine.listing import Notes, Order, Page, Progress, SessionFilter
from turnlog.engine.names import lock_name
from turnlog.engine.protocol import Batch, RawLog, Salvage, StoredLog, StoredSession
from turnlog.engine.salvage import Salvager
from turnlog.errors import (
    ConflictError,
    CorruptLogError,
    SessionExistsError,
    SessionNotFoundError,
    StorageError,
    TurnlogError,
)
from turnlog.events import SessionEvent
from turnlog.header import SessionHeader
from turnlog.storage.sqlite.browse import browse
from turnlog.storage.sqlite.database import Database
from turnlog.storage.sqlite.rows import (
    SessionRow,
    base_of,
    find_session,
    parse_header,
    to_bytes,
    to_text,
)

_COMPRESS_FROM = 256
"""Bytes from which a batch is tried as a frame; a shorter one would hardly shrink."""

_SEQ_BITS = 32

Bodies = list[bytes]
"""A session's batches as they are stored, in log order."""


class SqliteStorage:
    """A storage in a database file; see `turnlog.engine.protocol.Storage` for every method's contract.

    `busy_timeout_ms`: how long to wait for another process's transaction. `pack`: whether chunk runs are
    written as rows.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        busy_timeout_ms: int = 5000,
        pack: bool = True,
        clock: Clock = system_clock,
    ) -> None:
        self.path = Path(path).absolute()
        self._database = Database(self.path, busy_timeout_ms=busy_timeout_ms)
        self._pack = pack
        self._clock = clock

    # -- reading ---------------------------------------------------------------------------------------

    def list(self) -> list[StoredSession]:
        """Every stored session; a damaged row is listed as damaged."""
        if not self._database.exists():
            return []
        with self._database.read() as connection:
            rows = connection.execute(
                "SELECT id, header FROM sessions WHERE NOT deleted"
            ).fetchall()
        return [self._entry(name, header) for name, header in rows]

    def _entry(self, name: bytes, header: bytes) -> StoredSession:
        try:
            text = to_text(name)
        except (ValueError, AttributeError):
            return StoredSession(None, self._place(repr(name)), "its id is damaged", "CORRUPT_LOG")
        try:
            return StoredSession(self._header(text, header), self._place(text))
        except TurnlogError as error:
            return StoredSession(None, self._place(text), error.message, error.code)

    def _header(self, id: str, text: bytes) -> SessionHeader:
        header = parse_header(text)
        if header.id != id:
            raise CorruptLogError(
                f"{self._place(id)} has the header of session {header.id!r}",
                code="CORRUPT_HEADER",
                session_id=id,
                path=str(self.path),
            )
        return header

    def _place(self, id: str) -> str:
        return f"{self.path}#{id}"

    def inspect(self, id: str, *, close_turn: bool = True) -> StoredLog:
        """The stored log, balanced in memory."""
        stored = self._read(id)
        if close_turn:
            stored.close_turn()
        return stored

    def load(self, id: str, *, close_turn: bool = True) -> StoredLog:
        """The log after its open last turn was closed for good; a database leaves no torn bytes."""
        stored = self.inspect(id, close_turn=close_turn)
        if stored.closers:
            self.append(stored.header, stored.closers)
            stored.closers, stored.revision = (), self.revision(id) or ""
        return stored

    def _read(self, id: str) -> StoredLog:
        with self._reading(id) as connection:
            row = self._require(connection, id)
            revision = self._revision(connection, row)
            bodies = self._bodies(connection, row)
        header = self._header(id, row.header)
        reader = LogReader(id)
        try:
            for text, frames in _join(bodies):
                if frames is None:
                    reader.feed(text)
                else:
                    reader.feed_frames(text, frames)
        except CorruptLogError as error:
            error.details.update(session_id=id, path=str(self.path))
            raise
        if reader.fault is not None or len(reader) != row.next_seq:
            what = (
                reader.fault.what
                if reader.fault
                else f"{len(reader)} of {row.next_seq} events are there"
            )
            raise CorruptLogError(
                f"session {id!r} in {self.path} is damaged: {what}",
                session_id=id,
                path=str(self.path),
            )
        log = reader.take_log()
        return StoredLog(header, log, reader.surface, reader.state, revision)

    def salvage(self, id: str) -> Salvage:
        """Everything of the session's rows that can be decoded."""
        with self._reading(id) as connection:
            row = self._require(connection, id)
            bodies = self._bodies(connection, row)
        salvager = Salvager()
        header: Any = row.header
        salvager.feed((header if isinstance(header, bytes) else b"") + b"\n")
        for body in bodies:
            try:
                salvager.feed(_lines(body))
            except CorruptLogError as error:
                salvager.note(error.message)
        return salvager.result()

    def read_from(self, id: str, seq: int) -> Sequence[SessionEvent]:
        """The stored events from a seq on, without closers."""
        return self._read(id).log.view()[max(seq, 0) :]

    def read_raw(self, id: str) -> RawLog:
        """The lines that a JSONL log of the session would have."""
        with self._reading(id) as connection:
            row = self._require(connection, id)
            bodies = self._bodies(connection, row)
        text = row.header + b"\n" + b"".join(map(_lines, bodies))
        return RawLog(parse_header(row.header), "session.jsonl", text)

    def revision(self, id: str) -> str | None:
        """The store's identity and the session's number of changes, or None."""
        if not self._database.exists():
            return None
        with self._database.read() as connection:
            row = find_session(connection, id)
            return None if row is None else self._revision(connection, row)

    def _revision(self, connection: sqlite3.Connection, row: SessionRow) -> str:
        store = connection.execute("SELECT id FROM store").fetchone()[0]
        return f"{store}:{row.key}:{row.revision}"

    def location(self, id: str) -> str | None:
        """The file and the id, or None."""
        return None if self.revision(id) is None else self._place(id)

    def _writing(self, id: str) -> AbstractContextManager[sqlite3.Connection]:
        """A transaction about a stored session; where there is no store yet, none is created for it."""
        if not self._database.exists():
            raise self._not_found(id)
        return self._database.write()

    def _reading(self, id: str) -> AbstractContextManager[sqlite3.Connection]:
        if not self._database.exists():
            raise self._not_found(id)
        return self._database.read()

    def _require(self, connection: sqlite3.Connection, id: str) -> SessionRow:
        row = find_session(connection, id)
        if row is None:
            raise self._not_found(id)
        return row

    def _not_found(self, id: str) -> SessionNotFoundError:
        return SessionNotFoundError(f"no session {id!r} in {self.path}", session_id=id)

    def _bodies(self, connection: sqlite3.Connection, row: SessionRow) -> Bodies:
        """The session's batches in log order, those that it shares with its ancestors first."""
        spans = [(row.key, row.base_stop, row.next_seq)]
        while (base := base_of(connection, row)) is not None:
            spans.append((base.key, base.base_stop, row.base_stop))
            row = base
        bodies: Bodies = []
        for key, start, stop in reversed(spans):
            low, high = key << _SEQ_BITS | start, key << _SEQ_BITS | stop
            rows = connection.execute(
                "SELECT body FROM batches WHERE place >= ? AND place < ? ORDER BY place",
                (low, high),
            )
            bodies.extend(body for (body,) in rows)
        return bodies

    # -- writing ---------------------------------------------------------------------------------------

    def acquire(self, id: str) -> Lease:
        """The session's lease: a lock file beside the database."""
        directory = self.path.with_name(self.path.name + ".locks")
        return FileLease.acquire(
            directory / lock_name(id), id, floor=lambda: self._fence(id), clock=self._clock
        )

    def _fence(self, id: str) -> int:
        """The greatest fencing number that has written; lock files do not come along with a copied database."""
        if not self._database.exists():
            return 0
        with self._database.read() as connection:
            row = find_session(connection, id)
            return 0 if row is None else row.fence

    def append(
        self, header: SessionHeader, events: Sequence[SessionEvent], fence: int | None = None
    ) -> None:
        """Append a batch, or create the session with it."""
        (error,) = self.append_many([Batch(header, events, fence)])
        if error is not None:
            raise error

    def append_many(self, batches: Sequence[Batch]) -> Sequence[TurnlogError | None]:
        """Append batches in one transaction; each that does not fit is left out and has its error."""
        errors: dict[int, TurnlogError] = {}
        todo: list[tuple[int, Batch, bytes]] = []
        for number, batch in enumerate(batches):
            if batch.events:
                todo.append((number, batch, _shrink(encode_batch(batch.events, pack=self._pack))))
        try:
            self._write_batches(todo, errors)
        except StorageError as error:
            if error.code != "WRITE_FAILED" or len(todo) == 1:
                errors = {number: error for number, _, _ in todo}
            else:
                # One that no transaction takes, too large say, must not hold up the others.
                for one in todo:
                    try:
                        self._write_batches([one], errors)
                    except StorageError as own:
                        errors[one[0]] = own
        return [errors.get(number) for number in range(len(batches))]

    def _write_batches(
        self, todo: Sequence[tuple[int, Batch, bytes]], errors: dict[int, TurnlogError]
    ) -> None:
        if not todo:
            return
        with self._database.write() as connection:
            for number, batch, body in todo:
                try:
                    self._write_batch(connection, batch, body)
                except TurnlogError as error:
                    errors[number] = error

    def _write_batch(self, connection: sqlite3.Connection, batch: Batch, body: bytes) -> None:
        header, events = batch.header, batch.events
        row = find_session(connection, header.id)
        check_batch(header.id, events, 0 if row is None else row.next_seq)
        fence = batch.fence
        if row is not None and fence is not None and fence < row.fence:
            raise ConflictError(
                f"session {header.id!r}: another writer has taken it over; load it again",
                session_id=header.id,
                expected_seq=events[0].seq,
                actual_seq=row.next_seq,
            )
        key = self._insert(connection, header) if row is None else row.key
        start, stop = events[0].seq, events[-1].seq + 1
        connection.execute(
            "INSERT INTO batches VALUES (?, ?, ?)", (key << _SEQ_BITS | start, stop, body)
        )
        news = Progress().advance(events)
        brackets = [event.type for event in events if event.type in ("turn/start", "turn/end")]
        connection.execute(
            """UPDATE sessions SET next_seq = ?, last_time = ?, title = ifnull(?, title),
               open_turn = ifnull(?, open_turn), revision = revision + 1, fence = max(fence, ?)
               WHERE key = ?""",
            (
                stop,
                news.last_time,
                to_bytes(news.title),
                news.open_turn if brackets else None,
                fence or 0,
                key,
            ),
        )

    def _insert(
        self,
        connection: sqlite3.Connection,
        header: SessionHeader,
        base_key: int | None = None,
        progress: Progress | None = None,
    ) -> int:
        """A new session's row; `base_key` is the session whose first events, `progress` of them, it shares."""
        known = Progress() if progress is None else progress
        cursor = connection.execute(
            """INSERT INTO sessions (id, header, created_at, cwd, parent, last_time, next_seq, title,
               open_turn, revision, fence, base_key, base_stop) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, 0, 0, ?, ?)""",
            (
                to_bytes(header.id),
                encode_header(stored_header(header))[:-1],
                header.created_at,
                to_bytes(header.cwd),
                to_bytes(header.parent_session),
                known.last_time,
                known.events,
                to_bytes(known.title),
                known.open_turn,
                base_key,
                known.events,
            ),
        )
        assert cursor.lastrowid is not None  # set by every INSERT
        return cursor.lastrowid

    def share(self, header: SessionHeader, source: str, progress: Progress) -> bool:
        """Share a prefix that ends where a batch ends; any other is copied by the caller."""
        length = progress.events
        with self._writing(source) as connection:
            base = self._require(connection, source)
            while length <= base.base_stop and (older := base_of(connection, base)) is not None:
                base = older
            low = base.key << _SEQ_BITS
            last = connection.execute(
                "SELECT stop FROM batches WHERE place >= ? AND place < ? ORDER BY place DESC LIMIT 1",
                (low, low | length),
            ).fetchone()
            if last is None or last[0] != length:
                return False
            if find_session(connection, header.id) is not None:
                raise SessionExistsError(
                    f"session {header.id!r} is stored already", session_id=header.id
                )
            self._insert(connection, header, base.key, progress)
        return True

    # -- notes and deleting ------------------------------------------------------------------------------

    def browse(
        self,
        wanted: SessionFilter,
        *,
        order: Order = "created",
        cursor: str | None = None,
        limit: int = 50,
    ) -> Page:
        """One page, from the sessions table alone."""
        if not self._database.exists():
            return Page([], None)
        with self._database.read() as connection:
            return browse(
                connection, str(self.path), wanted, order=order, cursor=cursor, limit=limit
            )

    def notes(self, id: str) -> Notes:
        """The session's notes."""
        with self._reading(id) as connection:
            row = self._require(connection, id)
            tags, archived = connection.execute(
                "SELECT tags, archived FROM sessions WHERE key = ?", (row.key,)
            ).fetchone()
        try:
            return Notes(tuple(json.loads(tags)), bool(archived))
        except (ValueError, TypeError):
            return Notes()

    def set_notes(self, id: str, notes: Notes) -> None:
        """Store the notes."""
        with self._writing(id) as connection:
            row = self._require(connection, id)
            connection.execute(
                "UPDATE sessions SET tags = ?, archived = ? WHERE key = ?",
                (json.dumps(list(notes.tags)), notes.archived, row.key),
            )

    def delete(self, id: str) -> None:
        """Remove the session; rows that forks share stay until the last fork is gone."""
        with self._writing(id) as connection:
            row = self._require(connection, id)
            # The id is free again at once; the row stays as the owner of what forks share.
            connection.execute(
                "UPDATE sessions SET deleted = 1, id = ? WHERE key = ?",
                (b"\xff" + str(row.key).encode(), row.key),
            )
            _collect(connection, row.key)

    # -- blobs -------------------------------------------------------------------------------------------

    def put_blob(self, digest: str, data: bytes) -> None:
        """Store the bytes; those that are stored already count as new from now on."""
        with self._database.write() as connection:
            now = self._clock()
            stored = connection.execute(
                "UPDATE blobs SET stored_at = ? WHERE digest = ? AND body = ?", (now, digest, data)
            )
            if not stored.rowcount:  # none, or damaged
                connection.execute(
                    "INSERT OR REPLACE INTO blobs VALUES (?, ?, ?)", (digest, data, now)
                )

    def get_blob(self, digest: str) -> bytes | None:
        """The bytes, or None."""
        if not self._database.exists():
            return None
        with self._database.read() as connection:
            row = connection.execute(
                "SELECT body FROM blobs WHERE digest = ?", (digest,)
            ).fetchone()
        return None if row is None else bytes(row[0])

    def list_blobs(self) -> Sequence[BlobInfo]:
        """Every stored blob."""
        if not self._database.exists():
            return []
        with self._database.read() as connection:
            rows = connection.execute(
                "SELECT digest, length(body), stored_at FROM blobs"
            ).fetchall()
        return [BlobInfo(*row) for row in rows]

    def delete_blob(self, digest: str) -> None:
        """Remove the blob."""
        if not self._database.exists():
            return
        with self._database.write() as connection:
            connection.execute("DELETE FROM blobs WHERE digest = ?", (digest,))

    def close(self) -> None:
        """Close the database."""
        self._database.close()


def _shrink(body: bytes) -> bytes:
    if len(body) < _COMPRESS_FROM:
        return body
    frame = compress_frame(body)
    return frame if len(frame) < len(body) else body


def _lines(body: bytes) -> bytes:
    return decompress_frames(body) if body[:4] == MAGIC else body


def _join(bodies: list[bytes]) -> list[tuple[bytes, bytes | None]]:
    """Neighbouring batches of one kind together, as text and, where they were compressed, as frames."""
    groups: list[tuple[bytes, bytes | None]] = []
    group: list[bytes] = []
    size = 0

    def settle() -> None:
        data = b"".join(group)
        if data:
            groups.append((decompress_frames(data), data) if data[:4] == MAGIC else (data, None))
        group.clear()

    for body in bodies:
        if group and ((body[:4] == MAGIC) != (group[0][:4] == MAGIC) or size > BLOCK_BYTES // 4):
            settle()
            size = 0
        group.append(body)
        size += len(body)
    settle()
    return groups


def _collect(connection: sqlite3.Connection, key: int | None) -> None:
    """Remove a deleted session's rows once no fork shares them, and then its base's, if that was deleted."""
    while key is not None:
        deleted, base_key, forks = connection.execute(
            """SELECT deleted, base_key, (SELECT count(*) FROM sessions WHERE base_key = s.key)
               FROM sessions s WHERE key = ?""",
            (key,),
        ).fetchone()
        if not deleted or forks:
            return
        low = key << _SEQ_BITS
        connection.execute(
            "DELETE FROM batches WHERE place >= ? AND place < ?", (low, low + (1 << _SEQ_BITS))
        )
        connection.execute("DELETE FROM sessions WHERE key = ?", (key,))
        key = base_key
