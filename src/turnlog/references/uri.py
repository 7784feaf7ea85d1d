"""Session ids as URIs and mentions, and the mentions found in a text.

A URI is `toh-session:` and the base64url, without padding, of the UTF-8 of the id's JSON text. JSON is what
lets an id with a lone surrogate cross UTF-8, and makes an empty id visible.

The rule: each id has exactly one URI. Decoding encodes again and compares, so no second spelling of an id
(padding, stray bits in the last character, needless escapes) gets past a check made on the text. Proved by
round trips over all strings and by the answers of the harnesses.

Text is hostile input: `parse_session_reference_text` takes time linear in its length.

Source: the harnesses' session references; ECMA-262 for JSON.stringify, white space and the line
terminators; RFC 4648, section 5, for base64url.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, TypedDict

from turnlog.errors import SessionReferenceError
from turnlog.lossless import format_string, join_surrogates

SESSION_REFERENCE_SCHEMES = ("toh-session", "dsh-session")
"""The schemes accepted when reading; the first is the one that is written."""

_LINE_BREAKS = r"\n\r\u2028\u2029"
# Python's own `\s` also takes U+001C to U+001F and U+0085, and leaves out U+FEFF.
_SPACES = r"\t\n\v\f\r \xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"

# Possessive, so that no failure behind it makes the engine try shorter matches.
_LABEL = re.compile(rf"(?:[^\]\\]++|\\[^{_LINE_BREAKS}])*+")
_TARGET = re.compile(rf"[^){_SPACES}]*+")
_LABEL_ESCAPE = re.compile(rf"\\([^{_LINE_BREAKS}])")
_LABEL_SPECIAL = re.compile(r"[\\\]]")


class SessionReference(TypedDict):
    """A session mentioned in a text, under the label that the reader sees there."""

    sessionId: str
    label: str


class _Syntax(NamedTuple):
    """The patterns that depend on the accepted schemes."""

    uri: re.Pattern[str]
    """A whole URI; group 1 is the payload."""
    opening: re.Pattern[str]
    """The next place where a mention may begin: `@[`, or a bare URI as a whole."""
    joint: re.Pattern[str]
    """What stands between the label of a Markdown mention and its payload."""


@lru_cache(maxsize=16)
def _syntax(schemes: tuple[str, ...]) -> _Syntax:
    # `(?!)` never matches: without a scheme nothing is a reference.
    scheme = f"(?:{'|'.join(map(re.escape, schemes)) or '(?!)'}):"
    payload = "[A-Za-z0-9_-]+"
    return _Syntax(
        uri=re.compile(f"{scheme}({payload})"),
        opening=re.compile(rf"@\[|{scheme}{payload}"),
        joint=re.compile(rf"\]\({scheme}"),
    )


def encode_session_reference_uri(session_id: str) -> str:
    """The one URI of the id, as in `toh-session:ImEi` for `a`. Lone surrogates are kept.

    Raises `SessionReferenceError` when the id is no str.
    """
    if not isinstance(session_id, str):
        raise SessionReferenceError(f"a session id is a str, not {type(session_id).__name__}")
    return f"{SESSION_REFERENCE_SCHEMES[0]}:{_encode_payload(session_id)}"


def _encode_payload(session_id: str) -> str:
    return base64.urlsafe_b64encode(format_string(session_id).encode()).rstrip(b"=").decode()


def decode_session_reference_uri(
    uri: str, *, schemes: Sequence[str] = SESSION_REFERENCE_SCHEMES
) -> str:
    """The session id that the URI stands for; `schemes` are the names accepted before the colon.

    Raises `SessionReferenceError` unless the URI is exactly what encoding that id gives, under any
    accepted scheme.
    """
    match = _syntax(tuple(schemes)).uri.fullmatch(uri) if isinstance(uri, str) else None
    session_id = None if match is None else _decode_payload(match[1])
    if session_id is None:
        raise SessionReferenceError(
            f"{uri!r:.100} is no session reference; copy the whole mention or URI again"
        )
    return session_id


def _decode_payload(payload: str) -> str | None:
    """The id, or None when the payload is not its canonical form."""
    try:
        text = base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)).decode()
        # Only strings go to the JSON reader: it recurses into arrays, which an attacker can nest deeply.
        session_id = json.loads(text) if text.startswith('"') else None
    except ValueError:
        return None
    if not isinstance(session_id, str) or _encode_payload(session_id) != payload:
        return None
    return session_id


def format_session_reference_mention(reference: Mapping[str, object]) -> str:
    """The mention `@[label](uri)` of `{"sessionId": str, "label"?: str}`; the label defaults to the id.

    Parsing the mention gives the id and the label back. Raises `SessionReferenceError` when either is no
    str.
    """
    session_id, label = reference.get("sessionId"), reference.get("label")
    if label is None:
        label = session_id
    if not isinstance(session_id, str) or not isinstance(label, str):
        raise SessionReferenceError(
            "a reference needs a string `sessionId` and, if any, a string `label`"
        )
    escaped = _LABEL_SPECIAL.sub(r"\\\g<0>", join_surrogates(label))
    return f"@[{escaped}]({encode_session_reference_uri(session_id)})"


def parse_session_reference_text(
    text: str, *, schemes: Sequence[str] = SESSION_REFERENCE_SCHEMES
) -> tuple[str, list[SessionReference]]:
    """The text as people read it, and the sessions that it mentions, in order and with duplicates.

    A Markdown mention `@[label](uri)` becomes `@label`, a bare URI `@id`; everything else stays. Raises
    `SessionReferenceError` when what stands behind a scheme is not canonical.
    """
    text = join_surrogates(text)
    syntax = _syntax(tuple(schemes))
    markdown = _MarkdownMentions(text, syntax.joint)
    readable: list[str] = []
    references: list[SessionReference] = []
    copied = at = 0
    while opening := syntax.opening.search(text, at):
        start, end = opening.span()
        uri, label = opening[0], None
        if uri == "@[":
            mention = markdown.read(end)
            if mention is None:
                at = start + 1
                continue
            uri, label, end = mention
        session_id = decode_session_reference_uri(uri, schemes=schemes)
        if label is None:
            label = session_id
        references.append({"sessionId": session_id, "label": label})
        readable += (text[copied:start], "@", label)
        copied = at = end
    readable.append(text[copied:])
    # Joined once more: a label that ends in half a pair may now stand before the other half.
    return join_surrogates("".join(readable)), references


class _MarkdownMentions:
    """The Markdown mentions of one text, read from left to right in linear time in all.

    Each `@[` could make a scan run to the end of the text. But a scan that starts before the point where an
    earlier one stopped stops there too: it begins behind a `[` or a `:`, so never between a backslash and
    the character that it escapes. Remembering the last stop is enough to read every character once.
    """

    def __init__(self, text: str, joint: re.Pattern[str]) -> None:
        self._text = text
        self._joint = joint
        self._label_stop = self._target_stop = -1

    def read(self, start: int) -> tuple[str, str, int] | None:
        """The URI, the label and the end of the mention whose label starts here, or None."""
        if start > self._label_stop:
            self._label_stop = _stop(_LABEL, self._text, start)
        close = self._label_stop
        joint = self._joint.match(self._text, close)
        if joint is None:
            return None
        if joint.end() > self._target_stop:
            self._target_stop = _stop(_TARGET, self._text, joint.end())
        end = self._target_stop
        if self._text[end : end + 1] != ")":
            return None
        label = _LABEL_ESCAPE.sub(r"\1", self._text[start:close])
        return self._text[close + len("](") : end], join_surrogates(label), end + 1


def _stop(run: re.Pattern[str], text: str, start: int) -> int:
    match = run.match(text, start)
    assert match is not None, "a run may be empty, so it always matches"
    return match.end()
