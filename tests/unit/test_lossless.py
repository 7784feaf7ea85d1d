"""Lossless JSON (log.md, section 4): what is accepted, how it is written, what a text must be."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import json
from collections import OrderedDict
from typing import Any

import pytest

from turnlog.errors import JsonValueError
from turnlog.frozen import FrozenDict, FrozenList, freeze, thaw
from turnlog.lossless import (
    canonicalize,
    decode_canonical,
    is_json_value,
    is_safe_integer,
    json_equal,
    parse_json,
    snapshot_json_value,
)
from turnlog.messages import user_message

DEPTH = 100_000
HIGH, LOW = "\ud83d", "\ude00"


class Color(enum.StrEnum):
    RED = "red"


class Level(enum.IntEnum):
    ONE = 1


class Text(str):
    __slots__ = ()


class Number(int):
    pass


class Real(float):
    pass


class Rows(list[Any]):
    pass


class Table(dict[str, Any]):
    pass


@dataclasses.dataclass
class Point:
    x: int


def text_of(value: Any) -> str:
    return canonicalize(value)[0].decode("utf-8")


def refusal(value: Any) -> JsonValueError:
    assert not is_json_value(value)
    with pytest.raises(JsonValueError) as caught:
        snapshot_json_value(value)
    return caught.value


def nest(kind: str, depth: int = DEPTH) -> Any:
    value: Any = [] if kind == "list" else {}
    for level in range(depth - 1):
        value = [value] if kind == "list" or (kind == "mixed" and level % 2) else {"a": value}
    return value


# -- what is accepted ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value",
    [
        None, True, False, 0, -1, 2**53 - 1, 2**53, 2**60, 10**22, -(2**60), 0.5, 5e-324,
        1.7976931348623157e308, "", "\x00", "\ud800", "a\udfff", [], {}, [[]], {"": {}},
        {"a": [1, None, True, 0.5, "x"]},
    ],
)  # fmt: skip
def test_plain_values_come_back_equal(value: Any) -> None:
    assert is_json_value(value)
    assert snapshot_json_value(value) == value
    assert decode_canonical(canonicalize(value)[0]) == value


@pytest.mark.parametrize(
    ("value", "code"),
    [
        (float("nan"), "NOT_FINITE"),
        (float("inf"), "NOT_FINITE"),
        (float("-inf"), "NOT_FINITE"),
        (-0.0, "NEGATIVE_ZERO"),
        (2**53 + 1, "INEXACT_INTEGER"),
        (-(2**53) - 1, "INEXACT_INTEGER"),
        (10**400, "INEXACT_INTEGER"),
        ([10**5000], "INEXACT_INTEGER"),
        ((), "NOT_JSON"),
        ((1,), "NOT_JSON"),
        ({1}, "NOT_JSON"),
        (frozenset(), "NOT_JSON"),
        (b"a", "NOT_JSON"),
        (bytearray(b"a"), "NOT_JSON"),
        (memoryview(b"a"), "NOT_JSON"),
        (1j, "NOT_JSON"),
        (..., "NOT_JSON"),
        (decimal.Decimal(1), "NOT_JSON"),
        (dt.datetime(2026, 1, 1, tzinfo=dt.UTC), "NOT_JSON"),
        (dt.date(2026, 1, 1), "NOT_JSON"),
        (Point(1), "NOT_JSON"),
        (Color.RED, "NOT_JSON"),
        (Level.ONE, "NOT_JSON"),
        (Text("a"), "NOT_JSON"),
        (Number(1), "NOT_JSON"),
        (Real(0.5), "NOT_JSON"),
        (Rows([1]), "NOT_JSON"),
        (Table(a=1), "NOT_JSON"),
        (OrderedDict(a=1), "NOT_JSON"),
        ({}.keys(), "NOT_JSON"),
        (range(2), "NOT_JSON"),
        (iter([1]), "NOT_JSON"),
        (object(), "NOT_JSON"),
        (int, "NOT_JSON"),
        ({1: "a"}, "KEY_NOT_STRING"),
        ({None: "a"}, "KEY_NOT_STRING"),
        ({True: "a"}, "KEY_NOT_STRING"),
        ({Text("a"): 1}, "KEY_NOT_STRING"),
        ({Color.RED: 1}, "KEY_NOT_STRING"),
        ({10**5000: "a"}, "KEY_NOT_STRING"),
        ({HIGH + LOW: 1, "\U0001f600": 2}, "DUPLICATE_KEY"),
    ],
)
def test_what_would_not_come_back_equal_is_refused(value: Any, code: str) -> None:
    assert refusal(value).code == code
    assert refusal([value]).code == code
    assert refusal({"a": {"b": value}}).code == code


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (float("nan"), "$"),
        ({"data": {"rows": [0, 1, 2, {1}]}}, "$.data.rows[3]"),
        ([[-0.0]], "$[0][0]"),
        ({"two words": 2**53 + 1}, "$['two words']"),
        ({"a": {1: 2}}, "$.a"),
        ([{}, {HIGH + LOW: 1, "\U0001f600": 2}], "$[1]['\U0001f600']"),
        ({"\ud800": ()}, r"$['\ud800']"),
    ],
)
def test_a_refusal_names_the_path_of_the_value(value: Any, path: str) -> None:
    error = refusal(value)
    assert error.path == path
    assert path in error.message


def test_cycles_are_refused_wherever_they_close() -> None:
    direct: list[Any] = []
    direct.append(direct)
    assert refusal(direct).code == "CYCLE"
    outer: dict[str, Any] = {"a": [{}]}
    outer["a"][0]["b"] = outer
    error = refusal([outer])
    assert (error.code, error.path) == ("CYCLE", "$[0].a[0].b")


def test_a_branching_cycle_is_refused_without_following_its_paths() -> None:
    """Each level doubles the paths: a walk to any depth limit would never end."""
    knot: list[Any] = []
    knot += [knot, knot]
    assert refusal(knot).code == "CYCLE"
    tangle: dict[str, Any] = {}
    tangle.update(a=[tangle, tangle], b=tangle)
    assert refusal(tangle).code == "CYCLE"


def test_shared_references_are_copied_and_are_no_cycle() -> None:
    shared = {"n": [1]}
    copy = snapshot_json_value([shared, shared, {"again": shared["n"]}])
    assert copy == [{"n": [1]}, {"n": [1]}, {"again": [1]}]
    assert text_of([shared, shared]) == '[{"n":[1]},{"n":[1]}]'
    # The same on the way that takes what the fast one leaves.
    assert text_of([shared, shared, "\ud800", 1.0]) == '[{"n":[1]},{"n":[1]},"\\ud800",1]'


def test_frozen_values_are_accepted_and_so_are_messages() -> None:
    frozen = freeze({"a": [1, {"b": None}]})
    assert snapshot_json_value(frozen) == frozen
    message = user_message("hi")
    assert snapshot_json_value({"message": message}) == {"message": message.to_dict()}
    assert refusal(FrozenList([FrozenDict(a=())])).path == "$[0].a"


def test_a_snapshot_is_detached_and_frozen_at_every_level() -> None:
    value: dict[str, Any] = {"a": [{"b": 1}]}
    copy = snapshot_json_value(value)
    value["a"][0]["b"] = 2
    assert copy == {"a": [{"b": 1}]}
    assert (type(copy), type(copy["a"]), type(copy["a"][0])) == (FrozenDict, FrozenList, FrozenDict)


def test_a_value_that_is_refused_late_leaves_the_callers_object_alone() -> None:
    value = {"a": [1, 2], "b": ()}
    refusal(value)
    assert value == {"a": [1, 2], "b": ()}


# -- how it is written ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.0, "1"),
        (-3.0, "-3"),
        (0.0, "0"),
        (1e-7, "1e-7"),
        (1e-6, "0.000001"),
        (1.5e-7, "1.5e-7"),
        (1e21, "1e+21"),
        (1e20, "100000000000000000000"),
        (1.25e21, "1.25e+21"),
        (123456789012345680000.0, "123456789012345680000"),
        (2**60, "1152921504606847000"),
        (-(2**60), "-1152921504606847000"),
        (2**53, "9007199254740992"),
        (10**21, "1e+21"),
        (0.1, "0.1"),
        (-1.5, "-1.5"),
        (5e-324, "5e-324"),
        (1.7976931348623157e308, "1.7976931348623157e+308"),
    ],
)
def test_numbers_are_written_as_javascript_writes_them(value: float, text: str) -> None:
    assert text_of(value) == text
    assert text_of({"n": [value]}) == '{"n":[' + text + "]}"
    assert parse_json(text) == value


def test_an_integral_float_is_stored_as_int() -> None:
    stored = snapshot_json_value([1.0, 1e21, True])
    assert [type(item) for item in stored] == [int, int, bool]
    assert type(parse_json("1e3")) is int
    assert type(parse_json("1.0")) is int


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("\ud800", '"\\ud800"'),
        ("x\udfffy", '"x\\udfffy"'),
        (LOW + HIGH, '"\\ude00\\ud83d"'),
        (HIGH + LOW, '"\U0001f600"'),
        (HIGH + HIGH + LOW, '"\\ud83d\U0001f600"'),
        ("é\u2028\u2029\x7f\ufeff", '"é\u2028\u2029\x7f\ufeff"'),
        ('"\\/', '"\\"\\\\/"'),
        ("\b\t\n\f\r", '"\\b\\t\\n\\f\\r"'),
        ("\x00\x1f\x0b", '"\\u0000\\u001f\\u000b"'),
    ],
)
def test_strings_are_raw_but_for_quotes_backslashes_controls_and_lone_surrogates(
    value: str, text: str
) -> None:
    assert text_of(value) == text
    assert text_of({value: 1}) == "{" + text + ":1}"
    assert decode_canonical(text.encode()) == parse_json(text)


def test_a_surrogate_pair_becomes_the_character_that_it_spells() -> None:
    assert snapshot_json_value({HIGH + LOW: HIGH + LOW}) == {"\U0001f600": "\U0001f600"}


def test_key_order_is_kept() -> None:
    value = {"b": 1, "a": {"10": 0, "2": 0}, "": 2}
    assert text_of(value) == '{"b":1,"a":{"10":0,"2":0},"":2}'
    assert list(snapshot_json_value(value)) == ["b", "a", ""]
    assert list(parse_json('{"b":1,"a":2,"\\u0061b":3}')) == ["b", "a", "ab"]


# -- reading text --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "NaN", "Infinity", "-Infinity", "[NaN]", "nan", "True", "nul", "nulll", "'a'", "1 2",
        "{} x", "[1,]", "[,1]", "[1 2]", "{", "}", "[", "]", '{"a"}', '{"a":}', '{"a":1,}', "{a:1}",
        "{1:2}", '{"a":1 "b":2}', "[1}", '{"a":1]', "01", "+1", ".5", "5.", "1.e1", "1e", "1e+", "-",
        "--1", "0x1", "1_0", "\uff11", '"', '"a', '"\\"', '"\\x"', '"\\u12"', '"\\u12g4"', '"\n"',
        '"\x00"', "\ufeff1", "\xa01", "1\x0b", "/**/1", '["a":1]',
    ],
)  # fmt: skip
def test_bad_json_is_refused_as_such(text: str) -> None:
    with pytest.raises(JsonValueError) as caught:
        parse_json(text)
    assert caught.value.code == "BAD_JSON"


@pytest.mark.parametrize(
    "text",
    [b'"\xff"', b'"\xc3"', b'"\xed\xa0\x80"', b'{"a":"\xf8"}', b"\xff", b'"\xc0\xaf"', b'"\xf4\x90\x80\x80"'],
)  # fmt: skip
def test_invalid_utf8_is_bad_json(text: bytes) -> None:
    with pytest.raises(JsonValueError) as caught:
        parse_json(text)
    assert caught.value.code == "BAD_JSON"


@pytest.mark.parametrize(
    ("text", "code", "path"),
    [
        ('{"a":1,"a":1}', "DUPLICATE_KEY", "$"),
        ('{"a":1,"\\u0061":2}', "DUPLICATE_KEY", "$"),
        ('{"\\ud83d\\ude00":1,"\U0001f600":2}', "DUPLICATE_KEY", "$"),
        ('[{"b":{"a":[],"a":1}}]', "DUPLICATE_KEY", "$[0].b"),
        ("-0", "NEGATIVE_ZERO", "$"),
        ('{"a":[1,-0]}', "NEGATIVE_ZERO", "$.a[1]"),
        ("-0.0", "NEGATIVE_ZERO", "$"),
        ("-0e5", "NEGATIVE_ZERO", "$"),
        ("9007199254740993", "INEXACT_INTEGER", "$"),
        ('{"n":-9007199254740993}', "INEXACT_INTEGER", "$.n"),
        ("1e999", "INEXACT_INTEGER", "$"),
        pytest.param("9" * 5000, "INEXACT_INTEGER", "$", id="5000 digits"),
    ],
)
def test_text_that_no_harness_can_have_written_is_damage(text: str, code: str, path: str) -> None:
    with pytest.raises(JsonValueError) as caught:
        parse_json(text)
    assert caught.value.code == code
    assert caught.value.path.startswith(path)


def test_the_shortest_spelling_of_a_large_integer_is_read_as_the_double_it_names() -> None:
    assert parse_json("1152921504606847000") == 2**60
    assert parse_json("1152921504606846976") == 2**60
    assert parse_json("1e22") == 10**22


def test_white_space_and_escapes_are_read_like_any_json() -> None:
    text = ' \t\r\n{ "a" : [ 1 , 2.5e0 ] , "\\u00e9\\/" : "\\ud83d\\ude00" } \n'
    assert parse_json(text) == {"a": [1, 2.5], "é/": "\U0001f600"} == json.loads(text)
    assert parse_json(b'"\\ud800"') == "\ud800"


# -- depth ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["list", "dict"])
def test_a_hundred_thousand_levels_are_written_and_read(kind: str) -> None:
    value = nest(kind)
    text, copy = canonicalize(value)
    assert json_equal(copy, value)
    assert json_equal(thaw(freeze(value)), value)
    assert not json_equal(nest(kind, DEPTH + 1), value)
    assert text == (
        b"[" * DEPTH + b"]" * DEPTH
        if kind == "list"
        else b'{"a":' * (DEPTH - 1) + b"{}" + b"}" * (DEPTH - 1)
    )


def test_a_hundred_thousand_mixed_levels_are_a_json_value_like_any_other() -> None:
    value = nest("mixed")
    assert is_json_value(value)
    assert json_equal(snapshot_json_value(value), value)
    pairs = DEPTH // 2 - 1
    text = '{"a":[' * pairs + '{"a":{}}' + "]}" * pairs
    assert json_equal(parse_json(text), value)


def test_a_fault_below_a_hundred_thousand_levels_is_found() -> None:
    value: Any = ()
    for _ in range(DEPTH):
        value = [value]
    assert refusal(value).path == "$" + "[0]" * DEPTH
    with pytest.raises(JsonValueError) as caught:
        parse_json("[" * DEPTH + "-0" + "]" * DEPTH)
    assert caught.value.code == "NEGATIVE_ZERO"


# -- equality ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("left", "right", "equal"),
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
        ([1], [1.0], True),
        (True, 1, False),
        (0, False, False),
        ([True], [1], False),
        (None, 0, False),
        (None, False, False),
        ("1", 1, False),
        ([], {}, False),
        ({}, None, False),
        ({"a": None}, {}, False),
        ({"a": None}, {"b": None}, False),
        ([1, 2], [2, 1], False),
        ([1], [1, 1], False),
        ({"a": [{"b": 1}]}, {"a": [{"b": 1.0}]}, True),
        (2**53, float(2**53), True),
        (freeze({"a": [1]}), {"a": [1]}, True),
    ],
)
def test_equality_is_structural(left: Any, right: Any, equal: bool) -> None:
    assert json_equal(left, right) is equal
    assert json_equal(right, left) is equal


@pytest.mark.parametrize(
    ("value", "safe"),
    [
        (0, True),
        (2**53 - 1, True),
        (-(2**53) + 1, True),
        (2**53, False),
        (-(2**53), False),
        (True, False),
        (1.0, False),
        (Number(1), False),
        ("1", False),
        (None, False),
    ],
)
def test_a_safe_integer_is_an_int_within_2_to_the_53(value: Any, safe: bool) -> None:
    assert is_safe_integer(value) is safe
