"""Where a message goes: on the surface, and in a turn where it needs one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from turnlog.frozen import FrozenList


def placement(nodes: FrozenList, replace: tuple[int, int] | None) -> tuple[Any, list[int] | None]:
    """The surface operation for a message, and the nodes that it must cite.

    A range with an end that is no node is left to the surface's own check, which names the fault.
    """
    if replace is None:
        return "append", None
    start, end = replace
    covered = (
        nodes[nodes.index(start) : nodes.index(end) + 1] if start in nodes and end in nodes else []
    )
    return {"op": "replace", "start": start, "end": end}, list(covered) or None


def own_turn(
    turn: int, message: Mapping[str, Any], usage: Mapping[str, Any] | None
) -> list[dict[str, Any]]:
    """The entries of a completed turn of one step that holds nothing but an assistant message, third in it."""
    place = {"turn": turn, "step": 1}
    data: dict[str, Any] = {**place, "message": message}
    if usage is not None:
        data["usage"] = dict(usage)
    return [
        {"type": "turn/start", "data": {"turn": turn}},
        {"type": "step/start", "data": place},
        {"type": "assistant/message", "data": data, "surfaceOp": "append"},
        {"type": "step/end", "data": place},
        {"type": "turn/end", "data": {"turn": turn, "reason": {"kind": "completed"}}},
    ]
