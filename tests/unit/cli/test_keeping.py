"""`title`, `tag` and `rm`: what they change, what they leave alone, and what they refuse."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import turnlog
from turnlog.engine.listing import Notes
from turnlog.log import Turnlog
from turnlog.storage.jsonl import JsonlStorage
from turnlog.testing.builders import header_of, log_text, open_events, place_log, talk_events

Run = Callable[..., Any]

EVENTS = talk_events(1)
DAY_MS = 86_400_000


def add(store: Path, *ids: str, **fields: Any) -> None:
    with turnlog.open(store) as log:
        for id_ in ids:
            log.import_session(header_of(id_, **fields), EVENTS)


def ids(store: Path) -> list[str]:
    with turnlog.open(store) as log:
        records = log.query.list_sessions(damaged=True)
        return sorted(record.header.id if record.header else "?" for record in records)


def quote(log: Turnlog, reader: str, source: str) -> None:
    with log.create(id=reader) as session:
        references = [{"sessionId": source, "label": "x"}]
        origin = {"kind": "session-reference", "references": references}
        session.append_message(turnlog.user_message("look", source=origin))


# -- title ---------------------------------------------------------------------------------------------


def test_a_title_is_one_event_and_the_latest_counts(run: Run, any_store: Path) -> None:
    add(any_store, "s")
    untitled = run("title", "s")
    assert (untitled.code, untitled.out) == (0, "")
    assert untitled.err == "turnlog: session s has no title\n"
    assert run("title", "s", "First").out == "First\n"
    assert run("--json", "title", "s", "Second 世界").json == {"id": "s", "title": "Second 世界"}
    assert run("title", "s").out == "Second 世界\n"
    with turnlog.open(any_store) as log:
        events = log.storage.inspect("s").log.view()[len(EVENTS) :]
    assert [event.type for event in events] == ["session/title"] * 2
    assert events[0].data == {
        "title": "First",
        "messageSeqs": [],
        "source": {"kind": "user"},
    }
    assert "Second 世界" in run("ls").out


def test_a_title_leaves_an_open_turn_open(run: Run, any_store: Path) -> None:
    with turnlog.open(any_store) as log:
        log.import_session(header_of(), open_events())
    assert run("title", "s1", "Named").code == 0
    assert run("--json", "ls").json["sessions"][0]["openTurn"] is True
    assert run("verify").code == 0


@pytest.mark.parametrize(
    "arguments", [("title", "s", "x"), ("rm", "s", "--force"), ("repair", "s")]
)
def test_what_writes_is_refused_while_another_has_the_lease(
    run: Run, any_store: Path, arguments: tuple[str, ...]
) -> None:
    with turnlog.open(any_store) as log:
        log.import_session(header_of("s"), open_events())
        with log.resume("s", repair=False):
            result = run(*arguments)
            assert (result.code, result.out) == (1, "")
            assert "is open for writing by process" in result.err
            assert run("tag", "s", "--add", "noted").code == 0
            assert run("title", "s").code == 0
    assert run(*arguments).code == 0


# -- tag -----------------------------------------------------------------------------------------------


def test_tags_are_added_once_and_removed(run: Run, any_store: Path) -> None:
    add(any_store, "s")
    assert run("tag", "s") == (0, "", "")
    assert run("tag", "s", "--add", "b", "--add", "a", "--add", "b").out == "b\na\n"
    assert run("tag", "s", "--add", "a", "--remove", "b", "--remove", "none").out == "a\n"
    assert run("tag", "s", "--archive").out == "a\n(archived)\n"
    assert run("--json", "tag", "s").json == {"id": "s", "tags": ["a"], "archived": True}
    assert run("--json", "tag", "s", "--unarchive").json["archived"] is False
    with turnlog.open(any_store) as log:
        assert len(log.storage.inspect("s").log) == len(EVENTS)


def test_hostile_tags_of_others_are_shown_escaped(run: Run, any_store: Path) -> None:
    add(any_store, "s")
    hostile = "x\x1b[2J\n\u202e"
    with turnlog.open(any_store) as log:
        log.storage.set_notes("s", Notes((hostile,)))
    for result in (run("tag", "s"), run("ls"), run("ls", "--all")):
        assert "\x1b" not in result.out
        assert "\u202e" not in result.out
    assert run("--json", "tag", "s").json["tags"] == [hostile]
    assert run("tag", "s", "--remove", hostile) == (0, "", "")


# -- rm ------------------------------------------------------------------------------------------------


def test_rm_removes_what_is_named_and_nothing_else(run: Run, any_store: Path) -> None:
    add(any_store, "first", "second", "third")
    result = run("rm", "first", "sec", "first")
    assert result.code == 0
    assert sorted(result.out.splitlines()) == ["removed  first", "removed  second"]
    assert ids(any_store) == ["third"]


def test_after_a_mistyped_id_nothing_is_removed(run: Run, any_store: Path) -> None:
    add(any_store, "first", "second")
    assert run("rm", "first", "nobody").code == 1
    assert ids(any_store) == ["first", "second"]


def test_a_dry_run_removes_nothing(run: Run, any_store: Path) -> None:
    add(any_store, "first")
    assert run("rm", "first", "--dry-run").out == "would be removed  first\n"
    assert run("--json", "rm", "first", "--dry-run").json == {
        "id": "first",
        "status": "would-be-removed",
    }
    assert ids(any_store) == ["first"]


def test_what_others_need_is_kept_and_they_are_named(run: Run, any_store: Path) -> None:
    add(any_store, "source")
    with turnlog.open(any_store) as log:
        log.fork("source", child_id="fork").flush()
        quote(log, "reader", "source")
    result = run("rm", "source")
    assert (result.code, result.out) == (1, "")
    assert "forked into fork" in result.err
    assert "quoted by reader" in result.err
    error = run("--json", "rm", "source").json["error"]
    assert error["code"] == "HAS_DEPENDENTS"
    assert (error["children"], error["quoted_by"]) == (["fork"], ["reader"])
    history = run("messages", "fork").json
    assert run("rm", "source", "--force").out == "removed  source  (still there: fork, reader)\n"
    assert ids(any_store) == ["fork", "reader"]
    assert run("messages", "fork").json == history
    assert run("verify").code == 0


def test_a_family_goes_together_whatever_the_order(run: Run, any_store: Path) -> None:
    add(any_store, "root")
    with turnlog.open(any_store) as log:
        for parent, child in (("root", "a"), ("a", "aa"), ("root", "b")):
            log.fork(parent, child_id=child).flush()
    assert run("rm", "root", "a", "b").code == 1  # `aa` needs `a`, and `a` needs `root`
    assert ids(any_store) == ["a", "aa", "root"]
    assert run("rm", "root", "aa", "a").code == 0
    assert ids(any_store) == []


def test_a_damaged_session_can_be_removed_by_name(run: Run, store: Path) -> None:
    place_log(store, b"", "bad")
    place_log(store, log_text(EVENTS, header_of("half"))[:-40] + b"\n{}\n", "half")
    assert run("rm", "bad", "half").code == 0
    assert ids(store) == []


def test_by_age_only_what_is_idle_goes(run: Run, any_store: Path) -> None:
    now = int(time.time() * 1000)
    with turnlog.open(any_store, clock=lambda: now - 40 * DAY_MS) as log:
        for name in ("idle", "noted", "open", "parent"):
            log.create(id=name).append_user("x")
        log.flush()
    with turnlog.open(any_store) as log:
        log.create(id="young").append_user("x")
        log.fork("parent", child_id="child").append_user("y")
    assert run("tag", "noted", "--archive").code == 0
    with turnlog.open(any_store) as log:
        lease = log.storage.acquire("open")
        dry = run("rm", "--older-than", "30d", "--dry-run")
        assert sorted(dry.out.splitlines()[:-1]) == [
            "would be removed  idle",
            "would be removed  noted",
        ]
        result = run("rm", "--older-than", "30d")
        lease.release()
    assert result.code == 0
    assert result.out.splitlines()[-1] == "2 sessions removed, 2 kept"
    assert "kept open: " in result.err
    assert "kept parent: it was forked into child" in result.err
    assert "error" not in result.err
    assert ids(any_store) == ["child", "open", "parent", "young"]
    assert run("rm", "--older-than", "60d").out == "0 sessions removed, 0 kept\n"
    assert run("rm", "--older-than", "6w").out == "0 sessions removed, 0 kept\n"


def test_what_is_written_to_meanwhile_is_not_removed_by_age(
    run: Run, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(store, "s")
    revisions = iter(["before", "after"])
    monkeypatch.setattr(JsonlStorage, "revision", lambda *_: next(revisions))
    result = run("rm", "--older-than", "1d")
    assert result.code == 0
    assert "kept s: it was written to just now" in result.err
    monkeypatch.undo()
    assert next(store.glob("*/s/session.jsonl"))


def test_what_cannot_be_read_is_not_removed_by_age(run: Run, any_store: Path) -> None:
    add(any_store, "good", "bad")
    damage(any_store, "bad")
    result = run("rm", "--older-than", "1d")
    assert ids(any_store) == ["bad"]
    assert result.out.startswith("removed  good\n")


def damage(store: Path, id: str) -> None:
    """Make a stored log unreadable behind its header."""
    if store.is_dir():
        path = next(store.glob(f"*/{id}/session.jsonl"))
        path.write_bytes(path.read_bytes().replace(b'"step/start"', b'"step/sta', 1))
        return
    connection = sqlite3.connect(store)
    with connection:
        connection.execute(
            "UPDATE batches SET body = x'7b0a' WHERE place >> 32 = (SELECT key FROM sessions WHERE id = ?)",
            (id.encode(),),
        )
    connection.close()
