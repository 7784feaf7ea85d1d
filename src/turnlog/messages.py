"""Messages: how they are made, read and checked.

A message is `{id, role, content: [block, ...], source: {kind, ...}}`; blocks and sources are open unions, and
extra keys are kept. The checks here are the one rule for append, seed and load (log.md, section 3), so a log
never holds a message that a later reading refuses.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from turnlog.errors import EventError
from turnlog.frozen import FrozenDict, freeze
from turnlog.lossless import canonicalize

IdFactory = Callable[[], str]
"""Makes a fresh message id; the default gives random UUIDs (version 4)."""


def new_message_id() -> str:
    """A random UUID v4 in lower case."""
    return str(uuid.uuid4())


class Message(FrozenDict):
    """A message as stored: a frozen mapping with its usual parts as properties.

    Keys: `id` (non-empty str), `role` (`"user"` or `"assistant"`; tool results are user messages), `content`
    (list of blocks, each a mapping with `type`) and `source` (a mapping with `kind`).
    """

    __slots__ = ()

    @property
    def id(self) -> str:
        """The message's id, unique in its session by convention only."""
        return str(self["id"])

    @property
    def role(self) -> str:
        """`"user"` or `"assistant"`."""
        return str(self["role"])

    @property
    def content(self) -> Sequence[Mapping[str, Any]]:
        """The blocks, in order."""
        return self["content"]  # type: ignore[no-any-return]

    @property
    def source(self) -> Mapping[str, Any]:
        """Who produced the message: `{kind: "user" | "model" | "tool" | "plugin" | ..., ...}`."""
        return self["source"]  # type: ignore[no-any-return]

    @property
    def text(self) -> str:
        """The text blocks joined by line feeds; `""` when there is none."""
        return message_text(self)


def message_text(message: Mapping[str, Any]) -> str:
    """The text of a message's text blocks, joined by line feeds; other blocks give nothing."""
    return "\n".join(
        block["text"]
        for block in message.get("content", ())
        if isinstance(block, dict)
        and block.get("type") == "text"
        and isinstance(block.get("text"), str)
    )


def _blocks(content: str | Sequence[Mapping[str, Any]]) -> list[Any]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


def _message(parts: dict[str, Any]) -> Message:
    return Message(freeze(canonicalize(parts)[1]))


def user_message(
    content: str | Sequence[Mapping[str, Any]],
    *,
    source: Mapping[str, Any] | None = None,
    ids: IdFactory = new_message_id,
) -> Message:
    """A user message from a text or a list of blocks; `source` is `{kind: "user"}` unless given."""
    return _message(
        {
            "content": _blocks(content),
            "source": dict(source) if source is not None else {"kind": "user"},
            "role": "user",
            "id": ids(),
        }
    )


def assistant_message(
    content: str | Sequence[Mapping[str, Any]],
    *,
    provider: str,
    model: str,
    replay_state: Any = None,
    ids: IdFactory = new_message_id,
) -> Message:
    """A model's message from a text or a list of blocks, with the route that produced it."""
    source: dict[str, Any] = {"kind": "model", "provider": provider, "model": model}
    if replay_state is not None:
        source["replayState"] = replay_state
    return _message(
        {"role": "assistant", "content": _blocks(content), "source": source, "id": ids()}
    )


def tool_result_message(
    call_id: str,
    content: str | Sequence[Mapping[str, Any]],
    *,
    is_error: bool = False,
    ids: IdFactory = new_message_id,
) -> Message:
    """The user message that answers one tool call; `isError` is always written."""
    block = {
        "type": "tool-result",
        "toolCallId": call_id,
        "content": _blocks(content),
        "isError": is_error,
    }
    return _message(
        {
            "source": {"kind": "tool", "callId": call_id},
            "content": [block],
            "role": "user",
            "id": ids(),
        }
    )


def tool_calls(message: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The `tool-call` blocks of a message that can be answered, in order: those with a non-empty str id."""
    return [
        block
        for block in message.get("content", ())
        if isinstance(block, dict) and block.get("type") == "tool-call" and is_name(block.get("id"))
    ]


def is_name(value: Any) -> bool:
    """Whether the value is a non-empty string."""
    return type(value) is str and value != ""


def _fail(what: str) -> EventError:
    return EventError(what, code="INVALID_MESSAGE")


def _check_message(type_: str, message: Any, role: str) -> tuple[dict[str, Any], list[Any]]:
    """The message's source and content, once the parts that every message has are checked."""
    if not isinstance(message, dict):
        raise _fail(f"{type_}: the message must be an object")
    get = message.get
    if not is_name(get("id")):
        raise _fail(f"{type_}: message.id must be a non-empty string")
    if get("role") != role:
        raise _fail(f"{type_}: message.role must be {role!r}")
    source = get("source")
    if not isinstance(source, dict) or not is_name(source.get("kind")):
        raise _fail(f"{type_}: message.source must be an object with a non-empty kind")
    content = get("content")
    if not isinstance(content, list):
        raise _fail(f"{type_}: message.content must be a list of blocks")
    return source, content


def check_user_message(data: Any) -> None:
    """Raise `EventError` unless the data of a `user/message` is a user message."""
    _check_message("user/message", data, "user")


def check_assistant_message(data: Any) -> None:
    """Raise `EventError` unless `data.message` is a model's message with its route."""
    if not isinstance(data, dict):
        raise _fail("assistant/message: data must be an object")
    message = data.get("message")
    source, _ = _check_message("assistant/message", message, "assistant")
    if source["kind"] != "model":
        raise _fail("assistant/message: message.source.kind must be 'model'")
    if not is_name(source.get("provider")) or not is_name(source.get("model")):
        raise _fail("assistant/message: message.source needs a non-empty provider and model")


def check_tool_result(data: Any) -> None:
    """Raise `EventError` unless `data.message` answers exactly one call with one result block."""
    if not isinstance(data, dict):
        raise _fail("tool/result: data must be an object")
    message = data.get("message")
    source, content = _check_message("tool/result", message, "user")
    if source["kind"] != "tool" or not is_name(source.get("callId")):
        raise _fail(
            "tool/result: message.source must be {kind: 'tool', callId} with a non-empty callId"
        )
    block = content[0] if len(content) == 1 else None
    if not isinstance(block, dict) or block.get("type") != "tool-result":
        raise _fail("tool/result: message.content must be exactly one tool-result block")
    if block.get("toolCallId") != source["callId"]:
        raise _fail("tool/result: the block's toolCallId must equal message.source.callId")
    if not isinstance(block.get("content"), list):
        raise _fail("tool/result: the block's content must be a list of blocks")
