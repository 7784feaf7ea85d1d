"""Assembling a streamed answer: chunks in, content blocks out.

The stream contract of the harnesses (messages-and-agent.md, 1.5 and 1.9): blocks are correlated by index and come
out in the order in which they were first seen; the first `block-end` of an index is authoritative over its
deltas; the last usage and the last finish win. Pure, and any chunk that a log can hold is taken: what does not
have the shape of its type adds nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from turnlog.errors import RecorderError

CHUNK_TYPES = frozenset(
    {
        "block-start",
        "text-delta",
        "reasoning-delta",
        "tool-call-delta",
        "block-end",
        "usage",
        "finish",
    }
)
"""The types of stream chunks, a closed set."""

_DELTA_BLOCKS = {
    "text-delta": "text",
    "reasoning-delta": "reasoning",
    "tool-call-delta": "tool-call",
}


class _Block:
    """One block of the stream, as far as it came."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.text: list[str] = []
        self.arguments: list[str] = []
        self.id = ""
        self.name = ""
        self.closed: dict[str, Any] | None = None

    def take(self, chunk: Mapping[str, Any]) -> None:
        if self.closed is not None:
            return
        if chunk["type"] == "tool-call-delta":
            self.id = _text(chunk, "id") or self.id
            self.name = _text(chunk, "name") or self.name
            self.arguments.append(_text(chunk, "argumentsDelta"))
        else:
            self.text.append(_text(chunk, "text"))

    def content(self, index: Any) -> dict[str, Any] | None:
        """The block, or None for an unknown kind that never ended."""
        if self.closed is not None:
            return self.closed
        if self.kind == "tool-call":
            return {
                "type": "tool-call",
                "id": self.id or f"call-{index}",
                "name": self.name,
                "arguments": "".join(self.arguments),
            }
        if self.kind in ("text", "reasoning"):
            return {"type": self.kind, "text": "".join(self.text)}
        return None


class Assembly:
    """What a stream came to. `usage` is None where it had none; `finish` is the kind of its end, or `"stop"`."""

    def __init__(self, chunks: Iterable[Mapping[str, Any]]) -> None:
        self._blocks: dict[Any, _Block] = {}
        self._replay_state: Any = None
        self.usage: Any = None
        self.finish = "stop"
        for chunk in chunks:
            if isinstance(chunk, Mapping):
                self._take(chunk)

    def _take(self, chunk: Mapping[str, Any]) -> None:
        kind = _text(chunk, "type")
        if kind == "block-start":
            self._block(chunk, _text(chunk, "blockType"))
        elif kind in _DELTA_BLOCKS:
            self._block(chunk, _DELTA_BLOCKS[kind]).take(chunk)
        elif kind == "block-end" and isinstance(chunk.get("block"), dict):
            block = self._block(chunk, _text(chunk["block"], "type"))
            if block.closed is None:
                block.closed = dict(chunk["block"])
        elif kind == "usage":
            self.usage = chunk.get("usage")
        elif kind == "finish":
            reason = chunk.get("reason")
            self.finish = _text(reason, "kind") if isinstance(reason, dict) else "stop"
            self._replay_state = chunk.get("replayState", self._replay_state)

    def _block(self, chunk: Mapping[str, Any], kind: str) -> _Block:
        index = chunk.get("index")
        key = index if isinstance(index, int) else str(index)
        return self._blocks.setdefault(key, _Block(kind))

    def blocks(self) -> list[dict[str, Any]]:
        """The content blocks; without tool calls when the answer was cut off by its token limit.

        Raises `RecorderError` (`INCOMPLETE_BLOCK`) for a block of an unknown kind that never ended.
        """
        return [content for content in self._contents() if not self._drops(content)]

    @property
    def replay_state(self) -> Any:
        """The provider's replay state, for the blocks that `blocks` gives; None where it does not fit them."""
        state = self._replay_state
        if not isinstance(state, dict) or not isinstance(state.get("blocks"), list):
            return state
        contents = self._contents()
        if len(state["blocks"]) != len(contents):
            return None
        kept = [
            entry
            for entry, content in zip(state["blocks"], contents, strict=True)
            if not self._drops(content)
        ]
        return {**state, "blocks": kept}

    def interrupted_blocks(self) -> list[dict[str, Any]]:
        """What is worth keeping of a stream that was cut off: text and reasoning that are not blank."""
        contents = [block.content(index) for index, block in self._blocks.items()]
        return [
            content
            for content in contents
            if content is not None
            and content.get("type") in ("text", "reasoning")
            and _text(content, "text").strip()
        ]

    def _contents(self) -> list[dict[str, Any]]:
        contents = []
        for index, block in self._blocks.items():
            content = block.content(index)
            if content is None:
                raise RecorderError(
                    f"the stream's {block.kind!r} block never ended; give the message's content yourself",
                    code="INCOMPLETE_BLOCK",
                )
            contents.append(content)
        return contents

    def _drops(self, content: Mapping[str, Any]) -> bool:
        return self.finish == "max-tokens" and content.get("type") == "tool-call"


def _text(value: Mapping[str, Any], key: str) -> str:
    """The string under the key; `""` for anything else."""
    found = value.get(key)
    return found if isinstance(found, str) else ""
