"""SessionEvent and its envelope (log.md, section 1)."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import msgspec
import pytest

from turnlog.errors import EventError, JsonValueError
from turnlog.events import (
    SessionEvent,
    adopt_session_event,
    event_from_line,
    snapshot_session_event,
    wire_dicts,
)
from turnlog.frozen import FrozenDict, FrozenList
from turnlog.lossless import json_equal
from turnlog.messages import Message, user_message

SAFE = 2**53 - 1
DEPTH = 100_000


def wire(**changes: Any) -> dict[str, Any]:
    return {"type": "turn/start", "seq": 0, "time": 1000, "data": {"turn": 1}} | changes


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in wire().items() if name != key}


@pytest.mark.parametrize(
    "event",
    [
        wire(),
        wire(data=None),
        wire(data=0),
        wire(data=[]),
        wire(data="x"),
        wire(time=-5),
        wire(time=SAFE),
        wire(time=-SAFE),
        wire(seq=SAFE),
        wire(type=""),
        wire(type="anything at all"),
        wire(type="x", ignorable=True),
        wire(type="user/message", data=user_message("hi").to_dict(), surfaceOp="append"),
        wire(
            type="user/message",
            seq=9,
            data=user_message("hi").to_dict(),
            surfaceOp={"op": "replace", "start": 3, "end": 5},
            sourceEventSeqs=[3, 5],
        ),
        {"data": {"b": 1, "a": 2}, "time": 1, "seq": 0, "type": "x"},
        wire(type="x", data={"text": "é\u2028\ud800 \U0001f600", "n": [0.1, 1e21, 2**60]}),
    ],
)
def test_a_sound_event_comes_back_as_it_was_key_order_included(event: dict[str, Any]) -> None:
    read = SessionEvent.from_dict(event)
    again = event_from_line(read.to_json())
    for one in (read, again, snapshot_session_event(read), pickle.loads(pickle.dumps(read))):
        assert json.dumps(one.to_dict()) == json.dumps(SessionEvent.from_dict(event).to_dict())
        assert one.to_dict() == event
        assert list(one.to_dict()) == list(event)
        assert one.to_json() == read.to_json()
        assert one == read
        assert hash(one) == hash(read)


@pytest.mark.parametrize(
    "event",
    [
        without("type"),
        without("seq"),
        without("time"),
        without("data"),
        wire(type=None),
        wire(type=1),
        wire(seq=None),
        wire(seq=-1),
        wire(seq=1.5),
        wire(seq=SAFE + 1),
        wire(seq=True),
        wire(seq="0"),
        wire(time=None),
        wire(time=1.5),
        wire(time=SAFE + 1),
        wire(time=-SAFE - 1),
        wire(time=False),
        wire(time="2026-01-01"),
        wire(ignorable=False),
        wire(ignorable=None),
        wire(ignorable=1),
        wire(extra=1),
        wire(id="e"),
        wire(surface_op="append"),
        [],
        None,
        "turn/start",
    ],
)
def test_a_wrong_envelope_is_refused(event: Any) -> None:
    for read in (SessionEvent.from_dict, snapshot_session_event, adopt_session_event):
        with pytest.raises(EventError) as caught:
            read(event)
        assert caught.value.code == "INVALID_ENVELOPE"


@pytest.mark.parametrize(
    ("event", "path"),
    [
        (wire(data={"rows": [0, float("nan")]}), "$.data.rows[1]"),
        (wire(data=-0.0), "$.data"),
        (wire(time=2**53 + 1), "$.time"),
        (wire(data={1: 2}), "$.data"),
        (wire(data=()), "$.data"),
    ],
)
def test_what_json_cannot_hold_is_refused_with_its_path(event: dict[str, Any], path: str) -> None:
    with pytest.raises(JsonValueError) as caught:
        SessionEvent.from_dict(event)
    assert caught.value.path == path


def test_an_event_is_detached_from_what_it_was_read_from() -> None:
    source = wire(data={"rows": [1]}, type="x")
    event = SessionEvent.from_dict(source)
    source["data"]["rows"].append(2)
    source["seq"] = 5
    assert event.to_dict() == wire(data={"rows": [1]}, type="x")


def test_data_is_frozen_at_every_level() -> None:
    data = SessionEvent.from_dict(wire(type="x", data={"rows": [{"a": 1}]})).data
    assert [type(data), type(data["rows"]), type(data["rows"][0])] == [
        FrozenDict,
        FrozenList,
        FrozenDict,
    ]
    with pytest.raises(TypeError):
        data["rows"][0]["a"] = 2
    with pytest.raises(AttributeError):
        SessionEvent.from_dict(wire()).seq = 3  # type: ignore[misc]


@pytest.mark.parametrize("order", [1, -1])
def test_force_on_decoded_data_reaches_nothing_stored(order: int) -> None:
    event = SessionEvent.from_dict(dict(list(wire(type="x", data={"rows": [1]}).items())[::order]))
    before = event.to_json()
    dict.__setitem__(event.data, "rows", "changed")
    assert event.to_json() == before
    assert event.to_dict()["data"] == {"rows": [1]}
    assert snapshot_session_event(event).data == {"rows": [1]}


def test_to_dict_gives_a_plain_mutable_copy_each_time() -> None:
    event = SessionEvent.from_dict(
        wire(
            type="tool/x",
            seq=4,
            data={"rows": [1]},
            surfaceOp={"op": "replace", "start": 1, "end": 2},
        )
    )
    copied = event.to_dict()
    copied["data"]["rows"].append(2)
    copied["surfaceOp"]["start"] = 9
    assert event.to_dict()["data"] == {"rows": [1]}
    assert event.to_dict()["surfaceOp"] == {"op": "replace", "start": 1, "end": 2}
    assert wire_dicts([event, copied]) == [event.to_dict(), copied]


def test_events_are_equal_when_their_json_is() -> None:
    one = SessionEvent.from_dict(wire(type="x", data={"a": 1, "b": 2}))
    same = SessionEvent.from_dict({"data": {"b": 2, "a": 1.0}, "type": "x", "seq": 0, "time": 1000})
    assert one == same
    assert not one != same  # noqa: SIM202 - both operators are at stake
    for other in (
        wire(type="x", data={"a": 1, "b": 3}),
        wire(type="y", data={"a": 1, "b": 2}),
        wire(type="x", data={"a": 1, "b": 2}, seq=1),
        wire(type="x", data={"a": 1, "b": 2}, time=1),
        wire(type="x", data={"a": 1, "b": 2}, ignorable=True),
        wire(type="x", data={"a": True, "b": 2}),
    ):
        assert one != SessionEvent.from_dict(other)
        assert not one == SessionEvent.from_dict(other)  # noqa: SIM201
    assert one != one.to_dict()


def test_an_event_of_ours_is_adopted_as_it_is_and_copied_by_a_snapshot() -> None:
    event = SessionEvent.from_dict(wire())
    assert adopt_session_event(event) is event
    assert snapshot_session_event(event) is not event
    assert snapshot_session_event(event) == event
    assert copy.copy(event) == event


def test_only_surface_events_hold_a_message() -> None:
    message = user_message("hi")
    event = SessionEvent.from_dict(wire(type="user/message", data=message, surfaceOp="append"))
    assert (event.message, type(event.message), event.message.text) == (message, Message, "hi")
    with pytest.raises(EventError) as caught:
        _ = SessionEvent.from_dict(wire()).message
    assert caught.value.code == "NO_MESSAGE"


def test_a_typed_view_fits_or_is_refused() -> None:
    class Turn(msgspec.Struct):
        turn: int

    assert SessionEvent.from_dict(wire()).as_(Turn) == Turn(1)
    with pytest.raises(EventError) as caught:
        SessionEvent.from_dict(wire(data={"turn": "one"})).as_(Turn)
    assert (caught.value.code, caught.value.seq) == ("INVALID_PAYLOAD", 0)


def test_a_hundred_thousand_levels_of_data_pass_through_an_event() -> None:
    value: Any = None
    for level in range(DEPTH):
        value = [value] if level % 2 else {"a": value}
    event = SessionEvent.from_dict(wire(type="x", data=value))
    line = event.to_json()
    assert json_equal(event.data, value)
    assert event_from_line(line).to_json() == line


@pytest.mark.parametrize("op", ["append", None, 5, [], {"op": "replace"}])
def test_the_surface_judges_surface_keys_not_the_envelope(op: Any) -> None:
    """`from_dict` knows no log to place the event in; its keys survive for the one that does."""
    assert SessionEvent.from_dict(wire(surfaceOp=op)).to_dict() == wire(surfaceOp=op)
