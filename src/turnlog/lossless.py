"""Lossless JSON: what enters a log comes back equal from any JSON reader.

The rule: a value is accepted only if its canonical text (compact, UTF-8, numbers and escapes as
JavaScript writes them) decodes to an equal value. The fast path *proves* that for each ordinary value
instead of inspecting it: `marshal` takes it, which no subclass or foreign type survives; msgspec encodes it,
decodes the text again, and the two values are equal, which no tuple, set, bytes or NaN survives. What
the proof does not cover (floats in a spelling of their own, 16 or more digits in a row, lone surrogates,
deep nesting, anything refused) goes to `strict_json`, which decides and names the path.

Proved by property tests that hold both paths against an independent walker.
"""

from __future__ import annotations

import marshal
from typing import Any, TypeGuard

import msgspec

from turnlog.errors import JsonValueError
from turnlog.frozen import FrozenDict, FrozenList, freeze, thaw, unfreeze
from turnlog.strict_json import (
    SAFE_INTEGER,
    format_number,
    format_string,
    join_surrogates,
    parse_strict,
    write_strict,
)

__all__ = [
    "SAFE_INTEGER",
    "FrozenDict",
    "FrozenList",
    "canonicalize",
    "decode_canonical",
    "exact_float",
    "format_number",
    "format_string",
    "freeze",
    "has_long_digits",
    "is_json_value",
    "is_safe_integer",
    "join_surrogates",
    "json_equal",
    "parse_json",
    "snapshot_json_value",
    "thaw",
]

_FAST_PATH_GAVE_UP = (ValueError, TypeError, OverflowError, RecursionError)
"""What msgspec and marshal raise for values that they do not take (their own errors are ValueErrors)."""

_MARSHAL_VERSION = 2
"""The last marshal version without back references, which cost a hash table per call."""

_DIGITS_TO_ZERO = bytes(0x30 if 0x30 <= byte <= 0x39 else byte for byte in range(256))
_LONG_DIGITS = b"0" * 16
"""2**53 has 16 digits: a shorter run cannot spell an integer that a double does not hold."""


def has_long_digits(text: bytes) -> bool:
    """Whether 16 or more digits stand in a row somewhere in the text (0.03 of the cost of json.loads)."""
    # From the end: CPython's search backwards is the plainer one, and twice as fast here.
    return text.translate(_DIGITS_TO_ZERO).rfind(_LONG_DIGITS) >= 0


def exact_float(text: str) -> float:
    """A float literal in the one spelling that JavaScript gives it; ValueError for any other.

    For use as msgspec's `float_hook`: it keeps -0.0, 1e999, 1.0 and 1e-07 off the fast path.
    """
    value = float(text)
    if value.is_integer() or format_number(value) != text:
        raise ValueError("not the canonical spelling of a float")
    return value


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(float_hook=exact_float).decode


def canonicalize(value: Any) -> tuple[bytes, Any]:
    """The canonical text of a value, and the value detached as plain dicts, lists and scalars.

    Raises `JsonValueError`, with the path, for what lossless JSON does not admit.
    """
    try:
        return _prove(value)
    except _FAST_PATH_GAVE_UP:
        pass
    try:
        # Frozen values are foreign to marshal; as plain ones they are as good as any.
        return _prove(unfreeze(value))
    except _FAST_PATH_GAVE_UP:
        pass
    text = write_strict(value)
    return text, parse_strict(text)


def _prove(value: Any) -> tuple[bytes, Any]:
    """The text and a copy of an ordinary value; one of `_FAST_PATH_GAVE_UP` for any other."""
    # msgspec goes first: it gives up at once in a cycle, where marshal would follow every path to its end.
    text = _encode(value)
    marshal.dumps(value, _MARSHAL_VERSION)
    copy = _decode(text)
    if copy != value or _LONG_DIGITS in text.translate(_DIGITS_TO_ZERO):
        raise ValueError("not proved")
    return text, copy


def decode_canonical(text: bytes) -> Any:
    """The plain value of a text that `canonicalize` wrote or a validated log holds."""
    try:
        if not has_long_digits(text):
            return _decode(text)
    except _FAST_PATH_GAVE_UP:
        pass
    return parse_strict(text)


def parse_json(text: bytes | str) -> Any:
    """The plain value of any JSON text; `JsonValueError` for bad JSON and for lossy numbers or keys."""
    if isinstance(text, str):
        text = text.encode("utf-8", "surrogatepass")
    try:
        value = _decode(text)
        if _encode(value) == text and not has_long_digits(text):
            return value
    except _FAST_PATH_GAVE_UP:
        pass
    return parse_strict(text)


def is_json_value(value: Any) -> bool:
    """Whether a log accepts the value as it is."""
    try:
        canonicalize(value)
    except JsonValueError:
        return False
    return True


def snapshot_json_value(value: Any) -> Any:
    """A frozen copy of the value, detached from it; `JsonValueError` for what a log does not accept.

    Integral floats come back as int and surrogate pairs as the character they spell: the values that a
    reader of the log sees.
    """
    return freeze(canonicalize(value)[1])


def is_safe_integer(value: Any) -> TypeGuard[int]:
    """Whether the value is an int (no bool) with |value| <= 2**53 - 1."""
    return type(value) is int and -SAFE_INTEGER <= value <= SAFE_INTEGER


def json_equal(left: Any, right: Any) -> bool:
    """Structural equality of two JSON values: key order is free, 1 equals 1.0, true is not 1."""
    todo = [(left, right)]
    while todo:
        one, other = todo.pop()
        if isinstance(one, dict):
            if not isinstance(other, dict) or len(one) != len(other):
                return False
            for key, item in one.items():
                if key not in other:
                    return False
                todo.append((item, other[key]))
        elif isinstance(one, list):
            if not isinstance(other, list) or len(one) != len(other):
                return False
            todo.extend(zip(one, other, strict=True))
        elif isinstance(one, bool) or isinstance(other, bool):
            if one is not other:
                return False
        elif isinstance(other, (dict, list)) or one != other:
            return False
    return True
