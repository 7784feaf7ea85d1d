"""Each command over the sample sessions: what it prints, as text and as JSON, and its exit code."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import turnlog
from turnlog.cli.main import cli
from turnlog.codec.frames import MAGIC

Run = Callable[..., Any]


def log_file(store: Path, id: str) -> Path:
    return next(store.glob(f"*/{id}/session.jsonl"))


# -- the program ---------------------------------------------------------------------------------------


def test_help_lists_every_command(run: Run) -> None:
    result = run("--help")
    assert result.code == 0
    for name in cli.commands:
        assert f"\n  {name} " in result.out


@pytest.mark.parametrize(
    "arguments",
    [("nonsense",), ("ls", "--nonsense"), ("show",), ("import",), ("messages", "x", "--at", "1"),
     ("show", "x", "--raw", "--surface"), ("ls", "--limit", "-1"), ("ls", "--tree", "--cursor", "x"),
     ("rm",), ("rm", "x", "--older-than", "3d"), ("rm", "--older-than", "3"), ("repair",),
     ("rm", "--older-than", "\u0663d"), ("title", "x", " "), ("title", "x", "a\nb"),
     ("tag", "x", "--add", ""), ("tag", "x", "--add", "\x1b[2J"), ("tag", "x", "--add", "\udc80"),
     ("doctor", "x")],
)  # fmt: skip
def test_wrong_usage_is_code_2_and_one_line(run: Run, arguments: tuple[str, ...]) -> None:
    result = run(*arguments)
    assert (result.code, result.out) == (2, "")
    assert result.err.startswith("turnlog: error: ")
    assert result.err.count("\n") == 1
    as_json = run("--json", *arguments)
    assert (as_json.code, as_json.err) == (2, "")
    assert as_json.json["error"]["code"] == "USAGE"


def test_an_option_of_the_program_behind_the_command_is_explained(run: Run) -> None:
    assert "turnlog --json ..." in run("ls", "--json").err


def test_a_failure_is_one_line_on_stderr_or_one_object_on_stdout(run: Run) -> None:
    result = run("show", "nobody")
    assert (result.code, result.out) == (1, "")
    assert result.err == "turnlog: error: no session 'nobody'; the store holds none\n"
    as_json = run("--json", "show", "nobody")
    assert (as_json.code, as_json.err) == (1, "")
    assert as_json.json["error"]["code"] == "SESSION_NOT_FOUND"
    assert as_json.json["error"]["message"] == "no session 'nobody'; the store holds none"


@pytest.mark.parametrize("target", ["postgresql://nowhere", "x.db\0", "jsonl://host/x"])
def test_a_store_that_cannot_be_opened_is_a_plain_error(run: Run, target: str) -> None:
    result = run("--store", target, "ls")
    assert result.code == 1
    assert result.err.startswith("turnlog: error: ")


def test_the_option_wins_over_the_environment(examples: Run, tmp_path: Path) -> None:
    assert examples("--store", tmp_path / "other", "--json", "ls").json["total"] == 0
    assert examples("--json", "ls").json["total"] == 3


# -- ls ------------------------------------------------------------------------------------------------


def test_ls_lists_the_newest_first_with_titles(examples: Run) -> None:
    lines = examples("ls").out.splitlines()
    assert lines[0].split() == ["ID", "CREATED", "(UTC)", "CWD", "TITLE"]
    assert [line.split()[0] for line in lines[1:4]] == [
        "example-interrupted",
        "example-compaction",
        "example-coding",
    ]
    assert "2026-03-01 10:00  /home/user/demo  Fix the first page of the pager" in lines[3]


def test_ls_as_json_is_one_object(examples: Run) -> None:
    listing = examples("--json", "ls").json
    assert listing["sessions"][2]["id"] == "example-coding"
    assert listing["sessions"][2]["title"] == "Fix the first page of the pager"
    assert listing["sessions"][2]["createdAt"] == 1772359200000
    assert (listing["total"], listing["damaged"]) == (3, [])


def test_ls_says_how_many_it_left_out(examples: Run) -> None:
    assert "... and 2 older sessions" in examples("ls", "--limit", 1).out
    assert "older" not in examples("ls", "--limit", 1, "--all").out


def test_ls_takes_the_first_words_where_there_is_no_title(run: Run, store: Path) -> None:
    with turnlog.open(store) as log, log.create(id="untitled") as session:
        session.append_user("what is\nthis?")
    assert "untitled" in run("ls").out
    assert "what is this?" in run("ls").out


def test_ls_hints_at_directories_that_are_gone(run: Run, store: Path, tmp_path: Path) -> None:
    for number, cwd in enumerate([tmp_path / "gone", tmp_path, tmp_path / "gone"]):
        with turnlog.open(store) as log, log.create(id=f"s{number}", cwd=cwd) as session:
            session.append_user("hi")
    assert "2 sessions belong to a directory that is gone" in run("ls").out
    assert run("--json", "ls").json["missingCwd"] == 2
    assert not (tmp_path / "gone").exists()


def test_ls_of_an_empty_store_names_it_and_creates_nothing(run: Run, store: Path) -> None:
    assert f"no sessions in {store}" in run("ls").out
    assert not store.exists()


# -- show ----------------------------------------------------------------------------------------------


def test_show_keeps_what_a_compaction_has_shadowed(examples: Run) -> None:
    shown = examples("show", "example-compaction").out
    assert "13 messages, 9 of them shadowed (the model sees 5: --surface)" in shown
    assert "Which Python files of this project have no tests?" in shown
    assert "compaction: the model sees this instead of seq" in shown
    surface = examples("show", "example-compaction", "--surface").out
    assert "Which Python files" not in surface
    assert "The user wants to know which modules lack tests" in surface


def test_show_shortens_long_outputs_by_an_exact_count(examples: Run) -> None:
    shown = examples("show", "example-compaction").out
    full = examples("show", "example-compaction", "--full").out
    assert "characters left out; --full shows them]" in shown
    assert "words_of_length_12" not in shown.split("compaction: the model")[0].split("[seq 97]")[1]
    assert "def words_of_length_12(text):" in full
    assert "characters left out" not in full


def test_show_marks_an_open_turn(examples: Run) -> None:
    assert (
        "turn 1 is open: it would be closed on resume"
        in examples("show", "example-interrupted").out
    )


def test_show_raw_prints_the_stored_events(examples: Run, store: Path) -> None:
    raw = examples("show", "example-coding", "--raw")
    with turnlog.open(store) as log:
        stored = log.storage.inspect("example-coding", close_turn=False).log.view()
        assert raw.out.encode() == b"".join(event.to_json() + b"\n" for event in stored)
    assert examples("show", "example-coding", "--raw", "--limit", 2).json_lines == [
        event.to_dict() for event in stored[-2:]
    ]


def test_show_limit_keeps_the_last_entries(examples: Run) -> None:
    shown = examples("show", "example-coding", "--limit", 1).out
    assert "earlier entries left out" in shown
    assert "Page 0 gives an empty list" in shown
    assert "Fixed:" not in shown


def test_show_as_json_is_one_object_with_full_texts(examples: Run) -> None:
    shown = examples("--json", "show", "example-compaction").json
    assert shown["header"]["id"] == "example-compaction"
    assert len(shown["shadowed"]) == 9
    assert shown["entries"][1]["kind"] == "user"
    assert shown["entries"][1]["shadowed"] is True
    assert any(
        "words_of_length_12" in part["text"] for e in shown["entries"] for part in e["parts"]
    )


def test_show_names_ends_and_retries(run: Run, store: Path) -> None:
    failure = {"message": "slow down", "code": "RATE_LIMIT"}
    with turnlog.open(store) as log, log.create(id="ends") as session:
        for turn, reason in enumerate(
            [{"kind": "error", "error": failure}, {"kind": "aborted", "reason": {"kind": "user"}},
             {"kind": "max-tokens"}, {"kind": "completed"}], start=1,
        ):  # fmt: skip
            place = {"turn": turn, "step": 1}
            chunk = {"type": "text-delta", "index": 0, "text": "half"}
            session.append("turn/start", {"turn": turn})
            session.append("step/start", place)
            session.append("assistant/chunk", {**place, "chunk": chunk})
            session.append("llm/retry", {**place, "retry": 1, "failure": failure})
            session.append("step/end", place)
            session.append("turn/end", {"turn": turn, "reason": reason})
    shown = run("show", "ends").out
    assert shown.count("1 stream chunk without a message") == 4
    assert "retry 1 after RATE_LIMIT: slow down" in shown
    assert "turn ended: error RATE_LIMIT: slow down" in shown
    assert "turn ended: aborted by user" in shown
    assert "turn ended: max-tokens" in shown
    assert shown.count("turn ended") == 3


# -- ids -----------------------------------------------------------------------------------------------


def test_a_unique_prefix_is_enough(examples: Run) -> None:
    assert "session example-coding" in examples("show", "example-cod").out


def test_an_ambiguous_prefix_lists_what_it_could_be(examples: Run) -> None:
    error = examples("--json", "show", "example-co").json["error"]
    assert error["code"] == "AMBIGUOUS_ID"
    assert sorted(error["candidates"]) == ["example-coding", "example-compaction"]


def test_candidates_are_five_at_most(run: Run, store: Path) -> None:
    with turnlog.open(store) as log:
        for number in range(8):
            log.create(id=f"s-{number}").append_user("x")
    error = run("--json", "show", "s").json["error"]
    assert len(error["candidates"]) == 5
    assert "and 3 more" in error["message"]


def test_a_whole_id_wins_over_longer_ones(run: Run, store: Path) -> None:
    with turnlog.open(store) as log:
        for name in ("s", "s1", "s12"):
            log.create(id=name).append_user(f"this is {name}!")
    assert "this is s1!" in run("show", "s1").out


@pytest.mark.parametrize(
    "command",
    ["show", "messages", "verify", "fork", "export", "repair", "rm", "title", "tag"],
)
@pytest.mark.parametrize(
    "id", ["../../x", "/tmp/victim", "..", "", "a/b", "*", "CON", "x" * 300, ".hidden", "s1.jsonl"]
)
def test_hostile_ids_are_plain_errors(examples: Run, command: str, id: str) -> None:
    result = examples(command, "--", id)
    assert (result.code, result.out) == (1, "") if command != "verify" else result.code == 1
    assert result.err.startswith("turnlog: error: ")


# -- messages ------------------------------------------------------------------------------------------


def test_messages_is_the_derived_history(examples: Run, store: Path) -> None:
    with turnlog.open(store) as log:
        history = log.query.read_session("example-compaction").derive_messages()
    assert examples("messages", "example-compaction").json == history
    assert len(history) == 5


def test_messages_at_a_step_are_those_that_were_sent(examples: Run) -> None:
    request = examples("messages", "example-compaction", "--at", "2.1").json
    assert request["header"]["config"]["model"] == "example-model-1"
    assert request["context"]["contextWindow"] == 128000
    assert [message["role"] for message in request["messages"]] == [
        "user",
        "assistant",
        "user",
        "assistant",
        "user",
    ]
    later = examples("messages", "example-compaction", "--at", "3.1").json["messages"]
    assert later[0]["source"]["plugin"] == "compact"


def test_messages_at_a_step_that_is_not_there_fail(examples: Run) -> None:
    assert examples("--json", "messages", "example-coding", "--at", "9.9").json == {
        "error": {"code": "STEP_NOT_FOUND", "message": "the log has no step 9.9"}
    }


# -- verify --------------------------------------------------------------------------------------------


def test_verify_of_sound_sessions_is_code_0(examples: Run) -> None:
    result = examples("verify")
    assert result.code == 0
    assert "3 sessions checked, no errors" in result.out
    assert "turn 1 is open: it would be closed on resume [OPEN_TURN]" in result.out


def test_verify_names_line_byte_and_seq(examples: Run, store: Path) -> None:
    path = log_file(store, "example-coding")
    lines = path.read_bytes().split(b"\n")
    offset = sum(len(line) + 1 for line in lines[:4])
    lines[4] = b"{broken"
    path.write_bytes(b"\n".join(lines))
    result = examples("--json", "verify", "example-coding")
    assert result.code == 1
    assert result.json["ok"] is False
    first = result.json["findings"][0]
    assert (first["line"], first["offset"], first["severity"]) == (5, offset, "error")
    assert examples("verify", "example-compaction").code == 0
    assert examples("verify").code == 1


def test_verify_takes_a_torn_end_for_no_error(examples: Run, store: Path) -> None:
    path = log_file(store, "example-coding")
    size = path.stat().st_size
    path.write_bytes(path.read_bytes() + b'{"type":"turn/st')
    report = examples("--json", "verify", "example-coding")
    assert report.code == 0
    torn = report.json["findings"][-1]
    assert (torn["code"], torn["severity"], torn["offset"]) == ("TORN_TAIL", "warning", size)
    assert torn["line"] == len(path.read_bytes().split(b"\n"))


# -- fork ----------------------------------------------------------------------------------------------


def test_fork_prints_the_new_id(examples: Run) -> None:
    result = examples("fork", "example-coding")
    assert result.code == 0
    new = result.out.strip()
    shown = examples("--json", "show", new).json
    assert shown["header"]["parentSession"] == "example-coding"
    assert examples("messages", new).json == examples("messages", "example-coding").json


def test_fork_at_a_seq_and_under_a_name(examples: Run, store: Path) -> None:
    with turnlog.open(store) as log:
        events = log.storage.inspect("example-coding").log.view()
    end = next(event.seq for event in events if event.type == "turn/end")
    assert examples("fork", "example-coding", "--at", end, "--id", "half").out == "half\n"
    assert examples("--json", "show", "half").json["header"]["seedLength"] == end + 1
    assert (
        examples("--json", "fork", "example-coding", "--at", 5).json["error"]["code"] == "OPEN_TURN"
    )
    taken = examples("--json", "fork", "example-coding", "--id", "half").json["error"]
    assert taken["code"] == "SESSION_ALREADY_EXISTS"


def test_forking_a_killed_session_closes_its_turn_in_the_fork(examples: Run, store: Path) -> None:
    before = log_file(store, "example-interrupted").read_bytes()
    new = examples("fork", "example-interrupted").out.strip()
    assert examples("verify", new).code == 0
    assert "turn ended: interrupted" in examples("show", new).out
    assert log_file(store, "example-interrupted").read_bytes() == before


# -- export --------------------------------------------------------------------------------------------


def test_export_gives_the_harness_file(examples: Run, store: Path) -> None:
    exported = examples("export", "example-coding").out.encode()
    assert exported == log_file(store, "example-coding").read_bytes()
    assert json.loads(exported.split(b"\n")[0])["type"] == "session"


def test_export_to_a_file_is_private_and_overwrites_nothing(examples: Run, tmp_path: Path) -> None:
    target = tmp_path / "out.jsonl"
    assert examples("export", "example-coding", "-o", target) == (0, "", "")
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    kept = target.read_bytes()
    result = examples("--json", "export", "example-compaction", "-o", target)
    assert result.json["error"]["code"] == "FILE_EXISTS"
    assert target.read_bytes() == kept
    assert examples("export", "example-compaction", "-o", target, "--force").code == 0
    assert b"example-compaction" in target.read_bytes()
    assert [path.name for path in tmp_path.glob("out*")] == ["out.jsonl"]


def test_export_compressed_is_what_import_takes(examples: Run, tmp_path: Path) -> None:
    target = tmp_path / "out.jsonl.zstd"
    assert examples("export", "example-coding", "--compress", "-o", target).code == 0
    assert target.read_bytes().startswith(MAGIC)
    other = tmp_path / "other"
    assert examples("--store", other, "import", target).code == 0
    assert (
        examples("--store", other, "export", "example-coding").out
        == examples("export", "example-coding").out
    )


def test_export_of_a_damaged_session_gives_what_can_be_read(examples: Run, store: Path) -> None:
    path = log_file(store, "example-coding")
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([*lines[:4], b"{broken", *lines[5:]]))
    result = examples("export", "example-coding")
    assert result.code == 0
    assert "only the readable records are exported" in result.err
    assert len(result.json_lines) > 200
