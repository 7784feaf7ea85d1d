"""Listing a directory of a thousand sessions."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks import mix
from benchmarks.measure import Bar, Report, interleave, milliseconds, ratio
from turnlog.header import SessionHeader
from turnlog.storage.jsonl import JsonlStorage

_SESSIONS = 1000


def list_sessions() -> Report:
    """`storage.list`: every header read and checked."""
    events = list(mix.session().events[: mix.EVENTS_A_TURN])
    with TemporaryDirectory() as folder:
        storage = JsonlStorage(folder)
        for number in range(_SESSIONS):
            header = SessionHeader(
                id=f"s{number}", created_at=number, cwd=f"/home/user/{number % 20}"
            )
            storage.append(header, events)
        times = interleave({"first lines": lambda: _first_lines(folder), "list": storage.list})
        assert len(storage.list()) == _SESSIONS
    return Report(
        f"storage.list of {_SESSIONS} sessions in 20 projects, files in the page cache",
        [
            f"open each file, json.loads its first line: {milliseconds(times['first lines'])}",
            f"storage.list: {milliseconds(times['list'])}",
        ],
        [Bar("list / first lines", ratio(times, "list", "first lines"))],
    )


def _first_lines(folder: str) -> list[object]:
    headers = []
    for path in Path(folder).glob("*/*/session.jsonl"):
        with path.open("rb") as file:
            headers.append(json.loads(file.readline()))
    return headers
