"""Invariants: relational checks of a session's events, each a veto before commit.

One owner, `session`, guards turns, steps and tool calls (log.md, section 10; `vectors/invariants.json` has the
reference's answers). A program's own event types bring checks of their own, under the type's name. Owners are
switched by patterns. A check that is attached to a session with events replays them first, without judging.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from turnlog.commit_check import CommitCheck
from turnlog.errors import InvariantError
from turnlog.eventlog import EventView
from turnlog.events import SessionEvent
from turnlog.logstate import LogState
from turnlog.repair import NOT_STARTED
from turnlog.session import Session
from turnlog.vocabulary import EVENT_TYPES, CandidateView

SESSION_OWNER = "session"
"""The owner of the checks of turns, steps, messages and tool calls."""

_IN_STEP = frozenset(
    {"assistant/chunk", "assistant/message", "tool/call", "tool/result", "step/end"}
)
_IN_TURN = frozenset({"todo/write", "request/header", "request/context"})
_CHECKED = _IN_STEP | _IN_TURN | {"turn/start", "turn/end", "step/start"}


class InvariantSettings(msgspec.Struct, frozen=True):
    """Which owners' checks run: those that match a pattern of `allow` and none of `block` (`*` and `?`)."""

    allow: tuple[str, ...] = ("*",)
    block: tuple[str, ...] = ()

    def admits(self, owner: str) -> bool:
        """Whether the owner's checks run."""
        return _matches(owner, self.allow) and not _matches(owner, self.block)


def _matches(owner: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(owner, pattern) for pattern in patterns)


class Invariants(CommitCheck):
    """The relational checks of one session; `attach_invariants` puts them in place."""

    def __init__(self, settings: InvariantSettings | None = None) -> None:
        self._settings = InvariantSettings() if settings is None else settings
        self._guards_session = self._settings.admits(SESSION_OWNER)
        self._open_calls: set[str] = set()

    def copy(self) -> Invariants:
        """An independent copy."""
        twin = Invariants(self._settings)
        twin._open_calls = self._open_calls.copy()
        return twin

    def check(self, event: SessionEvent, data: Any, state: LogState) -> None:
        """Raise `InvariantError` when the event does not fit what came before it."""
        type_ = event.type
        if type_ == "assistant/chunk" and _is_in_open_step(data, state):
            return  # nearly every event of a log, and nearly always right
        if type_ in _CHECKED:
            if self._guards_session:
                self._check_session(event, data if isinstance(data, dict) else {}, state)
            return
        kind = EVENT_TYPES.get(type_)
        if kind is not None and kind.check is not None and self._settings.admits(type_):
            view = CandidateView(type_, event.seq, data, state.open_turn, state.open_step)
            _run_own_check(kind.check, view)

    def commit(self, event: SessionEvent, data: Any) -> None:
        """Keep track of the calls that are open in the open step."""
        type_ = event.type
        if type_ == "assistant/chunk":
            return
        if type_ == "tool/call":
            call_id = data.get("callId") if isinstance(data, dict) else None
            if isinstance(call_id, str):
                self._open_calls.add(call_id)
        elif type_ == "tool/result":
            if event.surface_op == "append":
                self._open_calls.discard(data["message"]["source"]["callId"])
        elif type_ in ("step/start", "step/end", "turn/start", "turn/end"):
            self._open_calls.clear()

    def replay(self, events: EventView, state: LogState) -> None:
        """Learn the open calls of a session's last turn; nothing is judged."""
        for record in events.iter_records(max(state.turn_seq, 0)):
            if isinstance(record, SessionEvent) and record.type in _CHECKED:
                self.commit(record, record.data)

    def _check_session(self, event: SessionEvent, data: dict[str, Any], state: LogState) -> None:
        type_, turn = event.type, data.get("turn")
        if type_ in _IN_STEP:
            self._check_in_step(event, data, state)
        elif type_ == "turn/start":
            if state.open_turn is not None:
                raise _veto(event, f"turn {state.open_turn} is still open")
            _want(event, "turn", turn, state.turn + 1)
        elif type_ == "turn/end":
            if state.open_step is not None:
                raise _veto(event, f"step {state.open_step} is still open")
            _want(event, "turn", turn, _open_turn(event, state))
        elif type_ == "step/start":
            _want(event, "turn", turn, _open_turn(event, state))
            if state.open_step is not None:
                raise _veto(event, f"step {state.open_step} is still open")
            _want(event, "step", data.get("step"), state.step + 1)
        else:
            _open_turn(event, state)

    def _check_in_step(self, event: SessionEvent, data: dict[str, Any], state: LogState) -> None:
        open_turn = _open_turn(event, state)
        rewrites_result = event.type == "tool/result" and event.surface_op != "append"
        if rewrites_result:
            return
        if state.open_step is None:
            raise _veto(event, "no step is open")
        _want(event, "turn", data.get("turn"), open_turn)
        _want(event, "step", data.get("step"), state.open_step)
        if event.type == "tool/result":
            call_id = data["message"]["source"]["callId"]
            error = data.get("error")
            code = error.get("code") if isinstance(error, dict) else None
            if call_id not in self._open_calls and code != NOT_STARTED:
                raise _veto(event, f"no call {call_id!r} is open in this step")


def _is_in_open_step(data: Any, state: LogState) -> bool:
    if type(data) is not dict or state.open_step is None:
        return False
    turn, step = data.get("turn"), data.get("step")
    return (
        turn == state.open_turn
        and step == state.open_step
        and type(turn) is not bool
        and type(step) is not bool
    )


def _run_own_check(check: Any, view: CandidateView) -> None:
    try:
        check(view)
    except InvariantError:
        raise
    except (ValueError, TypeError, KeyError, LookupError, AssertionError) as error:
        raise InvariantError(
            f"{view.type} at seq {view.seq}: {error}", owner=view.type, seq=view.seq
        ) from error


def _open_turn(event: SessionEvent, state: LogState) -> int:
    if state.open_turn is None:
        raise _veto(event, "no turn is open")
    return state.open_turn


def _want(event: SessionEvent, name: str, value: Any, wanted: int) -> None:
    if value != wanted or isinstance(value, bool):
        raise _veto(event, f"{name} must be {wanted}, not {value!r}")


def _veto(event: SessionEvent, what: str) -> InvariantError:
    return InvariantError(
        f"{event.type} at seq {event.seq}: {what}", owner=SESSION_OWNER, seq=event.seq
    )


def attach_invariants(session: Session, settings: InvariantSettings | None = None) -> None:
    """Check every later append of the session; what it already holds is replayed, not judged."""
    session.add_check(Invariants(settings))


def find_violations(
    events: EventView | Iterable[SessionEvent], settings: InvariantSettings | None = None
) -> list[InvariantError]:
    """Every relational fault of a stored log, in order; such a log loads all the same."""
    checks, state, faults = Invariants(settings), LogState(), []
    for event in events:
        data = event.data
        try:
            checks.check(event, data, state)
        except InvariantError as fault:
            faults.append(fault)
        checks.commit(event, data)
        state.note(event.type, event.seq, data)
    return faults
