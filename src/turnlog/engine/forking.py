"""What objects put right around `os.fork`: locks that other threads hold, and what a child must not inherit.

One set of hooks for all objects, which it does not keep alive: a hook of `os` can never be taken off again.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Inheritable(Protocol):
    """An object that a child of `os.fork` may find itself with."""

    def before_fork(self) -> None:
        """Get into a state that can be inherited."""

    def after_fork(self, *, in_child: bool) -> None:
        """Go on; in the child, forget what is the parent's."""


_objects: weakref.WeakSet[Inheritable] = weakref.WeakSet()
_prepared: list[Inheritable] = []


def watch_forks(inheritable: Inheritable) -> None:
    """Call the object's methods around every fork, for as long as it lives."""
    _objects.add(inheritable)


def _before() -> None:
    for inheritable in list(_objects):
        inheritable.before_fork()
        _prepared.append(inheritable)


def _after(*, in_child: bool) -> None:
    while _prepared:
        _prepared.pop().after_fork(in_child=in_child)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before,
        after_in_parent=lambda: _after(in_child=False),
        after_in_child=lambda: _after(in_child=True),
    )
