"""The SQLite storage by itself: whose file it is, what damages and blocks it, and what forks share."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import turnlog
from turnlog.engine.listing import Notes, Progress, SessionFilter
from turnlog.engine.protocol import Batch
from turnlog.errors import (
    ConflictError,
    CorruptLogError,
    SessionNotFoundError,
    StorageBusyError,
    StorageError,
    StorageWriteError,
    TurnlogError,
    UnsupportedFormatError,
)
from turnlog.events import SessionEvent
from turnlog.storage.sqlite import SqliteStorage
from turnlog.storage.sqlite.schema import APPLICATION_ID, SCHEMA_VERSION
from turnlog.testing.builders import EventBuilder, header_of, talk_events

EVENTS = talk_events(2)
TURN = len(talk_events(1))
Opener = Callable[..., SqliteStorage]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s.db"


@pytest.fixture
def opened(path: Path) -> Iterator[Opener]:
    storages: list[SqliteStorage] = []

    def open_storage(where: Path = path, **options: Any) -> SqliteStorage:
        storages.append(SqliteStorage(where, **options))
        return storages[-1]

    yield open_storage
    for storage in storages:
        storage.close()


def lines(storage: SqliteStorage, id: str = "s1") -> list[bytes]:
    return [event.to_json() for event in storage.read_from(id, 0)]


def wanted(events: list[SessionEvent] = EVENTS) -> list[bytes]:
    return [event.to_json() for event in events]


def execute(path: Path, *statements: str, values: tuple[Any, ...] = ()) -> list[Any]:
    found: list[Any] = []
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            found = connection.execute(statement, values).fetchall()
    return found


def snapshot(directory: Path) -> dict[str, bytes]:
    return {
        str(one.relative_to(directory)): one.read_bytes()
        for one in directory.rglob("*")
        if one.is_file()
    }


def uses(storage: SqliteStorage) -> list[Callable[[], Any]]:
    """A call of every kind."""
    return [
        storage.list,
        lambda: storage.inspect("s1"),
        lambda: storage.append(header_of(), EVENTS),
        lambda: storage.browse(SessionFilter()),
        lambda: storage.set_notes("s1", Notes()),
        lambda: storage.delete("s1"),
        lambda: storage.put_blob("0" * 64, b""),
        lambda: storage.revision("s1"),
    ]


# -- whose file it is ----------------------------------------------------------------------------------


def plain(path: Path) -> None:
    execute(path, "CREATE TABLE theirs (x)", "INSERT INTO theirs VALUES (1)")


def marked(path: Path) -> None:
    plain(path)
    execute(path, "PRAGMA application_id=7")


def emptied(path: Path) -> None:
    execute(path, "PRAGMA user_version=3")


def in_use(path: Path) -> None:
    """In WAL mode, with what its owner's crash left beside it."""
    source = path.with_name("source.db")
    with closing(sqlite3.connect(source)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("CREATE TABLE theirs (x)")
        connection.commit()
        shutil.copy(source, path)
        shutil.copy(f"{source}-wal", f"{path}-wal")
    source.unlink()


def interrupted(path: Path) -> None:
    """With a rollback journal that opening would roll back."""
    plain(path)
    source = path.with_name("source.db")
    shutil.copy(path, source)
    with closing(sqlite3.connect(source, isolation_level=None)) as connection:
        connection.execute("PRAGMA cache_size=1")
        connection.execute("PRAGMA cache_spill=1")
        connection.execute("BEGIN")
        for _ in range(200):
            connection.execute("INSERT INTO theirs VALUES (randomblob(2000))")
        shutil.copy(source, path)
        shutil.copy(f"{source}-journal", f"{path}-journal")
        connection.rollback()
    source.unlink()


@pytest.mark.parametrize("make", [plain, marked, emptied, in_use, interrupted])
def test_a_foreign_database_is_refused_and_stays_as_it_is(
    make: Callable[[Path], None], path: Path, opened: Opener
) -> None:
    make(path)
    before = snapshot(path.parent)
    for use in uses(opened()):
        with pytest.raises(StorageError) as caught:
            use()
        assert caught.value.code == "FOREIGN_DATABASE"
    assert snapshot(path.parent) == before


@pytest.mark.parametrize("content", [b"x", b"theirs\n" * 99, b"SQLite format 3\0", b"\0" * 5000])
def test_a_file_that_is_no_database_is_refused_and_stays_as_it_is(
    content: bytes, path: Path, opened: Opener
) -> None:
    path.write_bytes(content)
    for use in uses(opened()):
        with pytest.raises(CorruptLogError) as caught:
            use()
        assert caught.value.code == "DAMAGED_DATABASE"
    assert snapshot(path.parent) == {"s.db": content}


def test_a_newer_schema_is_refused_and_stays_as_it_is(path: Path, opened: Opener) -> None:
    opened().append(header_of(), EVENTS)
    opened().close()
    execute(path, f"PRAGMA user_version={SCHEMA_VERSION + 1}")
    before = path.read_bytes()
    for use in uses(opened()):
        with pytest.raises(UnsupportedFormatError, match="upgrade turnlog") as caught:
            use()
        assert caught.value.code == "NEWER_FORMAT"
    assert path.read_bytes() == before


def empty_database(path: Path) -> None:
    execute(path, "VACUUM")


@pytest.mark.parametrize("make", [Path.touch, empty_database, lambda path: None])
def test_an_empty_file_becomes_a_store(
    make: Callable[[Path], None], path: Path, opened: Opener
) -> None:
    make(path)
    storage = opened()
    storage.append(header_of(), EVENTS)
    assert lines(opened()) == wanted()
    storage.close()
    opened().close()
    assert execute(path, "PRAGMA application_id") == [(APPLICATION_ID,)]
    # The mark is in the file itself from the start, not only in what lies beside it.
    assert path.read_bytes()[68:72] == APPLICATION_ID.to_bytes(4, "big")


def test_the_mark_is_in_the_file_while_it_is_in_use(path: Path, opened: Opener) -> None:
    storage = opened()
    storage.append(header_of(), EVENTS)
    assert path.read_bytes()[68:72] == APPLICATION_ID.to_bytes(4, "big")
    assert lines(opened()) == wanted()


def test_looking_creates_nothing(tmp_path: Path, opened: Opener) -> None:
    storage = opened(tmp_path / "deep" / "s.db")
    assert storage.list() == []
    assert storage.revision("s1") is None
    assert storage.get_blob("0" * 64) is None
    assert list(storage.list_blobs()) == []
    storage.delete_blob("0" * 64)
    calls: list[Callable[[str], Any]] = [storage.inspect, storage.notes, storage.delete]
    for call in [*calls, storage.salvage]:
        with pytest.raises(SessionNotFoundError):
            call("s1")
    with pytest.raises(SessionNotFoundError):
        storage.set_notes("s1", Notes())
    with pytest.raises(SessionNotFoundError):
        storage.share(header_of("child"), "s1", Progress(1))
    with turnlog.open(tmp_path / "deep" / "s.db") as log:
        for call in (log.resume, log.delete, log.fork, log.storage.load):
            with pytest.raises(SessionNotFoundError):
                call("s1")
    assert list(tmp_path.iterdir()) == []


def test_all_its_files_are_private(tmp_path: Path, opened: Opener) -> None:
    old = os.umask(0)
    try:
        storage = opened(tmp_path / "deep" / "s.db")
        lease = storage.acquire("s1")
        storage.append(header_of(), EVENTS)
        modes = {one.name: one.stat().st_mode & 0o777 for one in (tmp_path / "deep").rglob("*")}
        lease.release()
    finally:
        os.umask(old)
    assert modes == {
        "s.db": 0o600,
        "s.db-wal": 0o600,
        "s.db-shm": 0o600,
        "s.db.locks": 0o700,
        "s1.lock": 0o600,
    }
    assert (tmp_path / "deep").stat().st_mode & 0o777 == 0o700


def test_many_that_create_one_store_at_once_all_succeed(path: Path, opened: Opener) -> None:
    start = threading.Barrier(6)
    errors: list[BaseException] = []

    def create(number: int) -> None:
        storage = opened()
        start.wait()
        try:
            storage.append(header_of(f"s{number}"), EVENTS)
        except BaseException as error:
            errors.append(error)
            raise

    threads = [threading.Thread(target=create, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert len(opened().list()) == 6


# -- texts ---------------------------------------------------------------------------------------------


def test_lone_surrogates_survive_everywhere(opened: Opener) -> None:
    odd = "a\ud800\udc00b\udfff\u2028\0'\"%_"
    joined = "a\U00010000b\udfff\u2028\0'\"%_"
    builder = EventBuilder().talk().add("session/title", {"title": joined})
    header = header_of(odd, delegationDepth=0, cwd=f"/w/{odd}", parentSession=odd)
    opened().append(header, builder.events)
    storage = opened()
    stored = storage.inspect(header.id)
    assert stored.header == header
    (info,) = storage.browse(
        SessionFilter(cwd=header.cwd, parent=header.parent_session, title="\udfff")
    ).sessions
    assert info.progress.title == joined
    assert info.header == header
    storage.set_notes(header.id, Notes((joined,)))
    assert [one.header.id for one in storage.browse(SessionFilter(tag=joined)).sessions] == [
        header.id
    ]
    storage.acquire(header.id).release()
    storage.delete(header.id)
    assert storage.list() == []


# -- damage --------------------------------------------------------------------------------------------


def make_damaged(path: Path, opened: Opener, statement: str, values: tuple[Any, ...] = ()) -> None:
    storage = opened()
    for name in ("s1", "s2"):
        storage.append(header_of(name), EVENTS)
    storage.close()
    execute(path, statement, values=values)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE sessions SET header = x'7b' WHERE key = 1",
        "UPDATE sessions SET header = 7 WHERE key = 1",
        "UPDATE sessions SET header = 'text' WHERE key = 1",
        "UPDATE sessions SET header = (SELECT header FROM sessions WHERE key = 2) WHERE key = 1",
        "UPDATE sessions SET header = x'7b226964223a317d' WHERE key = 1",
    ],
)
def test_a_damaged_header_is_listed_as_damaged_and_hides_nobody(
    statement: str, path: Path, opened: Opener
) -> None:
    make_damaged(path, opened, statement)
    storage = opened()
    found = {entry.location.partition("#")[2]: entry for entry in storage.list()}
    assert found["s1"].header is None
    assert found["s1"].code
    assert found["s2"].damage is None
    assert lines(storage, "s2") == wanted()
    with pytest.raises(TurnlogError):
        storage.inspect("s1")
    assert storage.browse(SessionFilter()).sessions[-1].header.id == "s2"
    assert len(storage.salvage("s1").records) == len(EVENTS)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE batches SET body = substr(body, 1, length(body) - 3) WHERE place < 2 << 32",
        "UPDATE batches SET body = x'' WHERE place < 2 << 32",
        "UPDATE batches SET body = x'28b52ffd00' WHERE place < 2 << 32",
        "DELETE FROM batches WHERE place < 2 << 32",
        "UPDATE sessions SET next_seq = 7 WHERE key = 1",
        "UPDATE sessions SET base_key = 99, base_stop = 0 WHERE key = 1",
        "UPDATE sessions SET base_key = 1, base_stop = 0 WHERE key = 1",
        "UPDATE sessions SET base_key = 2, base_stop = 0 WHERE key = 1",
    ],
)
def test_damaged_batches_are_refused_by_name_and_hide_nobody(
    statement: str, path: Path, opened: Opener
) -> None:
    make_damaged(path, opened, statement)
    storage = opened()
    with pytest.raises(CorruptLogError) as caught:
        storage.inspect("s1")
    assert caught.value.code != "DAMAGED_DATABASE"
    assert lines(storage, "s2") == wanted()
    assert len(storage.list()) == len(storage.browse(SessionFilter()).sessions) == 2


def test_damaged_notes_are_none(path: Path, opened: Opener) -> None:
    make_damaged(path, opened, "UPDATE sessions SET tags = '[' WHERE key = 1")
    storage = opened()
    assert storage.notes("s1") == Notes()
    assert "s2" in [one.header.id for one in storage.browse(SessionFilter()).sessions]
    storage.set_notes("s1", Notes(("new",)))
    assert len(storage.browse(SessionFilter()).sessions) == 2


def test_a_file_with_overwritten_pages_says_that_it_is_damaged(path: Path, opened: Opener) -> None:
    storage = opened()
    for number in range(30):
        storage.append(header_of(f"s{number}"), EVENTS)
    storage.close()
    size = path.stat().st_size
    refused = 0
    for start in range(16384, size, 16384):
        data = bytearray(path.read_bytes())
        data[start : start + 4000] = os.urandom(4000)
        copy = path.with_name(f"{start}.db")
        copy.write_bytes(data)
        broken = opened(copy)
        for name in [f"s{number}" for number in range(30)]:
            try:
                broken.inspect(name)
            except StorageError:
                refused += 1
        broken.close()
    assert refused > 5


# -- others at work, and a medium that refuses -----------------------------------------------------------


HOLD = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.read()
connection.rollback()
"""


def test_a_store_that_another_process_keeps_is_busy_for_so_long(path: Path, opened: Opener) -> None:
    storage = opened(busy_timeout_ms=150)
    storage.append(header_of(), EVENTS[:TURN])
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with child:
        assert child.stdout is not None
        assert child.stdin is not None
        assert child.stdout.readline() == b"held\n"
        start = time.monotonic()
        with pytest.raises(StorageBusyError) as caught:
            storage.append(header_of(), EVENTS[TURN:])
        assert 0.1 < time.monotonic() - start < 10
        assert caught.value.code == "BUSY"
        # Readers do not wait, not even one that opens the store now.
        assert lines(storage) == lines(opened(busy_timeout_ms=150)) == wanted(EVENTS[:TURN])
        child.stdin.close()
        child.wait()
    storage.append(header_of(), EVENTS[TURN:])
    assert lines(storage) == wanted()


def test_a_busy_store_loses_nothing_of_a_live_session(path: Path) -> None:
    log = turnlog.Turnlog(SqliteStorage(path, busy_timeout_ms=50), window_ms=0)
    session = log.create(id="s1")
    session.append_user("a")
    session.flush()
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        session.append_user("b")
        with pytest.raises(StorageBusyError):
            session.flush()
        other.rollback()
    session.append_user("c")
    log.close()
    with turnlog.open(path) as log:
        texts = [message.text for message in log.query.read_session("s1").derive_messages()]
    assert texts == ["a", "b", "c"]


def test_case_41_a_full_disk_is_said_and_what_was_pending_follows(path: Path) -> None:
    storage = SqliteStorage(path)
    log = turnlog.Turnlog(storage, window_ms=0)
    session = log.create(id="s1")
    session.append_user("a")
    session.flush()

    def limit(pages: int) -> None:
        with storage._database.read() as connection:
            connection.execute(f"PRAGMA max_page_count={pages}")

    limit(1)
    for number in range(5):
        session.append_user(os.urandom(20_000).hex() + str(number))
        with pytest.raises(StorageWriteError) as caught:
            session.flush()
        assert caught.value.code == "WRITE_FAILED"
    small = log.create(id="small")
    small.append_user("hi")
    limit(100_000)
    log.close()
    with turnlog.open(path) as log:
        assert len(log.query.read_session("s1").derive_messages()) == 6
        assert len(log.query.read_session("small").derive_messages()) == 1


def test_one_batch_that_no_transaction_takes_does_not_hold_up_the_others(
    path: Path, opened: Opener
) -> None:
    storage = opened()
    storage.append(header_of("first"), EVENTS)
    with storage._database.read() as connection:
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 50_000)
    big = EventBuilder().user(os.urandom(50_000).hex()).events
    results = storage.append_many(
        [
            Batch(header_of("one"), EVENTS),
            Batch(header_of("big"), big),
            Batch(header_of("two"), EVENTS),
            Batch(header_of("first"), EVENTS),
        ]
    )
    assert [type(error) for error in results] == [
        type(None),
        StorageWriteError,
        type(None),
        ConflictError,
    ]
    assert lines(opened(), "one") == lines(opened(), "two") == wanted()
    assert opened().revision("big") is None


READ = """
import os, sys
import turnlog
turnlog.open('memory:').close()  # loads what it needs while it may
import turnlog.storage.sqlite
'x'.encode('utf-16-le')
os.setgid(65534); os.setuid(65534)
from turnlog.errors import StorageError
from turnlog.storage.sqlite import SqliteStorage
storage = SqliteStorage(sys.argv[1])
print(len(storage.read_from("s1", 0)), len(storage.list()))
for write in (
    lambda: storage.append(storage.inspect("s1").header, storage.read_from("s1", 0)),
    lambda: storage.acquire("s1"),
    lambda: turnlog.open(sys.argv[1]).resume("s1"),
):
    try:
        write()
    except StorageError as error:
        print(error.code)
print(len(storage.read_from("s1", 0)))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs another user to be")
def test_a_read_only_directory_can_be_read_and_not_written(
    path: Path, opened: Opener, tmp_path_factory: pytest.TempPathFactory
) -> None:
    storage = opened()
    storage.append(header_of(), EVENTS)
    storage.close()
    path.chmod(0o444)
    for directory in (path.parent, *path.parent.parents[:3]):
        if directory != Path("/tmp"):  # where pytest's own directories begin
            directory.chmod(0o755)
    before = snapshot(path.parent)
    run = subprocess.run(
        [sys.executable, "-c", READ, str(path)], check=False, capture_output=True, text=True
    )
    assert run.stdout.split() == [
        str(len(EVENTS)),
        "1",
        "WRITE_FAILED",
        "WRITE_FAILED",
        "WRITE_FAILED",
        str(len(EVENTS)),
    ], run.stderr
    assert snapshot(path.parent) == before


def test_a_directory_in_its_place_is_an_error_of_ours(path: Path, opened: Opener) -> None:
    path.mkdir()
    for use in uses(opened()):
        with pytest.raises(StorageError):
            use()


# -- leases --------------------------------------------------------------------------------------------


def test_a_copied_store_without_its_lock_files_can_be_written(tmp_path: Path, path: Path) -> None:
    for _ in range(5):
        with turnlog.open(path) as log:
            session = log.create(id="s1") if not log.query.has("s1") else log.resume("s1")
            session.append_user("a")
    copy = tmp_path / "elsewhere" / "s.db"
    copy.parent.mkdir()
    shutil.copy(path, copy)
    with turnlog.open(copy) as log:
        session = log.resume("s1")
        session.append_user("b")
    with turnlog.open(copy) as log:
        assert log.query.read_session("s1").derive_messages()[-1].text == "b"


# -- forks and deletes ---------------------------------------------------------------------------------


def rows(path: Path) -> tuple[int, int]:
    return (
        execute(path, "SELECT count(*) FROM sessions")[0][0],
        execute(path, "SELECT count(*) FROM batches")[0][0],
    )


def test_a_fork_copies_no_batches(path: Path) -> None:
    with turnlog.open(path, window_ms=0) as log:
        parent = log.create(id="parent")
        for number in range(6):
            parent.append_user(f"m{number}")
            parent.flush()
        before = rows(path)[1]
        child = log.fork(parent, child_id="child")
        middle = log.fork(parent, 2, child_id="middle")
        assert rows(path) == (3, before)
        child.append_user("own")
        log.flush()
        # The mark of the seed's end and what is the child's own, nothing else.
        assert rows(path)[1] == before + 2
        assert [event.seq for event in middle.events] == [0, 1, 2, 3]
    with turnlog.open(path) as log:
        texts = [one.text for one in log.query.read_session("child").derive_messages()]
        assert texts == [*[f"m{number}" for number in range(6)], "own"]
        assert len(log.query.read_session("middle").derive_messages()) == 3
        info = next(one for one in log.query.browse().sessions if one.header.id == "middle")
        assert info.progress.events == 4


def test_a_fork_has_the_title_of_its_prefix(path: Path) -> None:
    with turnlog.open(path, window_ms=0) as log:
        parent = log.create(id="parent")
        seqs = []
        for title in ("first", "second"):
            parent.append_user("m")
            parent.append(
                "session/title",
                {"title": title, "messageSeqs": [], "source": {"kind": "user"}},
            )
            parent.flush()
            seqs.append(parent.seq - 1)
        log.fork(parent, seqs[0], child_id="early")
        log.fork(parent, child_id="late")
        bare = log.fork(parent, 0, child_id="bare")
        bare.append(
            "session/title", {"title": "own", "messageSeqs": [], "source": {"kind": "user"}}
        )
    with turnlog.open(path) as log:
        found = {one.header.id: one.progress for one in log.query.browse().sessions}
        for name, progress in found.items():
            events = log.query.read_session(name, close_turn=False).events
            assert progress == Progress().advance(log.storage.read_from(name, 0)), name
            assert progress.events == len(log.storage.read_from(name, 0)) <= len(events)
        titles = {name: progress.title for name, progress in found.items()}
        assert titles == {"parent": "second", "early": "first", "late": "second", "bare": "own"}


def test_chains_of_forks_survive_deletes_in_any_order_and_leave_nothing(path: Path) -> None:
    names = ["s0", "s1", "s2", "s3"]
    for first in range(4):
        for second in range(4):
            with turnlog.open(path, window_ms=0) as log:
                session = log.create(id="s0")
                session.append_user("s0")
                session.flush()
                for parent, child in pairwise(names):
                    session = log.fork(parent, child_id=child)
                    session.append_user(child)
                    session.flush()
            with turnlog.open(path) as log:
                texts = {
                    name: [one.text for one in log.query.read_session(name).derive_messages()]
                    for name in names
                }
                assert texts["s3"] == names
                order = [names[first], *[name for name in names if name != names[first]]]
                order[1:] = order[1 + second % 3 :] + order[1 : 1 + second % 3]
                for number, name in enumerate(order):
                    log.delete(name, force=True)
                    for left in order[number + 1 :]:
                        messages = log.query.read_session(left).derive_messages()
                        assert [one.text for one in messages] == texts[left]
            assert rows(path) == (0, 0)


def test_an_id_that_was_deleted_is_another_session_afterwards(path: Path, opened: Opener) -> None:
    storage = opened()
    seen = set()
    for _ in range(3):
        storage.append(header_of(), EVENTS)
        revision = storage.revision("s1")
        assert revision not in seen
        seen.add(revision)
        storage.delete("s1")


def test_a_fork_never_shares_closers_that_nobody_stored(path: Path) -> None:
    writer = turnlog.open(path, window_ms=0)
    parent = writer.create(id="parent")
    parent.append("turn/start", {"turn": 1})
    parent.append_user("m")
    parent.flush()
    with turnlog.open(path, window_ms=0) as other:
        real = other.storage.inspect

        def inspect(id: str, *, close_turn: bool = True) -> Any:
            stored = real(id, close_turn=close_turn)
            # Meanwhile its own writer puts something else where the closers would stand.
            for number in range(len(stored.closers)):
                parent.append("feedback/record", {"text": str(number)})
                parent.flush()
            return stored

        other.storage.inspect = inspect  # type: ignore[method-assign]
        child = other.fork("parent", child_id="child")
        wanted_types = [event.type for event in child.events]
    with turnlog.open(path) as log:
        events = log.storage.read_from("child", 0)
        assert [event.type for event in events] == wanted_types
        assert "turn/end" in wanted_types
    writer.close()


def test_a_poisoned_session_can_be_forked(path: Path) -> None:
    with turnlog.open(path, window_ms=0) as log:
        session = log.create(id="s1")
        session.append_user("a")
        session.flush()
        session.append_user("b")
        session.refuse(StorageWriteError("x", code="POISONED"))
        with pytest.raises(StorageWriteError):
            session.append_user("c")
        child = log.fork(session, child_id="child")
        child.flush()
        texts = [one.text for one in log.query.read_session("child").derive_messages()]
        assert texts == ["a", "b"]
        with pytest.raises(StorageWriteError):
            session.close()


def test_a_vetoed_fork_is_not_stored(path: Path) -> None:
    with turnlog.open(path, window_ms=0) as log:
        session = log.create(id="s1")
        session.append_user("a")
        session.flush()

        def veto(session: Any) -> None:
            raise ZeroDivisionError

        stop = log.sessions.listen(created=veto)
        with pytest.raises(ZeroDivisionError):
            log.fork(session, child_id="child")
        stop()
        assert [one.header.id for one in log.storage.list() if one.header] == ["s1"]
        log.fork(session, child_id="child")


# -- a forked process ----------------------------------------------------------------------------------


def test_a_forked_child_goes_on_by_itself(path: Path, opened: Opener) -> None:
    storage = opened()
    storage.append(header_of(), EVENTS[:TURN])
    to_child, tell = os.pipe()
    pid = os.fork()
    if not pid:  # pragma: no cover - in the child
        status = 1
        try:
            os.close(tell)
            storage.append(header_of("early"), EVENTS)
            os.read(to_child, 1)
            # Its parent has closed the store as the last one that has it open, or so it would seem.
            storage.append(header_of("late"), EVENTS)
            if lines(storage) == wanted():
                status = 0
        finally:
            os._exit(status)
    os.close(to_child)
    storage.append(header_of(), EVENTS[TURN:])
    storage.close()
    opened().append(header_of("other"), EVENTS)
    opened().close()
    os.close(tell)
    assert os.waitpid(pid, 0)[1] == 0
    names = {entry.header.id for entry in opened().list() if entry.header}
    assert names == {"s1", "early", "late", "other"}
    assert lines(opened(), "early") == lines(opened(), "late") == wanted()


def test_a_fork_waits_for_a_transaction_of_another_thread(path: Path, opened: Opener) -> None:
    storage = opened()
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            storage.append(header_of(f"s{number}"), EVENTS[:TURN])
            number += 1

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for number in range(20):
            pid = os.fork()
            if not pid:  # pragma: no cover - in the child
                status = 1
                try:
                    storage.append(header_of(f"child {number}"), EVENTS)
                    status = 0
                finally:
                    os._exit(status)
            assert os.waitpid(pid, 0)[1] == 0
    finally:
        stop.set()
        thread.join()
    for number in range(20):
        assert lines(opened(), f"child {number}") == wanted()
