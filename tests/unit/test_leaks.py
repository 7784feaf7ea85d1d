"""Opening and closing again and again leaves no descriptor, no thread and no temporary file behind."""

from __future__ import annotations

import gc
import os
import threading
from contextlib import suppress
from pathlib import Path

import pytest

import turnlog
from turnlog.errors import TurnlogError


def descriptors() -> list[str]:
    gc.collect()
    found = []
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - names
        with suppress(OSError):
            found.append(os.readlink(f"/proc/self/fd/{name}"))  # noqa: PTH115 - not a path of ours
    return sorted(found)


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="no list of descriptors")
@pytest.mark.parametrize(("name", "cycles"), [("root", 200), ("s.db", 70)])
def test_many_cycles_leave_nothing_open(
    name: str, cycles: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    target = tmp_path / name

    def cycle(number: int) -> None:
        with turnlog.open(target) as log:
            session = log.resume("s1") if number else log.create(id="s1")
            session.append_user("a")
            with suppress(TurnlogError):
                log.create(id="s1")
            with suppress(TurnlogError):
                log.resume("nobody")
            if number % 20 == 0:
                with turnlog.open(target) as other, suppress(TurnlogError):
                    other.resume("s1")
                child = log.fork(session)
                child.flush()
                log.query.browse()
                if number % 40 == 0:
                    child.close()
                    log.delete(child.id, force=True)
            session.flush()

    cycle(0)
    before, threads = descriptors(), threading.active_count()
    for number in range(1, cycles):
        cycle(number)
    assert descriptors() == before
    assert threading.active_count() == threads
    assert not list(tmp_path.rglob("*.tmp"))
