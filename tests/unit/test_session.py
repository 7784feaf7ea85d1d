"""Session (log.md, section 6): seeds, appends, batches, observers, and what is derived."""

from __future__ import annotations

import enum
import json
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from turnlog.commit_check import CommitCheck
from turnlog.errors import (
    EventError,
    HeaderError,
    InvariantError,
    JsonValueError,
    SessionError,
    SurfaceError,
    TurnlogError,
)
from turnlog.events import SessionEvent
from turnlog.frozen import FrozenDict
from turnlog.invariants import attach_invariants
from turnlog.logstate import LogState
from turnlog.lossless import json_equal
from turnlog.messages import assistant_message, tool_result_message, user_message
from turnlog.session import END_SEED, Session

Vectors = Callable[[str], Any]
Wire = dict[str, Any]
DEPTH = 100_000


def user(text: str) -> Wire:
    return {"type": "user/message", "data": user_message(text).to_dict(), "surfaceOp": "append"}


def wire(seq: int, type_: str = "x", data: Any = None, **keys: Any) -> Wire:
    return {"type": type_, "seq": seq, "time": 1000 + seq, "data": data, **keys}


def fingerprint(session: Session) -> tuple[Any, ...]:
    """Everything that an append can change."""
    return (
        session.seq,
        [event.to_json() for event in session.events],
        session.surface.to_surface(),
        session.state,
        session.derive_messages(),
        session.request_header(),
        session.request_context(),
        session.title(),
        session.usage(),
        session.first_live_seq,
    )


def filled(**options: Any) -> Session:
    session = Session.create("s", **options)
    session.append_user("one")
    session.append("turn/start", {"turn": 1})
    session.append_user("two")
    session.append("session/title", {"title": "t", "messageSeqs": [], "source": {"kind": "user"}})
    return session


# -- seeds ---------------------------------------------------------------------------------------------


def test_seeds_are_judged_as_the_reference_judges_them(vectors: Vectors) -> None:
    for case in vectors("seed_validation"):
        events = case["events"]
        if case["name"] == "negative zero":
            events = [wire(0, "turn/start", {"turn": -0.0})]
        for make in (Session.create, Session.from_restore):
            if "error" in case:
                with pytest.raises((EventError, JsonValueError), match="seed event"):
                    make("s", events)
                continue
            session = make("s", events)
            assert {
                "seq": session.seq,
                "firstLiveSeq": session.first_live_seq,
                "surface": session.surface.nodes,
                "messages": [message.id for message in session.derive_messages()],
                "lastType": session.events[-1].type,
            } == case["result"], case["name"]
            assert [event.to_dict() for event in session.events][: len(events)] == events


def test_a_session_without_a_seed_has_no_marker() -> None:
    session = Session.create("s")
    assert (session.seq, session.first_live_seq, list(session.events)) == (0, 0, [])


def test_a_seed_is_marked_once() -> None:
    first = Session.create("a", [])
    assert [event.type for event in first.events] == [END_SEED]
    assert (first.events[0].data, first.first_live_seq) == ({}, 0)
    again = Session.create("b", first.events)
    assert (again.seq, again.first_live_seq) == (1, 1)
    first.append("x", None)
    third = Session.create("c", first.events)
    assert [event.type for event in third.events] == [END_SEED, "x", END_SEED]
    assert third.first_live_seq == 2


def test_a_seed_may_be_any_iterable_of_events_and_dicts_and_is_copied() -> None:
    data = {"rows": [1]}
    seed: list[Any] = [wire(0, data=data), SessionEvent.from_dict(wire(1))]
    session = Session.create("s", iter(seed))
    data["rows"].append(2)
    seed.clear()
    assert [event.to_dict() for event in session.events][:2] == [
        wire(0, data={"rows": [1]}),
        wire(1),
    ]


@pytest.mark.parametrize("index", [0, 1, 5])
@pytest.mark.parametrize(
    ("bad", "error"),
    [
        ({"time": 0.5}, EventError),
        ({"data": float("nan")}, JsonValueError),
        ({"type": "user/message", "data": {}, "surfaceOp": "append"}, EventError),
        ({"surfaceOp": "append"}, SurfaceError),
        ({"surfaceOp": None}, SurfaceError),
        ({"sourceEventSeqs": None}, SurfaceError),
        ({"type": "mode/set"}, EventError),
        ({"seq": 77}, SurfaceError),
    ],
)
def test_a_seeds_fault_is_named_by_index(bad: Wire, error: type[TurnlogError], index: int) -> None:
    seed = [wire(seq) for seq in range(6)]
    seed[index] |= bad
    with pytest.raises(error) as caught:
        Session.create("s", seed)
    assert caught.value.message.startswith(f"seed event {index}: ")
    assert caught.value.details["seq"] == index


@pytest.mark.parametrize("keys", [{"surfaceOp": None}, {"sourceEventSeqs": None}])
@pytest.mark.parametrize("type_", ["turn/start", "user/message"])
def test_null_surface_keys_are_not_absent_ones_in_events_of_ours_either(
    type_: str, keys: Wire
) -> None:
    event = wire(0, type_, user_message("x").to_dict(), surfaceOp="append") | keys
    if type_ == "turn/start" and "surfaceOp" not in keys:
        del event["surfaceOp"]
    for form in (event, SessionEvent.from_dict(event)):
        with pytest.raises(SurfaceError):
            Session.create("s", [form])


def test_invariants_read_a_seed_and_do_not_judge_it() -> None:
    session = Session.create(
        "s", [wire(0, "turn/end", {"turn": 9}), wire(1, "turn/start", {"turn": 4})]
    )
    attach_invariants(session)
    with pytest.raises(InvariantError):
        session.append("turn/start", {"turn": 5})
    session.append("turn/end", {"turn": 4})


def test_the_header_is_made_or_must_be_the_sessions_own() -> None:
    assert Session.create("s", clock=lambda: 5).header.to_dict() == {
        "version": 0,
        "id": "s",
        "createdAt": 5,
    }
    given = {"version": 0, "id": "s", "createdAt": 1, "cwd": "/w", "more": [1]}
    assert Session.create("s", header=given).header.to_dict() == given
    for id_, header in (
        ("t", given),
        ("", None),
        ("s", given | {"cwd": "w"}),
        ("s", given | {"version": 1}),
    ):
        with pytest.raises(HeaderError):
            Session.create(id_, header=header)


# -- append --------------------------------------------------------------------------------------------


class Op(enum.StrEnum):
    APPEND = "append"


REFUSED: list[tuple[str, Any, dict[str, Any]]] = [
    ("x", float("nan"), {}),
    ("x", {"a": [(1,)]}, {}),
    ("x", {1: 2}, {}),
    ("turn/start", {"turn": 1}, {"surface_op": "append"}),
    ("turn/start", {"turn": 1}, {"source_event_seqs": [0]}),
    ("user/message", user_message("x"), {}),
    ("user/message", user_message("x"), {"surface_op": "prepend"}),
    ("user/message", user_message("x"), {"surface_op": Op.APPEND}),
    ("user/message", user_message("x"), {"surface_op": {"op": "replace", "start": 0, "end": 0}}),
    ("user/message", user_message("x"), {"surface_op": "append", "source_event_seqs": []}),
    ("user/message", user_message("x"), {"surface_op": "append", "source_event_seqs": (0,)}),
    ("user/message", user_message("x"), {"surface_op": "append", "source_event_seqs": [True]}),
    ("user/message", {"role": "user"}, {"surface_op": "append"}),
    ("request/header", {"header": {}, "reason": "initial"}, {}),
    ("mode/set", {}, {}),
    ("x", None, {"time": 0.5}),
    ("x", None, {"time": 2**53}),
    ("x", None, {"time": True}),
    ("x", None, {"ignorable": "no"}),
    ("x", None, {"ignorable": None}),
    (5, None, {}),  # type: ignore[list-item]
    (Op.APPEND, None, {}),
]


@pytest.mark.parametrize(("type_", "data", "options"), REFUSED)
def test_a_refused_append_changes_nothing(type_: str, data: Any, options: dict[str, Any]) -> None:
    session = filled()
    heard: list[SessionEvent] = []
    session.observe(heard.append)
    before, surface = fingerprint(session), session.surface
    with pytest.raises(TurnlogError):
        session.append(type_, data, **options)
    names = {"surface_op": "surfaceOp", "source_event_seqs": "sourceEventSeqs"}
    entry = {
        "type": type_,
        "data": data,
        **{names.get(key, key): value for key, value in options.items()},
    }
    with pytest.raises(TurnlogError):
        session.append_all([user("fine"), {"type": "turn/start", "data": {"turn": 2}}, entry])
    assert fingerprint(session) == before
    assert session.surface is surface
    assert heard == []
    assert session.append("x", None).seq == before[0]


def test_an_append_is_stored_detached_normalised_and_frozen() -> None:
    session = Session.create("s", clock=lambda: 7)
    data = {"n": 1.0, "rows": [{"a": "\ud83d\ude00"}]}
    event = session.append("x/\ud83d\ude00", data, ignorable=True)
    data["rows"] = []
    assert event.to_dict() == {
        "type": "x/\U0001f600",
        "seq": 0,
        "time": 7,
        "data": {"n": 1, "rows": [{"a": "\U0001f600"}]},
        "ignorable": True,
    }
    assert (type(event.data), type(event.data["n"])) == (FrozenDict, int)
    assert session.events[0] == event
    assert SessionEvent.from_dict(event.to_dict()) == event


def test_the_time_may_be_given_and_is_the_clocks_otherwise() -> None:
    session = Session.create("s", clock=lambda: 5)
    times = [session.append("x", None, time=time).time for time in (-3, None, 0)]
    assert times == [-3, 5, 0]
    ticks: Iterator[Any] = iter([5, 0.5])
    with pytest.raises(EventError):
        Session.create("s", clock=ticks.__next__).append("x", None)


def test_a_session_on_its_own_takes_any_type_and_any_payload() -> None:
    session = Session.create("s")
    payloads: list[Any] = [None, 0, "x", [], {}]
    for type_ in (
        "",
        "never/heard/of",
        "turn/start",
        "turn/end",
        "step/end",
        "session/title",
        "tool/call",
    ):
        for data in payloads:
            session.append(type_, data)
    session.append("request/context", None)
    assert (session.title(), session.request_context()) == (None, None)
    assert len(Session.create("t", session.events).events) == session.seq + 1


def test_surface_keys_are_stored_detached() -> None:
    session = filled()
    op, sources = {"op": "replace", "start": 0, "end": 2.0}, [0, 2]
    event = session.append(
        "user/message", user_message("x"), surface_op=op, source_event_seqs=sources
    )
    op["start"] = 9
    sources.append(9)
    assert event.to_dict()["surfaceOp"] == {"op": "replace", "start": 0, "end": 2}
    assert event.to_dict()["sourceEventSeqs"] == [0, 2]
    assert session.surface.nodes == [4]


def test_what_append_accepts_a_seed_accepts() -> None:
    session = filled()
    session.append("\ud800", "\udfff", ignorable=True)
    session.append_message(user_message("all"), replace=(0, 2))
    seeded = Session.create("s", [event.to_dict() for event in session.events])
    assert fingerprint(seeded)[3:6] == fingerprint(session)[3:6]
    assert list(seeded.events)[:-1] == list(session.events)


def test_a_hundred_thousand_levels_are_appended_and_seeded() -> None:
    value: Any = None
    for level in range(DEPTH):
        value = [value] if level % 2 else {"a": value}
    session = Session.create("s")
    event = session.append("x", value)
    assert json_equal(Session.create("t", session.events).events[0].data, value)
    assert event.to_json().startswith(b'{"type":"x","seq":0,')


# -- batches -------------------------------------------------------------------------------------------


def test_a_batch_is_appended_in_order_and_heard_after_its_commit() -> None:
    session = filled()
    heard: list[tuple[int, int]] = []
    session.observe(lambda event: heard.append((event.seq, session.seq)))
    events = session.append_all(
        [user("a"), {"type": "x", "data": None, "time": 3, "ignorable": True}]
    )
    assert [event.seq for event in events] == [4, 5]
    assert events[1].to_dict() == {
        "type": "x",
        "seq": 5,
        "time": 3,
        "data": None,
        "ignorable": True,
    }
    assert heard == [(4, 6), (5, 6)]
    assert session.append_all([]) == []


@pytest.mark.parametrize(
    "bad",
    [
        None,
        "x",
        [],
        {},
        {"type": "x"},
        {"data": 1},
        {"type": "x", "data": 1, "seq": 4},
        {"type": "x", "data": 1, 5: 6},
    ],
)
def test_a_batch_with_a_misshapen_entry_is_refused_whole(bad: Any) -> None:
    session = filled()
    before = fingerprint(session)
    with pytest.raises(EventError):
        session.append_all([user("a"), bad])
    assert fingerprint(session) == before


def test_a_batch_may_build_on_itself_and_is_taken_back_whole() -> None:
    session = filled()
    before, surface = fingerprint(session), session.surface
    replacing = user("all") | {
        "surfaceOp": {"op": "replace", "start": 0, "end": 4},
        "sourceEventSeqs": [0, 2, 4],
    }
    with pytest.raises(SurfaceError):
        session.append_all([user("a"), replacing, user("b") | {"surfaceOp": "no"}])
    assert fingerprint(session) == before
    session.append_all([user("a"), replacing])
    assert session.surface is surface
    assert session.surface.nodes == [5]


def test_a_batch_is_taken_back_whatever_goes_wrong() -> None:
    session = filled()
    before = fingerprint(session)

    def entries() -> Iterator[Wire]:
        yield user("a")
        raise OSError("the source broke")

    class Stop(CommitCheck):
        def check(self, event: SessionEvent, data: Any, state: LogState) -> None:
            if data == "stop":
                raise KeyboardInterrupt

    with pytest.raises(OSError, match="the source broke"):
        session.append_all(entries())
    session.add_check(Stop())
    with pytest.raises(KeyboardInterrupt):
        session.append_all([user("a"), {"type": "x", "data": "stop"}])
    assert fingerprint(session) == before


def test_a_batch_read_from_the_session_itself_sees_it_as_it_was() -> None:
    session = filled()
    copies = ({"type": "copy", "data": event.seq + session.seq} for event in session.events)
    assert [event.data for event in session.append_all(copies)] == [4, 5, 6, 7]


def test_views_taken_before_a_refused_batch_stay_true() -> None:
    session = filled()
    view = session.events
    with pytest.raises(EventError):
        session.append_all([user("a"), {}])
    session.append("other", None)
    assert [event.type for event in view] == [
        "user/message",
        "turn/start",
        "user/message",
        "session/title",
    ]


# -- what is derived -----------------------------------------------------------------------------------


def test_views_of_events_do_not_grow() -> None:
    session = filled()
    view = session.events
    session.append("x", None)
    assert (len(view), len(session.events)) == (4, 5)
    assert view[-1].seq == 3
    assert [event.seq for event in view[1:]] == [1, 2, 3]
    assert [event.seq for event in view[::-2]] == [3, 1]
    for index in (4, -5):
        with pytest.raises(IndexError):
            view[index]
    with pytest.raises(TypeError):
        view[0] = view[1]  # type: ignore[index]
    assert view == list(view)
    assert view != session.events
    assert view.prefix(2) == view[:2]
    assert session.events[4] in session.events
    assert session.events[4] not in view


def test_derived_messages_are_shared_and_come_in_a_list_of_ones_own() -> None:
    session = filled()
    first = session.derive_messages()
    first.clear()
    one, two = session.derive_messages(), session.derive_messages()
    assert all(left is right for left, right in zip(one, two, strict=True))
    session.append_message(user_message("all"), replace=(0, 0))
    assert session.derive_messages()[1] is one[1]
    assert [message.text for message in session.derive_messages()] == ["all", "two"]
    with pytest.raises(TypeError):
        one[0]["content"][0]["text"] = "changed"


def test_force_on_returned_values_changes_nothing_stored() -> None:
    session = filled()
    before = [event.to_json() for event in session.events]
    for event in session.events:
        dict.clear(event.data)
    for message in session.derive_messages():
        dict.clear(message)
    list.clear(session.surface.nodes)
    assert [event.to_json() for event in session.events] == before
    assert [event.to_dict() for event in session.events] == [json.loads(line) for line in before]
    again = Session.create("t", [event.to_dict() for event in session.events])
    assert [message.text for message in again.derive_messages()] == ["one", "two"]
    assert session.surface.nodes == [0, 2]


def test_the_latest_header_context_and_title_win() -> None:
    session = Session.create("s")
    assert (session.request_header(), session.request_context(), session.title()) == (
        None,
        None,
        None,
    )
    for name in "ab":
        header = {"config": {"provider": "p", "model": name}, "system": "", "tools": []}
        session.append("request/header", {"header": header, "reason": "change"})
        session.append("request/context", {"provider": "p", "model": name, "contextWindow": 9})
        session.append(
            "session/title", {"title": name, "messageSeqs": [], "source": {"kind": "user"}}
        )
    assert session.request_header() == {"config": {"provider": "p", "model": "b"}}
    assert session.request_context() == {"provider": "p", "model": "b", "contextWindow": 9}
    assert session.title() == "b"


def test_one_events_message_is_derived_verbatim() -> None:
    session = filled()
    assert session.derive_event_message(session.events[0]) == session.derive_messages()[0]
    assert session.derive_event_message(session.events[1]) is None
    assert session.derive_event_message(session.events[0].to_dict()) == session.derive_messages()[0]


# -- observers and checks ------------------------------------------------------------------------------


def test_an_observers_failure_is_logged_and_the_append_stands(
    caplog: pytest.LogCaptureFixture,
) -> None:
    session = Session.create("s")
    heard: list[int] = []

    def fail(event: SessionEvent) -> None:
        raise RuntimeError("observer broke")

    session.observe(fail)
    session.observe(lambda event: heard.append(event.seq))
    with caplog.at_level(logging.ERROR, logger="turnlog"):
        assert session.append("x", None).seq == 0
        session.append_all([{"type": "x", "data": 1}, {"type": "x", "data": 2}])
    assert heard == [0, 1, 2]
    assert len(caplog.records) == 3
    assert "observer broke" in caplog.text
    assert session.seq == 3


def test_an_observer_cannot_append_to_its_own_session_in_any_way() -> None:
    session, other = Session.create("s"), Session.create("t")
    codes: list[str] = []
    attempts: list[Callable[[], object]] = [
        lambda: session.append("y", None),
        lambda: session.append_all([{"type": "y", "data": None}]),
        lambda: session.append_user("y"),
        lambda: session.append_assistant("y", provider="p", model="m"),
    ]

    def observer(event: SessionEvent) -> None:
        other.append("seen", event.seq)
        for attempt in attempts:
            with pytest.raises(SessionError) as caught:
                attempt()
            codes.append(caught.value.code)

    session.observe(observer)
    session.append("x", None)
    assert codes == ["REENTRANT_APPEND"] * 4
    assert (session.seq, other.seq) == (1, 1)
    session.append("x", None)


def test_reentrancy_is_judged_by_thread() -> None:
    session = Session.create("s")
    workers: list[threading.Thread] = []

    def observer(event: SessionEvent) -> None:
        if event.type == "x":
            workers.append(
                threading.Thread(target=session.append, args=("from another thread", event.seq))
            )
            workers[-1].start()

    session.observe(observer)
    for _ in range(5):
        session.append("x", None)
    for worker in workers:
        worker.join()
    assert session.seq == 10
    assert [event.seq for event in session.events] == list(range(10))
    assert sorted(event.data for event in session.events if event.type != "x") == sorted(
        event.seq for event in session.events if event.type == "x"
    )


def test_a_check_cannot_append_to_the_session_that_it_guards() -> None:
    session = Session.create("s")

    class Meddler(CommitCheck):
        def check(self, event: SessionEvent, data: Any, state: LogState) -> None:
            session.append("sneaked in", None)

    session.add_check(Meddler())
    with pytest.raises(SessionError) as caught:
        session.append("x", None)
    assert caught.value.code == "REENTRANT_APPEND"
    assert session.seq == 0


def test_taking_an_observer_off_takes_off_that_registration_only() -> None:
    session = Session.create("s")
    heard: list[int] = []

    def observer(event: SessionEvent) -> None:
        heard.append(event.seq)

    off, _ = session.observe(observer), session.observe(observer)
    off()
    off()
    session.append("x", None)
    assert heard == [0]


def test_an_observer_may_read_and_may_take_itself_off() -> None:
    session = Session.create("s")
    seen: list[tuple[int, int]] = []

    def observer(event: SessionEvent) -> None:
        seen.append((len(session.events), len(session.derive_messages())))
        off()

    off = session.observe(observer)
    session.append_user("a")
    session.append_user("b")
    assert seen == [(1, 1)]


# -- threads and processes -----------------------------------------------------------------------------


@pytest.fixture
def _eager_switching() -> Iterator[None]:
    """Lets threads take turns far more often than every five milliseconds."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


@pytest.mark.usefixtures("_eager_switching")
def test_eight_threads_make_one_contiguous_log() -> None:
    session = Session.create("s")
    heard: list[int] = []
    session.observe(lambda event: heard.append(event.seq))
    start = threading.Barrier(8)

    def work(name: int) -> None:
        start.wait()
        for number in range(25):
            session.append_user(f"{name} {number}")
            batch = session.append_all(
                [{"type": "x", "data": [name, number, part]} for part in range(3)]
            )
            assert [event.seq for event in batch] == list(range(batch[0].seq, batch[0].seq + 3))
            assert len(session.derive_messages()) <= len(session.events)

    threads = [threading.Thread(target=work, args=(name,)) for name in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    events = list(session.events)
    assert [event.seq for event in events] == list(range(8 * 25 * 4)) == heard
    assert session.surface.nodes == [event.seq for event in events if event.type == "user/message"]
    for name in range(8):
        own = [event.data for event in events if event.type == "x" and event.data[0] == name]
        assert own == [[name, number, part] for number in range(25) for part in range(3)]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_session_inherited_over_fork_refuses_to_append() -> None:
    session = filled()
    attempts: list[Callable[[], object]] = [
        lambda: session.append("x", None),
        lambda: session.append_all([]),
        lambda: session.append_user("x"),
        lambda: session.append_assistant("x", provider="p", model="m"),
    ]
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        codes = []
        for attempt in attempts:
            try:
                attempt()
            except SessionError as error:
                codes.append(error.code)
        fresh = Session.create("t")
        fresh.append("x", None)
        os.write(writer, json.dumps([codes, session.seq, fresh.seq]).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        report = json.loads(pipe.read())
    assert os.waitpid(child, 0)[1] == 0
    assert report == [["FORKED"] * 4, 4, 1]
    session.append("x", None)


# -- the usual messages --------------------------------------------------------------------------------


def test_a_models_message_outside_a_turn_makes_a_turn_of_its_own() -> None:
    session = Session.create("s")
    attach_invariants(session)
    session.append_user("q")
    event = session.append_assistant("a", provider="p", model="m", usage={"inputTokens": 3})
    types = [
        "user/message",
        "turn/start",
        "step/start",
        "assistant/message",
        "step/end",
        "turn/end",
    ]
    assert [event.type for event in session.events] == types
    assert (event.type, event.seq, event.data["turn"], event.data["step"]) == (
        "assistant/message",
        3,
        1,
        1,
    )
    assert session.append_assistant("b", provider="p", model="m").data["turn"] == 2
    assert session.usage().conversation.input_tokens == 3


def test_messages_inside_a_step_name_that_step() -> None:
    session = Session.create("s")
    attach_invariants(session)
    for turn in (1, 2):
        session.append("turn/start", {"turn": turn})
        session.append("step/start", {"turn": turn, "step": 1})
        event = session.append_message(assistant_message("a", provider="p", model="m"))
        assert (event.data["turn"], event.data["step"]) == (turn, 1)
        session.append(
            "tool/call", {"turn": turn, "step": 1, "callId": "c", "name": "n", "arguments": ""}
        )
        event = session.append_message(tool_result_message("c", "out"))
        assert (event.type, event.data["turn"], event.data["step"]) == ("tool/result", turn, 1)
        session.append("step/end", {"turn": turn, "step": 1})
        session.append("turn/end", {"turn": turn})


def test_a_message_replaces_the_nodes_between_two_seqs_and_cites_them() -> None:
    session = filled()
    event = session.append_message(user_message("all"), replace=(0, 2))
    assert event.to_dict()["sourceEventSeqs"] == [0, 2]
    for missing in ((0, 4), (4, 9), (9, 4)):
        with pytest.raises(SurfaceError):
            session.append_message(user_message("x"), replace=missing)
    assert session.surface.nodes == [4]


def test_a_result_rewritten_in_a_later_turn_keeps_its_place_error_and_meta() -> None:
    session = Session.create("s")
    message = tool_result_message("c", "long")
    data = {
        "turn": 1,
        "step": 2,
        "message": message,
        "error": {"name": "E", "code": "C"},
        "meta": [1],
    }
    session.append("tool/result", data, surface_op="append")
    session.append("turn/start", {"turn": 2})
    shorter = tool_result_message("c", "short", ids=lambda: message.id)
    event = session.append_message(shorter, replace=(0, 0))
    assert event.data == data | {"message": shorter}


@pytest.mark.parametrize(
    "message", [{}, {"role": "user"}, {"role": "user", "source": "x"}, {"role": "system"}]
)
def test_a_message_that_is_none_is_refused_as_such(message: Wire) -> None:
    session = filled()
    with pytest.raises(EventError):
        session.append_message(message)
    assert session.seq == 4


def test_a_detached_session_has_no_storage_to_flush() -> None:
    with pytest.raises(SessionError) as caught:
        Session.create("s").flush()
    assert caught.value.code == "SESSION_NOT_LIVE"
