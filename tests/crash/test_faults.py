"""A disk whose calls fail one after the other: each event exactly once in the end, or an error that says so."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import turnlog
from turnlog.engine.listing import Notes
from turnlog.errors import SessionNotFoundError, StorageError, StorageWriteError, TurnlogError
from turnlog.storage.jsonl import JsonlStorage
from turnlog.storage.jsonl.paths import Encoding
from turnlog.testing.builders import EventBuilder, header_of, log_text, place_log

EVENTS = EventBuilder().talk().work().interrupted().events
CALLS = ("open", "write", "fsync", "ftruncate", "link", "replace", "mkdir", "unlink", "stat")


class Faults:
    """Fails the n-th call of one kind; of a write, some bytes may come through first."""

    def __init__(self, call: str, good: int, *, part: int = 0, times: int = 1) -> None:
        self.call, self.good, self.part, self.times = call, good, part, times
        self.happened = False

    def install(self, patch: pytest.MonkeyPatch) -> None:
        real = getattr(os, self.call)

        def call(*args: Any, **keys: Any) -> Any:
            if self.good > 0 or self.times == 0:
                self.good -= 1
                return real(*args, **keys)
            self.times -= 1
            self.happened = True
            if self.part:
                real(args[0], args[1][: self.part])
            raise OSError(errno.EIO, "Input/output error", str(args[0]))

        patch.setattr(os, self.call, call)


def every_fault(limit: int = 40) -> Iterator[Callable[[int], Faults]]:
    for call in CALLS:
        yield lambda good, call=call: Faults(call, good)  # type: ignore[misc]
    yield lambda good: Faults("write", good, part=7)
    yield lambda good: Faults("fsync", good, times=2)


def lines(storage: Any, id: str = "s1") -> list[bytes]:
    try:
        return [event.to_json() for event in storage.read_from(id, 0)]
    except SessionNotFoundError:
        return []


WANTED = [event.to_json() for event in EVENTS]


@pytest.mark.parametrize("encoding", ["none", "zstd"])
def test_after_any_fault_each_event_is_stored_once(
    encoding: Encoding, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: dict[str, int] = {}
    for number, make in enumerate(every_fault()):
        for good in range(60):
            root = tmp_path / f"{number}-{good}"
            storage = JsonlStorage(root, compression=encoding)
            fault = make(good)
            cuts = [0, 3, 12, len(EVENTS)]
            with monkeypatch.context() as patch:
                fault.install(patch)
                for start, stop in pairwise(cuts):
                    try:
                        storage.append(header_of(cwd="/w"), EVENTS[start:stop])
                    except StorageError as error:
                        counts[error.code] = counts.get(error.code, 0) + 1
                        break
            # What was acknowledged is there, and nothing else that was not asked for.
            try:
                stored = lines(JsonlStorage(root))
            except StorageError:
                # Not cut back: a load repairs it.
                stored = [
                    event.to_json()
                    for event in JsonlStorage(root).load("s1", close_turn=False).log.view()
                ]
            assert stored == WANTED[: len(stored)], (fault.call, good)
            # Reopened, or by trying again.
            again = storage if good % 2 else JsonlStorage(root, compression=encoding)
            if stored:
                again.load("s1", close_turn=False)
            known = len(lines(again))
            again.append(header_of(cwd="/w"), EVENTS[known:])
            assert lines(JsonlStorage(root)) == WANTED, (fault.call, good)
            assert JsonlStorage(root).inspect("s1", close_turn=False).torn is None
            if not fault.happened:
                break
        else:
            raise AssertionError("the faults never end")
    assert counts["WRITE_FAILED"] > 20
    assert counts["SYNC_FAILED"] >= 2
    assert counts["ROLLBACK_FAILED"] >= 2


@pytest.mark.parametrize("window_ms", [0, 1])
def test_a_live_session_is_saved_or_says_why_not(
    window_ms: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes = set()
    for number, make in enumerate(every_fault()):
        for good in range(0, 40, 1 if not window_ms else 7):
            root = tmp_path / f"{number}-{good}"
            fault = make(good)
            said = 0
            log = turnlog.open(root, window_ms=window_ms)
            with monkeypatch.context() as patch:
                fault.install(patch)
                with suppress(TurnlogError):
                    session = log.create(id="s1")
                    for text in range(4):
                        session.append_user(str(text))
                        try:
                            session.flush()
                            said = session.seq
                        except TurnlogError as error:
                            codes.add(error.code)
                with suppress(TurnlogError):
                    log.close()
            # Whatever could be tried again, is; what could not, was let go of.
            with suppress(TurnlogError):
                log.close()
            assert log.sessions.list() == []
            with turnlog.open(root, window_ms=0) as fresh:
                if fresh.query.has("s1"):
                    resumed = fresh.resume("s1")
                    texts = [one.text for one in resumed.derive_messages()]
                    assert texts == [str(text) for text in range(len(texts))], (fault.call, good)
                    assert len(texts) >= said, (fault.call, good)
                else:
                    assert not said
            if not fault.happened and not window_ms:
                break
    assert codes >= {"WRITE_FAILED", "POISONED"} or window_ms


def test_a_failed_sync_poisons_the_session_and_reopening_settles_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with turnlog.open(tmp_path, window_ms=0) as log:
        session = log.create(id="s1")
        session.append_user("a")
        session.flush()
        session.append_user("b")
        with monkeypatch.context() as patch:
            Faults("fsync", 0).install(patch)
            with pytest.raises(StorageWriteError) as caught:
                session.flush()
        assert caught.value.code == "POISONED"
        assert caught.value.__cause__ is not None
        assert caught.value.__cause__.code == "SYNC_FAILED"  # type: ignore[attr-defined]
        for call in (session.flush, session.close, lambda: session.append_user("c")):
            with pytest.raises(TurnlogError):
                call()
        resumed = log.resume("s1")
        resumed.append_user("b again")
        resumed.flush()
        assert [one.text for one in resumed.derive_messages()] == ["a", "b again"]


def test_notes_and_deletes_are_done_or_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new = Notes(("old",)), Notes(("new",), archived=True)
    for number, make in enumerate(every_fault()):
        for good in range(20):
            root = tmp_path / f"{number}-{good}"
            place_log(root, log_text(EVENTS))
            storage = JsonlStorage(root)
            storage.set_notes("s1", old)
            fault = make(good)
            with monkeypatch.context() as patch:
                fault.install(patch)
                try:
                    storage.set_notes("s1", new)
                    told = True
                except StorageError:
                    told = False
            assert JsonlStorage(root).notes("s1") in ((new,) if told else (old, new))
            if not fault.happened:
                break
            fault = make(good)
            with monkeypatch.context() as patch:
                fault.install(patch)
                try:
                    storage.delete("s1")
                    told = True
                except StorageError:
                    told = False
            left = lines(JsonlStorage(root))
            assert left == [] if told else left in ([], WANTED)
            with suppress(SessionNotFoundError):
                storage.delete("s1")
            # Nothing of a deleted session comes back with the next one of its id.
            JsonlStorage(root).append(header_of(), EVENTS)
            assert JsonlStorage(root).notes("s1") == Notes()
