"""Every error that turnlog raises, in one tree.

    TurnlogError
    ├── JsonValueError              a value or a text that lossless JSON does not admit
    ├── EventError                  an event whose envelope or payload is not what the format allows
    │   └── SurfaceError            a surface operation that cannot be carried out
    ├── HeaderError                 a session header with a missing, wrong or retired field
    ├── InvariantError              an append vetoed by a relational check
    ├── SessionError                a session or a store used in a way that its state does not allow
    │   └── ForkedError             a session inherited over os.fork
    ├── RecorderError               turns, steps and tool calls opened or closed out of order
    ├── SessionReferenceError       a mention, URI or reference that cannot be used
    ├── TargetError                 a store target that names no storage
    └── StorageError                everything that a storage refuses
        ├── SessionNotFoundError    no such session
        ├── SessionExistsError      the id is taken
        ├── ConflictError           the stored log is not where the writer thinks it is
        ├── SessionLockedError      another writer has the session's lease
        ├── UnsupportedFormatError  an intact log of another format version, or with unknown events
        ├── CorruptLogError         a damaged log
        └── StorageWriteError       bytes could not be made durable
            └── StorageBusyError    another process kept the medium for too long

Each class has a stable upper-case `code`; where one class covers several conditions, the instance
carries the exact one. Messages say what happened, to which session, and what to do next. All of
them survive pickling, so that they can cross a process boundary.
"""

from __future__ import annotations

from typing import Any, ClassVar


class TurnlogError(Exception):
    """Base of every error of turnlog.

    `code` is stable across versions; the message is for people and is not. `details` holds the
    typed fields of the subclass, as plain values.
    """

    default_code: ClassVar[str] = "TURNLOG"

    def __init__(self, message: str, *, code: str | None = None, **details: Any) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.default_code
        self.details = details

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.message, self.code, self.details))

    def to_dict(self) -> dict[str, Any]:
        """The error as plain JSON values: `{code, message, ...details}` without absent details."""
        known = {name: value for name, value in self.details.items() if value is not None}
        return {"code": self.code, "message": self.message, **known}


def _rebuild(
    kind: type[TurnlogError], message: str, code: str, details: dict[str, Any]
) -> TurnlogError:
    return kind(message, code=code, **details)


class JsonValueError(TurnlogError):
    """Raised when a value cannot enter a log and come back equal, or a text is no such JSON.

    `path` is the place of the offending value, as in `$.data.rows[3]`; `$` is the value itself.
    """

    default_code = "JSON_VALUE"

    @property
    def path(self) -> str:
        """Where in the value the fault lies, starting with `$`."""
        return str(self.details.get("path", "$"))


class EventError(TurnlogError):
    """Raised when an event's envelope or payload breaks the format.

    `seq` is the event's seq or its index in a seed, where one is known.
    """

    default_code = "INVALID_EVENT"

    @property
    def seq(self) -> int | None:
        """The event's seq (0-based), or None when the event never got one."""
        return self.details.get("seq")


class SurfaceError(EventError):
    """Raised when a surface operation is refused; `code` is one of `turnlog.surface.SurfaceCode`."""

    default_code = "SURFACE"


class HeaderError(TurnlogError):
    """Raised when a session header lacks a field, has one of a wrong type, or a retired one."""

    default_code = "INVALID_HEADER"


class InvariantError(TurnlogError):
    """Raised when a relational check vetoes an append; `owner` names the check."""

    default_code = "INVARIANT"

    @property
    def owner(self) -> str:
        """The name under which the vetoing check is registered."""
        return str(self.details.get("owner", ""))


class SessionError(TurnlogError):
    """Raised when a session or a store is used against its state; `code` says how.

    Codes: `REENTRANT_APPEND`, `FORKED`, `CLOSED`, `SESSION_ALREADY_EXISTS`, `SESSION_NOT_FOUND`,
    `SESSION_NOT_LIVE`, `INVALID_BOUNDARY`, `OPEN_TURN`, `STEP_NOT_FOUND`, `LISTENER_VETO`.
    """

    default_code = "SESSION"


class ForkedError(SessionError):
    """Raised when a session that was inherited over `os.fork` is written to."""

    default_code = "FORKED"


class RecorderError(TurnlogError):
    """Raised when a turn, step or tool call is opened or closed out of order."""

    default_code = "RECORDER"


class SessionReferenceError(TurnlogError):
    """Raised when a mention, a URI or a reference to a session cannot be used."""

    default_code = "SESSION_REFERENCE_INVALID_REFERENCE"


class TargetError(TurnlogError):
    """Raised when a store target names no storage that this installation can open."""

    default_code = "INVALID_TARGET"


class StorageError(TurnlogError):
    """Base of what a storage refuses; `session_id` and `path` say where, when they are known."""

    default_code = "STORAGE"

    @property
    def session_id(self) -> str | None:
        """The id of the session concerned, or None when it could not be read."""
        return self.details.get("session_id")

    @property
    def path(self) -> str | None:
        """The file concerned, or None for a storage without one file a session."""
        return self.details.get("path")


class SessionNotFoundError(StorageError):
    """Raised when no stored session has the id."""

    default_code = "SESSION_NOT_FOUND"


class SessionExistsError(StorageError):
    """Raised when a session of that id is already stored."""

    default_code = "SESSION_ALREADY_EXISTS"


class ConflictError(StorageError):
    """Raised when the stored log does not end where the writer expects.

    `expected_seq` is the writer's next seq, `actual_seq` the storage's.
    """

    default_code = "CONFLICT"


class SessionLockedError(StorageError):
    """Raised when another writer holds the session's lease.

    `pid`, `host` and `since` (Unix milliseconds) say who has held it and since when.
    """

    default_code = "SESSION_LOCKED"


class UnsupportedFormatError(StorageError):
    """Raised when a log is intact but this program must not interpret it.

    Codes: `NEWER_FORMAT`, `OLDER_FORMAT`, `UNKNOWN_EVENT_TYPE`. The raw bytes stay reachable under `path`.
    """

    default_code = "UNSUPPORTED_FORMAT"


class CorruptLogError(StorageError):
    """Raised when a stored log is damaged: `line` (1-based), `offset` (bytes) and `seq` say where."""

    default_code = "CORRUPT_LOG"

    @property
    def line(self) -> int | None:
        """The damaged line, counted from 1 (the header)."""
        return self.details.get("line")

    @property
    def offset(self) -> int | None:
        """The byte offset of that line, in the decompressed text of a compressed file."""
        return self.details.get("offset")


class StorageWriteError(StorageError):
    """Raised when events could not be made durable; what was durable before still is.

    Codes: `WRITE_FAILED` (nothing was written; trying again is safe), `ROLLBACK_FAILED` and `SYNC_FAILED` (the
    state of the medium is unknown: the writer refuses to go on until the session is reopened), `POISONED` (it
    refuses).
    """

    default_code = "WRITE_FAILED"


class StorageBusyError(StorageWriteError):
    """Raised when another process kept the medium longer than the busy timeout; nothing was written."""

    default_code = "BUSY"
