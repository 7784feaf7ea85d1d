"""What every storage must do, as plain functions: run each of `BEHAVIOURS` against a storage of your own.

Each takes an opener: a function that opens the same medium at every call, empty at the first (a storage that
lives in its object returns that one). A behaviour that does not hold raises AssertionError. The contract they
test is the docstrings of `turnlog.engine.protocol.Storage`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any

from turnlog.engine.protocol import Storage, StoredLog
from turnlog.errors import (
    ConflictError,
    EventError,
    SessionExistsError,
    SessionNotFoundError,
    StorageError,
)
from turnlog.events import SessionEvent
from turnlog.lossless import canonicalize
from turnlog.testing.builders import EventBuilder, header_of, odd_events, open_events, talk_events

Opener = Callable[[], Storage]
"""Opens the medium under test."""

Behaviour = Callable[[Opener], None]
"""One thing that a storage must do."""

ODD_IDS = (
    "../../etc/x",
    "/tmp/victim",
    "..",
    ".",
    "a/b",
    "a\\b",
    "*",
    "s1\x00x",
    "CON",
    "é",
    "e\u0301",
    "s1 ",
    ".hidden",
    "s1.jsonl",
    "s1.jsonl.zstd",
    "\ud800",
    "~0041",
    "A",
)
"""Session ids that are hard as file names; each is an id of its own."""


def _lines(events: Iterable[SessionEvent]) -> list[bytes]:
    return [event.to_json() for event in events]


def _texts(wires: Iterable[Any]) -> list[bytes]:
    """The same of wire dicts; as texts, because some are nested too deep for `==`."""
    return [canonicalize(wire)[0] for wire in wires]


def _stored(storage: Storage, id: str = "s1") -> list[bytes]:
    return _lines(storage.read_from(id, 0))


def _all(stored: StoredLog) -> list[bytes]:
    return _lines(stored.log.view())


def _raises(kinds: type[Exception] | tuple[type[Exception], ...], call: Callable[[], Any]) -> None:
    try:
        call()
    except kinds:
        return
    raise AssertionError(f"{call} did not raise {kinds}")


def _code_of(call: Callable[[], Any]) -> str | None:
    """The code of the StorageError that the call raises; None when it raises nothing."""
    try:
        call()
    except StorageError as error:
        return error.code
    return None


def absent_sessions_are_not_found(open_storage: Opener) -> None:
    """01: every read of an unknown id says so, and nothing is listed."""
    storage = open_storage()
    assert storage.list() == []
    reads: list[Callable[[str], Any]] = [
        storage.inspect,
        storage.load,
        storage.salvage,
        storage.read_raw,
        lambda name: storage.read_from(name, 0),
    ]
    for read in reads:
        _raises(SessionNotFoundError, lambda read=read: read("nobody"))  # type: ignore[misc]
    assert storage.revision("nobody") is None
    assert storage.location("nobody") is None


def empty_batches_store_nothing(open_storage: Opener) -> None:
    """02: a session without events is not stored, and an empty batch changes no stored one."""
    storage = open_storage()
    storage.append(header_of(), [])
    assert storage.list() == []
    assert storage.revision("s1") is None
    storage.append(header_of(), talk_events())
    before = storage.revision("s1")
    storage.append(header_of(), [])
    assert storage.revision("s1") == before


def events_come_back_byte_for_byte(open_storage: Opener) -> None:
    """03: every event, however odd, in one batch or in many."""
    events = odd_events()
    open_storage().append(header_of("one"), events)
    storage = open_storage()
    for event in events:
        storage.append(header_of("many"), [event])
    for name in ("one", "many"):
        assert _stored(open_storage(), name) == _lines(events)
        assert _all(open_storage().inspect(name)) == _lines(events)
        wires = [event.to_dict() for event in open_storage().read_from(name, 0)]
        assert _texts(wires) == _lines(events)


def headers_come_back_whole(open_storage: Opener) -> None:
    """04: every field, keys of other writers too; `delegationDepth` counts as 0 where it is absent."""
    full = header_of(
        "full",
        cwd="/w/é b",
        parentSession="p/1",
        seedLength=0,
        origin="subagent",
        delegationDepth=2,
        agentPreset="x",
        theirs={"b": 1, "a": [None]},
    )
    storage = open_storage()
    for header in (full, header_of("bare")):
        storage.append(header, talk_events())
        read = open_storage().inspect(header.id).header
        assert {"delegationDepth": 0, **read.to_dict()} == {
            "delegationDepth": 0,
            **header.to_dict(),
        }
    found = {entry.header.id: entry for entry in open_storage().list() if entry.header is not None}
    assert found["full"].header == full
    assert all(entry.damage is None and entry.code == "" for entry in found.values())


def batches_follow_each_other(open_storage: Opener) -> None:
    """05: in one storage object and over several."""
    events = talk_events(4)
    storage = open_storage()
    storage.append(header_of(), events[:5])
    storage.append(header_of(), events[5:6])
    open_storage().append(header_of(), events[6:20])
    storage = open_storage()
    storage.load("s1", close_turn=False)
    storage.append(header_of(), events[20:])
    assert _stored(open_storage()) == _lines(events)


def wrong_seqs_are_refused(open_storage: Opener) -> None:
    """06: stored seqs, a gap, a gap inside the batch, a first batch that does not start at 0."""
    events = talk_events(2)
    storage = open_storage()
    _raises(ConflictError, lambda: storage.append(header_of(), events[1:]))
    assert storage.list() == []
    storage.append(header_of(), events[:5])
    before = storage.revision("s1")
    for wrong in (events[4:], events[6:], [events[5], events[7]], events[3:5]):
        _raises(ConflictError, lambda wrong=wrong: storage.append(header_of(), wrong))  # type: ignore[misc]
    assert storage.revision("s1") == before
    storage.append(header_of(), events[5:])
    assert _stored(storage) == _lines(events)


def unknown_required_types_are_refused(open_storage: Opener) -> None:
    """07: the whole batch; a type that is marked ignorable is kept as it is."""
    storage = open_storage()
    events = EventBuilder().talk().add("nobody/knows", {"x": 1}).events
    _raises(EventError, lambda: storage.append(header_of(), events))
    assert storage.list() == []
    storage.append(header_of(), events[:-1])
    _raises(EventError, lambda: storage.append(header_of(), events[-1:]))
    ignorable = SessionEvent.from_dict({**events[-1].to_dict(), "ignorable": True})
    storage.append(header_of(), [ignorable])
    assert _stored(open_storage()) == _lines([*events[:-1], ignorable])


def inspect_closes_an_open_turn_in_memory_only(open_storage: Opener) -> None:
    """08: the closers are the last events of the log and are not stored."""
    events = open_events()
    open_storage().append(header_of(), events)
    storage = open_storage()
    before = storage.revision("s1")
    first, again = storage.inspect("s1"), storage.inspect("s1")
    types = [event.type for event in first.closers]
    assert types == ["tool/result", "tool/result", "step/end", "turn/end"]
    assert _all(first) == _lines([*events, *first.closers]) == _all(again)
    assert first.state.open_turn is None
    assert list(first.surface.nodes[-2:]) == [len(events), len(events) + 1]
    assert first.revision == before == storage.revision("s1")
    assert _stored(storage) == _lines(events)
    as_stored = storage.inspect("s1", close_turn=False)
    assert _all(as_stored) == _lines(events)
    assert as_stored.state.open_turn == 2
    assert not as_stored.closers


def load_closes_an_open_turn_once(open_storage: Opener) -> None:
    """09: durably, with the events that `inspect` shows; then appends go on behind them."""
    events = open_events()
    open_storage().append(header_of(), events)
    storage = open_storage()
    before, shown = storage.revision("s1"), _all(storage.inspect("s1"))
    loaded = storage.load("s1")
    assert _all(loaded) == shown == _stored(storage)
    assert not loaded.closers
    after = storage.revision("s1")
    assert before != after == loaded.revision
    assert _all(storage.load("s1")) == shown
    assert storage.revision("s1") == after
    more = SessionEvent("session/end-seed", len(shown), 1, b"{}")
    storage.append(header_of(), [more])
    assert _stored(open_storage()) == [*shown, more.to_json()]


def load_can_leave_a_turn_open(open_storage: Opener) -> None:
    """10: with `close_turn=False` nothing is added, and the turn goes on."""
    events = open_events()
    open_storage().append(header_of(), events)
    storage = open_storage()
    before = storage.revision("s1")
    assert _all(storage.load("s1", close_turn=False)) == _lines(events)
    assert storage.revision("s1") == before
    more = SessionEvent("step/end", len(events), 1, b'{"turn":2,"step":1}')
    storage.append(header_of(), [more])
    assert _stored(storage) == _lines([*events, more])


def loading_a_balanced_log_changes_nothing(open_storage: Opener) -> None:
    """11: not even its revision."""
    storage = open_storage()
    storage.append(header_of(), talk_events())
    before = storage.revision("s1")
    assert _all(storage.load("s1")) == _lines(talk_events())
    assert storage.revision("s1") == before


def revisions_tell_changes(open_storage: Opener) -> None:
    """12: another one after every append, the same one without."""
    events = talk_events(3)
    storage = open_storage()
    seen = set()
    for number, event in enumerate(events):
        storage.append(header_of(), [event])
        revision = storage.revision("s1")
        assert revision == open_storage().revision("s1")
        seen.add(revision)
        assert len(seen) == number + 1


def reading_can_start_anywhere(open_storage: Opener) -> None:
    """13: also inside a packed run, behind the end, and with the turn left open."""
    events = open_events()
    storage = open_storage()
    storage.append(header_of(), events)
    for seq in range(len(events) + 3):
        assert _lines(storage.read_from("s1", seq)) == _lines(events[seq:])


def salvage_of_a_sound_log_is_whole(open_storage: Opener) -> None:
    """14: all events, the header, no damage."""
    storage = open_storage()
    storage.append(header_of(), odd_events())
    salvage = storage.salvage("s1")
    assert _texts(salvage.events) == _lines(odd_events())
    assert not salvage.damage
    assert salvage.header is not None
    assert salvage.header["id"] == "s1"


def every_session_is_listed_once(open_storage: Opener) -> None:
    """15: of several directories and of none."""
    storage = open_storage()
    wanted = {f"s{number}" for number in range(6)}
    for name in sorted(wanted):
        fields = {"cwd": f"/w/{name}"} if name > "s2" else {}
        storage.append(header_of(name, **fields), talk_events(1))
    storage.append(header_of("s0"), talk_events(2)[len(talk_events(1)) :])
    found = [entry.header.id for entry in open_storage().list() if entry.header is not None]
    assert sorted(found) == sorted(wanted)
    assert len(open_storage().list()) == len(wanted)


def odd_ids_are_sessions_of_their_own(open_storage: Opener) -> None:
    """16: each of `ODD_IDS` is stored, listed and found under its own name."""
    storage = open_storage()
    for number, name in enumerate(ODD_IDS):
        storage.append(header_of(name), EventBuilder().talk([str(number)] * 3).events)
    for number, name in enumerate(ODD_IDS):
        stored = open_storage().inspect(name)
        assert stored.header.id == name
        assert stored.log[3].data["chunk"]["text"] == str(number)
    found = [entry.header.id for entry in open_storage().list() if entry.header is not None]
    assert sorted(found) == sorted(ODD_IDS)


def ids_that_cannot_be_stored_are_refused_by_name(open_storage: Opener) -> None:
    """17: a long id is either stored or refused with one error; never mixed up with another one."""
    storage = open_storage()
    long, longer = "x" * 300, "x" * 301
    refused = _code_of(lambda: storage.append(header_of(long), talk_events()))
    if refused is None:
        assert _stored(storage, long) == _lines(talk_events())
        _raises(SessionNotFoundError, lambda: storage.inspect(longer))
    else:
        assert refused == _code_of(lambda: storage.inspect(long)) == "INVALID_ID"
        assert storage.list() == []


def taken_ids_are_refused(open_storage: Opener) -> None:
    """18: a new session under a stored id, from this object or another, with the same or another place."""
    open_storage().append(header_of(), talk_events())
    for header in (header_of(), header_of("s1", cwd="/elsewhere")):
        _raises(
            (ConflictError, SessionExistsError),
            lambda header=header: open_storage().append(header, open_events()),  # type: ignore[misc]
        )
    assert _stored(open_storage()) == _lines(talk_events())
    assert len(open_storage().list()) == 1


def stale_writers_are_refused(open_storage: Opener) -> None:
    """19: of two that know the same end, the second gets a conflict and changes nothing."""
    events = talk_events(2)
    one, other = open_storage(), open_storage()
    one.append(header_of(), events[:5])
    other.load("s1", close_turn=False)
    other.append(header_of(), events[5:8])
    _raises(ConflictError, lambda: one.append(header_of(), events[5:6]))
    assert _stored(open_storage()) == _lines(events[:8])
    one.load("s1", close_turn=False)
    one.append(header_of(), events[8:])
    assert _stored(open_storage()) == _lines(events)


def a_read_log_does_not_grow(open_storage: Opener) -> None:
    """20: what was read is of one moment."""
    events = talk_events(2)
    storage = open_storage()
    storage.append(header_of(), events[:5])
    log = storage.inspect("s1", close_turn=False).log
    tail = storage.read_from("s1", 2)
    storage.append(header_of(), events[5:])
    assert _lines(log.view()) == _lines(events[:5])
    assert _lines(tail) == _lines(events[2:5])


def replaced_surfaces_come_back(open_storage: Opener) -> None:
    """21: nested replaces, a rewritten result, and the closers' own nodes."""
    builder = EventBuilder().work().talk()
    result = next(wire["seq"] for wire in builder.wires if wire["type"] == "tool/result")
    data = builder.wires[result]["data"]
    block = {**data["message"]["content"][0], "content": [{"type": "text", "text": "cut"}]}
    rewritten = {**data, "message": {**data["message"], "content": [block]}}
    op = {"op": "replace", "start": result, "end": result}
    builder.add("tool/result", rewritten, surfaceOp=op, sourceEventSeqs=[result])
    last = builder.seq
    nodes = [wire["seq"] for wire in builder.wires[:result] if "surfaceOp" in wire]
    op = {"op": "replace", "start": nodes[0], "end": nodes[-1]}
    builder.user("summary", surfaceOp=op, sourceEventSeqs=nodes)
    storage = open_storage()
    storage.append(header_of(), builder.events)
    stored = open_storage().inspect("s1")
    assert list(stored.surface.nodes[:2]) == [builder.seq - 1, last - 1]
    assert stored.surface.replace_generation == 2
    messages = stored.to_session().derive_messages()
    assert messages[0].text == "summary"
    assert messages[1]["content"][0]["content"][0]["text"] == "cut"


def sessions_are_written_in_parallel(open_storage: Opener) -> None:
    """22: from several threads through one object, each session whole."""
    storage = open_storage()
    events = talk_events(2)
    failures: list[BaseException] = []

    def write(id: str) -> None:
        try:
            for event in events:
                storage.append(header_of(id), [event])
        except BaseException as failure:
            failures.append(failure)
            raise

    threads = [threading.Thread(target=write, args=(f"s{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    for number in range(4):
        assert _stored(open_storage(), f"s{number}") == _lines(events)


def closing_twice_is_fine(open_storage: Opener) -> None:
    """23: the second time does nothing."""
    storage = open_storage()
    storage.append(header_of(), talk_events())
    storage.close()
    storage.close()


def raw_text_is_the_log(open_storage: Opener) -> None:
    """24: a header line and records, or a storage that says that it has no text."""
    storage = open_storage()
    storage.append(header_of(), open_events())
    if _code_of(lambda: storage.read_raw("s1")) == "NO_RAW_LOG":
        return
    raw = storage.read_raw("s1")
    lines = raw.content.split(b"\n")
    assert raw.header.id == "s1"
    assert lines[0].startswith(b'{"type":"session","version":0,"id":"s1"')
    assert lines[-1] == b""
    assert len(lines) <= len(open_events()) + 2


BEHAVIOURS: tuple[Behaviour, ...] = (
    absent_sessions_are_not_found,
    empty_batches_store_nothing,
    events_come_back_byte_for_byte,
    headers_come_back_whole,
    batches_follow_each_other,
    wrong_seqs_are_refused,
    unknown_required_types_are_refused,
    inspect_closes_an_open_turn_in_memory_only,
    load_closes_an_open_turn_once,
    load_can_leave_a_turn_open,
    loading_a_balanced_log_changes_nothing,
    revisions_tell_changes,
    reading_can_start_anywhere,
    salvage_of_a_sound_log_is_whole,
    every_session_is_listed_once,
    odd_ids_are_sessions_of_their_own,
    ids_that_cannot_be_stored_are_refused_by_name,
    taken_ids_are_refused,
    stale_writers_are_refused,
    a_read_log_does_not_grow,
    replaced_surfaces_come_back,
    sessions_are_written_in_parallel,
    closing_twice_is_fine,
    raw_text_is_the_log,
)
"""All of them, in the order of their numbers."""
