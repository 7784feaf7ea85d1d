"""The harnesses' own packages, installed once a run and driven through `peer.mjs`.

`TURNLOG_INTEROP_NODE_MODULES` names a folder that has, or shall keep, the packages in its `node_modules` (or
that `node_modules` itself); without it they are installed into a temporary one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest

from turnlog.session import Session
from turnlog.store import SessionStore

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def peer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Any]]:
    """Asks the packages: `peer("read", root=..., id=...)`; RuntimeError when they refuse."""
    folder = _folder(tmp_path_factory)
    installed = subprocess.run(
        [sys.executable, HERE / "install_peer.py", folder],
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    if installed.returncode:
        pytest.fail(installed.stderr)
    answer = json.loads(installed.stdout)
    if "skip" in answer:
        pytest.skip(f"the TypeScript packages cannot run here: {answer['skip']}")
    with subprocess.Popen(
        [answer["node"], HERE / "peer.mjs", folder],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        pipes = process.stdin, process.stdout

        def ask(op: str, **fields: Any) -> Any:
            pipes[0].write(json.dumps({"op": op, **fields}, default=str) + "\n")
            pipes[0].flush()
            line = pipes[1].readline() or '{"error": "the driver has died"}'
            answer = json.loads(line, parse_int=_parse_int)
            if "error" in answer:
                raise RuntimeError(answer["error"])
            return answer["ok"]

        yield ask
        process.stdin.close()


def _parse_int(text: str) -> int | float:
    """An integer as JavaScript means it: beyond 2**53 the double that the digits are short for."""
    value = int(text)
    return value if abs(value) <= 2**53 else float(value)


def _folder(factory: pytest.TempPathFactory) -> Path:
    named = os.environ.get("TURNLOG_INTEROP_NODE_MODULES")
    if named:
        path = Path(named).absolute()
        return path.parent if path.name == "node_modules" else path
    base = factory.getbasetemp()
    # Below the folder of all workers of this run, where there are several.
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "typescript"


# -- sessions to exchange ------------------------------------------------------------------------------

Wire = dict[str, Any]
Sample = tuple[Wire, list[list[Wire]]]
"""A header in wire form, and the batches of events in which the session is stored."""


def _new(id: str, **header: Any) -> Session:
    times = count(1_700_000_000_000, 7)
    wire = {"version": 0, "id": id, "createdAt": 1, "cwd": "/home/user/repo", "delegationDepth": 0}
    return Session.create(id, header={**wire, **header}, clock=lambda: next(times))


def _user(session: Session, *blocks: Wire, **source: Any) -> None:
    message = {
        "id": f"u{session.seq}",
        "role": "user",
        "content": list(blocks),
        "source": {"kind": "user", **source},
    }
    session.append("user/message", message, surface_op="append")


def _text(text: str) -> Wire:
    return {"type": "text", "text": text}


def _delta(session: Session, place: Wire, **chunk: Any) -> int:
    return session.append("assistant/chunk", {**place, "chunk": chunk}).seq


def _step(session: Session, turn: int, step: int, texts: Sequence[str], calls: int) -> None:
    """A step up to its recorded calls, with deltas of every kind."""
    place = {"turn": turn, "step": step}
    session.append("step/start", place)
    cited = [
        _delta(session, place, type="block-start", index=0, blockType="reasoning"),
        *(_delta(session, place, type="reasoning-delta", index=0, text=text) for text in texts),
        *(_delta(session, place, type="text-delta", index=1, text=text) for text in texts),
    ]
    blocks = [_text("".join(texts))]
    for number in range(calls):
        call = f"c{turn}.{step}.{number}"
        arguments = '{"path":"src/é.py"}'
        cited += [
            _delta(session, place, type="tool-call-delta", index=2, id=call, argumentsDelta=part)
            for part in (arguments[:5], arguments[5:9], arguments[9:])
        ]
        blocks.append({"type": "tool-call", "id": call, "name": "read", "arguments": arguments})
    cited.append(_delta(session, place, type="usage", usage={"inputTokens": 12, "outputTokens": 3}))
    source = {"kind": "model", "provider": "p", "model": "m"}
    message = {"id": f"a{session.seq}", "role": "assistant", "content": blocks, "source": source}
    session.append(
        "assistant/message",
        {**place, "message": message},
        surface_op="append",
        source_event_seqs=cited,
    )


def _call(session: Session, turn: int, step: int, number: int, *, result: str | None) -> None:
    place, call = {"turn": turn, "step": step}, f"c{turn}.{step}.{number}"
    seq = session.append(
        "tool/call", {**place, "callId": call, "name": "read", "arguments": "{}"}
    ).seq
    if result is not None:
        session.append(
            "tool/result",
            {**place, "message": _result(f"r{seq}", call, result), "meta": {"ms": 1.5}},
            surface_op="append",
            source_event_seqs=[seq],
        )


def _result(id: str, call: str, text: str) -> Wire:
    block = {"type": "tool-result", "toolCallId": call, "content": [_text(text)], "isError": False}
    return {
        "id": id,
        "role": "user",
        "source": {"kind": "tool", "callId": call},
        "content": [block],
    }


def _turn(session: Session, turn: int, texts: Sequence[str] = ("one ", "two ", "three ")) -> None:
    session.append("turn/start", {"turn": turn})
    _user(session, _text(f"question {turn}"))
    _step(session, turn, 1, texts, 2)
    _call(session, turn, 1, 0, result="first")
    _call(session, turn, 1, 1, result="second")
    session.append("step/end", {"turn": turn, "step": 1})
    _end(session, turn)


def _end(session: Session, turn: int) -> None:
    session.append("turn/end", {"turn": turn, "reason": {"kind": "completed"}})


def _plain() -> Session:
    session = _new("plain")
    _turn(session, 1)
    session.append(
        "session/title", {"title": "Ünïcode 標題", "messageSeqs": [1], "source": {"kind": "user"}}
    )
    _turn(session, 2)
    return session


def _odd_strings() -> Session:
    session = _new("odd/strings ~ \u958b", cwd="/開発/~agent")
    _turn(session, 1, ["\ud800", "a\udfff", "\x00\x1f\x7f", "\u2028\u2029/</script>", '"\\', "😀"])
    _user(session, _text("lone \ud83d and a whole 😀"), label="\udead")
    return session


def _numbers() -> Session:
    session = _new("numbers")
    values = [
        0.1,
        1e-7,
        1e21,
        5e-324,
        1.7976931348623157e308,
        float(123456789012345680000),
        2**53,
        -1.5,
    ]
    session.append("x/numbers", {"values": values, "nested": [[1.0, 1e16, 0]]}, ignorable=True)
    return session


def _unknown_parts() -> Session:
    session = _new("unknown")
    session.append("plugin/thing", {"deep": [[{"a": None}]], "": ""}, ignorable=True)
    session.append("plugin/nothing", None, ignorable=True)
    block = {"type": "hologram", "data": {"x": [1, None, True]}, "cacheControl": {"type": "e"}}
    _user(session, block, {**_text("t"), "citations": [{"start": 0}]}, form="new", extra=[{}])
    session.append("turn/start", {"turn": 1})
    session.append("turn/end", {"turn": 1, "reason": {"kind": "somethingNew", "why": 1}})
    return session


def _compacted() -> Session:
    session = _new("compacted")
    _turn(session, 1)
    nodes = list(session.surface.nodes)
    start = {"compactionId": "k", "turn": None}
    session.append("compaction/start", start)
    covered = {"shadowedRange": {"start": nodes[0], "end": nodes[2]}, "shadowedSeqs": nodes[:3]}
    tokens = {"shadowedTokenCount": 9, "provider": "p", "model": "m"}
    session.append(
        "compaction/summary", {**start, "summary": [_text("in short")], **covered, **tokens}
    )
    checkpoint = {"kind": "compaction-checkpoint", "compactionId": "k"}
    session.append_message(
        {"id": "s", "role": "user", "content": [_text("in short")], "source": checkpoint},
        replace=(nodes[0], nodes[2]),
    )
    session.append("compaction/end", start)
    old = session.events[nodes[3]].to_dict()["data"]
    old["message"]["content"][0]["content"] = [_text("pruned")]
    session.append(
        "tool/result",
        old,
        surface_op={"op": "replace", "start": nodes[3], "end": nodes[3]},
        source_event_seqs=[nodes[3]],
    )
    _turn(session, 2)
    return session


def _forked() -> Session:
    store = SessionStore(clock=lambda: 1_700_000_100_000)
    parent = store.create("parent", seed=list(_plain().events), meta={"cwd": "/home/user/repo"})
    child = store.fork(parent, child_id="forked")
    _turn(child, 3)
    return child


def _interrupted() -> Session:
    session = _new("interrupted")
    _turn(session, 1)
    session.append("turn/start", {"turn": 2})
    _user(session, _text("go on"))
    _step(session, 2, 1, ["thinking ", "about ", "it"], 3)
    _call(session, 2, 1, 0, result="done")
    _call(session, 2, 1, 1, result=None)
    return session


SESSIONS = {
    "plain": _plain,
    "odd strings": _odd_strings,
    "numbers": _numbers,
    "unknown parts": _unknown_parts,
    "compacted": _compacted,
    "forked": _forked,
    "interrupted": _interrupted,
}


def _sample(name: str) -> Sample:
    session = SESSIONS[name]()
    header = {**session.header.to_dict()}
    header.setdefault("delegationDepth", 0)
    events = [event.to_dict() for event in session.events]
    cuts = [0, *range(5, len(events), 17), len(events)]
    return header, [events[at:to] for at, to in pairwise(cuts)]


@pytest.fixture(params=sorted(SESSIONS))
def sample(request: pytest.FixtureRequest) -> Sample:
    """One session after the other."""
    return _sample(request.param)


@pytest.fixture
def interrupted() -> Sample:
    """The session whose last turn is open, one of its three calls answered and one only recorded."""
    return _sample("interrupted")


@pytest.fixture
def plain() -> Sample:
    """A session of two finished turns."""
    return _sample("plain")
