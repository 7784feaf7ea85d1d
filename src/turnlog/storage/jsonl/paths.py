"""Where a session lies: `<root>/<project>/<encoded id>/session.jsonl[.zstd]`.

The project's name comes from the working directory and is lossy on purpose; the id's encoding is injective, so
distinct ids never share a file and no id can name a place outside the root. Both walk UTF-16 code units, as
the harnesses do (storage.md, 5.1).
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from turnlog.errors import StorageError

Encoding = Literal["none", "zstd"]

LOG_NAMES: dict[Encoding, str] = {"none": "session.jsonl", "zstd": "session.jsonl.zstd"}
NO_CWD = "_no-cwd"
MAX_NAME_BYTES = 255
"""What common file systems allow for one name."""

_MAX_SLUG = 251
_PLAIN = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")
_SEPARATORS = frozenset("/\\:")


def _units(text: str) -> list[str]:
    """The UTF-16 code units, each as one character (halves of pairs as surrogates)."""
    data = text.encode("utf-16-le", "surrogatepass")
    return [chr(int.from_bytes(data[at : at + 2], "little")) for at in range(0, len(data), 2)]


def _escape(unit: str) -> str:
    return unit if unit in _PLAIN else f"~{ord(unit):04X}"


def project_name(cwd: str | None) -> str:
    """The directory of the sessions of one working directory; None for sessions without one."""
    if cwd is None:
        return NO_CWD
    if not cwd:
        raise StorageError("the working directory is empty", code="INVALID_CWD")
    slug = ""
    gap = False
    for unit in _units(cwd):
        if unit in _SEPARATORS:
            gap = True
            continue
        slug += ("-" if gap else "") + _escape(unit)
        gap = False
    slug = (slug + ("-" if gap else "")).lstrip("-") or "root"
    return f"--{slug[:_MAX_SLUG]}--"


def encode_id(session_id: str) -> str:
    """The id as a directory name; `StorageError` for an empty one or one that no file system could hold."""
    if not session_id:
        raise StorageError(
            "a session id must not be empty", code="INVALID_ID", session_id=session_id
        )
    if session_id in (".", ".."):
        return "~002E" * len(session_id)
    name = "".join(map(_escape, _units(session_id)))
    if len(name) > MAX_NAME_BYTES:
        raise StorageError(
            f"the session id is too long for a file name ({len(name)} of {MAX_NAME_BYTES} characters "
            "when encoded); choose a shorter one",
            code="INVALID_ID",
            session_id=session_id,
        )
    return name


def session_dir(root: Path, cwd: str | None, session_id: str) -> Path:
    """The session's directory under the root."""
    return root / project_name(cwd) / encode_id(session_id)
