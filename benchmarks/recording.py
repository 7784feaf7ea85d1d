"""The recorder beside plain appends of the events that it writes."""

from __future__ import annotations

from typing import Any

from benchmarks import mix
from benchmarks.measure import Bar, Report, interleave, milliseconds, ratio
from turnlog.session import Session


def recorder() -> Report:
    """`session.turn()` and what is below it, over the texts of the mix."""
    if not hasattr(Session, "turn"):
        return Report("nothing", ["skipped: Session.turn is not there yet"], [])
    events = mix.wire_events()
    step = mix.EVENTS_A_TURN
    turns = [events[at : at + step] for at in range(0, len(events), step)]

    def record() -> Session:
        session = Session.create("mix")
        for turn in turns:
            _record(session, turn)
        return session

    written = [event.to_dict() for event in record().events]

    def append() -> Session:
        session = Session.create("mix")
        mix.append_to(session, written)
        return session

    times = interleave({"append": append, "recorder": record})
    return Report(
        f"{len(written):,} events of {len(turns)} turns, on a session without a storage",
        [
            f"Session.append of the same events: {milliseconds(times['append'])}",
            f"the recorder: {milliseconds(times['recorder'])}",
        ],
        [Bar("recorder / append", ratio(times, "recorder", "append"), 1.3)],
    )


def _record(session: Any, events: list[mix.Wire]) -> None:
    message = events[153]["data"]
    with session.turn() as turn:
        turn.user(events[1]["data"]["content"])
        with turn.step(provider="anthropic", model="some-model-4") as step:
            for event in events[3:153]:
                step.text(event["data"]["chunk"]["text"])
            step.message(message["message"]["content"], usage=message["usage"])
            for call, result in ((events[154], events[155]), (events[156], events[157])):
                with step.tool_call(call["data"]["callId"]) as running:
                    running.result(result["data"]["message"]["content"][0]["content"])
