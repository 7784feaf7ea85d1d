"""SessionHeader: what is known of a session besides its events.

On the wire `{version: 0, id, createdAt, cwd?, parentSession?, seedLength?, origin?, delegationDepth?, agentPreset?}`,
times in Unix milliseconds. Keys that we do not know are kept and written back, behind the known ones.
"""

from __future__ import annotations

import ntpath
import posixpath
from collections.abc import Mapping
from typing import Any

import msgspec

from turnlog.errors import HeaderError
from turnlog.frozen import FrozenDict, freeze, thaw
from turnlog.lossless import canonicalize, is_safe_integer
from turnlog.messages import is_name

FORMAT_VERSION = 0
"""The version of the log format that this package reads and writes."""

_RETIRED = ("sandboxMode", "approvalPolicy")
_FIELDS = {
    "version": "version",
    "id": "id",
    "createdAt": "created_at",
    "cwd": "cwd",
    "parentSession": "parent_session",
    "seedLength": "seed_length",
    "origin": "origin",
    "delegationDepth": "delegation_depth",
    "agentPreset": "agent_preset",
}


class SessionHeader(msgspec.Struct, frozen=True, kw_only=True):
    """The header of one session.

    `created_at`: Unix milliseconds. `cwd`: an absolute POSIX or Windows path. `seed_length`: how many leading
    events a fork inherited. `delegation_depth`: None where nothing is recorded, which means 0. `extra`: keys
    of other writers, kept as they are.
    """

    id: str
    created_at: int
    version: int = FORMAT_VERSION
    cwd: str | None = None
    parent_session: str | None = None
    seed_length: int | None = None
    origin: str | None = None
    delegation_depth: int | None = None
    agent_preset: str | None = None
    extra: FrozenDict = FrozenDict()

    @classmethod
    def from_dict(cls, wire: Mapping[str, Any]) -> SessionHeader:
        """The header that the wire form spells; `HeaderError` names the first wrong field."""
        _, values = canonicalize(dict(wire))
        values.pop("type", None)
        for name in _RETIRED:
            if name in values:
                raise HeaderError(f"the header field {name!r} is retired; remove it", field=name)
        known = {field: values.pop(name) for name, field in _FIELDS.items() if name in values}
        for name, field in _FIELDS.items():
            if known.get(field, 0) is None:
                raise _wrong(name, "absent rather than null")
        if "id" not in known or "created_at" not in known:
            raise HeaderError("a header needs id and createdAt", field="id")
        header = cls(**known, extra=freeze(values))
        header.check()
        return header

    def check(self) -> None:
        """Raise `HeaderError` for the first field that breaks its rule."""
        if self.version != FORMAT_VERSION or isinstance(self.version, bool):
            raise _wrong("version", f"{FORMAT_VERSION}")
        if not is_name(self.id):
            raise _wrong("id", "a non-empty string")
        for name, value in (
            ("createdAt", self.created_at),
            ("seedLength", self.seed_length if self.seed_length is not None else 0),
            ("delegationDepth", self.delegation_depth if self.delegation_depth is not None else 0),
        ):
            if not is_safe_integer(value) or value < 0:
                raise _wrong(name, "an integer from 0 to 2**53 - 1")
        if self.cwd is not None and not is_absolute(self.cwd):
            raise _wrong("cwd", "an absolute path")
        if self.origin not in (None, "subagent"):
            raise _wrong("origin", "'subagent' or absent")
        for name, text in (
            ("parentSession", self.parent_session),
            ("agentPreset", self.agent_preset),
        ):
            if text is not None and not isinstance(text, str):
                raise _wrong(name, "a string or absent")

    def to_dict(self) -> dict[str, Any]:
        """The wire form as a plain dict; absent fields are left out, unknown keys come last."""
        wire = {
            name: getattr(self, field)
            for name, field in _FIELDS.items()
            if getattr(self, field) is not None
        }
        return {**wire, **thaw(self.extra)}

    def replace(self, **changes: Any) -> SessionHeader:
        """A copy with the given fields changed (Python names), checked."""
        changed = msgspec.structs.replace(self, **changes)
        changed.check()
        return changed


def is_absolute(path: Any) -> bool:
    """Whether the value is an absolute POSIX path or a Windows path with drive or share."""
    if not isinstance(path, str):
        return False
    drive, rest = ntpath.splitdrive(path)
    # A share is absolute without a separator behind it.
    return posixpath.isabs(path) or (
        drive != "" and (rest[:1] in ("\\", "/") or drive[:2] == "\\\\")
    )


def _wrong(name: str, wanted: str) -> HeaderError:
    return HeaderError(f"the header field {name!r} must be {wanted}", field=name)
