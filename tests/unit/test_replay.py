"""`request_at` (log.md, section 6): what the model saw at a step, across compaction, retries and forks."""

from __future__ import annotations

import json
from typing import Any

import pytest

from turnlog.errors import SessionError
from turnlog.eventlog import EventLog
from turnlog.messages import assistant_message, tool_result_message, user_message
from turnlog.replay import refold
from turnlog.session import Session
from turnlog.store import SessionStore


class Loop:
    """Appends what an agent loop does, and notes what each request was made of when it is sent."""

    def __init__(self, session: Session | None = None) -> None:
        self.session = session or Session.create("s")
        self.sent: dict[tuple[int, int], Any] = {}
        self.turn = self.step_number = 0

    @property
    def place(self) -> dict[str, int]:
        return {"turn": self.turn, "step": self.step_number}

    def start_turn(self) -> Loop:
        self.turn, self.step_number = self.session.state.turn + 1, 0
        self.session.append("turn/start", {"turn": self.turn})
        return self

    def end_turn(self) -> Loop:
        self.session.append("turn/end", {"turn": self.turn, "reason": {"kind": "completed"}})
        return self

    def start_step(self, *texts: str) -> Loop:
        self.step_number += 1
        self.session.append("step/start", self.place)
        for text in texts:
            self.session.append_user(text)
        return self

    def end_step(self) -> Loop:
        self.session.append("step/end", self.place)
        return self

    def route(self, model: str) -> Loop:
        header = {"config": {"provider": "p", "model": model}, "system": f"you are {model}"}
        self.session.append("request/header", {"header": header, "reason": "change"})
        self.session.append("request/context", {"provider": "p", "model": model})
        return self

    def send(self) -> Loop:
        """The moment of dispatch: what `request_at` must give back for this step."""
        session = self.session
        self.sent[self.turn, self.step_number] = json.dumps(
            [session.request_header(), session.request_context(), session.derive_messages()]
        )
        return self

    def chunks(self, *kinds: str) -> Loop:
        for kind in kinds:
            chunk: dict[str, Any] = {"type": kind}
            if kind == "text-delta":
                chunk |= {"index": 0, "text": "x"}
            self.session.append("assistant/chunk", {**self.place, "chunk": chunk})
        return self

    def answer(self, text: str = "a", cite: int | None = None) -> Loop:
        """The model's message; it cites the last `cite` events."""
        seq = self.session.seq
        sources = None if cite is None else list(range(seq - cite, seq))
        data = {**self.place, "message": assistant_message(text, provider="p", model="m")}
        self.session.append(
            "assistant/message", data, surface_op="append", source_event_seqs=sources
        )
        return self

    def tool(self, call_id: str) -> Loop:
        self.session.append(
            "tool/call", {**self.place, "callId": call_id, "name": "n", "arguments": "{}"}
        )
        data = {**self.place, "message": tool_result_message(call_id, "out")}
        self.session.append("tool/result", data, surface_op="append")
        return self

    def compact(self, count: int) -> Loop:
        """A checkpoint in place of the first `count` nodes."""
        nodes = self.session.surface.nodes
        self.session.append("compaction/start", {"compactionId": "k", "turn": self.turn})
        self.session.append(
            "compaction/summary", {"compactionId": "k", "usage": {"inputTokens": 1}}
        )
        self.session.append_message(user_message("summary"), replace=(nodes[0], nodes[count - 1]))
        self.session.append("compaction/end", {"compactionId": "k", "turn": self.turn})
        return self

    def full_step(self, *texts: str) -> Loop:
        self.start_step(*texts).send().chunks("text-delta", "usage", "finish").answer(cite=3)
        return self.end_step()

    def check(self, session: Session | None = None) -> None:
        """Every step noted must be told as it was, in any session that holds it."""
        assert self.sent
        for (turn, step), sent in self.sent.items():
            view = (session or self.session).request_at(turn, step)
            assert (view.turn, view.step) == (turn, step)
            assert json.dumps([view.header, view.context, view.messages]) == sent


def test_each_step_is_told_as_it_was_sent() -> None:
    loop = Loop().start_turn()
    loop.start_step("q").route("a").send().chunks("text-delta", "finish").answer(cite=2).tool(
        "c"
    ).end_step()
    loop.full_step("steered").end_turn()
    loop.start_turn().start_step("more").route("b").send().chunks("finish").answer(
        cite=1
    ).end_step().end_turn()
    loop.check()
    assert loop.session.request_at(2, 1).header == {
        "config": {"provider": "p", "model": "b"},
        "system": "you are b",
    }


def test_a_step_without_header_context_or_messages_has_none() -> None:
    loop = Loop().start_turn().start_step().send()
    loop.check()
    view = loop.session.request_at(1, 1)
    assert (view.header, view.context, view.messages) == (None, None, [])


@pytest.mark.parametrize("place", [(1, 2), (2, 1), (0, 0), (1, 0)])
def test_a_step_that_is_not_in_the_log_is_an_error(place: tuple[int, int]) -> None:
    loop = Loop().start_turn().full_step("q")
    with pytest.raises(SessionError) as caught:
        loop.session.request_at(*place)
    assert caught.value.code == "STEP_NOT_FOUND"


def test_compaction_between_steps_and_inside_one_changes_only_what_comes_after() -> None:
    loop = Loop().start_turn().full_step("q1").full_step("q2").end_turn()
    loop.start_turn().compact(3).full_step("q3")
    loop.start_step("q4").compact(2).send().chunks("text-delta").answer(cite=1).end_step()
    loop.end_turn().compact(2)
    loop.check()


def test_a_result_pruned_later_is_told_as_it_was() -> None:
    loop = Loop().start_turn().start_step("q").send().answer().tool("c").end_step()
    loop.full_step()
    session = loop.session
    seq = session.surface.nodes[2]
    shorter = tool_result_message("c", "cut", ids=lambda: session.events[seq].message.id)
    session.append_message(shorter, replace=(seq, seq))
    loop.full_step().check()


def test_the_last_attempt_counts_after_a_retry() -> None:
    loop = (
        Loop().start_turn().start_step("q").route("a").chunks("text-delta", "text-delta", "finish")
    )
    loop.session.append("llm/retry", loop.place)
    loop.session.append("llm/retry-started", loop.place)
    loop.route("b").send().chunks("text-delta", "finish").answer(cite=2).end_step()
    loop.check()


@pytest.mark.parametrize("first", [(), ("text-delta",), ("text-delta", "finish")])
def test_the_last_attempt_counts_when_no_message_came_of_it(first: tuple[str, ...]) -> None:
    loop = Loop().start_turn().start_step("q").chunks(*first)
    loop.session.append("llm/retry-started", loop.place)
    loop.route("b").send().chunks("text-delta", "finish").end_step().end_turn()
    loop.check()


@pytest.mark.parametrize("ending", ["cited", "uncited", "failed", "open"])
def test_a_request_made_again_after_an_overflow_is_the_one_told(ending: str) -> None:
    """Overflow recovery compacts inside the step and leaves no retry event, only a second `finish`."""
    loop = (
        Loop()
        .start_turn()
        .full_step("q1")
        .start_step("q2")
        .chunks("text-delta", "finish")
        .compact(2)
    )
    loop.route("b").send().chunks("text-delta", "text-delta", "finish")
    if ending in ("cited", "uncited"):
        loop.answer(cite=3 if ending == "cited" else None)
    if ending != "open":
        loop.end_step().end_turn()
    loop.check()


@pytest.mark.parametrize("order", [[], [0, 2], [2, 0], [-4, 2, 0]])
def test_what_arrives_while_the_model_streams_was_not_sent(order: list[int]) -> None:
    """Whatever order the message cites its chunks in, and whatever else it cites."""
    loop = Loop().start_turn().full_step("before").start_step("q").send().chunks("text-delta")
    first = loop.session.seq - 1
    loop.session.append_user("meanwhile")
    loop.chunks("finish")
    data = {**loop.place, "message": assistant_message("a", provider="p", model="m")}
    sources = [first + offset for offset in order] or None
    loop.session.append("assistant/message", data, surface_op="append", source_event_seqs=sources)
    loop.end_step().check()


def test_an_attempt_without_chunks_is_told_although_an_earlier_one_had_some() -> None:
    loop = (
        Loop()
        .start_turn()
        .full_step("q1")
        .start_step("q2")
        .chunks("text-delta", "finish")
        .compact(2)
    )
    loop.send().answer(cite=0).end_step().check()


def test_a_stream_without_chunks_ends_at_its_message() -> None:
    loop = Loop().start_turn().start_step("q").send().answer(cite=0).tool("c").end_step()
    loop.check()


def test_a_step_that_a_crash_left_open_is_told_too() -> None:
    loop = Loop().start_turn().full_step("q1").start_step("q2").send()
    loop.check()
    loop.chunks("text-delta", "text-delta").check()


def test_forks_tell_the_steps_that_they_inherited() -> None:
    store = SessionStore()
    loop = Loop(store.create("p")).start_turn().full_step("q1").full_step("q2").end_turn()
    child = store.fork("p")
    branch = Loop(child)
    branch.sent = dict(loop.sent)
    branch.start_turn().compact(2).full_step("q3").end_turn()
    loop.start_turn().full_step("elsewhere").end_turn()
    grandchild = store.fork(child)
    for session in (child, grandchild):
        branch.check(session)
    loop.check()


def test_extra_keys_of_a_steps_start_do_not_hide_it() -> None:
    session = Session.create("s")
    session.append("step/start", {"turn": 1, "step": 1, "more": {}})
    assert session.request_at(1, 1).messages == []


def test_a_view_is_given_as_plain_values() -> None:
    loop = Loop().start_turn().start_step("q").route("a").send().answer().end_step()
    plain = loop.session.request_at(1, 1).to_dict()
    assert list(plain) == ["turn", "step", "header", "context", "messages"]
    plain["header"]["config"]["model"] = "changed"
    plain["context"]["model"] = "changed"
    plain["messages"][0]["content"].clear()
    loop.check()


def test_reading_a_past_request_changes_nothing() -> None:
    loop = Loop().start_turn().full_step("q").compact(1)
    before = [event.to_json() for event in loop.session.events]
    loop.session.request_at(1, 1)
    assert [event.to_json() for event in loop.session.events] == before
    assert loop.session.surface.nodes == loop.session.surface.to_surface().to_dict()["nodes"]


def test_refolding_gives_surface_and_state_of_the_live_session() -> None:
    loop = Loop().start_turn().full_step("q1").compact(2).start_step("q2").chunks("text-delta")
    log = EventLog(loop.session.events)
    surface, state = refold(log)
    assert surface.to_surface() == loop.session.surface.to_surface()
    assert surface.replace_generation == 1
    assert state == loop.session.state
    surface.add(len(log), "user/message", None, "append")
