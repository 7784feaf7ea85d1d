"""Session ids as people type them: whole, or a prefix that only one session has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from turnlog.errors import SessionNotFoundError

if TYPE_CHECKING:
    from turnlog.log import Turnlog

_SHOWN = 5


def resolve_id(log: Turnlog, text: str) -> str:
    """The id that the text names. A whole id is looked up without a look at any other session.

    Raises `SessionNotFoundError` (`SESSION_NOT_FOUND`, or `AMBIGUOUS_ID` for a prefix of several), with up
    to five `candidates`.
    """
    if log.query.has(text):
        return text
    records = log.query.list_sessions(damaged=True)
    ids = [record.header.id for record in records if record.header is not None]
    found = [known for known in ids if known.startswith(text)]
    if len(found) == 1:
        return found[0]
    if found:
        raise SessionNotFoundError(
            f"{text!r} is the beginning of {len(found)} session ids: {_some(found)}",
            code="AMBIGUOUS_ID",
            session_id=text,
            candidates=found[:_SHOWN],
        )
    near = [known for known in ids if text.lower() in known.lower()] or ids
    damaged = len(records) - len(ids)
    raise SessionNotFoundError(
        f"no session {text!r}; "
        + (f"there is {_some(near)}" if near else "the store holds none")
        + (f" (and {damaged} damaged: `turnlog ls --damaged`)" if damaged else ""),
        session_id=text,
        candidates=near[:_SHOWN],
    )


def _some(ids: list[str]) -> str:
    more = len(ids) - _SHOWN
    return ", ".join(ids[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
