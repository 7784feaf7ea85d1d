"""Messages, arguments and reasons as plain values for an append.

The messages are those of `turnlog.messages`, unfrozen: an append would take a frozen one apart again, which costs
as much as the append itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from turnlog.errors import RecorderError
from turnlog.lossless import canonicalize
from turnlog.messages import is_name, new_message_id

Content = str | Sequence[Mapping[str, Any]]
"""A text, or a list of content blocks."""

Arguments = Mapping[str, Any] | str
"""A tool call's arguments: the model's raw text, or an object that is written as compact JSON."""

CallSpec = tuple[str, str, Arguments]
"""A tool call as (id, name, arguments)."""


def content_blocks(content: Content) -> list[Any]:
    """The content as a list of blocks; `RecorderError` (`INVALID_CONTENT`) for anything else."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    # A mapping or a list of texts would else be taken apart into what nobody can read.
    blocks = [] if isinstance(content, Mapping) else list(content)
    if isinstance(content, Mapping) or not all(isinstance(block, Mapping) for block in blocks):
        raise RecorderError(
            "content is a text or a list of blocks, each a mapping with its type",
            code="INVALID_CONTENT",
        )
    return blocks


def plain_user_message(content: Content) -> dict[str, Any]:
    """A user message with a fresh id."""
    source, blocks = {"kind": "user"}, content_blocks(content)
    return {"content": blocks, "source": source, "role": "user", "id": new_message_id()}


def plain_result_message(call_id: str, content: Content, is_error: bool) -> dict[str, Any]:
    """The user message that answers one call, with a fresh id."""
    block = {
        "type": "tool-result",
        "toolCallId": call_id,
        "content": content_blocks(content),
        "isError": is_error,
    }
    source = {"kind": "tool", "callId": call_id}
    return {"source": source, "content": [block], "role": "user", "id": new_message_id()}


def given(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that are not None."""
    return {key: value for key, value in fields.items() if value is not None}


def checked_reason(reason: str | Mapping[str, Any], *names: str) -> dict[str, Any]:
    """A reason, detached; refused here rather than when the turn has to be closed with it."""
    if isinstance(reason, str) and reason in names:
        return {"kind": reason}
    if not isinstance(reason, Mapping) or not is_name(reason.get("kind")):
        raise RecorderError(
            f"no reason {reason!r}; give one of {', '.join(names)}, or a mapping with its kind",
            code="INVALID_REASON",
        )
    return canonicalize(dict(reason))[1]  # type: ignore[no-any-return]


def raw_arguments(arguments: Any) -> str:
    """The model's raw text: a str as it is, any other value as compact JSON."""
    if isinstance(arguments, str):
        return arguments
    value = dict(arguments) if isinstance(arguments, Mapping) else arguments
    return canonicalize(value)[0].decode("utf-8")
