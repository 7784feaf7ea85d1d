"""Rows of the sessions table: how texts are stored, and what reading and writing need of a session."""

from __future__ import annotations

import sqlite3
from typing import NamedTuple, overload

from turnlog.errors import CorruptLogError, JsonValueError
from turnlog.header import SessionHeader
from turnlog.lossless import parse_json


class SessionRow(NamedTuple):
    """A session's own columns that reading and writing need; see `schema` for their meaning."""

    key: int
    header: bytes
    next_seq: int
    revision: int
    fence: int
    base_key: int | None
    base_stop: int


_SELECT = f"SELECT {', '.join(SessionRow._fields)} FROM sessions"


def find_session(connection: sqlite3.Connection, id: str) -> SessionRow | None:
    """The session of that id, unless it was deleted."""
    row = connection.execute(f"{_SELECT} WHERE id = ? AND NOT deleted", (to_bytes(id),)).fetchone()
    return None if row is None else SessionRow(*row)


def base_of(connection: sqlite3.Connection, row: SessionRow) -> SessionRow | None:
    """The session whose first events a session shares, deleted or not; `CorruptLogError` when it is not there."""
    if row.base_key is None:
        return None
    base = connection.execute(f"{_SELECT} WHERE key = ?", (row.base_key,)).fetchone()
    # A fork is always younger than what it shares; that ends every chain.
    if base is None or row.base_key >= row.key:
        raise CorruptLogError(
            "the session shares events with one that is not there", code="CORRUPT_LOG"
        )
    return SessionRow(*base)


@overload
def to_bytes(text: str) -> bytes: ...


@overload
def to_bytes(text: None) -> None: ...


@overload
def to_bytes(text: str | None) -> bytes | None: ...


def to_bytes(text: str | None) -> bytes | None:
    """A text as it is stored: UTF-8 in which lone surrogates survive."""
    return None if text is None else text.encode("utf-8", "surrogatepass")


def to_text(data: bytes) -> str:
    """The inverse of `to_bytes`."""
    return data.decode("utf-8", "surrogatepass")


def parse_header(text: bytes) -> SessionHeader:
    """The header of its stored text; `CorruptLogError` or `HeaderError` when it is damaged."""
    if not isinstance(text, bytes):
        raise CorruptLogError("a stored header is no bytes", code="CORRUPT_HEADER")
    try:
        wire = parse_json(text)
    except JsonValueError as error:
        raise CorruptLogError(
            f"a stored header is damaged: {error}", code="CORRUPT_HEADER"
        ) from error
    if not isinstance(wire, dict):
        raise CorruptLogError("a stored header is damaged", code="CORRUPT_HEADER")
    return SessionHeader.from_dict(wire)
