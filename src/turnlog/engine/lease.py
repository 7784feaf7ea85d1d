"""Leases: one writer a session, enforced by the kernel and freed by death.

A lease is an exclusive `flock` on a file of its own, so it needs no expiry and no clock: the kernel lets go of it
when the process ends, however it ends. The file keeps who holds it since when, for the error that a second
writer gets, and a fencing number that grows with every holder. It is never deleted while leases are in use:
removing a locked file would let two holders lock two files of one name.

A child process made by `os.fork` inherits descriptors, and with them would keep a dead parent's lock alive; so
the child closes its copies at once.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import threading
import weakref
from pathlib import Path
from typing import Any, Protocol, Self

from turnlog.errors import SessionLockedError, StorageWriteError
from turnlog.session import Clock, system_clock

_CLOSE_ON_EXEC = getattr(os, "O_CLOEXEC", 0)
_MAX_NOTE_BYTES = 4096


class Lease(Protocol):
    """The right to write one session, until `release`."""

    @property
    def fence(self) -> int:
        """Grows with every holder of the session's lease; a storage refuses batches with a smaller one."""

    def release(self) -> None:
        """Let go; calling it again does nothing."""


class FileLease:
    """A lease as an exclusive kernel lock on a file; see the module for the rules."""

    def __init__(self, descriptor: int, fence: int) -> None:
        self._descriptor = descriptor
        self._fence = fence
        _held.add(self)

    @classmethod
    def acquire(cls, path: Path, session_id: str, *, clock: Clock = system_clock) -> FileLease:
        """Take the lease; `SessionLockedError` names the holder when somebody has it, this process included."""
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | _CLOSE_ON_EXEC, 0o600)
        except OSError as error:
            raise StorageWriteError(
                f"{path}: the lease file cannot be opened: {error.strerror or error}",
                path=str(path),
            ) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            note = _read_note(descriptor)
            os.close(descriptor)
            raise _locked(session_id, note) from error
        fence = int(_read_note(descriptor).get("fence", 0)) + 1
        _write_note(
            descriptor,
            {"fence": fence, "pid": os.getpid(), "host": socket.gethostname(), "since": clock()},
        )
        return cls(descriptor, fence)

    @property
    def fence(self) -> int:
        """The number of this holder."""
        return self._fence

    def release(self) -> None:
        """Let go of the lock."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
            _held.discard(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()


class MemoryLeases:
    """Leases within one process, for storages that no other process can reach."""

    def __init__(self, *, clock: Clock = system_clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._since: dict[str, int] = {}
        self._fences: dict[str, int] = {}

    def acquire(self, session_id: str) -> MemoryLease:
        """Take the lease, or `SessionLockedError`."""
        with self._lock:
            if session_id in self._since:
                note = {
                    "pid": os.getpid(),
                    "host": socket.gethostname(),
                    "since": self._since[session_id],
                }
                raise _locked(session_id, note)
            self._since[session_id] = self._clock()
            fence = self._fences[session_id] = self._fences.get(session_id, 0) + 1
        return MemoryLease(self, session_id, fence)

    def release(self, session_id: str, fence: int) -> None:
        """Let go, where that holder still has it."""
        with self._lock:
            if self._fences.get(session_id) == fence:
                self._since.pop(session_id, None)


class MemoryLease:
    """A lease of `MemoryLeases`."""

    def __init__(self, leases: MemoryLeases, session_id: str, fence: int) -> None:
        self._leases = leases
        self._session_id = session_id
        self._fence = fence

    @property
    def fence(self) -> int:
        """The number of this holder."""
        return self._fence

    def release(self) -> None:
        """Let go."""
        self._leases.release(self._session_id, self._fence)


_held: weakref.WeakSet[FileLease] = weakref.WeakSet()


def _drop_inherited() -> None:
    for lease in list(_held):
        lease.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_drop_inherited)


def _locked(session_id: str, note: dict[str, Any]) -> SessionLockedError:
    pid, host, since = note.get("pid"), note.get("host"), note.get("since")
    return SessionLockedError(
        f"session {session_id!r} is open for writing by process {pid} on {host} since {since} (Unix ms); "
        "read it, fork it, or close it there first",
        session_id=session_id,
        pid=pid,
        host=host,
        since=since,
    )


def _read_note(descriptor: int) -> dict[str, Any]:
    """Who holds the lock; empty when the file is new or was torn while it was written."""
    try:
        note = json.loads(os.pread(descriptor, _MAX_NOTE_BYTES, 0) or b"{}")
    except ValueError:
        return {}
    return note if isinstance(note, dict) else {}


def _write_note(descriptor: int, note: dict[str, Any]) -> None:
    text = json.dumps(note).encode()
    os.pwrite(descriptor, text + b" " * max(_MAX_NOTE_BYTES // 16 - len(text), 0), 0)
    os.ftruncate(descriptor, max(_MAX_NOTE_BYTES // 16, len(text)))
