"""Committing to a database: many sessions at once, one turn by turn, and the first page of ten thousand."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import turnlog
from benchmarks.measure import Bar, Report, interleave, milliseconds, ratio
from turnlog.codec.record import encode_batch
from turnlog.header import SessionHeader
from turnlog.session import Session
from turnlog.storage.sqlite import SqliteStorage

_SESSIONS = 64
_TURNS = 4
_EVENTS_A_TURN = 12
_STORED = 10_000


def commit() -> Report:
    """Flushes of 64 threads, each acknowledged after its commit, against one commit an event."""
    with TemporaryDirectory() as folder:
        names = count()
        bare = _bare_database(Path(folder) / "bare.db")
        with turnlog.open(Path(folder) / "ours.db", window_ms=0) as log:
            live: list[Session] = []

            def prepare() -> None:
                for session in live:
                    session.close()
                round_ = next(names)
                live[:] = [log.create(id=f"{round_}-{number}") for number in range(_SESSIONS)]

            times = interleave(
                {
                    "each": lambda: _commit_each(bare, _SESSIONS * _TURNS * _EVENTS_A_TURN // 8),
                    "prepare": prepare,
                    "ours": lambda: _together(live),
                },
                rounds=5,
            )
        bare.close()
    events = _SESSIONS * _TURNS * _EVENTS_A_TURN
    each = [seconds * 8 for seconds in times["each"]]
    gain = ratio({"each": each, "ours": times["ours"]}, "ours", "each")
    return Report(
        f"{_SESSIONS} threads, each {_TURNS} turns of {_EVENTS_A_TURN} events and a flush a turn; {events:,} events",
        [
            f"sqlite3, one transaction an event (an eighth, times 8): {milliseconds(each)}",
            f"turnlog, SQLite, synchronous=FULL: {milliseconds(times['ours'])}",
        ],
        [Bar("ours / one commit an event", gain, 1 / 8)],
    )


def flush() -> Report:
    """The flush of one session after each turn, against the bare transaction with the same bytes."""
    with TemporaryDirectory() as folder:
        bare = _bare_database(Path(folder) / "bare.db")
        with turnlog.open(Path(folder) / "ours.db", window_ms=0) as log:
            session = log.create()
            _turn(session)
            body = encode_batch(session.events)
            session.flush()

            def ours() -> None:
                session.flush()

            times = interleave(
                {
                    "append": lambda: _turn(session),
                    "flush": ours,
                    "bare": lambda: _commit_body(bare, body),
                },
                rounds=60,
            )
        bare.close()
    return Report(
        f"one flush of a turn of {_EVENTS_A_TURN} events; the appends lie outside",
        [
            f"bare transaction with the same bytes: {milliseconds(times['bare'])}",
            f"session.flush: {milliseconds(times['flush'])}",
        ],
        [Bar("flush / bare transaction", ratio(times, "flush", "bare"), 1.3)],
    )


def browse() -> Report:
    """The first page, and all pages, of ten thousand stored sessions with titles."""
    with TemporaryDirectory() as folder:
        storage = SqliteStorage(Path(folder) / "ours.db")
        for number in range(_STORED):
            header = SessionHeader(id=f"s{number:05}", created_at=number)
            session = Session.create(header.id, header=header)
            data = {"title": f"Title {number}", "messageSeqs": [], "source": {"kind": "user"}}
            session.append("session/title", data)
            storage.append(header, session.events)
        log = turnlog.Turnlog(storage)
        times = interleave(
            {"first": lambda: log.query.browse(limit=50), "all": lambda: _pages(log)}
        )
        log.close()
    first, every = min(times["first"]) * 1e3, min(times["all"])
    return Report(
        f"query.browse over {_STORED:,} sessions with titles, pages of 50 and of 1,000",
        [
            f"first page: {milliseconds(times['first'])}",
            f"all pages: {milliseconds(times['all'])}",
        ],
        [Bar("first page", first, 10, "ms"), Bar("all pages", every, 0.5, "s")],
    )


def _pages(log: turnlog.Turnlog) -> int:
    seen, cursor = 0, None
    while True:
        page = log.query.browse(limit=1000, cursor=cursor)
        seen += len(page.sessions)
        cursor = page.next_cursor
        if cursor is None:
            return seen


def _turn(session: Session) -> None:
    turn = session.state.turn + 1
    place = {"turn": turn, "step": 1}
    session.append("turn/start", {"turn": turn})
    session.append("step/start", place)
    for number in range(_EVENTS_A_TURN - 4):
        chunk = {"type": "text-delta", "index": 0, "text": f"word {number} "}
        session.append("assistant/chunk", {**place, "chunk": chunk})
    session.append("step/end", place)
    session.append("turn/end", {"turn": turn, "reason": {"kind": "completed"}})


def _together(sessions: list[Session]) -> None:
    start = threading.Barrier(_SESSIONS)

    def work(session: Session) -> None:
        start.wait()
        for _ in range(_TURNS):
            _turn(session)
            session.flush()

    _run_all([lambda session=session: work(session) for session in sessions])  # type: ignore[misc]


def _run_all(calls: list[Callable[[], None]]) -> None:
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _bare_database(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("CREATE TABLE bodies (place INTEGER PRIMARY KEY, body BLOB)")
    return connection


def _commit_body(connection: sqlite3.Connection, body: bytes) -> None:
    connection.execute("BEGIN IMMEDIATE")
    connection.execute("INSERT INTO bodies (body) VALUES (?)", (body,))
    connection.execute("COMMIT")


def _commit_each(connection: sqlite3.Connection, events: int) -> None:
    for _ in range(events):
        _commit_body(connection, b"x" * 150)
