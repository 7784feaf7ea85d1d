"""The clock: passed in wherever time is told, with one default."""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], int]
"""Gives the time in Unix milliseconds."""


def system_clock() -> int:
    """The system's time in Unix milliseconds."""
    return time.time_ns() // 1_000_000
