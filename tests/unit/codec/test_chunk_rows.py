"""Chunk rows (storage.md, 1.4): the reference's answers, and the rules that no vector pins."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from turnlog.codec import decode_storage_record, pack_chunk_runs
from turnlog.codec.chunk_rows import ChunkRow, pack_events, parse_row
from turnlog.errors import CorruptLogError
from turnlog.events import SessionEvent
from turnlog.lossless import canonicalize
from turnlog.testing.builders import EventBuilder

SAFE = 2**53 - 1


def dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def delta(seq: int, text: Any = "x", **changes: Any) -> dict[str, Any]:
    """A text delta; `changes` go to the part of the event that has the key."""
    data = {"turn": 1, "step": 1}
    chunk = {"type": "text-delta", "index": 0, "text": text}
    wire: dict[str, Any] = {"type": "assistant/chunk", "seq": seq, "time": 100 + seq}
    for key, value in changes.items():
        (wire if key in wire else data if key in data else chunk)[key] = value
    return {**wire, "data": {**data, "chunk": chunk}}


def call(seq: int, text: str = "x", **changes: Any) -> dict[str, Any]:
    """A tool-call delta of `c1`, without a name unless given."""
    wire = delta(seq, **{key: changes.pop(key) for key in ("turn", "step") if key in changes})
    chunk = {"type": "tool-call-delta", "index": 0, "id": "c1", **changes, "argumentsDelta": text}
    wire["data"]["chunk"] = chunk
    return wire


def tags(events: list[dict[str, Any]]) -> list[str]:
    return [record["type"] for record in pack_chunk_runs(events)]


def row(**changes: Any) -> dict[str, Any]:
    data = {"turn": 1, "step": 1, "index": 0, "dt": [1, -2], "texts": ["a", "b", "c"]}
    record: dict[str, Any] = {"type": "text-chunks", "seq0": 3, "time0": 100, "data": data}
    for key, value in changes.items():
        (record if key in record else data)[key] = value
    return record


# -- the vectors ---------------------------------------------------------------------------------------


def test_packing_gives_the_references_records(vectors: Callable[[str], Any]) -> None:
    for case in vectors("chunk_rows")["pack"]:
        records = pack_chunk_runs(case["events"])
        assert dumps(records) == dumps(case["records"])


def test_packing_events_gives_the_references_lines(vectors: Callable[[str], Any]) -> None:
    for case in vectors("chunk_rows")["pack"]:
        try:
            events = [SessionEvent.from_dict(wire) for wire in case["events"]]
        except Exception:  # noqa: BLE001 - some are no events; packing dicts takes those as well
            continue
        lines = [record.to_json().decode() for record in pack_events(events)]
        assert lines == [dumps(record) for record in case["records"]]


def test_decoding_gives_the_references_events(vectors: Callable[[str], Any]) -> None:
    for case in vectors("chunk_rows")["decode"]:
        if "error" in case:
            with pytest.raises(CorruptLogError, match="malformed") as caught:
                decode_storage_record(case["record"])
            assert caught.value.code == "MALFORMED_ROW"
        else:
            assert dumps(decode_storage_record(case["record"])) == dumps(case["events"])


def test_packed_vectors_unpack_to_their_events(vectors: Callable[[str], Any]) -> None:
    for case in vectors("chunk_rows")["pack"]:
        events = [event for record in case["records"] for event in decode_storage_record(record)]
        assert dumps(events) == dumps(case["events"])


# -- where a run ends ----------------------------------------------------------------------------------


def test_three_members_make_a_row_and_two_do_not() -> None:
    assert tags([delta(0), delta(1)]) == ["assistant/chunk"] * 2
    assert tags([delta(0), delta(1), delta(2)]) == ["text-chunks"]


@pytest.mark.parametrize("key", ["turn", "step", "index"])
def test_another_place_ends_a_run(key: str) -> None:
    events = [delta(seq) for seq in range(3)] + [delta(seq, **{key: 2}) for seq in range(3, 6)]
    assert tags(events) == ["text-chunks"] * 2


@pytest.mark.parametrize("key", ["turn", "step", "index", "id", "name"])
def test_another_place_or_call_ends_a_run_of_arguments(key: str) -> None:
    value: Any = "c2" if key in ("id", "name") else 2
    events = [call(seq, name="bash") for seq in range(3)]
    events += [call(seq, **{"name": "bash", key: value}) for seq in range(3, 6)]
    assert tags(events) == ["tool-call-chunks"] * 2


def test_presence_of_a_name_ends_a_run() -> None:
    named, bare = [call(seq, name="") for seq in range(3)], [call(seq) for seq in range(3, 6)]
    records = pack_chunk_runs(named + bare)
    assert [list(record["data"]) for record in records] == [
        ["turn", "step", "index", "dt", "id", "name", "args"],
        ["turn", "step", "index", "dt", "id", "args"],
    ]
    assert tags([call(0), call(1, name="bash"), call(2)]) == ["assistant/chunk"] * 3


def test_another_kind_ends_a_run() -> None:
    reasoning = {"type": "reasoning-delta"}
    events = [delta(seq) for seq in range(3)]
    for seq in range(3, 6):
        events.append(delta(seq))
        events[-1]["data"]["chunk"] |= reasoning
    assert tags(events) == ["text-chunks", "reasoning-chunks"]


def test_a_gap_in_seq_ends_a_run() -> None:
    assert tags([delta(seq) for seq in (0, 1, 2, 4, 5, 6)]) == ["text-chunks"] * 2
    assert tags([delta(seq) for seq in (2, 1, 0)]) == ["assistant/chunk"] * 3


def test_a_clock_that_steps_back_stays_in_the_run() -> None:
    (record,) = pack_chunk_runs([delta(0, time=50), delta(1, time=10), delta(2, time=10)])
    assert record["time0"] == 50
    assert record["data"]["dt"] == [-40, 0]


def test_a_time_difference_that_is_no_safe_integer_ends_a_run() -> None:
    events = [delta(0, time=-SAFE), delta(1, time=1), delta(2, time=SAFE), delta(3, time=-1)]
    assert tags(events) == ["assistant/chunk"] * 4
    assert tags([delta(0, time=-SAFE), delta(1, time=0), delta(2, time=SAFE)]) == ["text-chunks"]


@pytest.mark.parametrize("key", ["turn", "step", "index"])
def test_a_bool_is_no_number(key: str) -> None:
    assert tags([delta(seq, **{key: True}) for seq in range(3)]) == ["assistant/chunk"] * 3
    mixed = [delta(0), delta(1, **{key: True}), delta(2)]
    assert dumps(pack_chunk_runs(mixed)) == dumps(mixed)


@pytest.mark.parametrize("change", [{"ignorable": True}, {"surfaceOp": None}, {"extra": 1}])
def test_an_event_with_a_further_key_is_no_member(change: dict[str, Any]) -> None:
    events = [delta(0), {**delta(1), **change}, delta(2)]
    assert dumps(pack_chunk_runs(events)) == dumps(events)


@pytest.mark.parametrize("key", ["surfaceOp", "sourceEventSeqs"])
@pytest.mark.parametrize("value", [None, "append", []])
def test_surface_keys_on_a_chunk_are_not_packed_away(key: str, value: Any) -> None:
    wires = [{**delta(seq), key: value} for seq in range(3)]
    if key == "sourceEventSeqs" and value == "append":
        return
    records = list(pack_events([SessionEvent.from_dict(wire) for wire in wires]))
    assert [record.to_dict() for record in records] == wires


def test_a_batch_knows_nothing_of_the_one_before() -> None:
    assert tags([delta(0), delta(1)]) + tags([delta(2)]) == ["assistant/chunk"] * 3


def test_token_boundaries_are_kept() -> None:
    texts = ["", "a", "", "\ud83d", "\ude00", ""]
    (record,) = pack_chunk_runs([delta(seq, text) for seq, text in enumerate(texts)])
    assert record["data"]["texts"] == texts
    assert [event["data"]["chunk"]["text"] for event in decode_storage_record(record)] == texts


def test_integral_floats_are_the_integers_that_they_equal() -> None:
    events = [delta(0, turn=1.0), delta(1, turn=1), delta(2, turn=1.0)]
    assert pack_chunk_runs(events)[0]["data"]["turn"] == 1
    assert tags([delta(seq, turn=1.5) for seq in range(3)]) == ["text-chunks"]


@pytest.mark.parametrize("kind", ["text", "call"])
def test_rows_are_written_in_the_references_key_order(kind: str) -> None:
    events = [delta(seq) if kind == "text" else call(seq, name="n") for seq in range(3)]
    inner = '"dt":[1,1],"texts"' if kind == "text" else '"dt":[1,1],"id":"c1","name":"n","args"'
    tag = "text-chunks" if kind == "text" else "tool-call-chunks"
    start = f'{{"type":"{tag}","seq0":0,"time0":100,"data":{{"turn":1,"step":1,"index":0,'
    (record,) = pack_events([SessionEvent.from_dict(wire) for wire in events])
    assert record.to_json().decode() == f'{start}{inner}:["x","x","x"]}}}}'


# -- decoding ------------------------------------------------------------------------------------------


def test_the_largest_seq_is_taken_and_one_more_is_not() -> None:
    assert decode_storage_record(row(seq0=SAFE - 2))[-1]["seq"] == SAFE
    with pytest.raises(CorruptLogError, match="seq"):
        decode_storage_record(row(seq0=SAFE - 1))
    tool = {"turn": 1, "step": 1, "index": 0, "dt": [1], "id": "c", "args": ["a", "b"]}
    with pytest.raises(CorruptLogError, match="seq"):
        decode_storage_record({"type": "tool-call-chunks", "seq0": SAFE, "time0": 1, "data": tool})


@pytest.mark.parametrize(
    "changes",
    [
        {"seq0": True},
        {"time0": True},
        {"turn": True},
        {"dt": [1, True]},
        {"dt": [SAFE, SAFE]},
        {"dt": [-SAFE, -SAFE]},
        {"dt": [SAFE + 1, -SAFE - 1]},
        {"dt": None},
        {"texts": [["a"], "b", "c"]},
        {"texts": {"a": 1}},
        {"seq0": None},
    ],
)
def test_malformed_rows_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(CorruptLogError) as caught:
        decode_storage_record(row(**changes))
    assert caught.value.code == "MALFORMED_ROW"


@pytest.mark.parametrize(
    "value", [None, 1, "x", [], {}, {"type": []}, {"type": {}}, {"type": None}]
)
def test_anything_else_passes_through_as_one_event(value: Any) -> None:
    assert decode_storage_record(value) == [value]


@pytest.mark.parametrize(
    "value", [{"a": float("nan")}, {"a": -0.0}, {"a": {1, 2}}, {"a": 2**53 + 1}]
)
def test_what_is_no_json_is_damage(value: Any) -> None:
    with pytest.raises(CorruptLogError, match="bad storage record"):
        decode_storage_record(value)


def test_decoded_events_are_frozen() -> None:
    event = decode_storage_record(row())[0]
    with pytest.raises(TypeError):
        event["data"]["turn"] = 2


def test_members_are_given_one_by_one_as_all_together() -> None:
    events = EventBuilder().start_turn().start_step().chunks().events[2:]
    (record,) = pack_events(events)
    assert isinstance(record, ChunkRow)
    assert len(record) == len(events)
    assert list(record.events()) == events
    assert [record.event(number) for number in range(len(record))] == events
    assert [event.to_json() for event in record.events()] == [event.to_json() for event in events]


def test_a_row_reads_back_from_its_own_text() -> None:
    record = parse_row(row())
    assert parse_row(json.loads(record.to_json())) == record
    assert canonicalize(record.to_dict())[0] == record.to_json()
