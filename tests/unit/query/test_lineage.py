"""Trees of forks, whatever headers claim, and the order in which a family can go."""

from __future__ import annotations

from turnlog.engine.listing import Progress, SessionInfo
from turnlog.query.lineage import build_trees, order_for_removal
from turnlog.testing.builders import header_of


def info(id_: str, parent: str | None = None) -> SessionInfo:
    fields = {} if parent is None else {"parentSession": parent}
    return SessionInfo(header_of(id_, **fields), "", Progress())


def shape(*infos: SessionInfo) -> list[list[str]]:
    return [[f"{depth}{placed.header.id}" for depth, placed in tree] for tree in build_trees(infos)]


def test_children_stand_under_their_parent_in_the_given_order() -> None:
    assert shape(info("c", "a"), info("b"), info("d", "c"), info("a"), info("e", "a")) == [
        ["0b"],
        ["0a", "1c", "2d", "1e"],
    ]


def test_a_missing_parent_makes_a_root() -> None:
    assert shape(info("a", "gone")) == [["0a"]]


def test_circles_are_cut_at_their_first_session() -> None:
    assert shape(info("a", "b"), info("b", "a"), info("c", "b"), info("self", "self")) == [
        ["0self"],
        ["0a", "1b", "2c"],
    ]


def test_every_session_has_one_place_however_deep() -> None:
    infos = [info("s0"), *(info(f"s{n}", f"s{n - 1}") for n in range(1, 5000))]
    (tree,) = build_trees(infos[::-1])
    assert [depth for depth, _ in tree] == list(range(5000))


def test_what_depends_on_another_goes_first() -> None:
    needed = {"a": {"b", "c"}, "b": {"d"}, "x": {"a"}}
    assert order_for_removal(["a", "b", "c", "d", "a"], needed) == ["d", "b", "c", "a"]
    assert order_for_removal(["d", "a"], needed) == ["d", "a"]
    chain = {f"s{n}": {f"s{n + 1}"} for n in range(5000)}
    order = order_for_removal([f"s{n}" for n in range(5001)], chain)
    assert order == [f"s{n}" for n in range(5000, -1, -1)]


def test_a_circle_of_quotes_ends() -> None:
    assert sorted(order_for_removal(["a", "b"], {"a": {"b"}, "b": {"a"}})) == ["a", "b"]
