"""Processes that race for one session: one wins each time, and death frees at once (cases 35, 36)."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import turnlog
from turnlog.errors import ForkedError, SessionError, SessionLockedError

RACER = """
    import sys, time
    import turnlog
    from turnlog.errors import SessionError, SessionExistsError, SessionLockedError

    log = turnlog.open(sys.argv[1], window_ms=0)
    me = sys.argv[2]
    for line in sys.stdin:
        what, name = line.split()
        try:
            session = log.resume(name) if what == "resume" else log.create(id=name)
            session.append_user(me)
            session.flush()
        except (SessionLockedError, SessionError) as error:
            print(error.code, flush=True)
            sys.stdin.readline()
            continue
        print("won", flush=True)
        sys.stdin.readline()  # keeps the lease until everybody has tried
        session.close()
        print("closed", flush=True)
"""

RACERS = 3


class Racer:
    def __init__(self, target: Path, name: str) -> None:
        program = textwrap.dedent(RACER)
        self.process = subprocess.Popen(
            [sys.executable, "-c", program, str(target), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def race(target: Path, rounds: int) -> None:
    racers = [Racer(target, f"racer {number}") for number in range(RACERS)]
    try:
        for number in range(rounds):
            # Creation, then resuming what was created, all at the same time.
            for what, refusals in (
                ("create", {"SESSION_LOCKED", "SESSION_ALREADY_EXISTS"}),
                ("resume", {"SESSION_LOCKED"}),
            ):
                for racer in racers:
                    racer.tell(f"{what} s{number}")
                answers = [racer.answer() for racer in racers]
                assert answers.count("won") == 1, answers
                assert set(answers) - {"won"} <= refusals, answers
                for racer in racers:
                    racer.tell("go on")
                assert racers[answers.index("won")].answer() == "closed"
    finally:
        for racer in racers:
            racer.end()
    with turnlog.open(target) as log:
        for number in range(rounds):
            events = log.storage.read_from(f"s{number}", 0)
            assert [event.type for event in events] == [
                "user/message",
                "session/end-seed",
                "user/message",
            ]


@pytest.mark.parametrize("name", ["root", "s.db"])
def test_of_several_processes_one_wins(name: str, tmp_path: Path) -> None:
    race(tmp_path / name, 6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["root", "s.db"])
def test_of_several_processes_one_wins_a_hundred_times(name: str, tmp_path: Path) -> None:
    race(tmp_path / name, 100)


# -- os.fork -------------------------------------------------------------------------------------------

FORKING = """
    import os, sys, time
    import turnlog
    log = turnlog.open(sys.argv[1], window_ms=0)
    session = log.create(id="s1")
    session.append_user("parent")
    session.flush()
    session.append_user("pending")
    if not os.fork():
        # The child lives on, with whatever it has inherited.
        print(os.getpid(), flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("name", ["root", "s.db"])
def test_a_forked_child_does_not_keep_a_dead_parents_lease(name: str, tmp_path: Path) -> None:
    program = textwrap.dedent(FORKING)
    parent = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / name)], stdout=subprocess.PIPE
    )
    with parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        try:
            with turnlog.open(tmp_path / name) as log:
                with pytest.raises(SessionLockedError):
                    log.resume("s1")
                parent.send_signal(signal.SIGKILL)
                parent.wait()
                session = log.resume("s1")
                assert [one.text for one in session.derive_messages()] == ["parent"]
        finally:
            os.kill(child, signal.SIGKILL)


@pytest.mark.parametrize("name", ["root", "s.db"])
def test_a_forked_child_may_not_write_and_its_parent_goes_on(name: str, tmp_path: Path) -> None:
    with turnlog.open(tmp_path / name) as log:
        session = log.create(id="s1")
        session.append_user("a")
        session.flush()
        session.append_user("pending at the fork")
        pid = os.fork()
        if not pid:  # pragma: no cover - in the child
            status = 1
            try:
                for call in (lambda: session.append_user("child"), session.flush):
                    try:
                        call()
                    except ForkedError:
                        continue
                    os._exit(2)
                log.flush()
                with contextlib.suppress(SessionError):
                    log.delete("s1")
                log.close()
                with turnlog.open(tmp_path / name) as own:
                    try:
                        own.resume("s1")
                    except SessionLockedError:
                        other = own.create(id="child's own")
                        other.append_user("fine")
                        status = 0
            finally:
                os._exit(status)
        assert os.waitpid(pid, 0)[1] == 0
        session.append_user("b")
        session.flush()
    with turnlog.open(tmp_path / name) as log:
        texts = [one.text for one in log.query.read_session("s1").derive_messages()]
        assert texts == ["a", "pending at the fork", "b"]
        assert len(log.query.read_session("child's own").derive_messages()) == 1


# -- many processes, one database ------------------------------------------------------------------------

SHARING = """
    import sys
    import turnlog
    target, name, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
    if name == "reader":
        for _ in range(rounds):
            with turnlog.open(target) as log:
                log.query.list_sessions()
                log.query.browse()
    else:
        with turnlog.open(target) as log, log.create(id=name) as session:
            for number in range(rounds):
                session.append_user(f"{name} {number}")
                session.flush()
"""


def share(target: Path, writers: int, rounds: int) -> None:
    names = [*[f"w{number}" for number in range(writers)], "reader"]
    program = textwrap.dedent(SHARING)
    processes = [
        subprocess.Popen([sys.executable, "-c", program, str(target), name, str(rounds)])
        for name in names
    ]
    assert [process.wait() for process in processes] == [0] * len(names)
    with turnlog.open(target) as log:
        for name in names[:-1]:
            texts = [one.text for one in log.query.read_session(name).derive_messages()]
            assert texts == [f"{name} {number}" for number in range(rounds)]


@pytest.mark.parametrize("name", ["root", "s.db"])
def test_case_39_processes_share_one_store(name: str, tmp_path: Path) -> None:
    share(tmp_path / name, 4, 25)


@pytest.mark.slow
def test_case_39_ten_processes_share_one_database(tmp_path: Path) -> None:
    share(tmp_path / "s.db", 8, 200)
