"""Reading a log again: surface and state from its records, and where a past request was made.

The log was validated when it was appended or loaded, so nothing is judged here; packed runs are skipped whole.
"""

from __future__ import annotations

from typing import Any

from turnlog.errors import SessionError
from turnlog.eventlog import EventLog, EventView
from turnlog.events import SessionEvent
from turnlog.logstate import STATE_TYPES, LogState
from turnlog.surface import ABSENT, SurfaceManager
from turnlog.usage import is_finish_chunk
from turnlog.vocabulary import SURFACE_TYPES


def refold(log: EventLog) -> tuple[SurfaceManager, LogState]:
    """Surface and state of a log that was validated before, in one pass over its records."""
    surface, state = SurfaceManager(log), LogState()  # type: ignore[arg-type]
    for record in log.view().iter_records():
        if not isinstance(record, SessionEvent):
            continue
        if record.type in SURFACE_TYPES:
            surface.skip_to(record.seq)
            sources = record.source_event_seqs
            surface.add(
                record.seq,
                record.type,
                record.data if record.surface_op != "append" else None,
                record.surface_op,
                ABSENT if sources is None else sources,
            )
        elif record.type in STATE_TYPES:
            state.note(record.type, record.seq, record.data)
    surface.skip_to(len(log))
    return surface, state


def request_boundary(events: EventView, turn: int, step: int) -> int:
    """The seq before which lies everything that the last request of a step was derived from."""
    found = first_chunk = None
    finished = False
    for record in events.iter_records():
        if not isinstance(record, SessionEvent):
            if found is not None and (first_chunk is None or finished):
                first_chunk, finished = next(record.events()).seq, False
            continue
        if found is None:
            if record.type == "step/start" and _names_step(record.data, turn, step):
                found = record.seq
        elif record.type == "assistant/chunk":
            if first_chunk is None or finished:
                first_chunk = record.seq
            finished = is_finish_chunk(record)
        elif record.type == "llm/retry-started":
            first_chunk = None
        elif record.type == "assistant/message" and record.surface_op == "append":
            cited = record.source_event_seqs
            if cited is None:
                return record.seq if first_chunk is None else first_chunk
            return min((seq for seq in cited if seq > found), default=record.seq)
        elif record.type in ("step/end", "turn/end"):
            return record.seq if first_chunk is None else first_chunk
    if found is None:
        raise SessionError(f"the log has no step {turn}.{step}", code="STEP_NOT_FOUND")
    return len(events) if first_chunk is None else first_chunk


def _names_step(data: Any, turn: int, step: int) -> bool:
    return isinstance(data, dict) and data.get("turn") == turn and data.get("step") == step
