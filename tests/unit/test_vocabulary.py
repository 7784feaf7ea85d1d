"""The vocabulary: known, registered, retired and unknown types (log.md, sections 1 and 2)."""

from __future__ import annotations

import dataclasses
from typing import Any, TypedDict

import msgspec
import pytest

import turnlog
from turnlog.errors import EventError, InvariantError
from turnlog.events import SessionEvent
from turnlog.invariants import InvariantSettings, attach_invariants
from turnlog.session import Session
from turnlog.vocabulary import (
    EVENT_TYPES,
    KNOWN_TYPES,
    RESERVED_TYPES,
    RETIRED_TYPES,
    SURFACE_TYPES,
    CandidateView,
    EventTypes,
    register_event_type,
)


class Build(msgspec.Struct):
    target: str
    attempts: list[int] = []


@dataclasses.dataclass
class Deploy:
    to: str


class Note(TypedDict):
    text: str


@pytest.fixture(autouse=True)
def _own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EVENT_TYPES, "_own", {})


def test_the_48_types_of_the_format_are_known() -> None:
    assert len(KNOWN_TYPES) == 48
    assert sorted(SURFACE_TYPES) == ["assistant/message", "tool/result", "user/message"]
    assert KNOWN_TYPES > SURFACE_TYPES
    assert not RETIRED_TYPES & KNOWN_TYPES


def test_a_registered_type_comes_back_typed() -> None:
    register_event_type("ci/build", payload=Build)
    register_event_type("ci/deploy", payload=Deploy)
    register_event_type("ci/note", payload=Note)
    session = Session.create("s")
    build = session.append("ci/build", {"target": "all", "attempts": [1]})
    assert build.typed() == Build("all", [1])
    assert session.append("ci/deploy", {"to": "prod"}).typed() == Deploy("prod")
    assert session.append("ci/note", {"text": "x"}).typed() == {"text": "x"}
    assert Session.create("t", session.events).events[0].typed() == Build("all", [1])


def test_the_payload_is_checked_at_append_seed_and_reading_alike() -> None:
    register_event_type("ci/build", payload=Build)
    wire = {"type": "ci/build", "seq": 0, "time": 0, "data": {"target": 1}}
    for attempt in (
        lambda: Session.create("s").append("ci/build", {"target": 1}),
        lambda: Session.create("s").append_all([{"type": "ci/build", "data": {}}]),
        lambda: Session.create("s", [wire]),
        lambda: SessionEvent.from_dict(wire),
    ):
        with pytest.raises(EventError) as caught:
            attempt()
        assert caught.value.code == "INVALID_PAYLOAD"
        assert "ci/build" in caught.value.message


def test_what_a_payload_type_does_not_name_is_kept() -> None:
    register_event_type("ci/build", payload=Build)
    event = Session.create("s").append("ci/build", {"target": "all", "more": {"x": 1}})
    assert event.data == {"target": "all", "more": {"x": 1}}


def test_events_of_an_ignorable_type_are_marked() -> None:
    register_event_type("ci/log", ignorable=True)
    session = Session.create("s")
    assert session.append("ci/log", None).to_dict()["ignorable"] is True
    assert "ignorable" not in session.append("ci/other", None).to_dict()


def test_an_unregistered_ignorable_type_round_trips_untouched() -> None:
    wire = {"type": "x/y", "seq": 0, "time": 0, "data": {"k": [1]}, "ignorable": True}
    event = Session.create("s", [wire]).events[0]
    assert event.to_dict() == wire
    assert event.typed() == {"k": [1]}


def test_registering_again_is_idempotent_and_another_definition_is_refused() -> None:
    first = register_event_type("ci/build", payload=Build)
    assert register_event_type("ci/build", payload=Build) == first
    with pytest.raises(EventError) as caught:
        register_event_type("ci/build", payload=Deploy)
    assert caught.value.code == "TYPE_TAKEN"


@pytest.mark.parametrize(
    "name", [*sorted(RETIRED_TYPES), "user/message", "turn/start", "assistant/chunk"]
)
def test_known_and_retired_names_are_taken(name: str) -> None:
    with pytest.raises(EventError) as caught:
        register_event_type(name)
    assert caught.value.code == "TYPE_TAKEN"


def test_a_required_event_of_an_unknown_type_is_refused_with_the_way_out() -> None:
    types = EventTypes()
    types.register("ci/build")
    for name in ("ci/build", "turn/start"):
        types.require_known(name, ignorable=False)
    types.require_known("x/y", ignorable=True)
    with pytest.raises(EventError) as caught:
        types.require_known("x/y", ignorable=False)
    assert caught.value.code == "UNKNOWN_EVENT_TYPE"
    assert "'x/y'" in caught.value.message
    assert "register" in caught.value.message


@pytest.mark.parametrize("name", sorted(RETIRED_TYPES))
def test_retired_types_are_refused_at_append_and_seed_even_if_ignorable(name: str) -> None:
    session = Session.create("s")
    with pytest.raises(EventError):
        session.append(name, {}, ignorable=True)
    with pytest.raises(EventError):
        Session.create("s", [{"type": name, "seq": 0, "time": 0, "data": {}, "ignorable": True}])
    assert session.seq == 0


def test_a_relational_check_of_ones_own_vetoes_under_its_types_name() -> None:
    seen: list[CandidateView] = []

    def check(candidate: CandidateView) -> None:
        seen.append(candidate)
        if candidate.open_turn is None:
            raise ValueError("only inside a turn")

    register_event_type("ci/build", check=check)
    session = Session.create("s")
    attach_invariants(session)
    with pytest.raises(InvariantError) as caught:
        session.append("ci/build", {"n": 1})
    assert (caught.value.owner, caught.value.code) == ("ci/build", "INVARIANT")
    assert "only inside a turn" in caught.value.message
    session.append("turn/start", {"turn": 1})
    session.append("ci/build", {"n": 2})
    assert seen[-1] == CandidateView("ci/build", 1, {"n": 2}, 1, None)
    assert session.seq == 2


@pytest.mark.parametrize(
    ("settings", "runs"),
    [
        (InvariantSettings(), True),
        (InvariantSettings(block=("ci/*",)), False),
        (InvariantSettings(allow=("session",)), False),
        (InvariantSettings(allow=("ci/?uild",), block=("session",)), True),
    ],
)
def test_owners_are_allowed_and_blocked_by_patterns(
    settings: InvariantSettings, runs: bool
) -> None:
    def veto(candidate: CandidateView) -> None:
        raise InvariantError("no", owner=candidate.type)

    register_event_type("ci/build", check=veto)
    session = Session.create("s")
    attach_invariants(session, settings)
    if runs:
        with pytest.raises(InvariantError):
            session.append("ci/build", None)
    else:
        session.append("ci/build", None)


def test_a_check_that_fails_in_its_own_way_still_changes_nothing() -> None:
    def broken(candidate: CandidateView) -> None:
        raise RuntimeError("bug")

    register_event_type("ci/build", check=broken)
    session = Session.create("s")
    attach_invariants(session)
    entries: list[dict[str, Any]] = [
        {"type": "turn/start", "data": {"turn": 1}},
        {"type": "ci/build", "data": 1},
    ]
    for attempt in (lambda: session.append("ci/build", 1), lambda: session.append_all(entries)):
        with pytest.raises(RuntimeError):
            attempt()
        assert (session.seq, session.state.open_turn) == (0, None)
    session.append("turn/start", {"turn": 1})


@pytest.mark.parametrize("name", sorted(RESERVED_TYPES))
def test_a_storage_refuses_a_type_that_is_the_tag_of_a_record(name: str) -> None:
    with turnlog.open("memory:") as log, log.create() as session:
        with pytest.raises(EventError) as refused:
            session.append(name, {}, ignorable=True)
        assert refused.value.code == "RESERVED_TYPE"
    with pytest.raises(EventError):
        EventTypes().register(name)
