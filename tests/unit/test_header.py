"""Session headers (log.md, section 6; storage.md, section 1.2)."""

from __future__ import annotations

from typing import Any

import pytest

from turnlog.errors import HeaderError, JsonValueError
from turnlog.header import SessionHeader, is_absolute

FULL = {
    "version": 0,
    "id": "s",
    "createdAt": 1,
    "cwd": "/repo",
    "parentSession": "p",
    "seedLength": 3,
    "origin": "subagent",
    "delegationDepth": 1,
    "agentPreset": "fast",
}

NOTHING: list[Any] = [None, True, [], "1"]


def header(**changes: Any) -> dict[str, Any]:
    return {"version": 0, "id": "s", "createdAt": 1} | changes


@pytest.mark.parametrize(
    "wire",
    [
        header(),
        FULL,
        header(createdAt=0),
        header(createdAt=2**53 - 1),
        header(seedLength=0, delegationDepth=0),
        header(parentSession="", agentPreset=""),
        header(later={"by": ["others"]}, isSeeded=True),
    ],
)
def test_a_sound_header_comes_back_with_its_unknown_keys(wire: dict[str, Any]) -> None:
    read = SessionHeader.from_dict(wire)
    assert read.to_dict() == wire
    assert list(read.to_dict()) == list(wire)
    assert SessionHeader.from_dict(read.to_dict()) == read


@pytest.mark.parametrize(
    "wire",
    [
        {"version": 0, "createdAt": 1},
        {"version": 0, "id": "s"},
        *(header(id=value) for value in ["", 1, None, []]),
        *(header(version=value) for value in [1, -1, 0.5, False, *NOTHING]),
        *(
            header(**{name: value})
            for name in ("createdAt", "seedLength", "delegationDepth")
            for value in [-1, 1.5, 2**53, *NOTHING]
        ),
        *(
            header(cwd=value)
            for value in ["", "repo", "./repo", "~/repo", "C:repo", "C:", *NOTHING]
        ),
        *(header(origin=value) for value in ["user", "", *NOTHING]),
        *(header(parentSession=value) for value in NOTHING[:3]),
        *(header(agentPreset=value) for value in NOTHING[:3]),
        header(sandboxMode="x"),
        header(approvalPolicy="x"),
    ],
)
def test_a_wrong_header_is_refused_by_field(wire: dict[str, Any]) -> None:
    with pytest.raises(HeaderError) as caught:
        SessionHeader.from_dict(wire)
    assert caught.value.code == "INVALID_HEADER"
    assert caught.value.details["field"] in {*FULL, "sandboxMode", "approvalPolicy"}


def test_the_tag_of_a_stored_header_line_is_no_part_of_it() -> None:
    assert SessionHeader.from_dict({"type": "session", **FULL}).to_dict() == FULL


def test_a_header_must_be_lossless_json() -> None:
    for created in (-0.0, float("nan")):
        with pytest.raises(JsonValueError):
            SessionHeader.from_dict(header(createdAt=created))


@pytest.mark.parametrize(
    ("path", "absolute"),
    [
        ("/", True),
        ("/repo", True),
        ("C:\\repo", True),
        ("c:/repo", True),
        ("C:\\", True),
        ("\\\\server\\share\\repo", True),
        ("\\\\server\\share", True),
        ("C:repo", False),
        ("repo\\x", False),
        ("..", False),
        ("", False),
        (None, False),
        (b"/repo", False),
    ],
)
def test_absolute_means_posix_or_windows(path: Any, absolute: bool) -> None:
    assert is_absolute(path) is absolute


def test_a_header_is_detached_and_its_copies_are_checked() -> None:
    wire = header(later={"rows": [1]})
    read = SessionHeader.from_dict(wire)
    wire["later"]["rows"].append(2)
    read.to_dict()["later"]["rows"].append(3)
    assert read.to_dict()["later"] == {"rows": [1]}
    assert read.replace(cwd="/x").to_dict()["cwd"] == "/x"
    assert read.cwd is None
    with pytest.raises(HeaderError):
        read.replace(cwd="x")
