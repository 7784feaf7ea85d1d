"""`turnlog.open`: targets, and a session's life from creation to a killed process (log.md, 6 to 8)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import turnlog
from turnlog.errors import (
    ConflictError,
    EventError,
    HeaderError,
    InvariantError,
    SessionError,
    SessionNotFoundError,
    StorageError,
    StorageWriteError,
    TargetError,
)
from turnlog.log import uuid7
from turnlog.storage.jsonl import JsonlStorage
from turnlog.storage.memory import MemoryStorage
from turnlog.testing.builders import EventBuilder, header_of, log_text, open_events, place_log


def types(session: Any) -> list[str]:
    return [event.type for event in session.events]


# -- targets -------------------------------------------------------------------------------------------


def test_a_directory_is_a_jsonl_store(tmp_path: Path) -> None:
    for target in (
        tmp_path / "a",
        str(tmp_path / "a"),
        f"jsonl://{tmp_path}/a",
        f"JSONL://{tmp_path}/a",
    ):
        with turnlog.open(target) as log:
            assert isinstance(log.storage, JsonlStorage)
            assert log.storage.root == tmp_path / "a"


def test_a_url_is_percent_decoded(tmp_path: Path) -> None:
    with turnlog.open(f"jsonl://{tmp_path}/a%20b%23%3F") as log:
        assert isinstance(log.storage, JsonlStorage)
        assert log.storage.root == tmp_path / "a b#?"


def test_memory_is_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with turnlog.open("memory:") as log, log.create() as session:
        session.append_user("hi")
        session.flush()
        assert isinstance(log.storage, MemoryStorage)
        assert len(log.query.read_session(session.id).derive_messages()) == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "target",
    [
        "",
        "a\0b",
        "jsonl://",
        "jsonl://host/a",
        "jsonl://[/a",
        "jsonl:a",
        "jsonl:///a?mode=ro",
        "jsonl:///a#b",
        "memory://",
        "redis://localhost",
        "http://example.org/x",
    ],
)
def test_a_target_that_names_no_store_is_refused(target: str) -> None:
    with pytest.raises(TargetError) as caught:
        turnlog.open(target)
    assert caught.value.code == "INVALID_TARGET"


def test_a_file_that_is_no_database_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"some text, and not a little of it" * 40)
    with turnlog.open(tmp_path / "f") as log, pytest.raises(StorageError):
        log.query.list_sessions()
    assert (tmp_path / "f").read_bytes().startswith(b"some text")


def test_no_target_is_the_users_own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    with turnlog.open() as log, log.create() as session:
        session.append_user("hi")
    assert [path.name for path in tmp_path.rglob("sessions.db")] == ["sessions.db"]


# -- creating ------------------------------------------------------------------------------------------


def test_a_session_is_stored_with_its_first_flush(tmp_path: Path) -> None:
    log = turnlog.open(tmp_path / "r")
    session = log.create(cwd="/w", meta={"agentPreset": "x", "theirs": 1})
    assert not list((tmp_path / "r").rglob("session.*"))
    session.flush()
    assert not list((tmp_path / "r").rglob("session.*"))
    session.append_user("hi")
    session.flush()
    assert log.storage.read_from(session.id, 0)[0].to_json() == session.events[0].to_json()
    assert log.query.list_sessions()[0].header == session.header
    header = log.storage.inspect(session.id).header
    assert {"theirs": 1, "agentPreset": "x", "cwd": "/w"}.items() <= header.to_dict().items()
    log.close()


def test_ids_are_sortable_uuids(tmp_path: Path) -> None:
    log = turnlog.open(tmp_path, clock=lambda: 1_700_000_000_000)
    id_ = log.create().id
    assert id_[14] == "7"
    assert id_[19] in "89ab"
    assert id_.replace("-", "")[:12] == f"{1_700_000_000_000:012x}"
    assert uuid7(1)[:13] < uuid7(2)[:13]
    log.close()


def test_a_taken_id_is_refused_live_and_stored(tmp_path: Path) -> None:
    with turnlog.open(tmp_path) as log:
        session = log.create(id="s1")
        for _ in range(2):
            with pytest.raises(SessionError) as caught:
                log.create(id="s1", cwd="/elsewhere")
            assert caught.value.code == "SESSION_ALREADY_EXISTS"
            with pytest.raises(SessionError):
                log.fork("s1", child_id="s1")
            if not session.seq:
                session.append_user("hi")
                session.close()


def test_an_id_that_was_never_stored_can_be_used_again(tmp_path: Path) -> None:
    with turnlog.open(tmp_path) as log:
        log.create(id="s1").close()
        log.create(id="s1").append_user("hi")
    assert len(turnlog.open(tmp_path).query.list_sessions()) == 1


def test_a_damaged_log_still_owns_its_id(tmp_path: Path) -> None:
    path = place_log(tmp_path, b"\0\0\0\n")
    with turnlog.open(tmp_path) as log:
        with pytest.raises(SessionError):
            log.create(id="s1")
        with pytest.raises(StorageError):
            log.resume("s1")
        with pytest.raises(StorageError):
            log.fork("s1")
        log.create(id="s2").append_user("fine")
    assert path.read_bytes() == b"\0\0\0\n"


@pytest.mark.parametrize("id_", ["", "x" * 300])
def test_an_id_that_cannot_be_stored_is_refused_at_once(id_: str, tmp_path: Path) -> None:
    with turnlog.open(tmp_path / "r") as log:
        with pytest.raises((StorageError, HeaderError)):
            log.create(id=id_)
        assert log.sessions.list() == []
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize("meta", [{"cwd": "relative"}, {"createdAt": -1}, {"sandboxMode": "x"}])
def test_a_wrong_header_is_refused(meta: dict[str, Any]) -> None:
    with turnlog.open("memory:") as log:
        with pytest.raises(HeaderError):
            log.create(meta=meta)
        assert log.sessions.list() == []


def test_what_no_load_takes_is_refused_at_append(tmp_path: Path) -> None:
    with turnlog.open(tmp_path) as log, log.create() as session:
        with pytest.raises(EventError) as caught:
            session.append("nobody/knows", {})
        assert caught.value.code == "UNKNOWN_EVENT_TYPE"
        with pytest.raises(InvariantError):
            session.append("turn/end", {"turn": 1, "reason": {"kind": "completed"}})
        session.append("nobody/knows", {}, ignorable=True)
    assert types(turnlog.open(tmp_path).query.read_session(session.id))[0] == "nobody/knows"


# -- resuming ------------------------------------------------------------------------------------------


def test_resuming_repairs_durably(tmp_path: Path) -> None:
    path = place_log(tmp_path, log_text(open_events()) + b'{"torn')
    with turnlog.open(tmp_path) as log:
        session = log.resume("s1")
        assert types(session)[-5:] == [
            "tool/result",
            "tool/result",
            "step/end",
            "turn/end",
            "session/end-seed",
        ]
        assert session.first_live_seq == session.seq - 1
        stored = path.read_bytes()
        assert b'"kind":"interrupted"' in stored
        assert b"torn" not in stored
        assert b"end-seed" not in stored
    assert path.read_bytes().startswith(stored)
    assert path.read_bytes().count(b"end-seed") == 1
    again = turnlog.open(tmp_path)
    length = again.resume("s1").seq
    assert length == session.seq
    again.close()
    assert path.read_bytes().count(b"end-seed") == 1


def test_resuming_without_repair_leaves_calls_open(tmp_path: Path) -> None:
    """Case 4: a host that can still answer the calls goes on with the turn."""
    path = place_log(tmp_path, log_text(open_events()) + b'{"torn')
    with turnlog.open(tmp_path) as log:
        session = log.resume("s1", repair=False)
        assert types(session)[-2:] == ["tool/call", "session/end-seed"]
        assert path.read_bytes() == log_text(open_events())
        result = turnlog.tool_result_message("c8", "it was approved")
        data = {"turn": 2, "step": 1, "message": result}
        session.append("tool/result", data, surface_op="append")
        session.append("step/end", {"turn": 2, "step": 1})
        session.append("turn/end", {"turn": 2, "reason": {"kind": "completed"}})
    assert turnlog.open(tmp_path).query.read_session("s1").state.open_turn is None
    assert b"interrupted" not in path.read_bytes()


def test_reading_repairs_nothing(tmp_path: Path) -> None:
    data = log_text(open_events()) + b'{"torn'
    path = place_log(tmp_path, data)
    with turnlog.open(tmp_path) as log:
        assert log.query.read_session("s1").state.open_turn is None
        assert log.query.read_session("s1", close_turn=False).state.open_turn == 2
        log.query.read_surface("s1")
        log.query.salvage("s1")
        log.query.list_sessions()
    assert path.read_bytes() == data


def test_a_live_session_is_not_resumed_again(tmp_path: Path) -> None:
    place_log(tmp_path, log_text(open_events()))
    with turnlog.open(tmp_path) as log:
        session = log.resume("s1")
        with pytest.raises(SessionError) as caught:
            log.resume("s1")
        assert caught.value.code == "SESSION_ALREADY_EXISTS"
        session.close()
        assert log.resume("s1") is not session
        with pytest.raises(SessionError):
            session.append_user("too late")


def test_resuming_what_is_not_there(tmp_path: Path) -> None:
    with turnlog.open(tmp_path) as log:
        for call in (log.resume, log.fork, log.query.read_session, log.query.salvage):
            with pytest.raises(SessionNotFoundError):
                call("nobody")
        assert log.sessions.list() == []


# -- forking -------------------------------------------------------------------------------------------


def test_a_fork_of_a_stored_session_ends_its_seed_where_the_source_ends(tmp_path: Path) -> None:
    events = EventBuilder().talk().work().events
    path = place_log(tmp_path, log_text(events, header_of(cwd="/w")), cwd="/w")
    with turnlog.open(tmp_path) as log:
        child = log.fork("s1", child_id="c")
        assert child.header.seed_length == len(events)
        assert child.header.parent_session == "s1"
        assert child.header.cwd == "/w"
        assert types(child) == [*(event.type for event in events), "session/end-seed"]
        assert log.sessions.get("s1") is None
        child.append_user("on the other branch")
        child.flush()
        child.flush()
    assert path.read_bytes() == log_text(events, header_of(cwd="/w"))
    stored = turnlog.open(tmp_path).storage.inspect("c")
    assert stored.header.seed_length == len(events)
    assert len(stored.log) == child.seq
    assert list(stored.log.view())[: len(events)] == events


def test_a_fork_at_a_boundary(tmp_path: Path) -> None:
    first = EventBuilder().talk().seq
    place_log(tmp_path, log_text(EventBuilder().talk().interrupted().events))
    with turnlog.open(tmp_path) as log:
        assert log.fork("s1", first - 1).header.seed_length == first
        with pytest.raises(SessionError) as caught:
            log.fork("s1", first)
        assert caught.value.code == "OPEN_TURN"
        # The last turn's closers, which a repair would store, count as the source's events.
        assert log.fork("s1").header.seed_length == len(open_events()) + 4
        for boundary in (-1, len(open_events()) + 4, 1.0, True):
            with pytest.raises(SessionError) as caught:
                log.fork("s1", boundary)  # type: ignore[arg-type]
            assert caught.value.code == "INVALID_BOUNDARY"


def test_a_fork_of_a_live_session_sees_what_is_not_flushed(tmp_path: Path) -> None:
    with turnlog.open(tmp_path) as log:
        session = log.create(id="s1")
        session.append_user("hi")
        child = log.fork(session)
        session.append_user("more")
        assert len(child.derive_messages()) == 1
        assert child.header.seed_length == 1
        empty = log.fork(log.create(id="empty"))
        assert empty.header.seed_length == 0
        assert types(empty) == ["session/end-seed"]


# -- flushing and closing ------------------------------------------------------------------------------


def test_each_event_is_written_once_and_in_order(tmp_path: Path) -> None:
    with turnlog.open(tmp_path) as log:
        session = log.create(id="s1")
        for number in range(5):
            session.append_user(str(number))
            if number % 2:
                session.flush()
                log.flush()
                assert log.sessions.flush(session)
    events = turnlog.open(tmp_path).storage.read_from("s1", 0)
    assert [event.seq for event in events] == list(range(5))
    assert [event.message.text for event in events] == list("01234")


def test_a_failed_flush_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = turnlog.open(tmp_path)
    one, other = log.create(id="one"), log.create(id="other")
    one.append_user("a")
    other.append_user("b")
    real = log.storage.append

    def fail(header: Any, events: Any, fence: Any = None) -> None:
        if header.id == "one":
            raise StorageWriteError("disk full")
        real(header, events, fence)

    with monkeypatch.context() as patch:
        patch.setattr(log.storage, "append", fail)
        for call in (one.flush, one.close, log.flush, log.close):
            with pytest.raises(StorageWriteError):
                call()
    assert [session.id for session in log.sessions.list()] == ["one"]
    assert len(log.storage.read_from("other", 0)) == 1
    one.append_user("c")
    log.close()
    assert log.sessions.list() == []
    assert len(turnlog.open(tmp_path).storage.read_from("one", 0)) == 2


def test_a_writer_that_lost_the_log_says_so(tmp_path: Path) -> None:
    log = turnlog.open(tmp_path)
    session = log.create(id="s1")
    session.append_user("a")
    session.flush()
    # A harness knows nothing of our leases: its writing is noticed at the next append.
    other = turnlog.open(tmp_path)
    other.storage.append(session.header, turnlog.Session.create("s1", [*session.events]).events[1:])
    session.append_user("mine")
    with pytest.raises(ConflictError):
        session.flush()
    with pytest.raises(ConflictError):
        session.append_user("more")
    with pytest.raises(ConflictError):
        session.close()
    types = [event.type for event in other.query.read_session("s1").events]
    assert types == ["user/message", "session/end-seed"]
    log.close()


def test_closing_is_final_and_can_be_said_twice(tmp_path: Path) -> None:
    log = turnlog.open(tmp_path)
    session = log.create(id="s1")
    session.append_user("a")
    log.close()
    log.close()
    session.close()
    calls: list[Callable[[], Any]] = [
        log.create,
        lambda: log.resume("s1"),
        lambda: log.fork("s1"),
    ]
    for call in calls:
        with pytest.raises(SessionError) as caught:
            call()
        assert caught.value.code == "CLOSED"
    with pytest.raises(SessionError) as caught:
        session.append_user("b")
    assert caught.value.code == "CLOSED"


def test_an_error_inside_the_block_still_makes_it_durable(tmp_path: Path) -> None:
    def work() -> None:
        with turnlog.open(tmp_path) as log, log.create(id="s1") as session:
            session.append_user("a")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert len(turnlog.open(tmp_path).storage.read_from("s1", 0)) == 1


def test_a_live_session_hides_its_stored_log(tmp_path: Path) -> None:
    with turnlog.open(tmp_path) as log:
        session = log.create(id="s1")
        session.append_user("a")
        session.flush()
        session.append_user("b")
        (record,) = log.query.list_sessions()
        assert record.live
        assert len(log.query.read_session("s1").derive_messages()) == 2


# -- a killed process ----------------------------------------------------------------------------------


PROGRAM = """
    import os, signal, sys
    import turnlog

    log = turnlog.open(sys.argv[1])
    session = log.create(id="s1")
    for number in range(int(sys.argv[2])):
        session.append_user(f"message {number} \\u2028 \\U0001f600")
        session.flush()
    session.append_user("not flushed")
    session.append("turn/start", {"turn": 1})
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("flushed", [1, 7])
def test_kill_9_after_a_flush_loses_nothing(flushed: int, tmp_path: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), str(tmp_path), str(flushed)],
        check=False,
        env={**os.environ, "PYTHONUTF8": "0", "LC_ALL": "C"},
    )
    assert run.returncode == -signal.SIGKILL
    with turnlog.open(tmp_path) as log:
        texts = [message.text for message in log.resume("s1").derive_messages()]
    wanted = [f"message {number} \u2028 \U0001f600" for number in range(flushed)]
    assert texts == wanted
