"""The command line as a process of its own: the README's flow, pipes, encodings and a terminal."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import turnlog

Turnlog = Callable[..., subprocess.CompletedProcess[bytes]]
SOURCE = str(Path(turnlog.__file__).parents[1])


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """A process environment with a store of its own."""
    kept = {
        key: value for key, value in os.environ.items() if not key.startswith(("LC_", "PYTHON"))
    }
    return {
        **kept,
        "PYTHONPATH": SOURCE,
        "TURNLOG_STORE": str(tmp_path / "store"),
        "HOME": str(tmp_path),
    }


@pytest.fixture
def cli(environment: dict[str, str]) -> Turnlog:
    """Runs `python -m turnlog` and gives its exit code and bytes."""

    def call(*arguments: str, stdin: bytes = b"", **extra: str) -> Any:
        return subprocess.run(
            [sys.executable, "-m", "turnlog", *arguments],
            input=stdin, capture_output=True, env={**environment, **extra}, timeout=60, check=False,
        )  # fmt: skip

    return call


def done(process: subprocess.CompletedProcess[bytes]) -> str:
    assert (process.returncode, process.stderr) == (0, b"")
    return process.stdout.decode()


def test_the_flow_of_the_readme(cli: Turnlog, tmp_path: Path) -> None:
    assert "3 files: 3 new" in done(cli("import", "--examples"))
    assert "example-compaction" in done(cli("ls"))
    assert "no errors" in done(cli("verify"))
    assert "Which Python files" in done(cli("show", "example-compaction"))
    assert "Which Python files" not in done(cli("show", "example-compaction", "--surface"))
    child = done(cli("fork", "example-compaction")).strip()
    history = json.loads(done(cli("messages", child)))
    assert history == json.loads(done(cli("messages", "example-compaction")))
    sent = json.loads(done(cli("messages", "example-compaction", "--at", "2.1")))
    assert sent["messages"][0]["content"][0]["text"].startswith("Which Python files")
    exported = cli("export", "example-compaction").stdout
    other = str(tmp_path / "other")
    done(cli("--store", other, "import", "-", stdin=exported))
    assert cli("--store", other, "export", "example-compaction").stdout == exported


def test_without_a_store_the_users_own_is_used(
    cli: Turnlog, environment: dict[str, str], tmp_path: Path
) -> None:
    del environment["TURNLOG_STORE"]
    environment["XDG_DATA_HOME"] = str(tmp_path / "data")
    done(cli("import", "--examples"))
    assert len(json.loads(done(cli("--json", "ls")))["sessions"]) == 3
    assert list(tmp_path.glob("data/turnlog/sessions.db"))


def test_an_output_that_is_not_utf8_gets_escapes(cli: Turnlog, tmp_path: Path) -> None:
    text = "→ ≥ 😀 ñ ⚙"
    with turnlog.open(tmp_path / "store") as log, log.create(id="s", cwd="/wörk") as session:
        session.append_user(text)
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONIOENCODING": "ascii"}
    for arguments in (
        ("ls",),
        ("show", "s"),
        ("verify",),
        ("show", "s", "--full"),
        ("ls", "--all"),
    ):
        process = cli(*arguments, **ascii_only)
        assert (process.returncode, process.stderr) == (0, b"")
        assert process.stdout.isascii()
    assert b"\\u2192 \\u2265 \\U0001f600 \\xf1 \\u2699" in cli("show", "s", **ascii_only).stdout
    assert json.loads(cli("messages", "s", **ascii_only).stdout)[0]["content"][0]["text"] == text
    assert cli("show", "ñ", **ascii_only).returncode == 1
    # Exported bytes are UTF-8 wherever they go.
    assert text.encode() in cli("export", "s", **ascii_only).stdout
    assert text in cli("show", "s", LC_ALL="C").stdout.decode()


def test_a_reader_that_leaves_early_is_no_error(
    cli: Turnlog, environment: dict[str, str], tmp_path: Path
) -> None:
    with turnlog.open(tmp_path / "store") as log, log.create(id="long") as session:
        for _ in range(4):
            session.append_user("x" * 100_000)
    for command in ("show long", "show long --raw", "messages long", "export long"):
        process = subprocess.run(
            ["bash", "-c", f"set -o pipefail; {sys.executable} -m turnlog {command} | head -c 10"],
            capture_output=True, env=environment, timeout=60, check=False,
        )  # fmt: skip
        assert (process.returncode, process.stderr) == (0, b"")


@pytest.mark.skipif(not hasattr(os, "openpty"), reason="needs a pseudo-terminal")
def test_on_a_terminal_text_is_styled_and_still_harmless(
    cli: Turnlog, environment: dict[str, str], tmp_path: Path
) -> None:
    with turnlog.open(tmp_path / "store") as log, log.create(id="s", cwd="/w") as session:
        session.append_user("\x1b[2J\x9b31m[bold]x[/] :smile: \u202e")
    for arguments in (["ls"], ["show", "s"], ["show", "s", "--raw"], ["export", "s"]):
        shown = on_terminal(arguments, environment)
        assert "[2J" in shown
        assert "\x1b[2J" not in shown
        assert not {"\x9b", "\u202e"} & set(shown)
        assert "[bold]x[/] :smile:" in shown
    assert "\x1b[1m" in on_terminal(["show", "s"], environment)


def on_terminal(arguments: list[str], environment: dict[str, str]) -> str:
    """What a command writes to a terminal of 200 columns."""
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "turnlog", *arguments],
        stdin=theirs, stdout=theirs, stderr=theirs,
        env={**environment, "TERM": "xterm", "COLUMNS": "200", "PYTHONUTF8": "1"},
    )  # fmt: skip
    os.close(theirs)
    output = b""
    try:
        while chunk := os.read(ours, 65536):
            output += chunk
    except OSError:
        pass  # the other side is closed: the command is done
    finally:
        os.close(ours)
    assert process.wait(timeout=60) == 0
    return output.decode()


def test_help_starts_without_what_only_commands_need(environment: dict[str, str]) -> None:
    code = (
        "import sys; from turnlog.cli.main import main; main(['--help']); "
        "print([name for name in ('rich', 'turnlog.log', 'turnlog.storage.jsonl') if name in sys.modules])"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, env=environment, timeout=60, check=True
    )
    assert process.stdout.splitlines()[-1] == b"[]"


@pytest.mark.parametrize("name", ["store", "store.db"])
def test_a_killed_writer_leaves_what_it_flushed_and_no_lease(
    cli: Turnlog, environment: dict[str, str], tmp_path: Path, name: str
) -> None:
    environment["TURNLOG_STORE"] = str(tmp_path / name)
    code = (
        "import os, sys, turnlog\n"
        "log = turnlog.open(os.environ['TURNLOG_STORE'])\n"
        "session = log.create(id='s')\n"
        "session.append('turn/start', {'turn': 1})\n"
        "session.append_user('hello')\n"
        "session.flush()\n"
        "print('ready', flush=True)\n"
        "sys.stdin.read()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        assert process.stdout.readline() == b"ready\n"
        # While it lives, its session can be read and noted on, and not written.
        assert "hello" in done(cli("show", "s"))
        done(cli("tag", "s", "--add", "seen"))
        for arguments in (["repair", "s"], ["rm", "s", "--force"], ["title", "s", "x"]):
            refused = cli("--json", *arguments)
            assert refused.returncode == 1
            error = json.loads(refused.stdout)["error"]
            assert (error["code"], error["pid"]) == ("SESSION_LOCKED", process.pid)
        # Its last event is young, and whoever is at work is never too old.
        removed = done_with_notes(cli("rm", "--older-than", "0h"))
        assert "0 sessions removed, 1 kept" in removed
    finally:
        process.kill()
        process.wait(timeout=60)
        process.stdin.close()
        process.stdout.close()
    assert "turn 1 closed as interrupted: turn/end" in done(cli("repair", "s"))
    assert done(cli("title", "s", "Killed")) == "Killed\n"
    assert "Killed [seen]" in done(cli("ls"))
    assert "nothing needs attention" in done(cli("doctor"))
    assert done(cli("rm", "s")) == "removed  s\n"
    assert "no sessions in" in done(cli("ls"))


def done_with_notes(process: subprocess.CompletedProcess[bytes]) -> str:
    assert process.returncode == 0
    assert b"error" not in process.stderr
    return process.stdout.decode()
