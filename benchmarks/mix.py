"""The mix: a session as agents write it, the same at every run.

A turn is 160 events: 150 deltas of a token each, a user message of 300 bytes, an assistant message of 1.8 KB that
cites its deltas, two tool calls with results of 2 KB, and the brackets. 600 turns are 96,000 events and some
19 MB of raw JSONL. The text is English and code, with characters that JSON escapes and some of two to four bytes.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any

from turnlog.events import SessionEvent
from turnlog.lossless import canonicalize
from turnlog.session import Session

TURNS = 600
EVENTS_A_TURN = 160
BIG_TURNS = 8125
"""1.3 million events."""

_WORDS = [
    "the",
    "session",
    "file",
    "returns",
    "a",
    "value",
    "when",
    "and",
    "where",
    "it",
    "is",
    "not",
    "there",
    "because",
    "of",
    "this",
    "change",
    "to",
    "def",
    "class",
    "return",
    "import",
    "self",
    "None",
    "True",
    "for",
    "in",
    "range",
    "if",
    "else",
    "async",
    "await",
    "raise",
    "log",
    "append",
    "read",
    "write",
    "check",
    "error",
    '"quoted"',
    "\\n",
    "path/to/file.py",
    "x==1",
    "{}",
    "[]",
    "()",
    "=>",
    "naïve",
    "café",
    "größe",
    "—",
    "日本語",
    "функция",
    "😀",
    "→",
    "✓",
    "<tag/>",
    "#42",
    "3.14",
]
_SPACES = (" ", " ", " ", " ", "\n", "\n    ", "\t")

Wire = dict[str, Any]


class _Text:
    """Words in an order that looks like text and never changes."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)

    def token(self) -> str:
        """A word, mostly with the space before it."""
        chance = self._chance
        return (chance.choice(_SPACES) if chance.random() < 0.8 else "") + chance.choice(_WORDS)

    def tokens(self, count: int) -> list[str]:
        """So many of them."""
        return [self.token() for _ in range(count)]

    def text(self, bytes_: int) -> str:
        """About so many bytes of them."""
        return "".join(self.tokens(bytes_ // 6))


def turn(number: int, text: _Text, seq: int) -> Iterator[Wire]:
    """The 160 events of a turn, in wire form without seq and time; `seq` is that of the first."""
    place = {"turn": number, "step": 1}
    yield {"type": "turn/start", "data": {"turn": number}}
    yield {
        "type": "user/message",
        "data": {
            "id": f"msg-user-{number}",
            "role": "user",
            "content": [{"type": "text", "text": text.text(300)}],
            "source": {"kind": "user"},
        },
        "surfaceOp": "append",
    }
    yield {"type": "step/start", "data": place}
    for token in text.tokens(150):
        chunk = {"type": "text-delta", "index": 0, "text": token}
        yield {"type": "assistant/chunk", "data": {**place, "chunk": chunk}}
    calls = [f"call_{number:05}_{letter}" for letter in "ab"]
    arguments = '{"path":"src/turnlog/session.py","offset":120}'
    blocks: list[Wire] = [{"type": "text", "text": text.text(1500)}]
    blocks += [
        {"type": "tool-call", "id": call, "name": "read_file", "arguments": arguments}
        for call in calls
    ]
    yield {
        "type": "assistant/message",
        "data": {
            **place,
            "message": {
                "id": f"msg-assistant-{number}",
                "role": "assistant",
                "content": blocks,
                "source": {"kind": "model", "provider": "anthropic", "model": "some-model-4"},
            },
            "usage": {"inputTokens": 20_000 + number, "outputTokens": 150},
        },
        "sourceEventSeqs": list(range(seq + 3, seq + 153)),
        "surfaceOp": "append",
    }
    for index, call in enumerate(calls):
        yield {
            "type": "tool/call",
            "data": {**place, "callId": call, "name": "read_file", "arguments": arguments},
        }
        result = {
            "type": "tool-result",
            "toolCallId": call,
            "content": [{"type": "text", "text": text.text(2000)}],
            "isError": False,
        }
        yield {
            "type": "tool/result",
            "data": {
                **place,
                "message": {
                    "id": f"msg-result-{number}-{index}",
                    "role": "user",
                    "source": {"kind": "tool", "callId": call},
                    "content": [result],
                },
            },
            "sourceEventSeqs": [seq + 154 + 2 * index],
            "surfaceOp": "append",
        }
    yield {"type": "step/end", "data": place}
    yield {"type": "turn/end", "data": {"turn": number, "reason": {"kind": "completed"}}}


def iter_turns(turns: int, seed: int = 1) -> Iterator[list[Wire]]:
    """The wire events of one turn after the other, keys in the order in which appends write them."""
    text, chance = _Text(seed), random.Random(seed)
    seq, time = 0, 1_780_000_000_000
    for number in range(1, turns + 1):
        batch = []
        for entry in turn(number, text, seq):
            time += chance.randrange(2, 40)
            ordered = {"type": entry.pop("type"), "seq": seq, "time": time, **entry}
            batch.append(ordered)
            seq += 1
        yield batch


@cache
def wire_events(turns: int = TURNS) -> list[Wire]:
    """The mix as wire dicts."""
    return [event for batch in iter_turns(turns) for event in batch]


@cache
def raw_lines(turns: int = TURNS) -> list[bytes]:
    """The mix as the lines of a raw file, without the header."""
    return [canonicalize(event)[0] for event in wire_events(turns)]


def append_to(session: Session, events: Iterable[Wire]) -> None:
    """Append wire events to a session, times included."""
    append: Callable[..., SessionEvent] = session.append
    for event in events:
        append(
            event["type"],
            event["data"],
            surface_op=event.get("surfaceOp"),
            source_event_seqs=event.get("sourceEventSeqs"),
            time=event["time"],
        )


@cache
def session(turns: int = TURNS) -> Session:
    """The mix as a detached session."""
    made = Session.create("mix", header={"id": "mix", "createdAt": 1, "cwd": "/work"})
    append_to(made, wire_events(turns))
    return made
