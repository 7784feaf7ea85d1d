"""turnlog: an event-sourced session log for LLM agents.

A session is an append-only log of typed events; the messages sent to a model are derived from it through an
ordered surface; compaction shadows and never deletes. Start at `turnlog.open`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from turnlog._version import __version__
from turnlog.errors import TurnlogError
from turnlog.events import SessionEvent
from turnlog.header import SessionHeader
from turnlog.messages import assistant_message, tool_result_message, user_message
from turnlog.session import Session
from turnlog.store import SessionStore

if TYPE_CHECKING:
    from turnlog.aio import aopen
    from turnlog.log import Turnlog, open  # noqa: A004 - `turnlog.open`, as `gzip.open`

__all__ = [
    "Session",
    "SessionEvent",
    "SessionHeader",
    "SessionStore",
    "Turnlog",
    "TurnlogError",
    "__version__",
    "aopen",
    "assistant_message",
    "open",
    "tool_result_message",
    "user_message",
]

_LAZY = {"aopen": "turnlog.aio", "open": "turnlog.log", "Turnlog": "turnlog.log"}


def __getattr__(name: str) -> Any:
    """Load what pulls in the storages only when it is asked for."""
    if name in _LAZY:
        from importlib import import_module

        value = getattr(import_module(_LAZY[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'turnlog' has no attribute {name!r}")
