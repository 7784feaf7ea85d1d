"""Call: one tool call and its result."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from turnlog.errors import RecorderError
from turnlog.events import SessionEvent
from turnlog.recorder.outcome import code_of, text_of
from turnlog.recorder.plain import Content, given, plain_result_message
from turnlog.recorder.scope import Scope

if TYPE_CHECKING:
    from turnlog.recorder.step import Step


class Call(Scope):
    """One tool call. Made by `step.tool_call(...)`; several may be open at a time, in any threads or tasks."""

    _flushes_on_enter = True

    def __init__(
        self, step: Step, call_id: str, name: str, arguments: str, *, swallow: bool
    ) -> None:
        self._step = step
        self._session = step._session
        self._durable = step._durable
        self.id = call_id
        self.name = name
        self.arguments = arguments
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

        `meta`: any JSON, not shown to the model. `error`: `{name, code}` of a failure. Raises `RecorderError`:
        `CLOSED` and `RESULT_TWICE`.
        """
        step = self._step
        message = plain_result_message(self.id, content, is_error)
        failure = None if error is None else dict(error)
        data = {**step._place, "message": message, **given({"error": failure, "meta": meta})}
        with self._session._lock:
            if not (self._open and step._open):
                raise RecorderError(
                    f"call {self.id!r} is not open; use it inside its `with` block", code="CLOSED"
                )
            if self.id in step._answered:
                raise RecorderError(f"call {self.id!r} has its result", code="RESULT_TWICE")
            event = self._session.append(
                "tool/result",
                data,
                surface_op="append",
                source_event_seqs=[step._started[self.id]],
            )
            step._answered.add(self.id)
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        return self._leave(error)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        return await self._leave_async(error)

    def _close(self, error: BaseException | None) -> bool:
        with self._session._lock:
            missing = self._open and self._step._open and self.id not in self._step._answered
            if missing:
                self._answer(error)
            self._open = False
        # What could not be recorded goes on in any case: nobody would hear of it.
        return missing and self._swallow and isinstance(error, Exception)

    def _answer(self, error: BaseException | None) -> None:
        if error is None:
            failure = {"name": "ToolNoResultError", "code": "TOOL_NO_RESULT"}
            self.result("The tool ended without a result.", is_error=True, error=failure)
        elif isinstance(error, Exception):
            failure = {"name": type(error).__name__, "code": code_of(error, "TOOL_ERROR")}
            self.result(text_of(error), is_error=True, error=failure)
        else:
            self._step._answer_missing(self.id)
