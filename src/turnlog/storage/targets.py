"""Targets: which storage a path or a URL names."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import unquote, urlsplit

from turnlog.engine.protocol import Storage
from turnlog.errors import TargetError

Target = str | os.PathLike[str] | None
"""A path (`*.db` or a file: SQLite; a directory: JSONL), a URL, or None for the user's default store."""

_DATABASE_SUFFIXES = frozenset({".db", ".sqlite", ".sqlite3"})


def open_storage(target: Target = None) -> Storage:
    """The storage that a target names; see `open`."""
    if target is None:
        target = default_store()
    if isinstance(target, os.PathLike):
        return _open_path(Path(target))
    if target == "memory:":
        from turnlog.storage.memory import MemoryStorage

        return MemoryStorage()
    if not target or "\0" in target:
        raise TargetError(f"{target!r} names no storage", target=target)
    scheme = target.partition(":")[0].lower() if ":" in target else ""
    if scheme == "jsonl":
        return _open_jsonl(_url_path(target))
    if scheme == "sqlite":
        return _open_sqlite(_url_path(target))
    if "://" in target:
        raise TargetError(
            f"no storage for {target!r}; use a path, sqlite:///..., jsonl:///... or memory:",
            target=target,
        )
    return _open_path(Path(target))


def default_store() -> Path:
    """The user's own store: `sessions.db` under the platform's data directory for turnlog."""
    import platformdirs

    return Path(platformdirs.user_data_dir("turnlog", appauthor=False)) / "sessions.db"


def _url_path(url: str) -> Path:
    """The absolute path of `scheme:///path`, also written `scheme:////path`."""
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise TargetError(f"{url!r} is no URL: {error}", target=url) from error
    if parts.netloc or not parts.path.startswith("/"):
        raise TargetError(
            f"{url!r} needs an absolute path: {parts.scheme}:///absolute/path", target=url
        )
    if parts.query or parts.fragment:
        raise TargetError(f"{url!r}: write '?' as %3F and '#' as %23 in a path", target=url)
    return Path("/" + unquote(parts.path).lstrip("/"))


def _open_path(path: Path) -> Storage:
    is_database = path.suffix in _DATABASE_SUFFIXES and not path.is_dir()
    return _open_sqlite(path) if is_database or path.is_file() else _open_jsonl(path)


def _open_jsonl(path: Path) -> Storage:
    from turnlog.storage.jsonl import JsonlStorage

    return JsonlStorage(path)


def _open_sqlite(path: Path) -> Storage:
    from turnlog.storage.sqlite import SqliteStorage

    return SqliteStorage(path)
