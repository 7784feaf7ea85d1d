"""`import`: byte for byte, again and again, growing files, damaged files, and every recorded transcript."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

import turnlog
from turnlog.codec.frames import compress_frame
from turnlog.storage.jsonl.reading import read_log

Run = Callable[..., Any]

CODING = Path(str(files("turnlog.examples"))) / "example-coding.jsonl"


def stored_text(store: Path, id: str) -> bytes:
    return next(store.glob(f"*/{id}/session.jsonl")).read_bytes()


def test_the_examples_import_and_verify(examples: Run) -> None:
    assert examples("verify").code == 0
    again = examples("--json", "import", "--examples")
    assert [entry["status"] for entry in again.json_lines] == ["unchanged"] * 3


def test_a_file_is_stored_byte_for_byte(run: Run, store: Path) -> None:
    result = run("--json", "import", CODING)
    assert result.json == {
        "path": str(CODING), "id": "example-coding", "status": "new", "events": 284,
        "added": 284, "notes": [], "losses": [],
    }  # fmt: skip
    assert stored_text(store, "example-coding") == CODING.read_bytes()


def test_stdin_is_a_file(run: Run, store: Path) -> None:
    assert run("import", "-", stdin=CODING.read_bytes()).code == 0
    assert stored_text(store, "example-coding") == CODING.read_bytes()
    refused = run("import", "-", stdin=b"nonsense\n")
    assert refused.code == 1
    assert "refused -: line 1: the header is no JSON" in refused.err


def test_what_is_compressed_is_told_by_content(run: Run, store: Path, tmp_path: Path) -> None:
    head, _, body = CODING.read_bytes().partition(b"\n")
    path = tmp_path / "plain-name.jsonl"
    path.write_bytes(compress_frame(head + b"\n") + compress_frame(body))
    assert run("import", path).code == 0
    assert stored_text(store, "example-coding") == CODING.read_bytes()


def test_a_growing_file_brings_its_new_events_only(run: Run, store: Path, tmp_path: Path) -> None:
    lines = CODING.read_bytes().splitlines(keepends=True)
    path = tmp_path / "growing.jsonl"
    seen = 0
    for count in [1, 2, 9, 30, 31, 60, len(lines)]:
        path.write_bytes(b"".join(lines[:count]))
        result = run("--json", "import", path).json
        assert result["events"] == seen + result["added"]
        assert result["status"] == ("empty" if count == 1 else "grown" if seen else "new")
        seen = result["events"]
    exported = run("export", "example-coding").out.encode()
    assert exported == CODING.read_bytes()
    assert run("--json", "import", path).json["status"] == "unchanged"


def test_a_file_cut_inside_a_line_imports_what_is_whole(
    run: Run, store: Path, tmp_path: Path
) -> None:
    text = CODING.read_bytes()
    path = tmp_path / "cut.jsonl"
    for size in range(len(text) // 7, len(text), len(text) // 7):
        path.write_bytes(text[:size])
        assert run("import", path).code == 0
    path.write_bytes(text)
    assert run("import", path).code == 0
    assert run("export", "example-coding").out.encode() == text


def test_a_file_that_the_store_is_ahead_of_changes_nothing(
    run: Run, store: Path, tmp_path: Path
) -> None:
    run("import", CODING)
    before = stored_text(store, "example-coding")
    path = tmp_path / "older.jsonl"
    path.write_bytes(b"".join(CODING.read_bytes().splitlines(keepends=True)[:20]))
    result = run("--json", "import", path)
    assert (result.code, result.json["status"], result.json["added"]) == (0, "unchanged", 0)
    assert "ahead of the file" in result.json["notes"][-1]
    assert stored_text(store, "example-coding") == before


@pytest.mark.parametrize(
    "change",
    [
        (b'"createdAt":1772359200000', b'"createdAt":1'),
        (b"leaves out the first", b"shows the first"),
    ],
)
def test_another_session_of_the_same_id_is_a_conflict(
    run: Run, store: Path, tmp_path: Path, change: tuple[bytes, bytes]
) -> None:
    run("import", CODING)
    path = tmp_path / "other.jsonl"
    path.write_bytes(CODING.read_bytes().replace(*change))
    result = run("--json", "import", path)
    assert result.code == 1
    assert result.json["error"]["code"] == "IMPORT_CONFLICT"
    assert stored_text(store, "example-coding") == CODING.read_bytes()


def test_a_refused_file_does_not_keep_the_others_out(run: Run, store: Path, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "deep" / "er").mkdir(parents=True)
    shutil.copy(CODING, tree / "deep" / "er" / "a.jsonl")
    (tree / "bad.jsonl").write_bytes(b'{"type":"session"}\n')
    (tree / "newer.jsonl").write_bytes(b'{"type":"session","version":9,"id":"n"}\n')
    (tree / "empty.jsonl").write_bytes(b"")
    (tree / "zero.jsonl").write_bytes(bytes(999))
    (tree / "loop.jsonl").symlink_to("loop.jsonl")
    (tree / "named.jsonl").mkdir()
    (tree / "notes.txt").write_text("no log", encoding="utf-8")
    os.mkfifo(tree / "pipe.jsonl")
    result = run("import", tree)
    assert result.code == 1
    assert result.err.count("turnlog: refused ") == 6
    assert "newer program" in result.err
    assert "6 files of 7 refused" in result.err
    assert "1 new" in result.out
    assert stored_text(store, "example-coding") == CODING.read_bytes()


def test_a_path_that_is_not_there_is_refused_with_the_reason(run: Run, tmp_path: Path) -> None:
    result = run("import", tmp_path / "nowhere")
    assert result.code == 1
    assert "No such file" in result.err


def damaged_copy(tmp_path: Path, change: Callable[[list[bytes]], list[bytes]]) -> Path:
    path = tmp_path / "damaged.jsonl"
    path.write_bytes(b"".join(change(CODING.read_bytes().splitlines(keepends=True))))
    return path


def test_damage_is_refused_with_its_line(run: Run, tmp_path: Path) -> None:
    path = damaged_copy(tmp_path, lambda lines: [*lines[:6], b"{broken\n", *lines[7:]])
    result = run("import", path)
    assert result.code == 1
    assert "line 7 (byte" in result.err


def test_salvage_imports_what_is_sound_under_another_id(run: Run, tmp_path: Path) -> None:
    # Line 6 is the first prompt; a seq that a title and others name is lost with it.
    path = damaged_copy(tmp_path, lambda lines: [*lines[:5], b"{broken\n", *lines[6:]])
    result = run("--json", "import", "--salvage", path)
    assert result.code == 0
    assert result.json["id"] == "example-coding-salvaged"
    assert result.json["events"] == 283
    assert result.json["losses"][0].startswith("line 6 (byte ")
    assert run("verify", "example-coding-salvaged").code == 0
    assert "lost: line 6" in run("import", "--salvage", path).out
    assert run("--json", "import", "--salvage", path).json["status"] == "unchanged"


def test_salvage_drops_and_counts_what_nobody_knows(run: Run, tmp_path: Path) -> None:
    own = b'{"type":"cost-meter/usage","seq":%d,"time":1,"data":{"n":1}}\n'
    path = damaged_copy(tmp_path, lambda lines: [*lines, own % 284, own % 285])
    refused = run("--json", "import", path)
    assert refused.json["error"]["code"] == "UNKNOWN_EVENT_TYPE"
    result = run("--json", "import", "--salvage", path).json
    assert result["events"] == 284
    assert result["losses"] == ["2 events: cost-meter/usage, dropped (UNKNOWN_EVENT_TYPE)"]


def test_salvage_leaves_foreign_keys_and_doubled_events_out(run: Run, tmp_path: Path) -> None:
    def change(lines: list[bytes]) -> list[bytes]:
        lines = [
            line.replace(b'{"type":"step', b'{"sessionId":"s2","type":"step') for line in lines
        ]
        return [*lines[:9], lines[8], *lines[9:]]

    result = run("--json", "import", "--salvage", damaged_copy(tmp_path, change)).json
    assert result["events"] == 284
    assert any("'sessionId', which no event has" in loss for loss in result["losses"])
    assert any("the same event a second time" in loss for loss in result["losses"])


def test_salvage_keeps_a_compaction_whose_first_message_is_lost(run: Run, tmp_path: Path) -> None:
    source = CODING.with_name("example-compaction.jsonl")
    lines = source.read_bytes().splitlines(keepends=True)
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"".join([*lines[:5], b"lost\n", *lines[6:]]))
    assert run("import", "--salvage", path).code == 0
    assert run("verify").code == 0
    surface = run("messages", "example-compaction-salvaged").json
    assert surface[0]["source"]["plugin"] == "compact"
    assert len(surface) == 5


def test_salvage_without_a_header_takes_the_name_of_the_file(run: Run, tmp_path: Path) -> None:
    path = damaged_copy(tmp_path, lambda lines: [b"\0\0\n", *lines[1:]])
    assert run("--json", "import", "--salvage", path).json["id"] == "damaged-salvaged"


@pytest.mark.parametrize("text", [b"", b"nonsense\n", bytes(99)])
def test_salvage_of_nothing_is_refused(run: Run, tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(text)
    assert run("--json", "import", "--salvage", path).json["error"]["code"] == "NOTHING_TO_SALVAGE"


def test_a_torn_end_of_the_stored_log_is_cut_before_it_grows(
    run: Run, store: Path, tmp_path: Path
) -> None:
    lines = CODING.read_bytes().splitlines(keepends=True)
    path = tmp_path / "x.jsonl"
    path.write_bytes(b"".join(lines[:20]))
    run("import", path)
    stored = next(store.glob("*/example-coding/session.jsonl"))
    stored.write_bytes(stored.read_bytes() + b'{"type":')
    assert run("import", CODING).code == 0
    assert stored.read_bytes() == CODING.read_bytes()


# -- the harnesses' own files --------------------------------------------------------------------------


def test_every_recorded_file_imports_or_is_refused_with_a_reason(
    run: Run, transcripts: Path, tmp_path: Path
) -> None:
    statuses: dict[str, int] = {}
    sources = sorted(path for path in (transcripts / "dsh").rglob("*") if path.is_file())
    assert len(sources) > 100
    for number, source in enumerate(sources):
        copy = tmp_path / f"{number}-{source.name}"
        # Several of them share an id, so each gets a store of its own.
        copy.write_bytes(source.read_bytes().replace(b"{{cwd}}", b"/w"))
        result = run("--store", tmp_path / f"store-{number}", "--json", "import", copy)
        entry = result.json
        assert result.code == (1 if entry["status"] == "refused" else 0)
        if entry["status"] == "refused":
            assert entry["error"]["code"]
            assert entry["error"]["message"]
        statuses[entry["status"]] = statuses.get(entry["status"], 0) + 1
    assert statuses["new"] > 100


def test_recorded_files_come_out_as_they_went_in(
    run: Run, transcripts: Path, tmp_path: Path
) -> None:
    for source in sorted((transcripts / "dsh" / "recorded-0.1.0-rc.8").glob("*.jsonl")):
        store = tmp_path / source.stem
        assert run("--store", store, "import", source).code == 0
        with turnlog.open(store) as log:
            name = run("--store", store, "--json", "ls").json["sessions"][0]["id"]
            stored = log.storage.inspect(name, close_turn=False).log.view()
            raw = read_log(source).stored.log.view()
            assert [event.to_json() for event in stored] == [event.to_json() for event in raw]
