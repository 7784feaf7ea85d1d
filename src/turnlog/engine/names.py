"""Session ids as file names: an injective encoding that no id can leave.

It walks UTF-16 code units, as the harnesses do (storage.md, 5.1); separators, controls and everything outside a
small set are escaped, so distinct ids never share a file and none can name a place outside its directory.
"""

from __future__ import annotations

import hashlib

from turnlog.errors import StorageError

MAX_NAME_BYTES = 255
"""What common file systems allow for one name."""

_MAX_LOCK_NAME = 200

_PLAIN = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")


def utf16_units(text: str) -> list[str]:
    """The UTF-16 code units, each as one character (halves of pairs as surrogates)."""
    data = text.encode("utf-16-le", "surrogatepass")
    return [chr(int.from_bytes(data[at : at + 2], "little")) for at in range(0, len(data), 2)]


def escape_unit(unit: str) -> str:
    """One code unit as it stands in a name: itself, or `~XXXX`."""
    return unit if unit in _PLAIN else f"~{ord(unit):04X}"


def encode_id(session_id: str) -> str:
    """The id as a directory name; `StorageError` for an empty one or one that no file system could hold."""
    if not session_id:
        raise StorageError(
            "a session id must not be empty", code="INVALID_ID", session_id=session_id
        )
    if session_id in (".", ".."):
        return "~002E" * len(session_id)
    name = "".join(map(escape_unit, utf16_units(session_id)))
    if len(name) > MAX_NAME_BYTES:
        raise StorageError(
            f"the session id is too long for a file name ({len(name)} of {MAX_NAME_BYTES} characters "
            "when encoded); choose a shorter one",
            code="INVALID_ID",
            session_id=session_id,
        )
    return name


def lock_name(session_id: str) -> str:
    """The name of an id's lease file: for any id, also one that is too long for `encode_id`."""
    units = utf16_units(session_id)
    name = "".join(map(escape_unit, units))
    if len(name) > _MAX_LOCK_NAME:
        # No encoded id holds two of the escape's marks in a row.
        digest = hashlib.sha256("".join(units).encode("utf-8", "surrogatepass")).hexdigest()
        name = f"~~{digest}"
    return f"{name}.lock"
