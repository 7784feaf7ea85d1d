"""Quoting one session in another: as text here, as a bounded and frozen snapshot in the modules beside.

A user mentions another session as `@[label](toh-session:...)`. `uri` reads and writes such mentions; it is
pure and reads nothing but its arguments.
"""

from __future__ import annotations

from turnlog.errors import SessionReferenceError
from turnlog.references.uri import (
    SESSION_REFERENCE_SCHEMES,
    SessionReference,
    decode_session_reference_uri,
    encode_session_reference_uri,
    format_session_reference_mention,
    parse_session_reference_text,
)

__all__ = [
    "SESSION_REFERENCE_SCHEMES",
    "SessionReference",
    "SessionReferenceError",
    "decode_session_reference_uri",
    "encode_session_reference_uri",
    "format_session_reference_mention",
    "parse_session_reference_text",
]
