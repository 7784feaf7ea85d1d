"""Frozen values: no mutator of dict or list works on them, and everything else does."""

from __future__ import annotations

import copy
import json
import pickle
from typing import Any

import pytest

from turnlog.frozen import FrozenDict, FrozenList, freeze, thaw
from turnlog.messages import Message, user_message

# What may be called on a frozen value. Whatever else dict and list have or will get must be refused.
DICT_READERS = {
    "__class_getitem__", "__contains__", "__getitem__", "__iter__", "__len__", "__or__", "__reversed__", "__ror__",
    "copy", "fromkeys", "get", "items", "keys", "values",
}  # fmt: skip
LIST_READERS = {
    "__add__", "__class_getitem__", "__contains__", "__getitem__", "__iter__", "__len__", "__mul__", "__reversed__",
    "__rmul__", "copy", "count", "index",
}  # fmt: skip
ARGUMENTS = {
    "__delitem__": (0,),
    "__setitem__": (0, "x"),
    "__iadd__": ([1],),
    "__imul__": (2,),
    "__ior__": ({"x": 1},),
    "append": (1,),
    "extend": ([1],),
    "insert": (0, 1),
    "remove": (1,),
    "setdefault": ("x", 1),
    "update": ({"x": 1},),
}


def mutators(kind: type, readers: set[str]) -> list[str]:
    return sorted(set(dir(kind)) - set(dir(object)) - readers)


@pytest.mark.parametrize("name", mutators(dict, DICT_READERS))
def test_every_mutator_of_dict_raises(name: str) -> None:
    for key in (0, "a"):
        value = FrozenDict({"a": 1})
        arguments: tuple[Any, ...] = ARGUMENTS.get(name, ())
        with pytest.raises(TypeError):
            getattr(value, name)(*((key, *arguments[1:]) if name.endswith("item__") else arguments))
        assert value == {"a": 1}
        with pytest.raises(TypeError):
            value.update(x=1)


@pytest.mark.parametrize("name", mutators(list, LIST_READERS))
def test_every_mutator_of_list_raises(name: str) -> None:
    value = FrozenList([1, 0])
    with pytest.raises(TypeError):
        getattr(value, name)(*ARGUMENTS.get(name, ()))
    with pytest.raises(TypeError):
        value.sort(key=None, reverse=True)
    assert value == [1, 0]


def test_statements_and_slices_cannot_change_a_list() -> None:
    value = FrozenList([1, 2])
    with pytest.raises(TypeError):
        value[0] = 3
    with pytest.raises(TypeError):
        value[:] = []
    with pytest.raises(TypeError):
        del value[:1]
    with pytest.raises(TypeError):
        value += [3]
    with pytest.raises(TypeError):
        value *= 2
    assert value == [1, 2]


def test_new_values_derived_from_frozen_ones_are_plain() -> None:
    value, rows = FrozenDict(a=1), FrozenList([1])
    assert type(value | {"b": 2}) is dict
    for plain in (rows.__add__([1]), rows * 2, rows[:], rows.copy()):
        assert type(plain) is list
    assert (value | {"b": 2}, rows * 2, rows[:]) == ({"a": 1, "b": 2}, [1, 1], [1])


def test_frozen_values_read_like_plain_ones() -> None:
    plain = {"a": [1, {"b": None}], "c": "x"}
    value = freeze(plain)
    assert json.dumps(value) == json.dumps(plain)
    assert value == plain
    assert plain == value
    assert value["a"][1]["b"] is None
    assert list(value) == ["a", "c"]
    assert isinstance(value, dict)
    assert isinstance(value["a"], list)
    match value:
        case {"a": [1, {"b": None}], **rest}:
            assert rest == {"c": "x"}
        case _:
            pytest.fail("a frozen value must match like a plain one")


def test_copies_need_no_copying() -> None:
    value = freeze({"a": [1]})
    assert copy.copy(value) is value
    assert copy.deepcopy(value) is value
    assert copy.copy(value["a"]) is value["a"]
    assert copy.deepcopy([value]) == [value]


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickling_keeps_value_and_type(protocol: int) -> None:
    value = freeze({"a": [1, {"b": []}]})
    again = pickle.loads(pickle.dumps(value, protocol))
    assert again == value
    assert [type(again), type(again["a"]), type(again["a"][1])] == [
        FrozenDict,
        FrozenList,
        FrozenDict,
    ]
    message = user_message("hi")
    assert type(pickle.loads(pickle.dumps(message, protocol))) is Message


def test_thawing_gives_a_mutable_copy_that_shares_nothing() -> None:
    value = freeze({"a": [1, {"b": [2]}]})
    plain = thaw(value)
    plain["a"][1]["b"].append(3)
    plain["c"] = 1
    assert value == {"a": [1, {"b": [2]}]}
    assert [type(plain), type(plain["a"]), type(plain["a"][1])] == [dict, list, dict]


@pytest.mark.parametrize("levels", [1, 63, 64, 65, 66, 200])
def test_each_level_is_frozen_where_the_fast_way_ends(levels: int) -> None:
    value: Any = {"rows": [1]}
    for level in range(levels):
        value = [value] if level % 2 else {"a": value, "b": []}
    frozen: Any = freeze(value)
    plain: Any = thaw(frozen)
    for step in reversed(range(levels)):
        assert type(frozen) is (FrozenList if step % 2 else FrozenDict)
        assert type(plain) is (list if step % 2 else dict)
        key: Any = 0 if step % 2 else "a"
        frozen, plain = frozen[key], plain[key]
    assert (type(frozen["rows"]), frozen) == (FrozenList, {"rows": [1]})
