"""Progress, filters and cursors by themselves; the storages' own listings are in the conformance suite."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnlog.engine.listing import (
    Notes,
    Page,
    Progress,
    SessionFilter,
    SessionInfo,
    decode_cursor,
    encode_cursor,
    page_of,
    sort_key,
)
from turnlog.errors import StorageError
from turnlog.testing.builders import EventBuilder, header_of


def info(id: str, created: int = 0, last: int = 0, **notes: Any) -> SessionInfo:
    header = header_of(id, createdAt=created)
    return SessionInfo(header, "here", Progress(1, last), Notes(**notes))


@given(st.text(st.characters(codec=None)), st.integers(-(2**53) + 1, 2**53 - 1))
def test_a_cursor_comes_back_as_its_place(id: str, time: int) -> None:
    cursor = encode_cursor("active", (time, id))
    assert cursor.isascii()
    assert "=" not in cursor
    assert decode_cursor(cursor, "active") == (time, id)
    with pytest.raises(StorageError):
        decode_cursor(cursor, "created")


@given(st.text(max_size=60) | st.binary(max_size=60).map(lambda data: data.decode("latin-1")))
def test_any_other_text_is_no_cursor(text: str) -> None:
    with pytest.raises(StorageError) as caught:
        decode_cursor(text, "created")
    assert caught.value.code == "INVALID_CURSOR"


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=12).map(
        lambda times: [info(f"s{n}", a, b) for n, (a, b) in enumerate(times)]
    ),
    st.integers(1, 5),
    st.sampled_from(["created", "active"]),
)
def test_pages_together_are_the_whole(infos: list[SessionInfo], limit: int, order: Any) -> None:
    found: list[SessionInfo] = []
    cursor, pages = None, 0
    while pages == 0 or cursor is not None:
        page: Page = page_of(infos, SessionFilter(), order=order, cursor=cursor, limit=limit)
        assert len(page.sessions) <= limit
        found += page.sessions
        cursor, pages = page.next_cursor, pages + 1
    assert found == sorted(infos, key=lambda one: sort_key(one, order))
    assert pages == max(1, -(-len(infos) // limit))


def test_progress_is_the_same_in_one_go_and_in_steps() -> None:
    builder = EventBuilder().talk().add("session/title", {"title": "a"}).start_turn()
    builder.add("session/title", {"title": 7}).add("session/title", None, time=3)
    progress = Progress()
    for event in builder.events:
        progress = progress.advance([event])
    assert progress == Progress().advance(builder.events)
    assert progress == Progress(len(builder.events), 3, "a", open_turn=True)


def test_bounds_are_from_inclusive_until_exclusive() -> None:
    one = info("a", created=5, last=7)
    for fields, admitted in [
        ({"created_from": 5}, True),
        ({"created_from": 6}, False),
        ({"created_until": 5}, False),
        ({"created_until": 6}, True),
        ({"active_from": 7}, True),
        ({"active_until": 7}, False),
        ({"created_from": 0, "created_until": 0}, False),
    ]:
        assert SessionFilter(**fields).admits(one) is admitted  # type: ignore[arg-type]
