"""What every storage must do, as plain functions: run each of `BEHAVIOURS` against a storage of your own.

Each takes an opener: a function that opens the same medium at every call, empty at the first (a storage that
lives in its object returns that one). A behaviour that does not hold raises AssertionError. The contract they
test is the docstrings of `turnlog.engine.protocol.Storage`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from turnlog.clock import system_clock
from turnlog.engine.listing import Notes, Order, Page, Progress, SessionFilter
from turnlog.engine.protocol import Batch, Storage, StoredLog
from turnlog.errors import (
    ConflictError,
    EventError,
    SessionExistsError,
    SessionLockedError,
    SessionNotFoundError,
    StorageError,
)
from turnlog.events import SessionEvent
from turnlog.lossless import canonicalize
from turnlog.testing.builders import (
    START,
    EventBuilder,
    header_of,
    odd_events,
    open_events,
    talk_events,
)

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


def a_session_has_one_lease(open_storage: Opener) -> None:
    """25: exclusive, also for sessions that are not stored and for ids that are odd or long; free when released."""
    one, other = open_storage(), open_storage()
    for name in ("s1", "new", *ODD_IDS, "会" * 45):
        lease = one.acquire(name)
        refused = _code_of(lambda name=name: other.acquire(name))  # type: ignore[misc]
        assert refused == "SESSION_LOCKED"
        lease.release()
        lease.release()
        again = other.acquire(name)
        assert again.fence > lease.fence
        lease.release()  # an old lease frees nothing
        assert _code_of(lambda name=name: one.acquire(name)) == "SESSION_LOCKED"  # type: ignore[misc]
        again.release()
    assert one.list() == []


def a_lock_says_who_has_it(open_storage: Opener) -> None:
    """26: the process, the host, and since when."""
    lease = open_storage().acquire("s1")
    refusal: SessionLockedError | None = None
    try:
        open_storage().acquire("s1")
    except SessionLockedError as error:
        refusal = error
    lease.release()
    assert refusal is not None
    assert refusal.details["pid"] == os.getpid()
    assert refusal.details["host"] == socket.gethostname()
    assert abs(refusal.details["since"] - system_clock()) < 60_000


def reading_needs_no_lease(open_storage: Opener) -> None:
    """27: every read goes on beside a writer, and so do notes."""
    storage = open_storage()
    lease = storage.acquire("s1")
    storage.append(header_of(), talk_events(), lease.fence)
    other = open_storage()
    assert _all(other.inspect("s1")) == _stored(other) == _lines(talk_events())
    assert not other.salvage("s1").damage
    assert other.revision("s1") == storage.revision("s1")
    assert len(other.list()) == len(other.browse(SessionFilter()).sessions) == 1
    other.set_notes("s1", Notes(("a",)))
    storage.append(header_of(), _more(talk_events()), lease.fence)
    lease.release()


def _more(events: Sequence[SessionEvent], count: int = 1) -> list[SessionEvent]:
    """Events that go on where others end."""
    return [
        SessionEvent("session/end-seed", len(events) + number, START + 10**6 + number, b"{}")
        for number in range(count)
    ]


def an_outdated_fence_is_refused(open_storage: Opener) -> None:
    """28: a writer whose lease was taken over conflicts, even where its seq is the right one."""
    events = talk_events()
    storage = open_storage()
    old = storage.acquire("s1")
    storage.append(header_of(), events[:5], old.fence)
    old.release()
    new = storage.acquire("s1")
    storage.append(header_of(), events[5:6], new.fence)
    before = storage.revision("s1")
    _raises(ConflictError, lambda: storage.append(header_of(), events[6:7], old.fence))
    (error,) = storage.append_many([Batch(header_of(), events[6:7], old.fence)])
    assert isinstance(error, ConflictError)
    assert storage.revision("s1") == before
    storage.append(header_of(), events[6:], new.fence)
    assert _stored(open_storage()) == _lines(events)
    new.release()


def batches_stand_or_fall_alone(open_storage: Opener) -> None:
    """29: of many in one call, those that do not fit have their error and the others are stored."""
    events = talk_events()
    storage = open_storage()
    storage.append(header_of("old"), events[:5])
    unknown = EventBuilder().add("nobody/knows", {}).events
    results = storage.append_many(
        [
            Batch(header_of("new"), events),
            Batch(header_of("old"), events[4:]),
            Batch(header_of("gap"), events[1:]),
            Batch(header_of("empty"), []),
            Batch(header_of("unknown"), unknown),
            Batch(header_of("old"), events[5:]),
            Batch(header_of("new"), _more(events)),
        ]
    )
    assert [None if error is None else type(error) for error in results] == [
        None,
        ConflictError,
        ConflictError,
        None,
        EventError,
        None,
        None,
    ]
    assert list(storage.append_many([])) == []
    fresh = open_storage()
    assert _stored(fresh, "old") == _lines(events)
    assert _stored(fresh, "new") == _lines([*events, *_more(events)])
    assert {entry.header.id for entry in fresh.list() if entry.header} == {"old", "new"}


def notes_are_kept_beside_the_log(open_storage: Opener) -> None:
    """30: durable, replaced as a whole, no change of the log, and only for stored sessions."""
    storage = open_storage()
    _raises(SessionNotFoundError, lambda: storage.notes("s1"))
    _raises(SessionNotFoundError, lambda: storage.set_notes("s1", Notes()))
    storage.append(header_of(), talk_events())
    assert storage.notes("s1") == Notes()
    before = storage.revision("s1")
    odd = Notes(("b", "a", "\ud800", "\u2028", "x" * 1000, ""), archived=True)
    storage.set_notes("s1", odd)
    assert open_storage().notes("s1") == odd
    open_storage().set_notes("s1", Notes(("c",)))
    assert storage.notes("s1") == Notes(("c",))
    assert storage.revision("s1") == before
    assert _stored(storage) == _lines(talk_events())


def deleted_sessions_are_gone(open_storage: Opener) -> None:
    """31: with their notes; their neighbours stay, and the id is free for another session."""
    storage = open_storage()
    _raises(SessionNotFoundError, lambda: storage.delete("s1"))
    for name in ("s1", "s2"):
        storage.append(header_of(name), talk_events())
        storage.set_notes(name, Notes((name,)))
    before = storage.revision("s1")
    open_storage().delete("s1")
    for reader in (storage, open_storage()):
        _raises(SessionNotFoundError, lambda reader=reader: reader.inspect("s1"))  # type: ignore[misc]
        _raises(SessionNotFoundError, lambda reader=reader: reader.notes("s1"))  # type: ignore[misc]
        assert reader.revision("s1") is None
        assert [entry.header.id for entry in reader.list() if entry.header] == ["s2"]
        assert _ids(reader.browse(SessionFilter())) == ["s2"]
    _raises(SessionNotFoundError, lambda: storage.delete("s1"))
    # Not `storage`: an object that wrote the deleted log may refuse to go on until it loads again.
    fresh = open_storage()
    fresh.append(header_of(), open_events())
    assert _stored(open_storage()) == _lines(open_events())
    assert fresh.notes("s1") == Notes()
    assert fresh.revision("s1") != before


def shared_prefixes_are_whole_logs(open_storage: Opener) -> None:
    """32: a child of a shared prefix reads, grows, lists and survives its parent as a copy would."""
    events = talk_events(2)
    half = len(talk_events(1))
    storage = open_storage()
    storage.append(header_of("parent"), events[:half])
    storage.append(header_of("parent"), events[half:])
    known: dict[str, list[SessionEvent]] = {"parent": list(events)}

    def fork(source: str, name: str, length: int) -> None:
        prefix = known[source][:length]
        header = header_of(name, parentSession=source, seedLength=length)
        if not storage.share(header, source, Progress().advance(prefix)):
            storage.append(header, prefix)
        known[name] = prefix
        storage.append(header, _more(prefix))
        known[name] = [*prefix, *_more(prefix)]

    def check() -> None:
        fresh = open_storage()
        for name, wanted in known.items():
            loaded = _all(fresh.load(name, close_turn=False))
            assert _stored(fresh, name) == loaded == _lines(wanted), name
            assert not fresh.salvage(name).damage
        page = fresh.browse(SessionFilter())
        assert sorted(_ids(page)) == sorted(known)
        for info in page.sessions:
            assert info.progress == Progress().advance(known[info.header.id])

    fork("parent", "child", len(events))
    fork("parent", "half", half)
    fork("parent", "odd", half + 3)
    fork("child", "grandchild", len(events) + 1)
    fork("grandchild", "of the parent's", half)
    check()
    if storage.share(header_of("new"), "parent", Progress().advance(events)):
        storage.delete("new")
        again = Progress().advance(events)
        taken = _code_of(lambda: storage.share(header_of("half"), "parent", again))
        assert taken == "SESSION_ALREADY_EXISTS"
    for name in ("parent", "child", "half", "grandchild"):
        storage.delete(name)
        del known[name]
        check()


def _ids(page: Page) -> list[str]:
    return [info.header.id for info in page.sessions]


def _shelf(storage: Storage) -> None:
    """Seven sessions that differ in everything that a filter looks at."""
    for number in range(7):
        builder = EventBuilder().talk()
        if number % 2:
            builder.add("session/title", {"title": f"Straße {number}"})
            builder.add("session/title", {"title": f"Ärger {number}"})
        if number == 3:
            builder.start_turn()
        # Two of one age, and last events in another order than the sessions.
        builder.wires[-1]["time"] = START + 1000 * (number * 3 % 7)
        fields = {"cwd": f"/w/{number % 2}", "parentSession": "p"} if number > 4 else {}
        header = header_of(f"s{number}", createdAt=START + (number + 1) // 2, **fields)
        for event in builder.events:
            storage.append(header, [event])
    storage.set_notes("s1", Notes(("red", "blue")))
    storage.set_notes("s2", Notes(("red",), archived=True))


def filters_admit_what_they_say(open_storage: Opener) -> None:
    """33: each condition alone and together, on data that was written in many batches."""
    storage = open_storage()
    assert storage.browse(SessionFilter()) == Page([], None)
    _shelf(storage)
    every = {f"s{number}" for number in range(7)}
    cases: list[tuple[dict[str, Any], set[str]]] = [
        ({}, every - {"s2"}),
        ({"archived": None}, every),
        ({"archived": True}, {"s2"}),
        ({"cwd": "/w/1"}, {"s5"}),
        ({"cwd": "/w"}, set()),
        ({"parent": "p"}, {"s5", "s6"}),
        ({"tag": "red"}, {"s1"}),
        ({"tag": "re"}, set()),
        ({"title": "äRGER"}, {"s1", "s3", "s5"}),
        ({"title": "strasse"}, set()),
        ({"title": "%"}, set()),
        ({"open_turn": True}, {"s3"}),
        ({"open_turn": False, "title": "ä"}, {"s1", "s5"}),
        ({"created_from": START + 2}, {"s3", "s4", "s5", "s6"}),
        ({"created_from": START + 2, "created_until": START + 3}, {"s3", "s4"}),
        ({"active_from": START + 5000}, {"s4"}),
        ({"active_until": START + 1000, "archived": None}, {"s0"}),
        ({"created_until": 10**30, "active_from": -(10**30)}, every - {"s2"}),
        ({"created_from": 10**30}, set()),
    ]
    for reader in (storage, open_storage()):
        for fields, wanted in cases:
            page = reader.browse(SessionFilter(**fields))
            assert set(_ids(page)) == wanted, fields
            assert len(page.sessions) == len(wanted)
            assert page.next_cursor is None
    by_id = {info.header.id: info for info in storage.browse(SessionFilter()).sessions}
    assert by_id["s1"].progress.title == "Ärger 1"
    assert by_id["s1"].notes == Notes(("red", "blue"))
    assert by_id["s0"].progress.title is None
    assert by_id["s6"].progress.last_time == START + 4000


def pages_are_in_order_and_whole(open_storage: Opener) -> None:
    """34: newest first, then by id, in pages of any size, each session once."""
    storage = open_storage()
    _shelf(storage)
    wanted: dict[Order, list[str]] = {
        "created": ["s5", "s6", "s3", "s4", "s1", "s2", "s0"],
        "active": ["s2", "s4", "s6", "s1", "s3", "s5", "s0"],
    }
    for order, ids in wanted.items():
        for limit in (1, 2, 3, 7, 100):
            found: list[str] = []
            cursor = None
            while True:
                page = open_storage().browse(
                    SessionFilter(archived=None), order=order, cursor=cursor, limit=limit
                )
                assert len(page.sessions) == limit or page.next_cursor is None
                found += _ids(page)
                cursor = page.next_cursor
                if cursor is None:
                    break
            assert found == ids, (order, limit)


def cursors_hold_while_sessions_come_and_go(open_storage: Opener) -> None:
    """35: what stays is seen exactly once, also when the entry that a cursor names is deleted."""
    storage = open_storage()
    names = ["a", "b\ud800", "c", "d", "e", "f"]
    for number, name in enumerate(names):
        storage.append(header_of(name, createdAt=START - number), talk_events())
    first = storage.browse(SessionFilter(), limit=2)
    storage.delete("b\ud800")
    storage.delete("d")
    storage.append(header_of("new", createdAt=START + 9), talk_events())
    storage.append(header_of("a2", createdAt=START - 1), talk_events())
    storage.append(header_of("b\ue000", createdAt=START - 1), talk_events())
    second = storage.browse(SessionFilter(), limit=2, cursor=first.next_cursor)
    third = storage.browse(SessionFilter(), limit=9, cursor=second.next_cursor)
    # Of the age of the one that the cursor names, those with a later id follow.
    assert [_ids(first), _ids(second), _ids(third)] == [
        ["a", "b\ud800"],
        ["b\ue000", "c"],
        ["e", "f"],
    ]
    assert third.next_cursor is None


def foreign_cursors_and_limits_are_refused(open_storage: Opener) -> None:
    """36: with a code, whatever they are."""
    storage = open_storage()
    for name in "abc":
        storage.append(header_of(name), talk_events())
    cursor = storage.browse(SessionFilter(), limit=1).next_cursor
    assert cursor is not None

    def encode(value: Any) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).decode()

    wrong = ["", "x", "é", cursor[:-3], "\ud800", "A" * 9999, encode(None)]
    wrong += [
        encode(value)
        for value in (
            ["created", 10**40, "a"],
            ["created", True, "a"],
            ["created", 1.5, "a"],
            ["created", 1, None],
            ["created", 1],
        )
    ]
    wrong.append(base64.urlsafe_b64encode(b"[" * 100_000).decode())
    for text in wrong:
        assert _code_of(lambda text=text: storage.browse(SessionFilter(), cursor=text)) == (  # type: ignore[misc]
            "INVALID_CURSOR"
        ), text[:40]
    other = _code_of(lambda: storage.browse(SessionFilter(), cursor=cursor, order="active"))
    assert other == "INVALID_CURSOR"
    for limit in (0, -1):
        assert _code_of(lambda limit=limit: storage.browse(SessionFilter(), limit=limit)) == (  # type: ignore[misc]
            "INVALID_LIMIT"
        )


def blobs_come_back(open_storage: Opener) -> None:
    """37: by content, once each, of any size; unknown ones are None, deleted ones gone."""
    storage = open_storage()
    assert storage.get_blob("0" * 64) is None
    assert list(storage.list_blobs()) == []
    storage.delete_blob("0" * 64)
    contents = [b"", b"\0", bytes(range(256)) * 4096, b"x"]
    digests = [hashlib.sha256(content).hexdigest() for content in contents]
    for content, digest in zip(contents, digests, strict=True):
        storage.put_blob(digest, content)
        storage.put_blob(digest, content)
    fresh = open_storage()
    for content, digest in zip(contents, digests, strict=True):
        assert fresh.get_blob(digest) == content
    sizes = {blob.digest: blob.size for blob in fresh.list_blobs()}
    assert sizes == dict(zip(digests, map(len, contents), strict=True))
    assert all(abs(blob.stored_at - system_clock()) < 60_000 for blob in fresh.list_blobs())
    fresh.delete_blob(digests[2])
    fresh.delete_blob(digests[2])
    assert storage.get_blob(digests[2]) is None
    assert len(storage.list_blobs()) == 3
    assert storage.list() == []
    assert _ids(storage.browse(SessionFilter())) == []


def a_blob_stored_again_is_sound_and_young(open_storage: Opener) -> None:
    """38: other bytes under its digest are damage, and give way."""
    storage = open_storage()
    digest = hashlib.sha256(b"right").hexdigest()
    storage.put_blob(digest, b"wrong")
    storage.put_blob(digest, b"right")
    assert open_storage().get_blob(digest) == b"right"
    assert len(storage.list_blobs()) == 1


def progress_is_that_of_the_events(open_storage: Opener) -> None:
    """39: whatever batches they came in, with clocks that step back and titles that are none."""
    builder = EventBuilder().talk().add("session/title", {"title": "one"})
    builder.add("plan/mode", {"active": True}, time=-5)
    builder.start_turn().add("session/title", {"title": "two"}, time=1)
    events = builder.events
    one, many = open_storage(), open_storage()
    one.append(header_of("one"), events)
    for number, event in enumerate(events):
        many.append(header_of("many"), [event])
        found = {info.header.id: info.progress for info in many.browse(SessionFilter()).sessions}
        assert found["many"] == Progress().advance(events[: number + 1])
        assert found["one"] == Progress(len(events), 1, "two", open_turn=True)


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
    a_session_has_one_lease,
    a_lock_says_who_has_it,
    reading_needs_no_lease,
    an_outdated_fence_is_refused,
    batches_stand_or_fall_alone,
    notes_are_kept_beside_the_log,
    deleted_sessions_are_gone,
    shared_prefixes_are_whole_logs,
    filters_admit_what_they_say,
    pages_are_in_order_and_whole,
    cursors_hold_while_sessions_come_and_go,
    foreign_cursors_and_limits_are_refused,
    blobs_come_back,
    a_blob_stored_again_is_sound_and_young,
    progress_is_that_of_the_events,
)
"""All of them, in the order of their numbers."""
