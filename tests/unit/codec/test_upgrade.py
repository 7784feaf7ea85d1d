"""Older shapes of version 0 (storage.md, 3.7): each known one is read, each other one refused."""

from __future__ import annotations

from typing import Any

import pytest

from turnlog.codec.upgrade import upgrade_v0_shapes
from turnlog.errors import EventError

CONTENT = [{"type": "text", "text": "hi"}]
USER = {"kind": "user"}


def upgrade(type_: str, data: Any, *, find: Any = None, **keys: Any) -> dict[str, Any]:
    wire = {"type": type_, "seq": 5, "time": 1, "data": data, **keys}
    return upgrade_v0_shapes(wire, "s1", lambda seq: find)


def test_a_trigger_of_a_turn_is_dropped() -> None:
    new = upgrade("turn/start", {"turn": 2, "trigger": {"kind": "user", "x": 1}})
    assert new["data"] == {"turn": 2}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"kind": "completed", "x": 1}, {"kind": "completed"}),
        ({"kind": "blocked", "why": "y"}, {"kind": "blocked"}),
        ({"kind": "max-tokens", "n": 1}, {"kind": "max-tokens"}),
        ({"kind": "interrupted", "n": 1}, {"kind": "interrupted"}),
        ({"kind": "aborted"}, {"kind": "aborted", "reason": {"kind": "legacy"}}),
        ({"kind": "disposed"}, {"kind": "aborted", "reason": {"kind": "disposed"}}),
        (
            {"kind": "error", "step": 1, "message": "m"},
            {"kind": "error", "error": {"message": "m", "code": "UNKNOWN"}},
        ),
        (
            {"kind": "error", "step": 0, "message": "m", "code": "C"},
            {"kind": "error", "error": {"message": "m", "code": "C"}},
        ),
        (
            {"kind": "error", "step": 1, "failure": {"message": "m", "code": "C", "status": 5}},
            {"kind": "error", "error": {"message": "m", "code": "C", "status": 5}},
        ),
    ],
)
def test_old_reasons_of_a_turns_end_are_read(old: dict[str, Any], new: dict[str, Any]) -> None:
    assert upgrade("turn/end", {"turn": 1, "reason": old})["data"] == {"turn": 1, "reason": new}


@pytest.mark.parametrize(
    "reason",
    [
        {"kind": "aborted", "reason": {"kind": "user"}},
        {"kind": "error", "error": {"message": "m", "code": "c"}},
        {"kind": "completed"},
        {"kind": "of-a-plugin", "x": 1},
        "odd",
        {},
    ],
)
def test_other_reasons_are_left_alone(reason: Any) -> None:
    data = {"turn": 1, "reason": reason}
    assert upgrade("turn/end", data)["data"] is data


@pytest.mark.parametrize(
    ("type_", "data"),
    [
        ("turn/start", {"turn": 1, "trigger": {"kind": "x"}, "more": 1}),
        ("turn/start", {"turn": 0, "trigger": {"kind": "x"}}),
        ("turn/start", {"turn": 1, "trigger": {"kind": ""}}),
        ("turn/start", {"turn": 1, "trigger": None}),
        ("turn/end", {"turn": 1, "reason": {"kind": "disposed"}, "more": 1}),
        ("turn/end", {"turn": True, "reason": {"kind": "disposed"}}),
        ("turn/end", {"turn": 1, "reason": {"kind": "error", "message": "m"}}),
        ("turn/end", {"turn": 1, "reason": {"kind": "error", "step": -1, "message": "m"}}),
        ("turn/end", {"turn": 1, "reason": {"kind": "error", "step": 1}}),
        ("turn/end", {"turn": 1, "reason": {"kind": "error", "step": 1, "failure": {"code": "C"}}}),
        ("steering/message", None),
        ("steering/message", {"turn": 1}),
        ("steering/message", {"message": {}}),
        ("steering/message", {"turn": 1, "content": CONTENT, "source": USER, "x": 1}),
    ],
)
def test_other_old_shapes_are_refused(type_: str, data: Any) -> None:
    with pytest.raises(EventError) as caught:
        upgrade(type_, data)
    assert caught.value.code == "MALFORMED_OLD_EVENT"
    assert caught.value.seq == 5


def test_steering_messages_become_user_messages() -> None:
    message = {"id": "m", "role": "user", "content": CONTENT, "source": USER}
    new = upgrade("steering/message", {"turn": 1, "message": message}, surfaceOp="append")
    assert (new["type"], new["data"], new["surfaceOp"]) == ("user/message", message, "append")
    new = upgrade("steering/message", {"turn": 1, "content": CONTENT, "source": USER})
    assert new["data"] == {**message, "id": "legacy-message:s1:5"}


def test_messages_without_an_id_get_one_from_their_place() -> None:
    new = upgrade("user/message", {"content": CONTENT, "source": USER, "more": 1})["data"]
    assert new == {
        "content": CONTENT,
        "source": USER,
        "more": 1,
        "id": "legacy-message:s1:5",
        "role": "user",
    }
    data = {
        "turn": 1,
        "step": 2,
        "content": CONTENT,
        "provenance": {"provider": "p", "model": "m"},
        "usage": {},
    }
    new = upgrade("assistant/message", data)["data"]
    assert list(new) == ["turn", "step", "message", "usage"]
    assert new["message"]["source"] == {"provider": "p", "model": "m", "kind": "model"}
    assert new["message"]["role"] == "assistant"


@pytest.mark.parametrize(
    ("target", "id_"),
    [
        ({"id": "theirs"}, "theirs"),
        (None, "legacy-message:s1:5"),
        ({}, "legacy-message:s1:5"),
        ({"id": 7}, "legacy-message:s1:5"),
        ("odd", "legacy-message:s1:5"),
    ],
)
def test_a_rewritten_result_inherits_the_id_that_it_replaces(target: Any, id_: str) -> None:
    data = {"turn": 1, "step": 1, "callId": "c", "content": CONTENT, "isError": False, "meta": 1}
    op = {"op": "replace", "start": 3, "end": 3}
    new = upgrade("tool/result", data, find=target, surfaceOp=op)["data"]
    assert new["message"]["id"] == id_
    assert new["message"]["source"] == {"kind": "tool", "callId": "c"}
    assert list(new) == ["turn", "step", "message", "meta"]


def test_ignorable_events_are_kept_as_they_are() -> None:
    wire = {"type": "steering/message", "seq": 5, "time": 1, "data": None, "ignorable": True}
    assert upgrade_v0_shapes(wire, "s1", lambda seq: None) is wire


@pytest.mark.parametrize(
    ("type_", "data"),
    [
        ("user/message", {"content": CONTENT, "source": USER, "role": "user"}),
        ("user/message", {"content": CONTENT}),
        ("assistant/message", {"content": CONTENT}),
        ("tool/result", {"callId": "c", "content": CONTENT}),
        ("turn/start", None),
        ("turn/end", None),
    ],
)
def test_half_old_shapes_are_left_to_the_validator(type_: str, data: Any) -> None:
    assert upgrade(type_, data)["data"] == data
