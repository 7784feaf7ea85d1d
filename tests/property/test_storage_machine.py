"""JSONL and SQLite beside the storage in memory: whatever is done to all of them, they say the same."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from turnlog.engine.lease import Lease
from turnlog.engine.listing import Notes, Progress, SessionFilter
from turnlog.engine.protocol import Storage
from turnlog.errors import TurnlogError
from turnlog.events import SessionEvent
from turnlog.header import SessionHeader
from turnlog.storage.jsonl import JsonlStorage
from turnlog.storage.memory import MemoryStorage
from turnlog.storage.sqlite import SqliteStorage
from turnlog.testing.builders import START, EventBuilder, header_of


@pytest.fixture(autouse=True, scope="module")
def no_waiting_for_the_disk() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


IDS = ["s1", "S1", "a/b", "\ud800", "é"]
TAGS = st.lists(st.sampled_from(["red", "blue", "\ud800", ""]), max_size=3, unique=True).map(tuple)
KINDS = st.sampled_from(["talk", "work", "interrupted", "title", "record", "odd"])


def more(length: int, kinds: list[str], time: int) -> list[SessionEvent]:
    """Events that go on at a seq; their turns are numbered by it, so that they never repeat."""
    builder = EventBuilder()
    builder._turn = length
    for kind in kinds:
        if kind == "title":
            builder.add("session/title", {"title": f"T {length} \udfff"})
        elif kind == "record":
            builder.add("feedback/record", {"text": "\u2028 x" * 200})
        elif kind == "odd":
            builder.add("future/kind", None, ignorable=True, time=-7)
        else:
            getattr(builder, kind)()
    return [moved(wire, length, time) for wire in builder.wires]


def moved(wire: dict[str, Any], length: int, time: int) -> SessionEvent:
    changed = {"seq": wire["seq"] + length, "time": wire["time"] + time}
    if "sourceEventSeqs" in wire:
        changed["sourceEventSeqs"] = [seq + length for seq in wire["sourceEventSeqs"]]
    return SessionEvent.from_dict({**wire, **changed})


def lines(events: Any) -> list[bytes]:
    return [event.to_json() for event in events]


def said(call: Callable[[], Any]) -> Any:
    """What a call gives, or the code that it raises."""
    try:
        return call()
    except TurnlogError as error:
        return error.code


class Storages(RuleBasedStateMachine):
    @initialize(pack=st.booleans(), compress=st.booleans())
    def open(self, pack: bool, compress: bool) -> None:
        self.folder = tempfile.TemporaryDirectory()
        root = Path(self.folder.name)
        memory = MemoryStorage()
        self.openers: list[Callable[[], Storage]] = [
            lambda: memory,
            lambda: JsonlStorage(
                root / "root", pack=pack, compression="zstd" if compress else "none"
            ),
            lambda: SqliteStorage(root / "s.db", pack=pack),
        ]
        self.storages = [opener() for opener in self.openers]
        self.leases: dict[str, list[Lease]] = {}

    def teardown(self) -> None:
        for lease in [one for leases in self.leases.values() for one in leases]:
            lease.release()
        if hasattr(self, "storages"):
            self.storages[2].close()
            self.folder.cleanup()

    def all(self, call: Callable[[Storage], Any]) -> Any:
        """Do the same to each; what they say must be the same."""
        answers = [said(lambda one=one: call(one)) for one in self.storages]  # type: ignore[misc]
        assert answers[0] == answers[1] == answers[2]
        return answers[0]

    def length(self, id: str) -> int:
        events = said(lambda: self.storages[0].read_from(id, 0))
        return 0 if isinstance(events, str) else len(events)

    @rule(
        id=st.sampled_from(IDS),
        kinds=st.lists(KINDS, max_size=3),
        split=st.integers(1, 9),
        time=st.integers(-5, 5),
        cwd=st.sampled_from([None, "/w", "/v"]),
    )
    def append(self, id: str, kinds: list[str], split: int, time: int, cwd: str | None) -> None:
        stored = said(lambda: self.storages[0].inspect(id, close_turn=False))
        if isinstance(stored, str):
            fields = {} if cwd is None else {"cwd": cwd, "parentSession": cwd}
            header = header_of(id, createdAt=START + time, **fields)
            start, open_turn = 0, False
        else:
            header, start = stored.header, len(stored.log)
            open_turn = stored.state.open_turn is not None
        if open_turn:
            kinds = [kind for kind in kinds if kind in ("title", "record", "odd")]
        if "interrupted" in kinds:
            kinds = [*[kind for kind in kinds if kind != "interrupted"], "interrupted"]
        events = more(start, kinds, time)
        for at in range(0, len(events), split):
            self.append_part(header, events[at : at + split])

    def append_part(self, header: SessionHeader, part: list[SessionEvent]) -> None:
        leases = self.leases.get(header.id)
        for number, one in enumerate(self.storages):
            one.append(header, part, None if leases is None else leases[number].fence)

    @rule(id=st.sampled_from(IDS), off=st.sampled_from([-1, 1, 2]))
    def append_elsewhere(self, id: str, off: int) -> None:
        length = self.length(id)
        if length + off >= 0:
            events = more(length + off, ["record"], 0)
            answer = self.all(lambda one: one.append(header_of(id), events))
            assert answer == "CONFLICT"

    @rule(number=st.integers(1, 2))
    def reopen(self, number: int) -> None:
        self.storages[number].close()
        self.storages[number] = self.openers[number]()

    @rule(id=st.sampled_from(IDS), close_turn=st.booleans())
    def load(self, id: str, close_turn: bool) -> None:
        self.all(lambda one: lines(one.inspect(id, close_turn=close_turn).log.view()))
        self.all(lambda one: lines(one.load(id, close_turn=close_turn).log.view()))

    @rule(id=st.sampled_from(IDS), child=st.sampled_from(IDS), part=st.floats(0, 1))
    def fork(self, id: str, child: str, part: float) -> None:
        length = self.length(id)
        cut = round(length * part)
        if not cut or self.length(child) or id == child:
            return
        prefix = list(self.storages[0].read_from(id, 0))[:cut]
        header = header_of(child, parentSession=id, seedLength=cut)

        def share(one: Storage) -> None:
            if not one.share(header, id, Progress().advance(prefix)):
                one.append(header, prefix)

        assert self.all(share) is None

    @rule(id=st.sampled_from(IDS))
    def delete(self, id: str) -> None:
        for lease in self.leases.pop(id, []):
            lease.release()
        self.all(lambda one: one.delete(id))

    @rule(id=st.sampled_from(IDS), tags=TAGS, archived=st.booleans())
    def note(self, id: str, tags: tuple[str, ...], archived: bool) -> None:
        self.all(lambda one: one.set_notes(id, Notes(tags, archived)))

    @rule(id=st.sampled_from(IDS))
    def take_lease(self, id: str) -> None:
        if id in self.leases:
            assert self.all(lambda one: one.acquire(id)) == "SESSION_LOCKED"
        else:
            self.leases[id] = [one.acquire(id) for one in self.storages]

    @rule(id=st.sampled_from(IDS))
    def give_lease(self, id: str) -> None:
        for lease in self.leases.pop(id, []):
            lease.release()

    @rule(
        fields=st.fixed_dictionaries(
            {},
            optional={
                "cwd": st.sampled_from(["/w", "/v"]),
                "parent": st.sampled_from(["/w", *IDS]),
                "title": st.sampled_from(["t 1", "T", "\udfff"]),
                "tag": st.sampled_from(["red", "", "\ud800"]),
                "open_turn": st.booleans(),
                "archived": st.none() | st.booleans(),
                "created_from": st.integers(START - 6, START + 6),
                "active_until": st.integers(-10, START + 300),
            },
        ),
        order=st.sampled_from(["created", "active"]),
        limit=st.integers(1, 4),
    )
    def browse(self, fields: dict[str, Any], order: Any, limit: int) -> None:
        wanted = SessionFilter(**fields)
        cursor = None
        while True:

            def page(one: Storage, cursor: str | None = cursor) -> Any:
                found = one.browse(wanted, order=order, cursor=cursor, limit=limit)
                shown = [(info.header.id, info.progress, info.notes) for info in found.sessions]
                return shown, found.next_cursor

            _, cursor = self.all(page)
            if cursor is None:
                break

    @invariant()
    def they_hold_the_same(self) -> None:
        if not hasattr(self, "storages"):
            return
        self.all(lambda one: sorted(entry.header.id for entry in one.list() if entry.header))
        self.all(lambda one: [entry.damage for entry in one.list() if entry.damage])
        for name in IDS:
            self.all(lambda one, name=name: lines(one.read_from(name, 0)))  # type: ignore[misc]
            self.all(lambda one, name=name: one.notes(name))  # type: ignore[misc]


def test_the_storages_say_the_same() -> None:
    run_state_machine_as_test(Storages, settings=settings(max_examples=25, stateful_step_count=20))


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_storages_say_the_same_for_long() -> None:
    run_state_machine_as_test(Storages, settings=settings(max_examples=600, stateful_step_count=40))
