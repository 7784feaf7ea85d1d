"""Blobs of a JSONL root: one file each under `.blobs`, named by its digest.

A file appears under its name complete or not at all, and two writers of one blob write the same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from turnlog.engine.blobs import BlobInfo
from turnlog.errors import SessionExistsError, StorageWriteError
from turnlog.storage.jsonl.files import create_log, sync_directory

BLOBS_NAME = ".blobs"


class BlobFiles:
    """The blob files of one root; see `turnlog.engine.blobs.BlobMedium`."""

    def __init__(self, root: Path) -> None:
        self._root = root / BLOBS_NAME

    def _path(self, digest: str) -> Path:
        # Two levels keep directories small.
        return self._root / digest[:2] / digest

    def put(self, digest: str, data: bytes) -> None:
        """Store the bytes."""
        if self._path(digest).exists():
            return
        try:
            create_log(self._path(digest), data)
        except SessionExistsError:
            return  # another writer was faster, with the same bytes

    def get(self, digest: str) -> bytes | None:
        """The bytes, or None."""
        try:
            return self._path(digest).read_bytes()
        except FileNotFoundError:
            return None

    def all(self) -> Sequence[BlobInfo]:
        """Every stored blob."""
        if not self._root.is_dir():
            return []
        files = [path for path in self._root.glob("??/*") if not path.name.endswith(".tmp")]
        states = [(path.name, path.stat()) for path in files]
        return [
            BlobInfo(name, stat.st_size, stat.st_mtime_ns // 1_000_000) for name, stat in states
        ]

    def delete(self, digest: str) -> None:
        """Remove the blob."""
        path = self._path(digest)
        try:
            path.unlink(missing_ok=True)
            if path.parent.is_dir():
                sync_directory(path.parent)
        except OSError as error:
            raise StorageWriteError(f"{path}: {error.strerror or error}", path=str(path)) from error
