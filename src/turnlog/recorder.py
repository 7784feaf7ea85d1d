"""The recorder: turns, steps and tool calls as context managers, for loops of your own.

    with session.turn() as turn:
        turn.user("What is in notes.txt?")
        with turn.step(provider="openai", model="gpt-5") as step:
            step.text("Let me look.")
            step.message("Let me look.", calls=[("call-1", "read", {"path": "notes.txt"})])
            with step.tool_call("call-1") as call:
                call.result("buy milk")

The rule: whatever happens inside, the log stays balanced, every call has its result, and the turn's end says why
it ended. Numbers, pairing, `sourceEventSeqs` and request headers come out as the harnesses write them
(messages-and-agent.md, 2.6), with one difference on purpose: a user message is written when it is given, in the
turn, and not first when a step starts, so that a crash in between does not lose it. Use out of order is a
`RecorderError`, and then nothing was appended. Proved by a table of exceptions at every point of a turn.

Where the session has a storage, the recorder flushes after the user's message, before the request goes out,
before a tool body runs, and at the end of each call, step and turn. With `async with` these waits run on a worker
thread, at the points where the objects are entered and left.

What is decided by what is open is decided under the session's own lock. A second lock would deadlock with an
observer, which runs under the first one. No flush is made under it: a storage takes it while it writes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Literal, Self

from turnlog.assemble import Assembly
from turnlog.errors import RecorderError
from turnlog.events import SessionEvent
from turnlog.frozen import thaw
from turnlog.lossless import canonicalize, decode_canonical, is_safe_integer
from turnlog.messages import (
    Message,
    assistant_message,
    is_name,
    new_message_id,
    tool_calls,
    tool_result_message,
    user_message,
)
from turnlog.repair import missing_result
from turnlog.request_header import check_request_header, header_equals
from turnlog.session import Session

Content = str | Sequence[Mapping[str, Any]]
"""A text, or a list of content blocks."""

CallSpec = tuple[str, str, Any]
"""A tool call as (id, name, arguments): a str is the model's raw text, anything else is written as JSON."""

_CONFIG_KEYS = {
    "reasoning_effort": "reasoningEffort",
    "temperature": "temperature",
    "max_tokens": "maxTokens",
    "stop": "stop",
}


class _Scope:
    """What turn, step and call share: entering and leaving, with and without asyncio."""

    _session: Session
    _durable: bool
    _open = False

    def _enter(self) -> None:
        raise NotImplementedError

    def _exit(self, error: BaseException | None) -> bool:
        """Close the scope if it is open; True when the exception is taken care of."""
        raise NotImplementedError

    def _flush(self) -> None:
        if self._durable and self._session.is_durable:
            self._session.flush()

    async def _flush_async(self) -> None:
        if self._durable and self._session.is_durable:
            import asyncio

            await asyncio.to_thread(self._session.flush)

    def __enter__(self) -> Self:
        self._enter()
        try:
            self._flush()
        except BaseException as failure:
            # Python leaves no block that it did not enter: nobody else would close this one.
            self._close_after(failure)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        try:
            handled = self._exit(error)
            self._flush()
        except Exception as failure:  # noqa: BLE001 - raised again, or noted on the one that goes on
            _prefer(error, failure)
            return False
        return handled

    async def __aenter__(self) -> Self:
        self._enter()
        try:
            await self._flush_async()
        except BaseException as failure:
            self._close_after(failure)
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        try:
            handled = self._exit(error)
            if isinstance(error, GeneratorExit):
                # A coroutine that is being closed may not wait for anything any more.
                self._flush()
            else:
                await self._flush_async()
        except Exception as failure:  # noqa: BLE001 - as above
            _prefer(error, failure)
            return False
        return handled

    def _close_after(self, failure: BaseException) -> None:
        try:
            self._exit(failure)
        except Exception as another:  # noqa: BLE001 - the first one is the one to tell of
            _prefer(failure, another)


def _prefer(error: BaseException | None, failure: Exception) -> None:
    """On the way out of an exception that one wins, and carries what went wrong while closing as a note."""
    if error is None:
        raise failure
    code = _code_of(failure, type(failure).__name__)
    error.add_note(f"turnlog: while closing: [{code}] {_text_of(failure)}")


class Turn(_Scope):
    """One turn: from a prompt to its end. Made by `session.turn()`; entered once."""

    def __init__(self, session: Session, *, durable: bool = True) -> None:
        self._session = session
        self._durable = durable
        self._number = 0
        self._step: Step | None = None
        self._stopped: dict[str, Any] | None = None
        self._failure: dict[str, Any] | None = None
        self._cut_off = False
        self._is_async = False

    @property
    def number(self) -> int:
        """The turn's number, from 1; 0 before it is entered."""
        return self._number

    def user(self, content: Content | Mapping[str, Any]) -> SessionEvent:
        """Record what the user said: a text, blocks, or a message; durable on return outside asyncio."""
        self._require_open()
        message = content if isinstance(content, Mapping) else user_message(_checked(content))
        # Not `append_message`, which takes any role and finds each its place.
        event = self._session.append("user/message", message, surface_op="append")
        if not self._is_async:
            self._flush()
        return event

    def step(
        self,
        *,
        provider: str,
        model: str,
        system: str = "",
        tools: Sequence[Mapping[str, Any]] = (),
        context_window: int | None = None,
        **config: Any,
    ) -> Step:
        """One model request and the tools that it asks for.

        `tools`: `{name, description, parameters}` each. `context_window`: tokens. `config`: `reasoning_effort`,
        `temperature`, `max_tokens`, `stop`. The header is logged when it differs from the last one, and by the
        first step of a session that goes on from earlier events. Raises `EventError` or `JsonValueError` for
        what a header cannot hold.
        """
        unknown = config.keys() - _CONFIG_KEYS.keys()
        if unknown:
            raise RecorderError(
                f"a step takes {', '.join(_CONFIG_KEYS)}, not {', '.join(sorted(unknown))}",
                code="UNKNOWN_OPTION",
            )
        wire = {_CONFIG_KEYS[key]: value for key, value in config.items() if value is not None}
        if isinstance(wire.get("stop"), tuple):
            wire["stop"] = list(wire["stop"])
        header: dict[str, Any] = {"config": {"provider": provider, "model": model, **wire}}
        if system:
            header["system"] = system
        if tools:
            header["tools"] = [dict(tool) for tool in tools]
        context: dict[str, Any] = {"provider": provider, "model": model}
        if context_window is not None:
            context["contextWindow"] = context_window
        # Detached and checked here: a step that cannot log its header is not to be entered.
        header = canonicalize(header)[1]
        check_request_header({"header": header, "reason": "initial"})
        return Step(self, header, canonicalize(context)[1])

    def abort(self, reason: str | Mapping[str, Any] = "user") -> None:
        """Let the turn end as aborted: by `"user"`, `"parent"`, `"disposed"`, or `{kind: "hook", reason}`.

        The first abort or block stays, whatever exception then ends the block. A message that is still
        streamed is kept as an interrupted one. Raises `RecorderError` (`INVALID_REASON`) for another name.
        """
        cause = {"kind": reason} if isinstance(reason, str) else canonicalize(dict(reason))[1]
        named = ("user", "parent", "disposed")
        if not is_name(cause.get("kind")) or (isinstance(reason, str) and reason not in named):
            raise RecorderError(
                f"no reason {reason!r}; give one of {', '.join(named)}, or a mapping with its kind",
                code="INVALID_REASON",
            )
        self._stop({"kind": "aborted", "reason": cause})

    def block(self) -> None:
        """Let the turn end as blocked: its prompt was not let through. The first abort or block stays."""
        self._stop({"kind": "blocked"})

    def _stop(self, reason: dict[str, Any]) -> None:
        self._require_open()
        self._stopped = self._stopped or reason

    def _enter(self) -> None:
        with self._session._lock:
            state = self._session.state
            if state.open_turn is not None:
                raise RecorderError(
                    f"session {self._session.id!r}: turn {state.open_turn} is open; end it first, or resume the "
                    "session with repair=True, which closes what a crash left open",
                    code="TURN_OPEN",
                )
            if self._number:
                raise RecorderError("this turn was used before; make a new one", code="CLOSED")
            self._session.append("turn/start", {"turn": state.turn + 1})
            self._number, self._open = state.turn + 1, True

    async def __aenter__(self) -> Self:
        self._is_async = True
        return await super().__aenter__()

    def _exit(self, error: BaseException | None) -> bool:
        if not self._open:
            return False
        try:
            if self._step is not None:
                self._step._exit(error)
        finally:
            self._open = False
            # Somebody may have ended it by hand.
            if self._session.state.open_turn == self._number:
                end = {"turn": self._number, "reason": self._end_reason(error)}
                self._session.append("turn/end", end)
        return False

    def _end_reason(self, error: BaseException | None) -> dict[str, Any]:
        if self._stopped is not None:
            return self._stopped
        if self._failure is not None and (error is None or isinstance(error, Exception)):
            return {"kind": "error", "error": self._failure}
        if error is not None:
            return end_reason(error)
        return {"kind": "max-tokens" if self._cut_off else "completed"}

    def _require_open(self) -> None:
        if not self._open:
            raise RecorderError(
                "the turn is not open; use it inside its `with` block", code="CLOSED"
            )


class Step(_Scope):
    """One model request and its tool calls. Made by `turn.step(...)`; entered once."""

    def __init__(self, turn: Turn, header: dict[str, Any], context: dict[str, Any]) -> None:
        self._turn = turn
        self._session = turn._session
        self._durable = turn._durable
        self._header = header
        self._context = context
        self._place: dict[str, int] = {}
        self._chunks: list[SessionEvent] = []
        self._streamed_usage: Any = None
        self._finish: Mapping[str, Any] = {}
        self._retry: dict[str, Any] = {}
        self._requested = False
        self._message: SessionEvent | None = None
        self._calls: dict[str, Mapping[str, Any]] = {}
        self._started: dict[str, int] = {}
        self._answered: set[str] = set()

    @property
    def number(self) -> int:
        """The step's number in its turn, from 1; 0 before it is entered."""
        return self._place.get("step", 0)

    def user(self, content: Content | Mapping[str, Any]) -> SessionEvent:
        """Record a user message that belongs to this step's request, such as a steering one."""
        self._require_open()
        return self._turn.user(content)

    def chunk(self, chunk: Mapping[str, Any]) -> SessionEvent:
        """Record one chunk of the stream as it came: `{type: "text-delta", index, text}` and its kin."""
        event = self._append_chunk(dict(chunk))
        # As they were logged: the caller's own object may change.
        kind = chunk.get("type")
        if kind == "usage":
            self._streamed_usage = event.data["chunk"].get("usage")
        elif kind == "finish":
            self._finish = event.data["chunk"]
        return event

    def text(self, text: str, *, index: int = 0) -> SessionEvent:
        """Record a piece of the answer's text."""
        return self._append_chunk({"type": "text-delta", "index": index, "text": text})

    def reasoning(self, text: str, *, index: int = 0) -> SessionEvent:
        """Record a piece of the model's reasoning; give it a block index other than the text's."""
        return self._append_chunk({"type": "reasoning-delta", "index": index, "text": text})

    def message(
        self,
        content: Content | Mapping[str, Any] | None = None,
        *,
        calls: Iterable[CallSpec] = (),
        usage: Mapping[str, Any] | None = None,
        finish: str | None = None,
    ) -> SessionEvent:
        """Record the answer: a text, blocks or a message; without one, what the recorded chunks come to.

        `calls`: tool calls that it asks for, besides those among the blocks. `usage`: `{inputTokens,
        outputTokens, ...}`, by default that of the stream. `finish`: `"max-tokens"` ends the turn with that
        reason, if nothing else does.

        Raises `RecorderError`: `MESSAGE_TWICE`, `CALLS_STARTED` behind a tool call, `CLOSED`, `INVALID_CONTENT`,
        `INCOMPLETE_BLOCK`, and `NO_MESSAGE` for a stream that ended in a failure.
        """
        self._require_request()
        composed = self._compose(self._streamed() if content is None else content, calls)
        self._begin_request()
        event = self._append_message(composed, self._streamed_usage if usage is None else usage)
        self._calls = {call["id"]: call for call in tool_calls(composed)}
        if finish == "max-tokens" or self._finish_reason().get("kind") == "max-tokens":
            self._turn._cut_off = True
        return event

    def tool_call(
        self,
        call_id: str,
        name: str | None = None,
        arguments: Any = None,
        *,
        errors: Literal["raise", "record"] = "raise",
    ) -> Call:
        """Record that a tool starts, and with `call.result(...)` what came of it.

        Name and arguments come from the message's call of that id unless given. `errors`: what happens with an
        exception of the tool's body after it was recorded as the result: it goes on, or it ends here. One that
        comes behind the result is recorded nowhere and goes on in any case.

        Raises `RecorderError`: `UNKNOWN_CALL`, `NO_MESSAGE` while a streamed answer has no message yet, and on
        entering `CALL_TWICE` and `CLOSED`.
        """
        if not is_name(call_id):
            raise RecorderError("a call's id is a non-empty string", code="UNKNOWN_CALL")
        if self._chunks and self._message is None:
            raise RecorderError(
                "record the step's message first: a tool's result stands behind the message that asks for it",
                code="NO_MESSAGE",
            )
        block = self._calls.get(call_id, {})
        name = str(block.get("name", "")) if name is None else name
        if not name:
            raise RecorderError(
                f"the message has no call {call_id!r}; give the tool's name and arguments",
                code="UNKNOWN_CALL",
            )
        given = block.get("arguments", "") if arguments is None else arguments
        return Call(self, call_id, name, given, swallow=errors == "record")

    def retry(
        self,
        failure: Mapping[str, Any],
        *,
        delay_ms: int = 0,
        max_retries: int = 5,
        retry_id: str | None = None,
    ) -> None:
        """Record that the request failed and is tried again: chunks from here on are a new attempt's.

        `failure`: `{message, code, status?, providerRetryAfterMs?, requestId?}`. `delay_ms`: how long was waited;
        call this behind the wait. All retries of a step have one `retry_id`, the first one's or a random one.
        """
        self._require_request()
        ident = {
            "retryId": self._retry.get("retryId") or retry_id or new_message_id(),
            **self._place,
            "retry": self._retry.get("retry", 0) + 1,
        }
        # The policy is the caller's. Its key must not change with the delay: readers count retries by it.
        policy, _ = canonicalize(["normal", max_retries, [], 0, 0, 0])
        planned = {
            **ident,
            "provider": self._header["config"]["provider"],
            "mode": "normal",
            "policyKey": policy.decode(),
            "maxRetries": max_retries,
            "delayMs": delay_ms,
            "failure": dict(failure),
        }
        canonicalize(planned)
        # A request that failed before its first chunk went out all the same.
        self._log_header()
        self._session.append_all(
            [
                {"type": "llm/retry", "data": planned},
                {"type": "llm/retry-started", "data": ident},
            ]
        )
        self._retry, self._requested = ident, False
        self._chunks, self._streamed_usage, self._finish = [], None, {}

    # -- inside ----------------------------------------------------------------------------------------

    def _enter(self) -> None:
        with self._session._lock:
            self._turn._require_open()
            if self._place or self._turn._step is not None:
                raise RecorderError(
                    "a step is open already, or this one was used before", code="STEP_OPEN"
                )
            place = {"turn": self._turn.number, "step": self._session.state.step + 1}
            self._session.append("step/start", place)
            self._place, self._open, self._turn._step = place, True, self
            # A step that failed is not the end of a turn that goes on.
            self._turn._failure = None
            if self._turn._is_async:
                self._log_header()

    def _append_chunk(self, chunk: dict[str, Any]) -> SessionEvent:
        self._require_request()
        self._begin_request()
        place = self._place
        event = self._session.append(
            "assistant/chunk", {"turn": place["turn"], "step": place["step"], "chunk": chunk}
        )
        self._chunks.append(event)
        return event

    def _begin_request(self) -> None:
        """Before the first chunk or message: header and context where they changed, durable before it goes out."""
        if not self._requested:
            self._log_header()
            self._requested = True
            if not self._turn._is_async:
                self._flush()

    def _log_header(self) -> None:
        session = self._session
        last, seq = session.request_header(), session.state.header_seq
        if last is None:
            reason = "initial"
        elif seq < session.first_live_seq:
            # Forks too: the harnesses log the first request of whatever goes on from earlier events.
            reason = "resume"
        elif not header_equals(last, self._header):
            reason = "change"
        else:
            reason = ""
        if reason:
            session.append("request/header", {"header": self._header, "reason": reason})
        if session.request_context() != self._context:
            session.append("request/context", self._context)

    def _assembly(self) -> Assembly:
        return Assembly(decode_canonical(event.data_json)["chunk"] for event in self._chunks)

    def _finish_reason(self) -> Mapping[str, Any]:
        """The reason of the attempt's `finish` chunk, `{}` where it has none."""
        reason = self._finish.get("reason")
        return reason if isinstance(reason, dict) else {}

    def _stream_failure(self) -> dict[str, Any] | None:
        """The failure that the stream ended in: then there is no message, and the turn ends in it."""
        reason = self._finish_reason()
        if reason.get("kind") not in ("error", "aborted"):
            return None
        failure = reason.get("failure")
        told = thaw(failure) if isinstance(failure, dict) else {}
        if not is_name(told.get("message")):
            told["message"] = f"the stream ended as {reason['kind']}"
        return told if is_name(told.get("code")) else {**told, "code": "UNKNOWN"}

    def _streamed(self) -> Message:
        """The message that the recorded chunks come to."""
        failure = self._stream_failure()
        if failure is not None:
            raise RecorderError(
                f"the stream ended in a failure and made no message: {failure['message']}",
                code="NO_MESSAGE",
            )
        assembly = self._assembly()
        return self._new_message(assembly.blocks(), assembly.replay_state)

    def _compose(
        self, content: Content | Mapping[str, Any], calls: Iterable[CallSpec]
    ) -> Mapping[str, Any]:
        more = [
            {"type": "tool-call", "id": id_, "name": name, "arguments": _raw_arguments(arguments)}
            for id_, name, arguments in calls
        ]
        if isinstance(content, Mapping):
            return {**content, "content": [*content["content"], *more]} if more else content
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        blocks = [*_checked(blocks), *more]
        state = self._finish.get("replayState")
        parts = state.get("blocks") if isinstance(state, dict) else None
        # It speaks of the blocks by their position: of other blocks it says nothing.
        fits = not isinstance(parts, list) or len(parts) == len(blocks)
        return self._new_message(blocks, state if fits else None)

    def _new_message(self, blocks: Sequence[Mapping[str, Any]], replay_state: Any) -> Message:
        config = self._header["config"]
        return assistant_message(
            blocks, provider=config["provider"], model=config["model"], replay_state=replay_state
        )

    def _append_message(
        self, message: Mapping[str, Any], usage: Any = None, *, interrupted: bool = False
    ) -> SessionEvent:
        data: dict[str, Any] = {**self._place, "message": message}
        if usage is not None:
            data["usage"] = dict(usage) if isinstance(usage, Mapping) else usage
        if interrupted:
            data["interrupted"] = True
        cited = [event.seq for event in self._chunks]
        self._message = self._session.append(
            "assistant/message", data, surface_op="append", source_event_seqs=cited or None
        )
        return self._message

    def _exit(self, error: BaseException | None) -> bool:
        with self._session._lock:
            if not self._open:
                return False
            try:
                if self._chunks and self._message is None:
                    self._settle_message(error)
            finally:
                try:
                    self._answer_all()
                finally:
                    self._open, self._turn._step = False, None
                    state = self._session.state
                    if (state.open_turn, state.open_step) == (self._turn.number, self.number):
                        self._session.append("step/end", self._place)
        return False

    def _settle_message(self, error: BaseException | None) -> None:
        """The message that is still missing; of a stream that was cut off, what can be read of it."""
        failure = self._stream_failure()
        if failure is not None:
            self._turn._failure = failure
        elif error is not None or self._turn._stopped is not None:
            self._keep_partial()
        else:
            try:
                self.message()
            except RecorderError:
                self._keep_partial()
                raise

    def _keep_partial(self) -> None:
        kept = self._assembly().interrupted_blocks()
        if kept:
            message = self._new_message(kept, None)
            self._append_message(message, self._streamed_usage, interrupted=True)

    def _answer_all(self) -> None:
        """A result for every call without one."""
        for call_id in [*self._calls, *self._started]:
            if call_id not in self._answered:
                self._answer_missing(call_id)

    def _answer_missing(self, call_id: str) -> None:
        self._answered.add(call_id)
        draft = missing_result(
            call_id,
            turn=self._place["turn"],
            step=self._place["step"],
            seq=self._session.seq,
            call_seq=self._started.get(call_id),
        )
        self._session.append(
            draft["type"],
            draft["data"],
            surface_op=draft["surfaceOp"],
            source_event_seqs=draft.get("sourceEventSeqs"),
        )

    def _require_open(self) -> None:
        if not self._open:
            raise RecorderError(
                "the step is not open; use it inside its `with` block", code="CLOSED"
            )

    def _require_request(self) -> None:
        """Raise unless chunks and the message may come: they stand before the step's tool calls."""
        self._require_open()
        if self._message is not None:
            raise RecorderError(
                "the step has its message; open the next step", code="MESSAGE_TWICE"
            )
        if self._started:
            raise RecorderError(
                "a tool call was recorded in this step; the answer to it belongs into the next one",
                code="CALLS_STARTED",
            )


class Call(_Scope):
    """One tool call. Made by `step.tool_call(...)`; several may be open at a time, in any threads or tasks."""

    def __init__(
        self, step: Step, call_id: str, name: str, arguments: Any, *, swallow: bool
    ) -> None:
        self._step = step
        self._session = step._session
        self._durable = step._durable
        self.id = call_id
        self.name = name
        self.arguments = _raw_arguments(arguments)
        self._swallow = swallow

    def result(
        self,
        content: Content,
        *,
        is_error: bool = False,
        meta: Any = None,
        error: Mapping[str, str] | None = None,
    ) -> SessionEvent:
        """Record what the tool gave: a text or blocks, as the model is to read it.

        `meta`: any JSON, not shown to the model. `error`: `{name, code}` of a failure.
        """
        message = tool_result_message(self.id, _checked(content), is_error=is_error)
        data: dict[str, Any] = {**self._step._place, "message": message}
        if error is not None:
            data["error"] = dict(error)
        if meta is not None:
            data["meta"] = meta
        with self._session._lock:
            if not self._open:
                raise RecorderError(
                    "the call is not open; use it inside its `with` block", code="CLOSED"
                )
            if self.id in self._step._answered:
                raise RecorderError(f"call {self.id!r} has its result", code="RESULT_TWICE")
            event = self._session.append(
                "tool/result",
                data,
                surface_op="append",
                source_event_seqs=[self._step._started[self.id]],
            )
            self._step._answered.add(self.id)
        return event

    def _enter(self) -> None:
        step = self._step
        with self._session._lock:
            step._require_open()
            if self.id in step._started:
                raise RecorderError(f"call {self.id!r} was started before", code="CALL_TWICE")
            data = {"callId": self.id, "name": self.name, "arguments": self.arguments}
            event = self._session.append("tool/call", {**step._place, **data})
            step._started[self.id] = event.seq
            self._open = True

    def _exit(self, error: BaseException | None) -> bool:
        with self._session._lock:
            missing = self._open and self.id not in self._step._answered
            try:
                if missing:
                    self._answer(error)
            finally:
                self._open = False
        return missing and self._swallow and isinstance(error, Exception)

    def _answer(self, error: BaseException | None) -> None:
        if error is None:
            failure = {"name": "ToolNoResultError", "code": "TOOL_NO_RESULT"}
            self.result("The tool ended without a result.", is_error=True, error=failure)
        elif isinstance(error, Exception):
            failure = {"name": type(error).__name__, "code": _code_of(error, "TOOL_ERROR")}
            self.result(_text_of(error), is_error=True, error=failure)
        else:
            self._step._answer_missing(self.id)


def end_reason(error: BaseException) -> dict[str, Any]:
    """How a turn ended that this exception ended.

    An Exception is an error with its own code; leaving the program or a generator is `disposed`; any other
    interruption (KeyboardInterrupt, a cancelled task of any async library) is the user's.
    """
    if isinstance(error, Exception):
        return {"kind": "error", "error": _failure(error)}
    disposed = isinstance(error, (GeneratorExit, SystemExit))
    return {"kind": "aborted", "reason": {"kind": "disposed" if disposed else "user"}}


def _failure(error: Exception) -> dict[str, Any]:
    """The exception as the format's `{message, code, status?, providerRetryAfterMs?, requestId?}`.

    Whatever the exception carries, the result can be logged: an attribute of another type is left out, and one
    of a subclass, such as an enum's member, is taken as its plain value.
    """
    failure: dict[str, Any] = {"message": _text_of(error), "code": _code_of(error, "UNKNOWN")}
    status = _attribute(error, "status")
    if isinstance(status, int) and 100 <= status <= 599:
        failure["status"] = int(status)
    delay = _attribute(error, "provider_retry_after_ms")
    if (is_safe_integer(delay) or (type(delay) is float and math.isfinite(delay))) and delay > 0:
        failure["providerRetryAfterMs"] = delay
    request_id = _attribute(error, "request_id")
    if isinstance(request_id, str) and request_id:
        failure["requestId"] = str.__str__(request_id)
    return failure


def _attribute(error: BaseException, name: str) -> Any:
    with suppress(Exception):
        return getattr(error, name, None)
    return None


def _text_of(error: BaseException) -> str:
    """The exception's text, or its type's name where it has none or cannot be printed."""
    text = ""
    with suppress(Exception):
        text = str.__str__(str(error))
    return text or type(error).__name__


def _code_of(error: BaseException, otherwise: str) -> str:
    code = _attribute(error, "code")
    return str.__str__(code) if isinstance(code, str) and code else otherwise


def _checked(content: Content) -> Content:
    """A text, or blocks: a mapping or a list of texts would else be taken apart into what nobody can read."""
    if isinstance(content, str):
        return content
    blocks = [] if isinstance(content, Mapping) else list(content)
    if isinstance(content, Mapping) or not all(isinstance(block, Mapping) for block in blocks):
        raise RecorderError(
            "content is a text or a list of blocks, each a mapping with its type",
            code="INVALID_CONTENT",
        )
    return blocks


def _raw_arguments(arguments: Any) -> str:
    """The model's raw text: a str as it is, any other value as compact JSON."""
    return arguments if isinstance(arguments, str) else canonicalize(arguments)[0].decode("utf-8")
