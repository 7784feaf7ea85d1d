"""Directories that survive a power cut: an entry is durable once its directory was synced."""

from __future__ import annotations

import os
from pathlib import Path

_DIRECTORY = getattr(os, "O_DIRECTORY", 0)
_CLOSE_ON_EXEC = getattr(os, "O_CLOEXEC", 0)


def sync_directory(path: Path) -> None:
    """Make the directory's own entries durable."""
    descriptor = os.open(path, os.O_RDONLY | _DIRECTORY | _CLOSE_ON_EXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(path: Path) -> None:
    """Create the directory and its parents, private, and each durable in its own parent."""
    missing = []
    while not path.is_dir():
        missing.append(path)
        path = path.parent
    for directory in reversed(missing):
        directory.mkdir(mode=0o700, exist_ok=True)
        try:
            sync_directory(directory.parent)
        except OSError:
            # Left there, the next try would take it for durable.
            _remove_empty(directory)
            raise


def _remove_empty(directory: Path) -> None:
    try:
        directory.rmdir()
    except OSError:
        return
