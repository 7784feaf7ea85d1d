"""What every storage does with headers and batches, whatever its medium."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from turnlog.engine.protocol import Batch
from turnlog.errors import ConflictError, TurnlogError
from turnlog.events import SessionEvent
from turnlog.header import SessionHeader
from turnlog.vocabulary import EVENT_TYPES


def stored_header(header: SessionHeader) -> dict[str, Any]:
    """The header's wire form as a storage writes it: with its tag, and always with `delegationDepth`."""
    wire = {"type": "session", **header.to_dict()}
    if "delegationDepth" in wire:
        return wire
    order = ["type", "version", "id", "createdAt", "cwd", "parentSession", "seedLength", "origin"]
    known = {key: wire.pop(key) for key in order if key in wire}
    return {**known, "delegationDepth": 0, **wire}


def check_batch(session_id: str, events: Sequence[SessionEvent], due: int) -> None:
    """Raise `ConflictError` unless the batch goes on at `due`, and `EventError` for a type nobody knows."""
    for number, event in enumerate(events):
        if event.seq != due + number:
            raise ConflictError(
                f"session {session_id!r}: the batch has seq {event.seq} where {due + number} is due; "
                "load the session again before writing to it",
                session_id=session_id,
                expected_seq=event.seq,
                actual_seq=due + number,
            )
        EVENT_TYPES.require_known(event.type, event.ignorable)


def append_each(
    append: Callable[[SessionHeader, Sequence[SessionEvent], int | None], None],
    batches: Sequence[Batch],
) -> Sequence[TurnlogError | None]:
    """`Storage.append_many` of a medium that has nothing to share among batches: one append after the other."""
    results: list[TurnlogError | None] = []
    for batch in batches:
        try:
            append(batch.header, batch.events, batch.fence)
            results.append(None)
        except TurnlogError as error:
            results.append(error)
    return results
