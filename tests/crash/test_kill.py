"""Processes killed under load at seeded moments: what was acknowledged is there, whole and once."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import textwrap
from collections import defaultdict
from pathlib import Path

import pytest

import turnlog
from turnlog.engine.protocol import Storage
from turnlog.engine.verify import verify_salvage
from turnlog.storage.jsonl import JsonlStorage
from turnlog.storage.sqlite import SqliteStorage

SESSIONS = 4

PROGRAM = """
    import os, random, sys, threading
    import turnlog
    from turnlog.storage.jsonl import JsonlStorage
    from turnlog.storage.sqlite import SqliteStorage

    kind, path, seed, sessions = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    storage = SqliteStorage(path) if kind == "sqlite" else JsonlStorage(path, compression=kind)
    log = turnlog.Turnlog(storage, window_ms=3)

    def tell(text):
        os.write(1, (text + "\\n").encode())  # at once and whole: shorter than a pipe's atom

    def work(number):
        dice = random.Random(seed * 1000 + number)
        name = f"s{number}"
        session = log.resume(name) if log.query.has(name) else log.create(id=name)
        tell(f"open {name} {session.seq}")
        while True:
            for _ in range(dice.randint(1, 6)):
                size = dice.choice([3, 40, 3000, 40000])
                session.append_user(f"{name}/{session.seq}/" + "x" * size)
            if dice.random() < 0.2:
                with session.turn():
                    session.append_user(f"{name}/{session.seq}/in a turn")
            if dice.random() < 0.7:
                length = session.seq
                session.flush()
                tell(f"safe {name} {length}")

    for number in range(sessions):
        threading.Thread(target=work, args=(number,), daemon=True).start()
    threading.Event().wait()
"""

KINDS = ["none", "zstd", "sqlite"]


def open_storage(kind: str, path: Path) -> Storage:
    return SqliteStorage(path) if kind == "sqlite" else JsonlStorage(path)


def run_and_kill(kind: str, path: Path, seed: int) -> dict[str, int]:
    """Run the program until it has said so many lines, kill it, and return what it said was safe."""
    program = textwrap.dedent(PROGRAM)
    lines = random.Random(seed).randint(1, 120)
    arguments = [kind, str(path), str(seed), str(SESSIONS)]
    child = subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with child:
        assert child.stdout is not None
        assert child.stderr is not None
        said = []
        for line in child.stdout:
            said.append(line)
            if len(said) == lines:
                break
        child.send_signal(signal.SIGKILL)
        said += child.stdout.readlines()
        errors = child.stderr.read()
        assert not errors, errors
        assert child.wait() == -signal.SIGKILL
    safe: dict[str, int] = defaultdict(int)
    for line in said:
        word, name, length = line.split()
        if word == "safe":
            safe[name] = max(safe[name], int(length))
    return safe


def check(kind: str, path: Path, safe: dict[str, int], before: dict[str, list[bytes]]) -> None:
    storage = open_storage(kind, path)
    listed = storage.list()
    assert all(entry.damage is None for entry in listed), listed
    names = {entry.header.id for entry in listed if entry.header}
    assert names >= {name for name, length in safe.items() if length}
    for name in sorted(names):
        stored = storage.inspect(name, close_turn=False)
        events = [event.to_json() for event in stored.log.view()]
        assert len(events) >= safe[name], (name, len(events), safe[name])
        assert events[: len(before.get(name, []))] == before.get(name, [])
        texts = [
            event.message.text.split("/")[:2]
            for event in stored.log.view()
            if event.type == "user/message"
        ]
        seqs = [event.seq for event in stored.log.view() if event.type == "user/message"]
        # Each message once, in its place, in its session.
        assert texts == [[name, str(seq)] for seq in seqs]
    storage.close()
    # A new writer goes on at once: no lease outlives its process.
    with turnlog.Turnlog(open_storage(kind, path), window_ms=0) as log:
        for name in sorted(names):
            session = log.resume(name)
            session.append_user(f"{name}/{session.seq}/after")
            session.flush()
            before[name] = [event.to_json() for event in session.events]
        for name in sorted(names):
            findings = verify_salvage(log.storage.salvage(name))
            assert [finding for finding in findings if finding.severity == "error"] == []
            assert [event.to_json() for event in log.storage.read_from(name, 0)] == before[name]


def kill_repeatedly(kind: str, path: Path, seeds: list[int]) -> None:
    before: dict[str, list[bytes]] = {}
    for seed in seeds:
        print(f"{kind}: seed {seed}")  # noqa: T201 - shown when it fails
        check(kind, path, run_and_kill(kind, path, seed), before)


@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_writer_loses_nothing_that_it_was_told_is_safe(kind: str, tmp_path: Path) -> None:
    kill_repeatedly(kind, tmp_path / "store.db", [random.randrange(10**6) for _ in range(3)])


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("kind", KINDS)
def test_a_writer_killed_many_times_loses_nothing(kind: str, tmp_path: Path) -> None:
    for round_ in range(10):
        seeds = [random.randrange(10**6) for _ in range(10)]
        kill_repeatedly(kind, tmp_path / f"{round_}.db", seeds)
