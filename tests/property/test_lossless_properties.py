"""Lossless JSON against an independent oracle: a strict, iterative walker that knows nothing of turnlog.

The oracle gives a value's canonical text or refuses it. It spells numbers by ECMA-262's Number::toString from
the digits that `decimal` reads off `repr`, and strings one UTF-16 unit at a time.
"""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import json
from typing import Any

from hypothesis import assume, example, given
from hypothesis import strategies as st

from turnlog.errors import JsonValueError
from turnlog.frozen import FrozenDict, FrozenList, freeze, thaw
from turnlog.lossless import (
    canonicalize,
    decode_canonical,
    is_json_value,
    json_equal,
    parse_json,
    snapshot_json_value,
)
from turnlog.strict_json import format_number, parse_strict, write_strict

# -- the oracle ----------------------------------------------------------------------------------------


class RefusedError(Exception):
    """The oracle's verdict: no JSON text gives this value back."""


def spell_number(value: int | float) -> str:
    if value != value or value in (float("inf"), float("-inf")):
        raise RefusedError
    try:
        double = float(value)
    except OverflowError:
        raise RefusedError from None
    if double != value or (double == 0 and isinstance(value, float) and str(value)[0] == "-"):
        raise RefusedError
    if double == 0:
        return "0"
    sign, digits, exponent = decimal.Decimal(repr(abs(double))).normalize().as_tuple()
    assert sign == 0
    assert isinstance(exponent, int)
    s, minus = "".join(map(str, digits)), "-" if double < 0 else ""
    k, n = len(s), len(s) + exponent
    if k <= n <= 21:
        return minus + s + "0" * (n - k)
    if 0 < n <= 21:
        return minus + s[:n] + "." + s[n:]
    if -6 < n <= 0:
        return minus + "0." + "0" * -n + s
    fraction = "." + s[1:] if k > 1 else ""
    return minus + s[0] + fraction + "e" + ("+" if n - 1 > 0 else "-") + str(abs(n - 1))


def join_pairs(text: str) -> str:
    out: list[str] = []
    for char in text:
        if out and "\ud800" <= out[-1] <= "\udbff" and "\udc00" <= char <= "\udfff":
            out[-1] = chr(0x10000 + ((ord(out[-1]) - 0xD800) << 10) + (ord(char) - 0xDC00))
        else:
            out.append(char)
    return "".join(out)


def spell_string(text: str) -> str:
    names = {
        '"': '\\"',
        "\\": "\\\\",
        "\b": "\\b",
        "\f": "\\f",
        "\n": "\\n",
        "\r": "\\r",
        "\t": "\\t",
    }
    return (
        '"'
        + "".join(
            names.get(char)
            or (f"\\u{ord(char):04x}" if char < " " or "\ud800" <= char <= "\udfff" else char)
            for char in join_pairs(text)
        )
        + '"'
    )


def oracle(value: Any) -> str:
    out: list[str] = []
    # Of what is still to be done: a value to write, text to add, or a container to leave.
    todo: list[tuple[str, Any]] = [("value", value)]
    inside: list[int] = []
    while todo:
        what, item = todo.pop()
        if what == "text":
            out.append(item)
        elif what == "leave":
            inside.pop()
        elif item is None or item is True or item is False:
            out.append({None: "null", True: "true", False: "false"}[item])
        elif type(item) is str:
            out.append(spell_string(item))
        elif type(item) in (int, float):
            out.append(spell_number(item))
        elif type(item) in (list, dict, FrozenList, FrozenDict):
            if id(item) in inside:
                raise RefusedError
            inside.append(id(item))
            is_list = isinstance(item, list)
            steps: list[tuple[str, Any]] = [("text", "[" if is_list else "{")]
            names: set[str] = set()
            for number, entry in enumerate(item):
                steps.append(("text", "," if number else ""))
                if not is_list:
                    if type(entry) is not str or join_pairs(entry) in names:
                        raise RefusedError
                    names.add(join_pairs(entry))
                    steps.append(("text", spell_string(entry) + ":"))
                steps.append(("value", entry if is_list else item[entry]))
            steps += [("text", "]" if is_list else "}"), ("leave", None)]
            todo.extend(reversed(steps))
        else:
            raise RefusedError
    return "".join(out)


def verdict(value: Any) -> str | None:
    try:
        return oracle(value)
    except RefusedError:
        return None


# -- values --------------------------------------------------------------------------------------------


class Color(enum.StrEnum):
    RED = "red"


class Text(str):
    __slots__ = ()


class Number(int):
    pass


class Real(float):
    pass


class Rows(list[Any]):
    pass


class Table(dict[Any, Any]):
    pass


numbers = st.one_of(
    st.integers(),
    st.integers(-3, 3).flatmap(lambda d: st.sampled_from([2**53 + d, -(2**53) + d, 2**64 + d])),
    st.integers(0, 1100).map(lambda n: 2**n),
    st.integers(0, 400).map(lambda n: 10**n),
    st.floats(),
    st.integers(-(10**6), 10**6).map(float),
    st.integers(-330, 310).map(lambda n: float(f"1e{n}")),
    st.sampled_from([-0.0, float("nan"), float("inf"), 1e21, 1e-7, 123456789012345680.0]),
)
characters = st.one_of(
    st.characters(exclude_categories=()),
    st.sampled_from(
        ["\ud83d", "\ude00", "\ud800", "\udfff", '"', "\\", "\x00", "\x1f", "\x7f", "\u2028"]
    ),
)
texts = st.lists(characters, max_size=6).map("".join)
good_leaves = st.one_of(st.none(), st.booleans(), numbers, texts)
odd_leaves = st.sampled_from(
    [
        (), (1,), {1}, b"a", bytearray(b"a"), 1j, ..., decimal.Decimal("1.5"), dt.date(2026, 1, 1),
        Color.RED, Text("a"), Number(1), Real(0.5), Rows([1]), Table(a=1), object, range(3),
    ]
)  # fmt: skip
odd_keys = st.sampled_from([0, 1, None, True, (1,), 0.5, b"a", Text("a"), Color.RED])


def containers(
    leaves: st.SearchStrategy[Any], keys: st.SearchStrategy[Any]
) -> st.SearchStrategy[Any]:
    return st.recursive(
        leaves,
        lambda inner: st.one_of(
            st.lists(inner, max_size=4),
            st.dictionaries(keys, inner, max_size=4),
            st.lists(inner, max_size=3).map(FrozenList),
            st.dictionaries(keys, inner, max_size=3).map(FrozenDict),
        ),
        max_leaves=12,
    )


plain_values = containers(good_leaves, texts)
mostly_good = containers(
    st.one_of(good_leaves, good_leaves, good_leaves, odd_leaves),
    st.one_of(texts, texts, texts, odd_keys),
)


@st.composite
def graphs(draw: st.DrawFn) -> Any:
    """Lists and dicts that refer to each other at will: shared references, and cycles."""
    nodes: list[Any] = [
        draw(st.sampled_from([list, dict]))() for _ in range(draw(st.integers(1, 4)))
    ]
    for _ in range(draw(st.integers(0, 6))):
        source, target = draw(st.sampled_from(nodes)), draw(st.sampled_from(nodes))
        if isinstance(source, list):
            source.append(target)
        else:
            source[draw(st.sampled_from("abc"))] = target
    # An integral float sends the whole graph along the strict path.
    return [1.0, nodes[0]] if draw(st.booleans()) else nodes[0]


def check_against_oracle(value: Any) -> None:
    expected = verdict(value)
    assert is_json_value(value) is (expected is not None)
    if expected is None:
        return
    text, copy = canonicalize(value)
    assert text == expected.encode("utf-8")
    assert write_strict(value) == text
    snapshot = snapshot_json_value(value)
    assert snapshot == copy == json.loads(text, parse_int=lambda digits: int(float(digits)))
    assert json_equal(snapshot, parse_json(text))
    assert json_equal(decode_canonical(text), parse_strict(text))
    assert canonicalize(snapshot) == (text, copy)
    assert freeze(thaw(snapshot)) == snapshot


@given(plain_values)
@example([2**53, 2**53 + 2, 2**60])
@example({"\ud83d\ude00": ["\ude00\ud83d"]})
def test_plain_values_are_judged_and_written_as_the_oracle_does(value: Any) -> None:
    check_against_oracle(value)


@given(mostly_good)
def test_foreign_values_and_keys_are_judged_as_the_oracle_does(value: Any) -> None:
    check_against_oracle(value)


@given(graphs())
def test_cycles_are_refused_and_shared_references_are_not(value: Any) -> None:
    check_against_oracle(value)


@given(numbers)
def test_numbers_are_spelled_by_the_rule_of_ecma262(value: float) -> None:
    try:
        expected = spell_number(value)
    except RefusedError:
        return
    assert format_number(value) == expected
    assert parse_json(expected) == value
    assert type(parse_json(expected)) is (int if float(expected).is_integer() else float)


# -- texts ---------------------------------------------------------------------------------------------


def read_strictly(text: str) -> Any:
    """The stdlib's reader with the hooks that make it strict; ValueError for what ours must refuse."""

    def fail(what: str) -> Any:
        raise ValueError(what)

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(items)) != len(items):
            fail("duplicate key")
        return dict(items)

    def number(spelling: str) -> int | float:
        value = float(spelling)
        if value in (float("inf"), float("-inf")) or (value == 0 and spelling[0] == "-"):
            fail("lossy number")
        return value

    def integer(spelling: str) -> int | float:
        value = number(spelling)
        if int(spelling) != int(value) and spelling != spell_number(value):
            fail("lossy integer")
        return int(value)

    return json.loads(
        text, parse_constant=fail, object_pairs_hook=pairs, parse_float=number, parse_int=integer
    )


readable = containers(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), texts), texts
)


@given(readable, st.booleans(), st.sampled_from([None, 1]))
def test_any_spelling_of_json_is_read_as_the_stdlib_reads_it(
    value: Any, ascii_only: bool, indent: int | None
) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    assume(ascii_only or text.isprintable() or not any("\ud800" <= c <= "\udfff" for c in text))
    compare_readers(text)


@given(readable, st.data())
def test_a_text_with_a_fault_is_refused_exactly_when_a_strict_reader_refuses_it(
    value: Any, data: st.DataObject
) -> None:
    text = json.dumps(value)
    at = data.draw(st.integers(0, len(text)))
    drop = data.draw(st.integers(0, 2))
    extra = data.draw(st.text(alphabet='{}[],:"\\-+.0123456789eEutrfnl \n\x00NaN', max_size=2))
    compare_readers(text[:at] + extra + text[at + drop :])


def compare_readers(text: str) -> None:
    try:
        expected = read_strictly(text)
    except ValueError:
        expected = ValueError
    try:
        found = parse_json(text)
    except JsonValueError:
        found = ValueError
    assert found is expected or json_equal(found, expected)
