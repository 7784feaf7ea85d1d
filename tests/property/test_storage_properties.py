"""The JSONL storage against the one in memory, and what strict reading, salvage and verify say of damage."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from turnlog.engine.verify import verify_salvage
from turnlog.errors import CorruptLogError, StorageError, UnsupportedFormatError
from turnlog.events import SessionEvent
from turnlog.lossless import canonicalize
from turnlog.storage.jsonl import JsonlStorage
from turnlog.storage.memory import MemoryStorage
from turnlog.testing.builders import EventBuilder, header_of, log_text, place_log


@pytest.fixture(autouse=True, scope="module")
def no_waiting_for_the_disk() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


BASE = EventBuilder().talk().work().talk().events
TEXT = log_text(BASE)
LINES = TEXT.split(b"\n")[:-1]
INSERTS = [
    b"",
    b"\n",
    b"\0" * 7,
    b"\r",
    b" ",
    b"null\n",
    b"{",
    b"}",
    b'"',
    b",",
    b"\xff",
    b"0",
    b"-",
    b"\xef\xbb\xbf",
    b'{"type":"turn/end"}\n',
    LINES[5] + b"\n",
    LINES[-1] + b"\n",
    b'{"type":"nobody/knows","seq":3,"time":1,"data":1}\n',
]


@st.composite
def mutations(draw: st.DrawFn) -> bytes:
    """The text with up to three cuts, insertions or doubled stretches."""
    text = TEXT
    for _ in range(draw(st.integers(0, 3))):
        ends = [0] + [at + 1 for at, byte in enumerate(text) if byte == 10]
        spot = st.integers(0, len(text)) | st.sampled_from(ends)
        start, stop = sorted((draw(spot), draw(spot)))
        kind = draw(st.sampled_from(["insert", "cut", "double", "short cut"]))
        if kind == "insert":
            text = text[:start] + draw(st.sampled_from(INSERTS)) + text[start:]
        elif kind == "cut":
            text = text[:start] + text[stop:]
        elif kind == "double":
            text = text[:stop] + text[start:stop] + text[stop:]
        else:
            text = text[:start] + text[start + 3 :]
    return text


@given(mutations())
def test_verify_finds_errors_exactly_where_a_load_is_refused_or_torn(text: bytes) -> None:
    with tempfile.TemporaryDirectory() as name:
        path = place_log(Path(name), text)
        storage = JsonlStorage(Path(name))
        try:
            sound = storage.inspect("s1").torn is None
        except (CorruptLogError, UnsupportedFormatError):
            sound = False
        salvage = storage.salvage("s1")
        errors = [found for found in verify_salvage(salvage) if found.severity == "error"]
        assert sound == (not errors), errors[:2]
        for damage in salvage.damage:
            assert 0 <= damage.offset <= len(text)
            assert damage.line == text.count(b"\n", 0, damage.offset) + 1
        assert path.read_bytes() == text


@given(mutations())
def test_salvage_keeps_every_whole_line(text: bytes) -> None:
    with tempfile.TemporaryDirectory() as name:
        place_log(Path(name), text)
        salvage = JsonlStorage(Path(name)).salvage("s1")
    kept = {canonicalize(wire)[0] for wire in salvage.events}
    for event, line in zip(BASE, log_text(BASE, pack=False).split(b"\n")[1:], strict=False):
        if line in text.split(b"\n"):
            assert event.to_json() in kept


@given(mutations())
def test_a_load_leaves_a_log_that_loads_alike(text: bytes) -> None:
    with tempfile.TemporaryDirectory() as name:
        path = place_log(Path(name), text)
        storage = JsonlStorage(Path(name))
        try:
            seen = [event.to_json() for event in storage.inspect("s1").log.view()]
        except StorageError:
            with pytest.raises(StorageError):
                storage.load("s1")
            assert path.read_bytes() == text
            return
        loaded = storage.load("s1")
        assert [event.to_json() for event in loaded.log.view()] == seen
        again = JsonlStorage(Path(name)).inspect("s1")
        assert again.torn is None
        assert not again.closers
        assert [event.to_json() for event in again.log.view()] == seen
        sides = b"".join(side.read_bytes() for side in path.parent.glob("*.bin"))
        assert text.endswith(sides)
        assert path.read_bytes().startswith(text[: len(text) - len(sides)])


class Machine(RuleBasedStateMachine):
    """Appends, loads, reopenings and torn tails, in both storages; they always agree."""

    @initialize(encoding=st.sampled_from(["none", "zstd"]), pack=st.booleans())
    def open(self, encoding: Any, pack: bool) -> None:
        self.directory = tempfile.TemporaryDirectory()
        self.options: dict[str, Any] = {"compression": encoding, "pack": pack}
        self.model = MemoryStorage()
        self.builders: dict[str, EventBuilder] = {}
        self.reopen()

    def teardown(self) -> None:
        if hasattr(self, "directory"):
            self.directory.cleanup()

    def reopen(self) -> None:
        self.storage = JsonlStorage(Path(self.directory.name) / "r", **self.options)

    def append(self, id_: str, builder: EventBuilder, start: int) -> None:
        for storage in (self.model, self.storage):
            storage.append(header_of(id_, cwd="/w"), builder.events[start:])

    @rule(
        id_=st.sampled_from(["a", "b"]),
        kind=st.sampled_from(["talk", "work", "interrupted", "note"]),
    )
    def write(self, id_: str, kind: str) -> None:
        builder = self.builders.setdefault(id_, EventBuilder())
        start = builder.seq
        if kind == "note":
            builder.add("feedback/record", {"text": "\u2028"})
        else:
            getattr(builder, kind)()
        self.append(id_, builder, start)

    @rule()
    def start_anew(self) -> None:
        self.reopen()

    @precondition(lambda self: self.builders)
    @rule(data=st.data(), close_turn=st.booleans(), torn=st.booleans())
    def load(self, data: st.DataObject, close_turn: bool, torn: bool) -> None:
        id_ = data.draw(st.sampled_from(sorted(self.builders)))
        if torn:
            extra = b"\x28\xb5\x2f\xfd\x04" if self.options["compression"] == "zstd" else b'{"ty'
            with Path(str(self.storage.location(id_))).open("ab") as file:
                file.write(extra)
        for storage in (self.model, self.storage):
            stored = storage.load(id_, close_turn=close_turn)
            self.builders[id_].wires = [event.to_dict() for event in stored.log.view()]

    @rule(id_=st.sampled_from(["a", "b"]), step=st.sampled_from([-1, 1]))
    def write_at_a_wrong_place(self, id_: str, step: int) -> None:
        builder = self.builders.get(id_, EventBuilder())
        seq = builder.seq + step
        if seq < 0:
            return
        for storage in (self.model, self.storage):
            with pytest.raises(StorageError):
                storage.append(header_of(id_, cwd="/w"), [SessionEvent("plan/mode", seq, 1, b"{}")])

    @invariant()
    def agree(self) -> None:
        if not hasattr(self, "storage"):
            return
        listed = [
            sorted(entry.header.id for entry in storage.list() if entry.header)
            for storage in (self.model, self.storage)
        ]
        assert listed[0] == listed[1] == sorted(self.builders)
        for id_, builder in self.builders.items():
            lines = [event.to_json() for event in builder.events]
            for storage in (self.model, self.storage):
                assert [event.to_json() for event in storage.read_from(id_, 0)] == lines
            one, other = self.model.inspect(id_), self.storage.inspect(id_)
            assert [e.to_json() for e in one.log.view()] == [e.to_json() for e in other.log.view()]
            assert list(one.surface.nodes) == list(other.surface.nodes)
            assert one.state == other.state


def test_both_storages_agree() -> None:
    few = settings(max_examples=max(settings().max_examples // 4, 10), stateful_step_count=12)
    run_state_machine_as_test(Machine, settings=few)
