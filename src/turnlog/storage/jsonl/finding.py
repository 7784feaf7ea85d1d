"""Finding logs under a root: by id, all of them, and whether one belongs where it lies.

One damaged or unreadable neighbour never hides another: it is listed with what is wrong. Directories whose name
starts with a dot hold what is no session (leases, blobs); no project's name does.
"""

from __future__ import annotations

import builtins
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from turnlog.engine.names import encode_id
from turnlog.engine.protocol import StoredSession
from turnlog.errors import (
    CorruptLogError,
    SessionNotFoundError,
    StorageError,
    TargetError,
    TurnlogError,
)
from turnlog.header import SessionHeader
from turnlog.storage.jsonl.paths import LOG_NAMES, session_dir
from turnlog.storage.jsonl.reading import read_header


class Root:
    """The directory of a JSONL storage."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        if self.path.exists() and not self.path.is_dir():
            raise TargetError(
                f"{self.path} is no directory", code="INVALID_TARGET", path=str(self.path)
            )

    def list(self) -> list[StoredSession]:
        """Every session directory of the root, and every stray log of the retired flat layout."""
        blocked: list[OSError] = []
        paths = list(self.log_paths(blocked))
        # By name, as `_find` looks for them: what it would refuse to open is not listed as sound.
        places = Counter(path.parent.name for path in paths)
        entries = [self._list_entry(path, places[path.parent.name]) for path in paths]
        return entries + [
            StoredSession(None, str(error.filename), _unreadable_text(error), "UNREADABLE")
            for error in blocked
        ]

    def _list_entry(self, path: Path, places: int) -> StoredSession:
        try:
            header = read_header(path)
            self.check_identity(path, header)
        except TurnlogError as error:
            return StoredSession(None, str(path), error.message, error.code)
        except OSError as error:
            return StoredSession(None, str(path), _unreadable_text(error), "UNREADABLE")
        if places > 1:
            what = f"session {header.id!r} is stored in {places} places"
            return StoredSession(None, str(path), what, "DUPLICATE_SESSION")
        return StoredSession(header, str(path))

    def log_paths(self, blocked: builtins.list[OSError]) -> Iterator[Path]:
        """The logs of the root; what keeps a directory from being looked into is added to `blocked`."""
        for project in _directories(self.path):
            for session in _entries(project, blocked):
                logs = [session / name for name in LOG_NAMES.values()]
                found = [path for path in logs if _exists(path, blocked)]
                yield from found
                # An id may end so too: only what is no session's directory is of the flat layout.
                if not found and session.name.endswith((".jsonl", ".jsonl.zstd")):
                    yield session

    def find(self, id: str) -> Path | None:
        """The log of a session, or None; refuses an id that is stored twice or may lie where nobody can look."""
        name = encode_id(id)
        blocked: builtins.list[OSError] = []
        found = [
            path
            for project in _directories(self.path)
            for log_name in LOG_NAMES.values()
            if _exists(path := project / name / log_name, blocked)
        ]
        if len(found) > 1:
            raise CorruptLogError(
                f"session {id!r} is stored in several places: {', '.join(map(str, found))}; "
                "move all but one out of the root",
                code="DUPLICATE_SESSION",
                session_id=id,
            )
        if not found and blocked:
            # It may lie there: "not found" would let a second log of this id be created.
            raise unreadable(Path(blocked[0].filename), id, blocked[0]) from blocked[0]
        return found[0] if found else None

    def require(self, id: str) -> Path:
        """The log of a session; `SessionNotFoundError` when there is none."""
        path = self.find(id)
        if path is None:
            raise SessionNotFoundError(f"no session {id!r} under {self.path}", session_id=id)
        return path

    def check_identity(self, path: Path, header: SessionHeader) -> None:
        """The header must belong where it lies, or a log could be read or written under a wrong name."""
        expected = session_dir(self.path, header.cwd, header.id) / path.name
        if path != expected and not _same_file(path, expected):
            raise CorruptLogError(
                f"{path} holds session {header.id!r} of {header.cwd!r}, which belongs at {expected}",
                code="WRONG_PLACE",
                session_id=header.id,
                path=str(path),
            )


def _exists(path: Path, blocked: list[OSError]) -> bool:
    """Whether something has the name: a link that leads nowhere is there, and reading it says what is wrong."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        blocked.append(error)
        return False
    return True


def _same_file(path: Path, other: Path) -> bool:
    try:
        return path.samefile(other)
    except OSError:
        return False


def _entries(directory: Path, blocked: list[OSError]) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except (NotADirectoryError, FileNotFoundError):
        return []
    except OSError as error:
        blocked.append(error)
        return []


def _directories(root: Path) -> list[Path]:
    """The directories of the root; that the root itself cannot be read is an error of its own."""
    blocked: list[OSError] = []
    directories = [
        path
        for path in _entries(root, blocked)
        if path.name[0] != "." and _is_directory(path, blocked)
    ]
    if blocked:
        raise StorageError(
            f"{root} cannot be read: {blocked[0].strerror}", code="UNREADABLE", path=str(root)
        ) from blocked[0]
    return directories


def _is_directory(path: Path, blocked: list[OSError]) -> bool:
    try:
        return path.is_dir()
    except OSError as error:
        blocked.append(error)
        return False


def _unreadable_text(error: OSError) -> str:
    return f"it cannot be read: {error.strerror or error}"


def unreadable(path: Path, id: str, error: OSError) -> StorageError:
    """The error for a log that the file system will not let us read."""
    return StorageError(
        f"{path} cannot be read: {error.strerror or error}",
        code="UNREADABLE",
        session_id=id,
        path=str(path),
    )
