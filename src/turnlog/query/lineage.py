"""Lineage: forks under the sessions that they were made from.

Parents are what headers say, and a header may say anything: a parent that is not there, or a circle. Every
session has exactly one place in a tree whatever they say.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from turnlog.engine.listing import SessionInfo

Placed = tuple[int, SessionInfo]
"""A session and its depth: 0 for one whose parent is not among them."""


def build_trees(infos: Sequence[SessionInfo]) -> list[list[Placed]]:
    """One tree a root, each as a list in reading order; roots and siblings keep the order in which they come."""
    known = {info.header.id: info for info in infos}
    children: dict[str, list[SessionInfo]] = {}
    roots = []
    for info in infos:
        parent = info.header.parent_session
        if parent is None or parent not in known or parent == info.header.id:
            roots.append(info)
        else:
            children.setdefault(parent, []).append(info)
    placed: set[str] = set()
    trees = [_walk(root, children, placed) for root in roots]
    # What no root leads to descends from itself: its first one stands for the circle's root.
    trees += [_walk(info, children, placed) for info in infos if info.header.id not in placed]
    return [tree for tree in trees if tree]


def _walk(
    root: SessionInfo, children: dict[str, list[SessionInfo]], placed: set[str]
) -> list[Placed]:
    """The tree under a session, without what is placed already; forks of forks may go thousands deep."""
    tree: list[Placed] = []
    todo = [(0, root)]
    while todo:
        depth, info = todo.pop()
        if info.header.id in placed:
            continue
        placed.add(info.header.id)
        tree.append((depth, info))
        todo += [(depth + 1, child) for child in reversed(children.get(info.header.id, ()))]
    return tree


def order_for_removal(ids: Iterable[str], dependents: dict[str, set[str]]) -> list[str]:
    """The ids with everything that depends on another in front of it; circles are cut somewhere."""
    wanted = dict.fromkeys(ids)
    done: dict[str, None] = {}
    entered: set[str] = set()
    for start in wanted:
        todo = [(start, iter(())) if start in entered else _enter(start, dependents, entered)]
        while todo:
            name, ahead = todo[-1]
            following = next((one for one in ahead if one in wanted and one not in entered), None)
            if following is None:
                done.setdefault(name)
                todo.pop()
            else:
                todo.append(_enter(following, dependents, entered))
    return list(done)


def _enter(
    name: str, dependents: dict[str, set[str]], entered: set[str]
) -> tuple[str, Iterator[str]]:
    entered.add(name)
    return name, iter(sorted(dependents.get(name, ())))
