r"""Text from a log, made safe to print.

Whatever a log holds was written by a model, a tool or a stranger. Printed as it is, it could rewrite the
screen (ESC, C1, `\r`, `\b`), turn the reading order around (bidi marks) or hide in no width at all. Here every
such character becomes a visible escape; what is stored does not change.
"""

from __future__ import annotations

import datetime as dt
import re
import unicodedata

# Controls but \t and \n, DEL and C1; line and paragraph separators; surrogates; all of category Cf; fillers
# that show nothing. Written out, because building it from `unicodedata` would cost every start 0.2 s; a test
# compares it with that.
_FORMAT = (
    "\u00ad\u034f\u0600-\u0605\u061c\u06dd\u070f\u0890\u0891\u08e2\u115f\u1160\u17b4\u17b5\u180e"
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufeff\uffa0\ufff0-\ufffb"
    "\U000110bd\U000110cd\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e007f"
)
_HOSTILE = re.compile(f"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff{_FORMAT}]")
_BREAKS = re.compile("[\t\n]")
_NON_ASCII = re.compile("[^\x00-\x7f]")
_JOINERS = "\u200c\u200d"
_NAMED = {"\t": "\\t", "\n": "\\n", "\r": "\\r", "\b": "\\b"}


def visible(text: str, *, tabs: bool = False) -> str:
    r"""The text with every character that could act on a terminal as an escape such as `\x1b` or `\u202e`.

    A line feed too: what is printed adds no line of its own. With `tabs`, tabs stay. Joiners stay inside words
    of scripts that need them and in emoji.
    """
    safe = _HOSTILE.sub(_escape, text)
    return safe.replace("\n", "\\n") if tabs else _BREAKS.sub(_escape, safe)


def visible_json(text: str, *, ascii_only: bool = False) -> str:
    r"""A JSON text with the same characters as `\u` escapes: another spelling of the same value."""
    return (_NON_ASCII if ascii_only else _HOSTILE).sub(_escape_json, text)


def _escape(match: re.Match[str]) -> str:
    character = match[0]
    if character in _JOINERS and _joins(match):
        return character
    code = ord(character)
    if character in _NAMED:
        return _NAMED[character]
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _escape_json(match: re.Match[str]) -> str:
    character = match[0]
    if character in _JOINERS and match.re is _HOSTILE and _joins(match):
        return character
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def _joins(match: re.Match[str]) -> bool:
    """Whether a joiner stands between two visible characters that can be joined."""
    start, end, text = match.start(), match.end(), match.string
    return start > 0 and end < len(text) and _joinable(text[start - 1]) and _joinable(text[end])


def _joinable(character: str) -> bool:
    if character < "\x80" or _HOSTILE.match(character):
        return False
    return unicodedata.category(character)[0] in "LM" or unicodedata.category(character) in (
        "So",
        "Sk",
    )


def shorten(text: str, *, max_chars: int, max_lines: int) -> tuple[str, int]:
    """The head of a text within both limits, and how many characters were left out."""
    kept = "\n".join(text.split("\n", max_lines)[:max_lines])[:max_chars]
    return kept, len(text) - len(kept)


def one_line(text: str, max_chars: int) -> str:
    """The text on one line, white space joined and a too long end marked by dots."""
    line = visible(" ".join(text.split()))
    return line if len(line) <= max_chars else line[: max_chars - 3] + "..."


def format_time(milliseconds: int) -> str:
    """Unix milliseconds as UTC to the minute; as the number where that is no date."""
    try:
        when = dt.datetime.fromtimestamp(milliseconds / 1000, dt.UTC)
    except (ValueError, OverflowError, OSError):
        return str(milliseconds)
    return when.strftime("%Y-%m-%d %H:%M")


def count(number: int, noun: str, plural: str | None = None) -> str:
    """A number with its noun: `1 event`, `2,000 events`; `plural` where it does not end in an s."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"
