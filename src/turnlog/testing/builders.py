"""Builders: realistic event lists, the same on every run.

`EventBuilder` grows a log one turn at a time, numbers and dates the events, and gives them as `SessionEvent`
or in wire form. Nothing is random and no clock is read, so bytes made from the lists can be compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Self

from turnlog.codec.frames import compress_frame
from turnlog.codec.record import encode_batch, encode_header
from turnlog.engine.batch import stored_header
from turnlog.events import SessionEvent
from turnlog.header import SessionHeader
from turnlog.storage.jsonl.paths import LOG_NAMES, Encoding, session_dir

START = 1_700_000_000_000
"""The time of the first event, in Unix milliseconds."""

TEXT = ("He", "llo", " wörld", " 世界", " 😀", "\n", "done.")
"""The pieces of a streamed answer; they hold characters of one to four bytes."""


def header_of(id: str = "s1", **fields: Any) -> SessionHeader:
    """A header with a fixed age; `fields` are further ones by their wire keys."""
    return SessionHeader.from_dict({"version": 0, "id": id, "createdAt": START, **fields})


class EventBuilder:
    """Grows a log. Each method returns the builder; `events` and `wires` give what is there so far."""

    def __init__(self) -> None:
        self.wires: list[dict[str, Any]] = []
        self._turn = 0
        self._step = 0

    @property
    def seq(self) -> int:
        """The seq of the next event."""
        return len(self.wires)

    @property
    def events(self) -> list[SessionEvent]:
        """The events so far."""
        return [SessionEvent.from_dict(wire) for wire in self.wires]

    def add(self, type_: str, data: Any, **keys: Any) -> Self:
        """Any event; `keys` are further envelope keys in wire form (`time` among them)."""
        time = keys.pop("time", START + 7 * self.seq)
        self.wires.append({"type": type_, "seq": self.seq, "time": time, "data": data, **keys})
        return self

    @property
    def place(self) -> dict[str, Any]:
        """`{turn, step}` of the open step."""
        return {"turn": self._turn, "step": self._step}

    def start_turn(self) -> Self:
        """`turn/start` with the next number."""
        self._turn, self._step = self._turn + 1, 0
        return self.add("turn/start", {"turn": self._turn})

    def end_turn(self, kind: str = "completed") -> Self:
        """`turn/end` of the open turn."""
        return self.add("turn/end", {"turn": self._turn, "reason": {"kind": kind}})

    def start_step(self) -> Self:
        """`step/start` with the next number."""
        self._step += 1
        return self.add("step/start", self.place)

    def end_step(self) -> Self:
        """`step/end` of the open step."""
        return self.add("step/end", self.place)

    def user(self, text: str = "hi 界😀", **keys: Any) -> Self:
        """A user's message."""
        message = {
            "id": f"m{self.seq}",
            "role": "user",
            "content": [{"type": "text", "text": text}],
            "source": {"kind": "user"},
        }
        return self.add("user/message", message, **{"surfaceOp": "append", **keys})

    def chunks(self, texts: Sequence[str] = TEXT, kind: str = "text-delta", index: int = 0) -> Self:
        """One streamed delta for each text: `text-delta` or `reasoning-delta`."""
        for text in texts:
            chunk = {"type": kind, "index": index, "text": text}
            self.add("assistant/chunk", {**self.place, "chunk": chunk})
        return self

    def call_chunks(self, texts: Sequence[str], id: str = "c1", name: str | None = "bash") -> Self:
        """One streamed piece of a call's arguments for each text."""
        for text in texts:
            chunk: dict[str, Any] = {"type": "tool-call-delta", "index": 1, "id": id}
            if name is not None:
                chunk["name"] = name
            chunk["argumentsDelta"] = text
            self.add("assistant/chunk", {**self.place, "chunk": chunk})
        return self

    def assistant(self, text: str = "".join(TEXT), calls: Sequence[str] = (), **keys: Any) -> Self:
        """A model's message with a text and calls of `bash` with these ids."""
        content: list[dict[str, Any]] = [{"type": "text", "text": text}] if text else []
        content += [
            {"type": "tool-call", "id": call, "name": "bash", "arguments": "{}"} for call in calls
        ]
        message = {
            "id": f"m{self.seq}",
            "role": "assistant",
            "content": content,
            "source": {"kind": "model", "provider": "deepseek", "model": "chat"},
        }
        data = {**self.place, "message": message}
        return self.add("assistant/message", data, **{"surfaceOp": "append", **keys})

    def call(self, call_id: str) -> Self:
        """A `tool/call` of `bash`."""
        data = {**self.place, "callId": call_id, "name": "bash", "arguments": "{}"}
        return self.add("tool/call", data)

    def result(self, call_id: str, text: str = "ok", **keys: Any) -> Self:
        """The result of a call."""
        block = {
            "type": "tool-result",
            "toolCallId": call_id,
            "content": [{"type": "text", "text": text}],
            "isError": False,
        }
        message = {
            "source": {"kind": "tool", "callId": call_id},
            "content": [block],
            "role": "user",
            "id": f"m{self.seq}",
        }
        data = {**self.place, "message": message}
        return self.add("tool/result", data, **{"surfaceOp": "append", **keys})

    def talk(self, texts: Sequence[str] = TEXT) -> Self:
        """A whole turn: a question, a streamed answer."""
        self.start_turn().start_step().user().chunks(texts)
        first = self.seq - len(texts)
        self.assistant("".join(texts), sourceEventSeqs=list(range(first, self.seq)))
        return self.end_step().end_turn()

    def work(self, call_id: str = "c1") -> Self:
        """A whole turn of two steps: a question, a tool call with its result, an answer."""
        self.start_turn().start_step().user("run it").call_chunks(["{", '"cmd":', '"ls"', "}"])
        self.assistant("", calls=[call_id]).call(call_id).result(call_id).end_step()
        return self.start_step().assistant("It ran.").end_step().end_turn()

    def interrupted(self) -> Self:
        """An open turn: two calls asked for, one of them recorded, none answered."""
        self.start_turn().start_step().user("run both").assistant("", calls=["c8", "c9"])
        return self.call("c8")


def talk_events(turns: int = 2) -> list[SessionEvent]:
    """A balanced log of so many turns."""
    builder = EventBuilder()
    for number in range(turns):
        if number % 2:
            builder.work(f"c{number}")
        else:
            builder.talk()
    return builder.events


def open_events() -> list[SessionEvent]:
    """A balanced turn and an interrupted one behind it."""
    return EventBuilder().talk().interrupted().events


def odd_events() -> list[SessionEvent]:
    """What storages get wrong: line separators, lone surrogates, numbers, null data, types nobody knows."""
    builder = EventBuilder()
    builder.add("session/title", {"title": "a\u2028b\u2029c\u0085d\x0b\x0c\x1c\r\ne\x00\ufeff"})
    builder.add("feedback/record", {"text": "\ud800 alone, \U0001f600 whole"})
    builder.add("goal/change", {"numbers": [0.1, 1e-7, 1e21, 2**60, -5, 2**68]})
    builder.add("future/kind", None, ignorable=True)
    builder.add("future/kind", {"b": 1, "a": [True, False, None, {}, [], ""]}, ignorable=True)
    builder.add("plan/mode", {"active": True}, time=-5)
    nested: Any = "deep"
    for _ in range(2000):
        nested = [nested]
    builder.add("hook/result", nested, time=2**53 - 1)
    builder.start_turn().start_step().user("")
    builder.chunks(["\ud83d", "\ude00", "x", "y"]).chunks(["a", "b"]).chunks(
        ["r"] * 4, "reasoning-delta"
    )
    builder.call_chunks(["", "{", "}"], name=None)
    builder.assistant("", sourceEventSeqs=[]).end_step().end_turn()
    return builder.events


def log_text(
    events: Iterable[SessionEvent], header: SessionHeader | None = None, *, pack: bool = True
) -> bytes:
    """The text of a log with the events in one batch; of session `s1` unless a header is given."""
    head = encode_header(stored_header(header_of() if header is None else header))
    return head + encode_batch(events, pack=pack)


def log_frames(
    batches: Iterable[Sequence[SessionEvent]],
    header: SessionHeader | None = None,
    *,
    pack: bool = True,
) -> bytes:
    """A compressed log: a frame for the header and one for each batch."""
    head = encode_header(stored_header(header_of() if header is None else header))
    frames = [compress_frame(encode_batch(batch, pack=pack)) for batch in batches]
    return compress_frame(head) + b"".join(frames)


def place_log(
    root: Path, data: bytes, id: str = "s1", cwd: str | None = None, encoding: Encoding = "none"
) -> Path:
    """Write the bytes where a JSONL root keeps that session's log; returns the file's path."""
    directory = session_dir(root, cwd, id)
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / LOG_NAMES[encoding]
    path.write_bytes(data)
    return path
