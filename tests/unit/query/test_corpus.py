"""The corpus: live and stored sessions as one, damaged ones apart."""

from __future__ import annotations

from pathlib import Path

import pytest

import turnlog
from turnlog.errors import StorageError
from turnlog.testing.builders import header_of, log_frames, log_text, place_log, talk_events

EVENTS = talk_events(1)


def placed(root: Path, id_: str, created_at: int) -> Path:
    return place_log(root, log_text(EVENTS, header_of(id_, createdAt=created_at)), id=id_)


def test_sessions_are_listed_newest_first_then_by_id(tmp_path: Path) -> None:
    for id_, age in (("b", 5), ("a", 5), ("old", 1), ("new", 9)):
        placed(tmp_path, id_, age)
    with turnlog.open(tmp_path, clock=lambda: 7) as log:
        live = log.create(id="live")
        listed = log.query.list_sessions()
        ids = [record.header.id for record in listed if record.header]
        assert ids == ["new", "live", "a", "b", "old"]
        assert [record.live for record in listed] == [False, True, False, False, False]
        assert listed[1].header is live.header


def test_damaged_sessions_are_left_out_or_last(tmp_path: Path) -> None:
    placed(tmp_path, "good", 1)
    bad = [
        place_log(tmp_path, data, id=f"bad{number}") for number, data in enumerate((b"", b"null\n"))
    ]
    with turnlog.open(tmp_path) as log:
        assert len(log.query.list_sessions()) == 1
        listed = log.query.list_sessions(damaged=True)
        assert [record.location for record in listed[1:]] == list(map(str, bad))
        assert all(record.header is None and record.damage for record in listed[1:])
        assert [record.code for record in listed] == ["", "CORRUPT_HEADER", "CORRUPT_HEADER"]


def test_has_knows_live_stored_and_damaged_sessions(tmp_path: Path) -> None:
    placed(tmp_path, "stored", 1)
    place_log(tmp_path, b"\0", id="damaged")
    placed(tmp_path, "twice", 1)
    place_log(tmp_path, log_frames([EVENTS], header_of("twice")), id="twice", encoding="zstd")
    with turnlog.open(tmp_path) as log:
        log.create(id="live")
        for id_ in ("stored", "damaged", "twice", "live"):
            assert log.query.has(id_)
        assert not log.query.has("nobody")
        with pytest.raises(StorageError):
            log.query.has("x" * 300)


def test_a_read_session_is_detached(tmp_path: Path) -> None:
    path = placed(tmp_path, "s1", 1)
    before = path.read_bytes()
    with turnlog.open(tmp_path) as log:
        session = log.query.read_session("s1")
        session.append_user("only here")
        assert not session.is_durable
        assert len(log.query.read_session("s1").events) == len(EVENTS) + 1
        assert log.query.read_surface("s1").nodes == log.storage.inspect("s1").surface.nodes
        live = log.create(id="live")
        copy = log.query.read_session("live")
        copy.append_user("only there")
        assert live.seq == 0
    assert path.read_bytes() == before


def test_salvage_reads_what_no_load_does(tmp_path: Path) -> None:
    place_log(tmp_path, log_text(EVENTS).replace(b'"role"', b'"rule"', 1))
    with turnlog.open(tmp_path) as log:
        with pytest.raises(StorageError):
            log.query.read_session("s1")
        assert len(log.query.salvage("s1").events) == len(EVENTS)


def test_dependents_are_forks_and_readers_whatever_sources_hold(tmp_path: Path) -> None:
    for number, references in enumerate([[{"sessionId": "s"}], 5, [7, {}, {"sessionId": 3}], None]):
        origin = {"kind": "session-reference", "references": references}
        with turnlog.open(tmp_path) as log, log.create(id=f"r{number}") as session:
            session.append_message(turnlog.user_message("x", source=origin))
    placed(tmp_path, "s", 1)
    place_log(tmp_path, b"", id="bad")
    with turnlog.open(tmp_path) as log:
        log.fork("s", child_id="child").flush()
        assert log.query.find_dependents("s") == (["child"], ["r0"])
        assert log.query.find_dependents("child") == ([], [])
        assert list(log.query.map_dependents()) == ["s"]
