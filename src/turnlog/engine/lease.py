"""Leases: one writer a session, enforced by the kernel and freed by death.

A lease is an exclusive `flock` on a file of its own, so it needs no expiry and no clock: the kernel lets go of it
when the process ends, however it ends. The file keeps who holds it since when, for the error that a second
writer gets, and a fencing number that grows with every holder. It is never deleted while leases are in use:
removing a locked file would let two holders lock two files of one name.

A child process made by `os.fork` inherits descriptors, and with them would keep a dead parent's lock alive; so
the child closes its copies at once, and no fork falls between opening a file and noting that it is open.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, Self

from turnlog.clock import Clock, system_clock
from turnlog.engine.directories import make_directory
from turnlog.errors import SessionLockedError, StorageWriteError
from turnlog.lossless import is_safe_integer

_CLOSE_ON_EXEC = getattr(os, "O_CLOEXEC", 0)
_NOTE_BYTES = 256
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

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._fence = 0

    @classmethod
    def acquire(
        cls,
        path: Path,
        session_id: str,
        *,
        floor: Callable[[], int] = lambda: 0,
        clock: Clock = system_clock,
    ) -> FileLease:
        """Take the lease; `SessionLockedError` names the holder when somebody has it, this process included.

        `floor`: the greatest fencing number that the storage itself has seen. It counts where the file was lost
        or never came along. Raises `StorageWriteError` for a file system that cannot keep or lock the file.
        """
        try:
            make_directory(path.parent)
            with _forking:
                descriptor = os.open(path, os.O_RDWR | os.O_CREAT | _CLOSE_ON_EXEC, 0o600)
                lease = cls(descriptor)
                _held.add(lease)
        except OSError as error:
            raise _unusable(path, "opened", error) from error
        try:
            _lock(descriptor, path, session_id)
            fence = max(_read_fence(_read_note(descriptor)), floor()) + 1
            holder = {"pid": os.getpid(), "host": socket.gethostname(), "since": clock()}
            _write_note(descriptor, {"fence": fence, **holder})
        except OSError as error:
            lease.release()
            raise _unusable(path, "written", error) from error
        except BaseException:
            lease.release()
            raise
        lease._fence = fence
        return lease

    @property
    def fence(self) -> int:
        """The number of this holder."""
        return self._fence

    def release(self) -> None:
        """Let go of the lock."""
        # Said aloud: closing alone leaves it locked while a child that was just started has its copy open.
        self._drop(unlock=True)

    def _drop(self, *, unlock: bool) -> None:
        with _forking:
            descriptor, self._descriptor = self._descriptor, -1
            _held.discard(self)
            if descriptor < 0:
                return
            try:
                if unlock:
                    fcntl.flock(descriptor, fcntl.LOCK_UN)
            except OSError:
                pass  # closing does it too
            finally:
                os.close(descriptor)

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
_forking = threading.RLock()
"""Held over a fork, and wherever `_held` and the open descriptors differ for a moment."""


def _drop_inherited() -> None:
    for lease in list(_held):
        lease._drop(unlock=False)  # the lock is the parent's
    _forking.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_forking.acquire, after_in_parent=_forking.release, after_in_child=_drop_inherited
    )


def last_fence(path: Path) -> int:
    """The number of the lease file's last holder, 0 where there is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | _CLOSE_ON_EXEC)
    except OSError:
        return 0
    try:
        return _read_fence(_read_note(descriptor))
    finally:
        os.close(descriptor)


def _lock(descriptor: int, path: Path, session_id: str) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise _locked(session_id, _read_note(descriptor)) from error
    except OSError as error:
        # Network file systems without locks: nobody has it, and nobody can.
        raise _unusable(path, "locked", error) from error


def _unusable(path: Path, what: str, error: OSError) -> StorageWriteError:
    return StorageWriteError(
        f"{path}: the lease file cannot be {what}: {error.strerror or error}",
        path=str(path),
        errno=error.errno,
    )


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
    except (OSError, ValueError, RecursionError):
        return {}
    return note if isinstance(note, dict) else {}


def _read_fence(note: dict[str, Any]) -> int:
    fence = note.get("fence")
    return fence if is_safe_integer(fence) and fence > 0 else 0


def _write_note(descriptor: int, note: dict[str, Any]) -> None:
    # Always as long as before, or longer: a full disk refuses no note that fits the old one.
    text = json.dumps(note).encode().ljust(_NOTE_BYTES)
    os.pwrite(descriptor, text, 0)
    os.ftruncate(descriptor, len(text))
