"""Committer: brings the events of live sessions to a storage, each once and in order.

Leader and followers: whoever flushes first while nobody writes becomes the leader and commits what *all*
sessions have pending in one go; the others wait for that commit, and mostly find themselves written. A
synchronous flush hops over no thread. One timer thread writes behind: a bounded time after the first pending
event it leads a commit of its own.

What waits to be written is no queue but a cursor into `session.events`, so nothing is copied and an append never
waits for the disk. A batch that failed is still pending: it can be neither lost nor duplicated nor overtaken.
When the outcome of a write is unknown, or the stored log is not where it should be, the session is poisoned:
it refuses to go on until it is reopened, and nothing is reported durable that is not.

Lock order: a session's own lock, then the committer's; nothing here takes a session's, so that an observer may
flush. A child made by `os.fork` starts with no writers: what the parent has pending is the parent's to write.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence

from turnlog.engine.forking import watch_forks
from turnlog.engine.protocol import Batch, Storage
from turnlog.errors import (
    ConflictError,
    SessionError,
    SessionExistsError,
    SessionNotFoundError,
    StorageWriteError,
    TurnlogError,
)
from turnlog.session import Session

logger = logging.getLogger(__name__)

WINDOW_MS = 200
"""How long an event may wait before it is written behind; counted from the first pending one."""

_FIRST_BACKOFF_S = 0.2
_LAST_BACKOFF_S = 5.0
_SAFE_TO_RETRY = frozenset({"WRITE_FAILED", "BUSY"})


class Writer:
    """One live session's place in a committer: how far it is written, and what went wrong last."""

    def __init__(self, session: Session, written: int, fence: int | None) -> None:
        self.session = session
        self.written = written
        self.fence = fence
        self.failures = 0
        self.error: TurnlogError | None = None
        self.poison: TurnlogError | None = None
        self.reported = False
        self.interrupted = False

    def pending(self) -> Batch | None:
        """What is to be written, or None."""
        if self.poison is not None:
            return None
        events = self.session.settled_events
        if self.written >= len(events):
            return None
        return Batch(self.session.header, events[self.written :], self.fence)


class Committer:
    """Group commit and write-behind over the live sessions of one storage. Thread-safe.

    `window_ms`: bound of the write-behind; 0 switches it off. `monotonic`: seconds, for the window.
    """

    def __init__(
        self,
        storage: Storage,
        *,
        window_ms: int = WINDOW_MS,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._storage = storage
        self._window = window_ms / 1000
        self._monotonic = monotonic
        self._closed = False
        self._start_over()
        watch_forks(self)

    def before_fork(self) -> None:
        """Nothing: a child starts over."""

    def after_fork(self, *, in_child: bool) -> None:
        """See the module."""
        if in_child:
            self._start_over()

    def _start_over(self) -> None:
        self._turn = threading.Condition()
        self._leading = False
        self._writers: dict[int, Writer] = {}
        self._deadline: float | None = None
        self._backoff = _FIRST_BACKOFF_S
        self._timer: threading.Thread | None = None

    def register(self, session: Session, written: int, fence: int | None) -> Writer:
        """Take care of a session whose first `written` events are stored."""
        writer = Writer(session, written, fence)
        with self._turn:
            self._writers[id(session)] = writer
        self._arm(writer)
        return writer

    def unregister(self, writer: Writer) -> None:
        """Let go of a session; what it has pending stays unwritten."""
        writer.session.on_pending(None)
        with self._turn:
            self._writers.pop(id(writer.session), None)

    # -- flushing --------------------------------------------------------------------------------------

    def flush(self, writer: Writer) -> None:
        """Return when every event that the session had at the call is durable.

        Raises what the storage raised for this session; its events are then still pending, or, when the
        outcome is unknown, the session is poisoned.
        """
        target = len(writer.session.settled_events)
        failures = writer.failures
        while True:
            with self._turn:
                while True:
                    if writer.poison is not None:
                        raise writer.poison
                    if writer.written >= target:
                        return
                    if writer.failures != failures and writer.error is not None:
                        raise writer.error
                    if self._writers.get(id(writer.session)) is not writer:
                        raise _let_go(writer.session.id)
                    if not self._leading:
                        break
                    self._turn.wait()
                self._leading = True
            self._lead()

    def flush_all(self) -> None:
        """Flush every session; all are tried, then the first error is raised."""
        with self._turn:
            writers = list(self._writers.values())
        first: TurnlogError | None = None
        for writer in writers:
            try:
                self.flush(writer)
            except TurnlogError as error:
                first = first or error
        if first is not None:
            raise first

    def _lead(self) -> None:
        """Commit what all sessions have pending; the caller has taken the lead."""
        taken: list[tuple[Writer, Batch]] = []
        results: Sequence[TurnlogError | None] = ()
        try:
            with self._turn:
                writers = list(self._writers.values())
            for writer in writers:
                if writer.interrupted:
                    self._find_end(writer)
            taken = [
                (writer, batch) for writer in writers if (batch := writer.pending()) is not None
            ]
            if taken:
                results = self._storage.append_many([batch for _, batch in taken])
        finally:
            with self._turn:
                for (writer, batch), error in zip(taken, results, strict=False):
                    self._settle(writer, batch, error)
                for writer, _ in taken[len(results) :]:
                    # Something that is no answer of the storage's cut it short, Ctrl-C say.
                    writer.interrupted = True
                self._plan_retry()
                self._leading = False
                self._turn.notify_all()
            for writer, _ in taken:
                self._arm(writer)

    def _settle(self, writer: Writer, batch: Batch, error: TurnlogError | None) -> None:
        if error is None:
            writer.written += len(batch.events)
            writer.error, writer.reported = None, False
            return
        writer.failures += 1
        writer.error = error
        if error.code not in _SAFE_TO_RETRY:
            writer.poison = _poisoned(writer.session.id, error)
            writer.session.refuse(writer.poison)

    def _find_end(self, writer: Writer) -> None:
        """Find out whether an interrupted write came about, by comparing what is stored with what was pending."""
        batch = writer.pending()
        if batch is not None:
            try:
                stored = self._storage.read_from(writer.session.id, writer.written)
            except SessionNotFoundError:
                stored = ()
            except TurnlogError:
                return  # the write itself will say what is wrong
            ours = [event.to_json() for event in batch.events[: len(stored)]]
            if [event.to_json() for event in stored] == ours:
                with self._turn:
                    writer.written += len(ours)
        writer.interrupted = False

    # -- write-behind ----------------------------------------------------------------------------------

    def _arm(self, writer: Writer) -> None:
        """Have the session call once, when its next event makes it pending."""
        if not self._window or self._closed or writer.poison is not None:
            return
        writer.session.on_pending(lambda: self._wake(writer))
        # What has failed is tried again at the planned time, unless something new comes.
        if writer.written < len(writer.session.settled_events) and writer.error is None:
            self._wake(writer)

    def _wake(self, writer: Writer) -> None:
        """An event waits: start the window, unless it runs already; it is never extended."""
        with self._turn:
            if self._closed:
                return
            try:
                self._start_timer()
            except RuntimeError:
                # No thread to be had, at interpreter shutdown say: it is left to `flush`, and to the next event.
                writer.session.on_pending(lambda: self._wake(writer))
                return
            self._plan(self._window)

    def _start_timer(self) -> None:
        if self._timer is None:
            timer = threading.Thread(target=self._run, name="turnlog-writer", daemon=True)
            timer.start()
            self._timer = timer

    def _plan(self, delay: float) -> None:
        """Have the timer lead after so many seconds, or sooner if it would anyway."""
        deadline = self._monotonic() + delay
        if self._deadline is None or deadline < self._deadline:
            self._deadline = deadline
            self._turn.notify_all()

    def _plan_retry(self) -> None:
        """Try what has failed and is safe to retry again later, ever more slowly."""
        writers = self._writers.values()
        if not any(
            writer.interrupted or (writer.error is not None and writer.poison is None)
            for writer in writers
        ):
            self._backoff = _FIRST_BACKOFF_S
        elif self._timer is not None:
            self._plan(self._backoff)
            self._backoff = min(self._backoff * 2, _LAST_BACKOFF_S)

    def _run(self) -> None:
        while True:
            with self._turn:
                while not self._closed:
                    now = self._monotonic()
                    if self._deadline is not None and now >= self._deadline and not self._leading:
                        break
                    wait = None if self._deadline is None or self._leading else self._deadline - now
                    self._turn.wait(wait)
                if self._closed:
                    return
                self._deadline = None
                self._leading = True
            try:
                self._lead()
            except Exception:
                # Whatever a storage raises, writing behind goes on.
                logger.exception("writing behind failed")
            self._report()

    def _report(self) -> None:
        """Say a background failure, once until the session was saved again."""
        with self._turn:
            failed = [
                (writer.session.id, writer.error)
                for writer in self._writers.values()
                if writer.error is not None and not writer.reported
            ]
            for writer in self._writers.values():
                writer.reported = writer.error is not None
        for name, error in failed:
            logger.warning("session %r is not saved: %s", name, error)

    def close(self) -> None:
        """Stop the write-behind. Nothing is flushed; do that first. Calling it again does nothing."""
        with self._turn:
            self._closed = True
            self._turn.notify_all()
            timer, self._timer = self._timer, None
        if timer is not None and timer is not threading.current_thread():
            timer.join()


def _let_go(session_id: str) -> SessionError:
    return SessionError(
        f"session {session_id!r} was let go of before everything was written",
        code="CLOSED",
        session_id=session_id,
    )


def _poisoned(session_id: str, cause: TurnlogError) -> TurnlogError:
    if isinstance(cause, (ConflictError, SessionExistsError)):
        return cause  # nothing unknown: another log lies there
    error = StorageWriteError(
        f"session {session_id!r} cannot go on, because it is unknown what the last write left: "
        f"{cause.message}; resume it again",
        code="POISONED",
        session_id=session_id,
    )
    error.__cause__ = cause
    return error
