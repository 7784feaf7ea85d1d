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
        for event in written:
            session.append(
                event["type"],
                event["data"],
                surface_op=event.get("surfaceOp"),
                source_event_seqs=event.get("sourceEventSeqs"),
            )
        return session

    def build() -> Session:
        session = Session.create("mix")
        for event in written:
            data = event["data"]
            if event["type"] == "assistant/chunk":
                text = data["chunk"]["text"]
                chunk = {"type": "text-delta", "index": 0, "text": text}
                data = {"turn": data["turn"], "step": 1, "chunk": chunk}
            session.append(
                event["type"],
                data,
                surface_op=event.get("surfaceOp"),
                source_event_seqs=event.get("sourceEventSeqs"),
            )
        return session

    times = interleave({"append": append, "build": build, "recorder": record})
    return Report(
        f"{len(written):,} events of {len(turns)} turns, on a session without a storage",
        [
            f"Session.append of the same events, payloads at hand: {milliseconds(times['append'])}",
            f"the same, each delta's payload made in place: {milliseconds(times['build'])}",
            f"the recorder: {milliseconds(times['recorder'])}",
        ],
        [
            Bar("recorder / append", ratio(times, "recorder", "append"), 1.3),
            Bar("recorder / append with payloads made", ratio(times, "recorder", "build")),
        ],
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
