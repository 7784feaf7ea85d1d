"""JsonlStorage: sessions as the harnesses' own files, one directory a session.

Point it at a directory that a harness wrote and it works; point a harness at one that this wrote and it works.
A root belongs to one encoding: what it already holds is what new sessions are written in, and a session is
always continued in its own. Reading takes either, packed, plain and mixed.

A harness knows nothing of our locks. Before each append the file's device, inode and size are compared with
what was left; between this check and the write lies a window in which a second writer goes unnoticed.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec

from turnlog.clock import Clock, system_clock
from turnlog.codec.frames import MAGIC, compress_frame, decompress_frames, scan_frames
from turnlog.codec.record import encode_batch, encode_header
from turnlog.engine.batch import append_each, check_batch, stored_header
from turnlog.engine.blobs import BlobInfo
from turnlog.engine.forking import watch_forks
from turnlog.engine.lease import FileLease, Lease, last_fence
from turnlog.engine.listing import (
    Notes,
    Order,
    Page,
    Progress,
    SessionFilter,
    SessionInfo,
    check_limit,
    page_of,
)
from turnlog.engine.names import encode_id, lock_name
from turnlog.engine.protocol import Batch, Damage, RawLog, Salvage, StoredLog, StoredSession
from turnlog.errors import (
    ConflictError,
    CorruptLogError,
    HeaderError,
    JsonValueError,
    StorageError,
    TurnlogError,
)
from turnlog.events import SessionEvent
from turnlog.header import SessionHeader
from turnlog.storage.jsonl import files
from turnlog.storage.jsonl.blobs import BlobFiles
from turnlog.storage.jsonl.finding import Root, unreadable
from turnlog.storage.jsonl.index import IndexEntry, LogIndex
from turnlog.storage.jsonl.notes import forget_notes, read_notes, write_notes
from turnlog.storage.jsonl.paths import LOG_NAMES, Encoding, session_dir
from turnlog.storage.jsonl.reading import LogFile, read_header, read_log, salvage_file

_LOCKS = ".locks"
"""Where the lease files lie; see `finding` for names that start with a dot."""


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
        self,
        root: str | Path,
        *,
        compression: Encoding = "none",
        pack: bool = True,
        clock: Clock = system_clock,
    ) -> None:
        self._root = Root(Path(root))
        self.root = self._root.path
        self._index = LogIndex(self.root)
        self._blobs = BlobFiles(self.root)
        self._compression = compression
        self._pack = pack
        self._clock = clock
        self._writers: dict[str, _Writer] = {}
        self._lock = threading.RLock()
        self._encoding: Encoding | None = None
        watch_forks(self)

    def before_fork(self) -> None:
        """Wait for what other threads are writing: a child has not these threads."""
        self._lock.acquire()

    def after_fork(self, *, in_child: bool) -> None:
        """Go on."""
        self._lock.release()

    # -- listing ---------------------------------------------------------------------------------------

    def list(self) -> list[StoredSession]:
        """Every session directory of the root, and every stray log of the retired flat layout."""
        return self._root.list()

    def browse(
        self,
        wanted: SessionFilter,
        *,
        order: Order = "created",
        cursor: str | None = None,
        limit: int = 50,
    ) -> Page:
        """One page, from the index; logs that it does not know in their present state are read."""
        check_limit(limit)
        logs = [path for path in self._root.log_paths([]) if path.parent.parent.parent == self.root]
        # A session in two places is opened from neither, so it is no sound one.
        places = Counter(path.parent.name for path in logs)
        logs = [path for path in logs if places[path.parent.name] == 1]
        states = [(path, state) for path in logs if (state := _state(path)) is not None]
        infos = [
            SessionInfo(entry.header, str(path), entry.progress, read_notes(path))
            for path, entry in self._index.look_up(states, self._index_entry)
        ]
        return page_of(infos, wanted, order=order, cursor=cursor, limit=limit)

    def _index_entry(self, path: Path) -> IndexEntry | None:
        """What the index keeps of a log; None for one that cannot be read, which `list` reports."""
        try:
            stored = read_log(path).stored
            self._root.check_identity(path, stored.header)
        except (TurnlogError, OSError):
            return None
        return IndexEntry(stored.header, Progress().advance(stored.log.view()))

    def notes(self, id: str) -> Notes:
        """The session's sidecar file."""
        return read_notes(self._root.require(id))

    def set_notes(self, id: str, notes: Notes) -> None:
        """Replace the sidecar file."""
        write_notes(self._root.require(id), notes)

    # -- reading ---------------------------------------------------------------------------------------

    def inspect(self, id: str, *, close_turn: bool = True) -> StoredLog:
        """The stored log, balanced in memory."""
        stored = self._read(id).stored
        if close_turn:
            stored.close_turn()
        return stored

    def _read(self, id: str) -> LogFile:
        path = self._root.require(id)
        try:
            file = read_log(path)
        except OSError as error:
            raise unreadable(path, id, error) from error
        if file.stored.header.id != id:
            raise CorruptLogError(
                f"{path} holds session {file.stored.header.id!r}, not {id!r}",
                code="WRONG_PLACE",
                session_id=id,
                path=str(path),
            )
        self._root.check_identity(path, file.stored.header)
        return file

    def load(self, id: str, *, close_turn: bool = True) -> StoredLog:
        """The log after a durable repair."""
        with self._lock:
            file = self._read(id)
            stored, path = file.stored, self._root.require(id)
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
        path = self._root.require(id)
        try:
            salvage = salvage_file(path)
        except OSError as error:
            raise unreadable(path, id, error) from error
        try:
            self._root.check_identity(path, SessionHeader.from_dict(salvage.header or {}))
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
        path = self._root.require(id)
        try:
            header = read_header(path)
            data, _ = files.read_stable(path)
        except OSError as error:
            raise unreadable(path, id, error) from error
        if data[:4] == MAGIC:
            ends = scan_frames(data).ends
            data = decompress_frames(data[: ends[-1]])
        return RawLog(header, LOG_NAMES["none"], data)

    def revision(self, id: str) -> str | None:
        """The state of the file, or None."""
        path = self._root.find(id)
        try:
            return None if path is None else files.file_state(path).revision
        except OSError as error:
            raise unreadable(path or self.root, id, error) from error

    def location(self, id: str) -> str | None:
        """The path of the session's log, or None."""
        path = self._root.find(id)
        return None if path is None else str(path)

    # -- writing ---------------------------------------------------------------------------------------

    def acquire(self, id: str) -> Lease:
        """The session's lease: a lock file under the root, which no harness looks at."""
        encode_id(id)  # refuses what cannot be stored
        return FileLease.acquire(self._lock_path(id), id, clock=self._clock)

    def _lock_path(self, id: str) -> Path:
        return self.root / _LOCKS / lock_name(id)

    def append_many(self, batches: Sequence[Batch]) -> Sequence[TurnlogError | None]:
        """Append batches one after the other; every file needs a sync of its own."""
        return append_each(self.append, batches)

    def append(
        self, header: SessionHeader, events: Sequence[SessionEvent], fence: int | None = None
    ) -> None:
        """Append a batch, or create the session with it. The fencing number is that in the lease file."""
        if not events:
            return
        if fence is not None and fence < last_fence(self._lock_path(header.id)):
            raise ConflictError(
                f"session {header.id!r}: another writer has taken it over; load it again",
                session_id=header.id,
                expected_seq=events[0].seq,
            )
        with self._lock:
            writer = self._writers.get(header.id)
            if writer is None:
                if self._root.find(header.id) is None:
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
        writer = _Writer(self._root.require(id), file.encoding, file.state, len(file.stored.log))
        self._writers[id] = writer
        return writer

    def _create(self, header: SessionHeader, events: Sequence[SessionEvent]) -> None:
        check_batch(header.id, events, 0)
        encoding = self._root_encoding()
        path = session_dir(self.root, header.cwd, header.id) / LOG_NAMES[encoding]
        head, body = encode_header(stored_header(header)), encode_batch(events, pack=self._pack)
        data = compress_frame(head) + compress_frame(body) if encoding == "zstd" else head + body
        forget_notes(path)
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
            names = {path.name for path in self._root.log_paths([])}
            found = [encoding for encoding, name in LOG_NAMES.items() if name in names]
            if not found or self._compression in found:
                return self._compression
            self._encoding = found[0]
        return self._encoding

    def share(self, header: SessionHeader, source: str, progress: Progress) -> bool:
        """A file of its own for each session: nothing can be shared."""
        return False

    def delete(self, id: str) -> None:
        """Remove the log, and then what else lies in its directory."""
        with self._lock:
            path = self._root.require(id)
            self._writers.pop(id, None)
            files.remove_session(path)

    # -- blobs -----------------------------------------------------------------------------------------

    def put_blob(self, digest: str, data: bytes) -> None:
        """Store the bytes."""
        self._blobs.put(digest, data)

    def get_blob(self, digest: str) -> bytes | None:
        """The bytes, or None."""
        return self._blobs.get(digest)

    def list_blobs(self) -> Sequence[BlobInfo]:
        """Every stored blob."""
        return self._blobs.all()

    def delete_blob(self, digest: str) -> None:
        """Remove the blob."""
        self._blobs.delete(digest)

    def close(self) -> None:
        """Forget where logs were left; no file is held open between calls."""
        with self._lock:
            self._writers.clear()


def _state(path: Path) -> str | None:
    try:
        return files.file_state(path).revision
    except OSError:
        return None
