"""The in-memory storage keeps the storage contract."""

from __future__ import annotations

import pytest

from turnlog.storage.memory import MemoryStorage
from turnlog.testing.conformance import BEHAVIOURS, Behaviour


@pytest.mark.parametrize("behaviour", BEHAVIOURS, ids=lambda behaviour: behaviour.__name__)
def test_memory(behaviour: Behaviour) -> None:
    storage = MemoryStorage()
    behaviour(lambda: storage)
