"""Hostile text becomes visible; everything else stays as it is."""

from __future__ import annotations

import json
import sys
import unicodedata

import pytest

from turnlog.cli.text import count, format_time, one_line, shorten, visible, visible_json


def _is_hostile(character: str) -> bool:
    category = unicodedata.category(character)
    return category in ("Cc", "Cf", "Cs", "Zl", "Zp")


def test_every_control_format_and_surrogate_character_is_escaped() -> None:
    shown = [
        hex(code) for code in range(sys.maxunicode + 1)
        if _is_hostile(chr(code)) and visible(chr(code)) == chr(code)
    ]  # fmt: skip
    assert shown == []


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J", "\\x1b[2J"),
        ("\x9b31m", "\\x9b31m"),
        ("a\rb\bc", "a\\rb\\bc"),
        ("x\u202ey", "x\\u202ey"),
        ("\x07\x7f\0", "\\x07\\x7f\\x00"),
        ("\ud83c", "\\ud83c"),
        ("\u2028\u2029", "\\u2028\\u2029"),
        ("a\u200bb\u00adc\ufeff", "a\\u200bb\\u00adc\\ufeff".replace("\\u00ad", "\\xad")),
        ("\U000e0041", "\\U000e0041"),
        ("a\u200db", "a\\u200db"),
        ("a\nb\tc", "a\\nb\\tc"),
    ],
)
def test_hostile_text_becomes_visible(text: str, shown: str) -> None:
    assert visible(text) == shown


def test_ordinary_text_of_all_scripts_stays_as_it_is() -> None:
    text = "→ ≥ 😀 ñ ⚙ 漢字 e\u0301 \\x1b \u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645 👨\u200d👩\u200d👧"
    assert visible(text) == text


def test_tabs_can_stay() -> None:
    assert visible("a\n\tb\r", tabs=True) == "a\\n\tb\\r"


def test_json_stays_the_same_value() -> None:
    value = {"k\x9b": "\x1b[2J \u202e \U000e0041 é 👨\u200d👩 \x7f"}
    text = json.dumps(value, ensure_ascii=False)
    assert json.loads(visible_json(text)) == value
    assert "\u202e" not in visible_json(text)
    assert json.loads(visible_json(text, ascii_only=True)) == value
    assert visible_json(text, ascii_only=True).isascii()


def test_shortening_counts_exactly_what_is_left_out() -> None:
    assert shorten("abc", max_chars=3, max_lines=1) == ("abc", 0)
    assert shorten("abcdef", max_chars=4, max_lines=9) == ("abcd", 2)
    assert shorten("a\nb\nc\nd", max_chars=99, max_lines=2) == ("a\nb", 4)


def test_one_line_joins_white_space_and_says_that_it_was_cut() -> None:
    assert one_line(" a\n b\t\tc ", 20) == "a b c"
    assert one_line("x" * 30, 10) == "xxxxxxx..."


def test_times_that_are_no_dates_are_shown_as_numbers() -> None:
    assert format_time(0) == "1970-01-01 00:00"
    assert format_time(2**53 - 1) == str(2**53 - 1)


def test_counts_are_worded() -> None:
    assert [count(1, "event"), count(0, "event"), count(2000, "event")] == [
        "1 event",
        "0 events",
        "2,000 events",
    ]
