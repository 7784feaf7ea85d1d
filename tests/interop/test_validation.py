"""What the packages refuse we refuse, and the reverse: thousands of logs with one thing wrong in each.

Every event of sound sessions is spoilt in every place, one change at a time; each spoilt log goes to both
programs as a seed and as a stored file. What we judge otherwise on purpose is in `_only_they_refuse` and, for
single lines, in the verdicts of `LINES`; there is nothing else.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from turnlog.codec import pack_chunk_runs
from turnlog.errors import TurnlogError
from turnlog.lossless import canonicalize
from turnlog.session import Session
from turnlog.storage.jsonl import JsonlStorage

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]

Peer = Callable[..., Any]
Wire = dict[str, Any]
Sample = tuple[Wire, list[list[Wire]]]
Change = tuple[tuple[str | int, ...], Any]
"""Where an event is changed, and to what; `GONE` takes the key away."""

GONE = object()
VALUES: list[Any] = [
    GONE,
    None,
    "",
    "x",
    "append",
    -1,
    0,
    3,
    10**6,
    1.5,
    True,
    [],
    [0],
    {},
    {"a": 1},
]


def changes(value: Any, path: tuple[str | int, ...] = ()) -> Iterator[Change]:
    """Every change of one place inside a value."""
    if isinstance(value, dict):
        for key, item in value.items():
            for other in VALUES:
                if other is GONE or json.dumps(other) != json.dumps(item):
                    yield (*path, key), other
            yield from changes(item, (*path, key))
        yield (*path, "extra"), 1
    elif isinstance(value, list):
        for number, item in enumerate(value[:2]):
            yield from changes(item, (*path, number))


def changed(event: Wire, path: tuple[str | int, ...], value: Any) -> Wire:
    copy: Wire = json.loads(json.dumps(event))
    inner: Any = copy
    for key in path[:-1]:
        inner = inner[key]
    if value is GONE:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return copy


def spoilt(sample: Sample) -> Iterator[tuple[str, list[Wire]]]:
    events = [event for batch in sample[1] for event in batch]
    seen = set()
    for number, event in enumerate(events):
        for path, value in changes(event):
            # One of each kind of event and place is enough.
            kind = (event["type"], *path, repr(value), str(event.get("surfaceOp"))[:9])
            if kind in seen:
                continue
            seen.add(kind)
            name = (
                f"{event['type']} {'.'.join(map(str, path))} = {'-' if value is GONE else value!r}"
            )
            yield name, [*events[:number], changed(event, path, value), *events[number + 1 :]]


def refuses_seed(events: list[Wire]) -> str | None:
    """Why a detached session of ours refuses the seed, or None."""
    try:
        Session.create("s", events)
    except TurnlogError as error:
        return f"{type(error).__name__}: {error.message}"
    return None


def test_seeds_are_judged_alike(peer: Peer, sample: Sample) -> None:
    cases = list(spoilt(sample))
    theirs = peer("seeds", seeds=[events for _, events in cases])
    surprises = []
    for (name, events), their in zip(cases, theirs, strict=True):
        our = refuses_seed(events)
        if (our is None) != (their is None):
            surprises.append(f"{name}: ours {our}, theirs {their}")
    assert not surprises


def test_stored_logs_are_judged_alike(peer: Peer, tmp_path: Path, sample: Sample) -> None:
    header, _ = sample
    cases = list(spoilt(sample))
    ids = [f"s{number}" for number in range(len(cases))]
    for name, (_, events) in zip(ids, cases, strict=True):
        store(tmp_path, name, lines_of(header, name, events))
    theirs = peer("inspects", root=tmp_path, compression="none", ids=ids)
    surprises = []
    for session_id, (name, _), their in zip(ids, cases, theirs, strict=True):
        our = judge(tmp_path, session_id)
        if our != their and verdict(our, their) not in (
            (BOTH, THEY) if _only_they_refuse(name) else (BOTH,)
        ):
            surprises.append(f"{name}: ours {our}, theirs {their}")
    assert not surprises


def _only_they_refuse(name: str) -> bool:
    """Payloads that log.md leaves to the invariants; a session of theirs takes them, and only their storage not.

    It reads an odd `turn/end` as one of an older shape, and its repair falls over null.
    """
    return name.startswith("turn/end data") or name in (
        "turn/start data = None",
        "step/start data = None",
        "tool/call data = None",
    )


def lines_of(header: Wire, id: str, events: list[Wire]) -> list[bytes]:
    wires = [{"type": "session", **header, "id": id, "cwd": "/home/user/repo"}, *events]
    return [canonicalize(wire)[0] for wire in wires]


def store(root: Path, id: str, lines: list[bytes]) -> None:
    folder = root / "--home-user-repo--" / id
    folder.mkdir(parents=True)
    (folder / "session.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))


BOTH, NEITHER, WE, THEY = "both refuse", "neither refuses", "only we refuse", "only they refuse"


def _event(
    seq: int, data: str, type_: str = "plugin/thing", keys: str = ',"ignorable":true'
) -> bytes:
    return f'{{"type":"{type_}","seq":{seq},"time":1,"data":{data}{keys}}}'.encode()


def _row(seq: int, data: str) -> bytes:
    return f'{{"type":"text-chunks","seq0":{seq},"time0":1,"data":{data}}}'.encode()


ROW = '{"turn":1,"step":1,"index":0,"dt":[%s],"texts":[%s]}'

# A line behind a finished turn, and the verdicts on the log: with another finished turn behind the line, and with
# nothing behind it, where a bad line is a torn tail and is left out.
LINES: dict[str, tuple[Callable[[int], bytes], str, str]] = {
    "an ignorable event": (lambda seq: _event(seq, "{}"), NEITHER, NEITHER),
    "an unknown event": (lambda seq: _event(seq, "{}", keys=""), BOTH, BOTH),
    "a retired type": (lambda seq: _event(seq, "{}", "mode/set", ""), BOTH, BOTH),
    "ignorable false": (lambda seq: _event(seq, "{}", keys=',"ignorable":false'), BOTH, BOTH),
    "an unknown envelope key": (
        lambda seq: _event(seq, "{}", keys=',"x":1,"ignorable":true'),
        BOTH,
        BOTH,
    ),
    "a gap": (lambda seq: _event(seq + 1, "{}"), BOTH, NEITHER),
    "a repeated seq": (lambda seq: _event(seq - 1, "{}"), BOTH, NEITHER),
    "a blank line": (lambda seq: b"", BOTH, NEITHER),
    "no JSON": (lambda seq: b'{"type":', BOTH, NEITHER),
    "an array": (lambda seq: b"[]", BOTH, NEITHER),
    "null": (lambda seq: b"null", BOTH, THEY),
    "trailing text": (lambda seq: _event(seq, "{}") + b"x", BOTH, NEITHER),
    "NaN": (lambda seq: _event(seq, "NaN"), BOTH, NEITHER),
    "spaces and a carriage return": (
        lambda seq: b" " + _event(seq, "{ }") + b" \r",
        NEITHER,
        NEITHER,
    ),
    "a float in a spelling of its own": (
        lambda seq: _event(seq, "[1.0,1E3,0.10]"),
        NEITHER,
        NEITHER,
    ),
    "a lone surrogate": (lambda seq: _event(seq, '"\\ud800"'), NEITHER, NEITHER),
    "escapes that nobody writes": (lambda seq: _event(seq, '"\\u0041\\/"'), NEITHER, NEITHER),
    # What no harness writes is damage to us (log.md, 4); theirs reads it as something else.
    "minus zero": (lambda seq: _event(seq, "-0"), WE, NEITHER),
    "infinity by overflow": (lambda seq: _event(seq, "1e999"), WE, NEITHER),
    "a duplicate key": (lambda seq: _event(seq, '{"a":1,"a":2}'), WE, NEITHER),
    "an integer beyond a double": (lambda seq: _event(seq, "9007199254740993"), WE, NEITHER),
    "invalid UTF-8": (lambda seq: _event(seq, '"?"').replace(b"?", b"\xff"), WE, NEITHER),
    "a row": (lambda seq: _row(seq, ROW % ("1,-2", '"a","b","c"')), NEITHER, NEITHER),
    "a row of one": (lambda seq: _row(seq, ROW % ("", '"a"')), NEITHER, NEITHER),
    "an empty row": (lambda seq: _row(seq, ROW % ("", "")), BOTH, NEITHER),
    "a row with too few times": (lambda seq: _row(seq, ROW % ("1", '"a","b","c"')), BOTH, NEITHER),
    "a row with a number for a text": (
        lambda seq: _row(seq, ROW % ("1,1", '"a",1,"c"')),
        BOTH,
        NEITHER,
    ),
    "a row with a fraction of time": (
        lambda seq: _row(seq, ROW % ("1,1.5", '"a","b","c"')),
        BOTH,
        NEITHER,
    ),
    "a row that skips": (lambda seq: _row(seq + 1, ROW % ("1,1", '"a","b","c"')), BOTH, NEITHER),
}


@pytest.mark.parametrize("finished", [True, False], ids=["committed", "tail"])
@pytest.mark.parametrize("name", LINES)
def test_odd_lines_are_judged_alike(
    peer: Peer, tmp_path: Path, plain: Sample, name: str, finished: bool
) -> None:
    make, *verdicts = LINES[name]
    events = [event for batch in plain[1] for event in batch]
    first = next(n for n, event in enumerate(events) if event["type"] == "turn/end") + 1
    lines = [*lines_of(plain[0], "s", events[:first]), make(first)]
    members = max(lines[-1].count(b'"a","b","c"') * 3, 1)
    if finished:
        lines += [
            _event(first + members, '{"turn":2}', "turn/start", ""),
            _event(first + members + 1, '{"turn":2,"reason":{"kind":"completed"}}', "turn/end", ""),
        ]
    store(tmp_path, "s", lines)
    (their,) = peer("inspects", root=tmp_path, compression="none", ids=["s"])
    our = judge(tmp_path, "s")
    assert verdict(our, their) == verdicts[0 if finished else 1], (our, their)
    if isinstance(our, int) and isinstance(their, int):
        # What is damage only to us is, at the end of a log, a torn tail only to us.
        assert their - our == (verdicts[0] == WE)


def judge(root: Path, id: str) -> int | str:
    """The number of events that we read, or why we refuse."""
    try:
        return len(JsonlStorage(root).inspect(id).log)
    except TurnlogError as error:
        return f"{type(error).__name__}: {error.message}"


def verdict(our: int | str, their: int | str) -> str:
    if isinstance(our, int):
        return NEITHER if isinstance(their, int) else THEY
    return WE if isinstance(their, int) else BOTH


HEADERS: dict[str, tuple[Wire, str]] = {
    "as it is": ({}, NEITHER),
    "an unknown key": ({"zebra": [1]}, NEITHER),
    "a newer version": ({"version": 2}, BOTH),
    "an older version": ({"version": -1}, BOTH),
    "a version that is no number": ({"version": "0"}, BOTH),
    "no depth": ({"delegationDepth": GONE}, BOTH),
    "a negative depth": ({"delegationDepth": -1}, BOTH),
    "a fraction of a time": ({"createdAt": 1.5}, BOTH),
    "a strange origin": ({"origin": "moon"}, BOTH),
    "a subagent": ({"origin": "subagent", "delegationDepth": 2, "agentPreset": "x"}, NEITHER),
    "a preset that is no string": ({"agentPreset": 1}, BOTH),
    "a retired field": ({"sandboxMode": "off"}, BOTH),
    "another type": ({"type": "sessions"}, BOTH),
    "another id": ({"id": "other"}, BOTH),
    "another directory": ({"cwd": "/elsewhere"}, BOTH),
    "a parent that is no string": ({"parentSession": 1}, BOTH),
    "a seed length that is no number": ({"seedLength": "x"}, BOTH),
}


@pytest.mark.parametrize("name", HEADERS)
def test_odd_headers_are_judged_alike(peer: Peer, tmp_path: Path, plain: Sample, name: str) -> None:
    edits, wanted = HEADERS[name]
    events = [event for batch in plain[1] for event in batch]
    lines = lines_of(plain[0], "s", events)
    wire = {**json.loads(lines[0]), **edits}
    lines[0] = canonicalize({key: value for key, value in wire.items() if value is not GONE})[0]
    store(tmp_path, "s", lines)
    (their,) = peer("inspects", root=tmp_path, compression="none", ids=["s"])
    our = judge(tmp_path, "s")
    assert verdict(our, their) == wanted, (our, their)


def test_runs_are_packed_alike(peer: Peer) -> None:
    seed = 20260801
    chance = random.Random(seed)
    batches = [_deltas(chance) for _ in range(300)]
    theirs = peer("pack", batches=batches)
    for batch, their in zip(batches, theirs, strict=True):
        our = [canonicalize(record)[0].decode() for record in pack_chunk_runs(batch)]
        assert our == their, f"seed {seed}"


def _deltas(chance: random.Random) -> list[Wire]:
    """Events that are mostly deltas of one run, with everything that may end one."""
    seq, time, events = chance.randrange(5), 1000, []
    for _ in range(chance.randrange(1, 25)):
        kind = chance.choice(
            ["text-delta"] * 6 + ["reasoning-delta", "tool-call-delta", "block-end"]
        )
        named: list[Wire] = [{}, {}, {"name": "n"}]
        chunk: Wire = {"type": kind, "index": chance.choice([0] * 9 + [1])}
        if kind == "tool-call-delta":
            chunk |= {"id": chance.choice("aab"), **chance.choice(named)}
            chunk |= {"argumentsDelta": "{"}
        else:
            chunk["text"] = chance.choice(["", "x", "\ud800", "é"])
        data: Wire = {"turn": 1, "step": chance.choice([1] * 9 + [2]), "chunk": chunk}
        if chance.random() < 0.05:
            data["extra"] = 1
        event: Wire = {"type": "assistant/chunk", "seq": seq, "time": time, "data": data}
        events.append(event | chance.choice([{}] * 19 + [{"ignorable": True}]))
        seq += chance.choice([1] * 19 + [2])
        time = min(time + chance.choice([0, 1, 7, -3, 2**52]), 2**53 - 1)
    return events
