"""Browsing a database: a filter, an order and a cursor as one query over the sessions table.

Conditions are column comparisons with bound values; nothing of a session or of a caller enters the SQL text.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from typing import Any

from turnlog.engine.listing import (
    Notes,
    Order,
    Page,
    Progress,
    SessionFilter,
    SessionInfo,
    check_limit,
    decode_cursor,
    encode_cursor,
    sort_key,
)
from turnlog.errors import TurnlogError
from turnlog.lossless import SAFE_INTEGER
from turnlog.storage.sqlite.rows import parse_header, to_bytes, to_text

_COLUMNS = "id, header, last_time, next_seq, title, open_turn, tags, archived"
_TIME_COLUMN = {"created": "created_at", "active": "last_time"}


def browse(
    connection: sqlite3.Connection,
    path: str,
    wanted: SessionFilter,
    *,
    order: Order,
    cursor: str | None,
    limit: int,
) -> Page:
    """One page of the sessions that the filter admits."""
    check_limit(limit)
    found: list[SessionInfo] = []
    for info in _rows(connection, path, wanted, order, cursor):
        if len(found) == limit:
            return Page(found, encode_cursor(order, sort_key(found[-1], order)))
        if wanted.admits(info):
            found.append(info)
    return Page(found, None)


def _rows(
    connection: sqlite3.Connection,
    path: str,
    wanted: SessionFilter,
    order: Order,
    cursor: str | None,
) -> Iterator[SessionInfo]:
    column = _TIME_COLUMN[order]
    conditions, values = _conditions(wanted)
    if cursor is not None:
        time, name = decode_cursor(cursor, order)
        conditions.append(f"({column} < ? OR ({column} = ? AND id > ?))")
        values += [-time, -time, to_bytes(name)]
    where = " AND ".join(["NOT deleted", *conditions])
    query = f"SELECT {_COLUMNS} FROM sessions WHERE {where} ORDER BY {column} DESC, id"
    for row in connection.execute(query, values):
        try:
            yield _info(path, row)
        except (TurnlogError, ValueError, TypeError):
            continue  # a damaged row: `list` reports it


def _conditions(wanted: SessionFilter) -> tuple[list[str], list[Any]]:
    """What the table's own columns can decide; titles and tags are left to the filter itself."""
    pairs: list[tuple[str, Any]] = [
        ("cwd = ?", to_bytes(wanted.cwd)),
        ("parent = ?", to_bytes(wanted.parent)),
        ("open_turn = ?", wanted.open_turn),
        ("archived = ?", wanted.archived),
        ("created_at >= ?", wanted.created_from),
        ("created_at < ?", wanted.created_until),
        ("last_time >= ?", wanted.active_from),
        ("last_time < ?", wanted.active_until),
    ]
    # Numbers that the database cannot hold are left to the filter as well.
    used = [
        (condition, value)
        for condition, value in pairs
        if value is not None and (not isinstance(value, int) or abs(value) <= SAFE_INTEGER)
    ]
    return [condition for condition, _ in used], [value for _, value in used]


def _info(path: str, row: tuple[Any, ...]) -> SessionInfo:
    name, header, last_time, next_seq, title, open_turn, tags, archived = row
    return SessionInfo(
        parse_header(header),
        f"{path}#{to_text(name)}",
        Progress(next_seq, last_time, None if title is None else to_text(title), bool(open_turn)),
        Notes(tuple(json.loads(tags)), bool(archived)),
    )
