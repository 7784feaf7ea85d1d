"""Assembling a stream (messages-and-agent.md, 1.5 and 1.9), sentence by sentence."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnlog.assemble import Assembly
from turnlog.errors import RecorderError
from turnlog.lossless import is_json_value

Wire = dict[str, Any]


def start(index: int, kind: str) -> Wire:
    return {"type": "block-start", "index": index, "blockType": kind}


def text(index: int, piece: str) -> Wire:
    return {"type": "text-delta", "index": index, "text": piece}


def reasoning(index: int, piece: str) -> Wire:
    return {"type": "reasoning-delta", "index": index, "text": piece}


def call(index: int, id_: str, piece: str, **name: str) -> Wire:
    return {
        "type": "tool-call-delta",
        "index": index,
        "id": id_,
        "argumentsDelta": piece,
        **name,
    }


def end(index: int, block: Any) -> Wire:
    return {"type": "block-end", "index": index, "block": block}


def finish(kind: str = "stop", **keys: Any) -> Wire:
    return {"type": "finish", "reason": {"kind": kind}, **keys}


def text_block(value: str) -> Wire:
    return {"type": "text", "text": value}


def reasoning_block(value: str) -> Wire:
    return {"type": "reasoning", "text": value}


def call_block(id_: str, name: str, arguments: str) -> Wire:
    return {"type": "tool-call", "id": id_, "name": name, "arguments": arguments}


IMAGE = {"type": "image", "attachment": {"attachmentId": "sha256:00"}}


@pytest.mark.parametrize(
    ("chunks", "blocks"),
    [
        pytest.param([], [], id="nothing"),
        pytest.param([text(0, "a"), text(0, "b")], [text_block("ab")], id="deltas are joined"),
        pytest.param(
            [text(3, "a"), reasoning(1, "b"), text(3, "c")],
            [text_block("ac"), reasoning_block("b")],
            id="interleaved blocks, in first-seen order",
        ),
        pytest.param([start(0, "text")], [text_block("")], id="a start alone opens a block"),
        pytest.param(
            [start(0, "text"), start(0, "tool-call"), text(0, "a")],
            [text_block("a")],
            id="a second start is ignored",
        ),
        pytest.param(
            [start(1, "text"), start(0, "text"), text(0, "b"), text(1, "a")],
            [text_block("a"), text_block("b")],
            id="a start fixes the order",
        ),
        pytest.param(
            [start(0, "reasoning"), text(0, "a")],
            [reasoning_block("a")],
            id="a block keeps the kind that it was started with",
        ),
        pytest.param(
            [end(0, text_block("whole")), text(0, "late")],
            [text_block("whole")],
            id="deltas behind the end are ignored",
        ),
        pytest.param(
            [text(0, "part"), end(0, text_block("whole"))],
            [text_block("whole")],
            id="the end is authoritative",
        ),
        pytest.param(
            [end(0, text_block("first")), end(0, text_block("second"))],
            [text_block("first")],
            id="the first end wins",
        ),
        pytest.param([end(0, {}), end(0, text_block("x"))], [{}], id="even an empty first end"),
        pytest.param(
            [call(0, "a", '{"x"', name="read"), call(0, "a", ":1}")],
            [call_block("a", "read", '{"x":1}')],
            id="arguments are joined",
        ),
        pytest.param(
            [call(0, "a", ""), call(0, "b", "")],
            [call_block("b", "", "")],
            id="the last id wins; no name is an empty one",
        ),
        pytest.param(
            [call(0, "a", "", name="old"), call(0, "a", "", name="new"), call(0, "a", "", name="")],
            [call_block("a", "new", "")],
            id="the last name wins that is not empty",
        ),
        pytest.param(
            [start(7, "tool-call")], [call_block("call-7", "", "")], id="an id of last resort"
        ),
        pytest.param(
            [start(0, "image"), end(0, IMAGE)], [IMAGE], id="an unknown kind, once it has ended"
        ),
        pytest.param([end(0, IMAGE)], [IMAGE], id="an end without a start"),
        pytest.param(
            [text(0, "a"), call(1, "c", "{"), finish("max-tokens")],
            [text_block("a")],
            id="max-tokens drops open calls",
        ),
        pytest.param(
            [end(0, call_block("c", "n", "{}")), finish("max-tokens")],
            [],
            id="max-tokens drops finished calls",
        ),
        pytest.param(
            [call(0, "c", "{}", name="n"), finish("max-tokens"), finish("tool-calls")],
            [call_block("c", "n", "{}")],
            id="the last finish decides",
        ),
    ],
)
def test_blocks(chunks: list[Wire], blocks: list[Wire]) -> None:
    assert Assembly(chunks).blocks() == blocks


def test_an_open_block_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(RecorderError) as caught:
        Assembly([text(0, "a"), start(1, "hologram")]).blocks()
    assert caught.value.code == "INCOMPLETE_BLOCK"
    assert "'hologram'" in caught.value.message


@pytest.mark.parametrize(
    ("chunks", "blocks"),
    [
        pytest.param(
            [reasoning(2, "think"), text(0, "a")],
            [reasoning_block("think"), text_block("a")],
            id="order is kept",
        ),
        pytest.param(
            [text(0, " \n\t"), reasoning(1, ""), start(2, "text")], [], id="blank ones are dropped"
        ),
        pytest.param([text(0, " a ")], [text_block(" a ")], id="nothing is trimmed"),
        pytest.param(
            [end(0, text_block("closed")), text(1, "open")],
            [text_block("closed"), text_block("open")],
            id="closed and open",
        ),
        pytest.param(
            [call(0, "a", "{}"), end(1, call_block("b", "n", "{}")), text(2, "x")],
            [text_block("x")],
            id="all calls are dropped",
        ),
        pytest.param([start(0, "hologram"), text(1, "x")], [text_block("x")], id="unknown, open"),
        pytest.param([end(0, IMAGE), text(1, "x")], [text_block("x")], id="unknown, closed"),
    ],
)
def test_what_is_kept_of_an_interrupted_stream(chunks: list[Wire], blocks: list[Wire]) -> None:
    assert Assembly(chunks).interrupted_blocks() == blocks


def test_the_last_usage_and_the_last_finish_win() -> None:
    first, last = {"inputTokens": 1, "outputTokens": 1}, {"inputTokens": 2, "outputTokens": 3}
    chunks = [{"type": "usage", "usage": usage} for usage in (first, last)]
    assembly = Assembly([*chunks, finish("max-tokens"), finish("tool-calls")])
    assert assembly.usage == last
    assert assembly.finish == "tool-calls"


def test_a_stream_without_finish_has_stopped() -> None:
    assembly = Assembly([text(0, "a")])
    assert (assembly.finish, assembly.usage, assembly.replay_state) == ("stop", None, None)


@pytest.mark.parametrize(
    ("kind", "state", "kept"),
    [
        pytest.param("stop", {"response": 1}, {"response": 1}, id="no blocks: unchanged"),
        pytest.param(
            "stop",
            {"response": 1, "blocks": ["t", "c"]},
            {"response": 1, "blocks": ["t", "c"]},
            id="one entry a block",
        ),
        pytest.param("stop", {"response": 1, "blocks": ["t"]}, None, id="too few: all dropped"),
        pytest.param("stop", {"response": 1, "blocks": [1, 2, 3]}, None, id="too many"),
        pytest.param(
            "max-tokens",
            {"response": 1, "blocks": ["t", "c"]},
            {"response": 1, "blocks": ["t"]},
            id="entries of dropped blocks go",
        ),
        pytest.param(
            "max-tokens",
            {"response": 1, "blocks": ["t"]},
            None,
            id="the blocks seen count, not those kept",
        ),
    ],
)
def test_replay_state(kind: str, state: Wire, kept: Wire | None) -> None:
    chunks = [text(0, "a"), call(1, "c", "{}", name="n"), finish(kind, replayState=state)]
    assert Assembly(chunks).replay_state == kept


_VALUES = st.none() | st.booleans() | st.integers(-1, 2) | st.sampled_from(["", "a", "tool-call"])
_JSON = st.recursive(
    _VALUES,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("ab"), inner),
    max_leaves=4,
)
_KINDS = st.sampled_from(
    [
        "block-start",
        "text-delta",
        "reasoning-delta",
        "tool-call-delta",
        "block-end",
        "usage",
        "finish",
        "other",
    ]
)
_KEYS = st.sampled_from(
    ["index", "text", "id", "name", "argumentsDelta", "blockType", "block", "reason", "replayState"]
)
_CHUNKS = st.builds(
    lambda kind, rest: {**rest, "type": kind}, _KINDS, st.dictionaries(_KEYS, _JSON, max_size=5)
)


@given(st.lists(_CHUNKS | _JSON, max_size=8))
def test_any_chunk_that_a_log_can_hold_is_taken(chunks: list[Any]) -> None:
    assembly = Assembly(chunks)
    assert is_json_value(assembly.interrupted_blocks())
    with suppress(RecorderError):
        assert is_json_value(assembly.blocks())
        assert is_json_value(assembly.replay_state)
