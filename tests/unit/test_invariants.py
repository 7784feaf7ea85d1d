"""The relational checks (log.md, section 10)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from turnlog.errors import InvariantError
from turnlog.invariants import InvariantSettings, attach_invariants, find_violations
from turnlog.messages import assistant_message, tool_result_message
from turnlog.session import Session
from turnlog.store import SessionStore

Vectors = Callable[[str], Any]
Entry = dict[str, Any]
STEP = {"turn": 1, "step": 1}


def guarded(settings: InvariantSettings | None = None) -> Session:
    session = Session.create("s")
    attach_invariants(session, settings)
    return session


def in_step() -> Session:
    session = guarded()
    session.append("turn/start", {"turn": 1})
    session.append("step/start", STEP)
    return session


def result(call_id: str = "c", **data: Any) -> Entry:
    return {
        "type": "tool/result",
        "data": {
            **STEP,
            "message": tool_result_message(call_id, "x", ids=lambda: "r").to_dict(),
            **data,
        },
        "surfaceOp": "append",
    }


def call(call_id: Any = "c") -> Entry:
    return {
        "type": "tool/call",
        "data": {**STEP, "callId": call_id, "name": "n", "arguments": "{}"},
    }


def append(session: Session, entry: Entry) -> None:
    op, sources = entry.get("surfaceOp"), entry.get("sourceEventSeqs")
    session.append(entry["type"], entry["data"], surface_op=op, source_event_seqs=sources)


def refused(session: Session, entry: Entry) -> bool:
    """Whether the session's own checks veto the entry; a veto must change nothing."""
    before = (session.seq, session.state, session.surface.to_surface())
    fault = None
    try:
        append(session, entry)
    except InvariantError as error:
        fault = error
    if fault is None:
        return False
    assert (fault.code, fault.owner, fault.details["seq"]) == ("INVARIANT", "session", before[0])
    assert (session.seq, session.state, session.surface.to_surface()) == before
    return True


def test_vetoes_are_the_references(vectors: Vectors) -> None:
    for case in vectors("invariants"):
        session = SessionStore(invariants=True).create("s")
        unchecked = Session.create("u")
        failed = None
        for index, entry in enumerate(case["appends"]):
            append(unchecked, entry | entry.get("options", {}))
            if failed is None and refused(session, entry | entry.get("options", {})):
                failed = index
        assert (failed, session.seq) == (case["failedAt"], case["seqAfter"]), case["name"]
        faults = [fault.details["seq"] for fault in find_violations(unchecked.events)]
        assert faults[:1] == ([] if failed is None else [failed]), case["name"]


@pytest.mark.parametrize(
    "place", [None, {}, {"turn": True, "step": 1}, {"turn": "1", "step": 1}, {"turn": 1}, []]
)
def test_a_place_must_be_named_with_numbers(place: Any) -> None:
    session = in_step()
    assert refused(session, {"type": "step/end", "data": place})
    assert refused(session, {"type": "assistant/chunk", "data": place})
    assert not refused(session, {"type": "step/end", "data": STEP | {"extra": 1}})


def test_a_result_uses_up_its_call_in_the_same_step() -> None:
    session = in_step()
    assert refused(session, result())
    append(session, call())
    assert not refused(session, result())
    assert refused(session, result())
    append(session, call())
    append(session, {"type": "step/end", "data": STEP})
    append(session, {"type": "step/start", "data": {"turn": 1, "step": 2}})
    assert refused(session, result(step=2))


def test_a_result_that_says_not_started_needs_no_call() -> None:
    session = in_step()
    assert not refused(session, result(error={"name": "E", "code": "TOOL_NOT_STARTED"}))
    for error in (
        {"name": "TOOL_NOT_STARTED", "code": "OTHER"},
        "TOOL_NOT_STARTED",
        None,
        ["TOOL_NOT_STARTED"],
    ):
        assert refused(session, result(error=error))


def test_a_rewritten_result_needs_an_open_turn_only() -> None:
    session = in_step()
    append(session, call())
    append(session, result())
    append(session, {"type": "step/end", "data": STEP})
    rewrite = result() | {
        "surfaceOp": {"op": "replace", "start": 3, "end": 3},
        "sourceEventSeqs": [3],
    }
    assert not refused(session, rewrite)
    append(session, {"type": "turn/end", "data": {"turn": 1}})
    again = rewrite | {"surfaceOp": {"op": "replace", "start": 5, "end": 5}, "sourceEventSeqs": [5]}
    assert refused(session, again)
    append(session, {"type": "turn/start", "data": {"turn": 2}})
    assert not refused(session, again)


def test_a_rewritten_result_uses_up_no_call() -> None:
    session = in_step()
    append(session, call())
    append(session, result())
    append(session, call())
    replacing = {"surfaceOp": {"op": "replace", "start": 3, "end": 3}, "sourceEventSeqs": [3]}
    append(session, result() | replacing)
    assert not refused(session, result())


def test_a_replacing_model_message_still_names_the_open_step() -> None:
    session = in_step()
    data = {**STEP, "message": assistant_message("x", provider="p", model="m").to_dict()}
    append(session, {"type": "assistant/message", "data": data, "surfaceOp": "append"})
    replacing = {"surfaceOp": {"op": "replace", "start": 2, "end": 2}, "sourceEventSeqs": [2]}
    assert refused(session, {"type": "assistant/message", "data": data | {"step": 2}, **replacing})
    assert not refused(session, {"type": "assistant/message", "data": data, **replacing})


@pytest.mark.parametrize("call_id", [None, ["c"], {"c": 1}, 7, ""])
def test_odd_call_ids_are_committed_whole_and_open_nothing_else(call_id: Any) -> None:
    session = in_step()
    assert not refused(session, call(call_id))
    assert session.seq == 3
    assert refused(session, result())
    assert find_violations(session.events) == []


def test_no_payload_can_make_an_append_fail_after_its_commit() -> None:
    session = guarded(InvariantSettings(block=("session",)))
    payloads: list[Any] = [None, [], "x", {"turn": None, "callId": {}}]
    for type_ in (
        "turn/start",
        "step/start",
        "tool/call",
        "step/end",
        "turn/end",
        "assistant/chunk",
    ):
        for data in payloads:
            seq = session.seq
            session.append(type_, data)
            assert session.seq == seq + 1
    assert len(find_violations(session.events)) == session.seq


def test_a_check_attached_to_a_session_learns_what_it_holds() -> None:
    session = Session.create("s")
    for entry in (
        {"type": "turn/start", "data": {"turn": 1}},
        {"type": "step/start", "data": STEP},
        call(),
    ):
        append(session, entry)
    attach_invariants(session)
    assert refused(session, {"type": "turn/start", "data": {"turn": 2}})
    assert refused(session, result("other"))
    assert not refused(session, result())


def test_what_a_session_already_holds_is_replayed_and_not_judged() -> None:
    seed = [{"type": "turn/start", "seq": 0, "time": 0, "data": {"turn": 7}}]
    session = Session.create("s", seed)
    attach_invariants(session)
    assert [fault.details["seq"] for fault in find_violations(session.events)] == [0]
    assert refused(session, {"type": "turn/end", "data": {"turn": 1}})
    append(session, {"type": "turn/end", "data": {"turn": 7}})
    assert not refused(session, {"type": "turn/start", "data": {"turn": 8}})


@pytest.mark.parametrize(
    ("settings", "guards"),
    [
        (InvariantSettings(), True),
        (InvariantSettings(allow=("sess*",)), True),
        (InvariantSettings(allow=()), False),
        (InvariantSettings(allow=("my/*",)), False),
        (InvariantSettings(block=("*",)), False),
        (InvariantSettings(block=("my/*",)), True),
    ],
)
def test_the_sessions_own_checks_can_be_switched(settings: InvariantSettings, guards: bool) -> None:
    assert refused(guarded(settings), {"type": "turn/end", "data": {"turn": 1}}) is guards
    store = SessionStore(invariants=settings)
    assert refused(store.create("s"), {"type": "turn/end", "data": {"turn": 1}}) is guards


def test_a_bare_store_checks_nothing_unless_asked() -> None:
    assert not refused(SessionStore().create("s"), {"type": "turn/end", "data": {"turn": 1}})


def test_a_batch_that_is_vetoed_gives_its_calls_back() -> None:
    session = in_step()
    append(session, call())
    with pytest.raises(InvariantError):
        session.append_all([result(), call("d"), {"type": "turn/end", "data": {"turn": 1}}])
    assert session.seq == 3
    assert refused(session, result("d"))
    assert not refused(session, result())


def test_a_fork_is_guarded_from_where_it_starts() -> None:
    store = SessionStore(invariants=True)
    parent = store.create("p")
    parent.append("turn/start", {"turn": 1})
    parent.append("turn/end", {"turn": 1})
    child = store.fork(parent)
    assert refused(child, {"type": "turn/start", "data": {"turn": 1}})
    assert not refused(child, {"type": "turn/start", "data": {"turn": 2}})
    assert not refused(parent, {"type": "turn/start", "data": {"turn": 2}})
