"""Session: one live log and its surface, which grow by appends.

The rule: `append` checks everything before it changes anything, commits in memory, then tells the observers;
what it accepts, a later load accepts. Reads never block writers for long: `events` is a view that does not
grow. Thread-safe; an append from inside an observer of the same session, in the same thread, is refused,
because the observers behind it would see events out of order.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from turnlog.clock import Clock, system_clock
from turnlog.commit_check import CommitCheck
from turnlog.errors import (
    EventError,
    ForkedError,
    HeaderError,
    JsonValueError,
    SessionError,
    TurnlogError,
)
from turnlog.eventlog import EventLog, EventView
from turnlog.events import EventLike, SessionEvent, read_wire
from turnlog.frozen import FrozenList, freeze
from turnlog.header import SessionHeader
from turnlog.logstate import STATE_TYPES, LogState
from turnlog.lossless import canonicalize, is_safe_integer, join_surrogates
from turnlog.messages import assistant_message, user_message
from turnlog.placing import own_turn, placement
from turnlog.session_view import SessionView
from turnlog.surface import ABSENT, SurfaceManager
from turnlog.vocabulary import EVENT_TYPES, SURFACE_TYPES

if TYPE_CHECKING:
    from turnlog.recorder import Turn

logger = logging.getLogger(__name__)

END_SEED = "session/end-seed"
_INTS = {int}
_ENTRY_KEYS = frozenset({"type", "data", "surfaceOp", "sourceEventSeqs", "ignorable", "time"})


class _Process:
    """Counts the forks that led to this process: comparing a number is cheaper than asking for the pid."""

    generation = 0


def _note_fork() -> None:
    _Process.generation += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)


class Session(SessionView):
    """A session in memory. Make one with `create` or `from_restore`, a store, or `turnlog.open`."""

    def __init__(
        self,
        header: SessionHeader,
        *,
        log: EventLog | None = None,
        surface: SurfaceManager | None = None,
        state: LogState | None = None,
        clock: Clock = system_clock,
    ) -> None:
        log = EventLog() if log is None else log
        surface = SurfaceManager(log) if surface is None else surface  # type: ignore[arg-type]
        super().__init__(header, log, surface, LogState() if state is None else state)
        self._clock = clock
        self._notifying: int | None = None
        self._generation = _Process.generation
        self._checks: list[CommitCheck] = []
        self._observers: list[Callable[[SessionEvent], None]] = []
        self._first_live_seq = self._settled = len(self._log)
        self._flush: Callable[[], None] | None = None
        self._release: Callable[[], None] | None = None
        self._pending: Callable[[], None] | None = None
        self._refusal: TurnlogError | None = None
        self._closing = threading.RLock()

    # -- construction ---------------------------------------------------------------------------------

    @classmethod
    def create(
        cls,
        id: str,
        seed: Iterable[EventLike] | None = None,
        header: SessionHeader | Mapping[str, Any] | None = None,
        *,
        clock: Clock = system_clock,
    ) -> Session:
        """A detached session. A seed, even an empty one, is copied, checked and marked by `session/end-seed`.

        Raises `EventError` or `JsonValueError`, naming the index of the first event that breaks a rule, and
        `HeaderError` when the header is wrong or of another session.
        """
        session = cls(_own_header(id, header, clock), clock=clock)
        if seed is not None:
            session._restore(seed)
            session._end_seed()
        return session

    @classmethod
    def from_restore(
        cls,
        id: str,
        events: Iterable[EventLike],
        header: SessionHeader | Mapping[str, Any] | None = None,
        *,
        clock: Clock = system_clock,
    ) -> Session:
        """A session that goes on where stored events end; it takes the events over. Checked as a seed is."""
        return cls.create(id, events, header, clock=clock)

    def _restore(self, events: Iterable[EventLike]) -> None:
        for index, entry in enumerate(events):
            try:
                event = read_wire(entry)
                EVENT_TYPES.check_payload(event.type, event.data)
                self._surface.add(event.seq, *_surface_parts(event, entry))
            except (EventError, JsonValueError) as error:
                raise type(error)(
                    f"seed event {index}: {error.message}",
                    code=error.code,
                    **{**error.details, "seq": index},
                ) from error
            self._log.append(event)
            if event.type in STATE_TYPES:
                self._state.note(event.type, index, event.data)
        self._first_live_seq = self._settled = len(self._log)

    def _end_seed(self) -> None:
        length = len(self._log)
        if not length or self._log[length - 1].type != END_SEED:
            self.append(END_SEED, {})

    def copy(self) -> Session:
        """A detached session with the events so far; it shares them and appends for itself."""
        with self._lock:
            log = EventLog(self._log.view())
            twin = Session(
                self._header,
                log=log,
                surface=self._surface.copy_for(log),  # type: ignore[arg-type]
                state=self._state.copy(),
                clock=self._clock,
            )
            twin._first_live_seq = self._first_live_seq
            return twin

    # -- what this object knows beside its log ---------------------------------------------------------

    @property
    def first_live_seq(self) -> int:
        """The length of the seed: events from here on were appended to this object."""
        return self._first_live_seq

    @property
    def settled_events(self) -> EventView:
        """The events without those of a batch that may still be taken back: what may be written.

        Waits for nobody, so a flush is possible while another thread, or an observer, is inside an append.
        """
        return self._log.view().prefix(self._settled)

    # -- writing ---------------------------------------------------------------------------------------

    def append(
        self,
        type: str,
        data: Any,
        *,
        surface_op: Any = None,
        source_event_seqs: Any = None,
        ignorable: bool = False,
        time: int | None = None,
    ) -> SessionEvent:
        """Append one event and return it, committed in memory.

        `surface_op`: `"append"` or `{op: "replace", start, end}`, for surface types only, which need it.
        `source_event_seqs`: list of earlier seqs. `time`: Unix milliseconds, the clock's unless given.

        Raises `JsonValueError`, `EventError`, `SurfaceError`, `InvariantError` or `SessionError`; then nothing
        has changed. An observer's failure is logged, and the append stands.
        """
        if self._generation != _Process.generation or self._refusal is not None:
            raise self._unwritable()
        with self._lock:
            if self._notifying is not None:
                raise self._reentrant()
            if self._refusal is not None:
                raise self._refusal  # closed while this waited for the lock: nobody would write it
            event = self._append_one(type, data, surface_op, source_event_seqs, ignorable, time)
            self._settled = event.seq + 1
            if self._observers:
                self._notify((event,))
            if self._pending is not None:
                self._tell_pending()
            return event

    def append_all(self, entries: Iterable[Mapping[str, Any]]) -> list[SessionEvent]:
        """Append several events as one: all or none in memory, one durable batch.

        Each entry is a wire dict without seq: `{type, data, surfaceOp?, sourceEventSeqs?, ignorable?, time?}`.
        Raises what `append` raises, for the first entry that is refused.
        """
        if self._generation != _Process.generation or self._refusal is not None:
            raise self._unwritable()
        # Taken in before the lock: an iterator of the caller's runs none of its code inside the batch.
        entries = list(entries)
        with self._lock:
            if self._notifying is not None:
                raise self._reentrant()
            if self._refusal is not None:
                raise self._refusal
            length, state, surface = len(self._log), self._state.copy(), self._surface.save()
            checks = [check.copy() for check in self._checks]
            try:
                events = [self._append_entry(entry) for entry in entries]
            except BaseException:
                self._log.truncate(length)
                self._surface.restore(surface)
                self._state, self._checks = state, checks
                raise
            self._settled = len(self._log)
            self._notify(events)
            self._tell_pending()
            return events

    def _append_entry(self, entry: Any) -> SessionEvent:
        shape = "an entry is {type, data, surfaceOp?, sourceEventSeqs?, ignorable?, time?}"
        if not isinstance(entry, Mapping) or "type" not in entry or "data" not in entry:
            raise EventError(shape, code="INVALID_ENVELOPE")
        unknown = entry.keys() - _ENTRY_KEYS
        if unknown:
            raise EventError(f"{shape}, not {sorted(map(str, unknown))}", code="INVALID_ENVELOPE")
        op, sources = entry.get("surfaceOp"), entry.get("sourceEventSeqs")
        return self._append_one(
            entry["type"],
            entry["data"],
            op,
            sources,
            entry.get("ignorable", False),
            entry.get("time"),
        )

    def _append_one(
        self, type_: str, data: Any, op: Any, sources: Any, ignorable: bool, time: int | None
    ) -> SessionEvent:
        """Check, then commit. Everything that can refuse stands before the first change."""
        text, plain = canonicalize(data)
        if type(type_) is not str:
            raise EventError("the event type must be a string", code="INVALID_ENVELOPE")
        if type(ignorable) is not bool:
            raise EventError("ignorable must be True or False", code="INVALID_ENVELOPE")
        type_ = join_surrogates(type_)
        kind = EVENT_TYPES.check_payload(type_, plain)
        if time is None:
            time = self._clock()
        if not is_safe_integer(time):
            raise EventError(
                "time must be an integer of Unix milliseconds", code="INVALID_ENVELOPE"
            )
        if kind is not None and kind.ignorable:
            ignorable = True
        seq = len(self._log)
        span: Any = False
        if op is None and sources is None and type_ not in SURFACE_TYPES:
            event = SessionEvent(type_, seq, time, text, None, None, ignorable)
        else:
            op, sources = _detach(op), _detach(sources)
            event = SessionEvent(type_, seq, time, text, op, sources, ignorable)
            span = self._surface.check(
                seq,
                type_,
                plain,
                ABSENT if op is None else op,
                ABSENT if sources is None else sources,
            )
        if self._checks:
            self._run_checks(event, plain)
        self._surface.commit(seq, span)
        self._log.append(event)
        if type_ in STATE_TYPES:
            self._state.note(type_, seq, plain)
        for check in self._checks:
            check.commit(event, plain)
        return event

    def _run_checks(self, event: SessionEvent, plain: Any) -> None:
        # A check that appended would take the seq that the event at hand is about to get.
        self._notifying = threading.get_ident()
        try:
            for check in self._checks:
                check.check(event, plain, self._state)
        finally:
            self._notifying = None

    def _notify(self, events: Sequence[SessionEvent]) -> None:
        self._notifying = threading.get_ident()
        try:
            for event in events:
                for observer in tuple(self._observers):
                    try:
                        observer(event)
                    except Exception:
                        logger.exception(
                            "an observer of session %r failed at event %d", self.id, event.seq
                        )
        finally:
            self._notifying = None

    def _reentrant(self) -> SessionError:
        return SessionError(
            f"session {self.id!r}: an observer or check cannot append to its own session; do it later",
            code="REENTRANT_APPEND",
        )

    def _unwritable(self) -> TurnlogError:
        if self._generation == _Process.generation and self._refusal is not None:
            return self._refusal
        return ForkedError(
            f"session {self.id!r} was inherited over os.fork and may not be written here; resume it instead",
            session_id=self.id,
        )

    def _tell_pending(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            pending()

    # -- the usual messages ----------------------------------------------------------------------------

    def append_message(
        self,
        message: Mapping[str, Any],
        *,
        replace: tuple[int, int] | None = None,
        usage: Mapping[str, Any] | None = None,
    ) -> SessionEvent:
        """Append a message of any kind to the surface, or put it in place of the nodes `replace` covers.

        User messages stand by themselves. Assistant messages and tool results belong to a step: the open one,
        or, for an assistant message while no turn is open, a turn of its own that is opened and completed in
        the same batch. Raises what `append` raises.
        """
        if self._generation != _Process.generation:
            # Before the lock, which a thread of the parent may have held at the fork.
            raise self._unwritable()
        role, source = message.get("role"), message.get("source")
        kind = source.get("kind") if isinstance(source, Mapping) else None
        op, sources = placement(self._surface.nodes, replace)
        if role == "user" and kind != "tool":
            return self._append_surface("user/message", message, op, sources)
        with self._lock:
            type_ = "assistant/message" if role == "assistant" else "tool/result"
            if type_ == "assistant/message" and self._state.open_turn is None and replace is None:
                return self.append_all(own_turn(self._state.turn + 1, message, usage))[2]
            data = {
                "turn": self._state.open_turn or self._state.turn,
                "step": self._state.open_step or self._state.step,
                **(self._rewritten(replace[0]) if type_ == "tool/result" and replace else {}),
                "message": message,
            }
            if usage is not None:
                data["usage"] = dict(usage)
            return self._append_surface(type_, data, op, sources)

    def append_user(self, content: str | Sequence[Mapping[str, Any]]) -> SessionEvent:
        """Append a user message with a text or a list of blocks."""
        return self.append_message(user_message(content))

    def append_assistant(
        self,
        content: str | Sequence[Mapping[str, Any]],
        *,
        provider: str,
        model: str,
        usage: Mapping[str, Any] | None = None,
    ) -> SessionEvent:
        """Append a model's message with a text or a list of blocks; see `append_message` for its step."""
        return self.append_message(
            assistant_message(content, provider=provider, model=model), usage=usage
        )

    def _rewritten(self, seq: int) -> Mapping[str, Any]:
        """The data of the tool result that a replace rewrites: it keeps its place, error and meta."""
        target = self._log[seq] if seq in self._surface.nodes else None
        return target.to_dict()["data"] if target and target.type == "tool/result" else {}

    def _append_surface(
        self, type_: str, data: Any, op: Any, sources: list[int] | None
    ) -> SessionEvent:
        return self.append(type_, data, surface_op=op, source_event_seqs=sources)

    def turn(self, *, durable: bool = True) -> Turn:
        """A recorded turn, to be used with `with` or `async with`; see `turnlog.recorder`.

        `durable`: flush at the points that matter, where the session has a storage.
        """
        from turnlog.recorder import Turn

        return Turn(self, durable=durable)

    # -- what a store or a log attaches ------------------------------------------------------------------

    def observe(self, observer: Callable[[SessionEvent], None]) -> Callable[[], None]:
        """Call `observer` after each commit, in order; returns what takes it off again."""

        def call(event: SessionEvent) -> None:
            observer(event)

        # A function of this registration's own: taking off one never takes off another of the same observer.
        self._observers.append(call)
        return lambda: self._observers.remove(call) if call in self._observers else None

    def add_check(self, check: CommitCheck) -> None:
        """Add a pre-commit check, which may veto appends from now on."""
        with self._lock:
            check.replay(self._log.view(), self._state.copy())
            self._checks.append(check)

    def flush(self) -> None:
        """Return when every event so far is durable; `SessionError` for a session without a storage."""
        if self._generation != _Process.generation:
            raise self._unwritable()
        if self._flush is None:
            raise SessionError(
                f"session {self.id!r} has no storage; open it through turnlog.open(...)",
                code="SESSION_NOT_LIVE",
            )
        self._flush()

    @property
    def is_durable(self) -> bool:
        """Whether a storage is attached, so that `flush` has a meaning."""
        return self._flush is not None

    def attach(self, *, flush: Callable[[], None], release: Callable[[], None]) -> None:
        """Tie the session to a storage: `flush` makes its events durable, `release` is called on close."""
        self._flush, self._release = flush, release

    def close(self) -> None:
        """Make everything durable and let go of the session; then it refuses appends. Twice does nothing.

        A session without a storage stays as it is. When the last flush fails, its error is raised and the
        session stays open, so that nothing is lost unnoticed; a session that can never be flushed again
        (poisoned) is let go of, and the reason raised. In a child of `os.fork` it is let go of unwritten.
        """
        if self._generation != _Process.generation:
            self._let_go()
            return
        # A second closer waits for the first: when it returns, the session is closed as well. Only an observer
        # does not, because the first may be waiting for the append that it observes.
        if not self._closing.acquire(blocking=self._notifying != threading.get_ident()):
            return
        try:
            if self._release is None:
                return
            closed = self._closed_error()
            with self._lock:
                # Before the flush: what is accepted behind it would never be written.
                poison, self._refusal = self._refusal, self._refusal or closed
            try:
                if self._flush is not None and poison is None:
                    self._flush()
            except BaseException:
                if self._refusal is closed:
                    self._refusal = None
                    raise
                self._let_go()
                raise
            self._let_go()
            if poison is not None:
                raise poison
        finally:
            self._closing.release()

    def _let_go(self) -> None:
        release, self._release = self._release, None
        if release is not None:
            self._refusal = self._closed_error()
            release()

    def _closed_error(self) -> SessionError:
        return SessionError(
            f"session {self.id!r} is closed; resume it to go on", code="CLOSED", session_id=self.id
        )

    def refuse(self, error: TurnlogError) -> None:
        """Refuse every append from now on with this error: what a storage does whose state is unknown."""
        self._refusal = error

    def on_pending(self, call: Callable[[], None] | None) -> None:
        """Call once, after the next append: the session then has something that is not written yet."""
        self._pending = call

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Session {self.id!r}, {self.seq} events>"


def _detach(part: Any) -> Any:
    """A surface key's value, detached and frozen; the usual ones without a detour."""
    if part is None or (type(part) is str and part == "append"):
        return part
    if type(part) is list and set(map(type, part)) == _INTS:
        return FrozenList(part)
    return freeze(canonicalize(part)[1])


def _own_header(
    id_: str, header: SessionHeader | Mapping[str, Any] | None, clock: Clock
) -> SessionHeader:
    if header is None:
        own = SessionHeader(id=id_, created_at=clock())
        own.check()
        return own
    own = header if isinstance(header, SessionHeader) else SessionHeader.from_dict(header)
    own.check()
    if own.id != id_:
        raise HeaderError(f"the header is of session {own.id!r}, not {id_!r}", field="id")
    return own


def _surface_parts(event: SessionEvent, entry: EventLike) -> tuple[str, Any, Any, Any]:
    """Type, data and the surface keys of a seed event as they were given: null is not absent."""
    op: Any = ABSENT if event.surface_op is None else event.surface_op
    sources: Any = ABSENT if event.source_event_seqs is None else event.source_event_seqs
    if event.line is not None or not isinstance(entry, SessionEvent):
        given = event.to_dict() if isinstance(entry, SessionEvent) else entry
        op = event.surface_op if "surfaceOp" in given else ABSENT
        sources = event.source_event_seqs if "sourceEventSeqs" in given else ABSENT
    return event.type, event.data, op, sources
