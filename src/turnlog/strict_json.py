"""The strict JSON reader and writer: exact, iterative, and the judge of everything the fast path leaves.

`lossless` reads and writes ordinary values through msgspec and proves on the spot that nothing was lost.
What it cannot prove comes here: floats in other spellings, lone surrogates, large integers, deep nesting,
odd types, bad text. Both directions use an explicit stack, so 100,000 levels neither crash nor are refused,
and report the path of the offending value.

Sources: RFC 8259 for the grammar; ECMA-262, Number::toString and JSON.stringify, for the spelling.
"""

from __future__ import annotations

import json.decoder
import json.encoder
import re
from collections.abc import Iterator
from typing import Any

from turnlog.errors import JsonValueError
from turnlog.frozen import FrozenDict, FrozenList

SAFE_INTEGER = 2**53 - 1
"""The largest n for which n and n + 1 are both exact in a double (JavaScript's MAX_SAFE_INTEGER)."""

_SURROGATE = re.compile("[\ud800-\udfff]")
_ESCAPED_HALF = re.compile(r"\\u[dD][89a-fA-F]")
_SPACE = re.compile(r"[ \t\n\r]*")
_NUMBER = re.compile(r"(-?(?:0|[1-9][0-9]*))(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_LITERALS = {"t": ("true", True), "f": ("false", False), "n": ("null", None)}
_MAX_DIGITS = 400
"""An integer literal longer than this is beyond a double (at most 309 digits); int() is not asked."""

_escape = json.encoder.encode_basestring


def format_number(value: int | float) -> str:
    """The number as JavaScript writes it: `1`, `0.1`, `1e-7`, `1e+21`, `1152921504606847000`.

    The value must be finite, not -0.0, and exact in a double.
    """
    if isinstance(value, int) and -SAFE_INTEGER <= value <= SAFE_INTEGER:
        return str(value)
    if value == 0:
        return "0"
    text = repr(float(value))
    sign, text = ("-", text[1:]) if text[0] == "-" else ("", text)
    mantissa, _, exponent = text.partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    # Value = 0.DIGITS * 10**point, with DIGITS free of zeros at both ends.
    point = len(whole) + int(exponent or 0) - (len(whole + fraction) - len(digits))
    digits = digits.rstrip("0")
    if len(digits) <= point <= 21:
        return sign + digits + "0" * (point - len(digits))
    if 0 < point <= 21:
        return sign + digits[:point] + "." + digits[point:]
    if -6 < point <= 0:
        return sign + "0." + "0" * -point + digits
    tail = "." + digits[1:] if len(digits) > 1 else ""
    return f"{sign}{digits[0]}{tail}e{point - 1:+d}"


def join_surrogates(text: str) -> str:
    """The string with each surrogate pair, held as two code points, as the character that it spells."""
    if text.isascii() or not _SURROGATE.search(text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def format_string(text: str) -> str:
    r"""The string as JSON text: `"`, `\`, controls and lone surrogates escaped, everything else raw."""
    escaped = _escape(join_surrogates(text))
    if escaped.isascii():
        return escaped
    return _SURROGATE.sub(lambda half: f"\\u{ord(half.group()):04x}", escaped)


class _Frame:
    """A container under construction: what is left of it, and where the walk stands in it."""

    __slots__ = ("closer", "items", "key", "keys", "source")

    def __init__(self, source: Any) -> None:
        self.source = source
        self.key: Any = None
        is_dict = isinstance(source, dict)
        self.items: Iterator[tuple[Any, Any]] = iter(
            source.items() if is_dict else enumerate(source)
        )
        self.keys: set[str] | None = set() if is_dict else None
        self.closer = "}" if is_dict else "]"


def _fault(message: str, code: str, path: list[Any]) -> JsonValueError:
    place = "$" + "".join(
        f"[{key}]"
        if isinstance(key, int)
        else f".{key}"
        if isinstance(key, str) and key.isidentifier()
        else f"[{key!r}]"
        for key in path
    )
    place = place.encode("utf-8", "backslashreplace").decode()
    return JsonValueError(f"{message} at {place}", code=code, path=place)


def write_strict(value: Any) -> bytes:
    """The value's canonical JSON text, UTF-8 without white space.

    Raises `JsonValueError` with the path of the first value that would not come back equal: NaN,
    infinities, -0.0, an int that no double holds, a type other than None, bool, str, int, float, list,
    dict and the frozen ones, a key that is no str, two keys that spell the same string, a cycle.
    """
    out: list[str] = []
    stack: list[_Frame] = []
    open_ids: set[int] = set()
    current, done = value, False
    while not done:
        frame = _write_value(current, out, stack, open_ids)
        if frame is not None:
            stack.append(frame)
            open_ids.add(id(frame.source))
        while stack:
            frame = stack[-1]
            try:
                key, current = next(frame.items)
            except StopIteration:
                out.append(frame.closer)
                open_ids.discard(id(frame.source))
                stack.pop()
                continue
            if frame.key is not None:
                out.append(",")
            frame.key = key
            if frame.keys is not None:
                out.append(_write_key(key, frame.keys, stack))
            break
        else:
            done = True
    return "".join(out).encode("utf-8")


def _write_value(
    value: Any, out: list[str], stack: list[_Frame], open_ids: set[int]
) -> _Frame | None:
    kind = type(value)
    if kind is str:
        out.append(format_string(value))
    elif value is None or kind is bool:
        out.append("null" if value is None else "true" if value else "false")
    elif kind is int or kind is float:
        out.append(_write_number(value, stack))
    elif kind is dict or kind is list or isinstance(value, (FrozenDict, FrozenList)):
        if id(value) in open_ids:
            raise _fault("a cycle cannot be stored", "CYCLE", _path(stack))
        out.append("{" if isinstance(value, dict) else "[")
        return _Frame(value)
    else:
        raise _fault(
            f"a value of type {_name(kind)} is no JSON value; convert it first",
            "NOT_JSON",
            _path(stack),
        )
    return None


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")


def _path(stack: list[_Frame]) -> list[Any]:
    return [frame.key for frame in stack]


def _write_number(value: int | float, stack: list[_Frame]) -> str:
    if isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            raise _fault(f"{value!r} is no JSON number", "NOT_FINITE", _path(stack))
        if value == 0 and str(value)[0] == "-":
            raise _fault("-0.0 would come back as 0", "NEGATIVE_ZERO", _path(stack))
    elif not -SAFE_INTEGER <= value <= SAFE_INTEGER and not _exact(value):
        raise _fault(
            f"the integer {str(value)[:40]} is not exact in a double; store it as a string"
            if value.bit_length() < 1200
            else "an integer beyond a double; store it as a string",
            "INEXACT_INTEGER",
            _path(stack),
        )
    return format_number(value)


def _exact(value: int) -> bool:
    try:
        return int(float(value)) == value
    except OverflowError:
        return False


def _write_key(key: Any, seen: set[str], stack: list[_Frame]) -> str:
    if type(key) is not str:
        # The type only: a foreign key's repr may fail.
        raise _fault(
            f"a key of type {_name(type(key))} is no str", "KEY_NOT_STRING", _path(stack[:-1])
        )
    key = join_surrogates(key)
    if key in seen:
        raise _fault("two keys spell the same string", "DUPLICATE_KEY", _path(stack))
    seen.add(key)
    return format_string(key) + ":"


def parse_strict(text: bytes) -> Any:
    """The value that the JSON text spells, as plain dicts, lists and scalars.

    Integral numbers become int, whatever their spelling. Raises `JsonValueError`: `BAD_JSON` for text
    that is no JSON (NaN, trailing text and invalid UTF-8 among it), `DUPLICATE_KEY`, `NEGATIVE_ZERO` and
    `INEXACT_INTEGER` for text that no harness can have written.
    """
    try:
        source = text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise JsonValueError(
            f"invalid UTF-8 at byte {error.start} of the JSON text", code="BAD_JSON", path="$"
        ) from error
    return _Parser(source).parse()


class _Parser:
    """One pass over the text with an explicit stack of open containers and their current keys."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.containers: list[Any] = []
        self.keys: list[Any] = []

    def parse(self) -> Any:
        while True:
            value, opened = self.value()
            if opened:
                continue
            # A finished value: put it into its container, and close every container it ends.
            while self.containers:
                if self.attach(value):
                    break
                value = self.containers.pop()
                self.keys.pop()
            else:
                self.skip_space()
                if self.at != len(self.text):
                    raise self.bad("text behind the JSON value")
                return value

    def skip_space(self) -> None:
        match = _SPACE.match(self.text, self.at)
        assert match is not None  # the pattern matches the empty string
        self.at = match.end()

    def peek(self) -> str:
        self.skip_space()
        return self.text[self.at] if self.at < len(self.text) else ""

    def value(self) -> tuple[Any, bool]:
        """The next value; or an empty container, just opened, whose first member comes next."""
        char = self.peek()
        if char == '"':
            return self.string(), False
        if char in ("{", "["):
            self.at += 1
            container: Any = {} if char == "{" else []
            if self.peek() == ("}" if char == "{" else "]"):
                self.at += 1
                return container, False
            self.containers.append(container)
            self.keys.append(self.key(container) if char == "{" else None)
            return None, True
        if char in _LITERALS:
            word, literal = _LITERALS[char]
            if self.text.startswith(word, self.at):
                self.at += len(word)
                return literal, False
        elif char:
            match = _NUMBER.match(self.text, self.at)
            if match:
                self.at = match.end()
                return self.number(match), False
        raise self.bad("no JSON value" if char else "the JSON text ends too early")

    def attach(self, value: Any) -> bool:
        """Store the value in the innermost container; True when another member follows."""
        container = self.containers[-1]
        if isinstance(container, dict):
            container[self.keys[-1]] = value
            closer = "}"
        else:
            container.append(value)
            closer = "]"
        char = self.peek()
        if char == ",":
            self.at += 1
            if closer == "}":
                self.keys[-1] = self.key(container)
            return True
        if char != closer:
            raise self.bad(f"',' or '{closer}' is missing")
        self.at += 1
        return False

    def key(self, container: dict[str, Any]) -> str:
        if self.peek() != '"':
            raise self.bad("a key is missing")
        key = self.string()
        if key in container:
            raise _fault(f"the key {key!r} stands twice", "DUPLICATE_KEY", self.path())
        if self.peek() != ":":
            raise self.bad("':' is missing")
        self.at += 1
        return key

    def string(self) -> str:
        start = self.at
        try:
            text, self.at = json.decoder.scanstring(self.text, start + 1, True)  # type: ignore[attr-defined]
        except ValueError as error:
            raise self.bad(f"a bad string ({str(error).split(':')[0]})") from error
        # The C scanner joins escaped pairs; nothing else can leave two halves side by side.
        return str(text)

    def number(self, match: re.Match[str]) -> int | float:
        text = match.group()
        if len(text) > _MAX_DIGITS and not (match[2] or match[3]):
            raise self.inexact(text)
        value = float(text)
        if value == 0 and text[0] == "-":
            raise _fault("-0 in the JSON text", "NEGATIVE_ZERO", self.path())
        if value in (float("inf"), float("-inf")):
            raise self.inexact(text)
        if match[2] or match[3]:
            return int(value) if value.is_integer() else value
        exact = int(text)
        if int(value) != exact and format_number(value) != text:
            raise self.inexact(text)
        return int(value)

    def inexact(self, text: str) -> JsonValueError:
        return _fault(f"the number {text[:40]} is beyond a double", "INEXACT_INTEGER", self.path())

    def path(self) -> list[Any]:
        return [
            key if isinstance(container, dict) else len(container)
            for container, key in zip(self.containers, self.keys, strict=False)
        ]

    def bad(self, what: str) -> JsonValueError:
        return JsonValueError(
            f"bad JSON at character {self.at}: {what}", code="BAD_JSON", path="$", position=self.at
        )
