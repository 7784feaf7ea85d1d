"""The JSONL storage keeps the storage contract, in either encoding, packed or plain."""

from __future__ import annotations

from pathlib import Path

import pytest

from turnlog.storage.jsonl import JsonlStorage
from turnlog.storage.jsonl.paths import Encoding
from turnlog.testing.conformance import BEHAVIOURS, Behaviour


@pytest.mark.parametrize("behaviour", BEHAVIOURS, ids=lambda behaviour: behaviour.__name__)
@pytest.mark.parametrize("encoding", ["none", "zstd"])
@pytest.mark.parametrize("pack", [True, False], ids=["packed", "plain"])
def test_jsonl(behaviour: Behaviour, encoding: Encoding, pack: bool, tmp_path: Path) -> None:
    root = tmp_path / "sessions"
    behaviour(lambda: JsonlStorage(root, compression=encoding, pack=pack))
    if root.exists():
        assert {path.name for path in tmp_path.iterdir()} == {"sessions"}
