"""Mentions and URIs of sessions: the harnesses' answers, and the rules that those do not pin."""

from __future__ import annotations

import re
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from turnlog.errors import SessionReferenceError
from turnlog.references import (
    SESSION_REFERENCE_SCHEMES,
    decode_session_reference_uri,
    encode_session_reference_uri,
    format_session_reference_mention,
    parse_session_reference_text,
)

INVALID = "SESSION_REFERENCE_INVALID_REFERENCE"
A = "toh-session:ImEi"
B = "toh-session:ImIi"

any_text = st.text(st.characters(exclude_categories=()), max_size=40)
"""Strings with lone surrogates, and with pairs held as two code points."""

pieces = st.lists(
    st.sampled_from(
        [
            *("@", "[", "]", "(", ")", "\\", "\n", "\u2028", " ", "\ufeff", "\x1c", "x"),
            *("\ud83d", "\ude00", "toh-session:", "dsh-session:", "@[", "](", "ImEi"),
            *(A, f"@[x]({A})", f"@[x\\]]({B})"),
        ]
    ),
    max_size=30,
)
"""Texts made of what mentions are made of."""


def joined(text: str) -> str:
    """The string with surrogate pairs as characters, by another way than the code under test."""
    return re.sub(
        "([\ud800-\udbff])([\udc00-\udfff])",
        lambda pair: chr(
            0x10000 + ((ord(pair[1]) - 0xD800) << 10) + ord(pair[2]) - 0xDC00,
        ),
        text,
    )


def assert_invalid(call: Callable[[], object]) -> None:
    with pytest.raises(SessionReferenceError) as caught:
        call()
    assert caught.value.code == INVALID


# The answers of the reference implementation


def test_encoding_gives_the_answers_of_the_vectors(vectors: Callable[[str], Any]) -> None:
    for case in vectors("uri")["encode"]:
        assert encode_session_reference_uri(case["id"]) == case["uri"]
        assert decode_session_reference_uri(case["uri"]) == case["id"]


def test_decoding_gives_the_answers_of_the_vectors(vectors: Callable[[str], Any]) -> None:
    for case in vectors("uri")["decode"]:
        if "error" in case:
            with pytest.raises(SessionReferenceError) as caught:
                decode_session_reference_uri(case["uri"])
            assert caught.value.code == case["error"], case
        else:
            assert decode_session_reference_uri(case["uri"]) == case["id"]


def test_formatting_gives_the_answers_of_the_vectors(vectors: Callable[[str], Any]) -> None:
    for case in vectors("uri")["format"]:
        reference = {key: case[key] for key in ("sessionId", "label") if key in case}
        assert format_session_reference_mention(reference) == case["mention"]


def test_parsing_gives_the_answers_of_the_vectors(vectors: Callable[[str], Any]) -> None:
    for case in vectors("uri")["parse"]:
        if "error" in case:
            with pytest.raises(SessionReferenceError) as caught:
                parse_session_reference_text(case["text"])
            assert caught.value.code == case["error"], case
        else:
            text, references = parse_session_reference_text(case["text"])
            assert {"text": text, "references": references} == case["result"]


# Round trips


@given(any_text)
@example("")
@example("\ud83d\ude00")
@example("\udc00\ud800")
@example("\x7f\x80\u2028\ufeff")
def test_every_id_comes_back_from_its_uri(session_id: str) -> None:
    assert decode_session_reference_uri(encode_session_reference_uri(session_id)) == joined(
        session_id
    )


@given(any_text, any_text)
@example("a", "\\")
@example("a", "]](")
@example("a", "\\\n]")
@example("a", "\ud83d\ude00")
def test_every_mention_comes_back_from_its_text(session_id: str, label: str) -> None:
    mention = format_session_reference_mention({"sessionId": session_id, "label": label})
    assert parse_session_reference_text(f"see {mention}.") == (
        joined(f"see @{label}."),
        [{"sessionId": joined(session_id), "label": joined(label)}],
    )


json_pieces = st.lists(
    st.sampled_from(
        [*'a"\\/ \x7f\x1f', "\\n", "\\u", "d83d", "de00", "D83D", "\\\\", "0061", "\u00e9"]
    )
)
"""What JSON strings are made of, well formed and not, in canonical spelling and not."""


@given(json_pieces.map(lambda parts: '"' + "".join(parts) + '"'), st.sampled_from(["", "A", "-"]))
@example('"\\ud83d"', "")
@example('"\\ud83d\\ude00"', "")
def test_whatever_decodes_is_the_only_spelling_of_its_id(text: str, tail: str) -> None:
    uri = f"toh-session:{urlsafe_b64encode(text.encode()).decode().rstrip('=')}{tail}"
    try:
        session_id = decode_session_reference_uri(uri)
    except SessionReferenceError:
        return
    assert encode_session_reference_uri(session_id) == uri


# One regular expression says the same, in quadratic time


MENTION = re.compile(
    r"@\[((?:\\[^\n\r\u2028\u2029]|[^\]\\])*)\]"
    r"\(((?:toh|dsh)-session:[^)\t\n\v\f\r \xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff]*)\)"
    r"|(?:toh|dsh)-session:[A-Za-z0-9_-]+"
)


def parse_slowly(text: str) -> tuple[str, list[dict[str, str]]]:
    references = []

    def replace(match: re.Match[str]) -> str:
        label = match[1] if match[2] else None
        session_id = decode_session_reference_uri(match[2] or match[0])
        if label is not None:
            label = joined(re.sub(r"\\([^\n\r\u2028\u2029])", r"\1", label))
        references.append(
            {"sessionId": session_id, "label": session_id if label is None else label}
        )
        return "@" + references[-1]["label"]

    return joined(MENTION.sub(replace, joined(text))), references


@given(pieces.map("".join))
@example(f"@[a\\@[b\\]@[c]({A})")
@example(f"@[a](toh-session:@[b](toh-session: @[c]({A})")
def test_the_linear_parser_agrees_with_the_plain_regular_expression(text: str) -> None:
    try:
        expected = parse_slowly(text)
    except SessionReferenceError:
        assert_invalid(lambda: parse_session_reference_text(text))
    else:
        assert parse_session_reference_text(text) == expected


# Decoding


@pytest.mark.parametrize(
    "payload",
    [
        "ImEj",  # "a# : no closing quote
        "ImJ",  # not all unused bits are zero
        "I",  # no whole byte
        "ImEi\n",
        "W1tbW1tb",  # [[[[[[
        "Ilx1RDgzRCI",  # the escape of a lone surrogate in upper case
        "Iu-_vQ",  # U+FFFD without its closing quote
        "77u_ImEi",  # a byte order mark before the JSON text
        "Igoi",  # a raw line feed inside the string
        "ImEiImEi",
    ],
)
def test_a_payload_that_is_not_canonical_is_refused(payload: str) -> None:
    assert_invalid(lambda: decode_session_reference_uri(f"toh-session:{payload}"))


def test_deeply_nested_json_is_refused_without_recursion() -> None:
    nested = "W1tb" * 100_000
    assert_invalid(lambda: decode_session_reference_uri(f"toh-session:{nested}"))


def test_the_second_scheme_is_read_and_never_written() -> None:
    assert decode_session_reference_uri("dsh-session:ImEi") == "a"
    assert parse_session_reference_text("@[x](dsh-session:ImEi) dsh-session:ImIi") == (
        "@x @b",
        [{"sessionId": "a", "label": "x"}, {"sessionId": "b", "label": "b"}],
    )
    assert encode_session_reference_uri("a").startswith("toh-session:")
    assert SESSION_REFERENCE_SCHEMES == ("toh-session", "dsh-session")


def test_the_accepted_schemes_are_a_setting() -> None:
    text = f"@[x]({A}) my.app:ImEi myxapp:ImEi {A}"
    assert parse_session_reference_text(text, schemes=["my.app"]) == (
        f"@[x]({A}) @a myxapp:ImEi {A}",
        [{"sessionId": "a", "label": "a"}],
    )
    assert decode_session_reference_uri("my.app:ImEi", schemes=["my.app"]) == "a"
    assert_invalid(lambda: decode_session_reference_uri(A, schemes=["my.app"]))
    assert parse_session_reference_text(f"{A} :ImEi", schemes=()) == (f"{A} :ImEi", [])


@pytest.mark.parametrize("value", [None, 1, b"a", ["a"]])
def test_a_value_that_is_no_string_is_refused(value: Any) -> None:
    assert_invalid(lambda: encode_session_reference_uri(value))
    assert_invalid(lambda: decode_session_reference_uri(value))
    assert_invalid(lambda: format_session_reference_mention({"sessionId": value}))
    if value is not None:
        assert_invalid(lambda: format_session_reference_mention({"sessionId": "a", "label": value}))


def test_a_label_of_none_counts_as_absent() -> None:
    assert format_session_reference_mention({"sessionId": "a", "label": None}) == f"@[a]({A})"


def test_the_message_of_a_refused_uri_is_short_and_printable() -> None:
    with pytest.raises(SessionReferenceError) as caught:
        decode_session_reference_uri("toh-session:\x1b]\ud800" + "x" * 100_000)
    assert len(caught.value.message) < 200
    assert caught.value.message.isprintable()


# Parsing


@pytest.mark.parametrize("breaks", ["\n", "\r", "\u2028", "\u2029"])
def test_a_backslash_before_a_line_break_ends_the_label_without_a_mention(breaks: str) -> None:
    text, references = parse_session_reference_text(f"@[a\\{breaks}b]({A})")
    assert text == f"@[a\\{breaks}b](@a)"
    assert references == [{"sessionId": "a", "label": "a"}]


@pytest.mark.parametrize(
    "character", ["\v", "\f", "\x1c", "\x85", "\u3000", "n", "[", "\\", "]", "\ud800"]
)
def test_a_backslash_drops_before_any_other_character(character: str) -> None:
    text, references = parse_session_reference_text(f"@[a\\{character}b]({A})")
    assert text == f"@a{character}b"
    assert references == [{"sessionId": "a", "label": f"a{character}b"}]


def test_an_escaped_backslash_may_stand_before_a_line_break() -> None:
    assert parse_session_reference_text(f"@[a\\\\\nb]({A})")[0] == "@a\\\nb"


def test_an_escaped_bracket_does_not_close_the_label() -> None:
    assert parse_session_reference_text(f"@[a\\]({A})")[0] == "@[a\\](@a)"
    assert parse_session_reference_text(f"@[a\\](x)]({A})")[0] == "@a](x)"


JAVASCRIPT_SPACES = "\t\n\v\f\r \xa0\u1680\u2028\u2029\u202f\u205f\u3000\ufeff" + "".join(
    map(chr, range(0x2000, 0x200B))
)


@pytest.mark.parametrize("space", JAVASCRIPT_SPACES)
def test_white_space_in_the_parentheses_makes_a_bare_uri(space: str) -> None:
    assert parse_session_reference_text(f"@[x]({A}{space})")[0] == f"@[x](@a{space})"
    assert parse_session_reference_text(f"@[x]({A}{space}t)")[0] == f"@[x](@a{space}t)"


@pytest.mark.parametrize("character", ["\x1c", "\x1d", "\x1e", "\x1f", "\x85", "\u180e", "\u200b"])
def test_what_is_no_white_space_to_javascript_makes_an_invalid_mention(character: str) -> None:
    assert_invalid(lambda: parse_session_reference_text(f"@[x]({A}{character})"))


def test_an_empty_payload_is_an_error_in_a_mention_and_text_outside() -> None:
    assert_invalid(lambda: parse_session_reference_text("@[x](toh-session:)"))
    assert parse_session_reference_text("(toh-session:)") == ("(toh-session:)", [])
    assert parse_session_reference_text("@[x](toh-session: )") == ("@[x](toh-session: )", [])


def test_an_unclosed_mention_leaves_a_bare_uri() -> None:
    assert parse_session_reference_text(f"@[x]({A}")[0] == "@[x](@a"
    assert parse_session_reference_text(f"@[x{A}")[0] == "@[x@a"
    assert parse_session_reference_text(f"@@[{A}] {B}")[0] == "@@[@a] @b"


def test_two_uris_with_nothing_between_them_are_an_error() -> None:
    assert_invalid(lambda: parse_session_reference_text(A + B))
    assert_invalid(lambda: parse_session_reference_text("toh-session:" + A))


def test_halves_of_a_pair_that_meet_become_one_character() -> None:
    assert parse_session_reference_text(f"@[\ud83d\\\ude00]({A})") == (
        "@\U0001f600",
        [{"sessionId": "a", "label": "\U0001f600"}],
    )
    assert parse_session_reference_text(f"@[\ud83d]({A})\ude00")[0] == "@\U0001f600"


# Hostile lengths


@pytest.mark.parametrize(
    "text",
    [
        "@[" * 100_000,
        "@[" * 100_000 + "]",
        "@[" * 100_000 + "\\\n",
        "@[" * 100_000 + "](toh-session:ImEi ",
        "@[a\\" * 100_000,
        "@[\\\\" * 100_000,
        "\\" * 200_000 + "@[x](",
        "@[" + "\\" * 200_000,
        "@[](toh-session:" * 100_000,
        "@[](toh-session:" * 100_000 + " )",
        "@[x](" * 100_000,
        "toh-session:" * 100_000 + " ",
        "toh-session:@" * 100_000,
        "](" * 100_000,
    ],
    ids=lambda text: f"{text[:16]!a}x{len(text)}",
)
def test_a_long_hostile_text_is_read_in_linear_time(text: str) -> None:
    # CPU time, so that a busy machine cannot fail it; quadratic time would be minutes.
    started = time.process_time()
    with suppress(SessionReferenceError):
        parse_session_reference_text(text)
    assert time.process_time() - started < 5


def test_many_mentions_of_many_sessions_are_read_in_linear_time() -> None:
    started = time.process_time()
    text, references = parse_session_reference_text(f"@[x\\]]({A}) {B}\n" * 50_000)
    assert len(references) == 100_000
    assert text == "@x] @b\n" * 50_000
    assert time.process_time() - started < 10
