"""What an examination finds: facts about a store, and concerns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec


class Concern(msgspec.Struct, frozen=True):
    """One thing to know: `what`, and what to `do`. A note may stay as it is; the rest needs somebody."""

    severity: Literal["attention", "note"]
    kind: str
    what: str
    do: str
    places: Sequence[str] = ()


class Report(msgspec.Struct):
    """A store at a glance. Sizes are bytes; `parts` are those of the medium, `versions` what it is written in."""

    kind: str
    location: str
    parts: dict[str, int] = {}
    versions: dict[str, Any] = {}
    sessions: int = 0
    archived: int = 0
    events: int = 0
    damaged: int = 0
    blobs: int = 0
    concerns: list[Concern] = []

    @property
    def is_well(self) -> bool:
        """Whether nothing needs attention."""
        return all(concern.severity == "note" for concern in self.concerns)


def count(things: Sequence[Any], noun: str, plural: str | None = None) -> str:
    """How many there are, with the noun."""
    return f"{len(things):,} {noun if len(things) == 1 else plural or noun + 's'}"
