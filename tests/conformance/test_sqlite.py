"""The SQLite storage keeps the storage contract."""

from __future__ import annotations

from pathlib import Path

import pytest

from turnlog.storage.sqlite import SqliteStorage
from turnlog.testing.conformance import BEHAVIOURS, Behaviour


@pytest.mark.parametrize("behaviour", BEHAVIOURS, ids=lambda behaviour: behaviour.__name__)
@pytest.mark.parametrize("pack", [True, False], ids=["packed", "plain"])
def test_sqlite(behaviour: Behaviour, pack: bool, tmp_path: Path) -> None:
    behaviour(lambda: SqliteStorage(tmp_path / "sessions.db", pack=pack))
