"""SQLite storage: the sessions of a store in one database file."""

from turnlog.storage.sqlite.storage import SqliteStorage

__all__ = ["SqliteStorage"]
