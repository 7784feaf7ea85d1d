"""Reading older logs: one function a step, in memory only.

The format version is 0, but logs of version 0 come in the shapes of several months. Each step here takes one
event in wire form and gives it in today's shape, or raises for a shape that cannot be read; files are never
rewritten by reading (storage.md, 3.7). Retired types are left to the one validator.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from turnlog.errors import EventError
from turnlog.lossless import is_safe_integer
from turnlog.messages import is_name

FindMessage = Callable[[int], Any]
"""Gives the message of the event with that seq, in today's shape; None where there is none."""

_PLAIN_ENDS = frozenset({"completed", "blocked", "max-tokens", "interrupted"})


def is_old_shape(type_: str, data: Any) -> bool:
    """Whether the event may need `upgrade_v0_shapes`; cheap, and False for everything written today."""
    if not isinstance(data, dict):
        return type_ == "steering/message"
    if type_ == "user/message":
        return "id" not in data
    if type_ == "tool/result" or type_ == "assistant/message":
        return "message" not in data
    if type_ == "turn/start":
        return "trigger" in data
    return type_ == "steering/message" or (type_ == "turn/end" and _is_old_end(data))


def _is_old_end(data: dict[str, Any]) -> bool:
    reason = data.get("reason")
    if not isinstance(reason, dict) or not isinstance(reason.get("kind"), str):
        return False
    kind = reason["kind"]
    if kind in _PLAIN_ENDS:
        return len(reason) > 1
    return kind == "disposed" or (
        (kind == "aborted" and "reason" not in reason)
        or (kind == "error" and "error" not in reason)
    )


def upgrade_v0_shapes(
    wire: dict[str, Any], session_id: str, find_message: FindMessage
) -> dict[str, Any]:
    """The event in today's shape; the same dict where it is that already.

    Raises `EventError` (`MALFORMED_OLD_EVENT`) for an old shape that is none of the known ones.
    """
    type_, data = wire["type"], wire["data"]
    if not is_old_shape(type_, data) or "ignorable" in wire:
        return wire
    return {**wire, **_STEPS[type_](wire, data, session_id, find_message)}


def _malformed(wire: dict[str, Any], what: str) -> EventError:
    return EventError(
        f"event {wire['seq']}: malformed older {wire['type']}: {what}",
        code="MALFORMED_OLD_EVENT",
        seq=wire["seq"],
    )


def _upgrade_turn_start(
    wire: dict[str, Any], data: dict[str, Any], session_id: str, find: FindMessage
) -> dict[str, Any]:
    trigger = data["trigger"]
    if data.keys() != {"turn", "trigger"} or not _is_count(data["turn"]):
        raise _malformed(wire, "it must be {turn, trigger}")
    if not isinstance(trigger, dict) or not is_name(trigger.get("kind")):
        raise _malformed(wire, "the trigger needs a kind")
    return {"data": {"turn": data["turn"]}}


def _is_count(value: Any) -> bool:
    return is_safe_integer(value) and value >= 1


def _upgrade_turn_end(
    wire: dict[str, Any], data: dict[str, Any], session_id: str, find: FindMessage
) -> dict[str, Any]:
    if data.keys() != {"turn", "reason"} or not _is_count(data["turn"]):
        raise _malformed(wire, "it must be {turn, reason}")
    reason = data["reason"]
    kind = reason["kind"]
    if kind in _PLAIN_ENDS:
        new: dict[str, Any] = {"kind": kind}
    elif kind in ("aborted", "disposed"):
        new = {"kind": "aborted", "reason": {"kind": "legacy" if kind == "aborted" else "disposed"}}
    else:
        new = {"kind": "error", "error": _old_failure(wire, reason)}
    return {"data": {"turn": data["turn"], "reason": new}}


def _old_failure(wire: dict[str, Any], reason: dict[str, Any]) -> dict[str, Any]:
    step = reason.get("step")
    if not is_safe_integer(step) or step < 0:
        raise _malformed(wire, "an error needs its step")
    failure = reason.get("failure")
    if isinstance(failure, dict):
        if not is_name(failure.get("message")) or not is_name(failure.get("code")):
            raise _malformed(wire, "a failure needs message and code")
        return failure
    if not isinstance(reason.get("message"), str):
        raise _malformed(wire, "an error needs a failure or a message")
    return {"message": reason["message"], "code": reason.get("code") or "UNKNOWN"}


def _message_id(wire: dict[str, Any], session_id: str) -> str:
    return f"legacy-message:{session_id}:{wire['seq']}"


def _upgrade_steering(
    wire: dict[str, Any], data: Any, session_id: str, find: FindMessage
) -> dict[str, Any]:
    keys = set(data) - {"turn"} if isinstance(data, dict) and "turn" in data else None
    if keys == {"message"}:
        message = data["message"]
    elif keys == {"content", "source"}:
        message = _identified(wire, data, session_id)
    else:
        raise _malformed(wire, "it must be {turn, message} or {turn, content, source}")
    return {"type": "user/message", "data": message}


def _identified(wire: dict[str, Any], data: dict[str, Any], session_id: str) -> dict[str, Any]:
    return {
        "id": _message_id(wire, session_id),
        "role": "user",
        "content": data["content"],
        "source": data["source"],
    }


def _upgrade_user(
    wire: dict[str, Any], data: dict[str, Any], session_id: str, find: FindMessage
) -> dict[str, Any]:
    if "role" in data or "message" in data or "content" not in data or "source" not in data:
        return {}
    return {"data": {**data, "id": _message_id(wire, session_id), "role": "user"}}


def _upgrade_assistant(
    wire: dict[str, Any], data: dict[str, Any], session_id: str, find: FindMessage
) -> dict[str, Any]:
    if "content" not in data or not isinstance(data.get("provenance"), dict):
        return {}
    rest = {key: value for key, value in data.items() if key not in ("content", "provenance")}
    message = {
        "id": _message_id(wire, session_id),
        "role": "assistant",
        "content": data["content"],
        "source": {**data["provenance"], "kind": "model"},
    }
    return {"data": _with_message(rest, message)}


def _upgrade_result(
    wire: dict[str, Any], data: dict[str, Any], session_id: str, find: FindMessage
) -> dict[str, Any]:
    if not {"callId", "content", "isError"} <= data.keys():
        return {}
    own = ("callId", "content", "isError")
    rest = {key: value for key, value in data.items() if key not in own}
    op = wire.get("surfaceOp")
    replaced = (
        find(op["start"]) if isinstance(op, dict) and is_safe_integer(op.get("start")) else None
    )
    message = {
        "id": _id_of(replaced) or _message_id(wire, session_id),
        "role": "user",
        "content": [
            {
                "type": "tool-result",
                "toolCallId": data["callId"],
                "content": data["content"],
                "isError": data["isError"],
            }
        ],
        "source": {"kind": "tool", "callId": data["callId"]},
    }
    return {"data": _with_message(rest, message)}


def _id_of(message: Any) -> str | None:
    """The id of a message, which in a salvaged log need not have one."""
    id_ = message.get("id") if isinstance(message, dict) else None
    return id_ if is_name(id_) else None


def _with_message(rest: dict[str, Any], message: dict[str, Any]) -> dict[str, Any]:
    """Turn and step first, then the message, then what else there was."""
    place: dict[str, Any] = {key: rest.pop(key) for key in ("turn", "step") if key in rest}
    return {**place, "message": message, **rest}


_STEPS: dict[str, Callable[[dict[str, Any], Any, str, FindMessage], dict[str, Any]]] = {
    "turn/start": _upgrade_turn_start,
    "turn/end": _upgrade_turn_end,
    "steering/message": _upgrade_steering,
    "user/message": _upgrade_user,
    "assistant/message": _upgrade_assistant,
    "tool/result": _upgrade_result,
}
