"""Sessions, forks and batches against a model that is a few lists of Python.

The model keeps the wire dicts that were accepted, the surface as a list of seqs, and the messages by seq. Every
step compares the session with it, and a refused step must leave both as they were.
"""

from __future__ import annotations

import copy
import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from turnlog.errors import InvariantError, SessionError, TurnlogError
from turnlog.events import SessionEvent, event_from_line
from turnlog.invariants import attach_invariants, find_violations
from turnlog.logstate import LogState
from turnlog.messages import assistant_message, tool_result_message, user_message
from turnlog.repair import interrupted_turn_closers
from turnlog.session import END_SEED, Session
from turnlog.store import SessionStore
from turnlog.surface import fold_surface

Wire = dict[str, Any]
SURFACE = ("user/message", "assistant/message", "tool/result")

payloads = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.text(max_size=3)
    | st.floats(allow_nan=False),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2)
    ),
    max_leaves=4,
)
texts = st.text(max_size=4)


@st.composite
def messages(draw: st.DrawFn) -> tuple[str, Wire]:
    """A surface type and its data."""
    kind, text = draw(st.sampled_from(SURFACE)), draw(texts)
    if kind == "user/message":
        return kind, user_message(text).to_dict()
    if kind == "assistant/message":
        content: Any = draw(st.sampled_from([[], text]))
        message = assistant_message(content, provider="p", model="m")
    else:
        message = tool_result_message("c", text, ids=lambda: "r")
    return kind, {"turn": 1, "step": 1, "message": message.to_dict()}


@st.composite
def candidates(draw: st.DrawFn, seq: int, nodes: list[int]) -> Wire:
    """An entry for `append_all`; most are sound, some break a rule of the surface or of JSON."""
    if draw(st.integers(0, 2)) == 0:
        name = draw(
            st.sampled_from(
                ["x", "turn/start", "turn/end", "step/start", "session/title", END_SEED]
            )
        )
        entry: Wire = {"type": name, "data": draw(payloads)}
        if draw(st.integers(0, 9)) == 0:
            entry["surfaceOp"] = "append"
        return entry
    kind, data = draw(messages())
    entry = {"type": kind, "data": data, "surfaceOp": "append"}
    replacing: bool = draw(st.booleans())
    if nodes and replacing:
        start, end = draw(st.sampled_from(nodes)), draw(st.sampled_from(nodes))
        low, high = sorted([nodes.index(start), nodes.index(end)])
        entry["surfaceOp"] = {"op": "replace", "start": start, "end": end}
        extra = draw(st.lists(st.integers(0, max(seq - 1, 0)), max_size=2))
        cited = dict.fromkeys([*nodes[low : high + 1], *extra])
        entry["sourceEventSeqs"] = list(cited)[: draw(st.sampled_from([1, 50, 50, 50]))]
    elif seq and draw(st.booleans()):
        entry["sourceEventSeqs"] = draw(st.lists(st.integers(-1, seq), max_size=3))
    return entry


def accepts(entry: Wire, seq: int, nodes: list[int], stored: list[Wire]) -> list[int] | None:
    """The surface after the entry, or None: the rules of log.md, section 5, said once more."""
    op, sources = entry.get("surfaceOp"), entry.get("sourceEventSeqs")
    try:
        json.dumps(entry["data"], allow_nan=False)
    except ValueError:
        return None
    if "-0.0" in json.dumps(entry["data"]).replace('"-0.0"', ""):
        return None
    if entry["type"] not in SURFACE:
        return nodes if op is None and sources is None else None
    if sources is not None:
        sound = all(0 <= one < seq for one in sources) and len(set(sources)) == len(sources)
        if not sound or (not sources and entry["type"] != "assistant/message"):
            return None
    if not isinstance(op, dict):
        return [*nodes, seq]
    first, last = nodes.index(op["start"]), nodes.index(op["end"])
    shadowed = nodes[first : last + 1]
    if not shadowed or not set(shadowed) <= set(sources or ()):
        return None
    if entry["type"] == "tool/result" and (
        len(shadowed) != 1 or stored[shadowed[0]]["type"] != "tool/result"
    ):
        return None
    return [*nodes[:first], seq, *nodes[last + 1 :]]


class Model:
    """One session and what it must hold."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.stored = [event.to_dict() for event in session.events]
        self.nodes = list(session.surface.nodes)

    def take(self, entry: Wire) -> bool:
        nodes = accepts(entry, len(self.stored), self.nodes, self.stored)
        if nodes is None:
            return False
        self.stored.append({"seq": len(self.stored), **copy.deepcopy(entry)})
        self.nodes = nodes
        return True

    def messages(self) -> list[Wire]:
        found = []
        for seq in self.nodes:
            event = self.stored[seq]
            message = event["data"] if event["type"] == "user/message" else event["data"]["message"]
            if message["content"] or event["type"] != "assistant/message":
                found.append(message)
        return found

    def check(self) -> None:
        session = self.session
        assert session.seq == len(session.events) == len(self.stored)
        assert session.surface.nodes == self.nodes
        assert session.derive_messages() == self.messages()
        for event, stored in zip(session.events, self.stored, strict=True):
            assert event.to_dict() == {"time": event.time, **stored}

    def check_replay(self) -> None:
        """The log alone gives everything back: from our events, from dicts and from bytes."""
        session = self.session
        for events in (
            session.events,
            [event.to_dict() for event in session.events],
            [event_from_line(event.to_json()) for event in session.events],
        ):
            again = Session.create("again", events)
            assert list(again.events)[: session.seq] == list(session.events)
            assert again.derive_messages() == session.derive_messages()
            assert (
                again.surface.to_surface() == session.surface.to_surface() == fold_surface(events)
            )
            assert (again.state, again.title()) == (session.state, session.title())


class SessionMachine(RuleBasedStateMachine):
    """Appends and batches, sound and not, to sessions that fork from each other."""

    def __init__(self) -> None:
        super().__init__()
        self.store = SessionStore()
        self.models = [Model(self.store.create())]

    def pick(self, which: int) -> Model:
        return self.models[which % len(self.models)]

    @rule(which=st.integers(0, 6), data=st.data())
    def append(self, which: int, data: st.DataObject) -> None:
        model = self.pick(which)
        entry = data.draw(candidates(len(model.stored), model.nodes))
        before = model.session.derive_messages()
        accepted = model.take(entry)
        try:
            event = model.session.append(
                entry["type"],
                entry["data"],
                surface_op=entry.get("surfaceOp"),
                source_event_seqs=entry.get("sourceEventSeqs"),
            )
        except TurnlogError:
            assert not accepted
            return
        assert accepted
        assert event == model.session.events[-1]
        if entry["type"] not in SURFACE:
            assert model.session.derive_messages() == before

    @rule(which=st.integers(0, 6), data=st.data())
    def append_batch(self, which: int, data: st.DataObject) -> None:
        model = self.pick(which)
        trial = copy.copy(model)
        trial.stored = list(model.stored)
        surface, entries, accepted = model.session.surface, [], True
        for _ in range(data.draw(st.integers(1, 4))):
            entries.append(data.draw(candidates(len(trial.stored), trial.nodes)))
            accepted = accepted and trial.take(entries[-1])
        try:
            events = model.session.append_all(entries)
        except TurnlogError:
            assert not accepted
        else:
            assert accepted
            assert events == model.session.events[-len(events) :]
            model.stored, model.nodes = trial.stored, trial.nodes
        assert model.session.surface is surface

    @rule(which=st.integers(0, 6), back=st.integers(0, 6))
    def fork(self, which: int, back: int) -> None:
        parent = self.pick(which).session
        boundary = parent.seq - 1 - back
        if boundary < 0 or len(self.models) > 6:
            return
        inherited = parent.events[: boundary + 1]
        is_open = Session.create("prefix", inherited).state.open_turn is not None
        try:
            child = self.store.fork(parent, boundary)
        except SessionError:
            assert is_open
            return
        assert not is_open
        assert child.header.seed_length == child.first_live_seq == boundary + 1
        assert all(one is two for one, two in zip(child.events, inherited, strict=False))
        assert child.seq == boundary + (1 if inherited[-1].type == END_SEED else 2)
        self.models.append(Model(child))

    @rule(which=st.integers(0, 6))
    def replay(self, which: int) -> None:
        self.pick(which).check_replay()

    @invariant()
    def each_session_holds_what_was_appended_to_it_and_no_more(self) -> None:
        for model in self.models:
            model.check()


SessionMachine.TestCase.settings = settings(stateful_step_count=20)
TestSessions = SessionMachine.TestCase


KINDS = [
    "turn/start",
    "step/start",
    "assistant/message",
    "tool/call",
    "tool/result",
    "step/end",
    "turn/end",
    "x",
]
moves = st.tuples(
    st.sampled_from(KINDS),
    st.sampled_from([0, 0, 0, 0, 1]),
    st.sampled_from("ab"),
    st.sampled_from(["", "a", "ba"]),
)


def entry_for(state: LogState, kind: str, slip: int, call_id: str, calls: str) -> Wire:
    """What an agent loop would append next as this kind; with a slip, its numbers are wrong."""
    turn, step = state.turn + slip, (state.open_step or state.step) + slip
    place = {"turn": turn, "step": step}
    blocks = [{"type": "tool-call", "id": one, "name": "n", "arguments": "{}"} for one in calls]
    data: dict[str, Any] = {
        "turn/start": {"turn": turn + 1},
        "step/start": {"turn": turn, "step": state.step + 1 + slip},
        "assistant/message": {
            **place,
            "message": assistant_message(blocks, provider="p", model="m"),
        },
        "tool/call": {**place, "callId": call_id, "name": "n", "arguments": "{}"},
        "tool/result": {**place, "message": tool_result_message(call_id, "x")},
        "step/end": place,
        "turn/end": {"turn": turn, "reason": {"kind": "completed"}},
        "x": None,
    }
    entry = {"type": kind, "data": data[kind]}
    return entry | ({"surfaceOp": "append"} if kind in SURFACE else {})


@given(st.lists(moves, max_size=40))
def test_a_guarded_log_is_sound_and_repair_balances_each_prefix_of_it(
    plan: list[tuple[str, int, str, str]],
) -> None:
    session = Session.create("s")
    attach_invariants(session)
    for move in plan:
        before = session.seq
        try:
            session.append_all([entry_for(session.state, *move)])
        except InvariantError:
            assert session.seq == before
    assert find_violations(session.events) == []
    for length in range(session.seq + 1):
        prefix = session.events.prefix(length)
        closers = interrupted_turn_closers(prefix)
        repaired = Session.create("repaired", [*prefix, *closers])
        assert find_violations(repaired.events) == []
        assert repaired.state.open_turn is None
        assert interrupted_turn_closers(repaired.events) == []
        assert bool(closers) is (Session.create("p", prefix).state.open_turn is not None)
        assert repaired.events[:length] == list(prefix)
        assert [SessionEvent.from_dict(one.to_dict()).to_json() for one in closers] == [
            one.to_json() for one in closers
        ]
