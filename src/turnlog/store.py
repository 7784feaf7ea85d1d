"""SessionStore: the registry of live sessions, their lifecycle and its notices.

`create` is `prepare` (validate and build, unpublished), `enter` (collision check, publish) and `announce` (the
one creation notice) in a row; they are apart so that an owner can order its own set-up and teardown. Each
announced session is disposed of exactly once. A detach asked for while a created or event notice is running
waits until that notice is over, and a stale detach cannot remove its replacement.

Notices: `created` (a failure vetoes and rolls back), `event` (after commit, contained per listener), `flush`
(all start, all settle, then the first failure is raised), `disposed`. A scoped listener hears only sessions
entered in its scope; one without a scope hears all.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any

import msgspec

from turnlog.clock import Clock, system_clock
from turnlog.errors import SessionError
from turnlog.eventlog import EventLog
from turnlog.events import EventLike, SessionEvent
from turnlog.header import SessionHeader
from turnlog.invariants import InvariantSettings, attach_invariants
from turnlog.lossless import is_safe_integer
from turnlog.replay import refold
from turnlog.session import END_SEED, Session
from turnlog.surface import SurfaceManager

logger = logging.getLogger(__name__)

Detach = Callable[[], None]
"""Undoes a registration; calling it again does nothing."""


class Listener(msgspec.Struct, frozen=True, eq=False):
    """What a party wants to hear; every part is optional."""

    created: Callable[[Session], None] | None = None
    event: Callable[[Session, SessionEvent], None] | None = None
    flush: Callable[[Session], None] | None = None
    disposed: Callable[[Session], None] | None = None
    scope: Hashable | None = None


_Listeners = list[Listener]


class _Entry:
    """A published session: its scope, and whether a notice about it is running."""

    def __init__(self, session: Session, scope: Hashable | None) -> None:
        self.session = session
        self.scope = scope
        self.announced = False
        self.detached = False
        self.notices = 0
        self.detach_wanted = False
        self.unobserve: Callable[[], None] | None = None
        self.told: _Listeners | None = None
        """After a veto, the listeners that had heard of the session: only they hear of its end."""


class SessionStore:
    """The live sessions of a program. Thread-safe.

    `invariants`: False, True, or `InvariantSettings`, for the sessions that this store prepares. `ids` makes an
    id where none is given; a bare store counts `session-1`, `session-2`, ...
    """

    def __init__(
        self,
        *,
        invariants: bool | InvariantSettings = False,
        clock: Clock = system_clock,
        ids: Callable[[], str] | None = None,
    ) -> None:
        self._settings = InvariantSettings() if invariants is True else invariants or None
        self._clock = clock
        self._count = 0
        self._ids = self._next_id if ids is None else ids
        self._entries: dict[str, _Entry] = {}
        self._listeners: list[Listener] = []
        self._lock = threading.RLock()

    def _next_id(self) -> str:
        with self._lock:
            while True:
                self._count += 1
                if (name := f"session-{self._count}") not in self._entries:
                    return name

    # -- registry --------------------------------------------------------------------------------------

    def create(
        self,
        id: str | None = None,
        *,
        seed: Iterable[EventLike] | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> Session:
        """A new live session. `meta`: further header fields in wire keys (`cwd`, `createdAt`, ...).

        Raises `SessionError` (`SESSION_ALREADY_EXISTS`) before the seed is looked at, and what
        `Session.create` raises.
        """
        session = self.prepare(id, seed=seed, meta=meta)
        self._publish(session)
        return session

    def get(self, id: str) -> Session | None:
        """The live session of that id, or None."""
        entry = self._entries.get(id)
        return None if entry is None else entry.session

    def list(self) -> list[Session]:
        """The live sessions in the order of their creation."""
        with self._lock:
            return [entry.session for entry in self._entries.values()]

    def close(self, session: Session) -> None:
        """Dispose of a live session; does nothing for one that is not live here."""
        entry = self._entries.get(session.id)
        if entry is not None and entry.session is session:
            self._detach(entry)

    # -- lifecycle -------------------------------------------------------------------------------------

    def prepare(
        self,
        id: str | None = None,
        *,
        seed: Iterable[EventLike] | None = None,
        meta: Mapping[str, Any] | None = None,
    ) -> Session:
        """A validated, unpublished session."""
        name = self._ids() if id is None else id
        self._refuse_taken(name)
        header = SessionHeader.from_dict({"createdAt": self._clock(), **(meta or {}), "id": name})
        session = Session.create(name, seed, header, clock=self._clock)
        self.adopt_checks(session)
        return session

    def adopt_checks(self, session: Session) -> None:
        """Put this store's invariants on a session that was built elsewhere."""
        if self._settings is not None:
            attach_invariants(session, self._settings)

    def enter(self, session: Session, *, scope: Hashable | None = None) -> Detach:
        """Publish a prepared session under its id; returns what takes it out again, once.

        Raises `SessionError` (`SESSION_ALREADY_EXISTS`) when the id is live.
        """
        entry = _Entry(session, scope)
        with self._lock:
            self._refuse_taken(session.id)
            self._entries[session.id] = entry
        entry.unobserve = session.observe(lambda event: self._tell_event(entry, event))
        return lambda: self._detach(entry)

    def announce(self, session: Session) -> None:
        """Give the one creation notice of an entered session.

        A listener's failure vetoes: those that had heard of the session hear `disposed`, the session is taken
        out, and the failure is raised.
        """
        entry = self._require_live(session)
        with self._lock:
            if entry.announced:
                raise SessionError(
                    f"session {session.id!r} is announced already", code="SESSION_ALREADY_EXISTS"
                )
            entry.announced = True
            entry.notices += 1
        told: _Listeners = []
        try:
            for listener in self._hearing(entry):
                told.append(listener)
                if listener.created is not None:
                    listener.created(session)
        except BaseException:
            entry.detach_wanted, entry.told = True, told
            raise
        finally:
            self._end_notice(entry)

    def _publish(self, session: Session) -> None:
        self.enter(session)
        self.announce(session)

    def _refuse_taken(self, name: str) -> None:
        if name in self._entries:
            raise SessionError(
                f"session {name!r} is live already; choose another id or close it",
                code="SESSION_ALREADY_EXISTS",
                session_id=name,
            )

    def _require_live(self, session: Session) -> _Entry:
        entry = self._entries.get(session.id)
        if entry is None or entry.session is not session:
            raise SessionError(
                f"session {session.id!r} is not live in this store",
                code="SESSION_NOT_LIVE",
                session_id=session.id,
            )
        return entry

    def _detach(self, entry: _Entry) -> None:
        with self._lock:
            if entry.detached:
                return
            if entry.notices:
                entry.detach_wanted = True
                return
            entry.detached = True
            if self._entries.get(entry.session.id) is entry:
                del self._entries[entry.session.id]
        if entry.unobserve is not None:
            entry.unobserve()
        if entry.announced:
            for listener in self._hearing(entry) if entry.told is None else entry.told:
                self._contain(listener.disposed, entry.session)

    def _end_notice(self, entry: _Entry) -> None:
        with self._lock:
            entry.notices -= 1
            due = entry.detach_wanted and not entry.notices
        if due:
            self._detach(entry)

    # -- notices ---------------------------------------------------------------------------------------

    def listen(
        self,
        *,
        created: Callable[[Session], None] | None = None,
        event: Callable[[Session, SessionEvent], None] | None = None,
        flush: Callable[[Session], None] | None = None,
        disposed: Callable[[Session], None] | None = None,
        scope: Hashable | None = None,
    ) -> Detach:
        """Register a listener for any of the notices; returns what takes it off again."""
        listener = Listener(created, event, flush, disposed, scope)
        self._listeners.append(listener)

        def stop() -> None:
            if listener in self._listeners:
                self._listeners.remove(listener)

        return stop

    def flush(self, session: Session) -> bool:
        """Ask every flush listener to make the session durable; returns whether any took part.

        All of them run; then the first failure is raised. `SessionError` (`SESSION_NOT_LIVE`) for a session
        that is unpublished, detached or replaced.
        """
        entry = self._require_live(session)
        failures: list[Exception] = []
        took_part = False
        for listener in self._hearing(entry):
            if listener.flush is not None:
                took_part = True
                try:
                    listener.flush(session)
                except Exception as failure:  # noqa: BLE001 - all listeners must run; the first failure is raised below
                    failures.append(failure)
        if failures:
            raise failures[0]
        return took_part

    def _hearing(self, entry: _Entry) -> _Listeners:
        return [
            listener
            for listener in self._listeners
            if listener.scope is None or listener.scope == entry.scope
        ]

    def _tell_event(self, entry: _Entry, event: SessionEvent) -> None:
        if not any(listener.event for listener in self._listeners):
            return
        with self._lock:
            if entry.detached:
                return
            entry.notices += 1
        try:
            for listener in self._hearing(entry):
                self._contain(listener.event, entry.session, event)
        finally:
            self._end_notice(entry)

    def _contain(self, call: Callable[..., None] | None, *arguments: Any) -> None:
        if call is None:
            return
        try:
            call(*arguments)
        except Exception:
            logger.exception("a listener failed")

    # -- fork ------------------------------------------------------------------------------------------

    def fork(
        self,
        source: Session | str,
        boundary: int | None = None,
        child_id: str | None = None,
    ) -> Session:
        """A new live session that shares the source's events up to and including `boundary`.

        `boundary` is a seq, by default the last one. The child's header names its parent; then comes a
        `session/end-seed` unless the prefix ends in one. Nothing is copied: at the end of a session of any
        length a fork takes well under a millisecond.

        Raises `SessionError`: `SESSION_ALREADY_EXISTS` (first), `SESSION_NOT_FOUND`, `SESSION_NOT_LIVE`,
        `INVALID_BOUNDARY`, `OPEN_TURN`.
        """
        child = self.prepare_fork(source, boundary, child_id)
        self._publish(child)
        return child

    def prepare_fork(
        self, source: Session | str, boundary: int | None = None, child_id: str | None = None
    ) -> Session:
        """The same, unpublished."""
        name = self._ids() if child_id is None else child_id
        self._refuse_taken(name)
        return self.fork_detached(self._find_source(source), boundary, name)

    def new_id(self) -> str:
        """A fresh session id."""
        return self._ids()

    def _find_source(self, source: Session | str) -> Session:
        if isinstance(source, str):
            found = self.get(source)
            if found is None:
                raise SessionError(
                    f"no live session {source!r} to fork",
                    code="SESSION_NOT_FOUND",
                    session_id=source,
                )
            return found
        return self._require_live(source).session

    def fork_detached(self, parent: Session, boundary: int | None, child_id: str) -> Session:
        """An unpublished fork of any session, live here or not."""
        events, saved_surface, state = parent.snapshot()
        length = _prefix_length(parent.id, len(events), boundary)
        log = EventLog(events.prefix(length))
        surface = SurfaceManager(log)  # type: ignore[arg-type]
        if length == len(events):
            surface.restore(saved_surface)
        else:
            surface, state = refold(log)
        if state.open_turn is not None:
            raise SessionError(
                f"session {parent.id!r}: turn {state.open_turn} is open at seq {length - 1}; "
                "fork at the end of a turn",
                code="OPEN_TURN",
                session_id=parent.id,
            )
        header = SessionHeader(
            id=child_id,
            created_at=self._clock(),
            cwd=parent.header.cwd,
            parent_session=parent.id,
            seed_length=length,
        )
        header.check()
        child = Session(header, log=log, surface=surface, state=state, clock=self._clock)
        if not length or log[length - 1].type != END_SEED:
            child.append(END_SEED, {})
        self.adopt_checks(child)
        return child


def _prefix_length(parent_id: str, length: int, boundary: int | None) -> int:
    if boundary is None:
        return length
    if not is_safe_integer(boundary) or not 0 <= boundary < length:
        raise SessionError(
            f"session {parent_id!r}: the boundary must be a seq from 0 to {length - 1}",
            code="INVALID_BOUNDARY",
            session_id=parent_id,
        )
    return boundary + 1
