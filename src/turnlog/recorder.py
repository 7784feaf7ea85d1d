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
turn, and not first when a step starts, so that a crash in between does not lose it.

Where the session has a storage, the recorder flushes after the user's message, before the request goes out,
before a tool body runs, and at the end of each step and turn. With `async with` these waits run on a worker
thread, at the points where the objects are entered and left.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Self

from turnlog.assemble import Assembly
from turnlog.errors import RecorderError, TurnlogError
from turnlog.events import SessionEvent
from turnlog.lossless import canonicalize, decode_canonical
from turnlog.messages import (
    Message,
    assistant_message,
    tool_calls,
    tool_result_message,
    user_message,
)
from turnlog.repair import missing_result
from turnlog.request_header import header_equals
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

    def _enter(self) -> None:
        raise NotImplementedError

    def _exit(self, error: BaseException | None) -> bool:
        """Close the scope; True when the exception is taken care of."""
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
        self._flush()
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
        except TurnlogError as failure:
            _prefer(error, failure)
            return False
        return handled

    async def __aenter__(self) -> Self:
        self._enter()
        await self._flush_async()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        try:
            handled = self._exit(error)
            await self._flush_async()
        except TurnlogError as failure:
            _prefer(error, failure)
            return False
        return handled


def _prefer(error: BaseException | None, failure: TurnlogError) -> None:
    """On the way out of an exception that one wins, and carries what went wrong while closing as a note."""
    if error is None:
        raise failure
    error.add_note(f"turnlog: while closing: [{failure.code}] {failure.message}")


class Turn(_Scope):
    """One turn: from a prompt to its end. Made by `session.turn()`."""

    def __init__(self, session: Session, *, durable: bool = True) -> None:
        self._session = session
        self._durable = durable
        self._number = 0
        self._step: Step | None = None
        self._reason: dict[str, Any] | None = None
        self._open = False
        self._is_async = False

    @property
    def number(self) -> int:
        """The turn's number, from 1; 0 before it is entered."""
        return self._number

    def user(self, content: Content | Message) -> SessionEvent:
        """Record what the user said: a text, blocks, or a message; durable on return outside asyncio."""
        self._require_open()
        message = content if isinstance(content, Message) else user_message(content)
        event = self._session.append_message(message)
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
        `temperature`, `max_tokens`, `stop`. The header is logged when it differs from the last one.
        """
        unknown = config.keys() - _CONFIG_KEYS.keys()
        if unknown:
            raise RecorderError(
                f"a step takes {', '.join(_CONFIG_KEYS)}, not {', '.join(sorted(unknown))}",
                code="UNKNOWN_OPTION",
            )
        wire = {_CONFIG_KEYS[key]: value for key, value in config.items() if value is not None}
        header: dict[str, Any] = {"config": {"provider": provider, "model": model, **wire}}
        if system:
            header["system"] = system
        if tools:
            header["tools"] = [dict(tool) for tool in tools]
        context: dict[str, Any] = {"provider": provider, "model": model}
        if context_window is not None:
            context["contextWindow"] = context_window
        return Step(self, header, context)

    def abort(self, reason: str | Mapping[str, Any] = "user") -> None:
        """Let the turn end as aborted: by `"user"`, `"parent"`, `"disposed"`, or `{kind: "hook", reason}`."""
        cause = {"kind": reason} if isinstance(reason, str) else dict(reason)
        self._reason = {"kind": "aborted", "reason": cause}

    def block(self) -> None:
        """Let the turn end as blocked: its prompt was not let through."""
        self._reason = {"kind": "blocked"}

    def _enter(self) -> None:
        state = self._session.state
        if state.open_turn is not None:
            raise RecorderError(
                f"session {self._session.id!r}: turn {state.open_turn} is open; end it first, or resume the "
                "session with repair=True, which closes what a crash left open",
                code="TURN_OPEN",
            )
        self._number = state.turn + 1
        self._session.append("turn/start", {"turn": self._number})
        self._open = True

    async def __aenter__(self) -> Self:
        self._is_async = True
        return await super().__aenter__()

    def _exit(self, error: BaseException | None) -> bool:
        if self._step is not None:
            self._step._exit(error)
        self._open = False
        reason = self._reason or {"kind": "completed"}
        if error is not None:
            reason = end_reason(error)
        self._session.append("turn/end", {"turn": self._number, "reason": reason})
        return False

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
        self._finish: dict[str, Any] = {}
        self._requested = False
        self._message: SessionEvent | None = None
        self._calls: dict[str, Mapping[str, Any]] = {}
        self._started: dict[str, int] = {}
        self._answered: set[str] = set()
        self._open = False

    @property
    def number(self) -> int:
        """The step's number in its turn, from 1; 0 before it is entered."""
        return self._place.get("step", 0)

    def user(self, content: Content | Message) -> SessionEvent:
        """Record a user message that belongs to this step's request, such as a steering one."""
        return self._turn.user(content)

    def chunk(self, chunk: Mapping[str, Any]) -> SessionEvent:
        """Record one chunk of the stream as it came: `{type: "text-delta", index, text}` and its kin."""
        event = self._append_chunk(dict(chunk))
        kind = chunk.get("type")
        if kind == "usage":
            self._streamed_usage = chunk.get("usage")
        elif kind == "finish":
            self._finish = dict(chunk)
        return event

    def text(self, text: str, *, index: int = 0) -> SessionEvent:
        """Record a piece of the answer's text."""
        return self._append_chunk({"type": "text-delta", "index": index, "text": text})

    def reasoning(self, text: str, *, index: int = 0) -> SessionEvent:
        """Record a piece of the model's reasoning; give it a block index other than the text's."""
        return self._append_chunk({"type": "reasoning-delta", "index": index, "text": text})

    def message(
        self,
        content: Content | Message | None = None,
        *,
        calls: Iterable[CallSpec] = (),
        usage: Mapping[str, Any] | None = None,
        finish: str | None = None,
    ) -> SessionEvent:
        """Record the answer: a text, blocks or a message; without one, what the recorded chunks come to.

        `calls`: tool calls that it asks for, besides those among the blocks. `usage`: `{inputTokens,
        outputTokens, ...}`, by default that of the stream. `finish`: `"max-tokens"` ends the turn with that
        reason, if nothing else does.
        """
        if not self._requested or self._message is not None:
            self._begin_request()
        composed = self._compose(self._assembly().blocks() if content is None else content, calls)
        event = self._append_message(composed, self._streamed_usage if usage is None else usage)
        self._calls = {call["id"]: call for call in tool_calls(composed)}
        reason = self._finish.get("reason")
        if finish == "max-tokens" or (
            isinstance(reason, dict) and reason.get("kind") == "max-tokens"
        ):
            self._turn._reason = self._turn._reason or {"kind": "max-tokens"}
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
        exception of the tool's body after it was recorded as the result: it goes on, or it ends here.
        """
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

        `failure`: `{message, code, status?, providerRetryAfterMs?, requestId?}`.
        """
        self._require_open()
        from turnlog.messages import new_message_id

        earlier = sum(
            event.type == "llm/retry"
            for event in self._session.events[self._session.state.turn_seq :]
            if event.type == "llm/retry" and event.data.get("step") == self.number
        )
        number = earlier + 1
        ident = {"retryId": retry_id or new_message_id(), **self._place}
        config = self._header["config"]
        policy, _ = canonicalize(["normal", max_retries, [], delay_ms, delay_ms, 0])
        self._session.append(
            "llm/retry",
            {
                **ident,
                "provider": config["provider"],
                "mode": "normal",
                "policyKey": policy.decode(),
                "retry": number,
                "maxRetries": max_retries,
                "delayMs": delay_ms,
                "failure": dict(failure),
            },
        )
        self._session.append("llm/retry-started", {**ident, "retry": number})
        self._chunks, self._streamed_usage, self._finish = [], None, {}

    # -- inside ----------------------------------------------------------------------------------------

    def _enter(self) -> None:
        self._turn._require_open()
        if self._place or self._turn._step is not None:
            raise RecorderError(
                "a step is open already, or this one was used before", code="STEP_OPEN"
            )
        place = {"turn": self._turn.number, "step": self._session.state.step + 1}
        self._session.append("step/start", place)
        self._place, self._open, self._turn._step = place, True, self
        if self._turn._is_async:
            self._log_header()

    def _append_chunk(self, chunk: dict[str, Any]) -> SessionEvent:
        if not self._requested or self._message is not None:
            self._begin_request()
        place = self._place
        event = self._session.append(
            "assistant/chunk", {"turn": place["turn"], "step": place["step"], "chunk": chunk}
        )
        self._chunks.append(event)
        return event

    def _begin_request(self) -> None:
        """Before the first chunk or message: header and context where they changed, durable before it goes out."""
        self._require_open()
        if self._message is not None:
            raise RecorderError(
                "the step has its message; open the next step", code="MESSAGE_TWICE"
            )
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
        elif (
            seq < session.first_live_seq
            and (session.header.seed_length or 0) != session.first_live_seq
        ):
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

    def _compose(
        self, content: Content | Message | list[dict[str, Any]], calls: Iterable[CallSpec]
    ) -> Message:
        if isinstance(content, Message):
            return content
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else list(content)
        blocks += [
            {"type": "tool-call", "id": id_, "name": name, "arguments": _raw_arguments(arguments)}
            for id_, name, arguments in calls
        ]
        config = self._header["config"]
        return assistant_message(
            blocks,
            provider=config["provider"],
            model=config["model"],
            replay_state=self._finish.get("replayState"),
        )

    def _append_message(
        self, message: Message, usage: Any = None, *, interrupted: bool = False
    ) -> SessionEvent:
        data: dict[str, Any] = {**self._place, "message": message}
        if usage is not None:
            data["usage"] = usage
        if interrupted:
            data["interrupted"] = True
        cited = [event.seq for event in self._chunks]
        self._message = self._session.append(
            "assistant/message", data, surface_op="append", source_event_seqs=cited or None
        )
        return self._message

    def _exit(self, error: BaseException | None) -> bool:
        if not self._open:
            return False
        try:
            self._settle(error)
        finally:
            self._open, self._turn._step = False, None
            self._session.append("step/end", self._place)
        return False

    def _settle(self, error: BaseException | None) -> None:
        """The message that is still missing, and a result for every call without one."""
        if self._chunks and self._message is None:
            if error is None:
                self.message()
            elif kept := self._assembly().interrupted_blocks():
                self._append_message(
                    self._compose(kept, ()), self._streamed_usage, interrupted=True
                )
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
        self._open = False

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
        if not self._open:
            raise RecorderError(
                "the call is not open; use it inside its `with` block", code="CLOSED"
            )
        if self.id in self._step._answered:
            raise RecorderError(f"call {self.id!r} has its result", code="RESULT_TWICE")
        message = tool_result_message(self.id, content, is_error=is_error)
        data: dict[str, Any] = {**self._step._place, "message": message}
        if error is not None:
            data["error"] = dict(error)
        if meta is not None:
            data["meta"] = meta
        event = self._session.append(
            "tool/result",
            data,
            surface_op="append",
            source_event_seqs=[self._step._started[self.id]],
        )
        self._step._answered.add(self.id)
        return event

    def _enter(self) -> None:
        self._step._require_open()
        if self.id in self._step._started:
            raise RecorderError(f"call {self.id!r} was started before", code="CALL_TWICE")
        event = self._session.append(
            "tool/call",
            {
                **self._step._place,
                "callId": self.id,
                "name": self.name,
                "arguments": self.arguments,
            },
        )
        self._step._started[self.id] = event.seq
        self._open = True

    def _exit(self, error: BaseException | None) -> bool:
        answered = self.id in self._step._answered
        if isinstance(error, Exception) and not answered:
            failure = {"name": type(error).__name__, "code": _code_of(error, "TOOL_ERROR")}
            self.result(_text_of(error), is_error=True, error=failure)
        elif error is not None and not answered:
            self._step._answer_missing(self.id)
        elif not answered:
            self.result(
                "The tool ended without a result.",
                is_error=True,
                error={"name": "ToolNoResultError", "code": "TOOL_NO_RESULT"},
            )
        self._open = False
        return self._swallow and isinstance(error, Exception)


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
    """The exception as the format's `{message, code, status?, providerRetryAfterMs?, requestId?}`."""
    failure: dict[str, Any] = {"message": _text_of(error), "code": _code_of(error, "UNKNOWN")}
    status = getattr(error, "status", None)
    if type(status) is int and 100 <= status <= 599:
        failure["status"] = status
    retry_after = getattr(error, "provider_retry_after_ms", None)
    if type(retry_after) is int and retry_after > 0:
        failure["providerRetryAfterMs"] = retry_after
    request_id = getattr(error, "request_id", None)
    if isinstance(request_id, str) and request_id:
        failure["requestId"] = request_id
    return failure


def _text_of(error: Exception) -> str:
    return str(error) or type(error).__name__


def _code_of(error: Exception, otherwise: str) -> str:
    code = getattr(error, "code", None)
    return code if isinstance(code, str) and code else otherwise


def _raw_arguments(arguments: Any) -> str:
    """The model's raw text: a str as it is, any other value as compact JSON."""
    return arguments if isinstance(arguments, str) else canonicalize(arguments)[0].decode("utf-8")
