"""Turn: from a prompt to its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from turnlog.errors import RecorderError
from turnlog.events import SessionEvent
from turnlog.recorder.outcome import end_reason
from turnlog.recorder.plain import Content, checked_reason, given, plain_user_message
from turnlog.recorder.scope import Bracket
from turnlog.recorder.step import Step
from turnlog.session import Session

_SOFT_ENDS = frozenset({"completed", "max-tokens"})
"""Ends that an exception overrides; any other that was set explicitly stays."""


class Turn(Bracket):
    """One turn: from a prompt to its end. Made by `session.turn()`; entered once."""

    def __init__(self, session: Session, *, durable: bool = True) -> None:
        self._session = session
        self._durable = durable
        self._number = 0
        self._step: Step | None = None
        self._reason: dict[str, Any] | None = None
        self._failure: dict[str, Any] | None = None
        self._cut_off = False

    @property
    def number(self) -> int:
        """The turn's number, from 1; 0 before it is entered."""
        return self._number

    def user(self, content: Content | Mapping[str, Any]) -> SessionEvent:
        """Record what the user said: a text, blocks, or a whole message.

        It is durable on return; inside `async with`, when the next step has been entered.
        """
        self._require_open()
        message = content if isinstance(content, Mapping) else plain_user_message(content)
        event = self._session.append("user/message", message, surface_op="append")
        if not (self._is_async or (self._step is not None and self._step._is_async)):
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
        reasoning_effort: str | None = None,
        temperature: float | None = None,
        max_tokens: int | None = None,
        stop: Sequence[str] | None = None,
    ) -> Step:
        """One model request and the tools that it asks for.

        `tools`: `{name, description, parameters}` each. `context_window`, `max_tokens`: tokens. The request
        header is logged when it differs from the session's last one, and always by the first step of a session
        that goes on from earlier events. Raises `EventError` or `JsonValueError` for what no header can hold.
        """
        self._require_open()
        config = {
            "provider": provider,
            "model": model,
            "reasoningEffort": reasoning_effort,
            "temperature": temperature,
            "maxTokens": max_tokens,
            "stop": None if stop is None else list(stop),
        }
        header: dict[str, Any] = {"config": given(config)}
        if system:
            header["system"] = system
        if tools:
            header["tools"] = [dict(tool) for tool in tools]
        context = {"provider": provider, "model": model, "contextWindow": context_window}
        return Step(self, header, given(context))

    def end(self, reason: str | Mapping[str, Any]) -> None:
        """Say how the turn will end: `"completed"`, `"max-tokens"`, `"blocked"`, or `{kind, ...}`.

        It ends when its block is left. The first abort, block or error stays; an exception overrides only
        `completed` and `max-tokens`.
        """
        self._require_open()
        end = checked_reason(reason, "completed", "max-tokens", "blocked")
        if not self._is_cut_short():
            self._reason = end

    def abort(
        self, reason: Literal["user", "parent", "disposed"] | Mapping[str, Any] = "user"
    ) -> None:
        """Let the turn end as aborted, by the user, the parent agent, or `{kind: "hook", reason: "..."}`."""
        cause = checked_reason(reason, "user", "parent", "disposed")
        self.end({"kind": "aborted", "reason": cause})

    def block(self) -> None:
        """Let the turn end as blocked: its prompt was not let through."""
        self.end("blocked")

    def _enter(self) -> None:
        with self._session._lock:
            state = self._session.state
            if state.open_turn is not None:
                raise RecorderError(
                    f"session {self._session.id!r}: turn {state.open_turn} is open; leave its block first, or, if "
                    "a crash left it open, resume the session with repair=True, which closes it",
                    code="TURN_OPEN",
                )
            if self._number:
                raise RecorderError("this turn was used before; take a new one", code="CLOSED")
            self._session.append("turn/start", {"turn": state.turn + 1})
            self._number, self._open = state.turn + 1, True

    def _close(self, error: BaseException | None) -> bool:
        with self._session._lock:
            if not self._open:
                return False
            try:
                if self._step is not None:
                    self._step._close(error)
            except Exception:
                self._append_end(error)
                raise
            self._append_end(error)
        return False

    def _append_end(self, error: BaseException | None) -> None:
        # Asked of the log: an interruption may have struck between an append and our note of it.
        if self._session.state.open_turn == self._number:
            end = {"turn": self._number, "reason": self._how_it_ended(error)}
            self._session.append("turn/end", end)
        self._open = False

    def _how_it_ended(self, error: BaseException | None) -> dict[str, Any]:
        if self._reason is not None and (error is None or self._is_cut_short()):
            return self._reason
        if self._failure is not None and (error is None or isinstance(error, Exception)):
            return {"kind": "error", "error": self._failure}
        if error is not None:
            return end_reason(error)
        return {"kind": "max-tokens" if self._cut_off else "completed"}

    def _is_cut_short(self) -> bool:
        return self._reason is not None and self._reason["kind"] not in _SOFT_ENDS

    def _require_open(self) -> None:
        if not self._open:
            raise RecorderError(
                "the turn is not open; use it inside its `with` block", code="CLOSED"
            )
