"""Token accounting (log.md, section 2): every request counts once."""

from __future__ import annotations

from typing import Any

import pytest

from turnlog.messages import assistant_message
from turnlog.session import Session
from turnlog.store import SessionStore
from turnlog.usage import TokenCount


class Run:
    """Appends the events of model requests to a session."""

    def __init__(self, session: Session | None = None) -> None:
        self.session = session or Session.create("s")
        self.place = {"turn": 0, "step": 0}

    def add(self, type_: str, data: Any = None, **options: Any) -> Run:
        self.session.append(type_, data, **options)
        return self

    def step(self, turn: int = 1, step: int = 1) -> Run:
        self.place = {"turn": turn, "step": step}
        return self.add("step/start", self.place)

    def end(self) -> Run:
        return self.add("step/end", self.place)

    def chunk(self, type_: str, **parts: Any) -> Run:
        return self.add("assistant/chunk", {**self.place, "chunk": {"type": type_, **parts}})

    def used(self, tokens: Any) -> Run:
        return self.chunk("usage", usage={"inputTokens": tokens, "outputTokens": 1})

    def finish(self, kind: str = "stop") -> Run:
        return self.chunk("finish", reason={"kind": kind})

    def message(self, tokens: int | None = None, op: Any = "append", sources: Any = None) -> Run:
        data = {**self.place, "message": assistant_message("x", provider="p", model="m")}
        if tokens is not None:
            data["usage"] = {"inputTokens": tokens}
        return self.add("assistant/message", data, surface_op=op, source_event_seqs=sources)

    def counts(self) -> tuple[int, int]:
        """Requests and input tokens of the conversation."""
        found = self.session.usage().conversation
        return found.requests, found.input_tokens


@pytest.mark.parametrize(
    ("run", "counts"),
    [
        (Run(), (0, 0)),
        (Run().step().end(), (0, 0)),
        # The last usage chunk of an attempt, and then not the message's own.
        (Run().step().used(5).finish().message(7).end(), (1, 5)),
        (Run().step().used(5).used(8).finish().message(7).end(), (1, 8)),
        (Run().step().used(5).message(7).end(), (1, 5)),
        # The message's own only when its step has no usage chunk.
        (Run().step().message(7).end(), (1, 7)),
        (Run().step().finish().message(7).end(), (1, 7)),
        (Run().step().used(5).end().step(1, 2).message(7).end(), (2, 12)),
        (Run().step().message(7).used(5).end(), (1, 5)),
        (Run().step().message().end(), (0, 0)),
        # Failed and retried attempts count through their chunks.
        (Run().step().used(5).finish("error").end(), (1, 5)),
        (
            Run().step().used(5).add("llm/retry").add("llm/retry-started").used(6).message(9).end(),
            (2, 11),
        ),
        (Run().step().add("llm/retry-started").used(6).message(9).end(), (1, 6)),
        (Run().step().used(5).add("llm/retry-started").message(9).end(), (1, 5)),
        # A request made again after an overflow leaves a second finish and no retry event.
        (Run().step().used(5).finish("error").used(6).finish().message(9).end(), (2, 11)),
        (Run().step().finish("error").used(6).finish().message(9).end(), (1, 6)),
        # A step that never ended, and one whose end a crash left out.
        (Run().step().used(5), (1, 5)),
        (Run().step().message(7), (1, 7)),
        (Run().step().used(5).step(2, 1).used(6), (2, 11)),
        (Run().step().used(5).add("turn/end").step(2, 1).message(7), (2, 12)),
        # Logs without steps, as imports may be: messages count one by one.
        (Run().message(7).message(8), (2, 15)),
    ],
)
def test_each_request_counts_once(run: Run, counts: tuple[int, int]) -> None:
    assert run.counts() == counts


def test_steps_are_told_apart_by_their_numbers_where_no_brackets_stand() -> None:
    run = Run()
    run.place = {"turn": 1, "step": 1}
    run.used(5).message(6)
    run.place = {"turn": 1, "step": 2}
    assert run.message(7).counts() == (2, 12)


def test_a_message_that_replaces_another_is_no_request() -> None:
    run = Run().step().message(7)
    run.message(7, {"op": "replace", "start": 1, "end": 1}, [1]).end()
    assert run.counts() == (1, 7)


def test_a_message_with_empty_content_still_carries_its_usage() -> None:
    run = Run().step()
    data = {
        **run.place,
        "message": assistant_message([], provider="p", model="m"),
        "usage": {"inputTokens": 4},
    }
    run.add("assistant/message", data, surface_op="append").end()
    assert run.counts() == (1, 4)
    assert run.session.derive_messages() == []


def test_what_a_fork_inherited_is_the_parents() -> None:
    store = SessionStore()
    run = Run(store.create("p")).step().used(5).end()
    child = Run(store.fork(run.session))
    assert child.counts() == (0, 0)
    child.step(2, 1).used(6).end()
    grandchild = Run(store.fork(child.session))
    assert (run.counts(), child.counts(), grandchild.counts()) == ((1, 5), (1, 6), (0, 0))


def test_a_seed_without_a_seed_length_is_the_sessions_own() -> None:
    run = Run().step().used(5).end()
    assert Session.create("again", run.session.events).usage() == run.session.usage()


def test_compaction_and_title_requests_are_counted_apart() -> None:
    run = Run().step().used(5).end()
    run.add("compaction/summary", {"usage": {"inputTokens": 9, "outputTokens": 2}})
    run.add("session/title-llm-request", {}).add("session/title-llm-request", {})
    assert run.session.usage().to_dict() == {
        "conversation": TokenCount(requests=1, input_tokens=5, output_tokens=1).to_dict(),
        "compaction": TokenCount(requests=1, input_tokens=9, output_tokens=2).to_dict(),
        "titleRequests": 2,
    }


def test_all_kinds_of_tokens_are_summed_in_wire_keys() -> None:
    usage = {
        "inputTokens": 1,
        "outputTokens": 2,
        "cacheReadTokens": 3,
        "cacheWriteTokens": 4,
        "reasoningTokens": 5,
        "later": 6,
    }
    run = (
        Run().step().chunk("usage", usage=usage).end().step(1, 2).chunk("usage", usage=usage).end()
    )
    expected = {name: 2 * value for name, value in usage.items() if name != "later"}
    assert run.session.usage().conversation.to_dict() == {"requests": 2, **expected}


@pytest.mark.parametrize("usage", [None, [], "x", 5])
def test_a_usage_that_is_no_object_is_no_usage(usage: Any) -> None:
    assert Run().step().chunk("usage", usage=usage).message(7).end().counts() == (1, 7)


@pytest.mark.parametrize("tokens", [None, "5", True, [5], {}])
def test_what_is_no_number_counts_nothing(tokens: Any) -> None:
    assert Run().step().used(tokens).end().counts() == (1, 0)


def test_other_chunks_that_mention_usage_are_no_usage() -> None:
    run = Run().step().chunk("text-delta", index=0, text='{"usage": 1}', usage={"inputTokens": 9})
    assert run.message(7).end().counts() == (1, 7)


@pytest.mark.parametrize(
    "data", [None, 5, {"chunk": None}, {"chunk": ["usage"]}, {"usage": 1}, ["usage"]]
)
def test_odd_chunks_do_no_harm(data: Any) -> None:
    assert Run().step().add("assistant/chunk", data).used(3).end().counts() == (1, 3)
