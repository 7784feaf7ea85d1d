"""The asynchronous face: both ways to open, a loop that never waits for a disk, and cancelling."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import turnlog
from turnlog.aio import AsyncTurnlog
from turnlog.engine.protocol import Batch
from turnlog.errors import SessionError, SessionLockedError, StorageWriteError, TurnlogError
from turnlog.storage.memory import MemoryStorage

WAIT = 30


class StalledDisk(MemoryStorage):
    """Writes wait until the disk is well again."""

    def __init__(self) -> None:
        super().__init__()
        self.well = threading.Event()
        self.stalled = threading.Event()
        self.calls = 0

    def append_many(self, batches: Sequence[Batch]) -> Sequence[TurnlogError | None]:
        self.calls += 1
        self.stalled.set()
        assert self.well.wait(WAIT)
        return super().append_many(batches)

    def close(self) -> None:
        """What was stored is looked at afterwards."""


@pytest.fixture
def disk() -> Iterator[StalledDisk]:
    disk = StalledDisk()
    yield disk
    disk.well.set()


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, WAIT))


async def until(event: threading.Event) -> None:
    assert await asyncio.to_thread(event.wait, WAIT)


def test_a_store_is_opened_both_ways(tmp_path: Path) -> None:
    async def main() -> None:
        async with turnlog.aopen(tmp_path / "s.db") as log:
            async with await log.create(id="s1", cwd="/w") as session:
                session.append_user("hi")
                await session.flush()
                assert session.header.cwd == "/w"
                assert len(session.derive_messages()) == 1
            assert [
                record.header.id for record in await log.query.list_sessions() if record.header
            ] == ["s1"]
        log = await turnlog.aopen(tmp_path / "s.db")
        session = await log.resume("s1")
        child = await log.fork(session, child_id="child")
        await log.flush()
        await child.close()
        with pytest.raises(SessionLockedError):
            turnlog.open(tmp_path / "s.db").resume("s1")
        await log.close()
        await log.close()
        with pytest.raises(SessionError):
            await log.create()
        async with turnlog.aopen(tmp_path / "s.db") as log:
            assert len((await log.query.browse()).sessions) == 2

    run(main())


def test_a_failure_inside_the_block_still_saves(tmp_path: Path) -> None:
    async def work() -> None:
        async with turnlog.aopen(tmp_path) as log:
            session = await log.create(id="s1")
            session.append_user("hi")
            raise ZeroDivisionError

    async def main() -> None:
        with pytest.raises(ZeroDivisionError):
            await work()
        async with turnlog.aopen(tmp_path) as log:
            assert len((await log.query.read_session("s1")).derive_messages()) == 1

    run(main())


def test_a_stalled_disk_never_holds_up_the_loop(disk: StalledDisk) -> None:
    async def main() -> None:
        log = AsyncTurnlog(turnlog.Turnlog(disk, window_ms=1))
        sessions = [await log.create(id=f"s{number}") for number in range(3)]
        sessions[0].append_user("first")
        flush = asyncio.create_task(sessions[0].flush())
        await until(disk.stalled)
        # The disk stalls from here on; the loop's own thread does all of this meanwhile.
        slowest = 0.0
        for number in range(200):
            for session in sessions:
                start = time.thread_time()
                session.append_user(f"m{number}")
                session.derive_messages()
                slowest = max(slowest, time.thread_time() - start)
            await asyncio.sleep(0)
        flushes = [asyncio.create_task(session.flush()) for session in sessions[1:]]
        for _ in range(50):
            await asyncio.sleep(0)
        assert not flush.done()
        assert not any(one.done() for one in flushes)
        assert not disk.well.is_set()
        assert slowest < 0.25  # of the thread's own time, without what others took
        disk.well.set()
        await asyncio.gather(flush, *flushes)
        await log.close()
        for session in sessions:
            assert len(disk.read_from(session.id, 0)) == session.seq

    run(main())


def test_a_cancelled_flush_loses_nothing(disk: StalledDisk) -> None:
    async def main() -> None:
        log = AsyncTurnlog(turnlog.Turnlog(disk, window_ms=0))
        session = await log.create(id="s1")
        session.append_user("a")
        flush = asyncio.create_task(session.flush())
        await until(disk.stalled)
        flush.cancel()
        with pytest.raises(asyncio.CancelledError):
            await flush
        session.append_user("b")
        disk.well.set()
        await session.flush()
        session.append_user("c")
        await log.close()
        assert [event.message.text for event in disk.read_from("s1", 0)] == ["a", "b", "c"]

    run(main())


def test_cancelling_a_task_leaves_its_session_saved_and_free(disk: StalledDisk) -> None:
    async def work(log: AsyncTurnlog, started: asyncio.Event) -> None:
        async with log, await log.create(id="s1") as session:
            session.append_user("a")
            started.set()
            await asyncio.Event().wait()

    async def main() -> None:
        log = AsyncTurnlog(turnlog.Turnlog(disk, window_ms=0))
        started = asyncio.Event()
        task = asyncio.create_task(work(log, started))
        await started.wait()
        task.cancel()
        await until(disk.stalled)
        task.cancel()  # and again, while its session is being saved
        await asyncio.sleep(0)
        disk.well.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        # The store was closed behind the session, whichever of the two was cancelled.
        await log.close()
        with pytest.raises(SessionError):
            await log.create()
        disk.acquire("s1").release()
        assert len(disk.read_from("s1", 0)) == 1

    run(main())


@pytest.mark.parametrize("turns", [0, 1, 2, 5, 50])
def test_a_session_that_was_cancelled_before_it_was_there_is_not_left_leased(turns: int) -> None:
    storage = MemoryStorage()
    entered, proceed = threading.Event(), threading.Event()
    real = storage.acquire

    def acquire(id: str) -> Any:
        entered.set()
        assert proceed.wait(WAIT)
        return real(id)

    storage.acquire = acquire  # type: ignore[method-assign]

    async def main() -> None:
        log = AsyncTurnlog(turnlog.Turnlog(storage, window_ms=0))
        task = asyncio.create_task(log.create(id="s1"))
        await until(entered)
        if turns:
            proceed.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        proceed.set()
        try:
            session = await task
        except asyncio.CancelledError:
            pass
        else:
            await session.close()
        # Closed behind the cancelled task's back, soon.
        while log.sessions.list():  # noqa: ASYNC110
            await asyncio.sleep(0)
        await (await log.create(id="s1")).close()
        await log.close()

    run(main())


def test_an_error_of_the_disk_arrives(disk: StalledDisk) -> None:
    async def main() -> None:
        async with AsyncTurnlog(turnlog.Turnlog(disk, window_ms=0)) as log:
            session = await log.create(id="s1")
            session.append_user("a")
            disk.append_many = lambda batches: [StorageWriteError("full") for _ in batches]  # type: ignore[method-assign]
            with pytest.raises(StorageWriteError, match="full"):
                await session.flush()
            del disk.append_many
            disk.well.set()
            await session.flush()
            async with session.turn():
                session.append_user("b")
        assert len(disk.read_from("s1", 0)) == 4

    run(main())
