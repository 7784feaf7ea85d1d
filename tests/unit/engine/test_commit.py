"""Group commit and write-behind: each event once and in order, whoever writes and whatever fails."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from turnlog.commit_check import CommitCheck
from turnlog.engine.commit import Committer, Writer
from turnlog.engine.protocol import Batch
from turnlog.errors import (
    ConflictError,
    EventError,
    ForkedError,
    SessionError,
    SessionExistsError,
    StorageBusyError,
    StorageWriteError,
    TurnlogError,
)
from turnlog.session import Session
from turnlog.storage.memory import MemoryStorage

WAIT = 30
"""Seconds after which something that should happen at once has not happened."""


class Recorder(MemoryStorage):
    """A memory storage that can be held up, can fail, and says when it was called."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[list[tuple[str, int, int]]] = []
        self.called = threading.Semaphore(0)
        self.entered = threading.Semaphore(0)
        self.gate = threading.Event()
        self.gate.set()
        self.fail: Callable[[Batch], TurnlogError | None] = lambda batch: None
        self.crash: BaseException | None = None
        self.crash_late = False
        self.crashes = 0
        self.threads: list[str] = []

    def append_many(self, batches: Sequence[Batch]) -> Sequence[TurnlogError | None]:
        self.entered.release()
        assert self.gate.wait(WAIT)
        self.threads.append(threading.current_thread().name)
        self.calls.append(
            [(batch.header.id, batch.events[0].seq, len(batch.events)) for batch in batches]
        )
        try:
            if self.crash is not None and not self.crash_late:
                raise self.crash
            results: list[TurnlogError | None] = []
            for batch in batches:
                error = self.fail(batch)
                if error is None:
                    (error,) = super().append_many([batch])
                results.append(error)
            if self.crash is not None:
                raise self.crash
            return results
        finally:
            self.crashes -= 1
            if not self.crashes:
                self.crash = None
            self.called.release()

    def seqs(self, id: str) -> list[int]:
        return [event.seq for event in self.read_from(id, 0)]


class Rig:
    def __init__(self) -> None:
        self.storage = Recorder()
        self.now = 100.0
        self.committers: list[Committer] = []

    def committer(self, window_ms: int = 0) -> Committer:
        committer = Committer(self.storage, window_ms=window_ms, monotonic=lambda: self.now)
        self.committers.append(committer)
        return committer

    def pass_time(self, committer: Committer, seconds: float) -> None:
        self.now += seconds
        with committer._turn:
            committer._turn.notify_all()


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.storage.gate.set()
    for committer in rig.committers:
        committer.close()
    assert not [one for one in threading.enumerate() if one.name == "turnlog-writer"]


def live(committer: Committer, id: str = "s1") -> tuple[Session, Writer]:
    session = Session.create(id)
    writer = committer.register(session, 0, None)
    session.attach(
        flush=lambda: committer.flush(writer), release=lambda: committer.unregister(writer)
    )
    return session, writer


def say(session: Session, count: int = 1) -> None:
    for _ in range(count):
        session.append_user(f"message {session.seq}")


def run(*calls: Callable[[], Any]) -> list[threading.Thread]:
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    return threads


def join(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(WAIT)
        assert not thread.is_alive()


# -- flushing ------------------------------------------------------------------------------------------


def test_a_flush_writes_on_the_callers_thread_and_only_what_is_new(rig: Rig) -> None:
    committer = rig.committer()
    session, _ = live(committer)
    session.flush()
    say(session, 3)
    session.flush()
    session.flush()
    say(session)
    session.flush()
    assert rig.storage.calls == [[("s1", 0, 3)], [("s1", 3, 1)]]
    assert set(rig.storage.threads) == {threading.current_thread().name}


def test_a_leader_commits_for_all_and_followers_find_themselves_written(rig: Rig) -> None:
    committer = rig.committer()
    first, _ = live(committer, "first")
    others = [live(committer, f"other {number}")[0] for number in range(8)]
    rig.storage.gate.clear()
    say(first)
    leader = run(first.flush)
    assert rig.storage.entered.acquire(timeout=WAIT)
    for session in others:
        say(session, 2)
    followers = run(*[session.flush for session in others])
    while committer_waiters(committer) < len(others):
        pass
    rig.storage.gate.set()
    join(leader + followers)
    assert [len(call) for call in rig.storage.calls] == [1, 8]
    for session in others:
        assert rig.storage.seqs(session.id) == [0, 1]


def committer_waiters(committer: Committer) -> int:
    with committer._turn:
        return len(committer._turn._waiters)  # type: ignore[attr-defined]


def test_events_appended_during_a_commit_are_the_next_ones(rig: Rig) -> None:
    committer = rig.committer()
    session, _ = live(committer)
    rig.storage.gate.clear()
    say(session, 2)
    leader = run(session.flush)
    assert rig.storage.entered.acquire(timeout=WAIT)
    say(session, 3)  # never waits for the disk
    rig.storage.gate.set()
    join(leader)
    session.flush()
    assert rig.storage.calls == [[("s1", 0, 2)], [("s1", 2, 3)]]


def test_a_batch_that_is_taken_back_is_never_written(rig: Rig) -> None:
    committer = rig.committer()
    session, _ = live(committer)
    say(session)
    inside, proceed = threading.Event(), threading.Event()

    class Veto(CommitCheck):
        def check(self, event: Any, data: Any, state: Any) -> None:
            if event.type == "plan/mode":
                inside.set()
                assert proceed.wait(WAIT)
                raise EventError("vetoed")

    session.add_check(Veto())
    batch = [
        {"type": "feedback/record", "data": {"text": "x"}},
        {"type": "plan/mode", "data": {"active": True}},
    ]

    def append() -> None:
        with pytest.raises(EventError):
            session.append_all(batch)

    appending = run(append)
    assert inside.wait(WAIT)
    assert session.seq == 2
    # The batch's first event is in memory already; the flush waits neither for it nor for its end.
    session.flush()
    assert rig.storage.seqs("s1") == [0]
    proceed.set()
    join(appending)
    say(session)
    session.flush()
    texts = [event.message.text for event in rig.storage.read_from("s1", 0)]
    assert texts == ["message 0", "message 1"]


def test_an_observer_may_flush_while_another_thread_leads(rig: Rig) -> None:
    committer = rig.committer()
    session, _ = live(committer)
    other, _ = live(committer, "other")
    session.observe(lambda event: session.flush())
    rig.storage.gate.clear()
    say(other)
    leader = run(other.flush)
    assert rig.storage.entered.acquire(timeout=WAIT)
    follower = run(lambda: say(session))
    while committer_waiters(committer) < 1:
        pass
    rig.storage.gate.set()
    join(leader + follower)
    assert rig.storage.seqs("s1") == [0]


# -- failures ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [StorageWriteError("disk full"), StorageBusyError("busy")])
def test_what_failed_is_still_pending_and_in_order(rig: Rig, error: StorageWriteError) -> None:
    committer = rig.committer()
    session, _ = live(committer)
    well, _ = live(committer, "well")
    say(session, 2)
    say(well)
    rig.storage.fail = lambda batch: error if batch.header.id == "s1" else None
    for _ in range(3):
        with pytest.raises(StorageWriteError) as caught:
            session.flush()
        assert caught.value is error
        well.flush()
    say(session)
    with pytest.raises(StorageWriteError):
        committer.flush_all()
    rig.storage.fail = lambda batch: None
    session.flush()
    assert rig.storage.seqs("s1") == [0, 1, 2]
    assert rig.storage.seqs("well") == [0]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StorageWriteError("x", code="SYNC_FAILED"), "POISONED"),
        (StorageWriteError("x", code="ROLLBACK_FAILED"), "POISONED"),
        (ConflictError("x"), "CONFLICT"),
        (SessionExistsError("x"), "SESSION_ALREADY_EXISTS"),
    ],
)
def test_an_unknown_outcome_poisons(rig: Rig, error: TurnlogError, code: str) -> None:
    committer = rig.committer()
    session, _ = live(committer)
    well, _ = live(committer, "well")
    say(session)
    say(well)
    rig.storage.fail = lambda batch: error if batch.header.id == "s1" else None
    with pytest.raises(type(error)):
        session.flush()
    rig.storage.fail = lambda batch: None
    for call in (session.flush, lambda: say(session), lambda: session.append_all([])):
        with pytest.raises(TurnlogError) as caught:
            call()
        assert caught.value.code == code
        assert error in (caught.value, caught.value.__cause__)
    with pytest.raises(type(error)):
        session.close()
    session.close()
    with pytest.raises(SessionError):
        say(session)
    say(well)
    well.flush()
    assert rig.storage.seqs("well") == [0, 1]
    assert [call for call in rig.storage.calls if call[0][0] == "s1"] == rig.storage.calls[:1]


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("crash", [KeyboardInterrupt(), ZeroDivisionError()])
def test_an_interrupted_write_is_settled_by_what_is_stored(
    rig: Rig, late: bool, crash: BaseException
) -> None:
    committer = rig.committer()
    session, _ = live(committer)
    say(session)
    session.flush()
    say(session, 2)
    rig.storage.crash, rig.storage.crash_late = crash, late
    with pytest.raises(type(crash)):
        session.flush()
    rig.storage.crash = None
    say(session)
    session.close()
    assert rig.storage.seqs("s1") == [0, 1, 2, 3]
    assert rig.storage.calls[-1] == [("s1", 3, 1) if late else ("s1", 1, 3)]


def test_an_interrupted_write_that_somebody_else_followed_is_a_conflict(rig: Rig) -> None:
    committer = rig.committer()
    session, _ = live(committer)
    say(session)
    rig.storage.crash = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        session.flush()
    rig.storage.crash = None
    foreign = Session.create("s1")
    foreign.append_user("theirs")
    rig.storage.append(foreign.header, foreign.events[:])
    with pytest.raises(ConflictError):
        session.flush()
    assert len(rig.storage.seqs("s1")) == 1


def test_followers_of_an_interrupted_leader_are_written_all_the_same(rig: Rig) -> None:
    committer = rig.committer()
    one, _ = live(committer, "one")
    two, _ = live(committer, "two")
    say(one)
    rig.storage.gate.clear()

    def lead() -> None:
        with pytest.raises(KeyboardInterrupt):
            one.flush()

    leader = run(lead)
    assert rig.storage.entered.acquire(timeout=WAIT)
    say(two)
    rig.storage.crash = KeyboardInterrupt()
    follower = run(two.flush)
    while committer_waiters(committer) < 1:
        pass
    assert rig.storage.entered.acquire(blocking=False) is False
    rig.storage.crashes = 1
    rig.storage.gate.set()
    join(leader + follower)
    one.flush()
    assert rig.storage.seqs("one") == rig.storage.seqs("two") == [0]


# -- write-behind --------------------------------------------------------------------------------------


def test_events_are_written_behind_without_a_flush(rig: Rig) -> None:
    committer = rig.committer(window_ms=200)
    session, _ = live(committer)
    say(session, 20)
    assert rig.storage.calls == []
    rig.pass_time(committer, 0.2)
    assert rig.storage.called.acquire(timeout=WAIT)
    assert rig.storage.calls == [[("s1", 0, 20)]]
    assert rig.storage.threads == ["turnlog-writer"]
    session.flush()
    say(session)
    rig.pass_time(committer, 0.2)
    assert rig.storage.called.acquire(timeout=WAIT)
    assert rig.storage.seqs("s1") == list(range(21))


def test_the_window_counts_from_the_first_event_and_is_never_extended(rig: Rig) -> None:
    committer = rig.committer(window_ms=200)
    session, _ = live(committer)
    other, _ = live(committer, "other")
    say(session)
    for _ in range(19):
        rig.pass_time(committer, 0.01)
        say(session)
        say(other)
    assert committer._deadline == pytest.approx(100.2)
    assert rig.storage.calls == []
    rig.pass_time(committer, 0.02)
    assert rig.storage.called.acquire(timeout=WAIT)
    assert rig.storage.calls == [[("s1", 0, 20), ("other", 0, 19)]]


def test_a_window_of_nothing_leaves_writing_to_flush(rig: Rig) -> None:
    committer = rig.committer()
    session, _ = live(committer)
    say(session)
    assert committer._timer is None
    assert rig.storage.calls == []


def test_a_background_failure_is_said_once_and_retried_ever_more_slowly(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    committer = rig.committer(window_ms=200)
    session, _ = live(committer)
    rig.storage.fail = lambda batch: StorageWriteError("disk full")
    delays = []
    with caplog.at_level(logging.WARNING):
        say(session)
        for _ in range(7):
            deadline = settled_deadline(committer)
            delays.append(round(deadline - rig.now, 3))
            rig.pass_time(committer, deadline - rig.now + 0.0001)
            assert rig.storage.called.acquire(timeout=WAIT)
        settled_deadline(committer)
        assert delays == [0.2, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0]
        assert [record.getMessage() for record in caplog.records] == [
            "session 's1' is not saved: disk full"
        ]
        rig.storage.fail = lambda batch: None
        rig.pass_time(committer, 5.1)
        assert rig.storage.called.acquire(timeout=WAIT)
        session.flush()
        assert rig.storage.seqs("s1") == [0]
        # A new failure after a success is news again.
        rig.storage.fail = lambda batch: StorageWriteError("again")
        say(session)
        rig.pass_time(committer, 0.21)
        assert rig.storage.called.acquire(timeout=WAIT)
        settled_deadline(committer)
    assert caplog.records[-1].getMessage() == "session 's1' is not saved: again"
    assert len(caplog.records) == 2


def settled_deadline(committer: Committer) -> float:
    """The timer's next deadline, once it is through with what it did."""
    while True:
        with committer._turn:
            deadline = committer._deadline
            idle = not committer._leading and committer._turn._waiters  # type: ignore[attr-defined]
            if idle and deadline is not None:
                return deadline


def test_one_failing_session_does_not_delay_the_others(rig: Rig) -> None:
    committer = rig.committer(window_ms=200)
    ill, _ = live(committer, "ill")
    well, _ = live(committer, "well")
    rig.storage.fail = lambda batch: StorageWriteError("no") if batch.header.id == "ill" else None
    say(ill)
    for _ in range(6):
        rig.pass_time(committer, settled_deadline(committer) - rig.now + 0.0001)
        assert rig.storage.called.acquire(timeout=WAIT)
    assert settled_deadline(committer) > rig.now + 2
    say(well)
    assert settled_deadline(committer) == pytest.approx(rig.now + 0.2)
    rig.pass_time(committer, 0.21)
    assert rig.storage.called.acquire(timeout=WAIT)
    assert rig.storage.seqs("well") == [0]


def test_a_storage_that_raises_what_it_must_not_does_not_end_the_write_behind(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    committer = rig.committer(window_ms=200)
    session, _ = live(committer)
    rig.storage.crash = ZeroDivisionError("a bug")
    say(session)
    rig.pass_time(committer, 0.21)
    assert rig.storage.called.acquire(timeout=WAIT)
    deadline = settled_deadline(committer)
    rig.storage.crash = None
    rig.pass_time(committer, deadline - rig.now + 0.0001)
    assert rig.storage.called.acquire(timeout=WAIT)
    session.flush()
    assert rig.storage.seqs("s1") == [0]
    assert "writing behind failed" in caplog.text


def test_without_a_thread_to_be_had_appending_and_flushing_go_on(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    committer = rig.committer(window_ms=200)
    session, _ = live(committer)

    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        say(session, 2)
        session.flush()
        say(session)
    say(session)
    rig.pass_time(committer, 0.21)
    assert rig.storage.called.acquire(timeout=WAIT)
    session.flush()
    assert rig.storage.seqs("s1") == [0, 1, 2, 3]


# -- the end -------------------------------------------------------------------------------------------


def test_closing_stops_the_thread_and_twice_is_fine(rig: Rig) -> None:
    committer = rig.committer(window_ms=200)
    session, _ = live(committer)
    say(session)
    timer = committer._timer
    assert timer is not None
    committer.close()
    committer.close()
    assert not timer.is_alive()
    say(session)  # no new thread
    assert committer._timer is None
    session.flush()
    assert rig.storage.seqs("s1") == [0, 1]


def test_what_is_accepted_before_closing_is_written_and_nothing_after(rig: Rig) -> None:
    for number in range(40):
        committer = rig.committer()
        session, _ = live(committer, f"s{number}")
        accepted = [0, 0, 0]
        start = threading.Barrier(4)

        def write(
            slot: int, session: Session = session, accepted: Any = accepted, start: Any = start
        ) -> None:
            start.wait()
            try:
                while True:
                    say(session)
                    accepted[slot] += 1
            except SessionError as error:
                assert error.code == "CLOSED"  # noqa: PT017 - the loop's only end

        threads = run(*[lambda slot=slot: write(slot) for slot in range(3)])
        start.wait()
        session.close()
        join(threads)
        assert sum(accepted) == session.seq
        if session.seq:
            assert rig.storage.seqs(session.id) == list(range(session.seq))


class WaitedFor:
    """A session's lock that says when somebody is about to take it."""

    def __init__(self, lock: Any) -> None:
        self.lock = lock
        self.wanted = threading.Event()

    def __enter__(self) -> Any:
        self.wanted.set()
        return self.lock.__enter__()

    def __exit__(self, *exception: Any) -> Any:
        return self.lock.__exit__(*exception)


@pytest.mark.parametrize("several", [False, True])
def test_an_append_that_waited_while_the_session_was_closed_is_refused(
    rig: Rig, several: bool
) -> None:
    committer = rig.committer()
    session, _ = live(committer)
    lock = session._lock = WaitedFor(session._lock)  # type: ignore[assignment]
    refused: list[str] = []

    def append() -> None:
        try:
            if several:
                session.append_all([{"type": "feedback/record", "data": {"text": "late"}}])
            else:
                session.append("feedback/record", {"text": "late"})
        except SessionError as error:
            refused.append(error.code)

    with lock.lock:
        late = run(append)
        assert lock.wanted.wait(WAIT)
        # Closing takes the lock as well; this thread has it already.
        session.close()
    join(late)
    assert refused == ["CLOSED"]
    assert session.seq == 0


def test_a_second_closer_returns_when_the_session_is_closed(rig: Rig) -> None:
    committer = rig.committer()
    session, _ = live(committer)
    say(session)
    rig.storage.gate.clear()
    first = run(session.close)
    assert rig.storage.entered.acquire(timeout=WAIT)
    done: list[int] = []

    def close_again() -> None:
        session.close()
        done.append(len(rig.storage.calls))

    second = run(close_again)
    rig.storage.gate.set()
    join(first + second)
    assert done == [1]


def test_a_failed_close_leaves_the_session_writable(rig: Rig) -> None:
    committer = rig.committer()
    session, _ = live(committer)
    say(session)
    rig.storage.fail = lambda batch: StorageWriteError("disk full")
    with pytest.raises(StorageWriteError):
        session.close()
    say(session)
    rig.storage.fail = lambda batch: None
    session.close()
    assert rig.storage.seqs("s1") == [0, 1]


def test_an_observer_may_close(rig: Rig) -> None:
    committer = rig.committer()
    session, _ = live(committer)
    session.observe(lambda event: session.close())
    say(session)
    assert rig.storage.seqs("s1") == [0]
    with pytest.raises(SessionError):
        say(session)


def test_a_flush_of_what_was_let_go_of_ends(rig: Rig) -> None:
    committer = rig.committer()
    session, writer = live(committer)
    say(session)
    committer.unregister(writer)
    with pytest.raises(SessionError):
        session.flush()


# -- a forked child ------------------------------------------------------------------------------------


def test_a_forked_child_writes_nothing_of_its_parents(rig: Rig) -> None:
    committer = rig.committer(window_ms=200)
    session, _ = live(committer)
    say(session)
    rig.storage.gate.clear()
    leader = run(session.flush)
    assert rig.storage.entered.acquire(timeout=WAIT)
    pid = os.fork()  # while a thread leads, which the child has not
    if not pid:  # pragma: no cover - in the child
        status = 1
        try:
            rig.storage.gate.set()
            for call in (session.flush, lambda: say(session)):
                try:
                    call()
                except ForkedError:
                    continue
                os._exit(2)
            session.close()
            committer.flush_all()
            own, _ = live(committer, "own")
            say(own)
            own.flush()
            if rig.storage.calls == [[("own", 0, 1)]]:
                status = 0
            committer.close()
        finally:
            os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0
    rig.storage.gate.set()
    join(leader)
    assert rig.storage.seqs("s1") == [0]
