"""MemoryStorage: logs in a dict, with the same contract as the durable storages.

The model that the others are tested against, and the storage behind `memory:`. "Durable" means until the
process ends.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence

from turnlog.clock import system_clock
from turnlog.engine.batch import append_each, check_batch, stored_header
from turnlog.engine.blobs import BlobInfo
from turnlog.engine.lease import Lease, MemoryLeases
from turnlog.engine.listing import (
    Notes,
    Order,
    Page,
    Progress,
    SessionFilter,
    SessionInfo,
    page_of,
)
from turnlog.engine.protocol import Batch, RawLog, Salvage, SalvagedRecord, StoredLog, StoredSession
from turnlog.errors import ConflictError, SessionNotFoundError, StorageError, TurnlogError
from turnlog.eventlog import EventLog
from turnlog.events import SessionEvent
from turnlog.header import SessionHeader
from turnlog.replay import refold

_changes = itertools.count(1)


class _Kept:
    """One session's header, events and the number of its last change, counted over all storages."""

    def __init__(self, header: SessionHeader) -> None:
        self.header = header
        self.events: list[SessionEvent] = []
        self.change = 0
        self.fence = 0
        self.notes = Notes()

    @property
    def revision(self) -> str:
        return f"memory:{self.change}"


class MemoryStorage:
    """A storage in memory; see `turnlog.engine.protocol.Storage` for every method's contract."""

    def __init__(self) -> None:
        self._kept: dict[str, _Kept] = {}
        self._lock = threading.RLock()
        self._leases = MemoryLeases()
        self._blobs: dict[str, tuple[bytes, int]] = {}

    def list(self) -> list[StoredSession]:
        """Every stored session."""
        with self._lock:
            return [StoredSession(kept.header, "memory") for kept in self._kept.values()]

    def inspect(self, id: str, *, close_turn: bool = True) -> StoredLog:
        """The stored log, balanced in memory."""
        with self._lock:
            kept = self._require(id)
            log = EventLog()
            for event in kept.events:
                log.append(event)
            surface, state = refold(log)
            stored = StoredLog(kept.header, log, surface, state, kept.revision)
        if close_turn:
            stored.close_turn()
        return stored

    def load(self, id: str, *, close_turn: bool = True) -> StoredLog:
        """The log after its open last turn was closed for good."""
        with self._lock:
            stored = self.inspect(id, close_turn=close_turn)
            if stored.closers:
                self.append(stored.header, stored.closers)
                stored.revision, stored.closers = self._kept[id].revision, ()
            return stored

    def salvage(self, id: str) -> Salvage:
        """Everything: nothing in memory is ever damaged."""
        with self._lock:
            kept = self._require(id)
            records = [SalvagedRecord(event.seq + 2, 0, event.to_dict()) for event in kept.events]
            return Salvage(stored_header(kept.header), records, [])

    def browse(
        self,
        wanted: SessionFilter,
        *,
        order: Order = "created",
        cursor: str | None = None,
        limit: int = 50,
    ) -> Page:
        """One page."""
        with self._lock:
            infos = [
                SessionInfo(kept.header, "memory", Progress().advance(kept.events), kept.notes)
                for kept in self._kept.values()
            ]
        return page_of(infos, wanted, order=order, cursor=cursor, limit=limit)

    def notes(self, id: str) -> Notes:
        """The session's notes."""
        return self._require(id).notes

    def set_notes(self, id: str, notes: Notes) -> None:
        """Keep the notes."""
        self._require(id).notes = notes

    def share(self, header: SessionHeader, source: str, progress: Progress) -> bool:
        """Events are immutable and shared in any case."""
        return False

    def delete(self, id: str) -> None:
        """Forget the session."""
        with self._lock:
            self._require(id)
            del self._kept[id]

    def acquire(self, id: str) -> Lease:
        """The session's lease, within this process."""
        return self._leases.acquire(id)

    def append_many(self, batches: Sequence[Batch]) -> Sequence[TurnlogError | None]:
        """Keep batches, each for itself."""
        return append_each(self.append, batches)

    def append(
        self, header: SessionHeader, events: Sequence[SessionEvent], fence: int | None = None
    ) -> None:
        """Keep a batch."""
        if not events:
            return
        with self._lock:
            kept = self._kept.get(header.id)
            due = 0 if kept is None else len(kept.events)
            check_batch(header.id, events, due)
            if kept is not None and fence is not None and fence < kept.fence:
                raise ConflictError(
                    f"session {header.id!r}: another writer has taken it over; load it again",
                    session_id=header.id,
                    expected_seq=due,
                    actual_seq=due,
                )
            if kept is None:
                kept = self._kept[header.id] = _Kept(header)
            kept.events.extend(events)
            kept.change = next(_changes)
            kept.fence = max(kept.fence, fence or 0)

    def put_blob(self, digest: str, data: bytes) -> None:
        """Keep the bytes; those that are kept already count as new from now on."""
        self._blobs[digest] = (data, system_clock())

    def get_blob(self, digest: str) -> bytes | None:
        """The bytes, or None."""
        return self._blobs[digest][0] if digest in self._blobs else None

    def list_blobs(self) -> Sequence[BlobInfo]:
        """Every blob."""
        return [BlobInfo(digest, len(data), at) for digest, (data, at) in self._blobs.items()]

    def delete_blob(self, digest: str) -> None:
        """Forget the blob."""
        self._blobs.pop(digest, None)

    def read_from(self, id: str, seq: int) -> Sequence[SessionEvent]:
        """The stored events from a seq on."""
        with self._lock:
            return self._require(id).events[max(seq, 0) :]

    def read_raw(self, id: str) -> RawLog:
        """There is no text."""
        self._require(id)
        raise StorageError("a session in memory has no raw log", code="NO_RAW_LOG", session_id=id)

    def revision(self, id: str) -> str | None:
        """The number of the last change, or None."""
        kept = self._kept.get(id)
        return None if kept is None else kept.revision

    def location(self, id: str) -> str | None:
        """Nowhere."""
        return None

    def close(self) -> None:
        """Forget everything."""
        self._kept.clear()

    def _require(self, id: str) -> _Kept:
        kept = self._kept.get(id)
        if kept is None:
            raise SessionNotFoundError(f"no stored session {id!r}", session_id=id)
        return kept
