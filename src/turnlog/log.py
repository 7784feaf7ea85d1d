"""Turnlog: a storage, its live sessions and the query side behind one object. `open` makes one.

The rule: a session that is created, resumed or forked here is live until it is closed, and `flush` returns
when everything appended so far is durable. What waits to be written is no queue of its own but a cursor into
the session's events, so nothing is copied and an append never waits for the disk.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Self

from turnlog.clock import Clock, system_clock
from turnlog.commit_check import CommitCheck
from turnlog.engine.batch import stored_header
from turnlog.engine.blobs import BlobStore
from turnlog.engine.commit import WINDOW_MS, Committer
from turnlog.engine.lease import Lease
from turnlog.engine.listing import Progress
from turnlog.engine.protocol import Storage, StoredLog
from turnlog.errors import ConflictError, SessionError, SessionNotFoundError, TurnlogError
from turnlog.events import SessionEvent
from turnlog.header import SessionHeader
from turnlog.invariants import InvariantSettings
from turnlog.logstate import LogState
from turnlog.query.corpus import SessionQuery
from turnlog.session import Session
from turnlog.storage.targets import Target, open_storage
from turnlog.store import SessionStore
from turnlog.vocabulary import EVENT_TYPES


def uuid7(milliseconds: int) -> str:
    """A UUID version 7: 48 bits of Unix milliseconds, then random bits, so that ids sort by age (RFC 9562)."""
    value = (milliseconds & ((1 << 48) - 1)) << 80 | secrets.randbits(80)
    value = value & ~(0xF << 76) | 7 << 76
    value = value & ~(3 << 62) | 2 << 62
    text = f"{value:032x}"
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


class _KnownTypes(CommitCheck):
    """Vetoes what no later load would accept: a required event of a type that nobody knows."""

    def check(self, event: SessionEvent, data: Any, state: LogState) -> None:
        EVENT_TYPES.require_known(event.type, event.ignorable)


class Turnlog:
    """A store of sessions. Make one with `turnlog.open`; close it, or use it as a context manager.

    `sessions`: the `SessionStore` of live sessions. `query`: reading over live and stored ones. `blobs`: large
    payloads by content, which events refer to. `storage`: the medium. Thread-safe.
    """

    def __init__(
        self,
        storage: Storage,
        *,
        invariants: bool | InvariantSettings = True,
        clock: Clock = system_clock,
        ids: Callable[[], str] | None = None,
        window_ms: int = WINDOW_MS,
    ) -> None:
        self.storage = storage
        self._committer = Committer(storage, window_ms=window_ms)
        self._clock = clock
        self.sessions = SessionStore(
            invariants=invariants,
            clock=clock,
            ids=(lambda: uuid7(clock())) if ids is None else ids,
        )
        self.query = SessionQuery(storage, self.sessions, clock=clock)
        self.blobs = BlobStore(storage, clock=clock)
        self._closed = False
        self.sessions.listen(flush=lambda session: session.flush())

    def create(
        self,
        *,
        id: str | None = None,
        cwd: str | os.PathLike[str] | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> Session:
        """A new live session. Nothing is stored before its first event is flushed.

        `cwd`: absolute path of the directory that it works in. `meta`: further header fields in wire keys.
        Raises `SessionError` (`SESSION_ALREADY_EXISTS`) for an id that is live or stored, and `HeaderError`.
        """
        self._refuse_closed()
        fields = dict(meta or {})
        if cwd is not None:
            fields["cwd"] = os.fspath(cwd)
        with self._new_lease(id) as (name, lease):
            return self._publish(self.sessions.prepare(name, meta=fields), 0, lease)

    def resume(self, id: str, *, repair: bool = True) -> Session:
        """A stored session, live again. What a crash tore or left open is repaired durably first.

        With `repair=False` only torn bytes are cut; an open turn and its calls stay open, for a host that can
        still answer them. Resuming again adds nothing to a balanced log but the mark of the seed's end.

        Raises `SessionError` (`SESSION_ALREADY_EXISTS`) when it is live here, and what `Storage.load` raises.
        """
        self._refuse_closed()
        if self.sessions.get(id) is not None:
            raise SessionError(
                f"session {id!r} is live already; use it, or close it first",
                code="SESSION_ALREADY_EXISTS",
                session_id=id,
            )
        self._require_stored(id)
        with self._leased(id) as lease:
            stored = self.storage.load(id, close_turn=repair)
            written = len(stored.log)
            session = stored.to_session(clock=self._clock)
            self.sessions.adopt_checks(session)
            return self._publish(session, written, lease)

    def fork(
        self,
        id: str | Session,
        boundary: int | None = None,
        *,
        child_id: str | None = None,
    ) -> Session:
        """A new live session with the events of another, live or stored, up to and including `boundary`.

        `boundary` is a seq (default: the last one) outside any open turn. The source is not changed. Raises
        what `SessionStore.fork` raises, and `StorageError` for a stored source that cannot be read.
        """
        self._refuse_closed()
        source_id = id if isinstance(id, str) else id.id
        source, stored_length = self.sessions.get(source_id), None
        if source is None:
            # Without the mark of the seed's end that reading puts there: it is no event of the source.
            stored = self.storage.inspect(source_id)
            # Nor are closers: where they stand, its own writer may have put something else meanwhile.
            stored_length = len(stored.log) - len(stored.closers)
            source = stored.to_session(clock=self._clock, mark_seed=False)
        with self._new_lease(child_id) as (name, lease):
            child = self.sessions.fork_detached(source, boundary, name)
            shared = self._share(source, child, stored_length)
            try:
                return self._publish(child, shared, lease)
            except BaseException:
                if shared:
                    self.storage.delete(name)
                raise

    def _share(self, source: Session, child: Session, stored_length: int | None) -> int:
        """Have the storage share the child's prefix where it can; how many of its events are stored then."""
        length = child.header.seed_length or 0
        if not length or (stored_length is not None and length > stored_length):
            return 0
        if source.is_durable:
            try:
                source.flush()
            except TurnlogError:
                return 0  # the source cannot be saved, the fork perhaps can
        prefix = child.events.prefix(length)
        title = child.title() if child.state.title_seq < length else None
        progress = Progress(length, prefix[-1].time, title, open_turn=False)
        return length if self.storage.share(child.header, source.id, progress) else 0

    def delete(self, id: str, *, force: bool = False) -> None:
        """Remove a stored session for good. Sessions that were forked from it keep the events they share.

        Raises `SessionError` (`HAS_DEPENDENTS`, with the lists `children` and `quoted_by`) when others descend from
        or quote it and `force` is not set, (`SESSION_LIVE`) when it is live here, `SessionLockedError` when
        another process has it, and `SessionNotFoundError`.
        """
        self._refuse_closed()
        if self.sessions.get(id) is not None:
            raise SessionError(
                f"session {id!r} is live; close it first", code="SESSION_LIVE", session_id=id
            )
        self._require_stored(id)
        lease = self.storage.acquire(id)
        try:
            # Looking for them reads every log.
            children, quoted_by = ([], []) if force else self.query.find_dependents(id)
            if children or quoted_by:
                raise SessionError(
                    f"session {id!r} has {len(children)} forks and is quoted by {len(quoted_by)} sessions; "
                    "they keep what they have of it: delete it with force",
                    code="HAS_DEPENDENTS",
                    session_id=id,
                    children=children,
                    quoted_by=quoted_by,
                )
            self.storage.delete(id)
        finally:
            lease.release()

    def import_session(
        self, header: SessionHeader, events: Sequence[SessionEvent]
    ) -> tuple[int, int]:
        """Store a validated log under its own id; returns how many events were stored before, and are now.

        New events become durable as one batch. Importing again adds nothing, and of a log that has grown only
        what is new; a stored log that is ahead stays as it is. A log without events is not stored.

        Raises `ConflictError` (`IMPORT_CONFLICT`) when the stored log is another one, `SessionError`
        (`SESSION_ALREADY_EXISTS`) when the session is live, and what `Storage.inspect` and `append` raise.
        """
        self._refuse_closed()
        if self.sessions.get(header.id) is not None:
            raise _already_exists(header.id)
        lease = self.storage.acquire(header.id)
        try:
            return self._import(header, events)
        finally:
            lease.release()

    def _import(self, header: SessionHeader, events: Sequence[SessionEvent]) -> tuple[int, int]:
        if not self.query.has(header.id):
            self.storage.append(header, events)
            return 0, len(events)
        stored = self.storage.inspect(header.id, close_turn=False)
        _require_same_log(stored, header, events)
        known = len(stored.log)
        if known >= len(events):
            return known, known
        if stored.torn is not None:
            self.storage.load(header.id, close_turn=False)
        self.storage.append(header, events[known:])
        return known, len(events)

    def flush(self) -> None:
        """Return when every live session's events are durable; all are tried, the first error is raised."""
        self._committer.flush_all()

    def close(self) -> None:
        """Close every live session and the storage. Twice does nothing.

        When a session cannot be made durable, the first such error is raised after all were tried; sessions that
        may be tried again stay live, and so does the store; one that cannot be written any more is let go of.
        """
        if self._closed:
            return
        first: TurnlogError | None = None
        for session in self.sessions.list():
            try:
                session.close()
            except TurnlogError as error:
                first = first or error
        if not self.sessions.list():
            self._closed = True
            self._committer.close()
            self.storage.close()
        if first is not None:
            raise first

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Turnlog over {self.storage!r}, {len(self.sessions.list())} live sessions>"

    def _refuse_closed(self) -> None:
        if self._closed:
            raise SessionError("this store is closed; open it again", code="CLOSED")

    def _refuse_stored(self, id: str | None) -> None:
        if id is not None and self.query.has(id):
            raise _already_exists(id)

    def _require_stored(self, id: str) -> None:
        """Before a lease is taken, which would leave a lock file of any misspelt name."""
        if not self.query.has(id):
            raise SessionNotFoundError(f"no session {id!r} in this store", session_id=id)

    @contextmanager
    def _new_lease(self, id: str | None) -> Iterator[tuple[str, Lease]]:
        """The lease of a session that is about to be made, under a fresh id where none is given."""
        self._refuse_stored(id)
        name = self.sessions.new_id() if id is None else id
        with self._leased(name) as lease:
            # Looked at again under the lease: another process may have been faster.
            self._refuse_stored(name)
            yield name, lease

    @contextmanager
    def _leased(self, id: str) -> Iterator[Lease]:
        """The session's lease, given back when the block does not end in a live session."""
        lease = self.storage.acquire(id)
        try:
            yield lease
        except BaseException:
            lease.release()
            raise

    def _publish(self, session: Session, written: int, lease: Lease) -> Session:
        session.add_check(_KnownTypes())
        detach = self.sessions.enter(session)
        writer = self._committer.register(session, written, lease.fence)

        def release() -> None:
            self._committer.unregister(writer)
            detach()
            lease.release()

        session.attach(flush=lambda: self._committer.flush(writer), release=release)
        try:
            self.sessions.announce(session)
        except BaseException:
            self._committer.unregister(writer)
            raise
        return session


def _already_exists(id: str) -> SessionError:
    return SessionError(
        f"session {id!r} exists already; choose another id, or resume it",
        code="SESSION_ALREADY_EXISTS",
        session_id=id,
    )


def _require_same_log(
    stored: StoredLog, header: SessionHeader, events: Sequence[SessionEvent]
) -> None:
    """Raise `ConflictError` unless one of the two logs is the beginning of the other."""
    mine, theirs = stored_header(stored.header), stored_header(header)
    fields = [key for key in {**mine, **theirs} if mine.get(key) != theirs.get(key)]
    if fields:
        what = f"their headers differ in {', '.join(fields)}"
        raise ConflictError(
            f"another session {header.id!r} is stored already: {what}; nothing was imported",
            code="IMPORT_CONFLICT",
            session_id=header.id,
        )
    for own, new in zip(stored.log.view(), events, strict=False):
        if own != new:
            raise ConflictError(
                f"another session {header.id!r} is stored already: event {own.seq} is a different one; "
                "nothing was imported",
                code="IMPORT_CONFLICT",
                session_id=header.id,
                seq=own.seq,
            )


def open(  # noqa: A001 - `turnlog.open`, as `gzip.open`
    target: Target = None,
    *,
    invariants: bool | InvariantSettings = True,
    clock: Clock = system_clock,
    ids: Callable[[], str] | None = None,
    window_ms: int = WINDOW_MS,
) -> Turnlog:
    """Open a store, creating it with its first session.

    `target`: a path (`*.db`, or an existing file: SQLite; a directory: JSONL files, as the harnesses keep them),
    `sqlite:///abs/path`, `jsonl:///abs/path`, `memory:`, or None for the default store, a database under the
    user's data directory. `invariants`: relational checks of every append, on by default. `window_ms`: how long
    an event may wait before it is written behind; 0 leaves writing to `flush`. Raises `TargetError` for a target
    that names no storage.
    """
    return Turnlog(
        open_storage(target), invariants=invariants, clock=clock, ids=ids, window_ms=window_ms
    )
