"""`repair` and `doctor`: what they find, what they do about it, and what they leave alone."""

from __future__ import annotations

import hashlib
import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import turnlog
from turnlog.engine.blobs import BlobStore
from turnlog.testing.builders import (
    header_of,
    log_frames,
    log_text,
    open_events,
    place_log,
    talk_events,
)

Run = Callable[..., Any]

EVENTS = talk_events(3)
HOUR_MS = 3_600_000


def damaged_log(id: str = "bad") -> bytes:
    """A log whose third event is no JSON."""
    lines = log_text(EVENTS, header_of(id)).split(b"\n")
    lines[3] = lines[3][:-5]
    return b"\n".join(lines)


# -- repair --------------------------------------------------------------------------------------------


def test_repair_closes_an_open_turn_for_good(run: Run, any_store: Path) -> None:
    with turnlog.open(any_store) as log:
        log.import_session(header_of(), open_events())
    dry = run("repair", "s1", "--dry-run")
    assert dry.out.splitlines() == [
        "s1: would be repaired",
        "  turn 2 closed as interrupted: 2 tool/result, step/end, turn/end",
    ]
    assert run("--json", "ls").json["sessions"][0]["openTurn"] is True
    report = run("--json", "repair", "s1").json
    assert (report["status"], report["dryRun"], report["turn"]) == ("repaired", False, 2)
    assert [event["type"] for event in report["closed"]] == [
        "tool/result", "tool/result", "step/end", "turn/end",
    ]  # fmt: skip
    assert run("repair", "s1").out == "s1: sound\n"
    assert run("--json", "verify").json["findings"] == []
    with turnlog.open(any_store) as log:
        # Nothing but the closers: going on is another matter.
        assert len(log.storage.inspect("s1").log) == len(open_events()) + 4


def test_repair_cuts_a_torn_end_and_says_where_it_is_kept(run: Run, store: Path) -> None:
    sound = log_text(EVENTS)
    path = place_log(store, sound + b'{"type":"turn/st')
    dry = run("--json", "repair", "s1", "--dry-run").json
    assert (dry["torn"]["offset"], dry["torn"]["bytes"], dry["torn"]["kept"]) == (
        len(sound),
        16,
        None,
    )
    assert path.read_bytes() != sound
    result = run("repair", "s1")
    assert f"a torn end of 16 bytes at byte {len(sound)}" in result.out
    assert path.read_bytes() == sound
    kept = next(path.parent.glob("session.cut-*.bin"))
    assert kept.read_bytes() == b'{"type":"turn/st'
    assert f"kept in {kept}" in result.out


def test_repair_writes_whole_events_of_a_torn_frame_again(run: Run, store: Path) -> None:
    frames = log_frames([EVENTS])
    place_log(store, frames[:-3], encoding="zstd")
    report = run("--json", "repair", "s1").json
    assert report["torn"]["bytes"] > 0
    assert Path(report["torn"]["kept"]).stat().st_size == report["torn"]["bytes"]
    assert run("verify").code == 0


def test_a_damaged_log_is_refused_and_not_touched(run: Run, store: Path) -> None:
    path = place_log(store, damaged_log(), "bad")
    with turnlog.open(store) as log:
        log.import_session(header_of("open"), open_events())
    result = run("repair", "bad", "open")
    assert result.code == 1
    assert "turnlog: error: bad: " in result.err
    assert "; try --salvage" in result.err
    assert result.out.startswith("open: repaired\n")
    assert path.read_bytes() == damaged_log()
    assert run("--json", "repair", "bad").json["error"]["code"] == "CORRUPT_LOG"


def test_salvage_writes_what_is_sound_beside_it(run: Run, store: Path) -> None:
    path = place_log(store, damaged_log(), "bad")
    dry = run("--json", "repair", "bad", "--salvage", "--dry-run").json
    assert (dry["salvaged"], dry["dryRun"]) == ("bad-salvaged", True)
    assert not list(store.glob("*/bad-salvaged"))
    report = run("--json", "repair", "bad", "--salvage").json
    assert (report["status"], report["added"]) == ("salvaged", dry["added"])
    assert report["losses"][0].startswith("line 4 (byte ")
    assert path.read_bytes() == damaged_log()
    assert run("verify", "bad-salvaged").code == 0
    again = run("repair", "bad", "--salvage")
    assert again.code == 0
    assert "0 new events in bad-salvaged" in again.out
    assert "lost: line 4" in again.out


def test_salvage_of_a_sound_session_only_repairs_it(run: Run, any_store: Path) -> None:
    with turnlog.open(any_store) as log:
        log.import_session(header_of(), open_events())
    assert run("repair", "s1", "--salvage").out.startswith("s1: repaired\n")
    assert len(run("--json", "ls").json["sessions"]) == 1


def test_a_newer_format_is_not_salvaged(run: Run, store: Path) -> None:
    place_log(store, b'{"type":"session","version":7,"id":"new"}\n', "new")
    result = run("--json", "repair", "new", "--salvage")
    assert result.code == 1
    assert result.json["error"]["code"] == "NEWER_FORMAT"


def test_salvage_of_a_damaged_row_keeps_the_other_rows(run: Run, tmp_path: Path) -> None:
    target = tmp_path / "x.db"
    with turnlog.open(target) as log, log.create(id="s") as session:
        for number in range(3):
            session.append_user(f"message {number}")
            session.flush()
    connection = sqlite3.connect(target)
    with connection:
        connection.execute("UPDATE batches SET body = x'7b0a' WHERE place & 4294967295 = 1")
    connection.close()
    assert run("--store", target, "repair", "s").code == 1
    assert run("--store", target, "--json", "doctor").json["damaged"] == 1
    assert run("--store", target, "repair", "s", "--salvage").code == 0
    texts = [
        message["content"][0]["text"]
        for message in run("--store", target, "messages", "s-salvaged").json
    ]
    assert texts == ["message 0", "message 2"]


# -- doctor --------------------------------------------------------------------------------------------


def kinds(report: Any) -> dict[str, str]:
    return {concern["kind"]: concern["severity"] for concern in report["concerns"]}


def test_a_sound_store_needs_nothing(run: Run, any_store: Path) -> None:
    assert run("--json", "doctor").json["sessions"] == 0
    assert run("import", "--examples").code == 0
    result = run("--json", "doctor")
    assert result.code == 0
    report = result.json
    assert report["store"]["kind"] == ("JSONL" if any_store.is_dir() else "SQLite")
    assert report["store"]["location"] == str(any_store)
    assert (report["sessions"], report["events"], report["damaged"]) == (3, 659, 0)
    assert kinds(report) == {"open-turn": "note"}
    assert report["ok"] is True
    text = run("doctor").out
    assert "holds     3 sessions (0 archived, 0 damaged), 659 events, 0 blobs" in text
    assert text.endswith("nothing needs attention\n")


def test_doctor_of_nothing_creates_nothing(run: Run, any_store: Path) -> None:
    assert run("doctor").code == 0
    assert not any_store.exists()


def test_doctor_in_memory(run: Run) -> None:
    assert run("--store", "memory:", "doctor").code == 0


def test_doctor_finds_every_leftover_and_says_what_to_do(run: Run, store: Path) -> None:
    place_log(store, log_text(EVENTS), "s1")
    place_log(store, damaged_log(), "bad")
    place_log(store, b"", "empty")
    torn = place_log(store, log_text(EVENTS, header_of("torn")) + b"{", "torn")
    assert run("repair", "torn").code == 0
    torn.write_bytes(torn.read_bytes() + b"{")
    old = time.time() - 7200
    for name in ("session.jsonl.abc.tmp", "session.notes.json.abc.tmp"):
        torn.with_name(name).write_bytes(b"x")
        os.utime(torn.with_name(name), (old, old))
    torn.with_name("session.jsonl.new.tmp").write_bytes(b"x")
    (store / "_no-cwd" / "bare").mkdir()
    locks = store / ".locks"
    # The process that has this number is no session's: numbers end below it.
    gone = f'{{"fence":1,"pid":{2**30},"host":"{os.uname().nodename}","since":1}}'
    (locks / "gone.lock").write_text(gone)
    (locks / "empty.lock").write_text(gone)
    (locks / "elsewhere.lock").write_text('{"fence":1,"pid":1,"host":"other","since":1}')
    result = run("--json", "doctor")
    assert result.code == 1
    report = result.json
    assert report["damaged"] == 2
    assert kinds(report) == {
        "damaged": "attention", "torn": "note", "temporary": "attention", "cut": "attention",
        "bare": "note", "leases": "note",
    }  # fmt: skip
    places = {concern["kind"]: concern["places"] for concern in report["concerns"]}
    assert places["torn"] == ["torn"]
    assert [Path(place).name for place in places["temporary"]] == [
        "session.jsonl.abc.tmp", "session.notes.json.abc.tmp",
    ]  # fmt: skip
    assert places["bare"] == [str(store / "_no-cwd" / "bare")]
    assert places["leases"] == [str(locks / "gone.lock")]
    assert all(concern["do"] for concern in report["concerns"])
    text = run("doctor")
    assert (text.code, text.err) == (1, "")
    assert text.out.endswith("4 things to look after\n")


def test_doctor_names_rows_that_forks_still_share(run: Run, tmp_path: Path) -> None:
    target = tmp_path / "x.db"
    with turnlog.open(target) as log:
        log.create(id="parent").append_user("x" * 5000)
        log.flush()
        log.fork("parent", child_id="child").flush()
    assert run("--store", target, "rm", "parent", "--force").code == 0
    report = run("--store", target, "--json", "doctor").json
    assert kinds(report)["shared"] == "note"
    assert run("--store", target, "rm", "child").code == 0
    assert "shared" not in kinds(run("--store", target, "--json", "doctor").json)


@pytest.mark.parametrize("command", ["doctor", "ls", "rm x"])
def test_a_database_of_others_is_refused(run: Run, tmp_path: Path, command: str) -> None:
    target = tmp_path / "foreign.db"
    connection = sqlite3.connect(target)
    with connection:
        connection.execute("CREATE TABLE t (x)")
    connection.close()
    result = run("--store", target, *command.split())
    assert (result.code, result.out) == (1, "")
    assert "is a database of another program" in result.err


# -- blobs ---------------------------------------------------------------------------------------------


def put(store: Path, *texts: bytes, age_ms: int) -> list[str]:
    """Store blobs, as if it had been so long ago."""
    then = int(time.time() * 1000) - age_ms
    with turnlog.open(store) as log:
        references = [BlobStore(log.storage).put(text) for text in texts]
    digests = [reference.partition(":")[2] for reference in references]
    if store.is_dir():
        for digest in digests:
            os.utime(store / ".blobs" / digest[:2] / digest, (then / 1000, then / 1000))
    else:
        connection = sqlite3.connect(store)
        with connection:
            marks = ",".join("?" * len(digests))
            connection.execute(
                f"UPDATE blobs SET stored_at = ? WHERE digest IN ({marks})",
                (then, *digests),
            )
        connection.close()
    return references


def attach(store: Path, id: str, reference: str) -> None:
    image = {
        "type": "image",
        "attachment": {
            "attachmentId": reference,
            "mediaType": "image/png",
            "width": 1,
            "height": 1,
        },
    }
    with turnlog.open(store) as log, log.create(id=id) as session:
        session.append("acme/picture", {"image": image}, ignorable=True)


def test_collecting_spares_what_is_named_or_young(run: Run, any_store: Path) -> None:
    used, unused = put(any_store, b"used", b"unused", age_ms=2 * HOUR_MS)
    (young,) = put(any_store, b"young", age_ms=0)
    attach(any_store, "s", used)
    result = run("--json", "doctor")
    assert result.code == 1
    assert result.json["blobs"] == 3
    assert kinds(result.json)["blobs"] == "attention"
    digest = hashlib.sha256(b"unused").hexdigest()
    assert f"sha256:{digest}" == unused
    collected = run("--json", "doctor", "--collect").json["collected"]
    assert collected == [{"digest": digest, "size": 6}]
    assert run("doctor").code == 0
    assert run("doctor", "--collect").out == "0 blobs removed, 0 bytes\n"
    with turnlog.open(any_store) as log:
        assert BlobStore(log.storage).get(used) == b"used"
        assert BlobStore(log.storage).get(young) == b"young"
    assert run("rm", "s").code == 0
    assert len(run("--json", "doctor", "--collect").json["collected"]) == 1


def test_a_blob_that_only_a_fork_of_a_removed_session_names_stays(
    run: Run, any_store: Path
) -> None:
    (used,) = put(any_store, b"used", age_ms=2 * HOUR_MS)
    attach(any_store, "parent", used)
    with turnlog.open(any_store) as log:
        log.fork("parent", child_id="child").flush()
    assert run("rm", "parent", "--force").code == 0
    assert run("--json", "doctor", "--collect").json["collected"] == []


def test_a_blob_that_a_damaged_log_names_stays(run: Run, store: Path) -> None:
    used, broken = put(store, b"used", b"broken", age_ms=2 * HOUR_MS)
    attach(store, "s", used)
    path = next(store.glob("*/s/session.jsonl"))
    path.write_bytes(path.read_bytes() + b'{"' + broken.encode() + b"\n" + b'{"type":"turn/end"}\n')
    assert run("verify").code == 1
    assert run("--json", "doctor", "--collect").json["collected"] == []


def test_nothing_is_collected_while_a_session_is_unreadable(run: Run, store: Path) -> None:
    put(store, b"unused", age_ms=2 * HOUR_MS)
    place_log(store, b"", "empty")
    result = run("--json", "doctor", "--collect")
    assert result.code == 1
    assert result.json["error"]["code"] == "UNREADABLE_LOGS"
    assert "once the damaged sessions are repaired" in run("doctor").out
    assert list((store / ".blobs").glob("??/*"))
