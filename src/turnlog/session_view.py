"""SessionView: everything that can be read of a session, and nothing that changes it."""

from __future__ import annotations

import threading
from typing import Any

import msgspec

from turnlog.eventlog import EventLog, EventView
from turnlog.events import EventLike
from turnlog.frozen import FrozenDict, thaw
from turnlog.header import SessionHeader
from turnlog.logstate import LogState
from turnlog.messages import Message
from turnlog.replay import refold, request_boundary
from turnlog.request_header import canonical_header
from turnlog.surface import ABSENT, SavedSurface, SurfaceManager, derive_event_message
from turnlog.usage import SessionUsage, fold_usage


class RequestView(msgspec.Struct, frozen=True):
    """What one model request was made of.

    `header` and `context` are None where none was logged; `messages` is the derived history as it was sent.
    """

    turn: int
    step: int
    header: FrozenDict | None
    context: FrozenDict | None
    messages: list[Message]

    def to_dict(self) -> dict[str, Any]:
        """`{turn, step, header, context, messages}` as plain values."""
        return {
            "turn": self.turn,
            "step": self.step,
            "header": thaw(self.header),
            "context": thaw(self.context),
            "messages": [message.to_dict() for message in self.messages],
        }


class SessionView:
    """A header, a log with its surface and state, and what is derived from them. Thread-safe.

    The log may grow underneath, under `_lock`; each message is projected once.
    """

    def __init__(
        self, header: SessionHeader, log: EventLog, surface: SurfaceManager, state: LogState
    ) -> None:
        self._header = header
        self._log = log
        self._surface = surface
        self._state = state
        self._lock = threading.RLock()
        self._messages: list[Message] = []
        self._by_seq: dict[int, Message | None] = {}
        self._projected = (0, 0)

    @property
    def id(self) -> str:
        """The session's id."""
        return self._header.id

    @property
    def header(self) -> SessionHeader:
        """The session's header."""
        return self._header

    @property
    def seq(self) -> int:
        """The seq that the next event gets: the number of events."""
        return len(self._log)

    @property
    def events(self) -> EventView:
        """The events so far, as an immutable sequence that does not grow."""
        with self._lock:
            return self._log.view()

    @property
    def surface(self) -> SurfaceManager:
        """The surface: `session.surface.nodes` are the seqs that the model sees."""
        return self._surface

    @property
    def state(self) -> LogState:
        """A copy of the open brackets and last numbers."""
        with self._lock:
            return self._state.copy()

    def snapshot(self) -> tuple[EventView, SavedSurface, LogState]:
        """Events, surface (for `SurfaceManager.restore`) and state, all of one moment: what a fork shares."""
        with self._lock:
            return self._log.view(), self._surface.save(), self._state.copy()

    def derive_messages(self) -> list[Message]:
        """The history that the model sees, verbatim: shared immutable messages in a new list.

        Costs O(new nodes) and one list copy; after a replace, O(nodes).
        """
        with self._lock:
            generation, count = self._projected
            nodes = len(self._surface)
            if generation != self._surface.replace_generation:
                kept = {seq: self._by_seq.get(seq, ABSENT) for seq in self._surface.nodes}
                self._by_seq = {
                    seq: message for seq, message in kept.items() if message is not ABSENT
                }
                self._messages, count = [], 0
            for position in range(count, nodes):
                seq = self._surface.node_at(position)
                if seq not in self._by_seq:
                    self._by_seq[seq] = derive_event_message(self._log[seq])
                message = self._by_seq[seq]
                if message is not None:
                    self._messages.append(message)
            self._projected = (self._surface.replace_generation, nodes)
            return self._messages.copy()

    def derive_event_message(self, event: EventLike) -> Message | None:
        """The message of one event, verbatim; None where it has none (see `turnlog.surface`)."""
        return derive_event_message(event)

    def request_header(self) -> FrozenDict | None:
        """The latest request header in canonical form, or None."""
        with self._lock:
            seq = self._state.header_seq
            return None if seq < 0 else canonical_header(self._log[seq].data["header"])

    def request_context(self) -> FrozenDict | None:
        """The latest `request/context` data: `{provider, model, contextWindow?}`, or None."""
        with self._lock:
            seq = self._state.context_seq
            return None if seq < 0 else self._log[seq].data

    def title(self) -> str | None:
        """The latest title, or None."""
        with self._lock:
            seq = self._state.title_seq
            data = None if seq < 0 else self._log[seq].data
        title = data.get("title") if isinstance(data, dict) else None
        return title if isinstance(title, str) else None

    def usage(self) -> SessionUsage:
        """What this session's own requests used; inherited events belong to the parent and do not count."""
        return fold_usage(self.events.iter_records(self._header.seed_length or 0))

    def request_at(self, turn: int, step: int) -> RequestView:
        """Header, context and messages exactly as sent for a step (the last attempt).

        Raises `SessionError` (`STEP_NOT_FOUND`) when the log has no such step. Costs one pass over the log's
        records up to the step.
        """
        events = self.events
        boundary = request_boundary(events, turn, step)
        log = EventLog(events.prefix(boundary))
        surface, state = refold(log)
        past = SessionView(self._header, log, surface, state)
        return RequestView(
            turn, step, past.request_header(), past.request_context(), past.derive_messages()
        )
