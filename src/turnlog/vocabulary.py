"""The vocabulary: which event types exist, and what their payloads must be.

48 types are known to every harness that writes this format. A program adds its own with
`register_event_type`: they are then accepted by storages, checked at append, seed and load alike, and come
back typed. A type that is neither known nor registered is accepted by a storage only when the event is
marked `ignorable`, because skipping a required one could rebuild a wrong session.

`check_payload` is the one validator of payloads for append, seed and load (log.md, sections 2 and 3).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from turnlog.errors import EventError
from turnlog.messages import check_assistant_message, check_tool_result, check_user_message
from turnlog.request_header import check_request_header

SURFACE_TYPES = frozenset({"user/message", "assistant/message", "tool/result"})
"""The types that can stand on the surface; they must carry `surfaceOp`, and no other type may."""

RETIRED_TYPES = frozenset({"request/header-delta", "mode/set"})
"""Types of early logs that are refused at append, seed and load."""

RESERVED_TYPES = frozenset({"session", "text-chunks", "reasoning-chunks", "tool-call-chunks"})
"""The tags of header lines and packed rows: an event of such a type could not be told from one."""

KNOWN_TYPES = frozenset(
    """
    agent/inbox/spliced agent-preset/selected approval/asked approval/decided
    approval/policy assistant/chunk assistant/message command/run command/done
    compaction/start compaction/end compaction/prune compaction/summary feedback/record
    goal/change hook/invoked hook/result llm/retry llm/retry-started permission/preset
    plan/mode request/context request/header sandbox/mode schedule/change session/end-seed
    session/title session/title-llm-request step/start step/end subagent/descriptor
    team/member team/message/queued team/message/delivered team/task todo/write tool/call
    tool/result tool/code-dispatch-start tool/code-dispatch tool-workflow/run-start
    tool-workflow/run-end tool-workflow/agent-start tool-workflow/agent-end turn/start
    turn/end user/message web/deepseek-search-llm-request
    """.split()  # noqa: SIM905 - a list of 48 literals reads worse
)
"""The types that every reader of format version 0 knows (storage.md, section 12)."""

RelationalCheck = Callable[["CandidateView"], None]
"""A program's own relational check: called before commit with the candidate; raises to veto it."""


class CandidateView(msgspec.Struct, frozen=True):
    """What a relational check sees of a candidate: its place, its payload, and the open turn and step."""

    type: str
    seq: int
    data: Any
    open_turn: int | None
    open_step: int | None


class EventType(msgspec.Struct, frozen=True):
    """A registered event type: its payload's Python type, or None for any JSON."""

    name: str
    payload: Any = None
    ignorable: bool = False
    check: RelationalCheck | None = None


class EventTypes:
    """A registry of event types: the known ones and what a program adds.

    Thread-safe for reading while types are registered. Registering a name again with the same definition does
    nothing; with another one it is refused.
    """

    def __init__(self) -> None:
        self._own: dict[str, EventType] = {}

    def register(
        self,
        name: str,
        *,
        payload: Any = None,
        ignorable: bool = False,
        check: RelationalCheck | None = None,
    ) -> EventType:
        """Add a type. `payload` is any type that msgspec converts to (a Struct, dataclass, TypedDict, ...).

        With `ignorable`, each event of the type is marked so that readers without this registration may skip
        it. Raises `EventError` (`TYPE_TAKEN`) for a known, retired or differently registered name.
        """
        kind = EventType(name, payload, ignorable, check)
        if (
            name in KNOWN_TYPES | RETIRED_TYPES | RESERVED_TYPES
            or self._own.get(name, kind) != kind
        ):
            raise EventError(
                f"the event type {name!r} is taken; choose another name", code="TYPE_TAKEN"
            )
        self._own[name] = kind
        return kind

    def get(self, name: str) -> EventType | None:
        """What a program registered under the name, or None."""
        return self._own.get(name)

    def knows(self, name: str) -> bool:
        """Whether readers with this registry can interpret the type."""
        return name in KNOWN_TYPES or name in self._own

    def require_known(self, name: str, ignorable: bool) -> None:
        """Raise `EventError` for an event that no storage may hold.

        `UNKNOWN_EVENT_TYPE`: a required event of a type that nobody knows. `RESERVED_TYPE`: a type that is the tag
        of a storage record.
        """
        if name in RESERVED_TYPES:
            raise EventError(
                f"{name!r} is the tag of a storage record; choose another event type",
                code="RESERVED_TYPE",
                type=name,
            )
        if not ignorable and not self.knows(name):
            raise EventError(
                f"the event type {name!r} is unknown and the event is not marked ignorable; register it "
                f"with turnlog.vocabulary.register_event_type({name!r}, ...) or append with ignorable=True",
                code="UNKNOWN_EVENT_TYPE",
                type=name,
            )

    def check_payload(self, name: str, data: Any) -> EventType | None:
        """Raise `EventError` when the payload, plain JSON, breaks the rule of its type.

        Returns what a program registered under the name.
        """
        if name in _PAYLOAD_CHECKS:
            _PAYLOAD_CHECKS[name](data)
        elif name in self._own:
            self.convert(name, data)
            return self._own[name]
        return None

    def convert(self, name: str, data: Any) -> Any:
        """The payload as the registered Python type; the data itself for types without one."""
        kind = self._own.get(name)
        if kind is None or kind.payload is None:
            return data
        try:
            return msgspec.convert(data, kind.payload)
        except msgspec.ValidationError as error:
            raise EventError(f"{name}: {error}", code="INVALID_PAYLOAD", type=name) from error


def _refuse_retired(name: str) -> Callable[[Any], None]:
    def refuse(data: Any) -> None:
        raise EventError(
            f"the event type {name!r} is retired; no upgrade exists", code="RETIRED_EVENT"
        )

    return refuse


_PAYLOAD_CHECKS: dict[str, Callable[[Any], None]] = {
    "user/message": check_user_message,
    "assistant/message": check_assistant_message,
    "tool/result": check_tool_result,
    "request/header": check_request_header,
    **{name: _refuse_retired(name) for name in RETIRED_TYPES},
}

EVENT_TYPES = EventTypes()
"""The registry of the process, used wherever none is given."""


def register_event_type(
    name: str,
    *,
    payload: Any = None,
    ignorable: bool = False,
    check: RelationalCheck | None = None,
) -> EventType:
    """Add a type to the registry of the process; see `EventTypes.register`."""
    return EVENT_TYPES.register(name, payload=payload, ignorable=ignorable, check=check)
