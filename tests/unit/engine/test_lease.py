"""Leases: exclusive, freed by death, sure of what a hostile or damaged lock file says."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from turnlog.engine.lease import FileLease, MemoryLeases, last_fence
from turnlog.engine.names import encode_id, lock_name
from turnlog.errors import SessionLockedError, StorageWriteError

HOLD = """
import sys
from pathlib import Path
from turnlog.engine.lease import FileLease
lease = FileLease.acquire(Path(sys.argv[1]), "s1", clock=lambda: 77)
print(lease.fence, flush=True)
sys.stdin.read()
"""


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names, as few calls as possible


def test_a_lease_is_exclusive_and_its_number_grows(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "s1.lock"
    first = FileLease.acquire(path, "s1", clock=lambda: 42)
    with pytest.raises(SessionLockedError) as caught:
        FileLease.acquire(path, "s1")
    assert caught.value.session_id == "s1"
    assert caught.value.details["pid"] == os.getpid()
    assert caught.value.details["host"] == socket.gethostname()
    assert caught.value.details["since"] == 42
    first.release()
    first.release()
    with FileLease.acquire(path, "s1") as second:
        assert (first.fence, second.fence) == (1, 2)
        assert last_fence(path) == 2
    FileLease.acquire(path, "s1").release()
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_another_process_holds_it_until_it_dies(tmp_path: Path) -> None:
    path = tmp_path / "s1.lock"
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"1\n"
        with pytest.raises(SessionLockedError) as caught:
            FileLease.acquire(path, "s1")
        assert caught.value.details["pid"] == child.pid
        assert caught.value.details["since"] == 77
        child.send_signal(signal.SIGKILL)
        child.wait()
        lease = FileLease.acquire(path, "s1")
    assert lease.fence == 2
    lease.release()


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"\0" * 256,
        b"[]",
        b"null",
        b'{"fence":"7"}',
        b'{"fence":-7}',
        b'{"fence":null}',
        b'{"fence":1e400}',
        b'{"fence":' + b"9" * 400 + b"}",
        b"[" * 4000,
        b"\xff\xfe",
        b'{"pid":[],"host":{},"since":"x"}',
    ],
)
def test_whatever_the_lock_file_holds_it_locks(text: bytes, tmp_path: Path) -> None:
    path = tmp_path / "s1.lock"
    path.write_bytes(text)
    assert last_fence(path) == 0
    lease = FileLease.acquire(path, "s1", floor=lambda: 5)
    assert lease.fence == 6
    assert json.loads(path.read_bytes())["fence"] == 6
    path.write_bytes(text)
    with pytest.raises(SessionLockedError, match="s1"):
        FileLease.acquire(path, "s1")
    lease.release()


def test_the_number_outlives_a_lost_lock_file(tmp_path: Path) -> None:
    lease = FileLease.acquire(tmp_path / "s1.lock", "s1", floor=lambda: 12)
    assert lease.fence == 13
    lease.release()
    lease = FileLease.acquire(tmp_path / "s1.lock", "s1", floor=lambda: 3)
    assert lease.fence == 14
    lease.release()


@pytest.mark.parametrize("call", ["flock", "pwrite", "ftruncate", "open", "floor"])
def test_a_failure_leaves_nothing_locked_and_nothing_open(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s1.lock"
    before = descriptors()

    def fail(*_: Any) -> Any:
        raise OSError(errno.ENOLCK, "No locks available")

    with monkeypatch.context() as patch:
        if call != "floor":
            patch.setattr(fcntl if call == "flock" else os, call, fail)
        with pytest.raises(StorageWriteError, match="No locks available") as caught:
            FileLease.acquire(path, "s1", floor=fail if call == "floor" else lambda: 0)
        patch.undo()
        assert caught.value.code == "WRITE_FAILED"
        assert descriptors() == before
    FileLease.acquire(path, "s1").release()


def test_a_full_disk_takes_a_note_where_one_was(tmp_path: Path) -> None:
    path = tmp_path / "s1.lock"
    FileLease.acquire(path, "s1").release()
    size = path.stat().st_size
    for fence in range(2, 120):
        lease = FileLease.acquire(path, "s1")
        assert lease.fence == fence
        assert path.stat().st_size == size
        lease.release()


def test_a_forked_child_neither_has_nor_keeps_a_lease(tmp_path: Path) -> None:
    path = tmp_path / "s1.lock"
    lease = FileLease.acquire(path, "s1")
    to_child, tell = os.pipe()
    to_parent, report = os.pipe()
    pid = os.fork()
    if not pid:  # pragma: no cover - in the child
        status = 1
        try:
            os.close(tell)
            lease.release()
            try:
                FileLease.acquire(path, "s1")
            except SessionLockedError:
                os.write(report, b"x")
                os.read(to_child, 1)  # until the parent has let go
                status = 0
        finally:
            os._exit(status)
    os.close(to_child)
    os.close(report)
    assert os.read(to_parent, 1) == b"x"
    os.close(to_parent)
    lease.release()
    # The child lives, with whatever it has inherited.
    FileLease.acquire(path, "s1").release()
    os.close(tell)
    assert os.waitpid(pid, 0)[1] == 0


def test_of_many_threads_one_wins(tmp_path: Path) -> None:
    memory = MemoryLeases()
    for acquire in (
        lambda: FileLease.acquire(tmp_path / "s1.lock", "s1"),
        lambda: memory.acquire("s1"),
    ):
        won: list[Any] = []
        lost: list[SessionLockedError] = []
        start = threading.Barrier(8)

        def race(
            acquire: Any = acquire, won: Any = won, lost: Any = lost, start: Any = start
        ) -> None:
            start.wait()
            try:
                won.append(acquire())
            except SessionLockedError as error:
                lost.append(error)

        threads = [threading.Thread(target=race) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (len(won), len(lost)) == (1, 7)
        won[0].release()


def test_lock_names_are_short_and_distinct() -> None:
    ids = [
        "a",
        "A",
        "~~",
        "x" * 200,
        "x" * 201,
        "x" * 999,
        "会" * 40,
        "会" * 41,
        "\ud800" * 99,
        "..",
    ]
    names = [lock_name(name) for name in ids]
    assert len(set(names)) == len(ids)
    assert all(len(name) <= 205 and "/" not in name for name in names)
    assert lock_name("s1") == "s1.lock"
    assert not encode_id("~~").startswith("~~")
