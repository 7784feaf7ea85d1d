"""Where a session lies: `<root>/<project>/<encoded id>/session.jsonl[.zstd]`.

The project's name comes from the working directory and is lossy on purpose; the id's encoding is injective, so
distinct ids never share a file and no id can name a place outside the root. Both walk UTF-16 code units, as
the harnesses do (storage.md, 5.1).
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from turnlog.engine.names import encode_id, escape_unit, utf16_units
from turnlog.errors import StorageError

Encoding = Literal["none", "zstd"]

LOG_NAMES: dict[Encoding, str] = {"none": "session.jsonl", "zstd": "session.jsonl.zstd"}
NO_CWD = "_no-cwd"
_MAX_SLUG = 251
_SEPARATORS = frozenset("/\\:")


def project_name(cwd: str | None) -> str:
    """The directory of the sessions of one working directory; None for sessions without one."""
    if cwd is None:
        return NO_CWD
    if not cwd:
        raise StorageError("the working directory is empty", code="INVALID_CWD")
    slug = ""
    gap = False
    for unit in utf16_units(cwd):
        if unit in _SEPARATORS:
            gap = True
            continue
        slug += ("-" if gap else "") + escape_unit(unit)
        gap = False
    slug = (slug + ("-" if gap else "")).lstrip("-") or "root"
    return f"--{slug[:_MAX_SLUG]}--"


def session_dir(root: Path, cwd: str | None, session_id: str) -> Path:
    """The session's directory under the root."""
    return root / project_name(cwd) / encode_id(session_id)
