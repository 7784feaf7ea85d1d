"""Messages: how they are made, and the one rule for append, seed and load (log.md, section 3)."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest

from turnlog.errors import EventError
from turnlog.events import SessionEvent
from turnlog.messages import (
    Message,
    assistant_message,
    message_text,
    tool_calls,
    tool_result_message,
    user_message,
)
from turnlog.session import Session

USER: dict[str, Any] = {"id": "u", "role": "user", "content": [], "source": {"kind": "user"}}
MODEL: dict[str, Any] = {
    "id": "a",
    "role": "assistant",
    "content": [],
    "source": {"kind": "model", "provider": "p", "model": "m"},
}
RESULT: dict[str, Any] = {
    "id": "r",
    "role": "user",
    "content": [{"type": "tool-result", "toolCallId": "c", "content": []}],
    "source": {"kind": "tool", "callId": "c"},
}
BLOCK = RESULT["content"][0]


def in_step(message: Any, **more: Any) -> dict[str, Any]:
    return {"turn": 1, "step": 1, "message": message} | more


def without(message: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in message.items() if name != key}


NOTHING: list[Any] = ["", None, 1]
SOUND = [
    ("user/message", USER),
    ("user/message", USER | {"content": [{"type": "never-heard-of", "x": 1}, {}, "bare", None]}),
    (
        "user/message",
        USER | {"source": {"kind": "plugin", "plugin": "p", "form": "notice"}, "extra": [1]},
    ),
    ("user/message", USER | {"source": {"kind": "tool"}}),
    ("assistant/message", in_step(MODEL)),
    (
        "assistant/message",
        in_step(MODEL | {"source": MODEL["source"] | {"replayState": {"x": [1]}}}),
    ),
    ("assistant/message", {"message": MODEL, "anything": 1}),
    ("tool/result", in_step(RESULT)),
    ("tool/result", in_step(RESULT, error={"name": "E", "code": "C"}, meta={"x": None})),
    ("tool/result", in_step(RESULT | {"content": [BLOCK | {"isError": True, "extra": 1}]})),
]
WRONG = [
    *(("user/message", bad) for bad in [*NOTHING, [], {}]),
    *(("user/message", without(USER, key)) for key in USER),
    *(("user/message", USER | {"id": bad}) for bad in NOTHING),
    *(("user/message", USER | {"role": bad}) for bad in ["assistant", "system", *NOTHING]),
    *(
        ("user/message", USER | {"source": bad})
        for bad in [*NOTHING, "user", {}, {"kind": ""}, {"kind": 1}]
    ),
    *(("user/message", USER | {"content": bad}) for bad in [*NOTHING, {}]),
    *(
        ("assistant/message", bad)
        for bad in [*NOTHING, [], MODEL, in_step(None), {"turn": 1, "step": 1}]
    ),
    *(("assistant/message", in_step(without(MODEL, key))) for key in MODEL),
    ("assistant/message", in_step(MODEL | {"role": "user"})),
    ("assistant/message", in_step(MODEL | {"source": {"kind": "user"}})),
    *(
        ("assistant/message", in_step(MODEL | {"source": MODEL["source"] | {key: bad}}))
        for key in ("provider", "model")
        for bad in NOTHING
    ),
    *(("tool/result", bad) for bad in [*NOTHING, RESULT, in_step(None)]),
    *(("tool/result", in_step(without(RESULT, key))) for key in RESULT),
    ("tool/result", in_step(RESULT | {"role": "assistant"})),
    *(
        ("tool/result", in_step(RESULT | {"source": bad}))
        for bad in (
            {"kind": "user", "callId": "c"},
            {"kind": "tool"},
            {"kind": "tool", "callId": ""},
        )
    ),
    *(
        ("tool/result", in_step(RESULT | {"content": bad}))
        for bad in (
            [],
            [BLOCK, BLOCK],
            [None],
            [{"type": "text", "text": "x"}],
            [BLOCK | {"toolCallId": "other"}],
            [BLOCK | {"content": "text"}],
            [without(BLOCK, "content")],
            [without(BLOCK, "toolCallId")],
        )
    ),
]


@pytest.mark.parametrize(("type_", "data"), SOUND)
def test_a_sound_message_is_kept_verbatim_with_its_extra_keys(type_: str, data: Any) -> None:
    event = Session.create("s").append(type_, data, surface_op="append")
    assert json.dumps(event.to_dict()["data"]) == json.dumps(data)
    Session.create("t", [event.to_dict()])


@pytest.mark.parametrize(("type_", "data"), WRONG)
def test_a_wrong_message_is_refused_at_append_seed_and_reading_alike(type_: str, data: Any) -> None:
    session = Session.create("s")
    wire = {"type": type_, "seq": 0, "time": 0, "data": data, "surfaceOp": "append"}
    for attempt in (
        lambda: session.append(type_, data, surface_op="append"),
        lambda: Session.create("t", [wire]),
        lambda: SessionEvent.from_dict(wire),
    ):
        with pytest.raises(EventError) as caught:
            attempt()
        assert caught.value.code == "INVALID_MESSAGE"
        assert type_ in caught.value.message
    assert session.seq == 0


def test_new_messages_have_the_key_order_of_the_harnesses_and_random_ids() -> None:
    user = user_message("hi")
    assert json.dumps(user | {"id": "x"}) == json.dumps(
        {
            "content": [{"type": "text", "text": "hi"}],
            "source": {"kind": "user"},
            "role": "user",
            "id": "x",
        }
    )
    assistant = assistant_message([], provider="p", model="m", replay_state={"a": 1})
    assert list(assistant) == ["role", "content", "source", "id"]
    assert list(assistant.source) == ["kind", "provider", "model", "replayState"]
    result = tool_result_message("c", "out", is_error=True)
    assert list(result) == ["source", "content", "role", "id"]
    assert result.content == [
        {
            "type": "tool-result",
            "toolCallId": "c",
            "content": [{"type": "text", "text": "out"}],
            "isError": True,
        }
    ]
    ids = [message.id for message in (user, assistant, result)]
    assert len(set(ids)) == 3
    assert all(uuid.UUID(name).version == 4 and name == name.lower() for name in ids)
    assert user_message("x", ids=lambda: "mine").id == "mine"


def test_a_new_message_is_detached_and_frozen() -> None:
    blocks: list[dict[str, Any]] = [{"type": "text", "text": "a"}]
    message = user_message(blocks, source={"kind": "plugin", "plugin": "p"})
    blocks[0]["text"] = "b"
    assert (message.text, type(message), message.source["plugin"]) == ("a", Message, "p")
    with pytest.raises(TypeError):
        message["content"][0]["text"] = "c"
    plain = message.to_dict()
    plain["content"].clear()
    assert message.text == "a"


def test_what_is_built_here_is_accepted_by_a_session() -> None:
    session = Session.create("s")
    session.append("user/message", user_message("a"), surface_op="append")
    model = assistant_message("b", provider="p", model="m")
    session.append("assistant/message", in_step(model), surface_op="append")
    session.append("tool/result", in_step(tool_result_message("c", "d")), surface_op="append")
    assert [message.role for message in session.derive_messages()] == ["user", "assistant", "user"]


def test_text_and_calls_skip_what_they_do_not_know() -> None:
    content = [
        {"type": "text", "text": "a"},
        {"type": "reasoning", "text": "no"},
        {"type": "text", "text": 1},
        None,
        {"type": "tool-call", "id": "c", "name": "n", "arguments": "{}"},
        {"type": "tool-call", "id": 5},
        {"type": "text", "text": "b"},
    ]
    assert message_text({"content": content}) == "a\nb"
    assert [call["id"] for call in tool_calls({"content": content})] == ["c"]
    assert (message_text({}), tool_calls({})) == ("", [])
