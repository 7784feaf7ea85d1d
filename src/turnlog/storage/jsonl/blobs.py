"""Blobs of a JSONL root: one file each under `.blobs`, named by its digest.

A file appears under its name complete or not at all, and two writers of one blob write the same bytes.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from turnlog.engine.blobs import BlobInfo
from turnlog.engine.directories import sync_directory
from turnlog.errors import SessionExistsError, StorageError, StorageWriteError
from turnlog.storage.jsonl.files import create_log, replace_file

BLOBS_NAME = ".blobs"
_DIGEST = re.compile("[0-9a-f]{64}")


class BlobFiles:
    """The blob files of one root; see `turnlog.engine.blobs.BlobMedium`."""

    def __init__(self, root: Path) -> None:
        self._root = root / BLOBS_NAME

    def _path(self, digest: str) -> Path:
        # Two levels keep directories small.
        return self._root / digest[:2] / digest

    def put(self, digest: str, data: bytes) -> None:
        """Store the bytes; those that are stored already count as new from now on."""
        path = self._path(digest)
        try:
            if path.read_bytes() == data:
                # Young again, so that collecting spares it until its event is written.
                os.utime(path)
                sync_directory(path.parent)
                return
            replace_file(path, data)  # damaged
        except FileNotFoundError:
            try:
                create_log(path, data)
            except SessionExistsError:
                return  # another writer was faster, with the same bytes
        except OSError as error:
            raise _failed(path, error) from error

    def get(self, digest: str) -> bytes | None:
        """The bytes, or None."""
        path = self._path(digest)
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageError(
                f"{path} cannot be read: {error.strerror or error}",
                code="UNREADABLE",
                path=str(path),
            ) from error

    def all(self) -> Sequence[BlobInfo]:
        """Every stored blob."""
        found = []
        for path in self._root.glob("??/*"):
            if _DIGEST.fullmatch(path.name) is None:
                continue
            try:
                stat = path.stat()
            except FileNotFoundError:
                continue  # removed meanwhile
            except OSError as error:
                raise _failed(path, error) from error
            found.append(BlobInfo(path.name, stat.st_size, stat.st_mtime_ns // 1_000_000))
        return found

    def delete(self, digest: str) -> None:
        """Remove the blob."""
        path = self._path(digest)
        try:
            path.unlink(missing_ok=True)
            if path.parent.is_dir():
                sync_directory(path.parent)
        except OSError as error:
            raise _failed(path, error) from error


def _failed(path: Path, error: OSError) -> StorageWriteError:
    return StorageWriteError(f"{path}: {error.strerror or error}", path=str(path))
