"""The file operations of the JSONL storage: each is durable on return, or has changed nothing.

New files are 0600 and new directories 0700. A log appears under its name complete or not at all (written
aside, synced, then linked, which cannot overwrite). A failed append is cut back to where it began.

A write that fails is `WRITE_FAILED`: nothing of it stayed, and trying again is safe. A sync that fails is
`SYNC_FAILED`: the kernel may count the lost bytes as written from then on, so that no later sync tells.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, NamedTuple

from turnlog.engine.directories import make_directory, sync_directory
from turnlog.errors import (
    ConflictError,
    SessionExistsError,
    SessionNotFoundError,
    StorageWriteError,
)

_CLOSE_ON_EXEC = getattr(os, "O_CLOEXEC", 0)
_NON_BLOCKING = getattr(os, "O_NONBLOCK", 0)


class FileState(NamedTuple):
    """What identifies a file's content from outside: equal states mean unchanged bytes."""

    device: int
    inode: int
    size: int
    modified_ns: int
    changed_ns: int

    @property
    def revision(self) -> str:
        """The state as one opaque string."""
        return ":".join(map(str, self))


def file_state(descriptor_or_path: int | Path) -> FileState:
    """The state of an open or named file."""
    found = os.stat(descriptor_or_path)  # noqa: PTH116 - a descriptor is no Path
    return FileState(
        found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
    )


def open_log(path: Path) -> BinaryIO:
    """The file opened for reading; OSError for what is no regular file (a pipe would wait for a writer)."""
    descriptor = os.open(path, os.O_RDONLY | _NON_BLOCKING | _CLOSE_ON_EXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
    return os.fdopen(descriptor, "rb")


def read_stable(path: Path) -> tuple[bytes, FileState]:
    """The file's bytes and a state that describes exactly these; read again while a writer is at work."""
    with open_log(path) as file:
        while True:
            before = file_state(file.fileno())
            file.seek(0)
            data = file.read()
            after = file_state(file.fileno())
            if before == after and len(data) == after.size:
                return data, after


def write_all(descriptor: int, data: bytes) -> None:
    """Write every byte, however many calls that takes."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def create_log(path: Path, data: bytes) -> FileState:
    """Create the log with its first bytes, all or nothing; `SessionExistsError` when the name is taken."""
    temporary = path.with_name(f"session.{path.name.rpartition('.')[2]}.{secrets.token_hex(6)}.tmp")
    try:
        make_directory(path.parent)
    except OSError as error:
        raise _write_error(path, error, "nothing was created") from error
    try:
        if os.path.lexists(path):
            raise FileExistsError(path)
        descriptor = os.open(
            temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _CLOSE_ON_EXEC, 0o600
        )
        try:
            write_all(descriptor, data)
            os.fsync(descriptor)
            os.link(temporary, path)
            try:
                sync_directory(path.parent)
                _remove(temporary)
                # Only now: removing the other name changes the file's own times.
                return file_state(descriptor)
            except OSError as error:
                # Reported as not created, so not there: a retry would find the name taken.
                _remove(path)
                if os.path.lexists(path):
                    raise _write_error(
                        path, error, "it is there, perhaps not durably", code="ROLLBACK_FAILED"
                    ) from error
                raise
        finally:
            os.close(descriptor)
            _remove(temporary)
    except FileExistsError as error:
        raise SessionExistsError(
            f"a log already lies at {path}; choose another session id", path=str(path)
        ) from error
    except OSError as error:
        raise _write_error(path, error, "nothing was created") from error


def _remove(path: Path) -> None:
    """Best effort: a temporary that stays behind is never read."""
    try:
        path.unlink()
    except OSError:
        return


def append_bytes(path: Path, data: bytes, expected: FileState) -> FileState:
    """Append durably to a log that is as it was left; returns its new state.

    Raises `ConflictError` when it is not (another writer, a replaced or a deleted file), and
    `StorageWriteError` when the medium refused, after cutting back what was written: `WRITE_FAILED`,
    `SYNC_FAILED`, or `ROLLBACK_FAILED` when cutting back failed as well.
    """
    with _open_expected(path, expected) as descriptor:
        try:
            write_all(descriptor, data)
        except OSError as error:
            roll_back(descriptor, path, expected.size, error)
            raise _write_error(path, error, "the file is as it was before") from error
        except BaseException as error:
            roll_back(descriptor, path, expected.size, error)
            raise
        try:
            os.fsync(descriptor)
            return file_state(descriptor)
        except OSError as error:
            # Cut back all the same: bytes that were never synced must not be built upon.
            roll_back(descriptor, path, expected.size, error)
            state = "it is unknown whether earlier bytes are safe"
            raise _write_error(path, error, state, code="SYNC_FAILED") from error


def roll_back(descriptor: int, path: Path, size: int, cause: BaseException) -> None:
    """Cut a failed append off again; `StorageWriteError` (`ROLLBACK_FAILED`) when that fails as well."""
    try:
        os.ftruncate(descriptor, size)
        os.fsync(descriptor)
    except OSError as error:
        raise StorageWriteError(
            f"{path}: the append failed ({cause}) and so did cutting it back ({error}); reopen the session, "
            "which repairs its end",
            code="ROLLBACK_FAILED",
            path=str(path),
        ) from cause


def truncate_log(
    path: Path, size: int, expected: FileState, keep: Callable[[bytes], Path]
) -> FileState:
    """Cut a torn tail off durably, after `keep` has put the cut bytes somewhere else."""
    with _open_expected(path, expected) as descriptor:
        try:
            os.lseek(descriptor, size, os.SEEK_SET)
            with os.fdopen(os.dup(descriptor), "rb") as file:
                keep(file.read())
            os.ftruncate(descriptor, size)
            os.fsync(descriptor)
            return file_state(descriptor)
        except OSError as error:
            raise _write_error(path, error, "the torn end is still there") from error


def keep_beside(path: Path, offset: int) -> Callable[[bytes], Path]:
    """Keeps cut bytes in the log's directory, under a name that tells where they were cut."""

    def keep(data: bytes) -> Path:
        target = path.with_name(f"session.cut-{offset}-{secrets.token_hex(4)}.bin")
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _CLOSE_ON_EXEC, 0o600)
        try:
            write_all(descriptor, data)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        sync_directory(path.parent)
        return target

    return keep


def remove_session(path: Path) -> None:
    """Remove a log durably, and then, as far as it goes, its directory with what else lies in it."""
    try:
        path.unlink()
    except FileNotFoundError as error:
        raise SessionNotFoundError(f"{path} is gone already", path=str(path)) from error
    except OSError as error:
        raise _write_error(path, error, "nothing was removed") from error
    try:
        sync_directory(path.parent)
    except OSError as error:
        state = "it is removed, but may come back after a power cut"
        raise _write_error(path, error, state, code="SYNC_FAILED") from error
    try:
        for entry in path.parent.iterdir():
            _remove(entry)
        path.parent.rmdir()
        sync_directory(path.parent.parent)
    except OSError:
        return  # something of others is in it


def replace_file(path: Path, data: bytes) -> None:
    """Write a small file anew: the old or the new content is there, whatever happens."""
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(6)}.tmp")
    try:
        descriptor = os.open(
            temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _CLOSE_ON_EXEC, 0o600
        )
        try:
            write_all(descriptor, data)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        temporary.replace(path)
        sync_directory(path.parent)
    except OSError as error:
        _remove(temporary)
        raise _write_error(path, error, "it is as it was before") from error


class _open_expected:  # noqa: N801 - used as a function
    """Opens an existing log for writing at its end and checks that it is the one that was left.

    Never creates: append mode would give a deleted log a headerless successor.
    """

    def __init__(self, path: Path, expected: FileState) -> None:
        self._path = path
        self._expected = expected

    def __enter__(self) -> int:
        try:
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_APPEND | _CLOSE_ON_EXEC)
        except FileNotFoundError as error:
            raise _conflict(self._path, "was deleted or moved") from error
        except OSError as error:
            raise _write_error(self._path, error, "nothing was written") from error
        try:
            found = file_state(self._descriptor)
        except OSError as error:
            os.close(self._descriptor)
            raise _write_error(self._path, error, "nothing was written") from error
        # Times are left out: a copied or touched file with the same bytes is the same log.
        if found[:3] != self._expected[:3]:
            os.close(self._descriptor)
            what = (
                "was replaced"
                if found[:2] != self._expected[:2]
                else "was changed by another writer"
            )
            raise _conflict(self._path, what)
        return self._descriptor

    def __exit__(self, *exception: object) -> None:
        os.close(self._descriptor)


def _conflict(path: Path, what: str) -> ConflictError:
    return ConflictError(
        f"{path} {what} since it was last read or written here; load the session again",
        path=str(path),
    )


def _write_error(
    path: Path, error: OSError, state: str, code: str = "WRITE_FAILED"
) -> StorageWriteError:
    return StorageWriteError(
        f"{path}: {error.strerror or error}; {state}",
        code=code,
        path=str(path),
        errno=error.errno,
    )
