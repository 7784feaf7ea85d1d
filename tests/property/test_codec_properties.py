"""Packing never changes what is read back; what is written reads back as the same events."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from turnlog.codec import decode_storage_record, pack_chunk_runs
from turnlog.codec.chunk_rows import pack_events
from turnlog.codec.frames import compress_frame, decompress_torn, scan_frames
from turnlog.codec.reader import LogReader
from turnlog.codec.record import encode_batch
from turnlog.errors import CorruptLogError
from turnlog.events import SessionEvent
from turnlog.lossless import canonicalize, json_equal, thaw
from turnlog.testing.builders import EventBuilder

SAFE = 2**53 - 1

texts = st.text(st.characters(codec=None), max_size=5)
numbers = st.sampled_from([0, 1, 2, 1.5, -1, 2**60, 1e21])
odd: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
few = st.sampled_from([1, 1, 1, 1, 2, 1.5, True, "1", None])
times = st.integers(-5, 5) | st.sampled_from([SAFE, -SAFE, SAFE + 1, 0.5, None])


@st.composite
def deltas(draw: st.DrawFn) -> dict[str, Any]:
    """A chunk event: mostly a delta that may join a run, sometimes with something wrong."""
    kind = draw(st.sampled_from(["text-delta", "reasoning-delta", "tool-call-delta", "usage"]))
    chunk: dict[str, Any] = {"type": kind, "index": draw(few)}
    if kind == "tool-call-delta":
        chunk["id"] = draw(st.sampled_from(["a", "a", "a", "b", "", 1]))
        if draw(st.booleans()):
            chunk["name"] = draw(st.sampled_from(["n", "n", "m", "", None]))
        chunk["argumentsDelta"] = draw(texts)
    else:
        chunk["text"] = draw(texts)
    data = {"turn": draw(few), "step": draw(few), "chunk": chunk}
    wire: dict[str, Any] = {"type": "assistant/chunk", "seq": 0, "time": draw(times), "data": data}
    if draw(st.integers(0, 9)) == 0:
        target: dict[str, Any] = draw(st.sampled_from([wire, data, chunk]))
        target[draw(st.sampled_from(["extra", "ignorable", "surfaceOp", "type"]))] = draw(odd)
    return wire


@st.composite
def batches(draw: st.DrawFn) -> list[Any]:
    """Neighbours that are often alike, so that runs form and end."""
    wires: list[Any] = []
    for wire in draw(st.lists(deltas(), max_size=6)):
        wires += [copy.deepcopy(wire) for _ in range(draw(st.integers(1, 5)))]
    if draw(st.booleans()):
        wires.insert(draw(st.integers(0, len(wires))), draw(odd))
    seq = draw(st.sampled_from([0, 5, SAFE - 3]))
    for number, wire in enumerate(wires):
        if isinstance(wire, dict):
            # SAFE + 1 is no seq but still an exact number.
            step = draw(st.sampled_from([0, 0, 0, 0, 0, 1]))
            wire["seq"] = min(seq + number + step, SAFE + 1)
    return wires


def is_row_tag(value: Any) -> bool:
    return isinstance(value, dict) and str(value.get("type", "")).endswith("-chunks")


@given(batches())
def test_unpacking_undoes_packing_for_anything(wires: list[Any]) -> None:
    records = pack_chunk_runs(wires)
    back = [thaw(event) for record in records for event in decode_storage_record(record)]
    assert json_equal(back, canonicalize(wires)[1])
    assert len(records) <= len(wires)


@given(batches())
def test_no_run_is_left_unpacked_and_no_row_is_short(wires: list[Any]) -> None:
    records = pack_chunk_runs(wires)
    for record in records:
        if is_row_tag(record):
            assert len(record["data"].get("texts", record["data"].get("args"))) >= 3
    assert (
        pack_chunk_runs(
            [event for record in records for event in map(thaw, decode_storage_record(record))]
        )
        == records
    )


@given(batches())
def test_packing_events_and_packing_dicts_agree(wires: list[Any]) -> None:
    events = []
    for wire in wires:
        try:
            events.append(SessionEvent.from_dict(wire))
        except Exception:  # noqa: BLE001 - what is no event is for the dict form alone
            return
    lines = b"".join(record.to_json() + b"\n" for record in pack_events(events))
    dicts = pack_chunk_runs([event.to_dict() for event in events])
    assert lines == b"".join(canonicalize(record)[0] + b"\n" for record in dicts)


@st.composite
def logs(draw: st.DrawFn) -> list[SessionEvent]:
    """A log that any storage takes: turns, chunks of all kinds, odd payloads, ignorable strangers."""
    builder = EventBuilder()
    for _ in range(draw(st.integers(0, 4))):
        builder.start_turn().start_step().user(draw(texts))
        for _ in range(draw(st.integers(0, 3))):
            kind = draw(st.sampled_from(["text-delta", "reasoning-delta", "call"]))
            parts = draw(st.lists(texts, max_size=6))
            if kind == "call":
                builder.call_chunks(parts, id=draw(texts), name=draw(st.none() | texts))
            else:
                builder.chunks(parts, kind, index=draw(st.integers(0, 2)))
            if draw(st.booleans()):
                builder.add("future/kind", draw(odd), ignorable=True, time=draw(st.integers(-9, 9)))
            if draw(st.booleans()):
                builder.add("hook/result", draw(odd))
        builder.assistant(draw(texts)).end_step().end_turn()
    return builder.events


@given(logs(), st.booleans(), st.data())
def test_what_is_written_reads_back(
    events: list[SessionEvent], pack: bool, data: st.DataObject
) -> None:
    cut = data.draw(st.integers(0, len(events)))
    text = encode_batch(events[:cut], pack=pack) + encode_batch(events[cut:], pack=pack)
    reader = LogReader("s1")
    reader.feed(text)
    reader.finish()
    assert reader.fault is None
    assert reader.good_offset == len(text)
    log = reader.take_log()
    lines = [event.to_json() for event in events]
    assert [event.to_json() for event in log.view()] == lines
    assert [log[seq].to_json() for seq in range(len(log))] == lines
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, len(events))] * 2)))
    assert [event.to_json() for event in log.view()[start:stop]] == lines[start:stop]
    assert encode_batch(log.view(), pack=False) == encode_batch(events, pack=False)


@given(logs(), st.integers(0, 10**6))
def test_a_text_cut_anywhere_reads_as_a_prefix(events: list[SessionEvent], at: int) -> None:
    text = encode_batch(events)
    cut = at % (len(text) + 1)
    end = text.rfind(b"\n", 0, cut) + 1
    reader = LogReader("s1")
    reader.feed(text[:end])
    reader.finish(text[end:cut])
    assert reader.good_offset == end
    found = list(reader.take_log().view())
    assert found == events[: len(found)]


@given(st.lists(st.binary(max_size=300), max_size=5), st.integers(0, 10**6))
def test_frames_cut_anywhere_give_whole_frames_and_a_prefix(parts: list[bytes], at: int) -> None:
    data = b"".join(map(compress_frame, parts))
    cut = at % (len(data) + 1)
    frames = scan_frames(data[:cut])
    assert (frames.torn_start is None) == (not cut or cut in frames.ends)
    if frames.torn_start is not None:
        assert parts[len(frames.ends)].startswith(decompress_torn(data[frames.torn_start : cut]))


@given(st.binary(max_size=60))
def test_any_bytes_are_scanned_or_refused(data: bytes) -> None:
    for prefix in (b"", b"\x28\xb5\x2f\xfd"):
        try:
            frames = scan_frames(prefix + data)
        except CorruptLogError:
            continue
        assert all(end <= len(prefix + data) for end in frames.ends)
