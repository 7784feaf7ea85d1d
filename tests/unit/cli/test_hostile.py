"""What a log holds cannot act on the terminal, and one bad entry costs nothing but itself."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import turnlog

Run = Callable[..., Any]

SCREEN = "\x1b[?1049h\x1b[?1000h\x1b]0;pwned\x07\x1b[2J"
TITLES = [
    "x\x1b[1A\x1b[2Kfake entry", "a\rb", "a\bb", "a\u202eb", "\x9b31mred", "two\nlines\u2028x",
    "[bold red]markup[/] :smile:", "\ud83c half",
]  # fmt: skip
_FORBIDDEN = re.compile(
    r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)


def hostile_session(store: Path, id: str, title: str) -> None:
    text = f"{SCREEN}{title}"
    with turnlog.open(store) as log, log.create(id=id, cwd=f"/w/\x1b[2J\u202e{id}") as session:
        call = {"type": "tool-call", "id": "c\x1b[2J", "name": "ba\x9bsh", "arguments": text}
        place = {"turn": 1, "step": 1}
        session.append("turn/start", {"turn": 1})
        session.append("step/start", place)
        session.append_user(text)
        session.append_assistant(
            [{"type": "reasoning", "text": text}, {"type": f"odd{SCREEN}"}, call],
            provider="p\x1b[2J",
            model="m\u202e",
        )
        session.append("tool/call", {**place, "callId": call["id"], "name": "x", "arguments": ""})
        result = turnlog.tool_result_message(call["id"], text)
        session.append_message(result)
        session.append("step/end", place)
        failure = {"code": SCREEN, "message": text}
        session.append("turn/end", {"turn": 1, "reason": {"kind": "error", "error": failure}})
        source = {"kind": "user"}
        session.append("session/title", {"title": title, "messageSeqs": [2], "source": source})


@pytest.mark.parametrize("title", TITLES)
@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("ls",), 0),
        (("show", "s"), 0),
        (("show", "s", "--full"), 0),
        (("show", "s", "--surface"), 0),
        (("show", "s", "--raw"), 0),
        (("messages", "s"), 0),
        (("verify",), 0),
        (("ls", "--tree", "--order", "active"), 0),
        (("title", "s"), 0),
        (("tag", "s"), 0),
        (("repair", "s"), 0),
        (("rm", "s"), 0),
        (("rm", "--older-than", "0h"), 0),
        (("rm", "--older-than", "\x1b[2J"), 2),
        (("doctor",), 0),
        (("--json", "doctor"), 0),
        (("--json", "ls"), 0),
        (("--json", "show", "s"), 0),
        (("show", "s\x1b[2J"), 1),
        (("--json", "show", "s\u202e"), 1),
        (("show", "s", "--\x1b[2J"), 2),
    ],
)
def test_hostile_text_never_reaches_the_output(
    run: Run, store: Path, title: str, arguments: tuple[str, ...], code: int
) -> None:
    hostile_session(store, "s", title)
    result = run(*arguments)
    assert not _FORBIDDEN.search(result.out + result.err)
    assert result.code == code


def test_a_title_cannot_add_a_line(run: Run, store: Path) -> None:
    hostile_session(store, "s", "fine\ns2  2026-01-01 00:00  /w  fake entry")
    listed = run("ls").out.splitlines()
    assert len(listed) == 3  # the head, the session, and the hint that its directory is gone
    shown = run("show", "s").out
    assert "\ns2  2026" not in shown


def test_markup_is_text(run: Run, store: Path) -> None:
    hostile_session(store, "s", "[bold red]markup[/] :smile:")
    assert "[bold red]markup[/] :smile:" in run("ls").out
    assert "[bold red]markup[/] :smile:" in run("show", "s").out


def test_what_is_stored_does_not_change(run: Run, store: Path) -> None:
    hostile_session(store, "s", TITLES[0])
    assert TITLES[0] in run("messages", "s").json[0]["content"][0]["text"]


# -- damaged neighbours (five good sessions beside what case 30 lists) ---------------------------------

HEAD = '{"type":"session","version":0,"id":"%s","createdAt":%s,"cwd":"/w","delegationDepth":0}\n'


@pytest.fixture
def neighbours(store: Path) -> int:
    """Five good sessions and damaged entries around them; gives the number of the damaged ones."""
    with turnlog.open(store) as log:
        for number in range(5):
            log.create(id=f"good-{number}", cwd="/w").append_user(f"hello {number}")
    bad = {
        "empty": b"",
        "nul": bytes(4096),
        "no-id": b'{"type":"session"}\n',
        "270": (HEAD % ("270", '"270"')).encode(),
        "no-newline": b"x" * (2 * 1024 * 1024),
        "newer": b'{"type":"session","version":7,"id":"newer"}\n',
        "elsewhere": (HEAD % ("another-id", "1")).encode(),
    }
    project = store / "--w--"
    for name, data in bad.items():
        (project / name).mkdir()
        (project / name / "session.jsonl").write_bytes(data)
    (project / "directory" / "session.jsonl").mkdir(parents=True)
    (project / "loop").mkdir()
    (project / "loop" / "session.jsonl").symlink_to("session.jsonl")
    return len(bad) + 2


def test_ls_lists_good_sessions_and_damaged_ones_with_their_reason(
    run: Run, neighbours: int
) -> None:
    result = run("ls")
    assert result.code == 0
    assert len(re.findall(r"^good-\d", result.out, re.MULTILINE)) == 5
    assert f"{neighbours} damaged entries:" in result.out
    assert len(re.findall(r"^  damaged .+: .+", result.out, re.MULTILINE)) == neighbours
    listing = run("--json", "ls").json
    assert (listing["total"], len(listing["damaged"])) == (5, neighbours)
    assert all(entry["reason"] and entry["code"] for entry in listing["damaged"])


def test_ls_damaged_lists_only_these(run: Run, neighbours: int) -> None:
    assert "good-" not in run("ls", "--damaged").out
    assert len(run("--json", "ls", "--damaged").json["damaged"]) == neighbours


@pytest.mark.usefixtures("neighbours")
def test_a_good_session_opens_beside_damaged_ones(run: Run) -> None:
    assert "hello 3" in run("show", "good-3").out
    assert run("verify", "good-3").code == 0
    assert run("fork", "good-3").code == 0


def test_verify_of_all_names_the_damaged_ones(run: Run, neighbours: int) -> None:
    result = run("--json", "verify")
    assert result.code == 1
    assert sum(not report["ok"] for report in result.json_lines) == neighbours
    assert f"{neighbours} with errors" in run("verify").out


@pytest.mark.usefixtures("neighbours")
@pytest.mark.parametrize("id", ["empty", "nul", "no-id", "270", "newer", "directory", "loop"])
@pytest.mark.parametrize(
    "command", ["show", "verify", "export", "messages", "fork", "repair", "title", "rm"]
)
def test_commands_on_a_damaged_session_give_a_reason(run: Run, id: str, command: str) -> None:
    result = run(command, id)
    assert result.code in (0, 1)
    fine = command in ("show", "export", "rm")
    assert (result.code == 0) == fine or "turnlog: error" in result.err
    assert result.err or command in ("verify", "rm")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file_is_damaged(run: Run, neighbours: int, store: Path) -> None:
    next(store.glob("*/good-0/session.jsonl")).chmod(0)
    assert len(run("--json", "ls").json["damaged"]) == neighbours + 1


def test_show_falls_back_to_salvage_and_says_so(run: Run, store: Path) -> None:
    assert run("import", "--examples").code == 0
    path = next(store.glob("*/example-coding/session.jsonl"))
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([*lines[:3], b"{broken", *lines[4:]]))
    result = run("show", "example-coding")
    assert result.code == 0
    assert "what follows is what can be read of it" in result.err
    assert "line 4 (byte" in result.err
    assert "Fixed: `page`" in result.out
    assert "Fix the first page of the pager" in result.out
    as_json = run("--json", "show", "example-coding")
    assert as_json.err == ""
    assert as_json.json["damage"][0]["line"] == 4
    assert run("show", "example-coding", "--surface").code == 1
    assert "(damaged: " in run("ls").out
