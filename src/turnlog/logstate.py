"""LogState: the few facts about a log that appends, forks and requests need without reading it again.

A pure fold over events. It judges nothing: a log that breaks the turn rules still has a state, which is what
its last brackets say.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from turnlog.eventlog import Run
from turnlog.events import SessionEvent
from turnlog.lossless import is_safe_integer

STATE_TYPES = frozenset(
    {
        "turn/start",
        "turn/end",
        "step/start",
        "step/end",
        "request/header",
        "request/context",
        "session/title",
    }
)
"""The types that change the state; all others can be skipped."""


class LogState(msgspec.Struct):
    """Open brackets, last numbers, and the seqs of the events of which the latest counts.

    `turn` and `step`: the last numbers started, 0 for none. `open_turn`, `open_step`: those not yet ended, or
    None. `turn_seq`: the seq of the last `turn/start`, or -1. `header_seq`, `context_seq`, `title_seq`: the
    latest such event, or -1.
    """

    turn: int = 0
    step: int = 0
    open_turn: int | None = None
    open_step: int | None = None
    turn_seq: int = -1
    header_seq: int = -1
    context_seq: int = -1
    title_seq: int = -1

    def copy(self) -> LogState:
        """An independent copy."""
        return msgspec.structs.replace(self)

    def note(self, type_: str, seq: int, data: Any) -> None:
        """Take one event into account; `data` may be any JSON."""
        if type_ == "turn/start":
            self.start_turn(_number(data, "turn", self.turn + 1), seq)
        elif type_ == "turn/end":
            self.open_turn = self.open_step = None
        elif type_ == "step/start":
            self.start_step(_number(data, "step", self.step + 1))
        elif type_ == "step/end":
            self.end_step()
        elif type_ == "request/header":
            self.header_seq = seq
        elif type_ == "request/context":
            self.context_seq = seq
        elif type_ == "session/title":
            self.title_seq = seq

    def start_turn(self, turn: int, seq: int) -> None:
        """A `turn/start` with that number."""
        self.turn = self.open_turn = turn
        self.step, self.open_step, self.turn_seq = 0, None, seq

    def start_step(self, step: int) -> None:
        """A `step/start` with that number."""
        self.step = self.open_step = step

    def end_step(self) -> None:
        """A `step/end`."""
        self.open_step = None

    @classmethod
    def replay(cls, records: Iterable[SessionEvent | Run]) -> LogState:
        """The state after the records."""
        state = cls()
        for record in records:
            if isinstance(record, SessionEvent) and record.type in STATE_TYPES:
                state.note(record.type, record.seq, record.data)
        return state


def _number(data: Any, key: str, otherwise: int) -> int:
    value = data.get(key) if isinstance(data, dict) else None
    return value if is_safe_integer(value) else otherwise
