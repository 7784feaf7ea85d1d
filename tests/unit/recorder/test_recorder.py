"""The recorder: what a loop of one's own writes, whatever happens in it."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import threading
import types
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any

import pytest

from turnlog.assemble import Assembly
from turnlog.errors import (
    EventError,
    InvariantError,
    JsonValueError,
    RecorderError,
    SessionError,
    StorageWriteError,
)
from turnlog.invariants import find_violations
from turnlog.messages import assistant_message, tool_calls, user_message
from turnlog.recorder import Call, CallSpec, Step, Turn, end_reason, llm_failure
from turnlog.repair import interrupted_turn_closers
from turnlog.session import Session
from turnlog.store import SessionStore

Wire = dict[str, Any]
ROUTE: Any = {"provider": "p", "model": "m"}
CALLS: list[CallSpec] = [("a", "read", {"path": "x"}), ("b", "read", '{"path": ')]


def live() -> Session:
    return SessionStore(invariants=True).create()


def balanced(session: Session) -> Session:
    """The session, once its log is found to be whole: brackets, calls, and as a seed."""
    events = session.events
    assert find_violations(events) == []
    assert interrupted_turn_closers(events) == []
    assert Session.create("again", seed=[event.to_dict() for event in events]).seq >= len(events)
    asked: list[str] = []
    for message in session.derive_messages():
        asked += [call["id"] for call in tool_calls(message)]
        if message.source["kind"] == "tool":
            asked.remove(message.source["callId"])
    assert asked == []
    return session


def tell(session: Session) -> str:
    """The log in one line: types with turn numbers, errors, interruptions and ends."""
    return " ".join(_tell(event.type, event.data) for event in balanced(session).events)


SHORT = {
    "turn/start": "turn",
    "user/message": "user",
    "step/start": "step",
    "request/header": "header",
    "request/context": "context",
    "assistant/chunk": "chunk",
    "assistant/message": "message",
    "tool/call": "call",
    "tool/result": "result",
    "step/end": "/step",
    "turn/end": "/turn",
    "session/end-seed": "seed",
    "llm/retry": "retry",
    "llm/retry-started": "retrying",
}


def _tell(type_: str, data: Any) -> str:
    word = SHORT[type_]
    if type_ == "turn/end":
        reason = data["reason"]
        told = reason.get("error", {}).get("code") or reason.get("reason", {}).get("kind")
        return f"{word}={reason['kind']}" + (f":{told}" if told else "")
    if type_ == "tool/result":
        code = data.get("error", {}).get("code")
        return f"{word}:{data['message']['source']['callId']}" + (f"={code}" if code else "")
    if type_ == "tool/call":
        return f"{word}:{data['callId']}"
    if type_ == "request/header":
        return f"{word}={data['reason']}"
    return word + ("!" if type_ == "assistant/message" and data.get("interrupted") else "")


def data_of(session: Session, type_: str) -> list[Any]:
    return [event.to_dict()["data"] for event in session.events if event.type == type_]


def only(session: Session, type_: str) -> Any:
    (data,) = data_of(session, type_)
    return data


class Disk:
    """A storage that notes up to which seq it was flushed, and by which thread; it can fail."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.flushed: list[str] = []
        self.threads: set[int] = set()
        self.failures: list[BaseException] = []
        session.attach(flush=self.flush, release=lambda: None)

    def flush(self) -> None:
        self.threads.add(threading.get_ident())
        self.flushed.append(SHORT[self.session.events[-1].type])
        if self.failures:
            raise self.failures.pop(0)


def test_the_flow_of_the_readme_is_written_as_the_harnesses_write_it() -> None:
    session = live()
    with session.turn() as turn:
        turn.user("What is in notes.txt?")
        with turn.step(**ROUTE, system="Be brief.", context_window=1000) as step:
            step.text("Let ")
            step.text("me look.")
            step.message("Let me look.", calls=[("call-1", "read", {"path": "notes.txt"})])
            with step.tool_call("call-1") as call:
                call.result("buy milk", meta={"lines": 1})
        with turn.step(**ROUTE, system="Be brief.", context_window=1000) as step:
            step.message("Milk.", usage={"inputTokens": 4, "outputTokens": 1})
    assert tell(session) == (
        "turn user step header=initial context chunk chunk message call:call-1 result:call-1 /step"
        " step message /step /turn=completed"
    )
    wires: list[Wire] = [event.to_dict() for event in session.events]
    for wire in wires:
        wire["data"].get("message", wire["data"]).pop("id", None)
        del wire["time"]
    place, source = {"turn": 1, "step": 1}, {"kind": "model", "provider": "p", "model": "m"}
    config = {"provider": "p", "model": "m"}
    block = {
        "type": "tool-call",
        "id": "call-1",
        "name": "read",
        "arguments": '{"path":"notes.txt"}',
    }
    result = {
        "type": "tool-result",
        "toolCallId": "call-1",
        "content": [{"type": "text", "text": "buy milk"}],
        "isError": False,
    }
    assert [wire["data"] for wire in wires] == [
        {"turn": 1},
        {
            "content": [{"type": "text", "text": "What is in notes.txt?"}],
            "source": {"kind": "user"},
            "role": "user",
        },
        place,
        {"header": {"config": config, "system": "Be brief."}, "reason": "initial"},
        {"provider": "p", "model": "m", "contextWindow": 1000},
        {**place, "chunk": {"type": "text-delta", "index": 0, "text": "Let "}},
        {**place, "chunk": {"type": "text-delta", "index": 0, "text": "me look."}},
        {
            **place,
            "message": {
                "role": "assistant",
                "content": [{"type": "text", "text": "Let me look."}, block],
                "source": source,
            },
        },
        {**place, "callId": "call-1", "name": "read", "arguments": '{"path":"notes.txt"}'},
        {
            **place,
            "message": {
                "source": {"kind": "tool", "callId": "call-1"},
                "content": [result],
                "role": "user",
            },
            "meta": {"lines": 1},
        },
        place,
        {"turn": 1, "step": 2},
        {
            "turn": 1,
            "step": 2,
            "message": {
                "role": "assistant",
                "content": [{"type": "text", "text": "Milk."}],
                "source": source,
            },
            "usage": {"inputTokens": 4, "outputTokens": 1},
        },
        {"turn": 1, "step": 2},
        {"turn": 1, "reason": {"kind": "completed"}},
    ]
    cited = {wire["seq"]: wire["sourceEventSeqs"] for wire in wires if "sourceEventSeqs" in wire}
    assert cited == {7: [5, 6], 9: [8]}
    request = session.request_at(1, 2)
    assert [message["role"] for message in request.messages] == ["user", "assistant", "user"]


# -- exceptions at every point of a turn ---------------------------------------------------------------------


class PlainError(Exception):
    """An exception of a program that knows nothing of codes."""


class CodedError(Exception):
    """One with a code and no text."""

    code = "RATE_LIMIT"


def loop(session: Session) -> Generator[str, None, None]:
    """A turn that stops at each point of interest."""
    with session.turn() as turn:
        yield "before user"
        turn.user("hello")
        yield "after user"
        with turn.step(**ROUTE) as step:
            yield "before chunks"
            step.text("hel")
            step.text("lo")
            yield "after chunks"
            step.message("hello", calls=CALLS)
            yield "after message"
            with step.tool_call("a") as first:
                yield "between calls"
                with step.tool_call("b") as second:
                    yield "in both calls"
                    second.result("b")
                    yield "after one result"
                first.result("a")
                yield "after both results"
            yield "after calls"
        yield "after step"


async def async_loop(session: Session) -> AsyncGenerator[str, None]:
    """The same with `async with`."""
    async with session.turn() as turn:
        yield "before user"
        turn.user("hello")
        yield "after user"
        async with turn.step(**ROUTE) as step:
            yield "before chunks"
            step.text("hel")
            step.text("lo")
            yield "after chunks"
            step.message("hello", calls=CALLS)
            yield "after message"
            async with step.tool_call("a") as first:
                yield "between calls"
                async with step.tool_call("b") as second:
                    yield "in both calls"
                    second.result("b")
                    yield "after one result"
                first.result("a")
                yield "after both results"
            yield "after calls"
        yield "after step"


def strike(session: Session, point: str, error: BaseException) -> None:
    """Run the loop up to the point, and raise the error there."""
    running = loop(session)
    while next(running) != point:
        pass
    with pytest.raises(type(error)) as caught:
        running.throw(error)
    assert caught.value is error


def strike_async(session: Session, point: str, error: BaseException) -> None:
    async def main() -> None:
        running = async_loop(session)
        while await anext(running) != point:
            pass
        with pytest.raises(type(error)) as caught:
            await running.athrow(error)
        assert caught.value is error

    asyncio.run(main())


OPEN = "turn user step header=initial context chunk chunk"
ASKED = f"{OPEN} message"
DONE = f"{ASKED} call:a call:b result:b result:a"
NOT_STARTED = "result:b=TOOL_NOT_STARTED"
UNKNOWN = "TOOL_OUTCOME_UNKNOWN"
POINTS = [
    # point, up to the turn's end with an Exception (its tool code is {}), and with an interruption
    ("before user", "turn", "turn"),
    ("after user", "turn user", "turn user"),
    ("before chunks", "turn user step /step", "turn user step /step"),
    ("after chunks", f"{OPEN} message! /step", f"{OPEN} message! /step"),
    (
        "after message",
        f"{ASKED} result:a=TOOL_NOT_STARTED {NOT_STARTED} /step",
        f"{ASKED} result:a=TOOL_NOT_STARTED {NOT_STARTED} /step",
    ),
    (
        "between calls",
        f"{ASKED} call:a result:a={{}} {NOT_STARTED} /step",
        f"{ASKED} call:a result:a={UNKNOWN} {NOT_STARTED} /step",
    ),
    (
        "in both calls",
        f"{ASKED} call:a call:b result:b={{}} result:a={{}} /step",
        f"{ASKED} call:a call:b result:b={UNKNOWN} result:a={UNKNOWN} /step",
    ),
    (
        "after one result",
        f"{ASKED} call:a call:b result:b result:a={{}} /step",
        f"{ASKED} call:a call:b result:b result:a={UNKNOWN} /step",
    ),
    ("after both results", f"{DONE} /step", f"{DONE} /step"),
    ("after calls", f"{DONE} /step", f"{DONE} /step"),
    ("after step", f"{DONE} /step", f"{DONE} /step"),
]
ERRORS: list[tuple[BaseException, str, str]] = [
    (PlainError("no luck"), "/turn=error:UNKNOWN", "TOOL_ERROR"),
    (CodedError(), "/turn=error:RATE_LIMIT", "RATE_LIMIT"),
    (KeyboardInterrupt(), "/turn=aborted:user", ""),
    (asyncio.CancelledError(), "/turn=aborted:user", ""),
    (GeneratorExit(), "/turn=aborted:disposed", ""),
    (SystemExit(1), "/turn=aborted:disposed", ""),
]


@pytest.mark.parametrize(
    "error_index", range(len(ERRORS)), ids=lambda i: type(ERRORS[i][0]).__name__
)
@pytest.mark.parametrize("point", POINTS, ids=lambda point: point[0])
@pytest.mark.parametrize("how", [strike, strike_async])
def test_an_exception_at_any_point_leaves_a_whole_log(
    how: Callable[[Session, str, BaseException], None],
    point: tuple[str, str, str],
    error_index: int,
) -> None:
    error, end, tool_code = ERRORS[error_index]
    name, with_exception, with_interruption = point
    expected = with_exception.format(*[tool_code] * 2) if tool_code else with_interruption
    if how is strike_async and name == "before chunks":
        expected = expected.replace("step /step", "step header=initial context /step")
    session = live()
    how(session, name, error)
    assert tell(session) == f"{expected} {end}"
    with session.turn() as turn:
        assert turn.number == 2


def test_without_an_exception_nothing_is_added() -> None:
    session, other = live(), live()
    assert len(list(loop(session))) == len(POINTS)

    async def main() -> list[str]:
        return [point async for point in async_loop(other)]

    assert asyncio.run(main()) == [point for point, _, _ in POINTS]
    assert tell(session) == tell(other) == f"{DONE} /step /turn=completed"


def test_closing_a_suspended_generator_disposes_of_its_turn() -> None:
    session = live()
    running = loop(session)
    while next(running) != "after chunks":
        pass
    running.close()
    assert tell(session) == f"{OPEN} message! /step /turn=aborted:disposed"


def test_a_cancelled_task_ends_its_turn_as_aborted_by_the_user() -> None:
    session = live()
    Disk(session)

    async def work(started: asyncio.Event) -> None:
        async with session.turn() as turn:
            turn.user("hello")
            async with turn.step(**ROUTE) as step:
                step.message("", calls=CALLS[:1])
                async with step.tool_call("a"):
                    started.set()
                    await asyncio.Event().wait()

    async def main() -> None:
        started = asyncio.Event()
        task = asyncio.create_task(work(started))
        await started.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert tell(session) == (
        f"turn user step header=initial context message call:a result:a={UNKNOWN} /step"
        " /turn=aborted:user"
    )


def test_a_closed_coroutine_is_not_awaited_in() -> None:
    session = live()
    disk = Disk(session)

    @types.coroutine
    def wait_forever() -> Generator[None, None, None]:
        yield

    async def work() -> None:
        async with session.turn(durable=False) as turn, turn.step(**ROUTE) as step:
            step._durable = True
            step.text("hi")
            await wait_forever()

    coroutine = work()
    coroutine.send(None)
    coroutine.close()
    assert (
        tell(session)
        == "turn step header=initial context chunk message! /step /turn=aborted:disposed"
    )
    assert disk.flushed == ["/step"]


# -- what an exception says ----------------------------------------------------------------------------------


class HostileError(Exception):
    """Nothing of it can be read."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    @property
    def code(self) -> str:
        raise RuntimeError("no code")


class Name(str):
    """A str that lossless JSON does not take as it is."""

    __slots__ = ()


def carrying(**attributes: Any) -> Exception:
    error = Exception("x")
    for name, value in attributes.items():
        setattr(error, name, value)
    return error


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (PlainError("no luck"), {"message": "no luck", "code": "UNKNOWN"}),
        (PlainError(), {"message": "PlainError", "code": "UNKNOWN"}),
        (CodedError(), {"message": "CodedError", "code": "RATE_LIMIT"}),
        (HostileError(), {"message": "HostileError", "code": "UNKNOWN"}),
        (PlainError("\ud800"), {"message": "\ud800", "code": "UNKNOWN"}),
        (PlainError(Name("n")), {"message": "n", "code": "UNKNOWN"}),
        (carrying(code=Name("C")), {"message": "x", "code": "C"}),
        (carrying(code=429), {"message": "x", "code": "UNKNOWN"}),
        (carrying(code=""), {"message": "x", "code": "UNKNOWN"}),
        (StorageWriteError("full"), {"message": "full", "code": "WRITE_FAILED"}),
        (
            carrying(code="SERVER", status=503, provider_retry_after_ms=1.5, request_id="r"),
            {
                "message": "x",
                "code": "SERVER",
                "status": 503,
                "providerRetryAfterMs": 1.5,
                "requestId": "r",
            },
        ),
        (
            carrying(status=600, provider_retry_after_ms=0, request_id=""),
            {"message": "x", "code": "UNKNOWN"},
        ),
        (
            carrying(status=True, provider_retry_after_ms=float("inf"), request_id=5),
            {"message": "x", "code": "UNKNOWN"},
        ),
        (
            carrying(status="503", provider_retry_after_ms=2**60 + 1),
            {"message": "x", "code": "UNKNOWN"},
        ),
        (
            ExceptionGroup("two", [PlainError("a"), PlainError("b")]),
            {"message": "two (2 sub-exceptions) [a; b]", "code": "UNKNOWN"},
        ),
    ],
)
def test_a_turn_that_fails_says_why(error: Exception, failure: Wire) -> None:
    session = live()
    with pytest.raises(type(error)), session.turn():
        raise error
    assert only(balanced(session), "turn/end")["reason"] == {"kind": "error", "error": failure}
    assert llm_failure(error) == failure


def test_the_cancellation_of_any_async_library_is_the_users() -> None:
    class Cancelled(BaseException):
        """As trio's."""

    assert end_reason(Cancelled()) == {"kind": "aborted", "reason": {"kind": "user"}}


# -- tool calls ----------------------------------------------------------------------------------------------


def in_step(session: Session, work: Callable[[Step], object]) -> None:
    with session.turn() as turn, turn.step(**ROUTE) as step:
        work(step)


def test_a_tools_exception_becomes_its_result_and_goes_on_unless_asked() -> None:
    def work(step: Step) -> None:
        step.message("", calls=CALLS)
        with step.tool_call("a", errors="record"):
            raise PlainError("no such file")
        with pytest.raises(CodedError), step.tool_call("b"):
            raise CodedError

    session = live()
    in_step(session, work)
    assert tell(session).endswith(
        "call:a result:a=TOOL_ERROR call:b result:b=RATE_LIMIT /step /turn=completed"
    )
    first, second = data_of(session, "tool/result")
    assert first["error"] == {"name": "PlainError", "code": "TOOL_ERROR"}
    (block,) = first["message"]["content"]
    assert (block["isError"], block["content"]) == (
        True,
        [{"type": "text", "text": "no such file"}],
    )
    assert second["message"]["content"][0]["content"] == [{"type": "text", "text": "CodedError"}]


def test_an_exception_behind_the_result_is_never_hidden() -> None:
    def work(step: Step) -> None:
        step.message("", calls=CALLS[:1])
        with step.tool_call("a", errors="record") as call:
            call.result("done")
            raise PlainError("clean-up failed")

    session = live()
    with pytest.raises(PlainError):
        in_step(session, work)
    assert tell(session).endswith("call:a result:a /step /turn=error:UNKNOWN")


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, asyncio.CancelledError, SystemExit])
def test_an_interruption_is_recorded_and_never_swallowed(
    interruption: type[BaseException],
) -> None:
    def work(step: Step) -> None:
        step.message("", calls=CALLS[:1])
        with pytest.raises(interruption), step.tool_call("a", errors="record"):
            raise interruption

    session = live()
    in_step(session, work)
    assert tell(session).endswith(f"call:a result:a={UNKNOWN} /step /turn=completed")


def test_a_tool_that_gives_no_result_fails() -> None:
    def work(step: Step) -> None:
        step.message("", calls=CALLS[:1])
        with step.tool_call("a"):
            pass

    session = live()
    in_step(session, work)
    assert tell(session).endswith("call:a result:a=TOOL_NO_RESULT /step /turn=completed")
    assert only(session, "tool/result")["message"]["content"][0]["isError"] is True


def test_calls_that_never_ran_are_answered_as_repair_answers_them() -> None:
    def work(step: Step) -> None:
        step.message("", calls=CALLS)
        step.tool_call("b").__enter__()

    session = live()
    in_step(session, work)
    assert tell(session).endswith(
        f"call:b result:a=TOOL_NOT_STARTED result:b={UNKNOWN} /step /turn=completed"
    )
    wires = [event.to_dict() for event in session.events]
    first = [wire["type"] for wire in wires].index("tool/result")
    closers = [event.to_dict() for event in interrupted_turn_closers(wires[:first])]
    for closer, wire in zip(closers[:3], wires[first:], strict=False):
        assert closer | {"time": wire["time"]} == wire


def test_a_call_needs_no_block_in_the_message() -> None:
    session = live()
    in_step(session, lambda step: step.tool_call("x", "ls", {"deep": True}).__enter__().result("y"))
    events = session.events
    assert find_violations(events) == []
    assert only(session, "tool/call")["arguments"] == '{"deep":true}'


def test_arguments_are_the_models_raw_text() -> None:
    def work(step: Step) -> None:
        step.message("", calls=CALLS)
        for name, _, _ in CALLS:
            with step.tool_call(name) as call:
                assert call.name == "read"
                call.result([{"type": "text", "text": call.arguments}], is_error=True)
        with step.tool_call("c", "read", {"é": 1.0}) as call:
            call.result("c")

    session = live()
    in_step(session, work)
    assert [data["arguments"] for data in data_of(session, "tool/call")] == [
        '{"path":"x"}',
        '{"path": ',
        '{"é":1}',
    ]


def test_calls_run_side_by_side_in_threads() -> None:
    ids = [f"c{number}" for number in range(8)]
    gate = threading.Barrier(len(ids))

    def work(step: Step) -> None:
        step.message("", calls=[(id_, "read", {}) for id_ in ids])

        def run(id_: str) -> None:
            with step.tool_call(id_) as call:
                gate.wait()
                call.result(id_)

        threads = [threading.Thread(target=run, args=(id_,)) for id_ in ids]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    session = live()
    in_step(session, work)
    balanced(session)
    calls = {
        event.data["callId"]: event.seq for event in session.events if event.type == "tool/call"
    }
    for event in session.events:
        if event.type == "tool/result":
            assert event.source_event_seqs == [calls[event.data["message"]["source"]["callId"]]]


def test_one_failing_task_of_a_group_leaves_every_call_answered() -> None:
    session = live()
    Disk(session)

    async def tool(step: Step, id_: str) -> None:
        async with step.tool_call(id_):
            if id_ == "b":
                await asyncio.sleep(0)
                raise PlainError("no luck")
            await asyncio.Event().wait()

    async def main() -> None:
        async with session.turn() as turn, turn.step(**ROUTE) as step:
            step.message("", calls=CALLS)
            async with asyncio.TaskGroup() as group:
                for id_, _, _ in CALLS:
                    group.create_task(tool(step, id_))

    with pytest.raises(ExceptionGroup):
        asyncio.run(main())
    results = {
        data["message"]["source"]["callId"]: data["error"]["code"]
        for data in data_of(balanced(session), "tool/result")
    }
    assert results == {"a": UNKNOWN, "b": "TOOL_ERROR"}
    failure = only(session, "turn/end")["reason"]["error"]
    assert failure["message"] == "unhandled errors in a TaskGroup (1 sub-exception) [no luck]"


def test_a_result_that_comes_after_its_step_is_refused() -> None:
    session = live()
    late: list[Call] = []

    def work(step: Step) -> None:
        step.message("", calls=CALLS[:1])
        late.append(step.tool_call("a").__enter__())

    in_step(session, work)
    before = tell(session)
    with pytest.raises(RecorderError) as caught:
        late[0].result("late")
    assert caught.value.code == "CLOSED"
    assert late[0].__exit__(None, None, None) is False
    assert tell(session) == before


# -- messages ------------------------------------------------------------------------------------------------


def test_a_message_is_made_of_the_recorded_chunks() -> None:
    chunks: list[Wire] = [
        {"type": "block-start", "index": 0, "blockType": "reasoning"},
        {"type": "reasoning-delta", "index": 0, "text": "Hm"},
        {"type": "text-delta", "index": 1, "text": "O"},
        {"type": "text-delta", "index": 1, "text": "k"},
        {
            "type": "tool-call-delta",
            "index": 2,
            "id": "t",
            "name": "ls",
            "argumentsDelta": '{"a"',
        },
        {"type": "tool-call-delta", "index": 2, "id": "t", "argumentsDelta": ":1}"},
        {"type": "usage", "usage": {"inputTokens": 3, "outputTokens": 2}},
        {"type": "finish", "reason": {"kind": "tool-calls"}, "replayState": {"response": "id"}},
    ]

    def work(step: Step) -> None:
        for chunk in chunks:
            step.chunk(chunk)
        step.message()
        with step.tool_call("t") as call:
            call.result("x")

    session = live()
    in_step(session, work)
    data = only(balanced(session), "assistant/message")
    assert data["message"]["content"] == [
        {"type": "reasoning", "text": "Hm"},
        {"type": "text", "text": "Ok"},
        {"type": "tool-call", "id": "t", "name": "ls", "arguments": '{"a":1}'},
    ]
    assert data["message"]["source"]["replayState"] == {"response": "id"}
    assert data["usage"] == {"inputTokens": 3, "outputTokens": 2}
    assert only(session, "tool/call")["arguments"] == '{"a":1}'
    assert session.usage().conversation.to_dict()["requests"] == 1


def test_a_step_that_ends_without_its_message_gets_the_streamed_one() -> None:
    session = live()

    def work(step: Step) -> None:
        step.reasoning("Hm", index=0)
        step.text("Ok", index=1)

    in_step(session, work)
    assert tell(session) == (
        "turn step header=initial context chunk chunk message /step /turn=completed"
    )
    assert [block["type"] for block in session.derive_messages()[0].content] == [
        "reasoning",
        "text",
    ]


@pytest.mark.parametrize(
    ("chunks", "kept"),
    [
        ([{"type": "text-delta", "index": 0, "text": " \n"}], None),
        (
            [
                {"type": "tool-call-delta", "index": 0, "id": "t", "argumentsDelta": "{"},
                {"type": "reasoning-delta", "index": 1, "text": "Hm"},
                {"type": "block-start", "index": 2, "blockType": "image"},
            ],
            [{"type": "reasoning", "text": "Hm"}],
        ),
        (
            [{"type": "block-end", "index": 0, "block": {"type": "text", "text": "All"}}],
            [{"type": "text", "text": "All"}],
        ),
        ([{"type": "text-delta", "index": [0], "text": 5}, {"type": "finish"}], None),
    ],
)
def test_only_the_visible_part_of_a_cut_off_answer_is_kept(
    chunks: list[Wire], kept: list[Wire] | None
) -> None:
    def work(step: Step) -> None:
        for chunk in chunks:
            step.chunk(chunk)
        raise PlainError("gone")

    session = live()
    with pytest.raises(PlainError):
        in_step(session, work)
    messages = data_of(balanced(session), "assistant/message")
    assert [data["message"]["content"] for data in messages] == ([] if kept is None else [kept])
    for event in session.events:
        if event.type == "assistant/message":
            assert event.data["interrupted"] is True
            cited = [other.seq for other in session.events if other.type == "assistant/chunk"]
            assert event.source_event_seqs == cited


def test_a_block_that_never_ended_fails_the_step_and_leaves_a_whole_log() -> None:
    def work(step: Step) -> None:
        step.text("Look:")
        step.chunk({"type": "block-start", "index": 1, "blockType": "image"})

    session = live()
    with pytest.raises(RecorderError) as caught:
        in_step(session, work)
    assert caught.value.code == "INCOMPLETE_BLOCK"
    assert tell(session).endswith("chunk chunk message! /step /turn=error:INCOMPLETE_BLOCK")


def test_no_chunks_means_not_recorded_unless_the_caller_says_otherwise() -> None:
    session = live()
    in_step(session, lambda step: step.message("Ok"))
    in_step(session, lambda step: step.message("Ok", streamed=True))
    in_step(session, lambda step: step.message(streamed=True))
    cited = [
        event.source_event_seqs for event in session.events if event.type == "assistant/message"
    ]
    assert cited == [None, [], []]
    assert len(balanced(session).derive_messages()) == 2


def test_whole_messages_are_taken_as_they_are() -> None:
    session = live()
    said = user_message("hello", source={"kind": "plugin", "plugin": "x"})
    answer = assistant_message("hi", provider="other", model="o").to_dict()
    with session.turn() as turn:
        assert turn.user(said).message == said
        with turn.step(**ROUTE) as step:
            step.user([{"type": "text", "text": "more"}])
            step.message(answer, calls=CALLS[:1])
    assert tell(session) == (
        "turn user step user header=initial context message result:a=TOOL_NOT_STARTED /step"
        " /turn=completed"
    )
    recorded = only(session, "assistant/message")["message"]
    assert recorded["id"] == answer["id"]
    assert [block["type"] for block in recorded["content"]] == ["text", "tool-call"]
    with session.turn() as turn, pytest.raises(EventError):
        turn.user(answer)


def test_what_is_recorded_is_detached_from_the_caller() -> None:
    session = live()
    chunk: Wire = {"type": "finish", "reason": {"kind": "stop"}}
    tools: list[Wire] = [{"name": "ls", "description": "", "parameters": {}}]
    with session.turn() as turn:
        step = turn.step(**ROUTE, tools=tools)
        tools[0]["parameters"]["x"] = 1
        with step:
            step.chunk(chunk)
            chunk["reason"]["kind"] = "error"
            step.message([])
    assert only(session, "request/header")["header"]["tools"][0]["parameters"] == {}
    assert tell(session).endswith("chunk message /step /turn=completed")


# -- ends ----------------------------------------------------------------------------------------------------


def end_of(work: Callable[[Turn], object]) -> Any:
    session = live()
    with contextlib.suppress(PlainError, KeyboardInterrupt, RecorderError), session.turn() as turn:
        work(turn)
    return only(balanced(session), "turn/end")["reason"]


def raises(error: BaseException) -> Any:
    raise error


def answered(turn: Turn, **more: Any) -> Turn:
    with turn.step(**ROUTE) as step:
        step.message("Ok", **more)
    return turn


def failed(turn: Turn, kind: str = "error", **failure: Any) -> Turn:
    with turn.step(**ROUTE) as step:
        step.text("O")
        step.chunk({"type": "finish", "reason": {"kind": kind, "failure": failure}})
    return turn


HOOK = {"kind": "hook", "reason": "policy"}
SERVER: Wire = {"message": "down", "code": "SERVER", "status": 503, "own": 1}


@pytest.mark.parametrize(
    ("work", "reason"),
    [
        (lambda turn: None, {"kind": "completed"}),
        (lambda turn: turn.abort(), {"kind": "aborted", "reason": {"kind": "user"}}),
        (lambda turn: turn.abort("parent"), {"kind": "aborted", "reason": {"kind": "parent"}}),
        (lambda turn: turn.abort(HOOK), {"kind": "aborted", "reason": HOOK}),
        (lambda turn: turn.block(), {"kind": "blocked"}),
        (lambda turn: turn.end("max-tokens"), {"kind": "max-tokens"}),
        (lambda turn: turn.end({"kind": "x/own", "n": 1}), {"kind": "x/own", "n": 1}),
        # The first cause wins; an exception overrides only what is no cause.
        (
            lambda turn: (turn.abort("parent"), turn.abort("user")),
            {"kind": "aborted", "reason": {"kind": "parent"}},
        ),
        (
            lambda turn: (turn.abort("parent"), raises(KeyboardInterrupt())),
            {"kind": "aborted", "reason": {"kind": "parent"}},
        ),
        (
            lambda turn: (turn.end("completed"), raises(PlainError("x"))),
            {"kind": "error", "error": {"message": "x", "code": "UNKNOWN"}},
        ),
        (lambda turn: (turn.end("completed"), turn.block()), {"kind": "blocked"}),
        # Cut off by the token limit: sticky in its turn.
        (
            lambda turn: (answered(turn, finish="max-tokens"), answered(turn)),
            {"kind": "max-tokens"},
        ),
        (lambda turn: failed(turn, "max-tokens"), {"kind": "max-tokens"}),
        (
            lambda turn: (answered(turn, finish="max-tokens"), raises(PlainError("x"))),
            {"kind": "error", "error": {"message": "x", "code": "UNKNOWN"}},
        ),
        # A stream that ended in a failure, which is told verbatim.
        (lambda turn: failed(turn, **SERVER), {"kind": "error", "error": SERVER}),
        (lambda turn: failed(turn, "aborted", **SERVER), {"kind": "error", "error": SERVER}),
        (
            lambda turn: (failed(turn, **SERVER), raises(PlainError("x"))),
            {"kind": "error", "error": SERVER},
        ),
        (
            lambda turn: (failed(turn, **SERVER), raises(KeyboardInterrupt())),
            {"kind": "aborted", "reason": {"kind": "user"}},
        ),
        (lambda turn: (failed(turn, **SERVER), answered(turn)), {"kind": "completed"}),
        (
            failed,
            {"kind": "error", "error": {"message": "the stream ended as error", "code": "UNKNOWN"}},
        ),
    ],
)  # fmt: skip
def test_a_turn_ends_for_its_first_reason(work: Callable[[Turn], object], reason: Wire) -> None:
    assert end_of(work) == reason


def test_a_failed_stream_makes_no_message() -> None:
    def work(step: Step) -> None:
        step.text("O")
        step.chunk({"type": "finish", "reason": {"kind": "error", "failure": SERVER}})
        step.message()

    session = live()
    with pytest.raises(RecorderError) as caught:
        in_step(session, work)
    assert caught.value.code == "NO_MESSAGE"
    assert tell(session).endswith("context chunk chunk /step /turn=error:SERVER")


def test_an_aborted_turn_keeps_the_partial_answer_as_interrupted() -> None:
    session = live()
    with session.turn() as turn, turn.step(**ROUTE) as step:
        step.text("O")
        turn.abort()
    assert tell(session).endswith("chunk message! /step /turn=aborted:user")


def test_max_tokens_drops_the_calls_of_a_streamed_answer() -> None:
    def work(step: Step) -> None:
        step.chunk({"type": "tool-call-delta", "index": 0, "id": "t", "argumentsDelta": "{"})
        step.chunk({"type": "finish", "reason": {"kind": "max-tokens"}})

    session = live()
    in_step(session, work)
    assert only(session, "assistant/message")["message"]["content"] == []
    assert tell(session).endswith("chunk chunk message /step /turn=max-tokens")


def test_a_replay_state_goes_with_the_blocks_that_are_kept() -> None:
    chunks: list[Wire] = [
        {"type": "text-delta", "index": 0, "text": "x"},
        {"type": "tool-call-delta", "index": 1, "id": "t", "argumentsDelta": "{"},
    ]

    def state(blocks: list[str], kind: str) -> Any:
        end = {
            "type": "finish",
            "reason": {"kind": kind},
            "replayState": {"response": 1, "blocks": blocks},
        }
        return Assembly([*chunks, end]).replay_state

    assert state(["x", "t"], "stop") == {"response": 1, "blocks": ["x", "t"]}
    assert state(["x", "t"], "max-tokens") == {"response": 1, "blocks": ["x"]}
    assert state(["x"], "stop") is None


# -- numbers and headers -------------------------------------------------------------------------------------


def take_turn(session: Session, **header: Any) -> tuple[int, list[int]]:
    with session.turn() as turn:
        steps = []
        for _ in range(2):
            with turn.step(**(ROUTE | header)) as step:
                step.message("Ok")
                steps.append(step.number)
        return turn.number, steps


def reasons(session: Session) -> list[str]:
    return [data["reason"] for data in data_of(session, "request/header")]


def test_numbers_go_on_over_resume_and_fork() -> None:
    store = SessionStore(invariants=True)
    session = store.create("one")
    assert take_turn(session) == (1, [1, 2])
    assert take_turn(session) == (2, [1, 2])
    resumed = Session.from_restore("one", session.events, session.header)
    store.adopt_checks(resumed)
    assert take_turn(resumed) == (3, [1, 2])
    child = store.fork(session)
    assert take_turn(child) == (3, [1, 2])
    seeded = Session.create("two", seed=[event.to_dict() for event in session.events])
    assert take_turn(seeded) == (3, [1, 2])
    for each in (session, resumed, child, seeded):
        balanced(each)
    # The first request of each that goes on from earlier events says so, though nothing has changed.
    assert reasons(session) == ["initial"]
    assert reasons(resumed) == reasons(child) == reasons(seeded) == ["initial", "resume"]
    assert len(data_of(resumed, "request/context")) == 1


def test_a_resumed_log_without_a_header_gets_its_initial_one() -> None:
    session = Session.from_restore("one", [])
    take_turn(session)
    assert reasons(session) == ["initial"]


def test_a_header_is_written_again_only_when_it_differs() -> None:
    session = live()
    tool = {"name": "ls", "description": "", "parameters": {"a": 1, "b": 2}}
    turned = {**tool, "parameters": {"b": 2, "a": 1}}
    steps: list[tuple[Wire, bool]] = [
        ({}, True),
        ({"system": "", "tools": [], "stop": None}, False),
        ({"stop": []}, True),
        ({"stop": [], "temperature": 1.0}, True),
        ({"stop": [], "temperature": 1}, False),
        ({"reasoning_effort": "low", "max_tokens": 5, "stop": ["x"]}, True),
        ({"system": "s", "tools": [tool]}, True),
        ({"system": "s", "tools": [dict(tool)]}, False),
        ({"system": "s", "tools": [turned]}, True),
    ]
    for header, written in steps:
        before = len(reasons(session))
        take_turn(session, **header)
        assert len(reasons(session)) - before == written, header
    assert reasons(session) == ["initial"] + ["change"] * 5
    config = data_of(session, "request/header")[3]["header"]["config"]
    assert list(config.items()) == [
        ("provider", "p"),
        ("model", "m"),
        ("reasoningEffort", "low"),
        ("maxTokens", 5),
        ("stop", ["x"]),
    ]


def test_a_header_is_compared_with_any_that_was_appended_by_hand() -> None:
    session = live()
    with session.turn() as turn:
        header = {"tools": [], "config": {"model": "m", "provider": "p"}}
        session.append("request/header", {"reason": "initial", "header": header})
        answered(turn)
    assert reasons(session) == ["initial"]


def test_a_context_is_written_again_only_when_it_differs() -> None:
    session = live()
    for window in (None, None, 5, 5, None):
        take_turn(session, context_window=window)
    assert data_of(session, "request/context") == [
        {"provider": "p", "model": "m"},
        {"provider": "p", "model": "m", "contextWindow": 5},
        {"provider": "p", "model": "m"},
    ]


def test_a_header_that_no_log_can_hold_is_refused_before_its_step() -> None:
    session = live()
    with session.turn() as turn:
        with pytest.raises(EventError):
            turn.step(provider="", model="m")
        with pytest.raises(EventError):
            turn.step(**ROUTE, reasoning_effort="")
        with pytest.raises(JsonValueError):
            turn.step(**ROUTE, tools=[{"parameters": {1, 2}}])
    assert tell(session) == "turn /turn=completed"


# -- retries -------------------------------------------------------------------------------------------------


def test_a_retry_starts_a_new_attempt_that_alone_is_cited() -> None:
    session = live()
    with session.turn() as turn, turn.step(**ROUTE) as step:
        step.text("lost")
        step.chunk({"type": "usage", "usage": {"inputTokens": 9, "outputTokens": 1}})
        step.retry({"message": "slow down", "code": "RATE_LIMIT"}, delay_ms=50)
        step.retry(CodedError("again"), max_retries=2)
        step.text("kept")
        step.message()
    assert tell(session) == (
        "turn step header=initial context chunk chunk retry retrying retry retrying chunk message"
        " /step /turn=completed"
    )
    first, second = data_of(session, "llm/retry")
    ident = {"retryId": first["retryId"], "turn": 1, "step": 1}
    assert first == {
        **ident,
        "provider": "p",
        "mode": "normal",
        "policyKey": '["normal",5,[],0,0,0]',
        "retry": 1,
        "maxRetries": 5,
        "delayMs": 50,
        "failure": {"message": "slow down", "code": "RATE_LIMIT"},
    }
    assert (second["retry"], second["retryId"]) == (2, first["retryId"])
    assert second["failure"] == {"message": "again", "code": "RATE_LIMIT"}
    assert data_of(session, "llm/retry-started") == [
        {**ident, "retry": 1},
        {**ident, "retry": 2},
    ]
    message = session.events[-3]
    assert message.source_event_seqs == [message.seq - 1]
    assert "usage" not in message.data
    assert session.derive_messages()[0].text == "kept"
    assert session.usage().conversation.input_tokens == 9


def test_a_request_that_failed_at_once_has_its_header() -> None:
    session = live()
    with session.turn() as turn, turn.step(**ROUTE) as step:
        step.retry(ConnectionError("refused"), retry_id="r")
        step.message("Ok")
    assert tell(session) == (
        "turn step header=initial context retry retrying message /step /turn=completed"
    )
    assert only(session, "llm/retry")["retryId"] == "r"


def test_chunks_behind_a_finish_are_another_attempt() -> None:
    session = live()
    with session.turn() as turn, turn.step(**ROUTE) as step:
        step.text("lost")
        step.chunk({"type": "finish", "reason": {"kind": "error", "failure": SERVER}})
        step.text("kept")
    assert tell(session).endswith("chunk chunk chunk message /step /turn=completed")
    assert session.derive_messages()[0].text == "kept"


# -- use out of order ----------------------------------------------------------------------------------------


def _twice(step: Step) -> None:
    with step.tool_call("a") as call:
        call.result("x")
        call.result("y")


def _again(step: Step) -> None:
    with step.tool_call("a") as call:
        call.result("x")
    step.tool_call("a").__enter__()


def _behind_a_call(step: Step) -> None:
    with step.tool_call("x", "ls", {}) as call:
        call.result("x")


@pytest.mark.parametrize(
    ("prepare", "refused", "code"),
    [
        (None, lambda step: step._session.turn().__enter__(), "TURN_OPEN"),
        (None, lambda step: step._turn.step(**ROUTE).__enter__(), "STEP_OPEN"),
        (None, lambda step: step.__enter__(), "STEP_OPEN"),
        (None, lambda step: step._turn.__enter__(), "TURN_OPEN"),
        (None, lambda step: step.message(), "NO_MESSAGE"),
        (None, lambda step: step.tool_call("a"), "UNKNOWN_CALL"),
        (None, lambda step: step.chunk({"type": "text_delta"}), "UNKNOWN_CHUNK"),
        (None, lambda step: step.chunk({"type": []}), "UNKNOWN_CHUNK"),
        (None, lambda step: step.user(["hello"]), "INVALID_CONTENT"),
        (None, lambda step: step.message([7]), "INVALID_CONTENT"),
        (None, lambda step: step.tool_call("", "ls", {}), "UNKNOWN_CALL"),
        (None, lambda step: step._turn.abort("nobody"), "INVALID_REASON"),
        (None, lambda step: step._turn.abort({"reason": "x"}), "INVALID_REASON"),
        (None, lambda step: step._turn.end("hook"), "INVALID_REASON"),
        (lambda step: step.text("O"), lambda step: step.tool_call("a", "ls", {}), "NO_MESSAGE"),
        ("message", lambda step: step.message("again"), "MESSAGE_TWICE"),
        ("message", lambda step: step.text("O"), "MESSAGE_TWICE"),
        ("message", lambda step: step.retry(PlainError("x")), "MESSAGE_TWICE"),
        ("message", lambda step: step.tool_call("nope"), "UNKNOWN_CALL"),
        (_behind_a_call, lambda step: step.message("late"), "CALLS_STARTED"),
        (_behind_a_call, lambda step: step.text("late"), "CALLS_STARTED"),
    ],
)  # fmt: skip
def test_use_out_of_order_is_refused_and_appends_nothing(
    prepare: Any, refused: Callable[[Step], object], code: str
) -> None:
    session = live()
    with session.turn() as turn, turn.step(**ROUTE) as step:
        if prepare == "message":
            step.message("Ok", calls=CALLS)
        elif prepare is not None:
            prepare(step)
        before = session.seq
        with pytest.raises(RecorderError) as caught:
            refused(step)
        assert (caught.value.code, session.seq) == (code, before)
    assert find_violations(session.events) == []


@pytest.mark.parametrize(("work", "code"), [(_twice, "RESULT_TWICE"), (_again, "CALL_TWICE")])
def test_a_call_runs_once_and_has_one_result(work: Callable[[Step], None], code: str) -> None:
    session = live()
    with session.turn() as turn, turn.step(**ROUTE) as step:
        step.message("", calls=CALLS[:1])
        with pytest.raises(RecorderError) as caught:
            work(step)
        assert caught.value.code == code
    assert tell(session).endswith("message call:a result:a /step /turn=completed")


@pytest.mark.parametrize(
    "refused",
    [
        lambda turn, step, call: turn.user("x"),
        lambda turn, step, call: turn.step(**ROUTE),
        lambda turn, step, call: turn.abort(),
        lambda turn, step, call: turn.end("completed"),
        lambda turn, step, call: turn.__enter__(),
        lambda turn, step, call: step.user("x"),
        lambda turn, step, call: step.text("x"),
        lambda turn, step, call: step.message("x"),
        lambda turn, step, call: step.tool_call("x", "ls", {}),
        lambda turn, step, call: step.retry(PlainError("x")),
        lambda turn, step, call: step.__enter__(),
        lambda turn, step, call: call.result("x"),
        lambda turn, step, call: call.__enter__(),
    ],
)
def test_what_is_closed_takes_nothing_more(
    refused: Callable[[Turn, Step, Call], object],
) -> None:
    session = live()
    with session.turn() as turn, turn.step(**ROUTE) as step:
        step.message("", calls=CALLS[:1])
        with step.tool_call("a") as call:
            call.result("x")
    before = tell(session)
    with pytest.raises(RecorderError) as caught:
        refused(turn, step, call)
    assert caught.value.code == "CLOSED"
    assert tell(session) == before


def test_a_turn_that_a_crash_left_open_is_not_gone_on_with() -> None:
    crashed = live()
    running = loop(crashed)
    while next(running) != "after chunks":
        pass
    stored = [event.to_dict() for event in crashed.events]
    session = Session.from_restore("s", stored)
    with pytest.raises(RecorderError, match="repair=True") as caught:
        session.turn().__enter__()
    assert caught.value.code == "TURN_OPEN"
    assert session.seq == len(stored) + 1


def test_of_two_threads_that_open_a_turn_one_is_refused() -> None:
    for invariants in (False, True):
        session = SessionStore(invariants=invariants).create()
        turns = [session.turn() for _ in range(8)]
        gate = threading.Barrier(len(turns))
        codes: list[str] = []

        def enter(turn: Turn, gate: threading.Barrier = gate, codes: list[str] = codes) -> None:
            gate.wait()
            try:
                turn.__enter__()
            except RecorderError as error:
                codes.append(error.code)

        threads = [threading.Thread(target=enter, args=(turn,)) for turn in turns]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert codes == ["TURN_OPEN"] * 7
        assert [event.type for event in session.events] == ["turn/start"]


def test_brackets_that_somebody_closed_by_hand_are_not_closed_again() -> None:
    session = live()
    with session.turn() as turn, turn.step(**ROUTE) as step:
        step.message("Ok")
        session.append("step/end", {"turn": 1, "step": 1})
        session.append("turn/end", {"turn": 1, "reason": {"kind": "x"}})
    assert tell(session).endswith("message /step /turn=x")


# -- durability ----------------------------------------------------------------------------------------------


def test_flushes_come_before_what_cannot_be_taken_back() -> None:
    session = live()
    disk = Disk(session)
    list(loop(session))
    assert disk.flushed == ["user", "context", "call", "call", "/step", "/turn"]


def test_async_flushes_run_on_another_thread_where_scopes_are_entered_and_left() -> None:
    session = live()
    disk = Disk(session)

    async def main() -> None:
        async for _ in async_loop(session):
            pass

    asyncio.run(main())
    assert disk.flushed == ["context", "call", "call", "/step", "/turn"]
    assert threading.get_ident() not in disk.threads


def test_a_turn_that_is_not_durable_leaves_flushing_to_the_caller() -> None:
    session = live()
    disk = Disk(session)
    with session.turn(durable=False) as turn:
        turn.user("hello")
        answered(turn)
    assert disk.flushed == []


def test_an_answer_that_was_not_streamed_waits_for_its_steps_end() -> None:
    session = live()
    disk = Disk(session)
    with session.turn() as turn:
        answered(turn)
    assert disk.flushed == ["/step", "/turn"]


FULL = StorageWriteError("disk full")


def test_no_chunk_is_taken_when_the_request_is_not_durable() -> None:
    session = live()
    disk = Disk(session)

    def work(step: Step) -> None:
        disk.failures = [FULL]
        step.text("O")

    with pytest.raises(StorageWriteError):
        in_step(session, work)
    assert tell(session) == "turn step header=initial context /step /turn=error:WRITE_FAILED"


@pytest.mark.parametrize("error", [FULL, KeyboardInterrupt()])
def test_no_tool_runs_when_its_call_is_not_durable(error: BaseException) -> None:
    session = live()
    disk = Disk(session)
    ran = []

    def work(step: Step) -> None:
        step.message("", calls=CALLS[:1])
        disk.failures = [error]
        with step.tool_call("a", errors="record"):
            ran.append(1)

    with pytest.raises(type(error)):
        in_step(session, work)
    assert not ran
    code, end = (
        ("WRITE_FAILED", "error:WRITE_FAILED") if error is FULL else (UNKNOWN, "aborted:user")
    )
    assert tell(session).endswith(f"call:a result:a={code} /step /turn={end}")


def test_a_flush_that_fails_at_the_end_is_told() -> None:
    session = live()
    disk = Disk(session)
    full = StorageWriteError("disk full")

    def work(step: Step) -> None:
        step.message("Ok")
        disk.failures = [full, StorageWriteError("still full")]

    with pytest.raises(StorageWriteError) as caught:
        in_step(session, work)
    assert caught.value is full
    assert full.__notes__ == ["turnlog: while closing: [WRITE_FAILED] still full"]
    assert tell(session).endswith("/step /turn=error:WRITE_FAILED")


@pytest.mark.parametrize("how", [strike, strike_async])
def test_on_the_way_out_of_an_exception_it_wins_over_a_failed_flush(
    how: Callable[[Session, str, BaseException], None],
) -> None:
    session = live()
    disk = Disk(session)
    error = PlainError("first")

    def fail_from_now_on() -> None:
        disk.failures = [StorageWriteError("full"), OSError("gone")]

    session.observe(lambda event: fail_from_now_on() if event.type == "assistant/message" else None)
    how(session, "after chunks", error)
    assert error.__notes__ == [
        "turnlog: while closing: [WRITE_FAILED] full",
        "turnlog: while closing: [OSError] gone",
    ]
    assert tell(session).endswith("message! /step /turn=error:UNKNOWN")


def test_a_session_that_is_closed_inside_its_turn_is_told_of() -> None:
    session = live()
    Disk(session)
    with pytest.raises(SessionError) as caught, session.turn():
        session.close()
    assert caught.value.code == "CLOSED"
    session = live()
    Disk(session)
    running = loop(session)
    next(running)
    session.close()
    with pytest.raises(PlainError) as other:
        running.throw(PlainError("first"))
    assert len(other.value.__notes__) == 1


@pytest.mark.parametrize("struck", ["step/end", "turn/end", "tool/result", "assistant/message"])
@pytest.mark.parametrize("committed", [False, True])
def test_a_second_interruption_while_closing_leaves_a_whole_log(
    struck: str, committed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = live()
    append = session.append
    strikes = [KeyboardInterrupt("second")]

    def interrupted(type_: str, *values: Any, **keys: Any) -> Any:
        if type_ != struck or not strikes:
            return append(type_, *values, **keys)
        if committed and type_ in ("step/end", "turn/end"):
            append(type_, *values, **keys)
        raise strikes.pop()

    running = loop(session)
    point = "after chunks" if struck == "assistant/message" else "after message"
    while next(running) != point:
        pass
    monkeypatch.setattr(session, "append", interrupted)
    with pytest.raises(KeyboardInterrupt):
        running.throw(KeyboardInterrupt("first"))
    assert tell(session).endswith("/step /turn=aborted:user")
    assert not strikes


def test_an_append_that_is_vetoed_leaves_the_step_usable() -> None:
    session = live()
    with session.turn() as turn, turn.step(**ROUTE) as step:
        with pytest.raises(JsonValueError):
            step.chunk({"type": "text-delta", "index": 0, "text": {1}})
        with pytest.raises(JsonValueError):
            step.message("Ok", usage={"inputTokens": float("nan")})
        with pytest.raises(InvariantError):
            session.append("turn/end", {"turn": 1, "reason": {"kind": "completed"}})
        step.message("Ok", calls=CALLS[:1])
        with step.tool_call("a") as call:
            with pytest.raises(JsonValueError):
                call.result([{"type": "text", "text": b"x"}])
            call.result("x")
    assert tell(session) == (
        "turn step header=initial context message call:a result:a /step /turn=completed"
    )


def test_importing_the_recorder_does_not_import_asyncio() -> None:
    code = "import sys, turnlog, turnlog.recorder; sys.exit('asyncio' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
