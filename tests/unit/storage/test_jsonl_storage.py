"""JsonlStorage: where it writes, what it refuses, and what a failing disk leaves behind."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from turnlog.codec.frames import MAGIC
from turnlog.codec.record import encode_batch
from turnlog.engine.names import encode_id
from turnlog.errors import (
    ConflictError,
    CorruptLogError,
    SessionExistsError,
    SessionNotFoundError,
    StorageError,
    StorageWriteError,
    TargetError,
)
from turnlog.events import SessionEvent
from turnlog.storage.jsonl import JsonlStorage, files
from turnlog.storage.jsonl.paths import Encoding, project_name, session_dir
from turnlog.testing.builders import (
    EventBuilder,
    header_of,
    log_frames,
    log_text,
    open_events,
    place_log,
    talk_events,
)
from turnlog.testing.conformance import ODD_IDS

EVENTS = talk_events(2)


def lines(storage: JsonlStorage, id_: str = "s1") -> list[bytes]:
    return [event.to_json() for event in storage.read_from(id_, 0)]


def wanted(events: list[SessionEvent] = EVENTS) -> list[bytes]:
    return [event.to_json() for event in events]


# -- names (storage.md, 5.1) ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cwd", "name"),
    [
        (None, "_no-cwd"),
        ("C:\\work\\agent", "--C-work-agent--"),
        ("/开发/~agent", "--~5F00~53D1-~007Eagent--"),
        ("/", "--root--"),
        ("///", "--root--"),
        ("/a/b-c", "--a-b-c--"),
        ("/a-b/c", "--a-b-c--"),
        ("/a//b/", "--a-b---"),
        ("/home/user/proj a", "--home-user-proj~0020a--"),
        ("/😀", "--~D83D~DE00--"),
        ("/" + "x" * 300, "--" + "x" * 251 + "--"),
        ("/" + "é" * 300, ("--" + "~00E9" * 51)[:253] + "--"),
        ("-", "--root--"),
    ],
)
def test_projects_are_named_as_the_reference_names_them(cwd: str | None, name: str) -> None:
    assert project_name(cwd) == name
    assert len(name) <= 255


@pytest.mark.parametrize(
    ("id_", "name"),
    [
        ("a/b", "a~002Fb"),
        (".", "~002E"),
        ("..", "~002E~002E"),
        ("...", "..."),
        ("sess/é 1", "sess~002F~00E9~00201"),
        ("\ud800", "~D800"),
        ("😀", "~D83D~DE00"),
        ("~", "~007E"),
        ("~0041", "~007E0041"),
        ("*", "~002A"),
        ("s\0", "s~0000"),
    ],
)
def test_ids_are_encoded_as_the_reference_encodes_them(id_: str, name: str) -> None:
    assert encode_id(id_) == name


@pytest.mark.parametrize("id_", ["", "x" * 256, "é" * 52])
def test_ids_that_make_no_file_name_are_refused(id_: str) -> None:
    with pytest.raises(StorageError) as caught:
        encode_id(id_)
    assert caught.value.code == "INVALID_ID"
    assert caught.value.session_id == id_


def test_an_empty_cwd_is_refused() -> None:
    with pytest.raises(StorageError) as caught:
        project_name("")
    assert caught.value.code == "INVALID_CWD"


def test_case_61_no_id_leads_out_of_the_root(tmp_path: Path) -> None:
    root = tmp_path / "a" / "root"
    storage = JsonlStorage(root)
    for id_ in (*ODD_IDS, "S1", "s1"):
        storage.append(header_of(id_, cwd="/w/../.."), EVENTS)
    paths = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(paths) == len(ODD_IDS) + 2
    assert len({path.parent for path in paths}) == len(paths)
    for path in paths:
        assert path.parents[1] == root / "--w-..-..--"
    for id_ in ODD_IDS:
        assert storage.location(id_) == str(session_dir(root, "/w/../..", id_) / "session.jsonl")


def test_another_id_on_a_case_insensitive_disk_is_never_mixed_up(tmp_path: Path) -> None:
    """As if `s1` led to the file of `S1`: the header tells, and nothing is read or written."""
    path = place_log(tmp_path, log_text(EVENTS, header_of("S1")), id="s1")
    storage = JsonlStorage(tmp_path)
    uses: list[Callable[[], Any]] = [
        lambda: storage.inspect("s1"),
        lambda: storage.load("s1"),
        lambda: storage.append(header_of("s1"), talk_events(3)[len(EVENTS) :]),
    ]
    for use in uses:
        with pytest.raises(CorruptLogError) as caught:
            use()
        assert caught.value.code == "WRONG_PLACE"
    assert path.read_bytes() == log_text(EVENTS, header_of("S1"))
    assert [entry.code for entry in storage.list()] == ["WRONG_PLACE"]


# -- files ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["none", "zstd"])
def test_files_are_private(encoding: Encoding, tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        JsonlStorage(tmp_path / "r", compression=encoding).append(header_of(cwd="/w"), EVENTS)
    finally:
        os.umask(old)
    for path in (tmp_path / "r").rglob("*"):
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600)
    assert (tmp_path / "r").stat().st_mode & 0o777 == 0o700
    assert not list(tmp_path.rglob("*.tmp"))


def test_nothing_is_created_before_the_first_event(tmp_path: Path) -> None:
    storage = JsonlStorage(tmp_path / "r")
    assert storage.list() == []
    storage.append(header_of(), [])
    with pytest.raises(SessionNotFoundError):
        storage.load("s1")
    assert not (tmp_path / "r").exists()


def test_a_root_must_be_a_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x", encoding="utf-8")
    with pytest.raises(TargetError, match="no directory"):
        JsonlStorage(tmp_path / "file")


def test_a_relative_root_is_fixed_at_construction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    storage = JsonlStorage("r")
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    storage.append(header_of(), EVENTS)
    assert (tmp_path / "r" / "_no-cwd").is_dir()


def test_raw_is_what_a_new_root_is_written_in(tmp_path: Path) -> None:
    storage = JsonlStorage(tmp_path)
    storage.append(header_of(), EVENTS)
    location = storage.location("s1")
    assert location is not None
    assert location.endswith("/_no-cwd/s1/session.jsonl")
    assert Path(location).read_bytes() == log_text(EVENTS)


def test_a_compressed_log_has_one_frame_a_batch(tmp_path: Path) -> None:
    storage = JsonlStorage(tmp_path, compression="zstd")
    batches = [EVENTS[:3], EVENTS[3:9], EVENTS[9:]]
    for batch in batches:
        storage.append(header_of(), batch)
    assert Path(str(storage.location("s1"))).read_bytes() == log_frames(batches)


@pytest.mark.parametrize(("there", "asked"), [("none", "zstd"), ("zstd", "none")])
def test_only_the_encoding_that_a_root_has_is_written(
    there: Encoding, asked: Encoding, tmp_path: Path
) -> None:
    JsonlStorage(tmp_path, compression=there).append(header_of("old"), EVENTS)
    storage = JsonlStorage(tmp_path, compression=asked)
    storage.append(header_of("new"), EVENTS)
    JsonlStorage(tmp_path, compression=asked).append(header_of("newer", cwd="/w"), EVENTS)
    assert len({path.name for path in tmp_path.rglob("session.*")}) == 1
    assert len(storage.list()) == 3


def test_a_mixed_root_is_read_and_each_log_goes_on_in_its_own_encoding(tmp_path: Path) -> None:
    place_log(tmp_path, log_text(EVENTS[:5], header_of("raw")), id="raw")
    place_log(tmp_path, log_frames([EVENTS[:5]], header_of("z")), id="z", encoding="zstd")
    storage = JsonlStorage(tmp_path, compression="zstd")
    assert len(storage.list()) == 2
    for id_ in ("raw", "z"):
        storage.load(id_, close_turn=False)
        storage.append(header_of(id_), EVENTS[5:])
        assert lines(storage, id_) == wanted()
    assert Path(str(storage.location("raw"))).read_bytes()[:1] == b"{"
    assert Path(str(storage.location("z"))).read_bytes()[:4] == MAGIC
    storage.append(header_of("new"), EVENTS)
    assert str(storage.location("new")).endswith(".zstd")


def test_headers_of_any_length_are_listed(tmp_path: Path) -> None:
    storage = JsonlStorage(tmp_path)
    compressed = JsonlStorage(tmp_path / "z", compression="zstd")
    noise = "".join(chr(0x4E00 + number * 7919 % 20_000) for number in range(9_000))
    for number, header in enumerate(
        (
            header_of("a", pad="x" * 9_000),
            header_of("b", cwd="/" + "y" * 24_000),
            header_of("c", pad=noise),
        )
    ):
        for where in (storage, compressed):
            where.append(header, EVENTS)
            found = {entry.header.id: entry.header for entry in where.list() if entry.header}
            assert len(found) == number + 1
            kept = found[header.id].to_dict()
            assert kept == {**header.to_dict(), "delegationDepth": 0}


# -- finding -------------------------------------------------------------------------------------------


def test_a_log_in_the_wrong_place_is_refused(tmp_path: Path) -> None:
    place_log(tmp_path, log_text(EVENTS, header_of(cwd="/w/bar")), cwd="/w/foo")
    storage = JsonlStorage(tmp_path)
    for use in (storage.inspect, storage.load):
        with pytest.raises(CorruptLogError, match="belongs at") as caught:
            use("s1")
        assert caught.value.code == "WRONG_PLACE"
    assert [entry.code for entry in storage.list()] == ["WRONG_PLACE"]
    salvage = storage.salvage("s1")
    assert len(salvage.records) == len(EVENTS)
    assert [(damage.line, damage.offset) for damage in salvage.damage] == [(1, 0)]


def test_case_46_a_moved_directory_with_a_link_in_its_old_place(tmp_path: Path) -> None:
    place_log(tmp_path, log_text(EVENTS, header_of(cwd="/w/bar")), cwd="/w/foo")
    (tmp_path / project_name("/w/bar")).symlink_to(tmp_path / project_name("/w/foo"))
    storage = JsonlStorage(tmp_path)
    with pytest.raises(CorruptLogError) as caught:
        storage.inspect("s1")
    assert caught.value.code == "DUPLICATE_SESSION"


def test_a_link_to_the_right_file_is_the_right_place(tmp_path: Path) -> None:
    """The reference compares real paths; a log file linked into place is sound."""
    real = tmp_path / "elsewhere.jsonl"
    real.write_bytes(log_text(EVENTS))
    directory = session_dir(tmp_path / "r", None, "s1")
    directory.mkdir(parents=True)
    (directory / "session.jsonl").symlink_to(real)
    assert len(JsonlStorage(tmp_path / "r").inspect("s1").log) == len(EVENTS)


@pytest.mark.parametrize("other", ["project", "encoding"])
def test_a_session_in_two_places_is_opened_from_neither(other: str, tmp_path: Path) -> None:
    paths = [place_log(tmp_path, log_text(EVENTS))]
    if other == "project":
        paths.append(place_log(tmp_path, log_text(EVENTS, header_of(cwd="/w")), cwd="/w"))
    else:
        paths.append(place_log(tmp_path, log_frames([EVENTS]), encoding="zstd"))
    before = [path.read_bytes() for path in paths]
    storage = JsonlStorage(tmp_path)
    uses: list[Callable[[], Any]] = [
        lambda: storage.inspect("s1"),
        lambda: storage.load("s1"),
        lambda: storage.salvage("s1"),
        lambda: storage.append(header_of(), talk_events(3)[len(EVENTS) :]),
    ]
    for use in uses:
        with pytest.raises(CorruptLogError) as caught:
            use()
        assert caught.value.code == "DUPLICATE_SESSION"
    entries = storage.list()
    assert [entry.code for entry in entries] == ["DUPLICATE_SESSION"] * 2
    assert {entry.location for entry in entries} == set(map(str, paths))
    assert [path.read_bytes() for path in paths] == before


def test_a_log_of_the_retired_flat_layout_is_listed_as_misplaced(tmp_path: Path) -> None:
    storage = JsonlStorage(tmp_path)
    storage.append(header_of("good"), EVENTS)
    flat = tmp_path / "_no-cwd" / "flat.jsonl"
    flat.write_bytes(log_text(EVENTS, header_of("flat")))
    (tmp_path / "_no-cwd" / "notes.txt").write_bytes(b"fine")
    found = {entry.location: entry.code for entry in storage.list()}
    assert found == {str(storage.location("good")): "", str(flat): "WRONG_PLACE"}
    with pytest.raises(SessionNotFoundError):
        storage.inspect("flat")


def test_case_30_a_bad_neighbour_hides_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = JsonlStorage(tmp_path)
    for number in range(5):
        storage.append(header_of(f"good{number}"), EVENTS)
    bad = {
        "empty": b"",
        "no-id": b'{"type":"session"}\n',
        "zeros": b"\0" * 4096,
        "age": b'{"type":"session","version":0,"id":"age","createdAt":"270","delegationDepth":0}\n',
        "binary": bytes(range(256)) * 10,
        "frame": MAGIC + b"\xff" * 100,
        "newer": b'{"type":"session","version":99}\n',
    }
    for name, data in bad.items():
        place_log(tmp_path, data, id=name)
    project = tmp_path / "_no-cwd"
    (project / "s.jsonl").mkdir()
    (project / "empty-directory").mkdir()
    loop = place_log(tmp_path, b"", id="loop")
    loop.unlink()
    loop.symlink_to("session.jsonl")
    huge = place_log(tmp_path, b"", id="huge")
    with huge.open("r+b") as file:
        file.truncate(1 << 30)  # a sparse gigabyte without a line feed
    denied = tmp_path / "--denied--"
    denied.mkdir()
    real = Path.iterdir

    def iterdir(self: Path) -> Any:
        if self == denied:
            raise PermissionError(errno.EACCES, "Permission denied", str(self))
        return real(self)

    monkeypatch.setattr(Path, "iterdir", iterdir)
    entries = storage.list()
    sound = sorted(entry.header.id for entry in entries if entry.header is not None)
    assert sound == [f"good{number}" for number in range(5)]
    damaged = {Path(entry.location).parent.name: entry for entry in entries if entry.header is None}
    assert len(damaged) == len(entries) - 5
    assert damaged.keys() == {*bad, "loop", "huge", "_no-cwd", tmp_path.name}
    assert all(entry.damage and entry.code for entry in damaged.values())
    assert damaged["newer"].code == "NEWER_FORMAT"
    assert damaged[tmp_path.name].code == "UNREADABLE"
    assert len(storage.inspect("good3").log) == len(EVENTS)


def test_an_unreadable_directory_never_passes_for_absence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = JsonlStorage(tmp_path)
    storage.append(header_of("good"), EVENTS)
    denied = tmp_path / "--denied--"
    denied.mkdir()
    real = Path.lstat

    def lstat(self: Path) -> Any:
        if denied in self.parents:
            raise PermissionError(errno.EACCES, "Permission denied", str(self))
        return real(self)

    monkeypatch.setattr(Path, "lstat", lstat)
    assert len(storage.inspect("good").log) == len(EVENTS)
    assert storage.revision("good")
    for use in (storage.inspect, storage.revision, storage.location):
        with pytest.raises(StorageError) as caught:
            use("other")
        assert caught.value.code == "UNREADABLE"
    with pytest.raises(StorageError):
        storage.append(header_of("other"), EVENTS)


def test_a_root_that_cannot_be_read_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = JsonlStorage(tmp_path)

    def refuse(self: Path) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    monkeypatch.setattr(Path, "iterdir", refuse)
    with pytest.raises(StorageError) as caught:
        storage.list()
    assert caught.value.code == "UNREADABLE"


def test_an_id_that_ends_as_a_log_does_is_found_and_listed(tmp_path: Path) -> None:
    storage = JsonlStorage(tmp_path)
    for id_ in ("s1.jsonl", "s1.jsonl.zstd"):
        storage.append(header_of(id_), EVENTS)
        assert lines(storage, id_) == wanted()
    assert {entry.header.id for entry in storage.list() if entry.header} == {
        "s1.jsonl",
        "s1.jsonl.zstd",
    }


# -- writers -------------------------------------------------------------------------------------------


def grown(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b'{"type":"plan/mode","seq":5,"time":1,"data":{}}\n')


def replaced(path: Path) -> None:
    data = path.read_bytes()
    path.rename(path.with_name("old"))
    path.write_bytes(data)


def shortened(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 3)


@pytest.mark.parametrize("change", [grown, replaced, shortened, Path.unlink])
@pytest.mark.parametrize("encoding", ["none", "zstd"])
def test_a_log_changed_from_outside_is_a_conflict(
    change: Callable[[Path], None], encoding: Encoding, tmp_path: Path
) -> None:
    storage = JsonlStorage(tmp_path, compression=encoding)
    storage.append(header_of(), EVENTS[:5])
    path = Path(str(storage.location("s1")))
    change(path)
    after = path.read_bytes() if path.exists() else None
    for _ in range(2):
        with pytest.raises(ConflictError, match="load the session again") as caught:
            storage.append(header_of(), EVENTS[5:])
        assert caught.value.path == str(path)
    assert (path.read_bytes() if path.exists() else None) == after


def test_touching_a_log_is_no_conflict(tmp_path: Path) -> None:
    storage = JsonlStorage(tmp_path)
    storage.append(header_of(), EVENTS[:5])
    os.utime(str(storage.location("s1")), (1, 1))
    storage.append(header_of(), EVENTS[5:])
    assert lines(storage) == wanted()


def test_a_load_settles_a_conflict(tmp_path: Path) -> None:
    one, other = JsonlStorage(tmp_path), JsonlStorage(tmp_path)
    one.append(header_of(), EVENTS[:5])
    other.append(header_of(), EVENTS[5:7])
    with pytest.raises(ConflictError):
        one.append(header_of(), EVENTS[5:6])
    one.load("s1", close_turn=False)
    one.append(header_of(), EVENTS[7:])
    assert lines(other) == wanted()


def test_two_that_create_the_same_session_do_not_overwrite(tmp_path: Path) -> None:
    storages = [JsonlStorage(tmp_path) for _ in range(4)]
    outcomes: list[str] = []
    start = threading.Barrier(4)

    def create(number: int) -> None:
        start.wait()
        try:
            storages[number].append(header_of(), EventBuilder().talk([str(number)] * 3).events)
            outcomes.append("done")
        except (SessionExistsError, ConflictError) as error:
            outcomes.append(error.code)

    threads = [threading.Thread(target=create, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert outcomes.count("done") == 1
    assert len(JsonlStorage(tmp_path).inspect("s1").log) == 9
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_log_that_appears_meanwhile_is_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.link

    def link(source: Any, target: Any) -> None:
        Path(target).write_bytes(b"theirs")
        real(source, target)

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(SessionExistsError):
        JsonlStorage(tmp_path).append(header_of(), EVENTS)
    (path,) = (path for path in tmp_path.rglob("*") if path.is_file())
    assert path.read_bytes() == b"theirs"


# -- a failing disk ------------------------------------------------------------------------------------


class Disk:
    """Makes one of the operating system's calls fail, after `good` good calls, `times` times."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, call: str, good: int = 0, times: int = 1):
        self.real = getattr(os, call)
        self.good, self.times = good, times
        self.part = 0
        monkeypatch.setattr(os, call, self)

    def __call__(self, *args: Any, **keys: Any) -> Any:
        if self.good > 0:
            self.good -= 1
            return self.real(*args, **keys)
        if self.times > 0:
            self.times -= 1
            if self.part:
                self.real(args[0], args[1][: self.part])
            raise OSError(errno.ENOSPC, "No space left on device")
        return self.real(*args, **keys)


@pytest.mark.parametrize("encoding", ["none", "zstd"])
@pytest.mark.parametrize("part", [0, 1, 40])
def test_case_20_a_partial_write_is_rolled_back_and_the_retry_stands_alone(
    encoding: Encoding, part: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = JsonlStorage(tmp_path, compression=encoding)
    storage.append(header_of(), EVENTS[:7])
    path = Path(str(storage.location("s1")))
    before, revision = path.read_bytes(), storage.revision("s1")
    for _ in range(2):
        with monkeypatch.context() as patch:
            Disk(patch, "write").part = part
            with pytest.raises(StorageWriteError, match="No space left") as caught:
                storage.append(header_of(), EVENTS[7:8])
        assert caught.value.details["errno"] == errno.ENOSPC
        assert isinstance(caught.value.__cause__, OSError)
        assert path.read_bytes() == before
    storage.append(header_of(), EVENTS[7:8])
    storage.append(header_of(), EVENTS[8:])
    assert lines(JsonlStorage(tmp_path)) == wanted()
    assert storage.revision("s1") != revision


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, data[:7]))
    storage = JsonlStorage(tmp_path)
    storage.append(header_of(), EVENTS[:7])
    storage.append(header_of(), EVENTS[7:])
    assert lines(storage) == wanted()


def test_a_failing_sync_is_an_error_of_its_own_and_nothing_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = JsonlStorage(tmp_path)
    storage.append(header_of(), EVENTS[:7])
    path = Path(str(storage.location("s1")))
    before = path.read_bytes()
    with monkeypatch.context() as patch:
        Disk(patch, "fsync")
        with pytest.raises(StorageWriteError) as caught:
            storage.append(header_of(), EVENTS[7:])
    assert caught.value.code == "SYNC_FAILED"
    assert path.read_bytes() == before
    storage.append(header_of(), EVENTS[7:])
    assert lines(JsonlStorage(tmp_path)) == wanted()


@pytest.mark.parametrize("broken", ["ftruncate", "fsync"])
def test_a_failing_roll_back_has_its_own_code_and_stops_the_writer(
    broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = JsonlStorage(tmp_path)
    storage.append(header_of(), EVENTS[:7])
    path = Path(str(storage.location("s1")))
    with monkeypatch.context() as patch:
        Disk(patch, "write").part = 40
        Disk(patch, broken, times=9)
        with pytest.raises(StorageWriteError, match="reopen the session") as caught:
            storage.append(header_of(), EVENTS[7:])
    assert caught.value.code == "ROLLBACK_FAILED"
    if broken == "ftruncate":
        with pytest.raises(ConflictError):
            storage.append(header_of(), EVENTS[7:])
    storage.load("s1", close_turn=False)
    storage.append(header_of(), EVENTS[7:])
    assert lines(JsonlStorage(tmp_path)) == wanted()
    assert path.read_bytes() == log_text(EVENTS[:7]) + encode_batch(EVENTS[7:])


def test_every_call_of_a_creation_can_fail_and_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = 0
    for call in ("open", "write", "fsync", "link", "mkdir", "stat"):
        for good in range(12):
            root = tmp_path / f"{call}{good}"
            storage = JsonlStorage(root)
            try:
                with monkeypatch.context() as patch:
                    disk = Disk(patch, call, good)
                    storage.append(header_of(cwd="/w"), EVENTS)
            except StorageWriteError as error:
                failures += 1
                assert error.code == "WRITE_FAILED"  # noqa: PT017 - calls that succeed are fine as well
                assert not [path for path in root.rglob("*") if path.is_file()], (call, good)
            else:
                if disk.times:
                    break
            # Some failures are harmless; what was not stored is stored by the next try.
            if storage.revision("s1") is None:
                storage.append(header_of(cwd="/w"), EVENTS)
            assert lines(storage) == wanted()
    assert failures > 8


def test_every_call_of_a_repair_can_fail_and_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = open_events()
    torn = b'{"type":"torn'
    reference = JsonlStorage(tmp_path / "whole")
    place_log(tmp_path / "whole", log_text(events) + torn)
    balanced = [event.to_json() for event in reference.load("s1").log.view()]
    failures = 0
    for call in ("open", "write", "fsync", "ftruncate"):
        for good in range(8):
            root = tmp_path / f"{call}{good}"
            path = place_log(root, log_text(events) + torn)
            storage = JsonlStorage(root)
            try:
                with monkeypatch.context() as patch:
                    disk = Disk(patch, call, good)
                    storage.load("s1")
            except StorageWriteError:
                failures += 1
            except StorageError as error:
                assert error.code == "UNREADABLE"  # noqa: PT017 - reading can fail as well
            else:
                if disk.times:
                    break
            assert path.read_bytes().startswith(log_text(events))
            assert [
                event.to_json() for event in JsonlStorage(root).load("s1").log.view()
            ] == balanced
            assert torn in {side.read_bytes() for side in path.parent.glob("*.bin")}
    assert failures > 5


def test_a_file_in_place_of_a_directory_is_no_existing_session(tmp_path: Path) -> None:
    (tmp_path / "_no-cwd").write_bytes(b"in the way")
    with pytest.raises(StorageWriteError, match="nothing was created"):
        JsonlStorage(tmp_path).append(header_of(), EVENTS)


def test_an_interrupted_write_is_never_glued_to_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = JsonlStorage(tmp_path)
    storage.append(header_of(), EVENTS[:7])
    real = os.write

    def interrupt(descriptor: int, data: Any) -> int:
        real(descriptor, data[:40])
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", interrupt)
        with pytest.raises(KeyboardInterrupt):
            storage.append(header_of(), EVENTS[7:])
    assert storage.inspect("s1", close_turn=False).torn is None
    storage.append(header_of(), EVENTS[7:])
    assert lines(storage) == wanted()


def test_a_file_that_grows_while_it_is_read_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"one\n")
    real = files.file_state
    calls = 0

    def grow(target: Any) -> files.FileState:
        nonlocal calls
        calls += 1
        if calls == 2:
            with path.open("ab") as file:
                file.write(b"two\n")
        return real(target)

    monkeypatch.setattr(files, "file_state", grow)
    data, state = files.read_stable(path)
    assert data == b"one\ntwo\n"
    assert state.size == len(data)
    assert calls == 4


def test_locations_and_raw_text(tmp_path: Path) -> None:
    for encoding in ("none", "zstd"):
        root = tmp_path / encoding
        data = log_text(EVENTS) if encoding == "none" else log_frames([EVENTS])
        torn = b'{"torn' if encoding == "none" else MAGIC + b"\x04"
        path = place_log(root, data + torn, encoding=encoding)
        raw = JsonlStorage(root).read_raw("s1")
        assert raw.filename == "session.jsonl"
        assert raw.content == log_text(EVENTS) + (torn if encoding == "none" else b"")
        assert JsonlStorage(root).location("s1") == str(path)


def test_a_pipe_in_place_of_a_log_is_damage_and_waits_for_nobody(tmp_path: Path) -> None:
    storage = JsonlStorage(tmp_path)
    storage.append(header_of("good"), open_events())
    pipe = tmp_path / "_no-cwd" / "pipe" / "session.jsonl"
    pipe.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(pipe)
    assert [entry.code for entry in storage.list() if entry.header is None] == ["UNREADABLE"]
    with pytest.raises(StorageError):
        storage.inspect("pipe")
