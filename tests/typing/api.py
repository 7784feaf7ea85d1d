"""Ordinary uses of the public names, which must type-check; it is read by mypy and never run."""

from __future__ import annotations

from pathlib import Path

import turnlog
from turnlog.codec import decode_storage_record, pack_chunk_runs
from turnlog.events import SessionEvent
from turnlog.lossless import is_json_value, snapshot_json_value
from turnlog.messages import Message
from turnlog.repair import interrupted_turn_closers
from turnlog.surface import Surface, derive_event_message, fold_surface
from turnlog.vocabulary import register_event_type


def use_a_log(path: Path) -> list[Message]:
    with turnlog.open(path) as log, log.create(cwd="/repo", meta={"agentPreset": "x"}) as session:
        event: SessionEvent = session.append_user("hello")
        session.append_assistant([{"type": "text", "text": "hi"}], provider="p", model="m")
        session.append_message(turnlog.user_message("summary"), replace=(event.seq, event.seq))
        session.append("feedback/record", {"text": "good"})
        session.append_all([{"type": "todo/write", "data": {"todos": []}}])
        session.flush()
        child: turnlog.Session = log.fork(session, 3, child_id="child")
        names: list[str] = [
            record.header.id for record in log.query.list_sessions() if record.header
        ]
        assert names
        assert child.header.parent_session == session.id
        return session.derive_messages()


def use_a_bare_store() -> None:
    store = turnlog.SessionStore(invariants=True, clock=lambda: 0, ids=lambda: "a")
    session = store.create(seed=[], meta={"cwd": "/w"})
    stop = store.listen(event=lambda session, event: print(session.id, event.seq))  # noqa: T201 - an example
    session.append("turn/start", {"turn": 1}, time=5)
    stop()
    child = store.fork(session.id, boundary=0)
    total: int = child.usage().conversation.output_tokens
    assert total == 0


def use_the_pure_functions(events: list[SessionEvent]) -> Surface:
    records = pack_chunk_runs(events)
    assert sum(len(decode_storage_record(record)) for record in records) == len(events)
    closers: list[SessionEvent] = interrupted_turn_closers(events)
    message: Message | None = derive_event_message(events[0])
    assert message is None or is_json_value(message) or snapshot_json_value(closers[0].data)
    register_event_type("acme/deployed", payload=dict[str, str], ignorable=True)
    return fold_surface(events)
