"""Query: live and stored sessions as one corpus.

A live session wins over its stored log, because it may be ahead of it. Reading never repairs and never makes a
session live, and one bad session never hides or fails the others.
"""

from __future__ import annotations

import msgspec

from turnlog.clock import Clock, system_clock
from turnlog.engine.listing import Order, Page, SessionFilter
from turnlog.engine.protocol import Salvage, Storage
from turnlog.errors import CorruptLogError, SessionNotFoundError, StorageError
from turnlog.events import SessionEvent
from turnlog.header import SessionHeader
from turnlog.session import Session
from turnlog.store import SessionStore
from turnlog.surface import SurfaceManager


class SessionRecord(msgspec.Struct, frozen=True):
    """One session of the corpus. `header` is None exactly where `damage` says why it cannot be read."""

    header: SessionHeader | None
    live: bool
    location: str
    damage: str | None = None
    code: str = ""


class Dependents(msgspec.Struct, frozen=True):
    """The ids of the sessions that were forked from a session, and of those that quote it, newest first."""

    children: list[str] = []
    quoted_by: list[str] = []


class SessionQuery:
    """Reads over a storage and the live sessions beside it. Thread-safe as these are."""

    def __init__(
        self, storage: Storage, sessions: SessionStore, *, clock: Clock = system_clock
    ) -> None:
        self._storage = storage
        self._sessions = sessions
        self._clock = clock

    def list_sessions(self, *, damaged: bool = False) -> list[SessionRecord]:
        """The sessions, newest first (by `created_at`, then by id); with `damaged`, the unreadable ones last.

        Reads headers only.
        """
        live = {session.id: session for session in self._sessions.list()}
        records = [SessionRecord(session.header, True, "live") for session in live.values()]
        broken = []
        for entry in self._storage.list():
            if entry.header is None:
                broken.append(SessionRecord(None, False, entry.location, entry.damage, entry.code))
            elif entry.header.id not in live:
                records.append(SessionRecord(entry.header, False, entry.location))
        records.sort(key=_by_id)
        records.sort(key=_by_age)
        return records + (sorted(broken, key=lambda record: record.location) if damaged else [])

    def browse(
        self,
        wanted: SessionFilter | None = None,
        *,
        order: Order = "created",
        cursor: str | None = None,
        limit: int = 50,
    ) -> Page:
        """One page of the stored sessions that a filter admits, newest first, with titles and last activity.

        Reads no log whose index entry is current. Live sessions show as far as they are written.
        """
        return self._storage.browse(
            SessionFilter() if wanted is None else wanted, order=order, cursor=cursor, limit=limit
        )

    def read_session(self, id: str, *, close_turn: bool = True) -> Session:
        """A detached session: the live one as it is now, else the stored log with its last turn closed.

        Raises `SessionNotFoundError`, `CorruptLogError` or `UnsupportedFormatError`.
        """
        live = self._sessions.get(id)
        if live is None:
            return self._storage.inspect(id, close_turn=close_turn).to_session(clock=self._clock)
        return live.copy()

    def read_surface(self, id: str) -> SurfaceManager:
        """The session's surface as it is now."""
        return self.read_session(id).surface

    def find_dependents(self, id: str) -> tuple[list[str], list[str]]:
        """The ids of the sessions that were forked from a session, and of those that quote it.

        Reads every stored log; one that cannot be read is passed over.
        """
        dependents = self.map_dependents().get(id, Dependents())
        return dependents.children, dependents.quoted_by

    def map_dependents(self) -> dict[str, Dependents]:
        """Who depends on whom, for every session that something depends on; reads every stored log once."""
        found: dict[str, Dependents] = {}
        for record in self.list_sessions():
            if record.header is None:
                continue
            name, parent = record.header.id, record.header.parent_session
            if parent is not None and parent != name:
                found.setdefault(parent, Dependents()).children.append(name)
            for source in self._quoted_in(name) - {name}:
                found.setdefault(source, Dependents()).quoted_by.append(name)
        return found

    def _quoted_in(self, id: str) -> set[str]:
        """The ids of the sessions that a session quotes; none for a log that cannot be read."""
        try:
            events = self.read_session(id, close_turn=False).events
        except StorageError:
            return set()
        quoted: set[str] = set()
        for record in events.iter_records():
            if isinstance(record, SessionEvent) and record.type == "user/message":
                origin = record.message.source
                references = origin.get("references")
                if origin.get("kind") == "session-reference" and isinstance(references, list):
                    ids = [one.get("sessionId") for one in references if isinstance(one, dict)]
                    quoted.update(source for source in ids if isinstance(source, str))
        return quoted

    def salvage(self, id: str) -> Salvage:
        """Everything of a stored session that can be decoded, with a list of what is damaged."""
        return self._storage.salvage(id)

    def has(self, id: str) -> bool:
        """Whether a session of that id is live or stored, readable or not."""
        if self._sessions.get(id) is not None:
            return True
        try:
            return self._storage.revision(id) is not None
        except SessionNotFoundError:
            return False
        except CorruptLogError:
            return True  # stored twice, say


def _by_id(record: SessionRecord) -> str:
    return "" if record.header is None else record.header.id


def _by_age(record: SessionRecord) -> int:
    return 0 if record.header is None else -record.header.created_at
