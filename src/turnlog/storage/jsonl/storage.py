"""JsonlStorage: sessions as the harnesses' own files, one directory a session.

Point it at a directory that a harness wrote and it works; point a harness at one that this wrote and it works.
A root belongs to one encoding: what it already holds is what new sessions are written in, and a session is
always continued in its own. Reading takes either, packed, plain and mixed.

A harness knows nothing of our locks. Before each append the file's device, inode and size are compared with
what was left; between this check and the write lies a window in which a second writer goes unnoticed.
"""

from __future__ import annotations

import builtins
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from turnlog.codec.frames import MAGIC, compress_frame, decompress_frames, scan_frames
from turnlog.codec.record import encode_batch, encode_header
from turnlog.engine.batch import check_batch, stored_header
from turnlog.engine.protocol import Damage, RawLog, Salvage, StoredLog, StoredSession
from turnlog.errors import (
    CorruptLogError,
    HeaderError,
    JsonValueError,
    SessionNotFoundError,
    StorageError,
    TargetError,
    TurnlogError,
)
from turnlog.events import SessionEvent
from turnlog.header import SessionHeader
from turnlog.storage.jsonl import files
from turnlog.storage.jsonl.paths import LOG_NAMES, Encoding, encode_id, session_dir
from turnlog.storage.jsonl.reading import LogFile, read_header, read_log, salvage_file


class _Writer(msgspec.Struct):
    """Where this storage left a log: its file, and the seq that comes next."""

    path: Path
    encoding: Encoding
    state: files.FileState
    next_seq: int


class JsonlStorage:
    """A storage over a directory; see `turnlog.engine.protocol.Storage` for every method's contract.

    `root`: created with the first session. `compression`: for new sessions in a root that holds none yet;
    raw JSONL by default, because it can be read with any tool. `pack`: whether chunk runs are written as rows.
    """

    def __init__(
        self, root: str | Path, *, compression: Encoding = "none", pack: bool = True
    ) -> None:
        self.root = Path(root).absolute()
        if self.root.exists() and not self.root.is_dir():
            raise TargetError(
                f"{self.root} is no directory", code="INVALID_TARGET", path=str(self.root)
            )
        self._compression = compression
        self._pack = pack
        self._writers: dict[str, _Writer] = {}
        self._lock = threading.RLock()
        self._encoding: Encoding | None = None

    # -- finding ---------------------------------------------------------------------------------------

    def list(self) -> list[StoredSession]:
        """Every session directory of the root, and every stray log of the retired flat layout."""
        blocked: list[OSError] = []
        paths = list(self._log_paths(blocked))
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
            self._check_identity(path, header)
        except TurnlogError as error:
            return StoredSession(None, str(path), error.message, error.code)
        except OSError as error:
            return StoredSession(None, str(path), _unreadable_text(error), "UNREADABLE")
        if places > 1:
            what = f"session {header.id!r} is stored in {places} places"
            return StoredSession(None, str(path), what, "DUPLICATE_SESSION")
        return StoredSession(header, str(path))

    def _log_paths(self, blocked: builtins.list[OSError]) -> Iterator[Path]:
        """The logs of the root; what keeps a directory from being looked into is added to `blocked`."""
        for project in _directories(self.root):
            for session in _entries(project, blocked):
                logs = [session / name for name in LOG_NAMES.values()]
                found = [path for path in logs if _exists(path, blocked)]
                yield from found
                # An id may end so too: only what is no session's directory is of the flat layout.
                if not found and session.name.endswith((".jsonl", ".jsonl.zstd")):
                    yield session

    def _find(self, id: str) -> Path | None:
        name = encode_id(id)
        blocked: builtins.list[OSError] = []
        found = [
            path
            for project in _directories(self.root)
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
            raise _unreadable(Path(blocked[0].filename), id, blocked[0]) from blocked[0]
        return found[0] if found else None

    def _require(self, id: str) -> Path:
        path = self._find(id)
        if path is None:
            raise SessionNotFoundError(f"no session {id!r} under {self.root}", session_id=id)
        return path

    def _check_identity(self, path: Path, header: SessionHeader) -> None:
        """The header must belong where it lies, or a log could be read or written under a wrong name."""
        expected = session_dir(self.root, header.cwd, header.id) / path.name
        if path != expected and not _same_file(path, expected):
            raise CorruptLogError(
                f"{path} holds session {header.id!r} of {header.cwd!r}, which belongs at {expected}",
                code="WRONG_PLACE",
                session_id=header.id,
                path=str(path),
            )

    # -- reading ---------------------------------------------------------------------------------------

    def inspect(self, id: str, *, close_turn: bool = True) -> StoredLog:
        """The stored log, balanced in memory."""
        stored = self._read(id).stored
        if close_turn:
            stored.close_turn()
        return stored

    def _read(self, id: str) -> LogFile:
        path = self._require(id)
        try:
            file = read_log(path)
        except OSError as error:
            raise _unreadable(path, id, error) from error
        if file.stored.header.id != id:
            raise CorruptLogError(
                f"{path} holds session {file.stored.header.id!r}, not {id!r}",
                code="WRONG_PLACE",
                session_id=id,
                path=str(path),
            )
        self._check_identity(path, file.stored.header)
        return file

    def load(self, id: str, *, close_turn: bool = True) -> StoredLog:
        """The log after a durable repair."""
        with self._lock:
            file = self._read(id)
            stored, path = file.stored, self._require(id)
            writer = _Writer(path, file.encoding, file.state, len(stored.log))
            if stored.torn is not None:
                at = stored.torn.truncate_to
                keep = files.keep_beside(path, at)
                writer.state = files.truncate_log(path, at, file.state, keep)
                writer.next_seq -= stored.torn.recovered
            if close_turn:
                stored.close_turn()
            self._writers[id] = writer
            missing = stored.log.view()[writer.next_seq :]
            if missing:
                self._append(writer, missing)
            stored.torn, stored.closers, stored.revision = None, (), writer.state.revision
            return stored

    def salvage(self, id: str) -> Salvage:
        """Everything of the session's file that can be decoded; that it lies in a wrong place is damage too."""
        path = self._require(id)
        try:
            salvage = salvage_file(path)
        except OSError as error:
            raise _unreadable(path, id, error) from error
        try:
            self._check_identity(path, SessionHeader.from_dict(salvage.header or {}))
        except StorageError as error:
            salvage.damage.insert(0, Damage(1, 0, error.message))
        except (HeaderError, JsonValueError):
            pass  # no header that could name a place; `verify` says what is wrong with it
        return salvage

    def read_from(self, id: str, seq: int) -> Sequence[SessionEvent]:
        """The stored events from a seq on, without closers."""
        return self._read(id).stored.log.view()[max(seq, 0) :]

    def read_raw(self, id: str) -> RawLog:
        """The file's text; of a compressed one that of its complete frames."""
        path = self._require(id)
        try:
            header = read_header(path)
            data, _ = files.read_stable(path)
        except OSError as error:
            raise _unreadable(path, id, error) from error
        if data[:4] == MAGIC:
            ends = scan_frames(data).ends
            data = decompress_frames(data[: ends[-1]])
        return RawLog(header, LOG_NAMES["none"], data)

    def revision(self, id: str) -> str | None:
        """The state of the file, or None."""
        path = self._find(id)
        try:
            return None if path is None else files.file_state(path).revision
        except OSError as error:
            raise _unreadable(path or self.root, id, error) from error

    def location(self, id: str) -> str | None:
        """The path of the session's log, or None."""
        path = self._find(id)
        return None if path is None else str(path)

    # -- writing ---------------------------------------------------------------------------------------

    def append(self, header: SessionHeader, events: Sequence[SessionEvent]) -> None:
        """Append a batch, or create the session with it."""
        if not events:
            return
        with self._lock:
            writer = self._writers.get(header.id)
            if writer is None:
                if self._find(header.id) is None:
                    self._create(header, events)
                    return
                writer = self._adopt(header.id)
            check_batch(header.id, events, writer.next_seq)
            self._append(writer, events)

    def _adopt(self, id: str) -> _Writer:
        """Go on with a stored log that this object neither wrote nor loaded; its end must be sound."""
        file = self._read(id)
        if file.stored.torn is not None:
            raise StorageError(
                f"session {id!r} has a torn end; load it first, which repairs it",
                code="TORN_TAIL",
                session_id=id,
            )
        writer = _Writer(self._require(id), file.encoding, file.state, len(file.stored.log))
        self._writers[id] = writer
        return writer

    def _create(self, header: SessionHeader, events: Sequence[SessionEvent]) -> None:
        check_batch(header.id, events, 0)
        encoding = self._root_encoding()
        path = session_dir(self.root, header.cwd, header.id) / LOG_NAMES[encoding]
        head, body = encode_header(stored_header(header)), encode_batch(events, pack=self._pack)
        data = compress_frame(head) + compress_frame(body) if encoding == "zstd" else head + body
        state = files.create_log(path, data)
        self._encoding = encoding
        self._writers[header.id] = _Writer(path, encoding, state, len(events))

    def _append(self, writer: _Writer, events: Sequence[SessionEvent]) -> None:
        data = encode_batch(events, pack=self._pack)
        if writer.encoding == "zstd":
            data = compress_frame(data)
        writer.state = files.append_bytes(writer.path, data, writer.state)
        writer.next_seq += len(events)

    def _root_encoding(self) -> Encoding:
        """What the root's sessions are written in: this storage's choice where there is none or both."""
        if self._encoding is None:
            names = {path.name for path in self._log_paths([])}
            found = [encoding for encoding, name in LOG_NAMES.items() if name in names]
            if not found or self._compression in found:
                return self._compression
            self._encoding = found[0]
        return self._encoding

    def close(self) -> None:
        """Forget where logs were left; no file is held open between calls."""
        with self._lock:
            self._writers.clear()


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
    entries = _entries(root, blocked)
    if blocked:
        raise StorageError(
            f"{root} cannot be read: {blocked[0].strerror}", code="UNREADABLE", path=str(root)
        ) from blocked[0]
    return [path for path in entries if path.is_dir()]


def _unreadable_text(error: OSError) -> str:
    return f"it cannot be read: {error.strerror or error}"


def _unreadable(path: Path, id: str, error: OSError) -> StorageError:
    return StorageError(
        f"{path} cannot be read: {error.strerror or error}",
        code="UNREADABLE",
        session_id=id,
        path=str(path),
    )
