"""Assembling a streamed answer: chunks in, content blocks out.

The stream contract of the harnesses (messages-and-agent.md, 1.5 and 1.9): blocks are correlated by index and come
out in the order in which they were first seen; a `block-end` is authoritative over the deltas before it; the
last usage and the last finish win. Pure, and any chunk that a log can hold is taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from turnlog.errors import RecorderError

_DELTA_BLOCKS = {
    "text-delta": "text",
    "reasoning-delta": "reasoning",
    "tool-call-delta": "tool-call",
}


class _Block:
    """One block of the stream, as far as it came."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.parts: list[str] = []
        self.id = ""
        self.name = ""
        self.closed: dict[str, Any] | None = None

    def take(self, chunk: Mapping[str, Any]) -> None:
        if self.closed is not None:
            return
        if chunk["type"] == "tool-call-delta":
            self.id = chunk.get("id") or self.id
            self.name = chunk.get("name") or self.name
            self.parts.append(chunk.get("argumentsDelta") or "")
        else:
            self.parts.append(chunk.get("text") or "")

    def content(self, index: Any) -> dict[str, Any] | None:
        """The block, or None for an unknown kind that never ended."""
        if self.closed is not None:
            return self.closed
        text = "".join(self.parts)
        if self.kind == "tool-call":
            return {
                "type": "tool-call",
                "id": self.id or f"call-{index}",
                "name": self.name,
                "arguments": text,
            }
        return {"type": self.kind, "text": text} if self.kind in ("text", "reasoning") else None


class Assembly:
    """What a stream came to. `usage` and `replay_state` are None where the stream had none."""

    def __init__(self, chunks: Iterable[Mapping[str, Any]]) -> None:
        self._blocks: dict[Any, _Block] = {}
        self.usage: Any = None
        self.finish = "stop"
        self.replay_state: Any = None
        for chunk in chunks:
            self._take(chunk)

    def _take(self, chunk: Mapping[str, Any]) -> None:
        kind, index = chunk.get("type"), chunk.get("index")
        if kind == "block-start":
            self._blocks.setdefault(index, _Block(str(chunk.get("blockType"))))
        elif kind in _DELTA_BLOCKS:
            self._blocks.setdefault(index, _Block(_DELTA_BLOCKS[kind])).take(chunk)
        elif kind == "block-end" and isinstance(chunk.get("block"), dict):
            block = self._blocks.setdefault(index, _Block(str(chunk["block"].get("type"))))
            block.closed = block.closed or dict(chunk["block"])
        elif kind == "usage":
            self.usage = chunk.get("usage")
        elif kind == "finish":
            reason = chunk.get("reason")
            self.finish = str(reason.get("kind")) if isinstance(reason, dict) else self.finish
            self.replay_state = chunk.get("replayState", self.replay_state)

    def blocks(self) -> list[dict[str, Any]]:
        """The content blocks; without tool calls when the answer was cut off by its token limit.

        Raises `RecorderError` (`INCOMPLETE_BLOCK`) for a block of an unknown kind that never ended.
        """
        blocks = []
        for index, block in self._blocks.items():
            content = block.content(index)
            if content is None:
                raise RecorderError(
                    f"the stream's {block.kind!r} block never ended; give the message's content yourself",
                    code="INCOMPLETE_BLOCK",
                )
            if self.finish != "max-tokens" or content.get("type") != "tool-call":
                blocks.append(content)
        return blocks

    def interrupted_blocks(self) -> list[dict[str, Any]]:
        """What is worth keeping of a stream that was cut off: text and reasoning that are not blank."""
        contents = [block.content(index) for index, block in self._blocks.items()]
        return [
            content
            for content in contents
            if content is not None
            and content.get("type") in ("text", "reasoning")
            and isinstance(content.get("text"), str)
            and content["text"].strip()
        ]
