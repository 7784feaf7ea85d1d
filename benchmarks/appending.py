"""Appending and encoding: the way in."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from statistics import median

import turnlog
from benchmarks import mix
from benchmarks.measure import Bar, Report, interleave, milliseconds, ratio
from turnlog.codec.record import encode_batch
from turnlog.invariants import attach_invariants
from turnlog.session import Session

_dump = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def append() -> Report:
    """`Session.append` of every event of the mix."""
    events = mix.wire_events()

    def bare() -> Session:
        session = Session.create("mix")
        mix.append_to(session, events)
        return session

    def checked() -> Session:
        session = Session.create("mix")
        attach_invariants(session)
        mix.append_to(session, events)
        return session

    def live() -> Session:
        session = turnlog.open("memory:").create(id="mix")
        mix.append_to(session, events)
        return session

    dump: Callable[[], object] = lambda: [_dump(event) for event in events]  # noqa: E731
    times = interleave({"json.dumps": dump, "bare": bare, "checked": checked, "live": live})
    return Report(
        f"{len(events):,} calls of Session.append: check, detach, surface, commit in memory",
        [
            f"json.dumps of the same events: {milliseconds(times['json.dumps'])}",
            *(
                f"{name}: {milliseconds(times[key])}, {_each(times[key], len(events))} an event"
                for key, name in (
                    ("bare", "append to a detached session"),
                    ("checked", "with the invariants on"),
                    ("live", "to a session of turnlog.open (invariants, known types, store)"),
                )
            ),
        ],
        [
            Bar("append / json.dumps", ratio(times, "bare", "json.dumps"), 1.3),
            Bar("invariants on / json.dumps", ratio(times, "checked", "json.dumps")),
            Bar("live / json.dumps", ratio(times, "live", "json.dumps")),
        ],
    )


def encode() -> Report:
    """`encode_batch`, a batch a turn."""
    view, step = mix.session().events, mix.EVENTS_A_TURN
    batches = [view[at : at + step] for at in range(0, len(view), step)]
    wires = mix.wire_events()

    def run(pack: bool) -> Callable[[], object]:
        return lambda: [encode_batch(batch, pack=pack) for batch in batches]

    times = interleave(
        {
            "json.dumps": lambda: [_dump(event).encode() for event in wires],
            "packed": run(True),
            "plain": run(False),
        }
    )
    size = sum(map(len, mix.raw_lines())) + len(wires)
    return Report(
        f"encode_batch of {len(batches)} batches of {step} events, {size / 1e6:.1f} MB as plain text",
        [
            f"json.dumps and encode: {milliseconds(times['json.dumps'])}",
            *(
                f"{name}: {milliseconds(times[name])}, {_each(times[name], len(wires))} an event, "
                f"{size / median(times[name]) / 1e6:,.0f} MB/s of plain text"
                for name in ("plain", "packed")
            ),
        ],
        [
            Bar(f"{name} / json.dumps", ratio(times, name, "json.dumps"))
            for name in ("plain", "packed")
        ],
    )


def _each(seconds: Sequence[float], count: int) -> str:
    return f"{median(seconds) / count * 1e6:.2f} us"
