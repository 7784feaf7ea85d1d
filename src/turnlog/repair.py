"""Repair: the events that close a turn which a crash left open.

Nothing is ever taken away: one error result per unanswered call, then `step/end`, then `turn/end`
`{interrupted}`, with the last event's time and seqs that continue the log, so that every reader computes the
same events. The two error texts tell "outcome unknown" from "never started" (log.md, section 8).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from turnlog.eventlog import EventView
from turnlog.events import EventLike, SessionEvent, event_from_plain
from turnlog.lossless import canonicalize
from turnlog.messages import tool_calls

OUTCOME_UNKNOWN = "TOOL_OUTCOME_UNKNOWN"
NOT_STARTED = "TOOL_NOT_STARTED"

_OUTCOME_UNKNOWN_TEXT = (
    "The tool call was interrupted after it was recorded, but no result was durably recorded. "
    "Its outcome is unknown. Decide whether to retry from the tool semantics: retry only if the operation "
    "is read-only or idempotent; if it may have side effects, first verify external state or ask the user. "
    "Do not retry blindly."
)
_NOT_STARTED_TEXT = (
    "The tool call was interrupted before the Harness recorded it as started. "
    "Retry it if it is still needed."
)


class _OpenCall(msgspec.Struct):
    """A call without a result: its step, and the seq of its `tool/call` where one was recorded."""

    step: Any
    call_seq: int | None = None


class _Tail:
    """What a log's last turn leaves open. Any payload is taken as it is: a loaded log is valid already."""

    def __init__(self) -> None:
        self.turn: Any = None
        self.step: Any = None
        self.calls: dict[str, _OpenCall] = {}

    def note(self, type_: str, seq: int, data: Any) -> None:
        if type_ == "turn/start":
            self.turn, self.step, self.calls = _get(data, "turn"), None, {}
        elif type_ == "turn/end":
            self.turn, self.step, self.calls = None, None, {}
        elif type_ == "step/start":
            self.step = _get(data, "step")
        elif type_ == "step/end":
            self.step, self.calls = None, {}
        elif type_ == "assistant/message":
            message = _get(data, "message")
            for block in tool_calls(message if isinstance(message, dict) else {}):
                self.calls[block["id"]] = _OpenCall(_get(data, "step"))
        elif type_ == "tool/call":
            call_id = _get(data, "callId")
            call = self.calls.get(call_id) if isinstance(call_id, str) else None
            if call is not None:
                call.call_seq = seq
        elif type_ == "tool/result":
            call_id = _get(_get(_get(data, "message"), "source"), "callId")
            if isinstance(call_id, str):
                self.calls.pop(call_id, None)

    def closers(self, seq: int, time: int) -> list[SessionEvent]:
        """The events that close the turn, from `seq` on."""
        if self.turn is None:
            return []
        drafts = [
            missing_result(
                call_id,
                turn=self.turn,
                step=call.step,
                seq=seq + number,
                call_seq=call.call_seq,
            )
            for number, (call_id, call) in enumerate(self.calls.items())
        ]
        if self.step is not None:
            drafts.append({"type": "step/end", "data": {"turn": self.turn, "step": self.step}})
        reason = {"kind": "interrupted"}
        drafts.append({"type": "turn/end", "data": {"turn": self.turn, "reason": reason}})
        return [
            event_from_plain(
                {"type": draft.pop("type"), "seq": seq + number, "time": time, **draft}
            )
            for number, draft in enumerate(drafts)
        ]


_TAIL_TYPES = frozenset(
    {
        "turn/start",
        "turn/end",
        "step/start",
        "step/end",
        "assistant/message",
        "tool/call",
        "tool/result",
    }
)


def _get(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, dict) else None


def missing_result(
    call_id: str, *, turn: Any, step: Any, seq: int, call_seq: int | None
) -> dict[str, Any]:
    """The event, as a wire dict without seq and time, that answers a call whose result never came.

    `call_seq` is the seq of its `tool/call`, or None for a call that was never started; `seq` is the event's own.
    """
    started = call_seq is not None
    message = {
        "id": f"interrupted-tool-result-{call_id}-{seq}",
        "role": "user",
        "source": {"kind": "tool", "callId": call_id},
        "content": [
            {
                "type": "tool-result",
                "toolCallId": call_id,
                "isError": True,
                "content": [
                    {
                        "type": "text",
                        "text": _OUTCOME_UNKNOWN_TEXT if started else _NOT_STARTED_TEXT,
                    }
                ],
            }
        ],
    }
    error = (
        {"name": "ToolOutcomeUnknownError", "code": OUTCOME_UNKNOWN}
        if started
        else {"name": "ToolNotStartedError", "code": NOT_STARTED}
    )
    draft: dict[str, Any] = {
        "type": "tool/result",
        "data": {"turn": turn, "step": step, "message": message, "error": error},
        "surfaceOp": "append",
    }
    if started:
        draft["sourceEventSeqs"] = [call_seq]
    return draft


def interrupted_turn_closers(
    events: EventView | Iterable[EventLike], *, start: int = 0
) -> list[SessionEvent]:
    """The events that close the open last turn of a log, in order; none for a balanced or empty log.

    `events` are a log's events or wire dicts from seq 0. `start` may name the seq of the last `turn/start`, so
    that a long log need not be read again.
    """
    tail = _Tail()
    last: tuple[int, int] | None = None
    if isinstance(events, EventView):
        last = (len(events), events[-1].time) if len(events) else None
        for record in events.iter_records(max(start, 0)):
            if isinstance(record, SessionEvent) and record.type in _TAIL_TYPES:
                tail.note(record.type, record.seq, record.data)
    else:
        for entry in events:
            event = (
                entry
                if isinstance(entry, SessionEvent)
                else event_from_plain(canonicalize(dict(entry))[1])
            )
            last = (event.seq + 1, event.time)
            if event.type in _TAIL_TYPES:
                tail.note(event.type, event.seq, event.data)
    return [] if last is None else tail.closers(*last)
