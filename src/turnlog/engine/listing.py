"""Listing: what can be said of a stored session without reading its log, filtered and paged.

Pages are cut by key, not by offset: a cursor names the last entry that was seen, so sessions that come or go
in between neither repeat nor hide others. The order is total: by time, newest first, then by id.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec

from turnlog.errors import StorageError
from turnlog.events import SessionEvent
from turnlog.header import SessionHeader
from turnlog.lossless import is_safe_integer

Order = Literal["created", "active"]
"""By `createdAt`, or by the time of the last event."""


class Notes(msgspec.Struct, frozen=True):
    """What people note about a session; no log events, and writable without its lease."""

    tags: tuple[str, ...] = ()
    archived: bool = False


class Progress(msgspec.Struct, frozen=True):
    """What a log's events say about it at a glance. `last_time`: Unix milliseconds of the last event.

    The last by seq, whatever clocks did: what a log's end alone decides, however it was written.
    """

    events: int = 0
    last_time: int = 0
    title: str | None = None
    open_turn: bool = False

    def advance(self, events: Iterable[SessionEvent]) -> Progress:
        """The same after more events."""
        count, time, title, open_turn = self.events, self.last_time, self.title, self.open_turn
        for event in events:
            count += 1
            time = event.time
            if event.type == "turn/start":
                open_turn = True
            elif event.type == "turn/end":
                open_turn = False
            elif event.type == "session/title" and isinstance(event.data, dict):
                text = event.data.get("title")
                title = text if isinstance(text, str) else title
        return Progress(count, time, title, open_turn)


class SessionInfo(msgspec.Struct, frozen=True):
    """One session of a page."""

    header: SessionHeader
    location: str
    progress: Progress
    notes: Notes = Notes()


class SessionFilter(msgspec.Struct, frozen=True):
    """Which sessions to list; None and False leave a condition out.

    `title`: case-insensitive substring. `open_turn`: sessions whose last turn is (not) open. `archived`: archived
    ones only, True; all, None; by default those that are not. Times: Unix milliseconds, from (inclusive) and
    until (exclusive).
    """

    cwd: str | None = None
    parent: str | None = None
    title: str | None = None
    tag: str | None = None
    open_turn: bool | None = None
    archived: bool | None = False
    created_from: int | None = None
    created_until: int | None = None
    active_from: int | None = None
    active_until: int | None = None

    def admits(self, info: SessionInfo) -> bool:
        """Whether the session is wanted."""
        header, progress, notes = info.header, info.progress, info.notes
        title = progress.title or ""
        return (
            (self.cwd is None or header.cwd == self.cwd)
            and (self.parent is None or header.parent_session == self.parent)
            and (self.title is None or self.title.casefold() in title.casefold())
            and (self.tag is None or self.tag in notes.tags)
            and (self.open_turn is None or progress.open_turn == self.open_turn)
            and (self.archived is None or notes.archived == self.archived)
            and _within(header.created_at, self.created_from, self.created_until)
            and _within(progress.last_time, self.active_from, self.active_until)
        )


def _within(time: int, start: int | None, end: int | None) -> bool:
    return (start is None or time >= start) and (end is None or time < end)


class Page(msgspec.Struct, frozen=True):
    """Some sessions in order, and the cursor of the next page, or None at the end."""

    sessions: Sequence[SessionInfo]
    next_cursor: str | None


def sort_key(info: SessionInfo, order: Order) -> tuple[int, str]:
    """What an entry is ordered by: newest first, then by id."""
    time = info.header.created_at if order == "created" else info.progress.last_time
    return (-time, info.header.id)


def encode_cursor(order: Order, key: tuple[int, str]) -> str:
    """The opaque text of a place in a listing."""
    return base64.urlsafe_b64encode(json.dumps([order, *key]).encode()).decode().rstrip("=")


def decode_cursor(cursor: str, order: Order) -> tuple[int, str]:
    """The place that a cursor of the same order names; `StorageError` (`INVALID_CURSOR`) for any other text."""
    try:
        value: Any = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
    except (ValueError, RecursionError):
        value = None
    if isinstance(value, list) and len(value) == 3 and value[0] == order:
        time, name = value[1:]
        if is_safe_integer(time) and isinstance(name, str):
            return time, name
    raise StorageError("the cursor is none of this listing's", code="INVALID_CURSOR")


def check_limit(limit: int) -> None:
    """Raise `StorageError` (`INVALID_LIMIT`) unless a page may have that many entries."""
    if not is_safe_integer(limit) or limit < 1:
        raise StorageError(f"a page has 1 entry or more, not {limit!r}", code="INVALID_LIMIT")


def page_of(
    infos: Iterable[SessionInfo],
    wanted: SessionFilter,
    *,
    order: Order,
    cursor: str | None,
    limit: int,
) -> Page:
    """A page of entries that are all in memory."""
    check_limit(limit)
    start = None if cursor is None else decode_cursor(cursor, order)
    keyed = [(sort_key(info, order), info) for info in infos if wanted.admits(info)]
    keyed.sort(key=lambda pair: pair[0])
    if start is not None:
        keyed = [pair for pair in keyed if pair[0] > start]
    page = keyed[:limit]
    more = encode_cursor(order, page[-1][0]) if len(keyed) > limit and page else None
    return Page([info for _, info in page], more)
