"""Crash repair (log.md, section 8; storage.md, section 1.5)."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from turnlog.events import SessionEvent
from turnlog.invariants import find_violations
from turnlog.messages import assistant_message, tool_result_message, user_message
from turnlog.repair import interrupted_turn_closers
from turnlog.session import Session

Vectors = Callable[[str], Any]
Wire = dict[str, Any]

UNKNOWN_TEXT = (
    "The tool call was interrupted after it was recorded, but no result was durably recorded. Its"
    " outcome is unknown. Decide whether to retry from the tool semantics: retry only if the operation"
    " is read-only or idempotent; if it may have side effects, first verify external state or ask the"
    " user. Do not retry blindly."
)
NOT_STARTED_TEXT = (
    "The tool call was interrupted before the Harness recorded it as started."
    " Retry it if it is still needed."
)


class Log:
    """Builds a log of wire dicts, one call an event."""

    def __init__(self) -> None:
        self.events: list[Wire] = []

    def add(self, type_: str, data: Any, **keys: Any) -> Log:
        seq = len(self.events)
        self.events.append({"type": type_, "seq": seq, "time": 1000 + seq, "data": data, **keys})
        return self

    def turn(self, number: int) -> Log:
        return self.add("turn/start", {"turn": number})

    def step(self, turn: int, step: int) -> Log:
        return self.add("step/start", {"turn": turn, "step": step})

    def model(self, *calls: str, step: int = 1) -> Log:
        blocks = [
            {"type": "tool-call", "id": call, "name": "n", "arguments": "{}"} for call in calls
        ]
        message = assistant_message(blocks, provider="p", model="m").to_dict()
        return self.add(
            "assistant/message", {"turn": 1, "step": step, "message": message}, surfaceOp="append"
        )

    def call(self, call_id: Any, step: int = 1) -> Log:
        return self.add(
            "tool/call",
            {"turn": 1, "step": step, "callId": call_id, "name": "n", "arguments": "{}"},
        )

    def result(self, call_id: str, **keys: Any) -> Log:
        data = {
            "turn": 1,
            "step": 1,
            "message": tool_result_message(call_id, "x", ids=lambda: "r").to_dict(),
        }
        return self.add("tool/result", data, **({"surfaceOp": "append"} | keys))

    def closers(self) -> list[Wire]:
        events = [SessionEvent.from_dict(event) for event in self.events]
        forms = [
            interrupted_turn_closers(self.events),
            interrupted_turn_closers(events),
            interrupted_turn_closers(Session.create("s", self.events).events.prefix(len(events))),
        ]
        assert [event.to_json() for event in forms[0]] == [event.to_json() for event in forms[1]]
        assert [event.to_json() for event in forms[0]] == [event.to_json() for event in forms[2]]
        return [event.to_dict() for event in forms[0]]

    def kinds(self) -> list[str]:
        """The closers in short: the type, or the call id and its error's code."""
        return [
            f"{event['data']['message']['source']['callId']}:{event['data']['error']['code']}"
            if event["type"] == "tool/result"
            else event["type"]
            for event in self.closers()
        ]


OPEN = "TOOL_OUTCOME_UNKNOWN"
NEVER = "TOOL_NOT_STARTED"
END = ["step/end", "turn/end"]


def started() -> Log:
    return Log().turn(1).step(1, 1)


def test_closers_are_the_references_to_the_byte(vectors: Vectors) -> None:
    cases = vectors("repair")
    logs = {case["log"]: case["events"] for case in cases if "events" in case}
    for case in cases:
        if "cut" not in case:
            continue
        events = logs[case["log"]][: case["cut"]]
        closers = interrupted_turn_closers(events)
        assert json.dumps([event.to_dict() for event in closers]) == json.dumps(case["closers"])
        lines = [event.to_json().decode() for event in closers]
        assert lines == [
            json.dumps(one, separators=(",", ":"), ensure_ascii=False) for one in case["closers"]
        ]
        turn = max((event["seq"] for event in events if event["type"] == "turn/start"), default=0)
        view = Session.create("s", events).events.prefix(len(events))
        assert interrupted_turn_closers(view, start=turn) == closers


def test_a_repaired_log_is_balanced_and_breaks_no_invariant(vectors: Vectors) -> None:
    cases = vectors("repair")
    logs = {case["log"]: case["events"] for case in cases if "events" in case}
    for case in cases:
        if "cut" in case:
            prefix = logs[case["log"]][: case["cut"]]
            whole = [*prefix, *interrupted_turn_closers(prefix)]
            session = Session.create("s", whole)
            assert session.state.open_turn is None
            assert interrupted_turn_closers(whole) == []
            assert not find_violations(session.events)


def test_a_recorded_call_gets_an_unknown_outcome_that_cites_the_call() -> None:
    result, step_end, turn_end = started().model("c").call("c").closers()
    assert json.dumps(result) == json.dumps(
        {
            "type": "tool/result",
            "seq": 4,
            "time": 1003,
            "data": {
                "turn": 1,
                "step": 1,
                "message": {
                    "id": "interrupted-tool-result-c-4",
                    "role": "user",
                    "source": {"kind": "tool", "callId": "c"},
                    "content": [
                        {
                            "type": "tool-result",
                            "toolCallId": "c",
                            "isError": True,
                            "content": [{"type": "text", "text": UNKNOWN_TEXT}],
                        }
                    ],
                },
                "error": {"name": "ToolOutcomeUnknownError", "code": OPEN},
            },
            "surfaceOp": "append",
            "sourceEventSeqs": [3],
        }
    )
    assert step_end == {"type": "step/end", "seq": 5, "time": 1003, "data": {"turn": 1, "step": 1}}
    reason = {"kind": "interrupted"}
    assert turn_end == {
        "type": "turn/end",
        "seq": 6,
        "time": 1003,
        "data": {"turn": 1, "reason": reason},
    }


def test_a_call_that_was_not_recorded_never_started_and_cites_nothing() -> None:
    result = started().model("c").closers()[0]
    assert result["data"]["error"] == {"name": "ToolNotStartedError", "code": NEVER}
    assert result["data"]["message"]["content"][0]["content"] == [
        {"type": "text", "text": NOT_STARTED_TEXT}
    ]
    assert "sourceEventSeqs" not in result
    assert result["surfaceOp"] == "append"


@pytest.mark.parametrize(
    ("log", "kinds"),
    [
        (Log(), []),
        (Log().add("user/message", user_message("x").to_dict(), surfaceOp="append"), []),
        (Log().turn(1).add("turn/end", {"turn": 1}), []),
        (Log().turn(1), ["turn/end"]),
        (started(), END),
        (started().add("step/end", {"turn": 1, "step": 1}), ["turn/end"]),
        (started().model("b", "a").call("a"), [f"b:{NEVER}", f"a:{OPEN}", *END]),
        (started().model("a", "b").call("a").call("b").result("a"), [f"b:{OPEN}", *END]),
        (started().model("a").call("a").result("a"), END),
        # A step's end forgets its calls, and so does a turn that starts while another is open.
        (started().model("a").add("step/end", {"turn": 1, "step": 1}), ["turn/end"]),
        (started().model("a").add("step/end", {}).step(1, 2).model("b", step=2), [f"b:{NEVER}", *END]),
        (started().model("a").turn(2), ["turn/end"]),
        # A call without its block is not pending; one in an earlier step is not either.
        (started().call("a"), END),
        (started().call("a").model("a"), [f"a:{NEVER}", *END]),
        (started().model("a").add("step/end", {}).step(1, 2).call("a", step=2), END),
        # Registered twice: the first place, and whatever was recorded before is forgotten.
        (started().model("a", "b").call("a").model("a"), [f"a:{NEVER}", f"b:{NEVER}", *END]),
        (started().model("a", "a").call("a"), [f"a:{OPEN}", *END]),
        # Any result of the call answers it: a rewritten one as well.
        (
            started().model("a").call("a").result("a").model("a").result(
                "a", surfaceOp={"op": "replace", "start": 4, "end": 4}, sourceEventSeqs=[4]
            ),
            END,
        ),
        (started().model("a").result("other"), [f"a:{NEVER}", *END]),
        # Payloads that only a session without invariants takes.
        (started().model("a").call(["a"]).call(None).add("tool/call", None), [f"a:{NEVER}", *END]),
        (Log().turn(1).add("turn/end", None), []),
    ],
)  # fmt: skip
def test_what_is_open_is_closed_in_order(log: Log, kinds: list[str]) -> None:
    assert log.kinds() == kinds


def test_the_last_call_recorded_is_the_one_cited() -> None:
    assert started().model("a").call("a").call("a").closers()[0]["sourceEventSeqs"] == [4]


def test_the_step_of_a_result_is_its_messages_step() -> None:
    closers = started().model("a", step=7).closers()
    assert [event["data"]["step"] for event in closers[:2]] == [7, 1]


def test_ids_name_the_seq_and_the_time_is_the_last_events() -> None:
    closers = started().model("a", "b").closers()
    assert [event["seq"] for event in closers] == [3, 4, 5, 6]
    assert [event["data"]["message"]["id"] for event in closers[:2]] == [
        "interrupted-tool-result-a-3",
        "interrupted-tool-result-b-4",
    ]
    assert {event["time"] for event in closers} == {1002}


def test_blocks_that_are_no_calls_open_nothing() -> None:
    blocks: list[Any] = [
        {"type": "text", "text": "a"},
        {"type": "tool-call", "id": 5},
        {"type": "tool-call"},
        7,
    ]
    message = {
        "id": "a",
        "role": "assistant",
        "content": blocks,
        "source": {"kind": "model", "provider": "p", "model": "m"},
    }
    log = started().add(
        "assistant/message", {"turn": 1, "step": 1, "message": message}, surfaceOp="append"
    )
    assert log.kinds() == END


def test_repair_takes_nothing_away() -> None:
    log = started().model("a").call("a")
    before = json.dumps(log.events)
    session = Session.create("s", log.events)
    interrupted_turn_closers(session.events)
    assert json.dumps(log.events) == before
    assert session.seq == len(log.events) + 1
