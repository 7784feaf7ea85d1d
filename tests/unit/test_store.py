"""SessionStore (log.md, section 7): registry, lifecycle, notices, fork."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest

from turnlog.errors import EventError, HeaderError, SessionError
from turnlog.events import SessionEvent
from turnlog.session import END_SEED, Session
from turnlog.store import SessionStore

Vectors = Callable[[str], Any]


class Diary:
    """A listener that writes down what it hears."""

    def __init__(self, store: SessionStore, **options: Any) -> None:
        self.lines: list[str] = []
        self.stop = store.listen(
            created=lambda session: self.note("created", session),
            event=lambda session, event: self.note(f"event {event.seq}", session),
            flush=lambda session: self.note("flush", session),
            disposed=lambda session: self.note("disposed", session),
            **options,
        )

    def note(self, what: str, session: Session) -> None:
        self.lines.append(f"{what} {session.id}")


def code_of(call: Callable[[], object]) -> str:
    with pytest.raises(SessionError) as caught:
        call()
    return caught.value.code


# -- registry ------------------------------------------------------------------------------------------


def test_sessions_are_listed_in_the_order_of_their_creation() -> None:
    store = SessionStore()
    made = [store.create(id_) for id_ in ("b", None, "a", None)]
    assert [session.id for session in made] == ["b", "session-1", "a", "session-2"]
    assert store.list() == made
    assert store.get("a") is made[2]
    assert store.get("c") is None


def test_a_minted_id_is_never_one_that_is_taken() -> None:
    store = SessionStore()
    store.create("session-1")
    assert [store.create().id, store.create().id] == ["session-2", "session-3"]
    assert SessionStore(ids=iter(["x", "y"]).__next__).create().id == "x"


def test_threads_never_mint_the_same_id() -> None:
    store = SessionStore()
    start = threading.Barrier(8)

    def work() -> None:
        start.wait()
        for _ in range(50):
            store.create()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(session.id for session in store.list()) == sorted(
        f"session-{n}" for n in range(1, 401)
    )


def test_meta_comes_in_wire_keys_and_the_clock_fills_in_the_rest() -> None:
    store = SessionStore(clock=lambda: 7)
    assert store.create("a", meta={"cwd": "/w", "more": [1]}).header.to_dict() == {
        "version": 0,
        "id": "a",
        "createdAt": 7,
        "cwd": "/w",
        "more": [1],
    }
    assert store.create("b", meta={"createdAt": 3, "id": "ignored"}).header.created_at == 3
    assert store.get("b") is not None
    with pytest.raises(HeaderError):
        store.create("c", meta={"cwd": "w"})
    assert store.get("c") is None
    assert store.create("d").append("x", None).time == 7


def test_a_taken_id_is_refused_before_the_seed_is_looked_at() -> None:
    store = SessionStore()
    store.create("a")
    assert code_of(lambda: store.create("a", seed=[{"broken": True}])) == "SESSION_ALREADY_EXISTS"
    with pytest.raises(EventError):
        store.create("b", seed=[{"broken": True}])
    assert [session.id for session in store.list()] == ["a"]


def test_a_seed_makes_a_live_session() -> None:
    store = SessionStore()
    diary = Diary(store)
    session = store.create("a", seed=[{"type": "x", "seq": 0, "time": 0, "data": None}])
    assert (session.seq, session.first_live_seq) == (2, 1)
    assert diary.lines == ["created a"]


def test_closing_twice_or_a_stranger_does_nothing() -> None:
    store = SessionStore()
    diary = Diary(store)
    session = store.create("a")
    store.close(Session.create("a"))
    assert store.get("a") is session
    store.close(session)
    store.close(session)
    assert store.list() == []
    assert diary.lines == ["created a", "disposed a"]


# -- lifecycle -----------------------------------------------------------------------------------------


def test_preparing_publishes_nothing() -> None:
    store = SessionStore()
    diary = Diary(store)
    session = store.prepare("a")
    session.append("x", None)
    assert (store.get("a"), store.list(), diary.lines) == (None, [], [])
    assert code_of(lambda: store.announce(session)) == "SESSION_NOT_LIVE"
    assert store.create("a") is not session
    assert code_of(lambda: store.enter(session)) == "SESSION_ALREADY_EXISTS"


def test_entering_publishes_and_announcing_tells_once() -> None:
    store = SessionStore()
    diary = Diary(store)
    session = store.prepare("a")
    detach = store.enter(session)
    assert store.get("a") is session
    assert diary.lines == []
    store.announce(session)
    with pytest.raises(SessionError):
        store.announce(session)
    detach()
    detach()
    assert diary.lines == ["created a", "disposed a"]
    assert store.list() == []


def test_an_entry_that_was_not_announced_is_never_disposed_of() -> None:
    store = SessionStore()
    diary = Diary(store)
    detach = store.enter(store.prepare("a"))
    detach()
    assert (diary.lines, store.get("a")) == ([], None)


def test_a_stale_detach_cannot_remove_its_replacement() -> None:
    store = SessionStore()
    first = store.prepare("a")
    stale = store.enter(first)
    store.announce(first)
    stale()
    second = store.create("a")
    diary = Diary(store)
    stale()
    assert store.get("a") is second
    second.append("x", None)
    first.append("x", None)
    assert diary.lines == ["event 0 a"]


# -- created -------------------------------------------------------------------------------------------


def test_a_veto_rolls_back_with_the_paired_disposed() -> None:
    store = SessionStore()
    before = Diary(store)

    def veto(session: Session) -> None:
        assert store.get("a") is session
        raise RuntimeError("no")

    disposed: list[str] = []
    stop = store.listen(created=veto, disposed=lambda session: disposed.append(session.id))
    after = Diary(store)
    with pytest.raises(RuntimeError, match="no"):
        store.create("a")
    assert (store.get("a"), store.list()) == (None, [])
    assert before.lines == ["created a", "disposed a"]
    assert disposed == ["a"]
    assert after.lines == []
    stop()
    session = store.create("a")
    session.append("x", None)
    store.close(session)
    assert after.lines == ["created a", "event 0 a", "disposed a"]


@pytest.mark.parametrize("failure", [ValueError, KeyboardInterrupt])
def test_any_failure_vetoes_a_fork_as_well(failure: type[BaseException]) -> None:
    store = SessionStore()
    parent = store.create("p")

    def veto(session: Session) -> None:
        raise failure

    store.listen(created=veto)
    with pytest.raises(failure):
        store.fork(parent, child_id="c")
    assert store.list() == [parent]


def test_a_detach_asked_for_during_the_created_notice_waits_for_its_end() -> None:
    store = SessionStore()
    lines: list[str] = []

    def created(session: Session) -> None:
        store.close(session)
        lines.append(f"still live: {store.get('a') is session}")

    store.listen(created=created)
    diary = Diary(store)
    session = store.create("a")
    assert lines == ["still live: True"]
    assert diary.lines == ["created a", "disposed a"]
    assert store.get("a") is None
    session.append("x", None)
    assert diary.lines == ["created a", "disposed a"]


def test_a_listener_may_append_while_it_hears_of_a_creation() -> None:
    store = SessionStore()

    def created(session: Session) -> None:
        session.append("x", None)

    store.listen(created=created)
    diary = Diary(store)
    store.create("a")
    assert sorted(diary.lines) == ["created a", "event 0 a"]


# -- event ---------------------------------------------------------------------------------------------


def test_events_are_told_after_their_commit_and_failures_are_contained(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = SessionStore()
    seen: list[tuple[int, int]] = []

    def fail(session: Session, event: SessionEvent) -> None:
        seen.append((event.seq, session.seq))
        raise RuntimeError("listener broke")

    store.listen(event=fail)
    diary = Diary(store)
    with caplog.at_level(logging.ERROR, logger="turnlog"):
        store.create("a").append("x", None)
    assert seen == [(0, 1)]
    assert diary.lines == ["created a", "event 0 a"]
    assert "listener broke" in caplog.text


def test_a_detach_asked_for_during_an_event_notice_waits_for_its_end() -> None:
    store = SessionStore()
    session = store.create("a")
    live: list[bool] = []

    def close(session: Session, event: SessionEvent) -> None:
        store.close(session)
        live.append(store.get("a") is session)

    store.listen(event=close)
    diary = Diary(store)
    session.append("x", None)
    assert live == [True]
    assert diary.lines == ["event 0 a", "disposed a"]
    assert store.get("a") is None


def test_a_session_that_is_no_longer_live_is_not_heard() -> None:
    store = SessionStore()
    diary = Diary(store)
    session = store.create("a")
    store.close(session)
    session.append("x", None)
    assert diary.lines == ["created a", "disposed a"]


def test_a_listener_that_was_taken_off_hears_nothing_more() -> None:
    store = SessionStore()
    one, two = Diary(store), Diary(store)
    session = store.create("a")
    one.stop()
    one.stop()
    session.append("x", None)
    assert (one.lines, two.lines) == (["created a"], ["created a", "event 0 a"])


def test_a_pre_commit_check_vetoes_before_anyone_hears() -> None:
    store = SessionStore(invariants=True)
    diary = Diary(store)
    session = store.create("a")
    with pytest.raises(Exception, match="no turn is open"):
        session.append("turn/end", {"turn": 1})
    assert diary.lines == ["created a"]


# -- scopes --------------------------------------------------------------------------------------------


def test_a_scoped_listener_hears_only_sessions_entered_in_its_scope() -> None:
    store = SessionStore()
    everyone, mine, others = Diary(store), Diary(store, scope="mine"), Diary(store, scope="other")
    session = store.prepare("a")
    detach = store.enter(session, scope="mine")
    store.announce(session)
    session.append("x", None)
    assert store.flush(session) is True
    detach()
    store.create("b")
    told = ["created a", "event 0 a", "flush a", "disposed a"]
    assert mine.lines == told
    assert everyone.lines == [*told, "created b"]
    assert others.lines == []


# -- flush ---------------------------------------------------------------------------------------------


def test_every_flush_listener_runs_and_then_the_first_failure_is_raised() -> None:
    store = SessionStore()
    session = store.create("a")
    calls: list[str] = []

    def fail(name: str) -> Callable[[Session], None]:
        def flush(session: Session) -> None:
            calls.append(name)
            raise RuntimeError(name)

        return flush

    store.listen(flush=lambda session: calls.append("zero"))
    store.listen(flush=fail("one"))
    store.listen(flush=fail("two"))
    store.listen(flush=lambda session: calls.append("three"))
    with pytest.raises(RuntimeError, match="one"):
        store.flush(session)
    assert calls == ["zero", "one", "two", "three"]
    assert store.get("a") is session


def test_a_flush_says_whether_any_listener_took_part() -> None:
    store = SessionStore()
    session = store.create("a")
    store.listen(created=lambda session: None)
    store.listen(flush=lambda session: None, scope="elsewhere")
    assert store.flush(session) is False
    store.listen(flush=lambda session: None)
    assert store.flush(session) is True


def test_only_a_session_that_is_live_here_can_be_flushed() -> None:
    store = SessionStore()
    store.listen(flush=lambda session: None)
    unpublished = store.prepare("a")
    assert code_of(lambda: store.flush(unpublished)) == "SESSION_NOT_LIVE"
    detach = store.enter(unpublished)
    assert store.flush(unpublished) is True
    detach()
    assert code_of(lambda: store.flush(unpublished)) == "SESSION_NOT_LIVE"
    store.create("a")
    assert code_of(lambda: store.flush(unpublished)) == "SESSION_NOT_LIVE"
    assert code_of(lambda: SessionStore().flush(store.list()[0])) == "SESSION_NOT_LIVE"


# -- fork ----------------------------------------------------------------------------------------------


def source(store: SessionStore, id_: str = "p") -> Session:
    """A session with one closed turn (seqs 0 to 2) and one open one."""
    session = store.create(
        id_, meta={"cwd": "/w", "origin": "subagent", "delegationDepth": 2, "agentPreset": "x"}
    )
    session.append("turn/start", {"turn": 1})
    session.append_user("q")
    session.append("turn/end", {"turn": 1})
    session.append("turn/start", {"turn": 2})
    return session


def test_forks_are_the_references(vectors: Vectors) -> None:
    cases = vectors("fork")
    store = SessionStore()
    parent = store.create("src", seed=cases["events"], meta={"cwd": "/w"})
    assert parent.seq == len(cases["events"])
    for case in cases["cases"]:
        boundary = case["boundary"]
        if "error" in case:
            with pytest.raises(SessionError) as caught:
                store.fork(parent, boundary)
            assert caught.value.code == case["error"], boundary
            continue
        child = store.fork(parent, boundary)
        assert {
            "seq": child.seq,
            "firstLiveSeq": child.first_live_seq,
            "seedLength": child.header.seed_length,
            "parentSession": child.header.parent_session,
            "cwd": child.header.cwd,
            "lastType": child.events[-1].type,
        } == case["child"], boundary


def test_a_child_has_its_parents_prefix_and_a_header_of_its_own() -> None:
    store = SessionStore(clock=lambda: 9)
    parent = source(store)
    child = store.fork(parent, 2, "c")
    assert child.header.to_dict() == {
        "version": 0,
        "id": "c",
        "createdAt": 9,
        "cwd": "/w",
        "parentSession": "p",
        "seedLength": 3,
    }
    assert child.events[:3] == parent.events[:3]
    assert [event.type for event in child.events[3:]] == [END_SEED]
    assert (child.first_live_seq, child.surface.nodes, child.state.open_turn) == (3, [1], None)
    assert child.derive_messages() == parent.derive_messages()
    assert store.get("c") is child


def test_forking_copies_nothing_and_writes_nothing_into_the_parent() -> None:
    store = SessionStore()
    parent = source(store)
    before = [event.to_json() for event in parent.events]
    child = store.fork(parent, 2)
    assert all(one is other for one, other in zip(child.events[:3], parent.events[:3], strict=True))
    child.append_user("only the child's")
    parent.append_user("only the parent's")
    assert [event.to_json() for event in parent.events][: len(before)] == before
    assert [message.text for message in child.derive_messages()] == ["q", "only the child's"]
    assert [message.text for message in parent.derive_messages()] == ["q", "only the parent's"]


def test_an_end_seed_at_the_boundary_counts_as_inherited() -> None:
    store = SessionStore()
    parent = source(store)
    child = store.fork(parent, 2)
    grandchild = store.fork(child)
    assert (grandchild.seq, grandchild.header.seed_length, grandchild.first_live_seq) == (4, 4, 4)
    assert grandchild.header.parent_session == child.id


def test_an_empty_source_forks_an_empty_child() -> None:
    store = SessionStore()
    child = store.fork(store.create("p"))
    assert ([event.type for event in child.events], child.header.seed_length) == ([END_SEED], 0)


@pytest.mark.parametrize("boundary", [-1, 4, 10**6, 1.5, 2.0, "2", True, 2**60])
def test_a_boundary_is_a_seq_of_the_log(boundary: Any) -> None:
    store = SessionStore()
    parent = source(store)
    assert code_of(lambda: store.fork(parent, boundary)) == "INVALID_BOUNDARY"
    assert store.list() == [parent]


@pytest.mark.parametrize("boundary", [0, 1, 3, None])
def test_a_prefix_inside_an_open_turn_is_refused(boundary: int | None) -> None:
    store = SessionStore()
    parent = source(store)
    assert code_of(lambda: store.fork(parent, boundary)) == "OPEN_TURN"


def test_the_first_of_several_faults_is_told() -> None:
    store = SessionStore()
    parent = source(store)
    stranger = Session.create("p")
    assert code_of(lambda: store.fork("nobody", -1, "p")) == "SESSION_ALREADY_EXISTS"
    assert code_of(lambda: store.fork(stranger, -1, "p")) == "SESSION_ALREADY_EXISTS"
    assert code_of(lambda: store.fork("nobody", -1)) == "SESSION_NOT_FOUND"
    assert code_of(lambda: store.fork(stranger, -1)) == "SESSION_NOT_LIVE"
    assert code_of(lambda: store.fork(store.prepare("q"), 0)) == "SESSION_NOT_LIVE"
    assert code_of(lambda: store.fork(parent, -1)) == "INVALID_BOUNDARY"
    assert code_of(lambda: store.fork("p", 0)) == "OPEN_TURN"


def test_forks_stay_sound_while_other_threads_append_to_the_parent() -> None:
    store = SessionStore()
    parent = store.create("p")
    done = threading.Event()

    def work() -> None:
        for number in range(100):
            parent.append_user(str(number))
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    children = []
    while not done.is_set():
        children.append(store.fork(parent))
    thread.join()
    for child in children:
        inherited = child.header.seed_length or 0
        assert child.surface.nodes == list(range(inherited))
        assert [message.text for message in child.derive_messages()] == [
            str(n) for n in range(inherited)
        ]
        assert child.append_user("x").seq == inherited + 1
