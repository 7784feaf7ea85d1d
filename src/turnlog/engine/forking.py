"""What objects put right in a child made by `os.fork`: locks that other threads held, and what is the parent's.

One hook for all objects, which it does not keep alive: a hook of `os` can never be taken off again.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable

_hooks: dict[int, weakref.WeakMethod[Callable[[], None]]] = {}
_count = iter(range(1 << 62))


def after_fork_in_child(method: Callable[[], None]) -> None:
    """Call the bound method in every forked child, for as long as its object lives."""
    number = next(_count)
    _hooks[number] = weakref.WeakMethod(method, lambda _: _hooks.pop(number, None))


def _run_hooks() -> None:
    for reference in tuple(_hooks.values()):
        method = reference()
        if method is not None:
            method()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_run_hooks)
