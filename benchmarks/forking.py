"""Forking at the end of a session, and of a very long one."""

from __future__ import annotations

from pathlib import Path
from statistics import median

from benchmarks import big, mix
from benchmarks.measure import Bar, Report, interleave
from turnlog.session import Session
from turnlog.storage.jsonl import JsonlStorage
from turnlog.store import SessionStore

_FORKS = 50


def fork() -> Report:
    """`SessionStore.fork` without a boundary."""
    figures, bars = [], []
    for source in (mix.session(), _big_session(big.big_root())):
        store = SessionStore()
        store.enter(source)
        store.announce(source)

        def run(store: SessionStore = store, source: Session = source) -> None:
            for _ in range(_FORKS):
                store.close(store.fork(source))

        times = interleave({"fork": run})["fork"]
        each = median(times) / _FORKS * 1e3
        figures.append(f"{source.seq:,} events: {each:.3f} ms a fork, {_FORKS} in a row")
        bars.append(Bar(f"fork at {source.seq:,} events", each, 1.0, "ms"))
    return Report(
        "SessionStore.fork at the end, to a live session that can be appended to", figures, bars
    )


def _big_session(root: Path) -> Session:
    return JsonlStorage(root).inspect(big.ID).to_session()
