"""Blobs: by content, checked when read, and collected only when old and named by nobody."""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from turnlog.engine.blobs import GRACE_MS, BlobStore, find_references
from turnlog.engine.protocol import Storage
from turnlog.errors import StorageError, StorageWriteError
from turnlog.storage.jsonl import JsonlStorage
from turnlog.storage.memory import MemoryStorage
from turnlog.storage.sqlite import SqliteStorage

NOW = 1_700_000_000_000


def test_a_reference_is_the_digest_of_the_content() -> None:
    store = BlobStore(MemoryStorage())
    reference = store.put(b"picture")
    assert reference == "sha256:" + hashlib.sha256(b"picture").hexdigest()
    assert store.put(b"picture") == reference
    assert store.get(reference) == b"picture"
    assert [blob.size for blob in store.all()] == [7]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "sha256:",
        "a" * 64,
        "sha256:" + "A" * 64,
        "sha256:" + "a" * 63,
        "sha256:" + "a" * 65,
        "sha256:" + "a" * 64 + "\n",
        "sha256:../../../etc/passwd",
        "sha256:" + "\ud800" * 64,
        "md5:" + "a" * 64,
    ],
)
def test_what_is_no_reference_is_refused(text: str) -> None:
    with pytest.raises(StorageError) as caught:
        BlobStore(MemoryStorage()).get(text)
    assert caught.value.code == "INVALID_BLOB_REFERENCE"


def test_a_blob_that_is_not_there_has_its_own_code() -> None:
    with pytest.raises(StorageError) as caught:
        BlobStore(MemoryStorage()).get("sha256:" + "a" * 64)
    assert caught.value.code == "BLOB_NOT_FOUND"


def test_damage_is_noticed_and_mended_by_storing_again(tmp_path: Path) -> None:
    jsonl = JsonlStorage(tmp_path / "root")
    sqlite = SqliteStorage(tmp_path / "s.db")
    for storage in (jsonl, sqlite):
        store = BlobStore(storage)
        reference = store.put(b"right")
        if storage is jsonl:
            (path,) = (tmp_path / "root" / ".blobs").glob("??/*")
            path.write_bytes(b"wrong")
        else:
            with closing(sqlite3.connect(tmp_path / "s.db")) as connection, connection:
                connection.execute("UPDATE blobs SET body = x'00'")
        with pytest.raises(StorageError) as caught:
            store.get(reference)
        assert caught.value.code == "DAMAGED_BLOB"
        assert store.put(b"right") == reference
        assert store.get(reference) == b"right"
    sqlite.close()


def test_collecting_spares_what_is_named_or_young(tmp_path: Path) -> None:
    storage = SqliteStorage(tmp_path / "s.db", clock=lambda: times[0])
    times = [NOW - GRACE_MS - 1]
    store = BlobStore(storage, clock=lambda: NOW)
    named, forgotten = store.put(b"named"), store.put(b"forgotten")
    times[0] = NOW - GRACE_MS + 1
    young = store.put(b"young")
    texts = [b'{"x":"' + named.encode() + b'"}', b"sha256:short"]
    assert find_references(texts) == {named[7:]}
    would = store.collect(texts, dry_run=True)
    assert [blob.digest for blob in would] == [forgotten[7:]]
    assert len(store.all()) == 3
    assert list(store.collect(texts)) == list(would)
    assert {blob.digest for blob in store.all()} == {named[7:], young[7:]}
    assert list(store.collect(texts)) == []
    assert len(store.collect([], grace_ms=0)) == 2
    assert list(store.all()) == []
    storage.close()


@pytest.mark.parametrize("kind", ["jsonl", "sqlite"])
def test_a_blob_that_is_stored_again_is_young_again(kind: str, tmp_path: Path) -> None:
    old = NOW - 2 * GRACE_MS
    times = [old]
    opened: dict[str, Callable[[], Storage]] = {
        "jsonl": lambda: JsonlStorage(tmp_path / "root"),
        "sqlite": lambda: SqliteStorage(tmp_path / "s.db", clock=lambda: times[0]),
    }
    storage = opened[kind]()
    reference = BlobStore(storage).put(b"x")
    for path in (tmp_path / "root").glob(".blobs/??/*"):
        os.utime(path, (old / 1000, old / 1000))
    assert [blob.stored_at for blob in storage.list_blobs()] == [old]
    times[0] = NOW
    # Its event is not written yet: collecting now must not take it away.
    assert BlobStore(storage).put(b"x") == reference
    (blob,) = storage.list_blobs()
    assert blob.stored_at > old + GRACE_MS
    storage.close()


def test_files_that_are_no_blobs_are_none(tmp_path: Path) -> None:
    storage = JsonlStorage(tmp_path)
    BlobStore(storage).put(b"x")
    (directory,) = (tmp_path / ".blobs").iterdir()
    for name in ("session.x.tmp", ".DS_Store", "a" * 63, "A" * 64):
        (directory / name).write_bytes(b"?")
    assert len(storage.list_blobs()) == 1


def test_a_disk_that_refuses_is_an_error_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = JsonlStorage(tmp_path)
    digest = hashlib.sha256(b"x").hexdigest()
    (tmp_path / ".blobs").write_bytes(b"in the way")
    with pytest.raises(StorageWriteError):
        storage.put_blob(digest, b"x")
    with pytest.raises(StorageError):
        storage.get_blob(digest)
    (tmp_path / ".blobs").unlink()
    storage.put_blob(digest, b"x")

    def refuse(self: Path, **_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(StorageWriteError, match="Permission denied"):
        storage.delete_blob(digest)
