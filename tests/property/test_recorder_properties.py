"""Whatever a program does with the recorder, and wherever it is cut off: the log is sound and goes on."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext, suppress
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from turnlog.errors import RecorderError, TurnlogError
from turnlog.invariants import find_violations
from turnlog.messages import tool_calls
from turnlog.recorder import Call, Step, Turn
from turnlog.repair import interrupted_turn_closers
from turnlog.session import Session
from turnlog.store import SessionStore

ROUTE: Any = {"provider": "p", "model": "m"}
USAGE = {"inputTokens": 3, "outputTokens": 2}
FAILURE = {"message": "overloaded", "code": "SERVER", "status": 529}


class CodedError(Exception):
    code = "RATE_LIMIT"
    status = 429
    request_id = "req-1"
    provider_retry_after_ms = 1500


def call_delta(id_: str, piece: str, index: int = 2) -> dict[str, Any]:
    return {
        "type": "tool-call-delta",
        "index": index,
        "id": id_,
        "name": "n",
        "argumentsDelta": piece,
    }


def new_session(*, invariants: bool = True) -> Session:
    return SessionStore(invariants=invariants).create("s")


def one_turn(session: Session) -> None:
    """A plain turn of one step."""
    with session.turn() as turn, turn.step(**ROUTE) as step:
        step.message("x")


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
CALL_IDS = st.sampled_from(["a", "b"])
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
    st.tuples(st.just("step"), st.lists(STEP_ACT, min_size=2, max_size=8), st.booleans()),
    st.tuples(st.just("user"), TEXTS),
    st.tuples(st.just("block")),
)
# No program is small: nothing of interest happens in an empty step, and quick runs see few programs.
PROGRAMS = st.lists(
    st.tuples(st.lists(TURN_ACT, min_size=1, max_size=4), st.booleans()), min_size=1, max_size=3
)
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


@given(PROGRAMS, ERRORS, st.integers(0, 25), st.booleans())
def test_any_program_leaves_a_sound_log(
    program: list[Any], error: BaseException, length: int, invariants: bool
) -> None:
    session = new_session(invariants=invariants)
    with suppress(type(error), TurnlogError):
        play(session, program, Fuse(length, error))
    assert_sound(session)
    # And the next turn can begin.
    one_turn(session)
    assert session.events[-1].data["reason"] == {"kind": "completed"}
    assert_sound(session)
