"""The schema of a store's database, and how older ones become it.

`SCHEMA_VERSION` is the file's `user_version`. A change of schema appends a step to `MIGRATIONS`, each a list of
statements that takes a file of version n to n + 1; a new file runs all of them, so there is one truth.
"""

from __future__ import annotations

APPLICATION_ID = 0x546C6F67
"""`Tlog`: marks a database as a turnlog store."""

PAGE_SIZE = 16384
"""Saves 40% of the disk for rows of some kilobytes, at no cost where rows are written in batches."""

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        # The store's identity, so that revisions of two stores never look alike.
        "CREATE TABLE store (id TEXT NOT NULL)",
        # A key is never used again: revisions are made of it, and forks point down, at smaller keys.
        # id, header, cwd, parent and title are bytes: UTF-8 in which lone surrogates survive. The columns behind
        # `header` are derived from header and log, so that listing and sorting read neither.
        """CREATE TABLE sessions (
            key INTEGER PRIMARY KEY AUTOINCREMENT,
            id BLOB NOT NULL UNIQUE,
            header BLOB NOT NULL,
            created_at INTEGER NOT NULL,
            cwd BLOB,
            parent BLOB,
            last_time INTEGER NOT NULL,
            next_seq INTEGER NOT NULL,
            title BLOB,
            open_turn INTEGER NOT NULL,
            revision INTEGER NOT NULL,
            fence INTEGER NOT NULL,
            base_key INTEGER,
            base_stop INTEGER NOT NULL DEFAULT 0,
            tags TEXT NOT NULL DEFAULT '[]',
            archived INTEGER NOT NULL DEFAULT 0,
            deleted INTEGER NOT NULL DEFAULT 0
        )""",
        "CREATE INDEX sessions_by_created ON sessions (created_at DESC, id) WHERE NOT deleted",
        "CREATE INDEX sessions_by_active ON sessions (last_time DESC, id) WHERE NOT deleted",
        "CREATE INDEX sessions_by_base ON sessions (base_key) WHERE base_key IS NOT NULL",
        # place = key << 32 | first seq: one b-tree in log order, without an index beside it.
        "CREATE TABLE blobs (digest TEXT PRIMARY KEY, body BLOB NOT NULL, stored_at INTEGER NOT NULL)",
        "CREATE TABLE batches (place INTEGER PRIMARY KEY, stop INTEGER NOT NULL, body BLOB NOT NULL)",
    ),
)

SCHEMA_VERSION = len(MIGRATIONS)
