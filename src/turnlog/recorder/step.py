"""Step: one model request, its stream, its message and its tool calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from turnlog.assemble import CHUNK_TYPES, Assembly
from turnlog.errors import RecorderError
from turnlog.events import SessionEvent
from turnlog.frozen import thaw
from turnlog.lossless import canonicalize, decode_canonical
from turnlog.messages import is_name, new_message_id, tool_calls
from turnlog.recorder.call import Call
from turnlog.recorder.outcome import llm_failure
from turnlog.recorder.plain import (
    Arguments,
    CallSpec,
    Content,
    content_blocks,
    given,
    raw_arguments,
)
from turnlog.recorder.scope import Bracket
from turnlog.repair import missing_result
from turnlog.request_header import check_request_header, header_equals

if TYPE_CHECKING:
    from turnlog.recorder.turn import Turn


class Step(Bracket):
    """One model request and its tool calls. Made by `turn.step(...)`; entered once."""

    def __init__(self, turn: Turn, header: dict[str, Any], context: dict[str, Any]) -> None:
        self._turn = turn
        self._session = turn._session
        self._durable = turn._durable
        self._header_text, self._header = canonicalize(header)
        self._context = canonicalize(context)[1]
        check_request_header({"header": self._header})
        self._place: dict[str, int] = {}
        self._streaming = False
        self._chunks: list[SessionEvent] = []
        self._usage: SessionEvent | None = None
        self._finish: SessionEvent | None = None
        self._retry: dict[str, Any] = {}
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
        """Record one chunk of the stream as it came: `{type: "text-delta", index, text}` and its kin.

        A chunk behind a `finish` begins another attempt. Raises `RecorderError`: `UNKNOWN_CHUNK`, and where no
        stream is due `MESSAGE_TWICE`, `CALLS_STARTED`, `CLOSED`.
        """
        kind = chunk.get("type")
        if type(kind) is not str or kind not in CHUNK_TYPES:
            raise RecorderError(
                f"no chunk type {kind!r}; there are {', '.join(sorted(CHUNK_TYPES))}",
                code="UNKNOWN_CHUNK",
            )
        event = self._append_chunk(chunk if type(chunk) is dict else dict(chunk))
        if kind == "usage":
            self._usage = event
        elif kind == "finish":
            self._finish, self._streaming = event, False
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
        streamed: bool = False,
    ) -> SessionEvent:
        """Record the answer: a text, blocks or a whole message; without one, what the recorded chunks come to.

        `calls`: tool calls that it asks for, besides those among the blocks. `usage`: `{inputTokens,
        outputTokens, ...}`, by default that of the stream. `finish`: `"max-tokens"` ends the turn with that
        reason, if nothing else does. `streamed`: an answer without chunks was streamed all the same, where
        otherwise the log says that its chunks were not recorded.

        Raises `RecorderError`: `NO_MESSAGE` when there is nothing to make one of, or the stream ended in a
        failure; `INCOMPLETE_BLOCK`; `INVALID_CONTENT`; `MESSAGE_TWICE`; `CALLS_STARTED` behind a tool call; `CLOSED`.
        """
        self._require_request()
        composed = self._compose(self._streamed(streamed) if content is None else content, calls)
        if not self._streaming:
            self._log_header()
        sources = [event.seq for event in self._chunks]
        event = self._append_message(
            composed,
            None if usage is None else dict(usage),
            sources if sources or streamed else None,
        )
        self._calls = {call["id"]: call for call in tool_calls(composed) if call["id"]}
        if finish == "max-tokens" or self._finish_reason().get("kind") == "max-tokens":
            self._turn._cut_off = True
        return event

    def tool_call(
        self,
        call_id: str,
        name: str | None = None,
        arguments: Arguments | None = None,
        *,
        errors: Literal["raise", "record"] = "raise",
    ) -> Call:
        """Record that a tool starts, and with `call.result(...)` what came of it.

        Name and arguments come from the message's call of that id unless given. An exception of the tool's
        body is recorded as the result; then it goes on, or with `errors="record"` ends here.

        Raises `RecorderError`: `NO_MESSAGE` while a streamed answer has no message yet, `UNKNOWN_CALL` when
        neither the message nor the caller names the tool, and on entering `CALL_TWICE` and `CLOSED`.
        """
        self._require_open()
        if not is_name(call_id):
            raise RecorderError("a call's id is a non-empty string", code="UNKNOWN_CALL")
        block = self._calls.get(call_id, {})
        known = name or str(block.get("name") or "")
        if self._message is None and self._chunks:
            raise RecorderError(
                "record the step's message first: a tool's result stands behind the message that asks for it",
                code="NO_MESSAGE",
            )
        if not known:
            raise RecorderError(
                f"the message has no call {call_id!r}; give the tool's name and arguments",
                code="UNKNOWN_CALL",
            )
        raw = block.get("arguments", "") if arguments is None else arguments
        return Call(self, call_id, known, raw_arguments(raw), swallow=errors == "record")

    def retry(
        self,
        failure: Mapping[str, Any] | BaseException,
        *,
        delay_ms: int = 0,
        max_retries: int = 5,
        retry_id: str | None = None,
    ) -> None:
        """Record that the request failed and is made again now: chunks from here on are a new attempt's.

        `failure`: the exception, or `{message, code, status?, providerRetryAfterMs?, requestId?}`. `delay_ms`:
        how long the caller has waited; call this behind the wait, so that a cancelled one leaves no retry. All
        retries of a step have one `retry_id`, the first one's or a random one.
        """
        self._require_request()
        told = llm_failure(failure) if isinstance(failure, BaseException) else dict(failure)
        started = {
            "retryId": self._retry.get("retryId") or retry_id or new_message_id(),
            **self._place,
            "retry": self._retry.get("retry", 0) + 1,
        }
        planned = {
            "retryId": started["retryId"],
            **self._place,
            "provider": self._header["config"]["provider"],
            "mode": "normal",
            # The policy is the caller's own. Its key must not change with the delay: readers count retries by it.
            "policyKey": f'["normal",{max_retries},[],0,0,0]',
            "retry": started["retry"],
            "maxRetries": max_retries,
            "delayMs": delay_ms,
            "failure": told,
        }
        canonicalize(planned)
        # A request that failed before its first chunk went out all the same.
        self._log_header()
        self._session.append_all(
            [
                {"type": "llm/retry", "data": planned},
                {"type": "llm/retry-started", "data": started},
            ]
        )
        self._retry = started
        self._forget_attempt()

    # -- the request -----------------------------------------------------------------------------------

    def _append_chunk(self, chunk: dict[str, Any]) -> SessionEvent:
        if not self._streaming:
            self._begin_request()
        event = self._session.append("assistant/chunk", {**self._place, "chunk": chunk})
        self._chunks.append(event)
        return event

    def _begin_request(self) -> None:
        """Before an attempt's first chunk: header and context where they changed, and all of it durable."""
        self._require_request()
        if self._finish is not None:
            self._forget_attempt()
        self._log_header()
        if not self._is_async:
            self._flush()
        self._streaming = True

    def _forget_attempt(self) -> None:
        self._chunks, self._usage, self._finish, self._streaming = [], None, None, False

    def _log_header(self) -> None:
        session = self._session
        with session._lock:
            seq = session.state.header_seq
            if seq < 0:
                reason = "initial"
            elif seq < session.first_live_seq:
                reason = "resume"
            else:
                reason = "change" if self._differs_from(session.events[seq]) else ""
            if reason:
                session.append("request/header", {"header": self._header, "reason": reason})
            if session.request_context() != self._context:
                session.append("request/context", self._context)

    def _differs_from(self, logged: SessionEvent) -> bool:
        # Equal texts are the usual case, and a long list of tools need not be taken apart for it.
        if logged.data_json.startswith(b'{"header":%b,"reason":' % self._header_text):
            return False
        return not header_equals(logged.data["header"], self._header)

    def _finish_reason(self) -> Mapping[str, Any]:
        """The reason of the attempt's `finish` chunk, `{}` where it has none."""
        reason = None if self._finish is None else self._finish.data["chunk"].get("reason")
        return reason if isinstance(reason, dict) else {}

    def _stream_failure(self) -> dict[str, Any] | None:
        """The failure that the stream ended in: then there is no message, and the turn ends in it."""
        reason = self._finish_reason()
        if reason.get("kind") not in ("error", "aborted"):
            return None
        failure = thaw(reason.get("failure"))
        if not isinstance(failure, dict) or not is_name(failure.get("message")):
            failure = {"message": f"the stream ended as {reason['kind']}"}
        if not is_name(failure.get("code")):
            failure["code"] = "UNKNOWN"
        return failure

    # -- the message -----------------------------------------------------------------------------------

    def _assembly(self) -> Assembly:
        return Assembly(decode_canonical(event.data_json)["chunk"] for event in self._chunks)

    def _streamed(self, streamed: bool) -> Mapping[str, Any]:
        """The message that the recorded chunks come to."""
        failure = self._stream_failure()
        if failure is not None:
            raise RecorderError(
                f"the stream ended in a failure and made no message: {failure['message']}",
                code="NO_MESSAGE",
            )
        if not self._chunks and not streamed:
            raise RecorderError(
                "no chunks are recorded to make the message of; give its content", code="NO_MESSAGE"
            )
        assembly = self._assembly()
        return self._new_message(assembly.blocks(), assembly.replay_state)

    def _new_message(self, blocks: list[Any], replay_state: Any = None) -> Mapping[str, Any]:
        config = self._header["config"]
        source = {"kind": "model", "provider": config["provider"], "model": config["model"]}
        if replay_state is not None:
            source["replayState"] = replay_state
        return {"role": "assistant", "content": blocks, "source": source, "id": new_message_id()}

    def _compose(
        self, content: Content | Mapping[str, Any], calls: Iterable[CallSpec]
    ) -> Mapping[str, Any]:
        blocks: list[Any] = [
            {"type": "tool-call", "id": id_, "name": name, "arguments": raw_arguments(arguments)}
            for id_, name, arguments in calls
        ]
        if isinstance(content, Mapping):
            return {**content, "content": [*content["content"], *blocks]} if blocks else content
        blocks = [*content_blocks(content), *blocks]
        state = None if self._finish is None else self._finish.data["chunk"].get("replayState")
        parts = state.get("blocks") if isinstance(state, dict) else None
        # It speaks of the blocks by their position: of other blocks it says nothing.
        fits = not isinstance(parts, list) or len(parts) == len(blocks)
        return self._new_message(blocks, state if fits else None)

    def _append_message(
        self,
        message: Mapping[str, Any],
        usage: Mapping[str, Any] | None,
        sources: list[int] | None,
        **more: Any,
    ) -> SessionEvent:
        if usage is None and self._usage is not None:
            usage = decode_canonical(self._usage.data_json)["chunk"].get("usage")
        data = {**self._place, "message": message, **given({"usage": usage}), **more}
        self._message = self._session.append(
            "assistant/message", data, surface_op="append", source_event_seqs=sources
        )
        self._streaming = False
        return self._message

    def _keep_partial(self) -> None:
        """The visible part of an answer that was cut off."""
        kept = self._assembly().interrupted_blocks()
        if kept:
            sources = [event.seq for event in self._chunks]
            self._append_message(self._new_message(kept), None, sources, interrupted=True)

    # -- opening and closing ---------------------------------------------------------------------------

    def _enter(self) -> None:
        with self._session._lock:
            self._turn._require_open()
            if self._turn._step is not None:
                raise RecorderError(
                    f"step {self._turn._step.number} is open; leave its block first",
                    code="STEP_OPEN",
                )
            if self._place:
                raise RecorderError("this step was used before; take a new one", code="CLOSED")
            place = {"turn": self._turn.number, "step": self._session.state.step + 1}
            self._session.append("step/start", place)
            self._place, self._open = place, True
            self._turn._step, self._turn._failure = self, None
            if self._is_async:
                # Chunks are recorded without waiting, so this is the last place where a flush can be awaited.
                self._log_header()
                self._flushes_on_enter = True

    def _close(self, error: BaseException | None) -> bool:
        with self._session._lock:
            if not self._open:
                return False
            try:
                self._settle(error)
            except Exception:
                self._append_end()
                raise
            self._append_end()
        return False

    def _append_end(self) -> None:
        state = self._session.state
        if {"turn": state.open_turn, "step": state.open_step} == self._place:
            self._session.append("step/end", self._place)
        self._streaming = self._open = False
        self._turn._step = None

    def _settle(self, error: BaseException | None) -> None:
        """The message that is still missing, and a result for every call without one."""
        if self._message is None and self._chunks:
            failure = self._stream_failure()
            if failure is not None:
                self._turn._failure = failure
            elif error is not None or self._turn._is_cut_short():
                self._keep_partial()
            else:
                try:
                    self.message()
                except Exception:
                    self._keep_partial()
                    raise
        for call_id in [*self._calls, *self._started]:
            if call_id not in self._answered:
                self._answer_missing(call_id)

    def _answer_missing(self, call_id: str) -> None:
        """The result that crash repair would write for a call without one."""
        draft = missing_result(
            call_id, **self._place, seq=self._session.seq, call_seq=self._started.get(call_id)
        )
        self._session.append(
            draft["type"],
            draft["data"],
            surface_op=draft["surfaceOp"],
            source_event_seqs=draft.get("sourceEventSeqs"),
        )
        self._answered.add(call_id)

    def _require_open(self) -> None:
        if not self._open:
            raise RecorderError(
                "the step is not open; use it inside its `with` block", code="CLOSED"
            )

    def _require_request(self) -> None:
        self._require_open()
        if self._message is not None:
            raise RecorderError(
                "the step has its message; open the next step", code="MESSAGE_TWICE"
            )
        if self._started:
            raise RecorderError(
                "a tool call was recorded in this step; what the model says to it belongs to the next one",
                code="CALLS_STARTED",
            )
