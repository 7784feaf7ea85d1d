"""Token accounting: each model request counts once, over retries, resumes and forks.

For each step and attempt the last `assistant/chunk` of type `usage` counts; an `assistant/message`'s own usage
counts only when its step has no such chunk. An attempt ends with its `finish` chunk (a request that is made
again after an overflow leaves no other trace), or where a retry or the next step starts. What a fork
inherited is the parent's and is left out. Compaction requests are counted apart, title requests by number.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from turnlog.eventlog import Run
from turnlog.events import SessionEvent

_FIELDS = {
    "inputTokens": "input_tokens",
    "outputTokens": "output_tokens",
    "cacheReadTokens": "cache_read_tokens",
    "cacheWriteTokens": "cache_write_tokens",
    "reasoningTokens": "reasoning_tokens",
}


class TokenCount(msgspec.Struct):
    """Tokens of some requests. `input_tokens` excludes cached ones; `reasoning_tokens` are part of the output."""

    requests: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0

    def add(self, usage: Mapping[str, Any]) -> None:
        """Count one request's usage, in wire keys; what is no number counts as 0."""
        self.requests += 1
        for name, field in _FIELDS.items():
            value = usage.get(name)
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                setattr(self, field, getattr(self, field) + int(value))

    def to_dict(self) -> dict[str, int]:
        """The counts in wire keys, `requests` among them."""
        return {
            "requests": self.requests,
            **{name: getattr(self, field) for name, field in _FIELDS.items()},
        }


class SessionUsage(msgspec.Struct):
    """What a session's own requests used: conversation and compaction apart, title requests by number."""

    conversation: TokenCount
    compaction: TokenCount
    title_requests: int = 0

    def to_dict(self) -> dict[str, Any]:
        """`{conversation: {...}, compaction: {...}, titleRequests}`."""
        return {
            "conversation": self.conversation.to_dict(),
            "compaction": self.compaction.to_dict(),
            "titleRequests": self.title_requests,
        }


class _Step:
    """The usage of the step at hand, until it ends or an event names another."""

    def __init__(self, place: tuple[Any, Any] = (None, None)) -> None:
        self.place = place
        self.attempt: Mapping[str, Any] | None = None
        self.messages: list[Mapping[str, Any]] = []
        self.streamed = False

    def settle_attempt(self, total: TokenCount) -> None:
        if self.attempt is not None:
            total.add(self.attempt)
        self.attempt = None

    def settle(self, total: TokenCount) -> None:
        self.settle_attempt(total)
        if not self.streamed:
            for usage in self.messages:
                total.add(usage)


def fold_usage(records: Iterable[SessionEvent | Run]) -> SessionUsage:
    """The usage of the records, which must start behind what was inherited."""
    usage = SessionUsage(TokenCount(), TokenCount())
    step = _Step()
    for record in records:
        if not isinstance(record, SessionEvent):
            continue
        kind = record.type
        if kind in ("assistant/chunk", "assistant/message"):
            if b'"usage"' not in record.data_json and b'"finish"' not in record.data_json:
                continue
            place = (_get(record.data, "turn"), _get(record.data, "step"))
            if place != step.place:
                step.settle(usage.conversation)
                step = _Step(place)
            if kind == "assistant/chunk":
                _note_chunk(step, _get(record.data, "chunk"), usage.conversation)
            elif record.surface_op == "append":
                found = _usage_of(record.data, "usage")
                step.messages += [] if found is None else [found]
        elif kind == "llm/retry-started":
            step.settle_attempt(usage.conversation)
        elif kind in ("step/start", "step/end", "turn/end"):
            step.settle(usage.conversation)
            step = _Step()
        elif kind == "compaction/summary":
            found = _usage_of(record.data, "usage")
            if found is not None:
                usage.compaction.add(found)
        elif kind == "session/title-llm-request":
            usage.title_requests += 1
    step.settle(usage.conversation)
    return usage


def _note_chunk(step: _Step, chunk: Any, total: TokenCount) -> None:
    found = _usage_of(chunk, "usage")
    if found is not None and _get(chunk, "type") == "usage":
        step.attempt, step.streamed = found, True
    elif _get(chunk, "type") == "finish":
        step.settle_attempt(total)


def is_finish_chunk(event: SessionEvent) -> bool:
    """Whether an `assistant/chunk` is the last of its attempt: what streams after it is another request."""
    return b'"finish"' in event.data_json and _get(_get(event.data, "chunk"), "type") == "finish"


def _get(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, dict) else None


def _usage_of(value: Any, key: str) -> Mapping[str, Any] | None:
    found = _get(value, key)
    return found if isinstance(found, dict) else None
