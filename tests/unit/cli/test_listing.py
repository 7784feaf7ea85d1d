"""`ls` over both kinds of store: pages, orders, filters, trees, and what cannot be read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import turnlog
from turnlog.engine.listing import Notes
from turnlog.query.corpus import SessionQuery
from turnlog.testing.builders import START, header_of, log_text, place_log, talk_events

Run = Callable[..., Any]

EVENTS = talk_events(1)


def add(store: Path, id: str, minutes: int = 0, *, length: int = 3, **fields: Any) -> None:
    """A session that began so many minutes after the others; fewer events make it older by activity."""
    with turnlog.open(store) as log:
        created = START + minutes * 60_000
        log.import_session(header_of(id, createdAt=created, **fields), EVENTS[:length])


def note(store: Path, id: str, *tags: str, archived: bool = False) -> None:
    with turnlog.open(store) as log:
        log.storage.set_notes(id, Notes(tags, archived))


def listed(run: Run, *arguments: object) -> list[str]:
    return [entry["id"] for entry in run("--json", "ls", *arguments).json["sessions"]]


def test_pages_go_on_where_the_last_one_ended(run: Run, any_store: Path) -> None:
    for number in range(5):
        add(any_store, f"s{number}", number)
    first = run("--json", "ls", "--limit", 2).json
    assert [entry["id"] for entry in first["sessions"]] == ["s4", "s3"]
    assert (first["total"], first["left"]) == (5, 3)
    add(any_store, "s9", 9)  # what comes in between is on no later page
    second = run("--json", "ls", "--limit", 2, "--cursor", first["nextCursor"]).json
    assert [entry["id"] for entry in second["sessions"]] == ["s2", "s1"]
    last = run("--json", "ls", "--limit", 2, "--cursor", second["nextCursor"]).json
    assert [entry["id"] for entry in last["sessions"]] == ["s0"]
    assert (last["nextCursor"], last["left"]) == (None, 0)
    assert f"--cursor {first['nextCursor']}"[:20] in run("ls", "--limit", 2).out


def test_a_cursor_that_is_none_is_a_plain_error(run: Run, any_store: Path) -> None:
    add(any_store, "s")
    result = run("ls", "--cursor", "\x1b[2J")
    assert (result.code, result.out) == (1, "")
    assert result.err.count("\n") == 1
    created = run("--json", "ls").json
    assert created["nextCursor"] is None
    assert run("ls", "--tree", "--cursor", "x").code == 2


def test_the_order_is_by_creation_or_by_activity(run: Run, any_store: Path) -> None:
    add(any_store, "early-but-busy", 0, length=9)
    add(any_store, "late-but-idle", 1, length=1)
    assert listed(run) == ["late-but-idle", "early-but-busy"]
    assert listed(run, "--order", "active") == ["early-but-busy", "late-but-idle"]
    assert "ACTIVE (UTC)" in run("ls", "--order", "active").out
    entry = run("--json", "ls", "--order", "active").json["sessions"][0]
    assert (entry["events"], entry["lastActive"]) == (9, EVENTS[8].time)
    assert entry["openTurn"] is True


def test_filters_by_directory_tag_and_archive(
    run: Run, any_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(any_store, "here", cwd=str(tmp_path))
    add(any_store, "windows", cwd="C:\\work")
    add(any_store, "tagged")
    add(any_store, "old")
    note(any_store, "tagged", "wip", "ui")
    note(any_store, "old", "wip", archived=True)
    monkeypatch.chdir(tmp_path)
    assert listed(run, "--cwd", tmp_path) == listed(run, "--cwd", ".") == ["here"]
    assert listed(run, "--cwd", "C:\\work") == ["windows"]
    assert listed(run, "--tag", "wip") == ["tagged"]
    assert listed(run, "--tag", "wip", "--all") == ["old", "tagged"]
    assert listed(run, "--archived") == ["old"]
    assert sorted(listed(run, "--all")) == ["here", "old", "tagged", "windows"]
    plain = run("ls")
    assert "1 archived session left out" in plain.out
    assert "hi 界😀 [wip, ui]" in plain.out
    assert "[wip] (archived)" in run("ls", "--archived").out
    assert run("ls", "--tag", "none").out.startswith("no session matches\n")


def test_a_tree_shows_forks_under_their_parents(run: Run, any_store: Path) -> None:
    add(any_store, "root", 0, length=len(EVENTS))
    add(any_store, "other", 9)
    with turnlog.open(any_store) as log:
        for parent, child in (("root", "a"), ("a", "aa"), ("root", "b")):
            log.fork(parent, child_id=child).flush()
    add(any_store, "lost", 10, parentSession="gone", seedLength=2)
    add(any_store, "sub", 11, parentSession="other", origin="subagent")
    listing = run("--json", "ls", "--tree").json
    depths = [(entry["depth"], entry["id"]) for entry in listing["sessions"]]
    assert depths[:4] == [(0, "lost"), (0, "other"), (1, "sub"), (0, "root")]
    assert sorted(depths[4:]) == [(1, "a"), (1, "b"), (2, "aa")]
    assert depths.index((2, "aa")) == depths.index((1, "a")) + 1
    text = run("ls", "--tree").out
    assert "\n    aa " in text
    assert "after seq 1 of gone" in text
    assert "subagent" in text
    assert f"after seq {len(EVENTS) - 1}" in text
    # A limit counts roots, and never tears a tree.
    short = run("--json", "ls", "--tree", "--limit", 2).json
    assert [entry["id"] for entry in short["sessions"]] == ["lost", "other", "sub"]
    assert short["left"] == 4


def test_titles_cost_no_look_at_a_log_that_has_one(
    run: Run, any_store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("import", "--examples").code == 0
    for number, name in enumerate(("new", "newer")):
        # Later than the examples.
        add(any_store, name, minutes=2_000_000 + number, length=3)
    run("ls")
    read = []
    plain = SessionQuery.read_session

    def noting(self: SessionQuery, id: str, **options: Any) -> Any:
        read.append(id)
        return plain(self, id, **options)

    monkeypatch.setattr(SessionQuery, "read_session", noting)
    assert run("ls", "--limit", 1).code == 0
    assert read == ["newer"]
    assert "hi 界😀" in run("ls").out
    assert read == ["newer", "newer", "new"]
    run("ls", "--no-titles")
    assert len(read) == 3


def test_a_damaged_log_keeps_its_place_in_every_view(run: Run, store: Path) -> None:
    add(store, "good", 1)
    header = header_of("bad", createdAt=START + 2 * 60_000)
    broken = log_text(EVENTS, header).replace(b'"step/start"', b'"step/sta', 1)
    place_log(store, broken, "bad")
    for arguments in ((), ("--tree",), ("--order", "active"), ("--no-titles",), ("--limit", 1)):
        entries = run("--json", "ls", *arguments).json["sessions"]
        entry = next(entry for entry in entries if entry["id"] == "bad")
        assert entry["code"] == "CORRUPT_LOG"
        assert "(damaged: " in run("ls", *arguments).out
    assert listed(run, "--tag", "x") == []


def test_an_empty_database_is_not_created_by_looking(run: Run, tmp_path: Path) -> None:
    target = tmp_path / "none.db"
    assert f"no sessions in {target}" in run("--store", target, "ls").out
    assert not target.exists()
