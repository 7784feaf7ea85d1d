"""CommitCheck: what may veto an append before anything changes."""

from __future__ import annotations

from typing import Any

from turnlog.eventlog import EventView
from turnlog.events import SessionEvent
from turnlog.logstate import LogState


class CommitCheck:
    """A pre-commit check with a state of its own; see `turnlog.invariants` for the one that ships.

    Both methods get the event and its payload as plain, detached values.
    """

    def check(self, event: SessionEvent, data: Any, state: LogState) -> None:
        """Raise any `TurnlogError` to veto the event; change nothing. `state` is that before the event."""

    def commit(self, event: SessionEvent, data: Any) -> None:
        """Take the committed event into account."""

    def replay(self, events: EventView, state: LogState) -> None:
        """Learn what the session already holds; called once, when the check is added."""

    def copy(self) -> CommitCheck:
        """An independent copy of the state, for batches that may be taken back."""
        return self
