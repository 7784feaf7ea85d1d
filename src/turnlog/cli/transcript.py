"""A log as a person reads it: what happened, in order, whatever the model still sees of it.

Reads append-origin events, so that a compaction hides nothing; it only leaves its mark where it took place.
Works on validated events and on salvaged ones alike: no payload is trusted to have a shape.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

import msgspec

from turnlog.cli.text import count, format_time
from turnlog.eventlog import EventView
from turnlog.events import SessionEvent
from turnlog.messages import message_text

Kind = Literal["turn", "user", "context", "assistant", "result", "mark"]
Style = Literal["text", "reasoning", "call", "output", "note"]


class Part(msgspec.Struct, frozen=True):
    """A piece of an entry. `output` and `call` may be long and are shortened when shown."""

    style: Style
    text: str


class Entry(msgspec.Struct, frozen=True):
    """One entry of a transcript: a message, the edge of a turn, or a mark between them."""

    kind: Kind
    seq: int
    head: str
    parts: list[Part] = []
    shadowed: bool = False

    def to_dict(self) -> dict[str, Any]:
        """`{kind, seq, head, shadowed, parts: [{style, text}]}`."""
        return msgspec.to_builtins(self)  # type: ignore[no-any-return]


class Item(msgspec.Struct, frozen=True):
    """An event, as far as a transcript needs it. `chunks` is how many deltas it stands for."""

    type: str
    seq: int
    time: int
    data: Any
    op: Any = None
    chunks: int = 1


def iter_items(events: EventView) -> Iterator[Item]:
    """The items of a validated log; packed runs of stream deltas stay undecoded."""
    for record in events.iter_records():
        if isinstance(record, SessionEvent):
            data = None if record.type == "assistant/chunk" else record.data
            yield Item(record.type, record.seq, record.time, data, record.surface_op)
        else:
            first = next(record.events())
            yield Item(first.type, first.seq, first.time, None, None, len(record))


def iter_wire_items(events: Iterable[Mapping[str, Any]]) -> Iterator[Item]:
    """The items of salvaged events in wire form."""
    for wire in events:
        yield Item(wire["type"], wire["seq"], wire["time"], wire["data"], wire.get("surfaceOp"))


def iter_entries(items: Iterable[Item], shadowed: frozenset[int] = frozenset()) -> Iterator[Entry]:
    """The transcript of the items. `shadowed`: seqs of messages that the model sees no more."""
    reader = _Reader(shadowed)
    for item in items:
        yield from reader.read(item)
    yield from reader.finish()


class _Reader:
    def __init__(self, shadowed: frozenset[int]) -> None:
        self._shadowed = shadowed
        self._calls: dict[str, str] = {}
        self._open_turn: Any = None
        self._chunks = 0
        self._last_seq = -1

    def read(self, item: Item) -> Iterator[Entry]:
        self._last_seq = item.seq
        kind = item.type
        if kind == "assistant/chunk":
            self._chunks += item.chunks
        elif kind in ("user/message", "assistant/message", "tool/result"):
            yield self._message(item)
        elif kind == "turn/start":
            self._open_turn = _get(item.data, "turn")
            yield Entry("turn", item.seq, f"turn {self._open_turn}, {format_time(item.time)} UTC")
        elif kind == "step/end":
            yield from self._cut_stream(item.seq)
        elif kind == "turn/end":
            yield from self._cut_stream(item.seq)
            self._open_turn = None
            reason = _get(item.data, "reason")
            if _get(reason, "kind") != "completed":
                yield Entry("turn", item.seq, f"turn ended: {describe_end(reason)}")
        elif kind == "llm/retry":
            yield Entry("mark", item.seq, _describe_retry(item.data))
        elif kind == "compaction/end" and _get(item.data, "error"):
            yield Entry("mark", item.seq, f"compaction failed: {_get(item.data, 'error')}")

    def finish(self) -> Iterator[Entry]:
        yield from self._cut_stream(self._last_seq)
        if self._open_turn is not None:
            what = f"turn {self._open_turn} is open: it would be closed on resume"
            yield Entry("turn", self._last_seq, what)

    def _cut_stream(self, seq: int) -> Iterator[Entry]:
        """A mark for streamed text that never became a message: it is in the log only."""
        if self._chunks:
            what = f"{count(self._chunks, 'stream chunk')} without a message (--raw shows them)"
            yield Entry("mark", seq, what)
        self._chunks = 0

    def _message(self, item: Item) -> Entry:
        message = item.data if item.type == "user/message" else _get(item.data, "message")
        source = _get(message, "source")
        if item.type == "assistant/message":
            self._chunks = 0
        if item.op != "append":
            return _replacement(item, message)
        shadowed = item.seq in self._shadowed
        if item.type == "tool/result":
            head = self._result_head(item.data, message)
            return Entry("result", item.seq, head, list(_parts(message, "output")), shadowed)
        if item.type == "assistant/message":
            return self._assistant(item, message, shadowed)
        if _get(source, "kind") == "user":
            return Entry("user", item.seq, "user", list(_parts(message, "text")), shadowed)
        head = f"context from {_get(source, 'plugin') or _get(source, 'kind')}"
        return Entry("context", item.seq, head, list(_parts(message, "output")), shadowed)

    def _assistant(self, item: Item, message: Any, shadowed: bool) -> Entry:
        for block in _blocks(message):
            if _get(block, "type") == "tool-call":
                self._calls[str(_get(block, "id"))] = str(_get(block, "name"))
        head = f"assistant ({_get(_get(message, 'source'), 'model')})"
        if _get(item.data, "interrupted"):
            head += ", interrupted"
        return Entry("assistant", item.seq, head, list(_parts(message, "text")), shadowed)

    def _result_head(self, data: Any, message: Any) -> str:
        call_id = str(_get(_get(message, "source"), "callId"))
        error = _get(_get(data, "error"), "code")
        failed = any(_get(block, "isError") is True for block in _blocks(message))
        outcome = f", failed: {error}" if error else ", failed" if failed else ""
        return f"result of {self._calls.get(call_id, 'a call')} [{call_id}]{outcome}"


def _replacement(item: Item, message: Any) -> Entry:
    start, end = _get(item.op, "start"), _get(item.op, "end")
    if item.type == "tool/result":
        return Entry("mark", item.seq, f"the result at seq {start} was shortened for the model")
    parts = [Part("output", message_text(message))] if isinstance(message, dict) else []
    place = f"seq {start} to {end}" if start != end else f"seq {start}"
    return Entry("mark", item.seq, f"compaction: the model sees this instead of {place}", parts)


def _parts(message: Any, text_style: Style) -> Iterator[Part]:
    for block in _blocks(message):
        kind = _get(block, "type")
        if kind == "text":
            yield Part(text_style, str(_get(block, "text")))
        elif kind == "reasoning":
            yield Part("reasoning", str(_get(block, "text")))
        elif kind == "tool-call":
            call = f"{_get(block, 'name')}({_get(block, 'arguments')}) [{_get(block, 'id')}]"
            yield Part("call", call)
        elif kind == "tool-result":
            yield from _parts(block, text_style)
        elif kind == "image":
            yield Part("note", f"[image {_describe_image(_get(block, 'attachment'))}]")
        else:
            yield Part("note", f"[{kind} block]")


def _describe_image(attachment: Any) -> str:
    size = f"{_get(attachment, 'width')}x{_get(attachment, 'height')}"
    return f"{_get(attachment, 'mediaType')}, {size}, {_get(attachment, 'attachmentId')}"


def describe_end(reason: Any) -> str:
    """A turn's end in words: `aborted by user`, `error RATE_LIMIT: ...`, `interrupted`."""
    kind = str(_get(reason, "kind"))
    if kind == "aborted":
        return f"aborted by {_get(_get(reason, 'reason'), 'kind')}"
    if kind == "error":
        error = _get(reason, "error")
        return f"error {_get(error, 'code')}: {_get(error, 'message')}"
    return kind


def _describe_retry(data: Any) -> str:
    failure = _get(data, "failure")
    return f"retry {_get(data, 'retry')} after {_get(failure, 'code')}: {_get(failure, 'message')}"


def _blocks(message: Any) -> list[Any]:
    content = _get(message, "content")
    return content if isinstance(content, list) else []


def _get(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, dict) else None
