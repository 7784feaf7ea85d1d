"""The recorder: the events it writes, whatever is raised wherever, and when they are durable.

A log is compared in short: one line an event, from which type, numbers, codes and cited seqs can be told.
"""

from __future__ import annotations

import asyncio
import enum
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import turnlog
from turnlog.errors import (
    EventError,
    JsonValueError,
    RecorderError,
    StorageWriteError,
    TurnlogError,
)
from turnlog.events import SessionEvent
from turnlog.invariants import find_violations
from turnlog.log import Turnlog
from turnlog.messages import assistant_message, tool_calls, user_message
from turnlog.recorder import Call, Step, Turn, end_reason
from turnlog.repair import interrupted_turn_closers
from turnlog.session import END_SEED, Session
from turnlog.storage.jsonl import JsonlStorage
from turnlog.store import SessionStore

Wire = dict[str, Any]
ROUTE: Any = {"provider": "p", "model": "m"}
USAGE = {"inputTokens": 3, "outputTokens": 2}
FAILURE = {"message": "overloaded", "code": "SERVER", "status": 529}


def new_session(*, invariants: bool = True) -> Session:
    return SessionStore(invariants=invariants).create("s")


def line(event: SessionEvent) -> str:
    """One event in short."""
    data, sources = event.data, event.source_event_seqs
    cited = "" if sources is None else f" {list(sources)}"
    match event.type:
        case "turn/start":
            return f"turn {data['turn']}"
        case "turn/end":
            reason = data["reason"]
            more = reason.get("error", {}).get("code") or reason.get("reason", {}).get("kind")
            return f"end {reason['kind']}" + (f" {more}" if more else "")
        case "step/start":
            return f"step {data['turn']}.{data['step']}"
        case "step/end":
            return f"step end {data['turn']}.{data['step']}"
        case "request/header":
            return f"header {data['reason']}"
        case "assistant/chunk":
            return f"chunk {data['chunk']['type']}"
        case "assistant/message":
            assert event.surface_op == "append"
            return "message" + cited + (" interrupted" if data.get("interrupted") else "")
        case "tool/call":
            return f"call {data['callId']}"
        case "tool/result":
            assert event.surface_op == "append"
            code = data["error"]["code"] if "error" in data else "ok"
            return f"result {data['message']['source']['callId']} {code}{cited}"
        case "user/message":
            assert event.surface_op == "append"
            return "user" + cited
    return event.type.removeprefix("request/")


def story(session: Session) -> list[str]:
    return [line(event) for event in session.events if event.type != END_SEED]


def events_of(session: Session, type_: str) -> list[SessionEvent]:
    return [event for event in session.events if event.type == type_]


@contextmanager
def raising(
    kind: type[BaseException], match: str | None = None
) -> Iterator[pytest.ExceptionInfo[BaseException]]:
    """`pytest.raises` around a whole program: what is tested is what the program leaves behind."""
    with pytest.raises(kind, match=match) as caught:
        yield caught


def assert_sound(session: Session) -> None:
    """What holds for every log that the recorder leaves: balanced, loadable, and each call answered."""
    assert find_violations(session.events) == []
    assert interrupted_turn_closers(session.events) == []
    copy = Session.create("copy", seed=session.events)
    assert copy.derive_messages() == session.derive_messages()
    unanswered: set[str] = set()
    for message in session.derive_messages():
        if message.role == "assistant":
            assert not unanswered
            unanswered = {call["id"] for call in tool_calls(message)}
        elif message.source["kind"] == "tool":
            unanswered.discard(message.source["callId"])
    assert not unanswered


# -- the whole of it -----------------------------------------------------------------------------------


def test_the_flow_of_the_readme(tmp_path: Path) -> None:
    with turnlog.open(tmp_path) as log, log.create(cwd="/repo") as session:
        with session.turn() as turn:
            assert turn.number == 1
            turn.user("What is in notes.txt?")
            with turn.step(**ROUTE, system="Be brief.") as step:
                assert step.number == 1
                step.text("Let me look.")
                step.message("Let me look.", calls=[("call-1", "read", {"path": "notes.txt"})])
                with step.tool_call("call-1") as call:
                    assert (call.id, call.name) == ("call-1", "read")
                    assert call.arguments == '{"path":"notes.txt"}'
                    call.result("buy milk")
            with turn.step(**ROUTE, system="Be brief.") as step:
                assert step.number == 2
                step.message("Milk.", usage=USAGE)
        assert story(session) == [
            "turn 1",
            "user",
            "step 1.1",
            "header initial",
            "context",
            "chunk text-delta",
            "message [5]",
            "call call-1",
            "result call-1 ok [7]",
            "step end 1.1",
            "step 1.2",
            "message",
            "step end 1.2",
            "end completed",
        ]
        assert events_of(session, "request/header")[0].data["header"] == {
            "config": ROUTE,
            "system": "Be brief.",
        }
        assert events_of(session, "tool/call")[0].data == {
            "turn": 1,
            "step": 1,
            "callId": "call-1",
            "name": "read",
            "arguments": '{"path":"notes.txt"}',
        }
        assert [message.role for message in session.derive_messages()] == [
            "user",
            "assistant",
            "user",
            "assistant",
        ]
        assert session.usage().conversation.output_tokens == 2
        assert_sound(session)


def test_an_empty_turn_and_an_empty_step_are_completed() -> None:
    session = new_session()
    with session.turn():
        pass
    with session.turn() as turn, turn.step(**ROUTE):
        pass
    assert story(session) == [
        "turn 1",
        "end completed",
        "turn 2",
        "step 2.1",
        "step end 2.1",
        "end completed",
    ]
    assert_sound(session)


# -- an exception at every point -----------------------------------------------------------------------


class CodedError(Exception):
    code = "RATE_LIMIT"
    status = 429
    request_id = "req-1"
    provider_retry_after_ms = 1500


PLAIN = ("error UNKNOWN", "TOOL_ERROR")
CODED = ("error RATE_LIMIT", "RATE_LIMIT")
STOPPED = ("aborted user", "TOOL_OUTCOME_UNKNOWN")
DISPOSED = ("aborted disposed", "TOOL_OUTCOME_UNKNOWN")

RAISED = [
    pytest.param(ValueError("boom"), PLAIN, id="exception"),
    pytest.param(CodedError("slow down"), CODED, id="coded"),
    pytest.param(KeyboardInterrupt(), STOPPED, id="ctrl-c"),
    pytest.param(asyncio.CancelledError(), STOPPED, id="cancelled"),
    pytest.param(GeneratorExit(), DISPOSED, id="generator-exit"),
    pytest.param(SystemExit(1), DISPOSED, id="system-exit"),
]
"""What is raised, the turn's end, and the code of the result of the call whose body it is raised in."""

Enter = Callable[[Any], Awaitable[Any]]
Program = Callable[[Session, AsyncExitStack, Enter, BaseException], Coroutine[Any, Any, None]]


async def before_the_user(
    session: Session, stack: AsyncExitStack, enter: Enter, error: BaseException
) -> None:
    await enter(session.turn())
    raise error


async def after_the_user(
    session: Session, stack: AsyncExitStack, enter: Enter, error: BaseException
) -> None:
    (await enter(session.turn())).user("hi")
    raise error


def in_a_step(act: Callable[[Step], None]) -> Program:
    async def program(
        session: Session, stack: AsyncExitStack, enter: Enter, error: BaseException
    ) -> None:
        turn = await enter(session.turn())
        turn.user("hi")
        act(await enter(turn.step(**ROUTE)))
        raise error

    return program


def with_calls(*ids: str, after: Callable[[list[Call]], None] = lambda calls: None) -> Program:
    """Two calls are asked for, those of `ids` entered inside one another."""

    async def program(
        session: Session, stack: AsyncExitStack, enter: Enter, error: BaseException
    ) -> None:
        turn = await enter(session.turn())
        turn.user("hi")
        step = await enter(turn.step(**ROUTE))
        step.message("x", calls=[("a", "n", {}), ("b", "n", {})])
        after([await enter(step.tool_call(id_)) for id_ in ids])
        raise error

    return program


async def between_two_calls(
    session: Session, stack: AsyncExitStack, enter: Enter, error: BaseException
) -> None:
    turn = await enter(session.turn())
    turn.user("hi")
    step = await enter(turn.step(**ROUTE))
    step.message("x", calls=[("a", "n", {}), ("b", "n", {})])
    # A plain `with` in an asynchronous turn is as good.
    with step.tool_call("a") as call:
        call.result("done")
    raise error


def answer_first(calls: list[Call]) -> None:
    calls[0].result("done")


def nothing(step: Step) -> None:
    pass


def visible_chunks(step: Step) -> None:
    step.reasoning("hm", index=1)
    step.text("Hel")
    step.chunk(call_delta("a", "{"))


def blank_chunks(step: Step) -> None:
    step.text(" \n")


def call_chunks(step: Step) -> None:
    step.chunk(call_delta("a", "{"))


def a_message(step: Step) -> None:
    step.text("Hello")
    step.message()


def call_delta(id_: str, piece: str, index: int = 2) -> Wire:
    return {
        "type": "tool-call-delta",
        "index": index,
        "id": id_,
        "name": "n",
        "argumentsDelta": piece,
    }


IN_STEP = ["turn 1", "user", "step 1.1"]
REQUEST = [*IN_STEP, "header initial", "context"]
NEVER = "TOOL_NOT_STARTED"

POINTS: list[Any] = [
    pytest.param(before_the_user, ["turn 1"], id="before-user"),
    pytest.param(after_the_user, ["turn 1", "user"], id="after-user"),
    pytest.param(in_a_step(nothing), ["NO REQUEST", "step end 1.1"], id="no-chunk"),
    pytest.param(
        in_a_step(visible_chunks),
        [
            *REQUEST,
            "chunk reasoning-delta",
            "chunk text-delta",
            "chunk tool-call-delta",
            "message [5, 6, 7] interrupted",
            "step end 1.1",
        ],
        id="visible-chunks",
    ),
    pytest.param(
        in_a_step(blank_chunks), [*REQUEST, "chunk text-delta", "step end 1.1"], id="blank-chunks"
    ),
    pytest.param(
        in_a_step(call_chunks), [*REQUEST, "chunk tool-call-delta", "step end 1.1"], id="half-call"
    ),
    pytest.param(
        in_a_step(a_message),
        [*REQUEST, "chunk text-delta", "message [5]", "step end 1.1"],
        id="after-message",
    ),
    pytest.param(
        with_calls(),
        [*REQUEST, "message", f"result a {NEVER}", f"result b {NEVER}", "step end 1.1"],
        id="before-calls",
    ),
    pytest.param(
        with_calls("a"),
        [*REQUEST, "message", "call a", "result a BODY [6]", f"result b {NEVER}", "step end 1.1"],
        id="in-body",
    ),
    pytest.param(
        with_calls("a", after=answer_first),
        [*REQUEST, "message", "call a", "result a ok [6]", f"result b {NEVER}", "step end 1.1"],
        id="after-result",
    ),
    pytest.param(
        between_two_calls,
        [*REQUEST, "message", "call a", "result a ok [6]", f"result b {NEVER}", "step end 1.1"],
        id="between-calls",
    ),
    pytest.param(
        with_calls("a", "b"),
        [
            *REQUEST,
            "message",
            "call a",
            "call b",
            "result b BODY [7]",
            "result a BODY [6]",
            "step end 1.1",
        ],
        id="two-open",
    ),
]


def run_plain(program: Program, session: Session, error: BaseException) -> None:
    """The program with `with`: nothing in it ever waits."""

    async def main() -> None:
        async with AsyncExitStack() as stack:

            async def enter(scope: Any) -> Any:
                return stack.enter_context(scope)

            await program(session, stack, enter, error)

    with pytest.raises(StopIteration):
        main().send(None)


def run_async(program: Program, session: Session, error: BaseException) -> None:
    """The program with `async with`, under asyncio."""

    async def main() -> None:
        async with AsyncExitStack() as stack:
            await program(session, stack, stack.enter_async_context, error)

    asyncio.run(main())


def expected(lines: list[str], outcome: tuple[str, str], *, is_async: bool) -> list[str]:
    end, body = outcome
    start = REQUEST if is_async else IN_STEP
    told = [*start, *lines[1:]] if lines[0] == "NO REQUEST" else lines
    return [*(each.replace("BODY", body) for each in told), f"end {end}"]


@pytest.mark.parametrize(("error", "outcome"), RAISED)
@pytest.mark.parametrize(("program", "lines"), POINTS)
def test_an_exception_at_every_point_of_a_turn(
    program: Program, lines: list[str], error: BaseException, outcome: tuple[str, str]
) -> None:
    session = new_session()
    with pytest.raises(type(error)) as caught:
        run_plain(program, session, error)
    assert caught.value is error
    assert story(session) == expected(lines, outcome, is_async=False)
    assert_sound(session)


@pytest.mark.parametrize(("error", "outcome"), RAISED)
@pytest.mark.parametrize(("program", "lines"), POINTS)
def test_an_exception_at_every_point_of_an_async_turn(
    program: Program, lines: list[str], error: BaseException, outcome: tuple[str, str]
) -> None:
    with turnlog.open("memory:") as log, log.create() as session:
        with pytest.raises(type(error)):
            run_async(program, session, error)
        assert story(session) == expected(lines, outcome, is_async=True)
        assert_sound(session)


def fail(session: Session, error: BaseException) -> Wire:
    """The end of a turn that the exception ended."""
    with suppress(BaseException), session.turn():
        raise error
    return events_of(session, "turn/end")[-1].to_dict()["data"]["reason"]  # type: ignore[no-any-return]


def test_an_exception_is_told_with_its_code_status_and_ids() -> None:
    assert fail(new_session(), CodedError("slow down")) == {
        "kind": "error",
        "error": {
            "message": "slow down",
            "code": "RATE_LIMIT",
            "status": 429,
            "providerRetryAfterMs": 1500,
            "requestId": "req-1",
        },
    }


def test_an_exception_without_text_is_told_by_its_type() -> None:
    error = {"message": "ValueError", "code": "UNKNOWN"}
    assert fail(new_session(), ValueError()) == {"kind": "error", "error": error}


class _Code(str, enum.Enum):  # noqa: UP042 - what programs hold; a `StrEnum` is one more str subclass
    QUOTA = "QUOTA"


class _Status(enum.IntEnum):
    TOO_MANY = 429


class _Text(str):
    __slots__ = ()


def hostile(text: Any = "x", **attributes: Any) -> Exception:
    """An exception whose parts are what no log can hold as they are."""

    class HostileError(Exception):
        def __str__(self) -> str:
            if isinstance(text, Exception):
                raise text
            return text  # type: ignore[no-any-return]

        def __getattr__(self, name: str) -> Any:
            if name in attributes:
                if isinstance(attributes[name], Exception):
                    raise attributes[name]
                return attributes[name]
            raise AttributeError(name)

    return HostileError()


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (hostile(code=_Code.QUOTA), {"code": "QUOTA"}),
        (hostile(code=404), {}),
        (hostile(code=""), {}),
        (hostile(code=RuntimeError("no")), {}),
        (hostile(status=_Status.TOO_MANY), {"status": 429}),
        (hostile(status=99), {}),
        (hostile(status=600), {}),
        (hostile(status="500"), {}),
        (hostile(status=True), {}),
        (hostile(provider_retry_after_ms=0.5), {"providerRetryAfterMs": 0.5}),
        (hostile(provider_retry_after_ms=0), {}),
        (hostile(provider_retry_after_ms=2**70 + 1), {}),
        (hostile(provider_retry_after_ms=float("inf")), {}),
        (hostile(provider_retry_after_ms=True), {}),
        (hostile(request_id=_Text("r")), {"requestId": "r"}),
        (hostile(request_id=""), {}),
        (hostile(request_id=b"r"), {}),
        (hostile(_Text("x")), {}),
        (hostile("\ud800"), {"message": "\ud800"}),
        (hostile(ValueError("no")), {"message": "HostileError"}),
    ],
)
def test_whatever_an_exception_carries_the_turn_is_ended(error: Exception, told: Wire) -> None:
    session = new_session()
    failure = {"message": "x", "code": "UNKNOWN", **told}
    assert fail(session, error) == {"kind": "error", "error": failure}
    assert_sound(session)


@pytest.mark.parametrize("error", [hostile(ValueError("no")), hostile(code=_Code.QUOTA)])
def test_whatever_a_tools_exception_carries_its_call_is_answered(error: Exception) -> None:
    session = new_session()
    with raising(type(error)), session.turn() as turn, turn.step(**ROUTE) as step:
        step.message("x", calls=[("a", "n", {})])
        with step.tool_call("a"):
            raise error
    (result,) = events_of(session, "tool/result")
    assert result.data["error"]["name"] == "HostileError"
    assert_sound(session)


def test_end_reason_of_exception_groups() -> None:
    group = BaseExceptionGroup("g", [KeyboardInterrupt()])
    assert end_reason(group) == {"kind": "aborted", "reason": {"kind": "user"}}
    assert end_reason(ExceptionGroup("g", [ValueError()]))["kind"] == "error"


# -- generators and coroutines that are left in the middle ---------------------------------------------


def streaming(session: Session) -> Generator[str]:
    with session.turn() as turn:
        turn.user("hi")
        with turn.step(**ROUTE) as step:
            for piece in ("Hel", "lo"):
                step.text(piece)
                yield piece


ABANDONED = [
    *REQUEST,
    "chunk text-delta",
    "message [5] interrupted",
    "step end 1.1",
    "end aborted disposed",
]


def test_an_abandoned_generator_ends_its_turn() -> None:
    session = new_session()
    generator = streaming(session)
    assert next(generator) == "Hel"
    generator.close()
    assert story(session) == ABANDONED
    assert_sound(session)


def test_an_exhausted_generator_completes_its_turn() -> None:
    session = new_session()
    assert list(streaming(session)) == ["Hel", "lo"]
    assert story(session)[-3:] == ["message [5, 6]", "step end 1.1", "end completed"]


class _Forever:
    def __await__(self) -> Generator[None]:
        yield


def test_a_coroutine_that_is_closed_ends_its_turn_durably() -> None:
    with turnlog.open("memory:") as log, log.create() as session:

        async def loop() -> None:
            async with session.turn(durable=False) as turn:
                turn.user("hi")
                turn._durable = True
                with turn.step(**ROUTE) as step:
                    step.text("Hel")
                    await _Forever()

        coroutine = loop()
        coroutine.send(None)
        # It may not wait for anything now: Python would say that it ignored its end.
        coroutine.close()
        assert story(session)[-3:] == [
            "message [5] interrupted",
            "step end 1.1",
            "end aborted disposed",
        ]
        assert len(log.storage.inspect(session.id, close_turn=False).log) == session.seq
        assert_sound(session)


def test_a_cancelled_task_ends_its_turn() -> None:
    with turnlog.open("memory:") as log, log.create() as session:

        async def loop(started: asyncio.Event) -> None:
            async with session.turn() as turn:
                turn.user("hi")
                async with turn.step(**ROUTE) as step:
                    step.text("Hel")
                    started.set()
                    await asyncio.Event().wait()

        async def main() -> None:
            started = asyncio.Event()
            task = asyncio.create_task(loop(started))
            await started.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(main())
        assert story(session) == [*ABANDONED[:-1], "end aborted user"]
        assert_sound(session)


# -- numbers, headers and contexts ---------------------------------------------------------------------


def one_turn(session: Session, **options: Any) -> list[str]:
    """A turn of one step; gives its lines."""
    before = len(story(session))
    with session.turn() as turn, turn.step(**{**ROUTE, **options}) as step:
        step.message("x")
    return story(session)[before:]


def test_numbers_and_headers_go_on_over_resume(tmp_path: Path) -> None:
    with turnlog.open(tmp_path) as log:
        with log.create(id="s") as session:
            assert one_turn(session)[:4] == ["turn 1", "step 1.1", "header initial", "context"]
            assert one_turn(session)[:3] == ["turn 2", "step 2.1", "message"]
        with log.resume("s") as session:
            # A resume logs its first header even where it is the same; the context only on change.
            assert one_turn(session)[:4] == ["turn 3", "step 3.1", "header resume", "message"]
            assert one_turn(session)[:3] == ["turn 4", "step 4.1", "message"]
            assert_sound(session)


def test_a_fork_goes_on_as_a_resume_does(tmp_path: Path) -> None:
    """As in the harnesses' own forks: the transcripts' first header behind the seed is `resume`."""
    with turnlog.open(tmp_path) as log, log.create() as session:
        one_turn(session)
        with log.fork(session, child_id="child") as child:
            assert one_turn(child)[:4] == ["turn 2", "step 2.1", "header resume", "message"]
            assert one_turn(child)[:3] == ["turn 3", "step 3.1", "message"]
            assert_sound(child)
        with log.resume("child") as child:
            assert one_turn(child)[2] == "header resume"


def test_a_resume_of_a_log_without_a_header_is_initial(tmp_path: Path) -> None:
    with turnlog.open(tmp_path) as log:
        with log.create(id="s") as session, session.turn() as turn:
            turn.user("hi")
        with log.resume("s") as session:
            assert one_turn(session)[:4] == ["turn 2", "step 2.1", "header initial", "context"]


def test_a_crashed_turn_is_numbered_behind(tmp_path: Path) -> None:
    with turnlog.open(tmp_path) as log:
        with log.create(id="s") as session:
            session.append("turn/start", {"turn": 1})
        with log.resume("s", repair=False) as session:
            with pytest.raises(RecorderError, match="repair=True") as caught, session.turn():
                pass
            assert caught.value.code == "TURN_OPEN"
        with log.resume("s") as session:
            assert one_turn(session)[0] == "turn 2"


TOOL = {"name": "read", "description": "d", "parameters": {"type": "object", "properties": {}}}


@pytest.mark.parametrize(
    ("options", "lines"),
    [
        ({}, []),
        ({"system": "", "tools": ()}, []),
        ({"temperature": None}, []),
        ({"model": "n"}, ["header change", "context"]),
        ({"system": "s"}, ["header change"]),
        ({"tools": [TOOL]}, ["header change"]),
        ({"temperature": 0.5}, ["header change"]),
        ({"reasoning_effort": "high"}, ["header change"]),
        ({"max_tokens": 5}, ["header change"]),
        ({"stop": ["a"]}, ["header change"]),
        ({"stop": ("a",)}, ["header change"]),
        ({"stop": []}, ["header change"]),
        ({"context_window": 9}, ["context"]),
    ],
)
def test_header_and_context_are_logged_on_change_only(options: Wire, lines: list[str]) -> None:
    session = new_session()
    one_turn(session)
    assert one_turn(session, **options)[2:-3] == lines
    assert one_turn(session, **options)[2:-3] == []
    assert_sound(session)


def test_a_header_has_the_keys_of_the_format() -> None:
    session = new_session()
    one_turn(
        session,
        system="s",
        tools=[TOOL],
        reasoning_effort="high",
        temperature=0,
        max_tokens=5,
        stop=("a", "b"),
        context_window=9,
    )
    assert session.request_header() == {
        "config": {
            **ROUTE,
            "reasoningEffort": "high",
            "temperature": 0,
            "maxTokens": 5,
            "stop": ["a", "b"],
        },
        "system": "s",
        "tools": [TOOL],
    }
    assert session.request_context() == {**ROUTE, "contextWindow": 9}


def test_a_step_holds_its_own_copy_of_the_tools() -> None:
    session, tool = new_session(), {"name": "read", "parameters": {"type": "object"}}
    with session.turn() as turn, turn.step(**ROUTE, tools=[tool]) as step:
        tool["parameters"]["type"] = "array"  # type: ignore[index]
        step.message("x")
    header = session.request_header()
    assert header is not None
    assert header["tools"][0]["parameters"] == {"type": "object"}


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"provider": ""}, EventError),
        ({"model": ""}, EventError),
        ({"reasoning_effort": ""}, EventError),
        ({"temperature": float("nan")}, JsonValueError),
        ({"tools": [{"x": object()}]}, JsonValueError),
    ],
)
def test_a_header_that_cannot_be_logged_is_refused_before_the_step(
    options: Wire, kind: type[TurnlogError]
) -> None:
    session = new_session()
    with session.turn() as turn, pytest.raises(kind):
        turn.step(**{**ROUTE, **options})
    assert story(session) == ["turn 1", "end completed"]


# -- out of order --------------------------------------------------------------------------------------


@contextmanager
def refused(session: Session, code: str) -> Iterator[None]:
    """The block is refused with that code, and the log is as it was."""
    before = session.seq
    with pytest.raises(RecorderError) as caught:
        yield
    assert caught.value.code == code
    assert session.seq == before


@pytest.fixture
def unchecked() -> Iterator[Session]:
    """A session that would let anything through; it must be sound in the end all the same."""
    session = new_session(invariants=False)
    yield session
    assert_sound(session)


def test_a_turn_is_refused_while_one_is_open(unchecked: Session) -> None:
    with unchecked.turn() as turn:
        with refused(unchecked, "TURN_OPEN"), unchecked.turn():
            pass
        with refused(unchecked, "TURN_OPEN"), turn:
            pass


def test_a_turn_is_used_once(unchecked: Session) -> None:
    turn = unchecked.turn()
    with turn:
        turn.block()
    with refused(unchecked, "CLOSED"), turn:
        pass


def test_a_step_is_refused_while_one_is_open(unchecked: Session) -> None:
    with unchecked.turn() as turn, turn.step(**ROUTE) as step:
        with refused(unchecked, "STEP_OPEN"), turn.step(**ROUTE):
            pass
        with refused(unchecked, "STEP_OPEN"), step:
            pass


def test_a_step_is_used_once(unchecked: Session) -> None:
    with unchecked.turn() as turn:
        with turn.step(**ROUTE) as step:
            pass
        with refused(unchecked, "STEP_OPEN"), step:
            pass


def use_turn(session: Session, turn: Turn) -> None:
    for use in (lambda: turn.user("x"), turn.abort, turn.block, turn.step(**ROUTE).__enter__):
        with refused(session, "CLOSED"):
            use()


def use_step(session: Session, step: Step) -> None:
    call = step.tool_call("late", "n")
    for use in (
        lambda: step.user("x"),
        lambda: step.text("x"),
        lambda: step.reasoning("x"),
        lambda: step.chunk({"type": "finish", "reason": {"kind": "stop"}}),
        lambda: step.message("x"),
        lambda: step.retry(FAILURE),
        call.__enter__,
        lambda: call.result("x"),
    ):
        with refused(session, "CLOSED"):
            use()


def test_nothing_is_recorded_outside_the_block(unchecked: Session) -> None:
    turn = unchecked.turn()
    use_turn(unchecked, turn)
    with turn:
        step = turn.step(**ROUTE)
        use_step(unchecked, step)
        with step:
            pass
        use_step(unchecked, step)
    use_turn(unchecked, turn)


def test_a_step_that_failed_takes_no_more_chunks(unchecked: Session) -> None:
    with unchecked.turn() as turn:
        with raising(ValueError, match="boom"), turn.step(**ROUTE) as step:
            step.text(" ")
            raise ValueError("boom")
        with refused(unchecked, "CLOSED"):
            step.text("late")
        with refused(unchecked, "CLOSED"):
            step.message()


def test_behind_the_message_there_is_no_more_of_the_answer(unchecked: Session) -> None:
    with unchecked.turn() as turn, turn.step(**ROUTE) as step:
        step.message("x", calls=[("a", "n", {})])
        for _ in range(2):
            with refused(unchecked, "MESSAGE_TWICE"):
                step.message("y")
            with refused(unchecked, "MESSAGE_TWICE"):
                step.text("y")
            with refused(unchecked, "MESSAGE_TWICE"):
                step.retry(FAILURE)
            with suppress(RecorderError), step.tool_call("a"):
                pass


def test_behind_a_call_without_a_message_there_is_no_answer(unchecked: Session) -> None:
    with unchecked.turn() as turn, turn.step(**ROUTE) as step:
        with step.tool_call("a", "n", {"x": 1}) as call:
            call.result("done")
        with refused(unchecked, "CALLS_STARTED"):
            step.message("x", calls=[("a", "n", {})])
        with refused(unchecked, "CALLS_STARTED"):
            step.text("x")
        with refused(unchecked, "CALLS_STARTED"):
            step.retry(FAILURE)


def test_a_call_of_a_streamed_answer_waits_for_its_message(unchecked: Session) -> None:
    with unchecked.turn() as turn, turn.step(**ROUTE) as step:
        step.chunk(call_delta("a", "{}"))
        with refused(unchecked, "NO_MESSAGE"):
            step.tool_call("a", "n", {})
        step.message()
        with step.tool_call("a") as call:
            call.result("done")


def test_a_call_needs_an_id_and_a_name(unchecked: Session) -> None:
    with unchecked.turn() as turn, turn.step(**ROUTE) as step:
        step.message("x", calls=[("a", "", {})])
        with refused(unchecked, "UNKNOWN_CALL"):
            step.tool_call("b")
        with refused(unchecked, "UNKNOWN_CALL"):
            step.tool_call("a")
        with refused(unchecked, "UNKNOWN_CALL"):
            step.tool_call("", "n")
        with refused(unchecked, "UNKNOWN_CALL"):
            step.tool_call(5, "n")  # type: ignore[arg-type]


def test_a_call_is_started_and_answered_once(unchecked: Session) -> None:
    with unchecked.turn() as turn, turn.step(**ROUTE) as step:
        step.message("x", calls=[("a", "n", {})])
        again = step.tool_call("a")
        with step.tool_call("a") as call:
            call.result("done")
            with refused(unchecked, "RESULT_TWICE"):
                call.result("done again")
            with refused(unchecked, "CALL_TWICE"), again:
                pass
        with refused(unchecked, "CLOSED"):
            call.result("late")
        with refused(unchecked, "CALL_TWICE"), call:
            pass


def test_a_call_that_outlives_its_step_was_answered_there(unchecked: Session) -> None:
    with unchecked.turn() as turn:
        with turn.step(**ROUTE) as step:
            step.message("x", calls=[("a", "n", {})])
            call = step.tool_call("a").__enter__()
        with refused(unchecked, "RESULT_TWICE"):
            call.result("late")
        call.__exit__(None, None, None)
    assert story(unchecked)[-3:] == [
        "result a TOOL_OUTCOME_UNKNOWN [5]",
        "step end 1.1",
        "end completed",
    ]


def test_options_and_reasons_are_checked(unchecked: Session) -> None:
    with unchecked.turn() as turn:
        with refused(unchecked, "UNKNOWN_OPTION"):
            turn.step(**ROUTE, top_p=1)
        reasons: list[Any] = ["tired", "hook", "", {}, {"reason": "x"}, {"kind": 1}]
        for reason in reasons:
            with refused(unchecked, "INVALID_REASON"):
                turn.abort(reason)
        with pytest.raises(JsonValueError):
            turn.abort({"kind": "hook", "reason": object()})
    assert story(unchecked) == ["turn 1", "end completed"]


@pytest.mark.parametrize("content", [["x"], [{"type": "text", "text": "x"}, "y"], b"x"])
def test_content_that_is_no_list_of_blocks_is_refused(unchecked: Session, content: Any) -> None:
    with unchecked.turn() as turn, turn.step(**ROUTE) as step:
        with refused(unchecked, "INVALID_CONTENT"):
            turn.user(content)
        with refused(unchecked, "INVALID_CONTENT"):
            step.message(content)
        step.message("x", calls=[("a", "n", {})])
        with step.tool_call("a") as call:
            with refused(unchecked, "INVALID_CONTENT"):
                call.result(content)
            with refused(unchecked, "INVALID_CONTENT"):
                call.result({"type": "text", "text": "x"})  # type: ignore[arg-type]
            call.result("done")


def test_an_unfinished_block_is_refused_and_then_kept_in_part(unchecked: Session) -> None:
    with raising(RecorderError) as caught, unchecked.turn() as turn, turn.step(**ROUTE) as step:
        step.text("seen")
        step.chunk({"type": "block-start", "index": 1, "blockType": "hologram"})
        with refused(unchecked, "INCOMPLETE_BLOCK"):
            step.message()
    assert isinstance(caught.value, RecorderError)
    assert caught.value.code == "INCOMPLETE_BLOCK"
    assert story(unchecked)[-3:] == [
        "message [4, 5] interrupted",
        "step end 1.1",
        "end error INCOMPLETE_BLOCK",
    ]


def test_only_user_messages_are_taken_from_the_user(unchecked: Session) -> None:
    with unchecked.turn() as turn, pytest.raises(EventError):
        turn.user(assistant_message("x", **ROUTE))
    assert story(unchecked) == ["turn 1", "end completed"]


def test_a_turn_that_was_ended_by_hand_is_not_ended_twice(unchecked: Session) -> None:
    with unchecked.turn() as turn, turn.step(**ROUTE):
        unchecked.append("step/end", {"turn": 1, "step": 1})
        unchecked.append("turn/end", {"turn": 1, "reason": {"kind": "completed"}})
    assert story(unchecked) == ["turn 1", "step 1.1", "step end 1.1", "end completed"]


def test_a_step_that_was_never_left_is_closed_by_its_turn(unchecked: Session) -> None:
    with unchecked.turn() as turn:
        step = turn.step(**ROUTE).__enter__()
        step.message("x", calls=[("a", "n", {})])
        step.tool_call("a").__enter__()
    assert story(unchecked)[-3:] == [
        "result a TOOL_OUTCOME_UNKNOWN [5]",
        "step end 1.1",
        "end completed",
    ]
    assert step.__exit__(None, None, None) is False
    assert story(unchecked)[-1] == "end completed"


# -- messages ------------------------------------------------------------------------------------------


def test_user_blocks_and_messages_are_taken_as_they_are() -> None:
    session = new_session()
    blocks: list[Wire] = [
        {"type": "text", "text": "look"},
        {"type": "image", "attachment": {"x": 1}},
    ]
    steering = user_message("steer", source={"kind": "plugin", "plugin": "q"})
    with session.turn() as turn:
        turn.user(blocks)
        turn.user(steering)
        with turn.step(**ROUTE) as step:
            step.user(user_message("plain dict").to_dict())
            step.message("x")
    messages = session.derive_messages()
    assert messages[0].content == blocks
    assert messages[1] == steering
    assert [message.text for message in messages] == ["look", "steer", "plain dict", "x"]
    assert_sound(session)


@pytest.mark.parametrize("plain", [False, True])
def test_a_whole_message_is_taken_as_it_is_and_its_calls_are_known(plain: bool) -> None:
    session = new_session()
    block = {"type": "tool-call", "id": "a", "name": "n", "arguments": "{}"}
    message = assistant_message([block], provider="other", model="m2")
    with session.turn() as turn, turn.step(**ROUTE) as step:
        step.message(message.to_dict() if plain else message)
        with step.tool_call("a") as call:
            call.result("done")
    assert session.derive_messages()[0] == message
    assert_sound(session)


def test_calls_are_added_to_a_whole_message() -> None:
    session = new_session()
    message = assistant_message("x", **ROUTE)
    with session.turn() as turn, turn.step(**ROUTE) as step:
        step.message(message, calls=[("a", "n", '{"raw": 1}')])
    derived = session.derive_messages()[0]
    assert derived.id == message.id
    assert [call["arguments"] for call in tool_calls(derived)] == ['{"raw": 1}']
    assert_sound(session)


def test_a_streamed_answer_makes_its_message() -> None:
    session = new_session()
    state = {"response": {"id": "r"}, "blocks": [1, 2, 3]}
    with session.turn() as turn, turn.step(**ROUTE) as step:
        step.reasoning("hm", index=0)
        step.text("Hel", index=1)
        step.text("lo", index=1)
        step.chunk(call_delta("a", '{"x"', index=2))
        step.chunk(call_delta("a", ":1}", index=2))
        step.chunk({"type": "usage", "usage": USAGE})
        step.chunk({"type": "finish", "reason": {"kind": "tool-calls"}, "replayState": state})
        step.message()
        with step.tool_call("a") as call:
            assert call.arguments == '{"x":1}'
            call.result([{"type": "text", "text": "done"}], meta={"ms": 5})
    data = events_of(session, "assistant/message")[0].data
    assert data["usage"] == USAGE
    assert data["message"]["source"] == {"kind": "model", **ROUTE, "replayState": state}
    assert data["message"]["content"] == [
        {"type": "reasoning", "text": "hm"},
        {"type": "text", "text": "Hello"},
        {"type": "tool-call", "id": "a", "name": "n", "arguments": '{"x":1}'},
    ]
    assert story(session)[4:-2] == [
        "chunk reasoning-delta",
        "chunk text-delta",
        "chunk text-delta",
        "chunk tool-call-delta",
        "chunk tool-call-delta",
        "chunk usage",
        "chunk finish",
        "message [4, 5, 6, 7, 8, 9, 10]",
        "call a",
        "result a ok [12]",
    ]
    assert events_of(session, "tool/result")[0].data["meta"] == {"ms": 5}
    assert_sound(session)


def test_a_stream_without_a_message_call_makes_one_when_the_step_ends() -> None:
    session = new_session()
    with session.turn() as turn, turn.step(**ROUTE) as step:
        step.text("Hello")
        step.chunk(call_delta("a", "{}"))
    assert story(session)[4:] == [
        "chunk text-delta",
        "chunk tool-call-delta",
        "message [4, 5]",
        "result a TOOL_NOT_STARTED",
        "step end 1.1",
        "end completed",
    ]
    assert_sound(session)


def test_a_stream_of_usage_alone_keeps_the_usage_and_gives_no_message() -> None:
    session = new_session()
    with session.turn() as turn, turn.step(**ROUTE) as step:
        step.chunk({"type": "usage", "usage": USAGE})
    data = events_of(session, "assistant/message")[0].data
    assert (data["message"]["content"], data["usage"]) == ([], USAGE)
    assert session.derive_messages() == []
    assert_sound(session)


def test_usage_that_is_given_replaces_that_of_the_stream() -> None:
    session, usage = new_session(), dict(USAGE)
    with session.turn() as turn:
        with turn.step(**ROUTE) as step:
            step.chunk({"type": "usage", "usage": usage})
            usage["inputTokens"] = 999
            step.message("x")
        with turn.step(**ROUTE) as step:
            step.chunk({"type": "usage", "usage": USAGE})
            step.message("x", usage={"inputTokens": 7, "outputTokens": 1})
    logged = [event.data["usage"] for event in events_of(session, "assistant/message")]
    # The first is what came in the stream, whatever became of the caller's dict.
    assert logged == [USAGE, {"inputTokens": 7, "outputTokens": 1}]


@pytest.mark.parametrize(
    ("state", "kept"),
    [
        ({"response": 1}, {"response": 1}),
        ({"response": 1, "blocks": [1]}, {"response": 1, "blocks": [1]}),
        ({"response": 1, "blocks": [1, 2]}, None),
    ],
)
def test_replay_state_is_kept_only_where_it_fits_the_content(state: Wire, kept: Any) -> None:
    session = new_session()
    with session.turn() as turn, turn.step(**ROUTE) as step:
        step.text("x")
        step.chunk({"type": "finish", "reason": {"kind": "stop"}, "replayState": state})
        step.message("rewritten")
    assert session.derive_messages()[0].source.get("replayState") == kept


def test_an_interrupted_message_has_no_replay_state_but_its_usage() -> None:
    session = new_session()
    with raising(KeyboardInterrupt), session.turn() as turn, turn.step(**ROUTE) as step:
        step.text("Hel")
        step.chunk({"type": "usage", "usage": USAGE})
        step.chunk({"type": "finish", "reason": {"kind": "stop"}, "replayState": {"response": 1}})
        raise KeyboardInterrupt
    data = events_of(session, "assistant/message")[0].data
    assert (data["interrupted"], data["usage"]) == (True, USAGE)
    assert "replayState" not in data["message"]["source"]


def test_a_refused_chunk_leaves_the_step_usable() -> None:
    session = new_session()
    with session.turn() as turn, turn.step(**ROUTE) as step:
        with pytest.raises(JsonValueError):
            step.chunk({"type": "usage", "usage": {"inputTokens": float("nan")}})
        step.text("x")
    assert story(session)[4:6] == ["chunk text-delta", "message [4]"]
    assert_sound(session)


# -- how turns end -------------------------------------------------------------------------------------


def last_reason(session: Session) -> Any:
    return events_of(session, "turn/end")[-1].data["reason"]


def test_max_tokens_drops_the_calls_and_sticks_to_the_turn() -> None:
    session = new_session()
    with session.turn() as turn:
        turn.user("go")
        with turn.step(**ROUTE) as step:
            step.text("first half", index=0)
            step.chunk(call_delta("a", "{}"))
            step.chunk({"type": "finish", "reason": {"kind": "max-tokens"}})
        with turn.step(**ROUTE) as step:
            step.message("second half")
    assert last_reason(session) == {"kind": "max-tokens"}
    assert events_of(session, "tool/result") == []
    texts = [message.text for message in session.derive_messages()]
    assert texts == ["go", "first half", "second half"]
    one_turn(session)
    assert last_reason(session) == {"kind": "completed"}
    assert_sound(session)


def test_max_tokens_can_be_told_and_gives_way_to_an_exception() -> None:
    session = new_session()
    with session.turn() as turn, turn.step(**ROUTE) as step:
        step.message("x", finish="max-tokens")
    assert last_reason(session) == {"kind": "max-tokens"}
    with raising(ValueError, match="boom"), session.turn() as turn:
        with turn.step(**ROUTE) as step:
            step.message("x", finish="max-tokens")
        raise ValueError("boom")
    assert last_reason(session)["kind"] == "error"


@pytest.mark.parametrize(
    ("reason", "cause"),
    [
        ("user", {"kind": "user"}),
        ("parent", {"kind": "parent"}),
        ("disposed", {"kind": "disposed"}),
        ({"kind": "hook", "reason": "no"}, {"kind": "hook", "reason": "no"}),
        ({"kind": "alien", "x": 1}, {"kind": "alien", "x": 1}),
    ],
)
def test_a_turn_can_be_aborted(reason: Any, cause: Wire) -> None:
    session = new_session()
    with session.turn() as turn:
        turn.abort(reason)
    assert last_reason(session) == {"kind": "aborted", "reason": cause}


def test_a_turn_can_be_blocked() -> None:
    session = new_session()
    with session.turn() as turn:
        turn.block()
    assert story(session) == ["turn 1", "end blocked"]


@pytest.mark.parametrize("error", [asyncio.CancelledError(), ValueError("socket closed")])
def test_the_first_stop_wins_over_what_is_raised_because_of_it(error: BaseException) -> None:
    session = new_session()
    with raising(type(error)), session.turn() as turn:
        turn.abort("parent")
        turn.block()
        turn.abort("user")
        raise error
    assert last_reason(session) == {"kind": "aborted", "reason": {"kind": "parent"}}


def test_an_abort_while_streaming_keeps_what_was_seen_and_no_half_call() -> None:
    session = new_session()
    with session.turn() as turn, turn.step(**ROUTE) as step:
        step.text("Hel")
        step.chunk(call_delta("a", '{"x'))
        turn.abort()
    assert story(session)[4:] == [
        "chunk text-delta",
        "chunk tool-call-delta",
        "message [4, 5] interrupted",
        "step end 1.1",
        "end aborted user",
    ]
    assert_sound(session)


@pytest.mark.parametrize("kind", ["error", "aborted"])
def test_a_stream_that_ends_in_a_failure_ends_the_turn_in_it(kind: str) -> None:
    session = new_session()
    with session.turn() as turn, turn.step(**ROUTE) as step:
        step.text("Hel")
        step.chunk({"type": "finish", "reason": {"kind": kind, "failure": FAILURE}})
        with refused(session, "NO_MESSAGE"):
            step.message()
    assert events_of(session, "assistant/message") == []
    assert last_reason(session) == {"kind": "error", "error": FAILURE}
    assert_sound(session)


@pytest.mark.parametrize("failure", [None, {}, {"message": ""}, "text", {"code": "SERVER"}])
def test_a_failure_without_words_is_given_some(failure: Any) -> None:
    session = new_session()
    with session.turn() as turn, turn.step(**ROUTE) as step:
        step.chunk({"type": "finish", "reason": {"kind": "error", "failure": failure}})
    error = last_reason(session)["error"]
    assert error["message"]
    assert error["code"] in ("UNKNOWN", "SERVER")


def test_a_failed_stream_is_forgotten_when_another_step_follows() -> None:
    session = new_session()
    with session.turn() as turn:
        with turn.step(**ROUTE) as step:
            step.chunk({"type": "finish", "reason": {"kind": "error", "failure": FAILURE}})
        with turn.step(**ROUTE) as step:
            step.message("x")
    assert last_reason(session) == {"kind": "completed"}


def test_the_streams_failure_is_told_rather_than_the_exception_it_causes() -> None:
    session = new_session()
    with raising(ValueError, match="boom"), session.turn() as turn, turn.step(**ROUTE) as step:
        step.chunk({"type": "finish", "reason": {"kind": "error", "failure": FAILURE}})
        raise ValueError("boom")
    assert last_reason(session) == {"kind": "error", "error": FAILURE}


# -- calls ---------------------------------------------------------------------------------------------


def test_an_exception_of_a_tool_can_end_with_its_call() -> None:
    session = new_session()
    with session.turn() as turn, turn.step(**ROUTE) as step:
        step.message("x", calls=[("a", "n", {}), ("b", "n", {})])
        with step.tool_call("a", errors="record"):
            raise CodedError("slow down")
        with step.tool_call("b", errors="record") as call:
            call.result("no such file", is_error=True, error={"name": "E", "code": "ENOENT"})
    first, second = events_of(session, "tool/result")
    assert first.data["error"] == {"name": "CodedError", "code": "RATE_LIMIT"}
    (block,) = first.data["message"]["content"]
    assert block["isError"] is True
    assert block["content"] == [{"type": "text", "text": "slow down"}]
    assert second.data["error"] == {"name": "E", "code": "ENOENT"}
    assert last_reason(session) == {"kind": "completed"}
    assert_sound(session)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), asyncio.CancelledError(), SystemExit()])
def test_an_interruption_never_ends_with_its_call(error: BaseException) -> None:
    session = new_session()
    with raising(type(error)), session.turn() as turn, turn.step(**ROUTE) as step:
        step.message("x", calls=[("a", "n", {})])
        with step.tool_call("a", errors="record"):
            raise error
    assert_sound(session)


def test_an_exception_behind_the_result_is_not_swallowed() -> None:
    """It is in no event, so it would be lost."""
    session = new_session()
    with raising(ValueError, match="lost"), session.turn() as turn, turn.step(**ROUTE) as step:
        step.message("x", calls=[("a", "n", {})])
        with step.tool_call("a", errors="record") as call:
            call.result("done")
            raise ValueError("lost")
    assert story(session)[-3:] == ["result a ok [5]", "step end 1.1", "end error UNKNOWN"]


def test_a_call_without_a_result_gets_one() -> None:
    session = new_session()
    with session.turn() as turn, turn.step(**ROUTE) as step:
        step.message("x", calls=[("a", "n", {}), ("b", "n", {})])
        with step.tool_call("a"):
            pass
    assert story(session)[5:] == [
        "call a",
        "result a TOOL_NO_RESULT [5]",
        "result b TOOL_NOT_STARTED",
        "step end 1.1",
        "end completed",
    ]
    assert_sound(session)


def test_a_result_that_cannot_be_logged_is_recorded_as_the_tools_error() -> None:
    session = new_session()
    with session.turn() as turn, turn.step(**ROUTE) as step:
        step.message("x", calls=[("a", "n", {})])
        with step.tool_call("a", errors="record") as call:
            call.result("done", meta=float("nan"))
    assert events_of(session, "tool/result")[0].data["error"]["name"] == "JsonValueError"
    assert_sound(session)


def test_arguments_can_be_given_beside_the_message() -> None:
    session = new_session()
    with session.turn() as turn, turn.step(**ROUTE) as step:
        step.message("x", calls=[("a", "n", "not json")])
        for id_, name, arguments in (("a", None, None), ("b", "m", [1]), ("c", "m", None)):
            with step.tool_call(id_, name, arguments) as call:
                call.result("done")
    logged = [event.data["arguments"] for event in events_of(session, "tool/call")]
    assert logged == ["not json", "[1]", ""]
    with session.turn() as turn, turn.step(**ROUTE) as step, pytest.raises(JsonValueError):
        step.tool_call("d", "m", {"x": object()})
    assert_sound(session)


# -- retries -------------------------------------------------------------------------------------------


def test_a_retry_begins_a_new_attempt_in_the_same_step() -> None:
    session = new_session()
    with session.turn() as turn, turn.step(**ROUTE) as step:
        step.text("first")
        step.chunk({"type": "usage", "usage": {"inputTokens": 1, "outputTokens": 1}})
        step.chunk({"type": "finish", "reason": {"kind": "error", "failure": FAILURE}})
        step.retry(FAILURE, delay_ms=500, max_retries=3)
        step.retry(FAILURE, delay_ms=1000, max_retries=3)
        step.text("second")
    assert story(session)[4:] == [
        "chunk text-delta",
        "chunk usage",
        "chunk finish",
        "llm/retry",
        "llm/retry-started",
        "llm/retry",
        "llm/retry-started",
        "chunk text-delta",
        "message [11]",
        "step end 1.1",
        "end completed",
    ]
    first, second = (event.to_dict()["data"] for event in events_of(session, "llm/retry"))
    assert first == {
        "retryId": first["retryId"],
        "turn": 1,
        "step": 1,
        "provider": "p",
        "mode": "normal",
        "policyKey": first["policyKey"],
        "retry": 1,
        "maxRetries": 3,
        "delayMs": 500,
        "failure": FAILURE,
    }
    # Readers find the number of a retry by its policy's key, and all of a step are one retrying.
    assert second == {**first, "retry": 2, "delayMs": 1000}
    started = [event.data for event in events_of(session, "llm/retry-started")]
    assert started == [
        {"retryId": first["retryId"], "turn": 1, "step": 1, "retry": number} for number in (1, 2)
    ]
    (message,) = session.derive_messages()
    assert message.text == "second"
    assert "usage" not in events_of(session, "assistant/message")[0].data
    assert_sound(session)


def test_retries_of_another_step_are_counted_from_one() -> None:
    session = new_session()
    with session.turn() as turn:
        for _ in range(2):
            with turn.step(**ROUTE) as step:
                step.retry(FAILURE)
                step.message("x")
    one, other = (event.data for event in events_of(session, "llm/retry"))
    assert (one["retry"], other["retry"]) == (1, 1)
    assert one["retryId"] != other["retryId"]


def test_a_request_that_failed_before_its_first_chunk_has_its_header() -> None:
    session = new_session()
    with session.turn() as turn, turn.step(**ROUTE) as step:
        step.retry(FAILURE, retry_id="r")
        step.message("x")
    assert story(session)[1:6] == [
        "step 1.1",
        "header initial",
        "context",
        "llm/retry",
        "llm/retry-started",
    ]
    assert events_of(session, "llm/retry")[0].data["retryId"] == "r"


# -- side by side --------------------------------------------------------------------------------------

IDS = [f"call-{number}" for number in range(8)]


def assert_each_cites_its_own(session: Session) -> None:
    started = {event.data["callId"]: event.seq for event in events_of(session, "tool/call")}
    results = events_of(session, "tool/result")
    assert {event.data["message"]["source"]["callId"] for event in results} == set(started)
    for event in results:
        call_id = event.data["message"]["source"]["callId"]
        assert event.source_event_seqs == [started[call_id]]
        assert event.data["message"]["content"][0]["content"][0]["text"] == f"of {call_id}"
    assert_sound(session)


def test_calls_in_threads(tmp_path: Path) -> None:
    barrier = threading.Barrier(len(IDS))

    def work(step: Step, id_: str) -> None:
        with step.tool_call(id_) as call:
            barrier.wait()
            call.result(f"of {id_}")

    with turnlog.open(tmp_path) as log, log.create() as session:
        with session.turn() as turn, turn.step(**ROUTE) as step:
            step.message("x", calls=[(id_, "n", {}) for id_ in IDS])
            with ThreadPoolExecutor(len(IDS)) as pool:
                for future in [pool.submit(work, step, id_) for id_ in IDS]:
                    future.result()
        assert len(events_of(session, "tool/result")) == len(IDS)
        assert_each_cites_its_own(session)


def test_calls_in_tasks(tmp_path: Path) -> None:
    async def work(step: Step, id_: str, turns: int) -> None:
        async with step.tool_call(id_) as call:
            for _ in range(turns):
                await asyncio.to_thread(lambda: None)
            call.result(f"of {id_}")

    async def main(session: Session) -> None:
        async with session.turn() as turn, turn.step(**ROUTE) as step:
            step.message("x", calls=[(id_, "n", {}) for id_ in IDS])
            await asyncio.gather(*(work(step, id_, n) for n, id_ in enumerate(reversed(IDS))))

    with turnlog.open(tmp_path) as log, log.create() as session:
        asyncio.run(main(session))
        assert len(events_of(session, "tool/result")) == len(IDS)
        assert_each_cites_its_own(session)


def test_a_task_group_that_fails_leaves_every_call_answered() -> None:
    async def work(step: Step, id_: str) -> None:
        async with step.tool_call(id_):
            if id_ == IDS[3]:
                raise CodedError("slow down")
            await asyncio.Event().wait()

    async def main(session: Session) -> None:
        async with session.turn() as turn, turn.step(**ROUTE) as step:
            step.message("x", calls=[(id_, "n", {}) for id_ in IDS])
            await asyncio.gather(*(work(step, id_) for id_ in IDS))

    session = new_session()
    with pytest.raises(CodedError):
        asyncio.run(main(session))
    codes = [event.data["error"]["code"] for event in events_of(session, "tool/result")]
    assert sorted(codes) == ["RATE_LIMIT"] + ["TOOL_OUTCOME_UNKNOWN"] * (len(IDS) - 1)
    assert_sound(session)


def test_of_two_threads_one_answers_a_call() -> None:
    for _ in range(40):
        session = new_session(invariants=False)
        barrier = threading.Barrier(2)
        codes: list[str] = []

        def answer(call: Call, barrier: threading.Barrier, codes: list[str]) -> None:
            barrier.wait()
            try:
                call.result("done")
            except RecorderError as error:
                codes.append(error.code)

        with session.turn() as turn, turn.step(**ROUTE) as step:
            step.message("x", calls=[("a", "n", {})])
            with step.tool_call("a") as call, ThreadPoolExecutor(2) as pool:
                for _ in range(2):
                    pool.submit(answer, call, barrier, codes)
        assert codes == ["RESULT_TWICE"]
        assert len(events_of(session, "tool/result")) == 1


@pytest.mark.timeout(20)
def test_an_observer_that_records_does_not_lock_up_the_threads() -> None:
    """Observers run under the session's lock: with a lock of its own, the recorder could wait for ever."""
    session = new_session()
    tried: list[str] = []

    def observe(event: SessionEvent) -> None:
        if event.type == "tool/call" and "step" in live:
            try:
                live["step"].user("from an observer")
            except TurnlogError as error:
                tried.append(error.code)

    live: dict[str, Step] = {}
    session.observe(observe)

    def work(step: Step, id_: str) -> None:
        with step.tool_call(id_) as call:
            call.result(f"of {id_}")

    with session.turn() as turn, turn.step(**ROUTE) as step:
        live["step"] = step
        step.message("x", calls=[(id_, "n", {}) for id_ in IDS])
        with ThreadPoolExecutor(len(IDS)) as pool:
            for id_ in IDS:
                pool.submit(work, step, id_)
    assert tried == ["REENTRANT_APPEND"] * len(IDS)
    assert_each_cites_its_own(session)


# -- durability ----------------------------------------------------------------------------------------


def stored(root: Path, id_: str) -> list[str]:
    """What another reader finds on the disk."""
    log = JsonlStorage(root).inspect(id_, close_turn=False).log
    return [line(event) for event in log.view() if event.type != END_SEED]


def test_what_is_on_the_disk_at_each_point(tmp_path: Path) -> None:
    with turnlog.open(tmp_path) as log, log.create(id="s") as session:
        with session.turn() as turn:
            turn.user("hi")
            assert stored(tmp_path, "s") == ["turn 1", "user"]
            with turn.step(**ROUTE) as step:
                assert stored(tmp_path, "s") == IN_STEP
                step.user("steer")
                assert stored(tmp_path, "s") == [*IN_STEP, "user"]
                step.text("Hel")
                request = [*IN_STEP, "user", "header initial", "context"]
                assert stored(tmp_path, "s") == request
                step.text("lo")
                assert stored(tmp_path, "s") == request
                step.message(calls=[("a", "n", {})], content="Hello")
                with step.tool_call("a") as call:
                    body = [*request, *["chunk text-delta"] * 2, "message [6, 7]", "call a"]
                    assert stored(tmp_path, "s") == body
                    call.result("done")
                answered = [*body, "result a ok [9]"]
                assert stored(tmp_path, "s") == answered
            assert stored(tmp_path, "s") == [*answered, "step end 1.1"]
        assert stored(tmp_path, "s") == [*answered, "step end 1.1", "end completed"]


def test_a_retried_request_is_durable_before_it_goes_out(tmp_path: Path) -> None:
    with turnlog.open(tmp_path) as log, log.create(id="s") as session:
        with session.turn() as turn, turn.step(**ROUTE) as step:
            step.text("x")
            step.retry(FAILURE)
            step.text("y")
            assert stored(tmp_path, "s")[-2:] == ["llm/retry", "llm/retry-started"]


def test_what_is_on_the_disk_at_each_point_of_an_async_turn(tmp_path: Path) -> None:
    async def main(session: Session) -> None:
        async with session.turn() as turn:
            assert stored(tmp_path, "s") == ["turn 1"]
            turn.user("hi")
            async with turn.step(**ROUTE) as step:
                assert stored(tmp_path, "s") == REQUEST
                step.text("Hello")
                step.message("Hello", calls=[("a", "n", {})])
                async with step.tool_call("a") as call:
                    body = [*REQUEST, "chunk text-delta", "message [5]", "call a"]
                    assert stored(tmp_path, "s") == body
                    call.result("done")
                assert stored(tmp_path, "s") == [*body, "result a ok [7]"]
            assert stored(tmp_path, "s")[-1] == "step end 1.1"
        assert stored(tmp_path, "s")[-1] == "end completed"

    with turnlog.open(tmp_path) as log, log.create(id="s") as session:
        asyncio.run(main(session))


def test_without_durability_nothing_is_written_before_a_flush(tmp_path: Path) -> None:
    root = tmp_path / "root"
    with turnlog.open(root) as log, log.create(id="s") as session:
        with session.turn(durable=False) as turn:
            turn.user("hi")
            with turn.step(**ROUTE) as step:
                step.message("x", calls=[("a", "n", {})])
                with step.tool_call("a") as call:
                    call.result("done")
        assert not root.exists()
        session.flush()
        assert stored(root, "s") == story(session)


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Turnlog, Callable[[], None]]]:
    """A log, and what breaks its storage from then on; whole again in the end, so that it can be closed."""
    with turnlog.open("memory:") as log:

        def refuse(*args: object) -> None:
            raise StorageWriteError("the disk is full")

        with monkeypatch.context() as patch:
            yield log, lambda: patch.setattr(log.storage, "append", refuse)


Broken = tuple[Turnlog, Callable[[], None]]


def test_a_failing_flush_is_raised_where_a_turn_is_left(broken: Broken) -> None:
    log, break_it = broken
    session = log.create()
    with pytest.raises(StorageWriteError) as caught, session.turn():
        break_it()
    assert not hasattr(caught.value, "__notes__")
    assert_sound(session)


def test_a_failing_flush_is_raised_where_a_step_is_left(broken: Broken) -> None:
    log, break_it = broken
    session = log.create()
    with raising(StorageWriteError), session.turn() as turn, turn.step(**ROUTE):
        break_it()
    assert last_reason(session)["error"] == {"message": "the disk is full", "code": "WRITE_FAILED"}
    assert_sound(session)


@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt(), GeneratorExit()])
def test_the_exception_at_hand_wins_over_a_failing_flush(
    broken: Broken, error: BaseException
) -> None:
    log, break_it = broken
    session = log.create()
    with raising(type(error)) as caught, session.turn() as turn, turn.step(**ROUTE) as step:
        step.message("x", calls=[("a", "n", {})])
        with step.tool_call("a"):
            break_it()
            raise error
    assert caught.value is error
    note = "turnlog: while closing: [WRITE_FAILED] the disk is full"
    assert caught.value.__notes__ == [note] * 3
    assert_sound(session)


def test_the_exception_at_hand_wins_in_an_async_turn_too(broken: Broken) -> None:
    log, break_it = broken
    session = log.create()

    async def main() -> None:
        async with session.turn():
            break_it()
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine") as caught:
        asyncio.run(main())
    assert caught.value.__notes__ == ["turnlog: while closing: [WRITE_FAILED] the disk is full"]


def test_the_exception_at_hand_wins_over_an_error_that_is_not_ours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with turnlog.open("memory:") as log, log.create() as session:

        def refuse(*args: object) -> None:
            raise OSError("gone")

        with (
            monkeypatch.context() as patch,
            raising(ValueError, match="mine") as caught,
            session.turn(),
        ):
            patch.setattr(log.storage, "append", refuse)
            raise ValueError("mine")
        assert caught.value.__notes__ == ["turnlog: while closing: [OSError] gone"]


def test_what_could_not_be_entered_durably_is_closed(broken: Broken) -> None:
    """A `with` whose entering fails is never left: the turn would stay open for good."""
    log, break_it = broken
    session = log.create()
    break_it()
    with raising(StorageWriteError), session.turn():
        pytest.fail("the body must not run")
    assert story(session) == ["turn 1", "end error WRITE_FAILED"]

    async def main() -> None:
        async with session.turn():
            pytest.fail("the body must not run")

    with pytest.raises(StorageWriteError):
        asyncio.run(main())
    assert story(session)[2:] == ["turn 2", "end error WRITE_FAILED"]
    assert_sound(session)


def test_a_tool_does_not_run_before_its_call_is_durable(broken: Broken) -> None:
    log, break_it = broken
    session = log.create()
    with raising(StorageWriteError), session.turn() as turn, turn.step(**ROUTE) as step:
        step.message("x", calls=[("a", "n", {})])
        break_it()
        with step.tool_call("a", errors="record"):
            pytest.fail("the body must not run")
    assert story(session)[-3:] == [
        "result a WRITE_FAILED [5]",
        "step end 1.1",
        "end error WRITE_FAILED",
    ]
    assert_sound(session)


def test_a_turn_cancelled_while_it_is_entered_is_closed() -> None:
    with turnlog.open("memory:") as log, log.create() as session:
        running, go_on = threading.Event(), threading.Event()

        def slow() -> None:
            running.set()
            go_on.wait(10)

        session.attach(flush=slow, release=lambda: None)

        async def main() -> None:
            async def loop() -> None:
                async with session.turn():
                    pytest.fail("the body must not run")

            task = asyncio.create_task(loop())
            await asyncio.to_thread(running.wait, 10)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            go_on.set()

        asyncio.run(main())
        assert story(session) == ["turn 1", "end aborted user"]


# -- any program ---------------------------------------------------------------------------------------


class Fuse:
    """Burns down by one at each act; at the end of it the exception is raised."""

    def __init__(self, length: int, error: BaseException) -> None:
        self._left = length
        self._error = error

    def burn(self) -> None:
        self._left -= 1
        if self._left == 0:
            raise self._error


TEXTS = st.sampled_from(["", " ", "a", "\ud800", "界"])
CALL_IDS = st.sampled_from(["a", "b", "c"])
INDEXES = st.integers(0, 2)
CHUNK = st.one_of(
    st.builds(lambda i, t: {"type": "text-delta", "index": i, "text": t}, INDEXES, TEXTS),
    st.builds(lambda i, t: {"type": "reasoning-delta", "index": i, "text": t}, INDEXES, TEXTS),
    st.builds(call_delta, CALL_IDS, TEXTS, INDEXES),
    st.builds(
        lambda i, kind: {"type": "block-start", "index": i, "blockType": kind},
        INDEXES,
        st.sampled_from(["text", "tool-call", "hologram"]),
    ),
    st.just({"type": "usage", "usage": USAGE}),
    st.builds(
        lambda kind: {"type": "finish", "reason": {"kind": kind, "failure": FAILURE}},
        st.sampled_from(["stop", "tool-calls", "max-tokens", "error"]),
    ),
)
CALL_ACT = st.tuples(st.sampled_from(["result", "bad result", "user"]), TEXTS)
STEP_ACT = st.one_of(
    st.tuples(st.just("chunk"), CHUNK),
    st.tuples(st.just("user"), TEXTS),
    st.tuples(st.just("message"), st.none() | TEXTS, st.lists(CALL_IDS, max_size=3)),
    st.tuples(
        st.just("call"),
        CALL_IDS,
        st.sampled_from([None, "n"]),
        st.sampled_from(["raise", "record"]),
        st.lists(CALL_ACT, max_size=2),
    ),
    st.tuples(st.just("retry")),
    st.tuples(st.just("abort")),
)
TURN_ACT = st.one_of(
    st.tuples(st.just("step"), st.lists(STEP_ACT, max_size=7), st.booleans()),
    st.tuples(st.just("user"), TEXTS),
    st.tuples(st.just("block")),
)
PROGRAMS = st.lists(st.tuples(st.lists(TURN_ACT, max_size=4), st.booleans()), max_size=3)
ERRORS = st.sampled_from(
    [ValueError("boom"), CodedError("slow"), KeyboardInterrupt(), GeneratorExit(), SystemExit(1)]
)


def attempt(session: Session, act: Callable[[], object]) -> None:
    """An act that may be refused, and then has appended nothing."""
    before = session.seq
    try:
        act()
    except RecorderError:
        assert session.seq == before


def play_call(session: Session, step: Step, call: Call, acts: list[Any], fuse: Fuse) -> None:
    for kind, text in acts:
        fuse.burn()
        if kind == "result":
            attempt(session, lambda text=text: call.result(text))  # type: ignore[misc]
        elif kind == "user":
            step.user(text)
        else:
            call.result("x", meta=float("nan"))


def play_step(session: Session, turn: Turn, step: Step, acts: list[Any], fuse: Fuse) -> None:
    for kind, *rest in acts:
        fuse.burn()
        match kind:
            case "chunk":
                attempt(session, lambda rest=rest: step.chunk(rest[0]))  # type: ignore[misc]
            case "user":
                step.user(rest[0])
            case "message":
                calls = [(id_, "n", "{}") for id_ in rest[1]]
                attempt(
                    session,
                    lambda rest=rest, calls=calls: step.message(rest[0], calls=calls),  # type: ignore[misc]
                )
            case "call":
                with suppress(RecorderError), step.tool_call(*rest[:2], errors=rest[2]) as call:
                    play_call(session, step, call, rest[3], fuse)
            case "retry":
                attempt(session, lambda: step.retry(FAILURE))
            case _:
                turn.abort()


def play(session: Session, program: list[Any], fuse: Fuse) -> None:
    """Runs the turns; where a turn or step says so, what goes wrong in it is taken care of."""
    for acts, guards_turn in program:
        with _guard(guards_turn), session.turn() as turn:
            for kind, *rest in acts:
                fuse.burn()
                if kind == "step":
                    with _guard(rest[1]), turn.step(**ROUTE) as step:
                        play_step(session, turn, step, rest[0], fuse)
                elif kind == "user":
                    turn.user(rest[0])
                else:
                    turn.block()


def _guard(guards: bool) -> Any:
    return suppress(Exception) if guards else nullcontext()


@given(PROGRAMS, ERRORS, st.integers(0, 20), st.booleans())
def test_any_program_leaves_a_sound_log(
    program: list[Any], error: BaseException, length: int, invariants: bool
) -> None:
    session = new_session(invariants=invariants)
    with suppress(type(error), TurnlogError):
        play(session, program, Fuse(length, error))
    assert_sound(session)
    # And the next turn can begin.
    assert one_turn(session)[-1] == "end completed"
    assert_sound(session)
